"""Sharding: right values, and only the collectives that the mathematics needs."""

import collections
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm.policy import Policy
from jaxgemm.primitive import bind
from tests.naive_specs import spec_of

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices, has fewer")


def _mesh(kind: AxisType = AxisType.Auto, shape: tuple[int, ...] = (8,)) -> Mesh:
    return jax.make_mesh(shape, ("x", "y")[: len(shape)], axis_types=(kind,) * len(shape))


def _normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _collectives(f: Any, *args: Any) -> dict[str, int]:
    text = jax.jit(f).lower(*args).compile().as_text()
    names = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    return dict(collections.Counter(re.findall(rf" ({names})(?:-start)?\(", text)))


def _check(
    f: Callable[..., Any],
    arrays: Any,
    specs: Any,
    collectives: dict[str, int],
    mesh: Mesh | None = None,
) -> Any:
    """f of sharded arrays equals f of whole ones, with exactly these collectives."""
    mesh = mesh or _mesh()
    placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(arrays, specs, strict=True)]
    got = jax.jit(f)(*placed)
    want = f(*arrays)
    jax.tree.map(
        lambda p, q: np.testing.assert_allclose(p, q, rtol=1e-5, atol=1e-5 * abs(q).max()),
        got,
        want,
    )
    assert _collectives(f, *placed) == collectives
    return got


_A, _B, _V = _normal(64, 32), _normal(32, 16, seed=1), _normal(16, seed=2)


def _gemm(a: Any, b: Any, v: Any) -> jax.Array:
    return jaxgemm.gemm(a, b, bias=v, activation="gelu")


@pytest.mark.parametrize(
    ("specs", "collectives", "out"),
    [
        ((P("x"), P(), P()), {}, P("x")),
        ((P(), P(None, "x"), P("x")), {}, P(None, "x")),
        ((P(None, "x"), P("x"), P()), {"all-reduce": 1}, P()),
    ],
    ids=["m", "n", "k"],
)
def test_dense(specs: Any, collectives: dict[str, int], out: Any) -> None:
    got = _check(_gemm, (_A, _B, _V), specs, collectives)
    assert got.sharding.is_equivalent_to(NamedSharding(_mesh(), out), 2)


@pytest.mark.parametrize(
    "specs",
    [(P("x"), P(), P()), (P(), P(None, "x"), P("x")), (P(None, "x"), P("x"), P())],
    ids=["m", "n", "k"],
)
def test_dense_gradients(specs: Any) -> None:
    def loss(a: Any, b: Any, v: Any) -> jax.Array:
        return (_gemm(a, b, v) ** 2).sum()

    gradient = jax.grad(loss, (0, 1, 2))
    _check_values(gradient, (_A, _B, _V), specs)
    counts = _collectives(gradient, *_place((_A, _B, _V), specs))
    # At most one sum over devices for each gradient; an operand is never gathered.
    assert set(counts) <= {"all-reduce"}
    assert counts["all-reduce"] <= 3


_PULLBACKS = {
    "m": ((P("x"), P(), P("x")), {"all-reduce": 1}),
    "n": ((P(), P(None, "x"), P(None, "x")), {}),
    "k": ((P(None, "x"), P("x"), P()), {"all-reduce": 1}),
}


def _pullback(a: Any, b: Any, z: Any) -> tuple[jax.Array, ...]:
    spec = spec_of(("a", "b", "z"), activation="gelu", sum_dtype=np.dtype("float32"))
    return bind(spec, Policy(), (a, b, z))


@pytest.mark.parametrize(("specs", "collectives"), _PULLBACKS.values(), ids=_PULLBACKS)
def test_pullback_adds_up_the_sums_of_rows(specs: Any, collectives: dict[str, int]) -> None:
    arrays = (_A, _B, _normal(64, 16, seed=3))
    _check(_pullback, arrays, specs, collectives)
    mesh = _mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        named = zip(arrays, specs, strict=True)
        got = jax.jit(_pullback)(*(jax.device_put(x, NamedSharding(mesh, s)) for x, s in named))
    for x, want in zip(got, _pullback(*arrays), strict=True):
        np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-5)


def _place(arrays: Any, specs: Any) -> list[jax.Array]:
    mesh = _mesh()
    return [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(arrays, specs, strict=True)]


def _check_values(f: Callable[..., Any], arrays: Any, specs: Any) -> Any:
    got, want = jax.jit(f)(*_place(arrays, specs)), f(*arrays)
    jax.tree.map(
        lambda p, q: np.testing.assert_allclose(p, q, rtol=1e-5, atol=1e-5 * abs(q).max()),
        got,
        want,
    )
    return got


