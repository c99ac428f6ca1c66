"""The float64 answer of a dense or gated `Problem`, label by label, and checks against it.

The bound is that of oracle.py. Four of its terms depend on the kernel, so callers give them:
`u_mul`, the unit roundoff with which operands are multiplied (0: as stored), `u_curved`, that of a
curved activation (0 asks for one that is as good as its pre-activation), `u_pulled_back`, that of
what a pullback multiplies by the slope, and `slope_error`, how far that slope may be off besides
its rounding to float32.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm import device
from jaxgemm.kernel import Kernel
from jaxgemm.problem import Problem
from tests import oracle

# `u_curved` of kernels whose exp and tanh are good to two units in the last place.
U_CURVED = 4 * 2.0**-24


def answers(
    problem: Problem,
    arrays: dict[str, jax.Array],
    *,
    u_mul: float = 0.0,
    u_curved: float = 0.0,
    u_pulled_back: float = 0.0,
    slope_error: float = 0.0,
) -> dict[str, oracle.Answer]:
    """The answer of every output."""
    if problem.spec.gated:
        found = _gated_answers(problem, arrays, u_mul, u_curved)
    else:
        found = _dense_answers(problem, arrays, u_mul, u_curved, u_pulled_back, slope_error)
    own = _labels(problem)
    order = [own.index(label) for label in problem.spec.labels("d")]
    return {
        name: answer if name == "d_sum" else _transposed(answer, order)
        for name, answer in found.items()
    }


def _labels(problem: Problem) -> tuple[str, ...]:
    """The labels of d with all batch axes first."""
    return (*problem.spec.batch_labels("d"), "m", "n")


def _transposed(answer: oracle.Answer, order: list[int]) -> oracle.Answer:
    fields = dataclasses.fields(answer)
    return oracle.Answer(**{f.name: getattr(answer, f.name).transpose(order) for f in fields})


def _dense_answers(
    problem: Problem,
    arrays: dict[str, jax.Array],
    u_mul: float,
    u_curved: float,
    u_pulled_back: float = 0.0,
    slope_error: float = 0.0,
) -> dict[str, oracle.Answer]:
    """The answer of every output, with all batch axes first."""
    spec = problem.spec
    labels = _labels(problem)

    def get(name: str, target: tuple[str, ...] = labels) -> np.ndarray:
        own, x = spec.labels(name), oracle.f64(arrays[name])
        x = x.transpose(sorted(range(x.ndim), key=lambda axis: target.index(own[axis])))
        return np.expand_dims(x, tuple(i for i, label in enumerate(target) if label not in own))

    a, b = get("a", (*labels[:-1], "k")), get("b", (*labels[:-2], "k", "n"))
    # Where a has infinity and b has 0, NaN is the answer.
    with np.errstate(invalid="ignore"):
        z, size = a @ b, abs(a) @ abs(b)
    if problem.has("alpha"):
        z, size = get("alpha") * z, abs(get("alpha")) * size
    if problem.has("c"):
        beta = get("beta") if problem.has("beta") else np.ones(())
        c = np.where(beta == 0, 0, beta * get("c"))
        z, size = z + c, size + abs(c)
    if problem.has("bias"):
        z, size = z + get("bias"), size + abs(get("bias"))
    z = np.broadcast_to(z, tuple(problem.size[label] for label in labels))
    units = 4 * math.sqrt(max(1, problem.k)) * 2.0**-24 + 2 * u_mul
    slack = np.broadcast_to(units * size, z.shape)
    if spec.pullback:
        rounded = slack + 1.01 * u_pulled_back * (abs(z) + slack)
        d, d_slack = _pulled_back(problem, get("z"), z, rounded, slope_error)
        found = {"d": oracle.Answer(d, d_slack, z, slack)}
        return _with_sum(problem, found)
    d, d_slack = oracle.activated(spec.activation, z, slack, u_curved / 4)
    d, d_slack = oracle.clamped(d, d_slack, spec.clamp)
    found = {
        "d": oracle.Answer(d, d_slack, z, slack),
        "z": oracle.Answer(z, slack, z, slack),
    }
    return _with_sum(problem, found)


def _pulled_back(
    problem: Problem,
    z: np.ndarray,
    product: np.ndarray,
    slack: np.ndarray,
    slope_error: float,
) -> tuple[np.ndarray, np.ndarray]:
    """act'(z) · product, and its error: of the product, and of evaluating act' in float32."""
    activation = problem.spec.activation
    z = np.broadcast_to(z, product.shape)
    slope = oracle.ACTIVATIONS[activation][1](z)
    error = (16 * 2.0**-24 * oracle.slope(activation, z) + slope_error) * np.abs(product)
    return slope * product, np.abs(slope) * slack + error


def _with_sum(problem: Problem, found: dict[str, oracle.Answer]) -> dict[str, oracle.Answer]:
    """The outputs there are; d_sum adds up the rows of d, rounded or not."""
    labels, d = _labels(problem), found["d"]
    axes = tuple(i for i, x in enumerate(labels) if x not in problem.spec.labels("d_sum"))
    terms = math.prod(d.value.shape[i] for i in axes)
    units = 1.01 * oracle.roundoff(problem.dtype("d")) + 4 * math.sqrt(terms) * 2.0**-24
    value, slack = d.value.sum(axes), (d.slack + units * np.abs(d.value)).sum(axes)
    found = {**found, "d_sum": oracle.Answer(value, slack, value, slack)}
    return {name: found[name] for name in problem.spec.outputs}


def _gated_answers(
    problem: Problem, arrays: dict[str, jax.Array], u_mul: float, u_curved: float
) -> dict[str, oracle.Answer]:
    """act(z) · z_up, from the answers of the two products."""
    spec = problem.spec.replace(save_preactivation=True)
    saved = []
    for weight in ("b", "b_up"):
        product = dataclasses.replace(problem, spec=spec.for_weight(weight))
        operands = {**arrays, "b": arrays[weight]}
        saved.append(_dense_answers(product, operands, u_mul, u_curved))
    gate, z, up = saved[0]["d"], saved[0]["z"], saved[1]["z"]
    slack = abs(gate.value) * up.slack + gate.slack * (abs(up.value) + up.slack)
    slack = slack + 4 * 2.0**-24 * abs(gate.value * up.value)
    found = {"d": oracle.Answer(gate.value * up.value, slack, z.z, z.slack), "z": z, "z_up": up}
    return {name: found[name] for name in problem.spec.outputs}


def check(
    problem: Problem,
    arrays: dict[str, jax.Array],
    outputs: tuple[Any, ...],
    *,
    is_exact: bool = False,
    **roundoffs: float,
) -> None:
    """Raises unless every output is as near to its answer as its dtypes and roundoffs allow.

    With `is_exact` it must be the answer, rounded once.
    """
    found = answers(problem, arrays, **roundoffs)
    for (name, answer), output in zip(found.items(), outputs, strict=True):
        oracle.check(output, answer, problem.dtype(name))
        if is_exact:
            in_float32 = answer.value.astype(np.float32)
            np.testing.assert_array_equal(in_float32, answer.value, "float32 cannot hold it")
            once = in_float32.astype(problem.dtype(name))
            np.testing.assert_array_equal(np.asarray(output), once, f"{name} is not exact")


def run_over_nan(
    run: Callable[[Mapping[str, jax.Array]], tuple[jax.Array, ...]],
    problem: Problem,
    arrays: Mapping[str, jax.Array],
) -> tuple[jax.Array, ...]:
    """The outputs of a call, written to memory that holds NaN before.

    What is left unwritten is NaN then: outputs take the place of arguments that are given away.
    """
    outputs = problem.spec.outputs
    nan = tuple(jnp.full(problem.shape(n), jnp.nan, problem.dtype(n)) for n in outputs)
    places = sorted(x.unsafe_buffer_pointer() for x in nan if x.size)
    compiled = jax.jit(lambda _, x: run(x), donate_argnums=0, keep_unused=True)
    found = compiled(nan, arrays)
    assert sorted(x.unsafe_buffer_pointer() for x in found if x.size) == places
    return found


def num_changed(
    run: Callable[[Mapping[str, jax.Array]], jax.Array],
    arrays: Mapping[str, jax.Array],
    num_runs: int,
) -> int:
    """How many elements of so many results of a call have other bits than those of the first."""

    def bits(operands: Mapping[str, jax.Array]) -> jax.Array:
        d = run(operands)
        return jax.lax.bitcast_convert_type(d, f"uint{8 * d.dtype.itemsize}")

    @jax.jit
    def count_all(operands: Mapping[str, jax.Array]) -> jax.Array:
        first = bits(operands)

        def step(i: jax.Array, count: jax.Array) -> jax.Array:
            # What depends on the step cannot be moved out of the loop.
            operands_now, _ = jax.lax.optimization_barrier((operands, i))
            return count + jnp.sum(bits(operands_now) != first)

        return jax.lax.fori_loop(0, num_runs, step, jnp.int32(0))

    return int(count_all(arrays))


def check_every_config(
    kernel: Kernel,
    problem: Problem,
    arrays: dict[str, jax.Array],
    *,
    same_bits: bool = True,
    **options: Any,
) -> None:
    """Runs every config on the device that is there: all are right, and all give the same bits.

    They write every element: the memory of outputs is NaN at first.
    `options` are those of `check`.

    Without `same_bits`, for kernels whose configs add in different orders, each is only right.
    """
    first = None
    for config in kernel.configs(problem, device.current()):
        outputs = run_over_nan(lambda x, c=config: kernel.run(problem, c, x), problem, arrays)
        check(problem, arrays, outputs, **options)
        if not same_bits:
            continue
        # Every tile shape sums k in the same order. As bytes, NaN equals itself.
        bits = [np.asarray(x).view(np.uint8) for x in outputs]
        first = first or bits
        for x, y in zip(bits, first, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=str(config))
