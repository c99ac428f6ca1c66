"""Whether a result is right: the gate that every candidate passes before it is timed.

The answer R is the reference's in the accumulator dtype, at full precision, on the device. A result
D = act(z) with z = alpha · A·B + beta · C + bias may differ from it, element by element, by

    |D − R| ≤ 1.01 u_out |R| + L (4 √K u_acc + 2 u_mul) S + smallest subnormal of out

with S = |alpha| |A|·|B| + |beta C| + |bias|, L the largest slope of act, and unit roundoffs of the
output, the accumulator, and operands that are multiplied as TF32 (u_mul is 0 for others). A curved
activation adds 4 u_acc |R|, and a clamp leaves no error where R is far outside its bounds. Where
D = act'(z) · (alpha · A·B + beta · C), it is the same with act at the end left out, and evaluating
act' adds 16 u_acc of its largest value. A sum of rows of D adds up their bounds, and their
roundings. A gradient is bounded as the product that it is, plus what z̄ carries: z̄ is computed from
a z that was rounded to the residual dtype, and is rounded to it itself.

`Answer.error` is the error over this bound: more than 1 is wrong. A candidate that rounds on its
way, as a chain of jnp operations does, is judged with `stepwise=True`, which allows for it. An
answer costs several products at full precision: it is worked out once, and many results are
compared with it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm import dtypes, epilogue, reference
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec

Arrays = Mapping[str, jax.Array]

# Roundings to the output dtype that a chain of operations may make, each scaled by the largest
# intermediate: product, alpha, c, bias, and those inside an activation.
_STEPS = 16


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an output, or a gradient, should be.

    Attributes:
      dtype: that of results.
      value: R, in the accumulator dtype.
      slack: the bound of its error, but for the rounding to the dtype of results.
      stepwise_slack: the same for candidates that round on their way.
    """

    dtype: np.dtype
    value: jax.Array
    slack: jax.Array
    stepwise_slack: jax.Array

    def error(self, result: jax.Array, *, stepwise: bool = False) -> float:
        """The largest error of a result over its bound; infinite where NaN are out of place."""
        if result.shape != self.value.shape or result.dtype != self.dtype:
            return math.inf
        slack = self.stepwise_slack if stepwise else self.slack
        return float(jax.jit(_over_bound)(result, self.value, slack))


def answer(problem: Problem, operands: Arrays) -> Answer:
    """What d should be, and how far results may be from it."""
    return Answer(problem.dtype("d"), *_compiled(_answer)(problem, dict(operands)))


def answer_of_sum(problem: Problem, operands: Arrays) -> Answer:
    """What d_sum should be, the sum of the rows of d, rounded or not."""
    return Answer(problem.dtype("d_sum"), *_compiled(_sum)(problem, dict(operands)))