@pytest.mark.parametrize("specs", [(P("x"), P("x")), (P("x"), P())], ids=["both", "one"])
def test_batch(specs: Any) -> None:
    a = _normal(8, 64, 32)
    b = _normal(8, 32, 16, seed=1) if specs[1] == P("x") else _B
    _check(lambda a, b: jaxgemm.gemm(a, b), (a, b), specs, {})
    axes = (0, 0 if b.ndim == 3 else None)
    _check(lambda a, b: jax.vmap(jaxgemm.gemm, axes)(a, b), (a, b), specs, {})


@pytest.mark.parametrize(
    ("specs", "collectives", "out"),
    [
        ((P("x"), P()), {}, P("x")),
        ((P(None, "x"), P("x")), {}, P(None, "x")),
        ((P(None, None, "x"), P(None, None, "x")), {"all-reduce": 1}, P()),
    ],
    ids=["m", "batch", "k"],
)
def test_batch_between_m_and_k(specs: Any, collectives: dict[str, int], out: Any) -> None:
    arrays = _normal(64, 8, 32), _normal(8, 16, 32, seed=1)
    mapped = jax.vmap(lambda a, b: jaxgemm.gemm(a, b, transpose_b=True), (1, 0), 1)
    got = _check(mapped, arrays, specs, collectives)
    assert got.sharding.is_equivalent_to(NamedSharding(_mesh(), out), 3)
    np.testing.assert_allclose(got, np.einsum("bhr,hdr->bhd", *arrays), rtol=1e-5, atol=1e-4)
    mesh = _mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        named = zip(arrays, specs, strict=True)
        got = jax.jit(mapped)(*(jax.device_put(x, NamedSharding(mesh, s)) for x, s in named))
        assert jax.typeof(got).sharding.spec == P(*out, *[None] * (3 - len(out)))
    np.testing.assert_allclose(got, mapped(*arrays), rtol=1e-5, atol=1e-5)


def test_two_axes_at_once() -> None:
    mesh = _mesh(shape=(4, 2))
    _check(_gemm, (_A, _B, _V), (P("x"), P(None, "y"), P("y")), {}, mesh)
    _check(_gemm, (_A, _B, _V), (P("x", "y"), P("y"), P()), {"all-reduce": 1}, mesh)


def test_gated_reduces_both_products_before_the_activation() -> None:
    up = _normal(32, 16, seed=3)
    got = _check_values(jaxgemm.gated_gemm, (_A, _B, up), (P(None, "x"), P("x"), P("x")))
    assert got.shape == (64, 16)
    placed = _place((_A, _B, up), (P(None, "x"), P("x"), P("x")))
    assert set(_collectives(jaxgemm.gated_gemm, *placed)) == {"all-reduce"}


_X, _W, _BIAS = _normal(64, 32), _normal(8, 32, 16, seed=1), _normal(8, 16, seed=2)
_SIZES = jnp.array([10, 0, 25, 3, 1, 1, 0, 2])


def _grouped(x: Any, w: Any, v: Any, sizes: Any) -> jax.Array:
    return jaxgemm.grouped_gemm(x, w, sizes, bias=v, activation="silu")


_GROUPED = {
    "rows": ((P("x"), P(), P(), P()), {}),
    "n": ((P(), P(None, None, "x"), P(None, "x"), P()), {}),
    "k": ((P(None, "x"), P(None, "x"), P(), P()), {"all-reduce": 1}),
    "groups": ((P(), P("x"), P("x"), P()), {"all-reduce": 1}),
    "replicated": ((P(), P(), P(), P()), {}),
}


@pytest.mark.parametrize(("specs", "collectives"), _GROUPED.values(), ids=_GROUPED)
def test_grouped(specs: Any, collectives: dict[str, int]) -> None:
    _check(_grouped, (_X, _W, _BIAS, _SIZES), specs, collectives)


@pytest.mark.parametrize(("specs", "_"), _GROUPED.values(), ids=_GROUPED)
@pytest.mark.parametrize(
    "sizes", [_SIZES, jnp.zeros(8, int), jnp.full(8, 20)], ids=["some", "none", "over"]
)
def test_grouped_gradients(specs: Any, _: Any, sizes: jax.Array) -> None:
    def loss(x: Any, w: Any, v: Any, sizes: Any) -> jax.Array:
        return (_grouped(x, w, v, sizes) ** 2).sum()

    gradient = jax.grad(loss, (0, 1, 2))
    _check_values(gradient, (_X, _W, _BIAS, sizes), specs)
    counts = _collectives(gradient, *_place((_X, _W, _BIAS, sizes), specs))
    assert set(counts) <= {"all-reduce"}, "operands were gathered"


