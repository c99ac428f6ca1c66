"""vmap over every operand and axis, nesting, scan, remat, second order, export, cond, jvp."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.test_util import check_grads

import jaxgemm
from tests.arrays import assert_close, normal


def _gemm(a: Any, b: Any, c: Any, v: Any, alpha: Any, beta: Any) -> jax.Array:
    return jaxgemm.gemm(a, b, c, bias=v, alpha=alpha, beta=beta, activation="gelu")


def _plain(a: Any, b: Any, c: Any, v: Any, alpha: Any, beta: Any) -> jax.Array:
    return jax.nn.gelu(alpha * (a @ b) + beta * c + v)


_ARGUMENTS = (normal(3, 4), normal(4, 5, seed=1), normal(3, 5, seed=2), normal(5, seed=3),
              jnp.float32(1.5), jnp.float32(-0.5))  # fmt: skip


def _batched(args: tuple[Any, ...], axes: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """Arguments with an axis of `size` inserted where `axes` says, each entry different."""
    scales = np.linspace(0.5, 1.5, size, dtype=np.float32)
    return tuple(
        x
        if axis is None
        else jnp.stack([x * s for s in scales], axis)
        if size
        else jnp.zeros((*x.shape[:axis], 0, *x.shape[axis:]), x.dtype)
        for x, axis in zip(args, axes, strict=True)
    )


def _loop(f: Callable[..., Any], axes: tuple[Any, ...], *args: Any) -> Any:
    """What vmap means: one call for each entry, results stacked."""
    size = next(x.shape[i] for x, i in zip(args, axes, strict=True) if i is not None)
    entries = [
        f(*(x if i is None else jnp.take(x, j, i) for x, i in zip(args, axes, strict=True)))
        for j in range(size)
    ]
    return jax.tree.map(lambda *xs: jnp.stack(xs), *entries)


_PRESENCE = [axes for axes in itertools.product((None, 0), repeat=6) if any(a == 0 for a in axes)]
_POSITIONS = [
    (1, None, 0, None, None, None), (None, 2, 1, 1, None, 0), (2, 1, 2, 0, 0, None),
    (0, 1, None, None, None, None), (None, 1, None, 1, None, None), (None, None, 2, None, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize("axes", [*_PRESENCE[::5], *_POSITIONS], ids=str)
def test_vmap_over_any_operand_and_axis(axes: tuple[Any, ...]) -> None:
    args = _batched(_ARGUMENTS, axes, 3)
    assert_close(jax.vmap(_gemm, axes)(*args), _loop(_plain, axes, *args))
    weights = tuple(range(6))

    def total(f: Callable[..., Any], *xs: Any) -> jax.Array:
        return (jax.vmap(f, axes)(*xs) ** 2).sum()

    got = jax.jit(jax.grad(functools.partial(total, _gemm), weights))(*args)
    want = jax.jit(jax.grad(functools.partial(total, _plain), weights))(*args)
    assert_close(got, want, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("axes", _PRESENCE, ids=str)
def test_vmap_over_every_set_of_operands(axes: tuple[Any, ...]) -> None:
    test_vmap_over_any_operand_and_axis(axes)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("axes", [(0, 0, 0, 0, 0, 0), (0, None, None, None, None, None)], ids=str)
def test_vmap_of_batch_zero_and_one(size: int, axes: tuple[Any, ...]) -> None:
    args = _batched(_ARGUMENTS, axes, size)
    got = jax.vmap(_gemm, axes)(*args)
    assert got.shape == (size, 3, 5)
    if size:
        assert_close(got, _loop(_plain, axes, *args))


@pytest.mark.parametrize("out_axis", [0, 1, 2])
def test_nested_vmaps_with_different_operands(out_axis: int) -> None:
    a, b = normal(8, 4, 2), normal(5, 2, 3)
    c, v = normal(8, 4, 3), normal(5, 3)
    inner = jax.vmap(lambda a, b, c, v: jaxgemm.gemm(a, b, c, bias=v), (None, 0, None, 0), out_axis)
    got = jax.vmap(inner, (0, None, 0, None))(a, b, c, v)
    want = jnp.einsum("imk,jkn->ijmn", a, b) + c[:, None] + v[None, :, None]
    assert_close(got, jnp.moveaxis(want, 1, out_axis + 1))
    other = jax.vmap(jax.vmap(jaxgemm.gemm, (0, None)), (None, 0))(a, b)
    assert_close(other, jnp.einsum("imk,jkn->jimn", a, b))


def test_per_example_gradients() -> None:
    axes = (0, None, 0, None, None, 0)
    args = _batched(_ARGUMENTS, axes, 3)

    def per_example(f: Callable[..., Any]) -> Any:
        gradient = jax.grad(lambda *xs: (f(*xs) ** 2).sum(), tuple(range(6)))
        return jax.jit(jax.vmap(gradient, axes))(*args)

    assert_close(per_example(_gemm), per_example(_plain), 1e-4)


def test_a_one_sided_vmap_folds_into_m_and_a_two_sided_one_does_not() -> None:
    a, b = normal(7, 3, 4), normal(7, 4, 5)
    rows = jaxgemm.explain(jax.vmap(jaxgemm.gemm, (0, None)), a, b[0]).rows
    assert [(r.problem.m, r.problem.spec.batch) for r in rows] == [(21, ())]
    rows = jaxgemm.explain(jax.vmap(jaxgemm.gemm), a, b).rows
    assert [(r.problem.m, r.problem.batch_size) for r in rows] == [(3, 7)]
    # The weights' gradient sums over the examples inside one product.
    gradient = jax.grad(lambda b, a: jax.vmap(jaxgemm.gemm, (0, None))(a, b).sum())
    rows = jaxgemm.explain(gradient, b[0], a).rows
    assert (4, 5, 21) in [(r.problem.m, r.problem.n, r.problem.k) for r in rows]
    text = jax.jit(jax.vmap(jaxgemm.gemm, (0, None))).lower(a, b[0]).as_text()
    assert "tensor<7x4x5" not in text, "the weights were broadcast"


def _grouped_arguments() -> tuple[jax.Array, ...]:
    return normal(20, 4), normal(3, 4, 5, seed=1), jnp.array([7, 0, 9]), normal(3, 5, seed=2)


def _grouped(x: Any, w: Any, sizes: Any, v: Any) -> jax.Array:
    return jaxgemm.grouped_gemm(x, w, sizes, bias=v, activation="silu")


@pytest.mark.parametrize(
    "axes", [a for a in itertools.product((None, 0), repeat=4) if any(i == 0 for i in a)], ids=str
)
def test_vmap_of_grouped_gemm_over_any_operand(axes: tuple[Any, ...]) -> None:
    x, w, sizes, v = _grouped_arguments()
    many = jnp.array([[7, 0, 9], [0, 0, 0], [12, 11, 10]])
    x, w, v = _batched((x, w, v), (axes[0], axes[1], axes[3]), 3)
    args = (x, w, sizes if axes[2] is None else many, v)
    assert_close(jax.vmap(_grouped, axes)(*args), _loop(_grouped, axes, *args))

    def one(*xs: Any) -> Any:
        return jax.grad(lambda x, w, v: (_grouped(x, w, xs[2], v) ** 2).sum(), (0, 1, 2))(
            xs[0], xs[1], xs[3]
        )

    assert_close(jax.jit(jax.vmap(one, axes))(*args), _loop(one, axes, *args), 1e-4)

    def total(x: Any, w: Any, v: Any) -> jax.Array:
        return (jax.vmap(_grouped, axes)(x, w, args[2], v) ** 2).sum()

    got = jax.jit(jax.grad(total, (0, 1, 2)))(args[0], args[1], args[3])
    looped = _loop(one, axes, *args)
    want = tuple(
        g if axis == 0 else g.sum(0)
        for g, axis in zip(looped, (axes[0], axes[1], axes[3]), strict=True)
    )
    assert_close(got, want, 1e-4)


@pytest.mark.parametrize("autodiff", ["vjp", "jvp"])
@pytest.mark.parametrize("activation", [None, "gelu", "silu", "tanh"])
def test_second_order_reverse(autodiff: str, activation: str) -> None:
    def f(*xs: Any) -> jax.Array:
        a, b, c, v, alpha, beta = xs
        return jaxgemm.gemm(
            a, b, c, bias=v, alpha=alpha, beta=beta, activation=activation, autodiff=autodiff
        )

    modes = ("rev",) if autodiff == "vjp" else ("fwd", "rev")
    # Finite differences of a float32 function: their own error is a few 1e-2.
    check_grads(f, _ARGUMENTS, order=2, modes=modes, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("autodiff", ["vjp", "jvp"])
def test_hessian_of_gemm_is_that_of_jnp(autodiff: str) -> None:
    f = lambda f: lambda *xs: (f(*xs) ** 2).sum()  # noqa: E731
    ours = functools.partial(jaxgemm.gemm, activation="gelu", autodiff=autodiff)
    loss = f(lambda a, b, c, v, alpha, beta: ours(a, b, c, bias=v, alpha=alpha, beta=beta))
    argnums = (0, 1, 3, 4, 5)
    got = jax.jit(jax.hessian(loss, argnums))(*_ARGUMENTS)
    want = jax.jit(jax.hessian(f(_plain), argnums))(*_ARGUMENTS)
    assert_close(got, want, 1e-3)


def test_hessian_of_grouped_and_gated() -> None:
    x, w, sizes, v = _grouped_arguments()
    row = jnp.repeat(jnp.arange(3), sizes, total_repeat_length=20)
    valid = (jnp.arange(20) < 16)[:, None]

    def plain(x: Any, w: Any, v: Any) -> jax.Array:
        z = jnp.einsum("mk,mkn->mn", x, w[row]) + v[row]
        return (jnp.where(valid, jax.nn.silu(z), 0) ** 2).sum()

    got = jax.jit(jax.hessian(lambda x, w, v: (_grouped(x, w, sizes, v) ** 2).sum(), (0, 1, 2)))
    assert_close(got(x, w, v), jax.jit(jax.hessian(plain, (0, 1, 2)))(x, w, v), 1e-3)
    args = (normal(3, 4), normal(4, 5, seed=1), normal(4, 5, seed=2))
    gated = jax.jit(jax.hessian(lambda *xs: (jaxgemm.gated_gemm(*xs) ** 2).sum(), (0, 1, 2)))
    dense = jax.jit(
        jax.hessian(lambda x, g, u: ((jax.nn.silu(x @ g) * (x @ u)) ** 2).sum(), (0, 1, 2))
    )
    assert_close(gated(*args), dense(*args), 1e-3)


def test_forward_mode_is_refused_by_vjp_and_given_by_jvp() -> None:
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(jaxgemm.gemm, (normal(2, 3), normal(3, 4)), (normal(2, 3), normal(3, 4)))
    _, f_jvp = jax.linearize(functools.partial(jaxgemm.gemm, autodiff="jvp"), *_ARGUMENTS[:2])
    a, b = _ARGUMENTS[:2]
    assert_close(f_jvp(a, b), 2 * a @ b)
    jacobian = jax.jacfwd(lambda a: jaxgemm.gemm(a, b, autodiff="jvp"))(a)
    assert_close(jacobian, jax.jacfwd(lambda a: a @ b)(a))


@pytest.mark.parametrize("argnums", [0, 1, 2, (0, 1, 2)])
def test_scan_over_layers(argnums: Any) -> None:
    x, w, v = normal(4, 4), normal(4, 4, seed=1) / 2, normal(4, seed=2)

    def scanned(f: Callable[..., Any], x: Any, w: Any, v: Any) -> jax.Array:
        return lax.scan(lambda x, _: (f(x, w, v), None), x, None, length=3)[0].sum()

    ours = lambda x, w, v: jaxgemm.gemm(x, w, bias=v, activation="tanh")  # noqa: E731
    got = jax.jit(jax.grad(functools.partial(scanned, ours), argnums))(x, w, v)
    want = jax.grad(functools.partial(scanned, lambda x, w, v: jnp.tanh(x @ w + v)), argnums)(
        x, w, v
    )
    assert_close(got, want, 1e-4)


def test_scan_keeps_a_bfloat16_carry() -> None:
    x, w = normal(4, 4).astype(jnp.bfloat16), (normal(4, 4, seed=1) / 2).astype(jnp.bfloat16)

    def run(x: Any, w: Any) -> jax.Array:
        return lax.scan(lambda x, _: (jaxgemm.gemm(x, w), None), x, None, length=3)[0].sum()

    gradients = jax.jit(jax.grad(run, (0, 1)))(x, w)
    assert [g.dtype for g in gradients] == [jnp.bfloat16] * 2


def test_vmapped_scan_sums_the_gradient_of_shared_weights() -> None:
    x, w = normal(6, 3, 3), normal(3, 3, seed=1) / 2

    def run(f: Callable[..., Any], w: Any) -> jax.Array:
        one = lambda x: lax.scan(lambda x, _: (f(x, w), None), x, None, length=2)[0]  # noqa: E731
        return (jax.vmap(one)(x) ** 2).sum()

    got = jax.grad(functools.partial(run, jaxgemm.gemm))(w)
    assert_close(got, jax.grad(functools.partial(run, jnp.matmul))(w), 1e-4)


def _num_gemms(f: Callable[..., Any], *args: Any) -> int:
    return sum(row.count for row in jaxgemm.explain(f, *args).rows)


def test_remat_policies_save_gemms() -> None:
    x, w1, w2 = normal(8, 16), normal(16, 32), normal(32, 16)

    def layer(x: Any, w1: Any, w2: Any) -> jax.Array:
        return jaxgemm.gemm(jnp.sin(jaxgemm.gemm(x, w1)), w2).sum()

    def count(policy: Any) -> int:
        return _num_gemms(jax.grad(jax.checkpoint(layer, policy=policy), (0, 1, 2)), x, w1, w2)

    everything = count(jax.checkpoint_policies.nothing_saveable)
    assert count(jaxgemm.checkpoint_dots) < everything
    assert count(jaxgemm.checkpoint_dots_with_no_batch_dims) < everything
    assert count(jaxgemm.checkpoint_dots) == _num_gemms(jax.grad(layer, (0, 1, 2)), x, w1, w2)
    got = jax.grad(jax.checkpoint(layer, policy=jaxgemm.checkpoint_dots), (0, 1, 2))(x, w1, w2)
    assert_close(got, jax.grad(layer, (0, 1, 2))(x, w1, w2))


def test_remat_tells_batched_products_apart() -> None:
    x, w = normal(3, 8, 16), normal(3, 16, 8)

    def attention(x: Any, w: Any) -> jax.Array:
        return jnp.sin(jaxgemm.gemm(x, w)).sum()

    def count(policy: Any, w: Any) -> int:
        return _num_gemms(jax.grad(jax.checkpoint(attention, policy=policy), (0, 1)), x, w)

    no_batch = jaxgemm.checkpoint_dots_with_no_batch_dims
    assert count(no_batch, w) == count(jaxgemm.checkpoint_dots, w) + 1
    assert count(no_batch, w[0]) == count(jaxgemm.checkpoint_dots, w[0])


def test_export_round_trip() -> None:
    x, w, sizes, v = _grouped_arguments()

    def f(x: Any, w: Any, sizes: Any, v: Any) -> jax.Array:
        h = _grouped(x, w, sizes, v)
        return jaxgemm.gemm(h, w[0], transpose_b=True, activation="gelu").sum()

    exported = export.export(jax.jit(f))(x, w, sizes, v)
    restored = export.deserialize(exported.serialize(vjp_order=1))
    assert_close(restored.call(x, w, sizes, v), f(x, w, sizes, v))
    got = jax.grad(lambda x: restored.call(x, w, sizes, v))(x)
    assert_close(got, jax.grad(f)(x, w, sizes, v), 1e-4)


def test_inside_cond_while_and_disable_jit() -> None:
    a = normal(4, 4)
    chosen = lax.cond(True, lambda x: jaxgemm.gemm(x, x), lambda x: x, a)
    assert_close(chosen, a @ a)
    looped = lax.fori_loop(0, 3, lambda _, x: jaxgemm.gemm(x, a, activation="tanh"), a)
    want = a
    for _ in range(3):
        want = jnp.tanh(want @ a)
    assert_close(looped, want)
    with jax.disable_jit():
        assert_close(jaxgemm.gemm(a, a, alpha=2.0), 2 * a @ a)
        x, w, sizes, v = _grouped_arguments()
    assert_close(_grouped(x, w, sizes, v), _grouped(x, w, sizes, v))


def test_partial_and_keyword_arguments_are_differentiable() -> None:
    a, b, c, v, _, _ = _ARGUMENTS

    def loss(*, b: Any, c: Any) -> jax.Array:
        f = functools.partial(jaxgemm.gemm, transpose_b=True, alpha=2.0, beta=0.5, bias=v)
        return f(a, b.T, c=c, activation="relu", out_dtype=jnp.float32).sum()

    got = jax.grad(lambda named: loss(**named))({"b": b, "c": c})
    want = jax.grad(lambda n: jax.nn.relu(2 * a @ n["b"] + 0.5 * n["c"] + v).sum())(
        {"b": b, "c": c}
    )
    assert_close(got, want, 1e-4)