def gradient_answers(
    problem: Problem, operands: Arrays, cotangent: jax.Array, names: Iterable[str]
) -> dict[str, Answer]:
    """What the gradients for operands should be, of a, b, b_up and bias those that are named."""
    asked = (problem, tuple(names))
    found = _compiled(_gradient_answers)(asked, dict(operands), cotangent)
    return {name: Answer(problem.dtype(name), *parts) for name, parts in found.items()}


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Under jit; on a GPU by cuBLAS as it is: the answer need not be tuned, only right."""
    options = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
    on_gpu = jax.default_backend() == "gpu"
    return jax.jit(function, static_argnums=0, compiler_options=options if on_gpu else None)


def _exact(problem: Problem) -> GemmSpec:
    """alpha · a·b + beta · c + bias alone, in the accumulator dtype, at full precision."""
    spec, acc = problem.spec.without_sum(), problem.accumulator
    return spec.restricted({*spec.operands} - {"b_up", "z"}).replace(
        out_dtype=acc,
        residual_dtype=acc,
        precision="highest",
        activation=None,
        clamp=None,
        save_preactivation=False,
        batch_invariant=False,
    )


def _evaluate(spec: GemmSpec, operands: Arrays) -> jax.Array:
    config = reference.Config(dynamic_trip_count=False)
    return reference.evaluate(spec, operands, config)[0]


def _wide(problem: Problem, operands: Arrays) -> dict[str, jax.Array]:
    """Floats in the accumulator dtype, exactly; integers as they are."""
    return {
        name: x.astype(problem.accumulator) if jnp.issubdtype(x.dtype, jnp.floating) else x
        for name, x in operands.items()
    }


def _sizes(operands: Arrays) -> dict[str, jax.Array]:
    return {n: x if n in ("group_sizes", "row_start") else jnp.abs(x) for n, x in operands.items()}


def _units(problem: Problem, terms: int) -> float:
    """(4 √K u_acc + 2 u_mul): the error of a sum of this many products over their magnitudes."""
    if dtypes.is_integer(problem.dtype("a")):
        return 0.0
    u_acc = dtypes.facts(problem.accumulator).unit_roundoff
    both = dtypes.compute(problem.dtype("a"), problem.dtype("b"))
    as_tf32 = both.name == "float32" and problem.spec.precision != "highest"
    return 4 * math.sqrt(max(1, terms)) * u_acc + (2 * dtypes.TF32_UNIT_ROUNDOFF) * as_tf32


def _roundoff(dtype: jnp.dtype) -> float:
    return dtypes.OPERANDS[dtype.name].unit_roundoff if dtype.name in dtypes.OPERANDS else 0.0


# z, the bound on its error, and what a rounding on the way adds to that, over its roundoff.
_Bounded = tuple[jax.Array, jax.Array, jax.Array]


def _preactivations(problem: Problem, operands: Arrays) -> list[_Bounded]:
    """For a·b and, if gated, for a·b_up."""
    spec, wide = _exact(problem), _wide(problem, operands)
    results = []
    for name in ("b", "b_up")[: 1 + problem.spec.gated]:
        chosen = {n: wide[name if n == "b" else n] for n in spec.operands}
        z, size = _evaluate(spec, chosen), _evaluate(spec, _sizes(chosen))
        # |alpha · a·b| is at most |z| + |beta · c| + |bias|.
        passed = jnp.abs(z) + 2 * _evaluate(spec, _empty(spec, chosen))
        results.append((z, _units(problem, problem.k) * size, passed))
    return results


def _with_steps(saved: list[_Bounded], steps: float) -> list[tuple[jax.Array, jax.Array]]:
    """(z, the bound on its error) for candidates that round on their way by `steps`."""
    # Not 0 · infinity.
    return [(z, slack + steps * passed if steps else slack) for z, slack, passed in saved]


def _empty(spec: GemmSpec, operands: Arrays) -> dict[str, jax.Array]:
    """Magnitudes of operands without a single k: what is left is that of c and bias."""
    cut = {
        name: jax.lax.slice_in_dim(operands[name], 0, 0, axis=spec.labels(name).index("k"))
        for name in ("a", "b")
    }
    return _sizes({**operands, **cut})


def _slope(activation: str | None, z: jax.Array) -> jax.Array | float:
    if activation is None:
        return 1.0
    if activation == "relu2":
        return 2 * jnp.maximum(1.0, jnp.abs(z))
    return epilogue.ACTIVATIONS[activation].slope


def _over_bound(got: jax.Array, want: jax.Array, slack: jax.Array) -> jax.Array:
    """The largest |got − want| over its bound."""
    rounded = want.astype(got.dtype).astype(want.dtype)
    floating = jnp.issubdtype(got.dtype, jnp.floating)
    tiny = float(jnp.finfo(got.dtype).smallest_subnormal) if floating else 0.0
    bound = 1.01 * _roundoff(got.dtype) * jnp.abs(want) + slack + tiny
    difference = jnp.abs(got.astype(want.dtype) - want)
    over = jnp.where(difference == 0, 0.0, difference / bound)
    if not floating:
        return jnp.max(over, initial=0.0)
    # Beyond the largest number of the dtype anything that is not finite is right.
    beyond = ~jnp.isfinite(rounded)
    misplaced = jnp.isfinite(got) == beyond
    over = jnp.where(misplaced, jnp.inf, jnp.where(beyond, 0.0, over))
    return jnp.max(over, initial=0.0)


# The value, the slack, and the stepwise slack.
_Parts = tuple[jax.Array, jax.Array, jax.Array]


def _answer(problem: Problem, operands: dict[str, jax.Array]) -> _Parts:
    products = _preactivations(problem, operands)
    value, slack = _bounded(problem, operands, products, 0.0)
    steps = _STEPS * _roundoff(problem.dtype("d"))
    return value, slack, _bounded(problem, operands, products, steps)[1]


def _bounded(
    problem: Problem, operands: dict[str, jax.Array], products: list[_Bounded], steps: float
) -> tuple[jax.Array, jax.Array]:
    """d, and the bound on its error for candidates that round on their way by `steps`."""
    saved = _with_steps(products, steps)
    if problem.spec.pullback:
        value, slack = _times_slope(problem, operands["z"], *saved[0])
    else:
        value, slack = _activated(problem, *saved[0])
    if problem.spec.gated:
        up, up_slack = saved[1]
        slack = jnp.abs(value) * up_slack + slack * (jnp.abs(up) + up_slack)
        value = value * up
        slack = slack + 4 * _roundoff(problem.accumulator) * jnp.abs(value)
    if problem.spec.ragged == "m" and problem.spec.function is not None:
        bounds = reference.group_bounds(operands, value.shape[0])
        _, valid = reference.rows_of_groups(*bounds, value.shape[0])
        value = jnp.where(valid[:, None], value, 0)
    return value, slack + steps * jnp.abs(value)


def _sum(problem: Problem, operands: dict[str, jax.Array]) -> _Parts:
    value, slack, stepwise_slack = _answer(problem, operands)
    labels, kept = problem.spec.labels("d"), problem.spec.labels("d_sum")
    terms = math.prod(problem.size[label] for label in labels if label not in kept)
    units = 4 * math.sqrt(max(1, terms)) * _roundoff(problem.accumulator)
    rounded = (1.01 * _roundoff(problem.dtype("d")) + units) * jnp.abs(value)

    def total(x: jax.Array) -> jax.Array:
        return reference.sum_out(x, labels, kept)

    return total(value), total(slack + rounded), total(stepwise_slack + rounded)


def _times_slope(
    problem: Problem, z: jax.Array, product: jax.Array, slack: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """act'(z) · product, for a z that is given as it is."""
    spec, acc = problem.spec, problem.accumulator
    z = reference.align(z.astype(acc), spec.labels("z"), spec.labels("d"))
    z = jnp.broadcast_to(z, product.shape)
    value, error = _pulled_back(spec, z, jnp.zeros_like(z), product, _roundoff(acc))
    return value, error + _slope(spec.activation, z) * slack


