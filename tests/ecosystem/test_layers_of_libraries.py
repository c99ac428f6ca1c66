"""One dense layer, built with flax and with equinox: with jaxgemm it computes what it did without.

The loss is linear in the layer's output, Σ cotangent · layer(x), so every gradient is a product
of known matrices and the bounds below hold for it as they do for the output.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm

_BATCH, _IN, _OUT = 33, 70, 50
_UNIT_ROUNDOFF = 2.0**-24
_KEYS = jax.random.split(jax.random.key(0), 5)
_X = jax.random.normal(_KEYS[0], (_BATCH, _IN))
_COTANGENT = jax.random.normal(_KEYS[1], (_BATCH, _OUT))


def _assert_same_product(
    actual: Any, expected: Any, left: Any, right: Any, added: Any = 0.0
) -> None:
    """Compares two float32 results for left · right + added.

    A sum of n float32 numbers in any order errs by at most n · u · Σ|terms| to first order, so
    two of them differ by at most twice that; n is k products and one addend.
    """
    size = jnp.abs(left) @ jnp.abs(right) + jnp.abs(added)
    bound = 2 * (left.shape[-1] + 1) * _UNIT_ROUNDOFF * size
    excess = np.abs(np.asarray(actual) - np.asarray(expected)) - np.asarray(bound)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert excess.max() <= 0, f"differs by {excess.max():.3g} more than the bound allows"


def _assert_same_gradients(actual: tuple[Any, ...], expected: tuple[Any, ...], weight: Any) -> None:
    """Compares the gradients for x, weight (in, out) and bias."""
    ones = jnp.ones((1, _BATCH))
    _assert_same_product(actual[0], expected[0], _COTANGENT, weight.T)
    _assert_same_product(actual[1], expected[1], _X.T, _COTANGENT)
    _assert_same_product(actual[2][None], expected[2][None], ones, _COTANGENT)


def _assert_goes_through_jaxgemm(function: Callable[..., Any], *args: Any, count: int) -> None:
    """Checks that every matrix product of a function is the primitive `gemm`."""
    jaxpr = str(jax.make_jaxpr(function)(*args))
    assert jaxpr.count(" gemm[") == count, jaxpr
    assert "dot_general" not in jaxpr, jaxpr


def _dense(**options: Any) -> flax.linen.Dense:
    return flax.linen.Dense(_OUT, bias_init=flax.linen.initializers.normal(), **options)


_STOCK_DENSE = _dense()
_DENSE = _dense(dot_general=jaxgemm.dot_general)


@pytest.fixture(scope="module")
def params() -> Any:
    return _STOCK_DENSE.init(_KEYS[2], _X)


def _dense_loss(layer: flax.linen.Dense) -> Callable[..., jax.Array]:
    return lambda params, x, cotangent: jnp.sum(layer.apply(params, x) * cotangent)  # pyright: ignore


def test_flax_dense_has_the_same_parameters(params: Any):
    jax.tree.map(np.testing.assert_array_equal, _DENSE.init(_KEYS[2], _X), params)


def test_flax_dense_goes_through_jaxgemm(params: Any):
    _assert_goes_through_jaxgemm(_DENSE.apply, params, _X, count=1)
    gradient = jax.grad(_dense_loss(_DENSE), argnums=(0, 1))
    _assert_goes_through_jaxgemm(gradient, params, _X, _COTANGENT, count=3)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_flax_dense_has_the_same_output(params: Any, wrap: Any):
    actual, expected = (wrap(layer.apply)(params, _X) for layer in (_DENSE, _STOCK_DENSE))
    kernel, bias = params["params"]["kernel"], params["params"]["bias"]
    _assert_same_product(actual, expected, _X, kernel, bias)


def test_flax_dense_has_the_same_gradients_under_jit(params: Any):
    gradients = []
    for layer in (_DENSE, _STOCK_DENSE):
        loss = jax.jit(jax.grad(_dense_loss(layer), argnums=(0, 1)))
        d_params, d_x = loss(params, _X, _COTANGENT)
        gradients.append((d_x, d_params["params"]["kernel"], d_params["params"]["bias"]))
    _assert_same_gradients(*gradients, weight=params["params"]["kernel"])


def test_flax_dense_is_the_same_under_vmap_of_examples(params: Any):
    actual, expected = (
        jax.jit(jax.vmap(layer.apply, in_axes=(None, 0)))(params, _X)
        for layer in (_DENSE, _STOCK_DENSE)
    )
    kernel, bias = params["params"]["kernel"], params["params"]["bias"]
    _assert_same_product(actual, expected, _X, kernel, bias)


def test_flax_dense_is_the_same_under_vmap_of_parameters():
    ensemble = jax.vmap(_STOCK_DENSE.init, in_axes=(0, None))(_KEYS[:3], _X)
    actual, expected = (
        jax.vmap(layer.apply, in_axes=(0, None))(ensemble, _X) for layer in (_DENSE, _STOCK_DENSE)
    )
    kernel, bias = ensemble["params"]["kernel"], ensemble["params"]["bias"]
    _assert_same_product(actual, expected, _X[None], kernel, bias[:, None])


def test_flax_dense_has_the_same_gradients_for_each_example(params: Any):
    per_example = []
    for layer in (_DENSE, _STOCK_DENSE):
        gradient = jax.vmap(jax.grad(_dense_loss(layer)), in_axes=(None, 0, 0))
        per_example.append(jax.jit(gradient)(params, _X, _COTANGENT)["params"]["kernel"])
    # Each is an outer product: a contraction of length 1.
    actual, expected = per_example
    _assert_same_product(actual, expected, _X[:, :, None], _COTANGENT[:, None, :])


class Linear(eqx.Module):
    """`eqx.nn.Linear` on jaxgemm: weight is (out, in), as there, and read as it lies."""

    weight: jax.Array
    bias: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:  # (in,) → (out,)
        return jaxgemm.gemm(x[None], self.weight, bias=self.bias, transpose_b=True)[0]


_STOCK_LINEAR = eqx.nn.Linear(_IN, _OUT, key=_KEYS[3])
assert _STOCK_LINEAR.bias is not None
_LINEAR = Linear(_STOCK_LINEAR.weight, _STOCK_LINEAR.bias)
_LINEARS = (_LINEAR, _STOCK_LINEAR)


def _linear_loss(layer: Any, x: jax.Array, cotangent: jax.Array) -> jax.Array:
    return jnp.sum(jax.vmap(layer)(x) * cotangent)


def test_equinox_linear_goes_through_jaxgemm():
    _assert_goes_through_jaxgemm(jax.vmap(_LINEAR), _X, count=1)
    _assert_goes_through_jaxgemm(eqx.filter_grad(_linear_loss), _LINEAR, _X, _COTANGENT, count=2)


def test_equinox_linear_has_the_same_output_for_one_example():
    actual, expected = (eqx.filter_jit(layer)(_X[0])[None] for layer in _LINEARS)
    _assert_same_product(actual, expected, _X[:1], _LINEAR.weight.T, _LINEAR.bias)


def test_equinox_linear_has_the_same_output_under_vmap():
    actual, expected = (eqx.filter_jit(eqx.filter_vmap(layer))(_X) for layer in _LINEARS)
    _assert_same_product(actual, expected, _X, _LINEAR.weight.T, _LINEAR.bias)


def test_equinox_linear_has_the_same_gradients_under_jit():
    gradients = []
    for layer in _LINEARS:
        d_layer = eqx.filter_jit(eqx.filter_grad(_linear_loss))(layer, _X, _COTANGENT)
        d_x = jax.grad(_linear_loss, argnums=1)(layer, _X, _COTANGENT)
        gradients.append((d_x, d_layer.weight.T, d_layer.bias))
    _assert_same_gradients(*gradients, weight=_LINEAR.weight.T)


def test_equinox_linear_has_the_same_gradients_for_each_example():
    gradient = jax.vmap(eqx.filter_grad(lambda f, x, ct: jnp.sum(f(x) * ct)), in_axes=(None, 0, 0))
    actual, expected = (gradient(layer, _X, _COTANGENT).weight for layer in _LINEARS)
    _assert_same_product(actual, expected, _COTANGENT[:, :, None], _X[:, None, :])
