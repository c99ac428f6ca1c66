"""What callers pass, checked once; everything further down trusts it.

`names` maps the roles of a spec to the names that the public function gives them.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm import dtypes, epilogue
from jaxgemm.epilogue import Clamp
from jaxgemm.problem import Shaped

_MAX_SIZE = 2**31 - 1
_INTEGER_ADDENDS = ("int8", "int16", "int32")


def _list(names: Any) -> str:
    return ", ".join(str(name) for name in names)


ShapedOperands = tuple[tuple[str, Shaped], ...]


def shaped(operands: dict[str, Any]) -> ShapedOperands:
    """(role, shape and dtype) of every operand: hashable."""
    return tuple((name, Shaped(x.shape, x.dtype)) for name, x in operands.items())


def check_operands(operands: dict[str, Any], names: dict[str, str]) -> None:
    """Raises unless a and b (and b_up) have supported dtypes, and all operands sizes."""
    check_operand_dtypes({n: x for n, x in operands.items() if n in ("a", "b", "b_up")}, names)
    for role, x in operands.items():
        for axis, size in enumerate(x.shape):
            if size > _MAX_SIZE:
                raise ValueError(
                    f"{names.get(role, role)}: axis {axis} has size {size}; it should be at most"
                    f" {_MAX_SIZE}"
                )


def check_operand_dtypes(matrices: dict[str, Any], names: dict[str, str]) -> None:
    """Raises unless the matrices have dtypes that can be multiplied with one another."""
    for role, x in matrices.items():
        if not dtypes.is_operand(x.dtype):
            raise TypeError(
                f"{names[role]}: dtype {x.dtype} is not supported; it should be one of"
                f" {_list(dtypes.OPERANDS)}"
            )
    a, b = matrices["a"], matrices["b"]
    if not dtypes.can_pair(a.dtype, b.dtype):
        raise TypeError(
            f"{names['b']}: dtype {b.dtype} cannot be multiplied with {names['a']}'s {a.dtype};"
            " both should be floats or both int8"
        )


def check_dtype(name: str, dtype: Any) -> np.dtype | None:
    """A dtype argument as a dtype, or None.

    Raises:
      TypeError: it is neither.
    """
    try:
        return None if dtype is None else jnp.dtype(dtype)
    except TypeError:
        raise TypeError(f"{name}: {dtype!r} is not a dtype") from None


def check_out_dtype(dtype: np.dtype | None, a: Any, b: Any) -> np.dtype:
    """The result dtype: `dtype`, or the default for a and b.

    Raises:
      TypeError: a product of these operands cannot be written to it.
      ValueError: it is float64 and `jax_enable_x64` is off.
    """
    if dtype is None:
        return dtypes.default_out(a.dtype, b.dtype)
    allowed = dtypes.out_dtypes(a.dtype, b.dtype)
    if dtype.name not in allowed:
        raise TypeError(
            f"out_dtype: {dtype} cannot hold a product of {a.dtype} and {b.dtype}; it should be"
            f" one of {_list(allowed)}"
        )
    if dtype.name == "float64" and not jax.config.jax_enable_x64:  # pyright: ignore
        raise ValueError("out_dtype: float64 needs jax_enable_x64, which is off")
    return dtype


def check_activation(activation: Any) -> None:
    """Raises unless it is None or a known name."""
    known = tuple(epilogue.ACTIVATIONS)
    if activation is not None and (not isinstance(activation, str) or activation not in known):
        raise ValueError(
            f"activation: {activation!r} is unknown; it should be None or one of {_list(known)}"
        )


def check_integer_activation(activation: str | None) -> None:
    """Raises unless the activation maps integers to integers."""
    known = epilogue.INTEGER_ACTIVATIONS
    if activation is not None and activation not in known:
        raise ValueError(
            f"activation: {activation!r} has no integer form; for integer operands it should be"
            f" None or one of {_list(known)}"
        )


def check_clamp(clamp: Any) -> Clamp | None:
    """The bounds as Python numbers, None for those that every number keeps; None if there are none.

    Raises:
      TypeError: not a pair of numbers or None.
      ValueError: bounds that no number lies between.
    """
    if clamp is None:
        return None
    expected = "it should be (low, high), each a number that is known now or None"
    if not isinstance(clamp, tuple | list) or len(clamp) != 2:
        raise TypeError(f"clamp: is {clamp!r}; {expected}")
    for bound in clamp:
        if not isinstance(bound, int | float | np.integer | np.floating | None):
            raise TypeError(f"clamp: has {bound!r}; {expected}")
    low, high = (None if bound is None else float(bound) for bound in clamp)
    low, high = None if low == -math.inf else low, None if high == math.inf else high
    if low is None and high is None:
        return None
    if not (-math.inf if low is None else low) <= (math.inf if high is None else high):
        raise ValueError(f"clamp: is ({low}, {high}); low should be at most high, and neither NaN")
    return low, high


def check_integer_clamp(clamp: Clamp | None) -> None:
    """Raises unless the bounds are integers that int32 has."""
    for bound in clamp or ():
        if bound is not None and not (bound.is_integer() and -(2**31) <= bound < 2**31):
            raise ValueError(
                f"clamp: has {bound}; for integer operands it should be an integer of 32 bits"
            )


def check_rank(name: str, x: Any, dims: str, *, exact: bool = False) -> None:
    """Raises unless x has the dimensions that `dims` lists, or at least those."""
    wanted = len(dims.split(", "))
    if len(x.shape) == wanted or (len(x.shape) > wanted and not exact):
        return
    shape = f"({dims})" if exact else f"(..., {dims})"
    raise ValueError(
        f"{name}: shape {x.shape} has {len(x.shape)} dimension{'s' * (len(x.shape) != 1)}, but it"
        f" should be {shape}"
    )


def check_contraction(a: Any, a_axis: int, b: Any, b_axis: int, names: dict[str, str]) -> None:
    """Raises unless the contracted axes of a and b have the same size."""
    if a.shape[a_axis] != b.shape[b_axis]:
        raise ValueError(
            f"{names['b']}: contracted axis {b_axis} has size {b.shape[b_axis]}, but"
            f" {names['a']}'s contracted axis {a_axis} has size {a.shape[a_axis]}"
        )


def check_batch(a: Any, b: Any, names: dict[str, str]) -> tuple[int, ...]:
    """The batch shape that the leading axes of a and b broadcast to."""
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"{names['b']}: batch axes {b.shape[:-2]} do not broadcast with {names['a']}'s batch"
            f" axes {a.shape[:-2]}"
        ) from None


def check_addend(name: str, x: Any, shape: tuple[int, ...], dims: str, integer: bool) -> None:
    """Raises unless c or bias has a dtype for the accumulator; bias must have exactly `shape`."""
    known = _INTEGER_ADDENDS if integer else dtypes.out_dtypes("float32", "float32")
    if x.dtype.name not in known:
        kind = "integer" if integer else "float"
        raise TypeError(
            f"{name}: dtype {x.dtype} cannot be added to {kind} products; it should be one of"
            f" {_list(known)}"
        )
    if name == "c":
        try:
            fits = np.broadcast_shapes(x.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"c: shape {x.shape} does not broadcast to the result's {shape}")
    elif x.shape != shape:
        comma = "," if len(shape) == 1 else ""
        raise ValueError(f"{name}: shape {x.shape} should be ({dims}{comma}) = {shape}")


def check_scalar(name: str, x: Any, integer: bool) -> None:
    """Raises unless x is a real scalar of the accumulator's kind."""
    if not isinstance(x, bool | int | float | complex | np.generic | np.ndarray | jax.Array):
        raise TypeError(f"{name}: {x!r} is a {type(x).__name__}; it should be a real scalar")
    dtype, shape = jax.dtypes.result_type(x), np.shape(x)
    if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
        raise TypeError(f"{name}: dtype {dtype} is not a number; it should be a real scalar")
    if shape != ():
        raise ValueError(f"{name}: has shape {shape}; it should be a scalar")
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"{name}: dtype {dtype} is complex; it should be a real scalar")
    if integer and jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"{name}: dtype {dtype} would leave the integers; for integer operands it should be"
            " an integer (or scale the converted result)"
        )
    if integer and isinstance(x, int | np.integer) and not -(2**31) <= int(x) < 2**31:
        raise ValueError(f"{name}: {x} does not fit int32, in which integer operands are summed")


