"""Drop-ins are what they stand for: `lax.dot_general`, `jnp.matmul`, `lax.ragged_dot`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxgemm
from tests.arrays import assert_close, normal
from tests.dispatch_fakes import equations


@pytest.mark.parametrize(
    "dims",
    [
        (((2,), (0,)), ((), ())), (((1,), (0,)), ((), ())), (((2,), (1,)), ((0,), (0,))),
        (((1, 2), (1, 2)), ((0,), (0,))), (((), ()), ((0,), (0,))), (((0, 2), (1, 0)), ((), ())),
        (((2,), (2,)), ((0, 1), (0, 1))), (((0,), (0,)), ((2,), (2,))),
        (((2,), (2,)), ((1,), (0,))), (((2,), (0,)), ((1,), (1,))), (((0,), (0,)), ((1,), (1,))),
        (((2,), (1,)), ((0, 1), (0, 2))), (((2,), (2,)), ((1, 0), (0, 1))),
        (((0,), (0,)), ((1, 2), (2, 1))),
    ],
    ids=str,
)  # fmt: skip
def test_dot_general_is_that_of_lax(dims: Any) -> None:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    lhs = normal(2, 3, 4)
    shape = [5, 6, 7]
    for i, j in (*zip(lhs_contract, rhs_contract), *zip(lhs_batch, rhs_batch)):  # noqa: B905
        shape[j] = lhs.shape[i]
    rhs = normal(*shape, seed=1)
    assert_close(jaxgemm.dot_general(lhs, rhs, dims), lax.dot_general(lhs, rhs, dims))

    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda *xs: (f(*xs, dims) ** 2).sum(), (0, 1))

    assert_close(total(jaxgemm.dot_general)(lhs, rhs), total(lax.dot_general)(lhs, rhs), 1e-4)


def test_dot_general_moves_nothing_for_a_dense_layer() -> None:
    x, w = normal(2, 3, 4), normal(4, 5)
    for dims, weights in (((((2,), (0,)), ((), ())), w), ((((2,), (1,)), ((), ())), w.T)):
        jaxpr = jax.make_jaxpr(lambda x, w, d=dims: jaxgemm.dot_general(x, w, d))(x, weights)
        moved = [e for e in jaxpr.eqns if e.primitive.name == "transpose"]
        assert all(e.params["permutation"] == tuple(range(e.invars[0].aval.ndim)) for e in moved)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bshd,bthd->bhst", ((2, 6, 4, 8), (2, 5, 4, 8))),
        ("bhst,bthd->bshd", ((2, 4, 6, 5), (2, 5, 4, 8))),
        ("bshd,bshe->bhde", ((2, 6, 4, 8), (2, 6, 4, 5))),
    ],
)
def test_einsum_of_axes_in_between_moves_no_operand(equation: str, shapes: Any) -> None:
    x, y = normal(*shapes[0]), normal(*shapes[1], seed=1)

    def einsum(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum(equation, x, y, _dot_general=jaxgemm.dot_general)

    assert_close(einsum(x, y), jnp.einsum(equation, x, y))
    (product,) = equations(einsum, x, y)
    assert {v.aval.shape for v in product.invars} == {x.shape, y.shape}
    assert product.params["spec"].inside


@pytest.mark.parametrize(
    "shapes",
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((3,), (5, 3, 4)),
        ((2, 2, 3), (3,)),
        ((5, 2, 3), (3, 4)),
        ((1, 2, 3), (4, 3, 2)),
    ],
)
def test_matmul_has_the_shapes_of_jnp(shapes: Any) -> None:
    a, b = (normal(*s, seed=i) for i, s in enumerate(shapes))
    assert_close(jaxgemm.matmul(a, b), jnp.matmul(a, b))


def test_ragged_dot_is_that_of_lax() -> None:
    x, w, sizes = normal(20, 4), normal(3, 4, 5, seed=1), jnp.array([7, 0, 9])
    assert_close(jaxgemm.ragged_dot(x, w, sizes), lax.ragged_dot(x, w, sizes))
    got = jaxgemm.ragged_dot(x, w, sizes, preferred_element_type=jnp.bfloat16)
    assert got.dtype == jnp.bfloat16
