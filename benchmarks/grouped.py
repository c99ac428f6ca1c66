"""Measures grouped products: rows of the manifest, or a sweep over groups and distributions.

python -m benchmarks.grouped --suite=grouped,grouped_backward
python -m benchmarks.grouped --m=8192 --groups=8,32,128 --distribution=balanced,zipf1.2
"""

import sys
from collections.abc import Sequence

from absl import app, flags

from benchmarks import command, manifest

_SUITE = flags.DEFINE_list("suite", ["grouped"], "suites of the manifest; only grouped rows count")
_M = flags.DEFINE_string("m", None, "a sweep instead: rows of all groups together")
_N = flags.DEFINE_string("n", "4096", "columns of the sweep")
_K = flags.DEFINE_string("k", "4096", "contraction of the sweep")
_GROUPS = flags.DEFINE_string("groups", "8", "numbers of groups of the sweep")
_DISTRIBUTION = flags.DEFINE_list("distribution", ["balanced"], "of the sweep; see groups.py")
_DTYPE = flags.DEFINE_string("dtype", "bfloat16", "of all arrays of the sweep")


def _rows() -> list[manifest.Row]:
    if _M.value is None:
        return [row for row in command.select(_SUITE) if row.groups]
    # Only what is not the default.
    kind = "" if _DTYPE.value == "bfloat16" else f"_{_DTYPE.value}"
    return [
        manifest.Row(
            f"grouped_{num_groups}x{m}x{n}x{k}_{distribution}{kind}",
            m,
            n,
            k,
            suites="grouped_sweep",
            groups=num_groups,
            layout="ragged_m",
            distribution=distribution,
            a_dtype=_DTYPE.value,
            b_dtype=_DTYPE.value,
            out_dtype=_DTYPE.value,
            compute_dtype="tfloat32" if _DTYPE.value == "float32" else "float32",
        )
        for m in manifest.span("--m", _M.value)
        for n in manifest.span("--n", _N.value)
        for k in manifest.span("--k", _K.value)
        for num_groups in manifest.span("--groups", _GROUPS.value)
        for distribution in _DISTRIBUTION.value
    ]


def main(argv: Sequence[str]) -> None:
    """Measures what the flags say."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    try:
        rows = _rows()
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    sys.exit(command.measure(rows))


if __name__ == "__main__":
    app.run(main)