def check_group_sizes(sizes: Any, num_groups: int, rhs_name: str) -> None:
    """Raises unless group_sizes is an integer vector with one size for each matrix of rhs."""
    if not dtypes.is_integer(sizes.dtype):
        raise TypeError(f"group_sizes: dtype {sizes.dtype} should be an integer dtype")
    if sizes.shape != (num_groups,):
        raise ValueError(
            f"group_sizes: shape {sizes.shape} should be (g,) = ({num_groups},), one size for each"
            f" matrix of {rhs_name}"
        )


def check_same(name: str, x: Any, other_name: str, other: Any) -> None:
    """Raises unless x has the shape and dtype of another operand."""
    if x.shape != other.shape:
        raise ValueError(f"{name}: shape {x.shape} should be {other_name}'s {other.shape}")
    if x.dtype != other.dtype:
        raise TypeError(f"{name}: dtype {x.dtype} should be {other_name}'s {other.dtype}")


def check_dimension_numbers(
    lhs: Any, rhs: Any, dimension_numbers: Any
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """The axes of a dot_general as tuples.

    Raises:
      TypeError: they are not ((lhs contracted, rhs contracted), (lhs batch, rhs batch)).
      ValueError: they do not exist, are not distinct, or do not match in size.
    """
    try:
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
        contract = (tuple(map(int, lhs_contract)), tuple(map(int, rhs_contract)))
        batch = (tuple(map(int, lhs_batch)), tuple(map(int, rhs_batch)))
    except (TypeError, ValueError):
        raise TypeError(
            f"dimension_numbers: {dimension_numbers!r} should be ((lhs contracted, rhs contracted),"
            " (lhs batch, rhs batch)), each a sequence of axes"
        ) from None
    for name, x, axes in (
        ("lhs", lhs, (*contract[0], *batch[0])),
        ("rhs", rhs, (*contract[1], *batch[1])),
    ):
        if len(set(axes)) < len(axes) or not set(axes) <= set(range(x.ndim)):
            raise ValueError(
                f"dimension_numbers: {name} has {x.ndim} dimensions; its axes {axes} should be"
                " distinct and among them"
            )
    for what, (left, right) in (("contracted", contract), ("batch", batch)):
        if len(left) != len(right):
            raise ValueError(
                f"dimension_numbers: lhs has {len(left)} {what} axes, but rhs has {len(right)}"
            )
        for i, j in zip(left, right, strict=True):
            if lhs.shape[i] != rhs.shape[j]:
                raise ValueError(
                    f"rhs: {what} axis {j} has size {rhs.shape[j]}, but lhs's {what} axis {i} has"
                    f" size {lhs.shape[i]}"
                )
    return contract, batch


def check_backend(backend: Any) -> None:
    """Raises unless it is a string; which strings there are, the registry knows."""
    if not isinstance(backend, str):
        raise TypeError(f"backend: {backend!r} is a {type(backend).__name__}; it should be a str")


def check_flag(name: str, x: Any) -> bool:
    """x as a bool; raises unless it is one, of Python's or numpy's."""
    if not isinstance(x, bool | np.bool_):
        raise TypeError(f"{name}: {x!r} is a {type(x).__name__}; it should be True or False")
    return bool(x)


def check_array(name: str, x: Any) -> jax.Array:
    """x as a JAX array; raises unless it is an array of JAX's or numpy's."""
    if isinstance(x, jax.Array):
        return x
    if not isinstance(x, np.ndarray | np.generic):
        raise TypeError(
            f"{name}: a {type(x).__name__} is not an array; it should be a jax or numpy array"
        )
    return jnp.asarray(x)
