"""The signatures that existing code calls: matmul, dot_general and ragged_dot on top of `gemm`."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import checks
from jaxgemm.api import Precision, gemm, grouped_gemm

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Precision = None,
    preferred_element_type: DTypeLike | None = None,
) -> jax.Array:
    """`jnp.matmul`'s signature and shapes, vectors included, with `gemm`'s semantics.

    Args:
      a: (..., m, k) or (k,).
      b: (..., k, n) or (k,).
      precision: as in `gemm`.
      preferred_element_type: `gemm`'s `out_dtype`.

    Returns:
      (..., m, n), without the dimension that a vector lacks.

    Raises:
      ValueError: shapes that do not fit.
      TypeError: dtypes that do not fit.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> jaxgemm.matmul(jnp.ones((5, 3)), jnp.ones(3)).shape
      (5,)
    """
    a, b = checks.check_array("a", a), checks.check_array("b", b)
    for name, x in (("a", a), ("b", b)):
        checks.check_rank(name, x, "k")
    names = {"a": "a", "b": "b"}
    checks.check_contraction(a, a.ndim - 1, b, max(b.ndim - 2, 0), names)
    result = gemm(
        a[None, :] if a.ndim == 1 else a,
        b[:, None] if b.ndim == 1 else b,
        out_dtype=preferred_element_type,
        precision=precision,
    )
    result = result[..., 0] if b.ndim == 1 else result
    return result if a.ndim > 1 else result[..., 0] if b.ndim == 1 else result[..., 0, :]


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DimensionNumbers,
    precision: Precision = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Any = None,
) -> jax.Array:
    """`lax.dot_general`'s signature and shapes, with `gemm`'s semantics.

    It is what `flax.linen.Dense(dot_general=jaxgemm.dot_general)` takes. An operand is not moved in
    memory whose free axes are next to one another, and its contracted ones too, with its batch axes
    in front of them or between, in the order in which `dimension_numbers` names them.

    Args:
      lhs: any rank.
      rhs: any rank.
      dimension_numbers: ((lhs contracted, rhs contracted), (lhs batch, rhs batch)) axes.
      precision: as in `gemm`; the (lhs, rhs) pair that lax accepts must hold the same name twice.
      preferred_element_type: `gemm`'s `out_dtype`.
      out_sharding: must be None.

    Returns:
      (batch axes, free axes of lhs, free axes of rhs).

    Raises:
      ValueError: shapes or axes that do not fit.
      TypeError: dtypes that do not fit.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> x, w = jnp.ones((2, 3, 8)), jnp.ones((8, 5))
      >>> jaxgemm.dot_general(x, w, (((2,), (0,)), ((), ()))).shape
      (2, 3, 5)
    """
    if out_sharding is not None:
        raise ValueError("out_sharding: is not supported; it should be None")
    if isinstance(precision, tuple):
        if len(set(precision)) > 1:
            raise ValueError(f"precision: {precision} differs between lhs and rhs; give one")
        precision = precision[0]
    lhs, rhs = checks.check_array("lhs", lhs), checks.check_array("rhs", rhs)
    checks.check_operands({"a": lhs, "b": rhs}, {"a": "lhs", "b": "rhs"})
    contract, batch = checks.check_dimension_numbers(lhs, rhs, dimension_numbers)
    a = _as_matrices(lhs, batch[0], contract[0], contract_first=False)
    b = _as_matrices(rhs, batch[1], contract[1], contract_first=True)
    product = functools.partial(
        gemm,
        transpose_a=a.transposed,
        transpose_b=b.transposed,
        out_dtype=preferred_element_type,
        precision=precision,
    )
    result = _over_batch(product, a, b)
    return result.reshape(*result.shape[:-2], *a.free_sizes, *b.free_sizes)


class _Matrices(NamedTuple):
    """An operand of a dot_general as a batch of matrices.

    Attributes:
      array: the matrices, with batch axes before their two dimensions or between them.
      axes: where each batch axis is.
      free_sizes: the sizes of the free axes, which are one dimension of the matrices.
      transposed: whether the matrices have the other orientation than usual.
    """

    array: jax.Array
    axes: tuple[int, ...]
    free_sizes: tuple[int, ...]
    transposed: bool

    def axis_at(self, level: int) -> int:
        """Where a batch axis is, once all before it are mapped over."""
        return self.axes[level] - sum(axis < self.axes[level] for axis in self.axes[:level])


def _over_batch(product: Callable[..., jax.Array], a: _Matrices, b: _Matrices) -> jax.Array:
    """The products of all matrices, with batch axes first."""
    num_batch = len(a.axes)
    if not (a.axes == b.axes == tuple(range(num_batch))):
        # By way of vmap, which may leave an axis inside of d too: there einsum's own transpose of
        # the result mostly wants it.
        for level in reversed(range(num_batch)):
            product = jax.vmap(product, in_axes=(a.axis_at(level), b.axis_at(level)))
    return product(a.array, b.array)


def _as_matrices(
    x: jax.Array, batch: tuple[int, ...], contract: tuple[int, ...], *, contract_first: bool
) -> _Matrices:
    """The matrices of an operand, moved in memory only where neither orientation is there.

    The usual orientation has the contraction first for rhs and last for lhs.
    """
    free = tuple(i for i in range(x.ndim) if i not in (*batch, *contract))
    usual = (contract, free) if contract_first else (free, contract)
    for first, second in (usual, usual[::-1]):
        begin = min((*first, *second), default=x.ndim)
        outside = tuple(i for i in range(x.ndim) if i in batch and i < begin)
        inside = tuple(i for i in range(x.ndim) if i in batch and i > begin)
        if (*outside, *first, *inside, *second) == tuple(range(x.ndim)):
            break
    else:
        (first, second), outside, inside = usual, batch, ()

    def size(axes: tuple[int, ...]) -> list[int]:
        return [x.shape[i] for i in axes]

    shape = (*size(outside), math.prod(size(first)), *size(inside), math.prod(size(second)))
    places = {axis: i for i, axis in enumerate(outside)}
    places |= {axis: len(outside) + 1 + i for i, axis in enumerate(inside)}
    array = lax.transpose(x, (*outside, *first, *inside, *second)).reshape(shape)
    axes = tuple(places[axis] for axis in batch)
    return _Matrices(array, axes, tuple(size(free)), transposed=(first, second) != usual)


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: Precision = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
) -> jax.Array:
    """`lax.ragged_dot`'s signature, with `grouped_gemm`'s semantics.

    Args:
      lhs: (m, k).
      rhs: (g, k, n).
      group_sizes: (g,).
      precision: as in `gemm`.
      preferred_element_type: `gemm`'s `out_dtype`.
      group_offset: must be None, as in lax.
      out_sharding: must be None.

    Returns:
      (m, n).

    Raises:
      ValueError: shapes that do not fit.
      TypeError: dtypes that do not fit.

    Example:
      >>> import jax.numpy as jnp, jaxgemm
      >>> x, w = jnp.ones((10, 8)), jnp.ones((3, 8, 16))
      >>> jaxgemm.ragged_dot(x, w, jnp.array([4, 0, 5])).shape
      (10, 16)
    """
    for name, value in (("group_offset", group_offset), ("out_sharding", out_sharding)):
        if value is not None:
            raise ValueError(f"{name}: is not supported; it should be None")
    return grouped_gemm(
        lhs, rhs, group_sizes, precision=precision, out_dtype=preferred_element_type
    )
