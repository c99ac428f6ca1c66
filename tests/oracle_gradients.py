"""Gradients in float64, and how far a computed one may lie from them.

With z̄ = act'(z) · d̄, every gradient is a product or a sum of z̄ and an operand, so its bound is that
of `oracle` for this product, plus what z̄ itself carries: z is saved rounded to the residual dtype
(an error of at most u |z| on top of that of the product), which act' turns into curvature · |d̄|
times as much, and z̄ is rounded to that dtype once more.
"""

import math
from typing import Any

import numpy as np

from jaxgemm import dtypes, epilogue
from jaxgemm.epilogue import Clamp
from tests import oracle
from tests.oracle import Answer, f64


def _sum_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """x summed over the axes that broadcasting to its shape added."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1), keepdims=True)


def _answer(
    value: np.ndarray, size: np.ndarray, carried: np.ndarray, shape: tuple[int, ...], unit: float
) -> Answer:
    """A gradient that sums `value`'s terms: `size` in magnitude, with errors `carried` already."""
    terms = max(1, value.size // max(1, math.prod(shape)))
    total, magnitude, slack = (_sum_to(x, shape) for x in (value, size, carried))
    slack = slack + 4 * math.sqrt(terms) * unit * magnitude
    return Answer(total, slack, total, slack)


def preactivation_cotangent(
    answer: Answer,
    cotangent: np.ndarray,
    activation: str | None,
    residual: Any,
    unit: float,
    clamp: Clamp | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """z̄ and the bound on its error."""
    if activation is None and clamp is None:
        return cotangent, np.zeros_like(cotangent)
    z_bar = cotangent * oracle.ACTIVATIONS[activation][1](answer.z)
    u = oracle.roundoff(residual)
    z_error = u * np.abs(answer.z) + answer.z_slack
    curvature = epilogue.ACTIVATIONS[activation].curvature if activation else 0.0
    if activation == "relu":
        # The derivative jumps at 0: an element whose z may have either sign may be either.
        undecided = np.abs(answer.z) <= z_error
        error = np.abs(cotangent) * undecided
    else:
        error = np.abs(cotangent) * curvature * z_error
    inner, inner_error = oracle.activated(activation, answer.z, z_error, unit)
    if clamp is not None:
        z_bar = z_bar * (oracle.clip(inner, clamp) == inner)
    for bound in clamp or ():
        if bound is not None:
            # It jumps at the bounds of a clamp, too.
            undecided = np.abs(inner - bound) <= inner_error
            error = error + np.abs(cotangent) * oracle.slope(activation, answer.z) * undecided
    # act' itself is evaluated in the accumulator, to a few units of its largest value.
    error = error + 16 * unit * np.abs(cotangent) * oracle.slope(activation, answer.z)
    return z_bar, error + (1.01 * u) * (np.abs(z_bar) + error)


def gemm(
    operands: dict[str, Any],
    cotangent: Any,
    options: dict[str, Any],
    residual: Any,
) -> dict[str, Answer]:
    """Gradients for every operand, alpha and beta of a call whose operands are given by name."""
    a, b, c, bias = (operands.get(name) for name in ("a", "b", "c", "bias"))
    forward = oracle.gemm(a, b, c, bias=bias, **options)
    unit = oracle.accumulator_roundoff(a, b)
    z_bar, error = preactivation_cotangent(
        forward, f64(cotangent), options["activation"], residual, unit, options["clamp"]
    )
    alpha, beta = float(options["alpha"]), options["beta"]
    left, right = f64(a), f64(b)
    left = left.swapaxes(-1, -2) if options["transpose_a"] else left
    right = right.swapaxes(-1, -2) if options["transpose_b"] else right

    def product(x: np.ndarray, y: np.ndarray, of: Any, transposed: bool, k: int) -> Answer:
        """x·y for an operand, where x or y is z̄; k terms in each element."""
        x_size, y_size = (np.abs(v) for v in (x, y))
        x_error = error if x is z_bar else error.swapaxes(-1, -2) if y is not z_bar else None
        carried = x_error @ y_size if x_error is not None else x_size @ error
        terms = k * max(1, math.prod((x @ y).shape) // max(1, math.prod(of.shape)))
        parts = [abs(alpha) * v for v in (x_size @ y_size, carried)]
        value = alpha * (x @ y)
        shape = (*of.shape[:-2], *value.shape[-2:])
        value, size, carried = (_sum_to(v, shape) for v in (value, *parts))
        slack = carried + 4 * math.sqrt(max(1, terms)) * unit * size
        value, slack = (v.swapaxes(-1, -2) if transposed else v for v in (value, slack))
        return Answer(value, slack, value, slack)

    m, n = z_bar.shape[-2:]
    results = {
        "a": product(z_bar, right.swapaxes(-1, -2), a, options["transpose_a"], n),
        "b": product(left.swapaxes(-1, -2), z_bar, b, options["transpose_b"], m),
    }
    if bias is not None:
        results["bias"] = _answer(z_bar, np.abs(z_bar), error, bias.shape, unit)
    plain = oracle.gemm(
        a, b, transpose_a=options["transpose_a"], transpose_b=options["transpose_b"]
    )
    carried = error * np.abs(plain.value) + (np.abs(z_bar) + error) * plain.slack
    results["alpha"] = _answer(z_bar * plain.value, np.abs(z_bar * plain.value), carried, (), unit)
    if c is not None:
        scale = 1.0 if beta is None else float(beta)
        size, moved = np.abs(scale * z_bar), np.abs(scale) * error
        results["c"] = _answer(scale * z_bar, size, moved, c.shape, unit)
        full = np.broadcast_to(f64(c), z_bar.shape)
        results["beta"] = _answer(
            z_bar * full, np.abs(z_bar * full), error * np.abs(full), (), unit
        )
    return results


def grouped(
    operands: dict[str, Any], cotangent: Any, options: dict[str, Any], residual: Any
) -> dict[str, Answer]:
    """Gradients for lhs, rhs and bias, group by group; rows of no group get zero."""
    lhs, rhs, sizes = operands["lhs"], operands["rhs"], operands["group_sizes"]
    names = [name for name in ("lhs", "rhs", "bias") if name in operands]
    results = {name: Answer(*(np.zeros(operands[name].shape) for _ in range(4))) for name in names}
    for g, rows in enumerate(oracle.group_rows(sizes, lhs.shape[0])):
        part = {"a": lhs[rows], "b": rhs[g]}
        if "bias" in operands:
            part["bias"] = operands["bias"][g]
        gradients = gemm(
            part,
            np.asarray(cotangent, np.float64)[rows],
            {
                "alpha": 1,
                "beta": None,
                "activation": options["activation"],
                "clamp": options["clamp"],
                "transpose_a": False,
                "transpose_b": options["transpose_rhs"],
            },
            residual,
        )
        for name, source, where in (("lhs", "a", rows), ("rhs", "b", g), ("bias", "bias", g)):
            if name in results:
                results[name].value[where] = gradients[source].value
                results[name].slack[where] = gradients[source].slack
    return results


def residual_of(a: Any, b: Any, out: Any) -> np.dtype:
    """The dtype that jaxgemm documents for saved pre-activations."""
    return dtypes.residual(a.dtype, b.dtype, np.dtype(out))
