"""What each operand dtype means: accumulator, default output, rounding, precision classes."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class DTypeFacts:
    """One supported operand dtype.

    Attributes:
      name: numpy's name of the dtype.
      accumulator: dtype in which products are summed and the epilogue runs.
      mantissa_bits: explicit bits of the significand, 0 for integers.
      mma: the family of tensor-core instruction that multiplies it, "" where there is none.
    """

    name: str
    accumulator: str
    mantissa_bits: int
    mma: str

    @property
    def bits(self) -> int:
        """Size of one element."""
        return 8 * jnp.dtype(self.name).itemsize

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to this dtype; 0 for integers."""
        return 2.0 ** -(self.mantissa_bits + 1) if self.mantissa_bits else 0.0


_ROWS = (
    DTypeFacts("float64", "float64", 52, ""),
    DTypeFacts("float32", "float32", 23, "tf32"),
    DTypeFacts("bfloat16", "float32", 7, "f16"),
    DTypeFacts("float16", "float32", 10, "f16"),
    DTypeFacts("float8_e4m3fn", "float32", 3, "f8"),
    DTypeFacts("float8_e5m2", "float32", 2, "f8"),
    DTypeFacts("int8", "int32", 0, "i8"),
)
OPERANDS = {row.name: row for row in _ROWS}
# Dtypes an integer product may be written to: exact in int32, one rounding to a float.
INTEGER_OUTPUTS = ("int32", "float64", "float32", "bfloat16", "float16")
# TF32 keeps 10 explicit bits of a float32 operand: its unit roundoff is 2^-11.
TF32_UNIT_ROUNDOFF = 2.0**-11

# jax's names of a precision → the accuracy class that jaxgemm promises for float32 operands.
# `bfloat16_3x` is more exact than TF32, so it may only become something at least as exact.
PRECISIONS = {
    "default": "default",
    "fastest": "default",
    "bfloat16": "default",
    "high": "high",
    "tensorfloat32": "high",
    "bfloat16_3x": "highest",
    "highest": "highest",
    "float32": "highest",
}


# An algorithm (`jax.lax.DotAlgorithmPreset`) asks for its own accuracy or better; those not listed
# are only met by true float32.
_ALGORITHMS = {
    "DEFAULT": "default",
    "BF16_BF16_F32": "default",
    "TF32_TF32_F32": "high",
    "F16_F16_F32": "high",
}


def facts(dtype: Any) -> DTypeFacts:
    """The row of a dtype that `is_operand` accepts."""
    return OPERANDS[jnp.dtype(dtype).name]


def is_operand(dtype: Any) -> bool:
    """Whether a and b may have this dtype."""
    return jnp.dtype(dtype).name in OPERANDS


def is_integer(dtype: Any) -> bool:
    """Whether the dtype is an integer one (bool is not)."""
    return jnp.issubdtype(dtype, jnp.integer)


def is_fp8(dtype: Any) -> bool:
    """Whether the dtype is one of the 8-bit floats."""
    return jnp.dtype(dtype).name.startswith("float8")


def can_pair(a: Any, b: Any) -> bool:
    """Whether a and b may be multiplied: both integers, or both floats."""
    return is_integer(a) == is_integer(b)


@functools.cache
def accumulator(a: np.dtype, b: np.dtype) -> np.dtype:
    """float64 if either operand is, int32 for integers, else float32."""
    if "float64" in (a.name, b.name):
        return jnp.dtype("float64")
    return jnp.dtype(facts(a).accumulator)


@functools.cache
def compute(a: np.dtype, b: np.dtype) -> np.dtype:
    """The dtype that holds both operands exactly and in which they are multiplied.

    8-bit floats fit bfloat16 and float16 exactly, so a pair of them is multiplied as bfloat16.
    """
    if is_integer(a):
        return a
    wide = [d for d in (a, b) if not is_fp8(d)]
    return functools.reduce(jnp.promote_types, wide) if wide else jnp.dtype("bfloat16")


@functools.cache
def default_out(a: np.dtype, b: np.dtype) -> np.dtype:
    """The result dtype where the caller names none: int32 for integers, else `compute(a, b)`."""
    return jnp.dtype("int32") if is_integer(a) else compute(a, b)


@functools.cache
def residual(a: np.dtype, b: np.dtype, out: np.dtype) -> np.dtype:
    """The dtype of saved pre-activations and their cotangents: the wider of operands and out."""
    if is_integer(a):
        return accumulator(a, b)
    return compute(compute(a, b), out)


def out_dtypes(a: Any, b: Any) -> tuple[str, ...]:
    """Names of the dtypes a product of a and b may be written to."""
    if is_integer(a) and is_integer(b):
        return INTEGER_OUTPUTS
    return tuple(name for name, row in OPERANDS.items() if row.mantissa_bits)


def resolve_precision(precision: Any) -> str:
    """The accuracy class of a `precision` argument: "default", "high" or "highest".

    `None` follows `jax.default_matmul_precision`. "default" and "high" let a GPU multiply
    float32 operands as TF32; "highest" is true float32. Other dtypes are multiplied as stored.

    Raises:
      ValueError: it is not a precision or an algorithm that JAX knows.
    """
    if precision is None:
        precision = jax.config.jax_default_matmul_precision or "default"  # pyright: ignore
    algorithm = str(precision).upper().removeprefix("DOTALGORITHMPRESET.")
    name = str(precision).lower().removeprefix("precision.")
    if name not in PRECISIONS and algorithm in jax.lax.DotAlgorithmPreset.__members__:
        return _ALGORITHMS.get(algorithm, "highest")
    if name not in PRECISIONS:
        raise ValueError(
            f"precision: {precision!r} is not a precision; it should be None, a"
            f" jax.lax.Precision, or one of {', '.join(map(repr, PRECISIONS))}"
        )
    return PRECISIONS[name]
