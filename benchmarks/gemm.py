"""Measures single and batched products: rows of the manifest, or a sweep over sizes.

python -m benchmarks.gemm --suite=smoke
python -m benchmarks.gemm --suite=dense,batched --regime=both --out=h200.jsonl
python -m benchmarks.gemm --m=1024:8192:1024 --n=4096 --k=4096 --dtype=bfloat16
"""

import sys
from collections.abc import Sequence

from absl import app, flags

from benchmarks import cases, command, manifest
from jaxgemm import dtypes

_SUITE = flags.DEFINE_list(
    "suite", ["smoke"], "suites of the manifest, or 'all'; default with --filter: all"
)
_M = flags.DEFINE_string("m", None, "a sweep instead: 4096, 1024,4096 or 1024:8192:1024")
_N = flags.DEFINE_string("n", "", "columns of the sweep; default: as m")
_K = flags.DEFINE_string("k", "", "contraction of the sweep; default: as m")
_DTYPE = flags.DEFINE_list("dtype", ["bfloat16"], "dtypes of a and b in the sweep")
_OUT_DTYPE = flags.DEFINE_enum(
    "out_dtype", None, [*dtypes.OPERANDS, "int32"], "result of the sweep; default: as a and b"
)
_EPILOGUE = flags.DEFINE_string("epilogue", "none", "epilogue of the sweep: none, bias+gelu, …")
_BATCH = flags.DEFINE_integer("batch", 1, "matrices of the sweep", lower_bound=1)
_TRANS_A = flags.DEFINE_bool("trans_a", False, "a of the sweep is stored as (k, m)")
_TRANS_B = flags.DEFINE_bool("trans_b", False, "b of the sweep is stored as (n, k)")

_OF_SWEEPS = (_N, _K, _DTYPE, _OUT_DTYPE, _EPILOGUE, _BATCH, _TRANS_A, _TRANS_B)

# dtype of operands → the dtype in which products are summed, and that of the result by default.
_COMPUTE = {"float32": "tfloat32", "float64": "float64", "int8": "int32"}
_RESULT = {"int8": "int32", "float8_e4m3fn": "bfloat16", "float8_e5m2": "bfloat16"}


@flags.validator("dtype")
def _are_dtypes(names: list[str]) -> bool:
    if unknown := sorted(set(names) - set(dtypes.OPERANDS)):
        raise flags.ValidationError(f"{unknown} should be among {sorted(dtypes.OPERANDS)}")
    return True


def rows() -> Sequence[manifest.Row]:
    """What the flags ask for.

    Raises:
      ValueError: a flag means nothing.
    """
    if _M.value is None:
        if ignored := [f"--{flag.name}" for flag in _OF_SWEEPS if flag.present]:
            raise ValueError(f"{', '.join(ignored)}: should come with --m, which asks for a sweep")
        return command.select(_SUITE)
    cases.check_epilogue(_EPILOGUE.value)
    has_c = any(part in cases.C_PARTS for part in _EPILOGUE.value.split("+"))
    swept = []
    for dtype in _DTYPE.value:
        swept += manifest.sweep(
            _M.value,
            _N.value,
            _K.value,
            a_dtype=dtype,
            b_dtype=dtype,
            out_dtype=_OUT_DTYPE.value or _RESULT.get(dtype, dtype),
            compute_dtype=_COMPUTE.get(dtype, "float32"),
            beta=float(has_c),
            epilogue=_EPILOGUE.value,
            batch=_BATCH.value,
            trans_a=_TRANS_A.value,
            trans_b=_TRANS_B.value,
        )
    return swept


def main(argv: Sequence[str]) -> None:
    """Measures what the flags say."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    try:
        found = rows()
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    sys.exit(command.measure(found))


if __name__ == "__main__":
    app.run(main)
