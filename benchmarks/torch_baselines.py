"""What PyTorch, and so cuBLASLt, does with a row. Nothing here needs torch to be installed."""

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.cases import Case, Operands
from benchmarks.variants import Implementation, Variant

# JAX would otherwise take most of the memory that torch needs. Read when JAX first sees the GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@functools.cache
def _torch() -> Any | None:
    try:
        torch = importlib.import_module("torch")
        return torch if torch.cuda.is_available() else None
    except Exception:  # not installed, or broken: a reason, not a failure
        return None


def _to_torch(x: jax.Array) -> Any:
    """The same memory as a tensor; 8-bit floats go through bytes, which DLPack can name."""
    torch = _torch()
    assert torch is not None
    if not x.dtype.name.startswith("float8"):
        return torch.from_dlpack(x)
    raw = torch.from_dlpack(jax.lax.bitcast_convert_type(x, jnp.uint8))
    return raw.view(getattr(torch, x.dtype.name))


def _to_jax(tensor: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    return jnp.from_dlpack(tensor.contiguous()), {}


Maker = Callable[[Case, Any], Callable[[dict[str, Any]], Any] | str]


def _implementation(name: str, make: Maker) -> Implementation:
    """`make(case, torch)` gives a function of tensors that are (m, k) and (k, n), or a reason."""

    def why_not(case: Case, mode: str) -> str | None:
        if mode != "forward":
            return "only forward passes of torch are timed"
        torch = _torch()
        if torch is None:
            return "torch with CUDA cannot be imported"
        made = make(case, torch)
        return made if isinstance(made, str) else None

    def variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
        del mode, sample
        torch = _torch()
        assert torch is not None
        function = make(case, torch)
        assert not isinstance(function, str)
        strict = case.problem.spec.precision == "highest"

        def call(x: dict[str, Any]) -> Any:
            torch.backends.cuda.matmul.allow_tf32 = not strict
            return function(x)

        prepare = functools.partial(_prepare, case)
        yield Variant("", call, prepare, _to_jax, torch.cuda.synchronize)

    return Implementation(name, why_not, variants)


def _prepare(case: Case, operands: Operands) -> dict[str, Any]:
    x = {name: _to_torch(value) for name, value in operands.items()}
    if case.interleaved:
        x["a"] = x["a"].transpose(0, 1)
    if case.row.trans_a:
        x["a"] = x["a"].transpose(-1, -2)
    if case.row.trans_b:
        x["b"] = x["b"].transpose(-1, -2)
    if "group_sizes" in x:
        x["offsets"] = x["group_sizes"].cumsum(0).to(x["group_sizes"].dtype)
    return x


def _wide(case: Case, torch: Any) -> dict[str, Any]:
    """The keyword for a result that is wider than its operands."""
    row = case.row
    if row.out_dtype == row.a_dtype:
        return {}
    return {"out_dtype": getattr(torch, row.out_dtype)}


def _unlike(case: Case, *, epilogues: tuple[str, ...], dtypes: tuple[str, ...]) -> str | None:
    row = case.row
    if row.epilogue not in epilogues:
        return f"has no epilogue {row.epilogue}"
    if row.a_dtype not in dtypes or (row.b_dtype != row.a_dtype and "float8" not in row.a_dtype):
        return f"takes {', '.join(dtypes)}"
    return None


_FLOATS = ("bfloat16", "float16", "float32", "float64")


def _mm(case: Case, torch: Any) -> Callable[[dict[str, Any]], Any] | str:
    row = case.row
    if row.groups:
        return "takes no groups"
    if reason := _unlike(
        case, epilogues=("none", "bias", "residual", "accumulate"), dtypes=_FLOATS
    ):
        return reason
    wide = _wide(case, torch)
    if row.epilogue == "none" and row.beta == 0 and row.alpha == 1:
        product = torch.mm if row.batch == 1 else torch.bmm
        if row.layout == "row+bcast_b":
            return lambda x: torch.matmul(x["a"], x["b"])
        return (
            _interleaved(torch) if case.interleaved else lambda x: product(x["a"], x["b"], **wide)
        )
    if row.batch > 1 or (row.epilogue == "bias" and row.beta):
        return "addmm adds one thing to one matrix"
    addend = "bias" if row.epilogue == "bias" else "c"
    beta = 1.0 if addend == "bias" else row.beta
    scalars = {"alpha": row.alpha, "beta": beta}
    return lambda x: torch.addmm(x[addend], x["a"], x["b"], **scalars, **wide)


def _interleaved(torch: Any) -> Callable[[dict[str, Any]], Any]:
    """A product that is written with its batch axis second."""

    def function(x: dict[str, Any]) -> Any:
        batch, m, _ = x["a"].shape
        d = torch.empty((m, batch, x["b"].shape[-1]), dtype=x["a"].dtype, device="cuda")
        torch.bmm(x["a"], x["b"], out=d.transpose(0, 1))
        return d

    return function


def _addmm_activation(case: Case, torch: Any) -> Callable[[dict[str, Any]], Any] | str:
    row = case.row
    if row.groups or row.batch > 1 or row.beta or row.alpha != 1:
        return "adds a bias to one matrix"
    if reason := _unlike(case, epilogues=("bias+gelu", "bias+relu"), dtypes=_FLOATS):
        return reason
    gelu = row.epilogue == "bias+gelu"
    return lambda x: torch._addmm_activation(x["bias"], x["a"], x["b"], use_gelu=gelu)


def _grouped_mm(case: Case, torch: Any) -> Callable[[dict[str, Any]], Any] | str:
    if not case.row.groups:
        return "takes groups"
    if case.sizes is None or case.sizes.sum() != case._ragged_size:
        return "leaves rows without a group unwritten"
    if reason := _unlike(case, epilogues=("none",), dtypes=("bfloat16",)):
        return reason
    return lambda x: torch._grouped_mm(x["a"], x["b"], offs=x["offsets"])


def _scaled_mm(fast: bool) -> Maker:
    def make(case: Case, torch: Any) -> Callable[[dict[str, Any]], Any] | str:
        row = case.row
        if row.groups or row.batch > 1 or row.beta or not row.trans_b:
            return "takes one matrix and one stored as (n, k)"
        kinds = ("float8_e4m3fn", "float8_e5m2")
        if reason := _unlike(case, epilogues=("none", "bias"), dtypes=kinds):
            return reason
        out = getattr(torch, row.out_dtype)
        one = torch.ones((), device="cuda")
        options = {"out_dtype": out, "use_fast_accum": fast, "scale_b": one}
        return lambda x: torch._scaled_mm(
            x["a"], x["b"], scale_a=x.get("alpha", one), bias=x.get("bias"), **options
        )

    return make


def _int_mm(case: Case, torch: Any) -> Callable[[dict[str, Any]], Any] | str:
    if case.row.groups or case.row.batch > 1 or case.row.out_dtype != "int32" or case.row.beta:
        return "takes two matrices of int8 and gives int32"
    if reason := _unlike(case, epilogues=("none",), dtypes=("int8",)):
        return reason
    return lambda x: torch._int_mm(x["a"], x["b"])


IMPLEMENTATIONS = (
    _implementation("torch.mm", _mm),
    _implementation("torch._addmm_activation", _addmm_activation),
    _implementation("torch._grouped_mm", _grouped_mm),
    _implementation("torch._scaled_mm", _scaled_mm(False)),
    _implementation("torch._scaled_mm[fast_accum]", _scaled_mm(True)),
    _implementation("torch._int_mm", _int_mm),
)
