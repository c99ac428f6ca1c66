"""A row of the manifest as a `Problem`, its operands, and its call of jaxgemm."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from benchmarks import groups
from benchmarks.manifest import Row
from jaxgemm import dtypes
from jaxgemm.policy import Policy
from jaxgemm.primitive import bind
from jaxgemm.problem import Problem
from jaxgemm.spec import OPERAND_ORDER, GemmSpec
from jaxgemm.tuning import timing

Operands = Mapping[str, jax.Array]
# Gives d, or a tuple of all outputs where there are others.
Function = Callable[[Operands], Any]

_GATED = {"swiglu": "silu", "geglu": "gelu"}
_ACTIVATIONS = ("relu", "gelu", "silu")
# Steps back through an activation: the product is multiplied by its slope at z.
_SLOPES = {f"d{activation}": activation for activation in _ACTIVATIONS}
# The sum of the rows of d, an output of its own.
_SUM = "dbias"
# These say what c is for.
C_PARTS = ("residual", "accumulate")
_EPILOGUE_PARTS = {"none", "bias", *_ACTIVATIONS, *_GATED, *_SLOPES, _SUM, *C_PARTS}


class Unsupported(Exception):  # noqa: N818  (not an error: the row is reported with this reason)
    """The row asks for what no call of jaxgemm means."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What a row means.

    Attributes:
      row: it.
      problem: what the gate and the counts of operations and bytes refer to.
      activation: its name, or None.
      sizes: rows of each group, None where there are no groups.
    """

    row: Row
    problem: Problem
    activation: str | None
    sizes: np.ndarray | None

    @property
    def interleaved(self) -> bool:
        """Whether a and d have their batch axis between their rows and columns."""
        return self.row.layout == "row+batch_interleaved"

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The operands whose gradients a training step asks for; none of a step back."""
        if self.is_backward:
            return ()
        names = [n for n in ("a", "b", "b_up", "bias") if self.problem.has(n)]
        return tuple(n for n in names if jnp.issubdtype(self.problem.dtype(n), jnp.floating))

    @property
    def is_backward(self) -> bool:
        """Whether the row is part of a backward pass, with an epilogue that only these have."""
        return self.problem.spec.pullback or self.problem.spec.sum_dtype is not None

    @property
    def flops(self) -> int:
        """Useful multiplies and adds of the forward product."""
        used = 1.0 if self.sizes is None else self.sizes.sum() / max(1, self._ragged_size)
        return int(self.problem.flops * used)

    @property
    def _ragged_size(self) -> int:
        return self.problem.m if self.problem.spec.ragged == "m" else self.problem.k

    def total_flops(self, mode: str) -> int:
        """Useful multiplies and adds: each gradient of a matrix is one more product."""
        products = {"forward": 1, "vjp": 2, "forward_and_vjp": 3}[mode]
        return products * self.flops

    def total_bytes(self, mode: str) -> int:
        """Bytes that must be moved: every argument read once, every result written once.

        Weights of empty groups are not read.
        """
        problem = self.problem
        names = (*problem.spec.operands, *problem.spec.outputs)
        sizes = {n: problem.bytes_of(n) for n in names}
        if self.sizes is not None and problem.spec.ragged == "m":
            sizes["b"] = sizes["b"] * int((self.sizes > 0).sum()) // max(1, len(self.sizes))
        gradients = sum(sizes[name] for name in self.differentiable)
        forward = sum(sizes.values())
        backward = forward + gradients
        return {
            "forward": forward,
            "vjp": backward,
            "forward_and_vjp": forward + gradients + sizes["d"],
        }[mode]

    def avals(self, mode: str) -> dict[str, jax.ShapeDtypeStruct]:
        """The operands, and the cotangent "d_bar" where there is a gradient."""
        names = (*self.problem.spec.operands, *(("d",) if mode != "forward" else ()))
        return {
            "d_bar" if name == "d" else name: jax.ShapeDtypeStruct(
                self.problem.shape(name), self.problem.dtype(name)
            )
            for name in names
        }

    def inputs(self, mode: str) -> list[dict[str, jax.Array]]:
        """Random operand sets, larger in all than twice the last-level cache."""
        fixed: dict[str, Any] = {} if self.sizes is None else {"group_sizes": self.sizes}
        for name, value in (("alpha", self._alpha), ("beta", self.row.beta)):
            if self.problem.has(name):
                fixed[name] = np.asarray(value, self.problem.accumulator)
        return timing.inputs(
            self.avals(mode), total_bytes=timing.rotation_bytes(), scale=self.scale, fixed=fixed
        )

    @property
    def scale(self) -> dict[str, float]:
        """Standard deviations that keep results near 1; 8-bit operands keep theirs."""
        if self.problem.dtype("b").itemsize == 1:
            return {}
        size = 1 / math.sqrt(max(1, self.problem.k))
        return {name: size for name in ("b", "b_up") if self.problem.has(name)}

    @property
    def _alpha(self) -> float:
        """A factor for the whole tensor stands for the product of both operands' scales."""
        if self.row.scaling == "tensor":
            return self.row.alpha / math.sqrt(max(1, self.problem.k))
        return self.row.alpha


