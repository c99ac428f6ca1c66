"""Faults of compiled calls: sharded, reused, captured, donated, or exported."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm import gemm, grouped_gemm
from tests import oracle
from tests.public_reports.helpers import grouped_vjp, integers, normal, same

# --- sharding: a custom call under SPMD. More of it is in tests/test_sharding.py.


def _mesh(**axes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes)
    )


@pytest.mark.parametrize("check", [True, False], ids=["SH03 checked", "SH03 unchecked"])
def test_weight_gradient_of_data_parallel_rows_is_the_whole_one(check: bool) -> None:
    x, w, mesh = integers(8, 3), integers(3, 5, seed=1), _mesh(data=4)
    rows, whole = PartitionSpec("data"), PartitionSpec()

    def step(product: Callable[..., jax.Array], x: jax.Array, w: jax.Array) -> Any:
        loss = lambda w: lax.psum((product(x, w) ** 2).sum(), "data")  # noqa: E731
        value, bar = jax.value_and_grad(loss)(w)
        return value, bar[None]

    def run(product: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
        local = jax.shard_map(
            functools.partial(step, product),
            mesh=mesh,
            in_specs=(rows, whole),
            out_specs=(whole, rows),
            check_vma=check,
        )
        return jax.jit(local)(x, w)

    value, bars = run(gemm)
    a, b = oracle.f64(x), oracle.f64(w)
    same(value, ((a @ b) ** 2).sum())
    if check:
        same(bars, np.broadcast_to(2 * a.T @ (a @ b), bars.shape))
    # Without types that say what varies, the sum over devices is the caller's, as for a dot.
    same(bars, run(jnp.matmul)[1])


@pytest.mark.parametrize("sharded", ["rows", "groups", "columns", "depth"], ids="SH04 {0}".format)
def test_grouped_product_of_sharded_operands(sharded: str) -> None:
    mesh = _mesh(x=4)
    sizes = jnp.array([5, 0, 9, 20])
    lhs, rhs = integers(40, 8), integers(4, 8, 12, seed=1)
    specs = {
        "rows": (PartitionSpec("x"), PartitionSpec()),
        "groups": (PartitionSpec(), PartitionSpec("x")),
        "columns": (PartitionSpec(), PartitionSpec(None, None, "x")),
        "depth": (PartitionSpec(None, "x"), PartitionSpec(None, "x")),
    }[sharded]
    placed = [
        jax.device_put(x, NamedSharding(mesh, p)) for x, p in zip((lhs, rhs), specs, strict=True)
    ]
    out, *bars = grouped_vjp(*placed, sizes, jnp.ones((40, 12)))
    want, *want_bars = grouped_vjp(lhs, rhs, sizes, jnp.ones((40, 12)))
    oracle.check(out, oracle.grouped(np.asarray(lhs), np.asarray(rhs), sizes))
    same(out, want)
    for got, right in zip(bars, want_bars, strict=True):
        same(got, right)


# --- autotune-dispatch and graph-capture: what is compiled once must be right for every value.


def test_one_compiled_product_is_right_for_every_distribution() -> None:
    """AT09, GC02, JX04: sizes that are computed inside, of any integer dtype."""
    rng = np.random.default_rng(0)
    lhs, rhs = integers(64, 6), integers(8, 6, 5, seed=1)
    traces = []

    @functools.partial(jax.jit, static_argnames="dtype")
    def run(ids: jax.Array, dtype: str) -> jax.Array:
        traces.append(dtype)
        sizes = jnp.bincount(ids, length=8).astype(dtype)
        return grouped_gemm(lhs, rhs, sizes)

    def check(ids: np.ndarray, dtype: str) -> None:
        want = oracle.grouped(np.asarray(lhs), np.asarray(rhs), np.bincount(ids, minlength=8)).value
        same(run(ids, dtype), want)

    with jax.enable_x64(True):
        splits = [np.full(64, 3), *(rng.choice(rng.integers(0, 8, 3), 64) for _ in range(10))]
        for dtype in ("int32", "int64", "uint32", "int8"):
            for ids in (*splits, splits[0]):
                check(ids, dtype)
    assert traces == ["int32", "int64", "uint32", "int8"]


def test_wide_sizes_are_clipped_before_they_are_narrowed() -> None:
    lhs, rhs = integers(6, 3), integers(2, 3, 4, seed=1)
    whole = oracle.f64(lhs) @ oracle.f64(rhs[0])
    with jax.enable_x64(True):
        for first in (2**32, 2**32 + 1, 2**40):
            same(grouped_gemm(lhs, rhs, jnp.array([first, 3], "int64")), whole)
    same(grouped_gemm(lhs, rhs, np.array([2**32 - 1, 3], np.uint32)), whole)


SCALAR_KINDS: dict[str, Callable[[int], Any]] = {
    "int": int,
    "float": float,
    "np.float64": np.float64,
    "np.int64": np.int64,
    "np 0-d": np.asarray,
    "jnp": jnp.asarray,
    "jnp bf16": lambda x: jnp.asarray(x, "bfloat16"),
}


@pytest.mark.parametrize("kind", SCALAR_KINDS, ids="GC04 {0}".format)
def test_every_kind_of_scalar_is_one_scalar(kind: str) -> None:
    a, b, c = integers(2, 3), integers(3, 4), integers(2, 4)
    scalar = SCALAR_KINDS[kind]
    for alpha, beta in ((1, 2), (3, 1), (2, 0)):
        want = alpha * (oracle.f64(a) @ oracle.f64(b)) + beta * oracle.f64(c)
        same(gemm(a, b, c, alpha=scalar(alpha), beta=scalar(beta)), want)


def test_flags_of_python_and_numpy() -> None:
    """GC04."""
    a, b, c = integers(2, 3), integers(3, 4), integers(2, 4)
    product = oracle.f64(a) @ oracle.f64(b)
    for true in (True, np.bool_(True)):
        same(gemm(a.T, b.T, transpose_a=true, transpose_b=true), product)
        same(gemm(a, b, c, alpha=true, beta=true), product + oracle.f64(c))
        same(gemm(a, b, batch_invariant=true), product)


# --- aliasing: a donated operand is read before it is overwritten, any other is not changed.


@pytest.mark.parametrize("donated", [(), (0,), (1,), (2,), (0, 1, 2)], ids="LI01 {0}".format)
def test_donated_operands_are_read_first(donated: tuple[int, ...]) -> None:
    arrays = [np.asarray(integers(9, 9, seed=i)) for i in range(3)]
    run = jax.jit(
        lambda a, b, c: (gemm(a, b, c, alpha=2, beta=0.5), a + 1, b + 2), donate_argnums=donated
    )
    given = [jnp.array(x) for x in arrays]
    out, *others = run(*given)
    same(out, 2 * arrays[0] @ arrays[1] + 0.5 * arrays[2])
    for got, want in zip(others, (arrays[0] + 1, arrays[1] + 2), strict=True):
        same(got, want)
    for i, x in enumerate(given):
        if i not in donated:
            same(x, arrays[i])


def test_one_array_may_be_every_operand() -> None:
    """LI01, LI04."""
    x = np.asarray(integers(9, 9))
    same(jax.jit(lambda x: gemm(x, x), donate_argnums=0)(jnp.array(x)), x @ x)
    same(jax.jit(lambda x: gemm(x, x, x), donate_argnums=0)(jnp.array(x)), x @ x + x)


# --- jit-export-remat.


def test_export_round_trip() -> None:
    """JX01: of both operations, with gradients, for the platforms that there are."""
    x, w, bias = normal(6, 4), normal(3, 4, 5), normal(5)
    sizes = jnp.array([2, 0, 3])

    def run(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        dense = gemm(x, w[0], bias=bias, activation="gelu")
        return (dense * grouped_gemm(x, w, sizes)).sum()

    exported = export.export(jax.jit(run), platforms=("cpu", "cuda"))(x, w, bias)
    loaded = export.deserialize(exported.serialize(vjp_order=1))
    assert loaded.platforms == ("cpu", "cuda")
    np.testing.assert_allclose(loaded.call(x, w, bias), run(x, w, bias), rtol=1e-6)
    got, want = (jax.grad(f, (0, 1, 2))(x, w, bias) for f in (loaded.call, run))
    for bar, right in zip(got, want, strict=True):
        np.testing.assert_allclose(bar, right, rtol=1e-5, atol=1e-6)
