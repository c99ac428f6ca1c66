"""`mlp`: the values and gradients of two GEMMs, and a backward pass that is fused."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import epilogue
from jaxgemm.spec import GemmSpec
from jaxgemm.tuning import search
from tests import oracle, oracle_gradients
from tests.dispatch_fakes import struct
from tests.oracle import Answer

_SIZES = {"x": (9, 12), "w_up": (12, 16), "w_down": (16, 10), "bias_up": (16,), "bias_down": (10,)}
_NAMES = tuple(_SIZES)


def _operands(dtype: str = "float32", lead: tuple[int, ...] = ()) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {
        name: jnp.asarray(rng.normal(size=(*lead, *size)) / 2, dtype)
        for name, size in _SIZES.items()
    }


def _plain(named: dict[str, jax.Array], activation: str | None = "gelu") -> jax.Array:
    """The same in float32, by jnp."""
    z = jnp.matmul(named["x"], named["w_up"], precision="highest")
    z = z + named["bias_up"] if "bias_up" in named else z
    h = epilogue.ACTIVATIONS[activation].apply(z) if activation else z
    y = jnp.matmul(h, named["w_down"], precision="highest")
    return y + named["bias_down"] if "bias_down" in named else y


def _ours(named: dict[str, jax.Array], **options: Any) -> jax.Array:
    return jaxgemm.mlp(**named, **options)


def _product(x: Answer, y: np.ndarray, unit: float) -> Answer:
    """x·y for an x with an error."""
    units = 4 * np.sqrt(y.shape[0]) * unit
    size = (np.abs(x.value) + x.slack) @ np.abs(y)
    value, slack = x.value @ y, x.slack @ np.abs(y) + units * size
    return Answer(value, slack, value, slack)


def _turned(x: Answer) -> Answer:
    return Answer(x.value.T, x.slack.T, x.z.T, x.z_slack.T)


def _expected(
    named: dict[str, jax.Array], cotangent: jax.Array, activation: str | None
) -> tuple[Answer, dict[str, Answer]]:
    """The result and all gradients, with what roundings of h, z and z̄ to their dtype allow."""
    x, w_up, w_down, y_bar = (
        oracle.f64(v) for v in (named["x"], named["w_up"], named["w_down"], cotangent)
    )
    dtype, unit = named["x"].dtype, oracle.accumulator_roundoff(named["x"])
    first = oracle.gemm(named["x"], named["w_up"], bias=named["bias_up"], activation=activation)
    h = Answer(first.value, first.bound(dtype), first.z, first.z_slack)
    y = _product(h, w_down, unit)
    y.value, y.slack = y.value + oracle.f64(named["bias_down"]), y.slack + unit * np.abs(y.value)
    h_bar = _product(Answer(y_bar, *[np.zeros_like(y_bar)] * 3), w_down.T, unit)
    z_bar, error = oracle_gradients.preactivation_cotangent(
        first, h_bar.value, activation, dtype, unit
    )
    u = oracle.roundoff(dtype)
    error = error + (1 + 2 * u) * oracle.slope(activation, first.z) * h_bar.slack
    error = error + u * np.abs(z_bar) * (activation is None)
    z_bar = Answer(z_bar, error, z_bar, error)
    return y, {
        "x": _product(z_bar, w_up.T, unit),
        "w_up": _turned(_product(_turned(z_bar), x, unit)),
        "w_down": _product(_turned(h), y_bar, unit),
        "bias_up": oracle_gradients._answer(z_bar.value, np.abs(z_bar.value), error, (16,), unit),
        "bias_down": oracle_gradients._answer(y_bar, np.abs(y_bar), 0 * y_bar, (10,), unit),
    }


@pytest.mark.parametrize(
    ("dtype", "activation"),
    [("float32", "gelu"), ("bfloat16", "gelu"), ("bfloat16", "silu"), ("bfloat16", None)],
)
def test_values_and_gradients_are_within_their_bounds(dtype: str, activation: str) -> None:
    named = _operands(dtype)
    run = lambda xs: _ours(xs, activation=activation, precision="highest")  # noqa: E731
    y, pull = jax.vjp(run, named)
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=y.shape), y.dtype)
    (gradients,) = jax.jit(pull)(cotangent)
    want, wanted = _expected(named, cotangent, activation)
    oracle.check(y, want, dtype)
    assert gradients.keys() == named.keys()
    for name, gradient in gradients.items():
        oracle.check(gradient, wanted[name], dtype)


@pytest.mark.parametrize("lead", [(), (3,), (1, 2), (0,)], ids=str)
def test_the_value_is_that_of_two_gemms(lead: tuple[int, ...]) -> None:
    named = _operands("bfloat16")
    named["x"] = jnp.broadcast_to(named["x"], (*lead, 9, 12))
    for biases, out_dtype in itertools.product(
        ((), ("bias_up",), ("bias_down",)), (None, "float32")
    ):
        chosen = {n: x for n, x in named.items() if n in ("x", "w_up", "w_down", *biases)}
        h = jaxgemm.gemm(chosen["x"], chosen["w_up"], bias=chosen.get("bias_up"), activation="gelu")
        want = jaxgemm.gemm(h, chosen["w_down"], bias=chosen.get("bias_down"), out_dtype=out_dtype)
        got = _ours(chosen, out_dtype=out_dtype)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want), strict=True)


def _specs(function: Any, *args: Any) -> list[GemmSpec]:
    """The specs of all products of a function, in its order."""
    return [e.params["spec"] for e in search.gemms(jax.make_jaxpr(function)(*args).jaxpr)]


def _products(argnames: tuple[str, ...], activation: str | None = "gelu") -> list[GemmSpec]:
    """The specs of a gradient: the two products of the forward pass come first."""
    named = _operands("bfloat16")

    def loss(xs: dict[str, jax.Array]) -> jax.Array:
        y = _ours({**named, **xs}, activation=activation)
        return (y.astype(jnp.float32) ** 2).sum()

    return _specs(jax.grad(loss), {name: named[name] for name in argnames})


@pytest.mark.parametrize(
    "wanted", [x for n in (1, 2, 5) for x in itertools.combinations(_NAMES, n)], ids=" ".join
)
def test_the_backward_pass_is_fused_and_computes_only_what_is_wanted(
    wanted: tuple[str, ...],
) -> None:
    up, down, *specs = _products(wanted)
    steps_back = not {"x", "w_up", "bias_up"}.isdisjoint(wanted)
    assert [up.outputs, down.outputs] == [("d", "z") if steps_back else ("d",), ("d",)]
    pullbacks = [spec for spec in specs if spec.pullback]
    assert len(pullbacks) == steps_back
    for spec in pullbacks:
        assert spec.activation == "gelu"
        assert spec.sum_dtype == ("bfloat16" if "bias_up" in wanted else None)
    # One product for each gradient of a matrix.
    assert len(specs) == steps_back + len({"x", "w_up", "w_down"} & {*wanted})


def test_without_an_activation_only_the_sum_is_in_the_epilogue() -> None:
    up, _, spec, _ = _products(("x", "bias_up"), activation=None)
    assert up.outputs == ("d",)
    assert (spec.operands, spec.outputs) == (("a", "b"), ("d", "d_sum"))


def test_residuals_are_those_that_the_wanted_gradients_read() -> None:
    named = _operands()

    def saved(*wanted: str) -> set[tuple[int, ...]]:
        fixed = {name: x for name, x in named.items() if name not in wanted}
        _, pull = jax.vjp(lambda xs: _ours({**fixed, **xs}), {n: named[n] for n in wanted})
        return {x.shape for x in jax.tree.leaves(pull) if x.size}

    assert saved("bias_down") == set()
    assert saved("w_down") == {(9, 16)}
    assert saved("bias_up") == {(9, 16), (16, 10)}
    assert saved("x") == {(9, 16), (16, 10), (12, 16)}


def _loss(f: Any) -> Any:
    return lambda named: (f(named) ** 2).sum()


def _check_close(got: Any, want: Any, tolerance: float = 1e-4) -> None:
    jax.tree.map(
        lambda p, q: np.testing.assert_allclose(
            p, q, rtol=tolerance, atol=tolerance * float(abs(q).max())
        ),
        got,
        want,
    )


@pytest.mark.parametrize("mapped", [("x",), ("w_down", "bias_up"), _NAMES], ids=" ".join)
def test_mapped_operands_have_gradients_of_their_own_and_shared_ones_are_summed(
    mapped: tuple[str, ...],
) -> None:
    whole, parts = _operands(), _operands(lead=(3,))
    named = {name: parts[name] if name in mapped else x for name, x in whole.items()}
    axes = {name: 0 if name in mapped else None for name in whole}

    def batched(f: Any) -> Any:
        return lambda xs: _loss(jax.vmap(f, in_axes=(axes,)))(xs)

    _check_close(jax.jit(jax.grad(batched(_ours)))(named), jax.grad(batched(_plain))(named))
    per_example = jax.vmap(jax.grad(_loss(_ours)), in_axes=(axes,))
    _check_close(jax.jit(per_example)(named), jax.vmap(jax.grad(_loss(_plain)), (axes,))(named))


def test_examples_between_rows_and_columns_stay_there() -> None:
    named, xs = _operands(), jnp.moveaxis(_operands(lead=(3,))["x"], 0, 1)
    weights = {name: x for name, x in named.items() if name != "x"}

    def mapped(f: Any) -> Any:
        return lambda ws: jax.vmap(lambda x: f({**ws, "x": x}), 1, 1)(xs)

    assert all(spec.inside for spec in _specs(mapped(_ours), weights))
    assert "transpose[" not in str(jax.make_jaxpr(mapped(_ours))(weights))
    _check_close(mapped(_ours)(weights), mapped(_plain)(weights))
    gradient = jax.grad(_loss(mapped(_ours)))
    _check_close(jax.jit(gradient)(weights), jax.grad(_loss(mapped(_plain)))(weights))


def test_gradients_of_shared_weights_are_summed_inside_the_products() -> None:
    named, xs = _operands(), _operands(lead=(5,))["x"]
    weights = {name: x for name, x in named.items() if name != "x"}
    loss = lambda ws: (jax.vmap(lambda x: _ours({**ws, "x": x}))(xs) ** 2).sum()  # noqa: E731
    specs = _specs(jax.grad(loss), weights)
    # Forward twice, w_down¯ summed, z̄ of every example with a sum over all, w_up¯ summed.
    assert [spec.batch_labels("d") for spec in specs] == [("b0",), ("b0",), (), ("b0",), ()]
    assert specs[3].labels("d_sum") == ("n",)


def test_transforms_agree_with_plain_jnp() -> None:
    named = _operands()
    want = jax.grad(_loss(_plain))(named)
    # Two products forward and four backward, and z again where it is not kept.
    for policy, num_products in ((None, 7), (jaxgemm.checkpoint_dots, 6)):
        gradient = jax.grad(_loss(jax.checkpoint(_ours, policy=policy)))
        _check_close(jax.jit(gradient)(named), want)
        assert len(_specs(gradient, named)) == num_products
    with jax.disable_jit():
        _check_close(jax.grad(_loss(_ours))(named), want)
    norm = lambda f: lambda xs: sum((g**2).sum() for g in jax.tree.leaves(jax.grad(_loss(f))(xs)))  # noqa: E731
    _check_close(jax.jit(jax.grad(norm(_ours)))(named), jax.grad(norm(_plain))(named), 1e-3)


def test_forward_mode_is_refused_as_that_of_gemm_is() -> None:
    x = jnp.ones((2, 2))
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: jaxgemm.mlp(x, x, x), (x,), (x,))


def test_explanation_has_every_product_and_says_what_xla_does() -> None:
    named = {
        "x": struct(4096, 1024),
        "w_up": struct(1024, 4096),
        "w_down": struct(4096, 1024),
        "bias_up": struct(4096),
        "bias_down": struct(1024),
    }
    assert len(jaxgemm.explain(jaxgemm.mlp, **named, device="nvidia_h200").rows) == 2
    loss = lambda xs: _ours(xs).astype(jnp.float32).sum()  # noqa: E731
    for backend in ("auto", "pallas"):
        with jaxgemm.use(backend=backend, strict=True):
            shown = jaxgemm.explain(jax.grad(loss), named, device="nvidia_h200")
        assert {row.kernel for row in shown.rows} == {"pallas.hopper.dense"}
        (pullback,) = [row for row in shown.rows if row.problem.spec.pullback]
        assert f"computes {pullback.plan.problem}; XLA does the rest" in str(pullback)
        assert pullback.plan.problem.spec == pullback.problem.spec.without_sum()


def test_a_named_kernel_is_refused_on_a_cpu() -> None:
    x = jnp.ones((8, 8), jnp.bfloat16)
    with pytest.raises(jaxgemm.UnsupportedProblem, match="cpu has compute capability"):
        jaxgemm.mlp(x, x, x, backend="pallas")