def of(row: Row) -> Case:
    """The case of a row.

    Raises:
      Unsupported: with the reason that is reported.
    """
    _check(row)
    parts = row.epilogue.split("+")
    gated = next((_GATED[part] for part in parts if part in _GATED), None)
    slope = next((_SLOPES[part] for part in parts if part in _SLOPES), None)
    plain = next((part for part in parts if part in _ACTIVATIONS), None)
    activation = gated or slope or plain
    present = {
        "a": True,
        "b": True,
        "b_up": gated is not None,
        "c": row.beta != 0,
        "bias": "bias" in parts,
        "z": slope is not None,
        "alpha": row.alpha != 1 or row.scaling == "tensor",
        "beta": row.beta not in (0, 1),
        "group_sizes": row.groups > 0,
    }
    ragged = {"ragged_m": "m", "ragged_k": "k"}.get(row.layout)
    operands = tuple(name for name in OPERAND_ORDER if present.get(name))
    out = jnp.dtype(row.out_dtype)
    spec = GemmSpec(
        operands=operands,
        a_contract=0 if row.trans_a else 1,
        b_contract=1 if row.trans_b else 0,
        out_dtype=out,
        residual_dtype=out,
        precision="default" if row.compute_dtype == "tfloat32" else "highest",
        ragged=ragged,  # pyright: ignore[reportArgumentType]
        batch=_batch(row, operands),
        inside=(("a", "d"),) if row.layout == "row+batch_interleaved" else (),
        activation=activation,
        sum_dtype=out if _SUM in parts else None,
    )
    sizes = None
    if ragged:
        total = row.m if ragged == "m" else row.k
        sizes = groups.sizes(row.distribution, total, row.groups)
    problem = _problem(row, spec, gated=gated is not None)
    spec = spec.replace(residual_dtype=dtypes.residual(problem.dtype("a"), problem.dtype("b"), out))
    return Case(row, dataclasses.replace(problem, spec=spec), activation, sizes)


def check_epilogue(text: str) -> None:
    """Raises ValueError unless an epilogue is made of parts that some operation has, each once."""
    parts = text.split("+")
    if unknown := _unknown(parts):
        known = sorted(_EPILOGUE_PARTS)
        raise ValueError(f"epilogue: {unknown} should be among {known}, joined by '+'")
    functions = [part for part in parts if part in (*_ACTIVATIONS, *_GATED, *_SLOPES)]
    if len(functions) > 1 or len(set(parts)) < len(parts):
        raise ValueError(f"epilogue: {text!r} should have each part, and an activation, once")


def _unknown(parts: list[str]) -> list[str]:
    return [part for part in parts if part not in _EPILOGUE_PARTS]


