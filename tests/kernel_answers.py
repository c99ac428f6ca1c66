"""The float64 answer of a dense `Problem`, label by label, and the check against it."""

import math
from typing import Any

import jax
import numpy as np

from jaxgemm.problem import Problem
from tests import oracle


def answers(problem: Problem, arrays: dict[str, jax.Array]) -> dict[str, oracle.Answer]:
    """The answer of every output, with all labels of d; operands are multiplied as stored."""
    spec = problem.spec
    labels = spec.labels("d")

    def get(name: str, target: tuple[str, ...] = labels) -> np.ndarray:
        own, x = spec.labels(name), oracle.f64(arrays[name])
        x = x.transpose(sorted(range(x.ndim), key=lambda axis: target.index(own[axis])))
        return np.expand_dims(x, tuple(i for i, label in enumerate(target) if label not in own))

    a, b = get("a", (*labels[:-1], "k")), get("b", (*labels[:-2], "k", "n"))
    z, size = a @ b, abs(a) @ abs(b)
    if problem.has("alpha"):
        z, size = get("alpha") * z, abs(get("alpha")) * size
    if problem.has("c"):
        beta = get("beta") if problem.has("beta") else np.ones(())
        c = np.where(beta == 0, 0, beta * get("c"))
        z, size = z + c, size + abs(c)
    if problem.has("bias"):
        z, size = z + get("bias"), size + abs(get("bias"))
    z = np.broadcast_to(z, problem.shape("d"))
    slack = np.broadcast_to(4 * math.sqrt(max(1, problem.k)) * 2.0**-24 * size, z.shape)
    d = oracle.ACTIVATIONS[spec.activation][0](z)
    slope = oracle.slope(spec.activation, z[np.isfinite(z)])
    # As in oracle.py: exp and tanh are good to two units in the last place.
    curved = spec.activation not in (None, "relu", "relu2")
    d_slack = slope * slack + (4 * 2.0**-24 * np.abs(d) if curved else 0.0)
    found = {
        "d": oracle.Answer(d, d_slack, z, slack),
        "z": oracle.Answer(z, slack, z, slack),
    }
    return {name: found[name] for name in spec.outputs}


def check(problem: Problem, arrays: dict[str, jax.Array], outputs: tuple[Any, ...]) -> None:
    """Raises unless every output is as near to its answer as its dtypes allow."""
    for (name, answer), output in zip(answers(problem, arrays).items(), outputs, strict=True):
        oracle.check(output, answer, problem.dtype(name))