def test_nan_of_other_devices_rows_and_groups_reach_nobody() -> None:
    x = _X.at[42:].set(jnp.nan)
    w = _W.at[1].set(jnp.nan)
    for specs, _ in _GROUPED.values():
        got = jax.jit(_grouped)(*_place((x, w, _BIAS, _SIZES), specs))
        assert np.isfinite(np.asarray(got)).all()
        assert not np.asarray(got[42:]).any()


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_sees_local_operands(check_vma: bool) -> None:
    def local(a: Any, b: Any) -> jax.Array:
        return jax.lax.psum(jaxgemm.gemm(a, b), "x")

    f = jax.shard_map(
        local, mesh=_mesh(), in_specs=(P(None, "x"), P("x")), out_specs=P(), check_vma=check_vma
    )
    np.testing.assert_allclose(jax.jit(f)(_A, _B), _A @ _B, atol=1e-4)


def test_gradients_of_replicated_weights_in_shard_map() -> None:
    def loss(f: Callable[..., Any], w: Any, x: Any) -> jax.Array:
        local = lambda w, x: jax.lax.psum((f(x, w) ** 2).sum(), "x")  # noqa: E731
        mapped = jax.shard_map(local, mesh=_mesh(), in_specs=(P(), P("x")), out_specs=P())
        return mapped(w, x)

    ours = lambda x, w: jaxgemm.gemm(x, w, activation="tanh")  # noqa: E731
    plain = lambda x, w: jnp.tanh(x @ w)  # noqa: E731
    got = jax.jit(jax.grad(lambda w: loss(ours, w, _A)))(_B)
    want = jax.grad(lambda w: (plain(_A, w) ** 2).sum())(_B)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    sizes = jnp.array([1, 2, 0, 1, 1, 0, 1, 0])
    grouped = jax.jit(
        jax.grad(lambda w: loss(lambda x, w: jaxgemm.grouped_gemm(x, w, sizes), w, _X))
    )
    want = jax.grad(
        lambda w: sum(
            (jaxgemm.grouped_gemm(_X[i : i + 8], w, sizes) ** 2).sum() for i in range(0, 64, 8)
        )
    )(_W)
    np.testing.assert_allclose(grouped(_W), want, rtol=1e-4, atol=1e-3)


def test_explicit_sharding_is_in_the_types() -> None:
    mesh = _mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        a = jax.device_put(_A, NamedSharding(mesh, P("x")))
        b = jax.device_put(_B, NamedSharding(mesh, P()))
        y = jax.jit(jaxgemm.gemm)(a, b)
        assert jax.typeof(y).sharding.spec == P("x", None)
        np.testing.assert_allclose(y, _A @ _B, atol=1e-4)
        da, db = jax.jit(jax.grad(lambda a, b: (jaxgemm.gemm(a, b) ** 2).sum(), (0, 1)))(a, b)
        assert jax.typeof(da).sharding.spec == P("x", None)
    want = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1))(_A, _B)
    np.testing.assert_allclose(da, want[0], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(db, want[1], rtol=1e-4, atol=1e-3)


def test_uneven_sizes_are_right() -> None:
    a = _normal(60, 32)
    f = jax.jit(lambda a, b: jaxgemm.gemm(jnp.concatenate([a, a[:3]]), b))
    got = f(jax.device_put(a, NamedSharding(_mesh(), P())), _B)
    np.testing.assert_allclose(got, jnp.concatenate([a, a[:3]]) @ _B, atol=1e-4)


@pytest.mark.parametrize(
    ("specs", "num_sums"),
    [
        # Each gradient of what is shared is summed over the devices.
        ((P("x"), P(), P(), P()), 3),
        # The result is summed over the parts of hidden, and so is x̄; w¯ and bias¯ are local.
        ((P(), P(None, "x"), P("x"), P("x")), 2),
    ],
    ids=["rows", "hidden"],
)
def test_mlp_gradients(specs: Any, num_sums: int) -> None:
    arrays = (_A, _B, _normal(16, 8, seed=3), _V)

    def loss(x: Any, w_up: Any, w_down: Any, v: Any) -> jax.Array:
        return (jaxgemm.mlp(x, w_up, w_down, bias_up=v) ** 2).sum()

    gradient = jax.grad(loss, (0, 1, 2, 3))
    _check_values(gradient, arrays, specs)
    counts = _collectives(gradient, *_place(arrays, specs))
    assert set(counts) == {"all-reduce"}
    # XLA may add several in one.
    assert counts["all-reduce"] <= num_sums