def _check(row: Row) -> None:
    if unknown := _unknown(row.epilogue.split("+")):
        raise Unsupported(f"epilogue {' and '.join(unknown)}: no operation of jaxgemm has it")
    if row.layout == "masked_m":
        raise Unsupported("groups padded to equal height: grouped_gemm takes rows without gaps")
    if row.scaling not in ("", "tensor"):
        raise Unsupported(f"scales of {row.scaling}: no operation of jaxgemm takes them yet")
    if row.scaling and "gelu" in row.epilogue and row.out_dtype.startswith("float8"):
        raise Unsupported("a scale after the activation: alpha comes before it")
    if "int4" in (row.a_dtype, row.b_dtype):
        raise Unsupported("int4 operands: no operation of jaxgemm takes them")
    if row.a_dtype.startswith("int") != row.b_dtype.startswith("int"):
        raise Unsupported(f"{row.a_dtype} times {row.b_dtype}: both should be floats or integers")
    if row.groups and (row.epilogue.split("+")[0] in _GATED):
        raise Unsupported("groups with a gated epilogue: gated_gemm takes no groups")
    if row.groups and {*row.epilogue.split("+")} & {*_SLOPES, _SUM}:
        raise Unsupported("groups with a step back: grouped_gemm has no such epilogue")
    if row.groups and row.beta:
        raise Unsupported("groups with c: grouped_gemm does not accumulate")


def _batch(row: Row, operands: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    if row.batch == 1:
        return ()
    shared = {"bias", "alpha", "beta", *(("b", "b_up") if row.layout == "row+bcast_b" else ())}
    return (tuple(sorted({*operands, "d"} - shared)),)


def _problem(row: Row, spec: GemmSpec, *, gated: bool) -> Problem:
    size = {"m": row.m, "n": row.n // 2 if gated else row.n, "k": row.k}
    size |= {"b0": row.batch} if row.batch > 1 else {}
    size |= {"g": row.groups} if row.groups else {}
    kinds = {"a": row.a_dtype, "b": row.b_dtype, "b_up": row.b_dtype, "group_sizes": "int32"}
    acc = "int32" if row.a_dtype == "int8" else row.compute_dtype.replace("tfloat", "float")
    kinds |= {"alpha": acc, "beta": acc}
    kinds |= dict.fromkeys(("bias", "c", "z"), row.out_dtype)
    arrays = [
        jax.ShapeDtypeStruct(tuple(size[label] for label in spec.labels(name)), kinds[name])
        for name in spec.operands
    ]
    return Problem.of(spec, arrays)


def call(case: Case, backend: str = "auto") -> Function:
    """The call of jaxgemm's public operation that the row means, or of what its gradient calls."""
    row, spec = case.row, case.problem.spec
    options: dict[str, Any] = {
        "out_dtype": row.out_dtype,
        "precision": spec.precision,
        "backend": backend,
    }
    if spec.ragged == "k":
        return lambda x: _weight_gradient(case, x, options)
    if spec.ragged == "m":
        options |= {"activation": case.activation, "transpose_rhs": row.trans_b}
        return lambda x: jaxgemm.grouped_gemm(
            x["a"], x["b"], x["group_sizes"], bias=x.get("bias"), **options
        )
    if case.is_backward:
        policy = Policy(backend=backend)
        return lambda x: bind(spec, policy, tuple(x[name] for name in spec.operands))
    options |= {"activation": case.activation}
    if spec.gated:
        return lambda x: jaxgemm.gated_gemm(
            x["a"], x["b"], x["b_up"], transpose_w=row.trans_b, **options
        )

    def dense(x: Operands) -> jax.Array:
        optional: dict[str, Any] = {
            name: x[name] for name in ("alpha", "beta", "bias") if name in x
        }
        return jaxgemm.gemm(
            x["a"],
            x["b"],
            x.get("c"),
            transpose_a=row.trans_a,
            transpose_b=row.trans_b,
            **optional,
            **options,
        )

    if not case.interleaved:
        return dense
    return lambda x: jax.vmap(lambda a, b: dense({"a": a, "b": b}), (1, 0), 1)(x["a"], x["b"])


def _weight_gradient(case: Case, x: Operands, options: dict[str, Any]) -> jax.Array:
    """What grouped_gemm's backward pass computes for its weights; nothing of its forward pass."""
    lhs = x["a"] if case.row.trans_a else x["a"].T
    weights = jnp.zeros(case.problem.shape("d"), case.problem.dtype("d"))
    _, pull = jax.vjp(lambda w: jaxgemm.grouped_gemm(lhs, w, x["group_sizes"], **options), weights)
    return pull(x["b"])[0]
