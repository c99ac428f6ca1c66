"""On a Hopper GPU: kernels answer through the public operations, under every transform."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm.ffi_kernels import cublaslt, library
from jaxgemm.tuning import graphs, stamp
from tests import oracle

pytestmark = pytest.mark.gpu

# `auto` may leave problems as small as those here to a library.
_PALLAS = "pallas.hopper.dense"
_pallas_gemm = functools.partial(jaxgemm.gemm, backend=_PALLAS)


@pytest.fixture(autouse=True)
def only_kernels() -> Any:
    """Ending at the XLA reference is an error here."""
    with jaxgemm.use(strict=True):
        yield


def _normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.bfloat16)


def _kernels(f: Any, *args: Any) -> set[str]:
    return {row.kernel for row in jaxgemm.explain(f, *args).rows}


def test_gemm_runs_the_hopper_kernel_eagerly_and_under_jit() -> None:
    a, b, v = _normal(256, 512), _normal(512, 192, seed=1), _normal(192, seed=2)
    run = lambda a, b, v: _pallas_gemm(a, b, bias=v, activation="gelu")  # noqa: E731
    assert _kernels(run, a, b, v) == {_PALLAS}
    answer = oracle.gemm(a, b, bias=v, activation="gelu")
    oracle.check(run(a, b, v), answer, jnp.bfloat16)
    compiled = jax.jit(run).lower(a, b, v).compile()
    assert "mosaic_gpu" in compiled.as_text()
    oracle.check(compiled(a, b, v), answer, jnp.bfloat16)


def test_auto_leaves_a_small_product_to_cublaslt_once_the_library_is_built() -> None:
    a, b = _normal(256, 512), _normal(512, 192, seed=1)
    is_built = library.why_not_built() is None and cublaslt.find() is not None
    assert _kernels(jaxgemm.gemm, a, b) == {"cublaslt" if is_built else _PALLAS}
    oracle.check(jax.jit(jaxgemm.gemm)(a, b), oracle.gemm(a, b), jnp.bfloat16)


def test_stamps_tell_what_the_device_needs_and_not_the_host() -> None:
    burn, burn_us = graphs._burn()
    start, _, end = stamp.stamp(), burn(), stamp.stamp()
    assert stamp.elapsed_us(start, end) == pytest.approx(burn_us, rel=0.1)
    busy, start, end = burn(), stamp.stamp(), stamp.stamp()
    assert not busy.is_ready()
    assert 0 < stamp.elapsed_us(start, end) < 10


def test_vmap_over_either_operand() -> None:
    a, b = _normal(3, 128, 256), _normal(3, 256, 128, seed=1)
    for axes in ((0, 0), (0, None), (None, 0)):
        args = tuple(x if axis == 0 else x[0] for x, axis in zip((a, b), axes, strict=True))
        result = jax.jit(jax.vmap(jaxgemm.gemm, axes))(*args)
        full = [np.broadcast_to(oracle.f64(x), (3, *x.shape[-2:])) for x in args]
        expected = [oracle.gemm(*(jnp.asarray(x[i], jnp.bfloat16) for x in full)) for i in range(3)]
        for got, answer in zip(result, expected, strict=True):
            oracle.check(got, answer)


def test_gradients_run_kernels_too_and_agree_with_float32() -> None:
    a, b, v = _normal(256, 512), _normal(512, 128, seed=1) / 16, _normal(128, seed=2)

    def loss(f: Any, *args: Any) -> jax.Array:
        return (f(*args).astype(jnp.float32) ** 2).sum()

    ours = lambda a, b, v: _pallas_gemm(a, b, bias=v, activation="silu")  # noqa: E731
    plain = lambda a, b, v: jax.nn.silu(a @ b + v)  # noqa: E731
    gradient = jax.grad(lambda *xs: loss(ours, *xs), (0, 1, 2))
    assert _kernels(gradient, a, b, v) == {_PALLAS}
    got = jax.jit(gradient)(a, b, v)
    exact = [x.astype(jnp.float32) for x in (a, b, v)]
    with jax.default_matmul_precision("highest"):
        want = jax.grad(lambda *xs: loss(plain, *xs), (0, 1, 2))(*exact)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == jnp.bfloat16
        # Four roundings to bfloat16 (z, d, z̄, the gradient) of relative size 2^-8.
        error = np.linalg.norm(oracle.f64(g) - oracle.f64(w)) / np.linalg.norm(oracle.f64(w))
        assert error < 4 * 2.0**-8


@pytest.mark.parametrize("backend", ["auto", "cublaslt", "xla"])
def test_gradients_of_mlp_are_fused_and_agree_with_float32(backend: str) -> None:
    sizes = {"w_up": (256, 512), "w_down": (512, 128), "bias_up": (512,), "bias_down": (128,)}
    named = {name: _normal(*size, seed=i) / 16 for i, (name, size) in enumerate(sizes.items())}
    named["x"] = _normal(2, 192, 256, seed=7)

    def loss(f: Any, xs: dict[str, jax.Array]) -> jax.Array:
        return (f(**xs).astype(jnp.float32) ** 2).sum()

    def plain(x: Any, w_up: Any, w_down: Any, bias_up: Any, bias_down: Any) -> jax.Array:
        return jax.nn.gelu(x @ w_up + bias_up) @ w_down + bias_down

    with jaxgemm.use(strict=backend != "xla"):
        ours = lambda **xs: jaxgemm.mlp(**xs, backend=backend)  # noqa: E731
        gradient = jax.grad(lambda xs: loss(ours, xs))
        (pullback,) = [r for r in jaxgemm.explain(gradient, named).rows if r.problem.spec.pullback]
        got = jax.jit(gradient)(named)
    # Pallas leaves the sum to XLA, and cublaslt all that is done with the product.
    assert (pullback.plan.problem == pullback.problem) == (backend == "xla")
    exact = {name: x.astype(jnp.float32) for name, x in named.items()}
    with jax.default_matmul_precision("highest"):
        want = jax.grad(lambda xs: loss(plain, xs))(exact)
    for name, w in want.items():
        assert got[name].dtype == jnp.bfloat16
        # Five roundings to bfloat16 (z, h, y, z̄, the gradient) of relative size 2^-8.
        error = np.linalg.norm(oracle.f64(got[name]) - oracle.f64(w)) / np.linalg.norm(
            oracle.f64(w)
        )
        assert error < 5 * 2.0**-8, name


def test_a_shared_weights_gradient_is_one_product_over_all_examples() -> None:
    x, w = _normal(4, 128, 256), _normal(256, 128, seed=1)
    loss = lambda w: jax.vmap(_pallas_gemm, (0, None))(x, w).astype(jnp.float32).sum()  # noqa: E731
    rows = jaxgemm.explain(jax.grad(loss), w).rows
    assert [(r.problem.k, r.kernel) for r in rows][-1] == (512, _PALLAS)
    want = np.broadcast_to(oracle.f64(x).sum((0, 1))[:, None], (256, 128))
    np.testing.assert_allclose(oracle.f64(jax.jit(jax.grad(loss))(w)), want, rtol=2**-7, atol=0.1)


def test_results_repeat_bit_by_bit() -> None:
    a, b = _normal(1024, 1024), _normal(1024, 1024, seed=1)
    run = jax.jit(jaxgemm.gemm)
    first = np.asarray(run(a, b))
    for _ in range(100):
        np.testing.assert_array_equal(np.asarray(run(a, b)), first)


def test_batch_invariant_rows_are_the_same_bits_in_any_number() -> None:
    a, b = _normal(520, 256), _normal(256, 128, seed=1)
    run = jax.jit(lambda a, b: jaxgemm.gemm(a, b, batch_invariant=True))
    whole = np.asarray(run(a, b))
    for m in (1, 7, 64, 130, 512):
        np.testing.assert_array_equal(np.asarray(run(a[:m], b)), whole[:m])


@pytest.mark.parametrize(("precision", "limit"), [("highest", 2.0**-20), ("default", 2.0**-11)])
def test_float32_accuracy_is_the_class_that_was_asked_for(precision: str, limit: float) -> None:
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((64, 512), (512, 64)))

    def run(x: Any, y: Any) -> jax.Array:
        return jaxgemm.gemm(x, y, precision=precision, backend="xla")

    def assert_accurate(result: Any, x: Any, y: Any) -> None:
        left, right = oracle.f64(x), oracle.f64(y)
        error = np.abs(oracle.f64(result) - left @ right) / (np.abs(left) @ np.abs(right))
        assert error.max() < limit

    assert_accurate(run(a, b), a, b)
    assert_accurate(jax.vmap(lambda x: run(x[None], b)[0])(a), a, b)
    # The gradient for b of a·b with cotangent c is aᵀ·c.
    _, pull = jax.vjp(lambda b: run(a.T, b), b[:64])
    (gradient,) = pull(a.T)
    assert_accurate(gradient, a, a.T)


def test_shard_map_and_jit_of_one_device_run_the_kernel() -> None:
    a, b = _normal(256, 128), _normal(128, 256, seed=1)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    f = jax.shard_map(
        _pallas_gemm, mesh=mesh, in_specs=(spec, jax.sharding.PartitionSpec()), out_specs=spec
    )
    compiled = jax.jit(f).lower(a, b).compile()
    assert "mosaic_gpu" in compiled.as_text()
    oracle.check(compiled(a, b), oracle.gemm(a, b))