def _activated(problem: Problem, z: jax.Array, slack: jax.Array) -> tuple[jax.Array, jax.Array]:
    spec = problem.spec
    value, slack = _unclamped(spec, z, slack, _roundoff(problem.accumulator))
    if spec.function is None or spec.clamp is None:
        return value, slack
    clamped = spec.function.apply(z)
    return clamped, jnp.where(jnp.abs(clamped - value) > slack, 0, slack)


def _unclamped(
    spec: GemmSpec, z: jax.Array, slack: jax.Array, u_acc: float
) -> tuple[jax.Array, jax.Array]:
    """What the activation alone gives, and the bound on its error."""
    if spec.activation is None:
        return z, slack
    value = epilogue.ACTIVATIONS[spec.activation].apply(z)
    slack = _slope(spec.activation, z) * slack
    if spec.activation not in ("relu", "relu2"):
        slack = slack + 4 * u_acc * jnp.abs(value)
    return value, slack


def _cotangents(
    problem: Problem, products: list[_Bounded], cotangent: jax.Array, steps: float
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """z̄ and the bound on its error for b and, if gated, for b_up."""
    spec = problem.spec
    d_bar = cotangent.astype(problem.accumulator)
    if spec.function is None and not spec.gated:
        return {"b": (d_bar, steps * jnp.abs(d_bar))}
    u_acc, u = _roundoff(problem.accumulator), _roundoff(spec.residual_dtype)
    saved = _with_steps(products, steps)
    z, z_slack = saved[0]
    z_error = u * jnp.abs(z) + z_slack
    scale, scale_error = d_bar, jnp.zeros_like(d_bar)
    if spec.gated:
        up, up_slack = saved[1]
        scale = d_bar * up
        scale_error = jnp.abs(d_bar) * (u * jnp.abs(up) + up_slack)
    value, error = _pulled_back(spec, z, z_error, scale, u_acc)
    error = error + _slope(spec.activation, z) * scale_error
    pairs = {"b": (value, error)}
    if spec.gated:
        gate, gate_error = _activated(problem, z, z_error)
        pairs["b_up"] = (d_bar * gate, jnp.abs(d_bar) * gate_error)
    rounding = 1.01 * u + steps
    return {n: (v, e + rounding * (jnp.abs(v) + e)) for n, (v, e) in pairs.items()}


def _pulled_back(
    spec: GemmSpec, z: jax.Array, z_error: jax.Array, scale: jax.Array, u_acc: float
) -> tuple[jax.Array, jax.Array]:
    """scale · act'(z), and its error from that of z and of evaluating act'."""
    if spec.function is None:
        return scale, jnp.zeros_like(scale)
    slope = _slope(spec.activation, z)
    moved = spec.function.curvature * z_error
    # The derivative jumps at 0 of relu, and at the bounds of a clamp: an element that may be on
    # either side may have either.
    if spec.activation == "relu":
        moved = moved + (jnp.abs(z) <= z_error)
    inner, inner_error = _unclamped(spec, z, z_error, u_acc)
    for bound in spec.clamp or ():
        if bound is not None:
            moved = moved + slope * (jnp.abs(inner - bound) <= inner_error)
    error = jnp.abs(scale) * (moved + 16 * u_acc * slope)
    return spec.function.pullback(z, scale), error


def _gradient_answers(
    asked: tuple[Problem, tuple[str, ...]], operands: dict[str, jax.Array], cotangent: jax.Array
) -> dict[str, _Parts]:
    problem, names = asked
    steps = _STEPS * _roundoff(problem.spec.residual_dtype)
    curved = problem.spec.function is not None or problem.spec.gated
    products = _preactivations(problem, operands) if curved else []
    strict, stepwise = (
        _bounded_gradients(
            problem, names, operands, _cotangents(problem, products, cotangent, x), x
        )
        for x in (0.0, steps)
    )
    return {name: (*strict[name], stepwise[name][1]) for name in names}


def _bounded_gradients(
    problem: Problem,
    names: tuple[str, ...],
    operands: dict[str, jax.Array],
    bars: dict[str, tuple[jax.Array, jax.Array]],
    steps: float,
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Gradients, and the bounds on their errors for candidates that round by `steps`."""
    wide = _wide(problem, operands)
    found = {}
    for name in names:
        if name == "bias":
            parts = [_bias(problem, wide, x) for x in (bars["b"][0], *map(jnp.abs, bars["b"]))]
        else:
            of_a = [
                _operand(problem, wide, name, role, *bar)
                for role, bar in bars.items()
                if name in ("a", role)
            ]
            parts = [functools.reduce(jnp.add, column) for column in zip(*of_a, strict=True)]
        value, size, carried = parts
        terms = max(1, bars["b"][0].size * problem.k // max(1, value.size))
        slack = carried + _units(problem, terms) * (size + carried) + steps * jnp.abs(value)
        found[name] = (value, slack)
    return found


def _bias(problem: Problem, wide: Arrays, bar: jax.Array) -> jax.Array:
    """The sum of z̄ over everything that shares a bias."""
    spec = problem.spec
    if spec.ragged == "m":
        bounds = reference.group_bounds(wide, bar.shape[0])
        group, valid = reference.rows_of_groups(*bounds, bar.shape[0])
        bar = jnp.where(valid[:, None], bar, 0)
        return jax.ops.segment_sum(bar, group, problem.num_groups)
    return reference.sum_out(bar, spec.labels("d"), spec.labels("bias"))


def _operand(
    problem: Problem, wide: Arrays, name: str, role: str, bar: jax.Array, bar_error: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gradient that z̄ of one product gives, its magnitude, and the error that z̄ carries."""
    acc = problem.accumulator
    product, (first, second) = _exact(problem).gradient_product(
        "a" if name == "a" else "b", acc, scaled=True
    )
    product = product.replace(precision="highest")

    def evaluate(bar: jax.Array, others: Arrays) -> jax.Array:
        pool = {**others, "b": others[role], "d": bar}
        chosen = {n: pool[n] for n in product.operands if n not in ("a", "b")}
        return _evaluate(product, {**chosen, "a": pool[first], "b": pool[second]})

    sizes = _sizes(wide)
    return (evaluate(bar, wide), evaluate(jnp.abs(bar), sizes), evaluate(bar_error, sizes))
