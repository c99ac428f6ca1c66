"""Layers as a training step has them: forward, loss and every gradient, in jaxgemm and in jnp."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxgemm

Arrays = dict[str, jax.Array]
Layer = Callable[[Arrays], jax.Array]


@dataclasses.dataclass(frozen=True)
class Step:
    """A layer and its sizes.

    Attributes:
      name: of the row.
      shapes: array → shape; "x" is the input, the others are weights.
      ours: the layer with jaxgemm.
      theirs: the layer as users write it with jnp.
      flops: of the forward products.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    ours: Layer
    theirs: Layer
    flops: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Tokens, width of the first weight's result, width of the input."""
        first = next(shape for name, shape in self.shapes.items() if name != "x")
        return self.shapes["x"][0], first[1], first[0]


def gradients(layer: Layer) -> Callable[[Arrays], Arrays]:
    """The gradient of a loss for every array but the cotangent "d_bar" of the layer's result."""

    def loss(arrays: Arrays, d_bar: jax.Array) -> jax.Array:
        return jnp.vdot(layer(arrays).astype(jnp.float32), d_bar.astype(jnp.float32))

    def step(x: Arrays) -> Arrays:
        arrays = {name: value for name, value in x.items() if name != "d_bar"}
        return jax.grad(loss)(arrays, x["d_bar"])

    return step


def mlp(tokens: int, width: int, hidden: int) -> Step:
    """x + gelu(x·w1 + v1)·w2: two products with bias, activation and residual."""

    def ours(x: Arrays) -> jax.Array:
        h = jaxgemm.gemm(x["x"], x["w1"], bias=x["v1"], activation="gelu")
        return jaxgemm.gemm(h, x["w2"], x["x"])

    def theirs(x: Arrays) -> jax.Array:
        h = jax.nn.gelu(jnp.dot(x["x"], x["w1"]) + x["v1"])
        return x["x"] + jnp.dot(h, x["w2"])

    shapes = {"x": (tokens, width), "w1": (width, hidden), "v1": (hidden,), "w2": (hidden, width)}
    return Step("mlp", shapes, ours, theirs, 4 * tokens * width * hidden)


def mlp_as_one(tokens: int, width: int, hidden: int) -> Step:
    """The same by `jaxgemm.mlp`, whose backward pass is fused; XLA adds the residual."""

    def ours(x: Arrays) -> jax.Array:
        return x["x"] + jaxgemm.mlp(x["x"], x["w1"], x["w2"], bias_up=x["v1"])

    return dataclasses.replace(mlp(tokens, width, hidden), name="mlp_as_one", ours=ours)


def swiglu(tokens: int, width: int, hidden: int) -> Step:
    """x + (silu(x·wg) · (x·wu))·w2."""

    def ours(x: Arrays) -> jax.Array:
        h = jaxgemm.gated_gemm(x["x"], x["wg"], x["wu"])
        return jaxgemm.gemm(h, x["w2"], x["x"])

    def theirs(x: Arrays) -> jax.Array:
        h = jax.nn.silu(jnp.dot(x["x"], x["wg"])) * jnp.dot(x["x"], x["wu"])
        return x["x"] + jnp.dot(h, x["w2"])

    shapes = {
        "x": (tokens, width),
        "wg": (width, hidden),
        "wu": (width, hidden),
        "w2": (hidden, width),
    }
    return Step("swiglu", shapes, ours, theirs, 6 * tokens * width * hidden)


def attention(tokens: int, width: int, kv_width: int) -> Step:
    """The products around attention: q, k and v in one weight, then the output projection."""
    qkv = width + 2 * kv_width

    def ours(x: Arrays) -> jax.Array:
        h = jaxgemm.gemm(x["x"], x["w_qkv"], bias=x["v_qkv"])
        return jaxgemm.gemm(h[:, :width], x["w_o"], x["x"])

    def theirs(x: Arrays) -> jax.Array:
        h = jnp.dot(x["x"], x["w_qkv"]) + x["v_qkv"]
        return x["x"] + jnp.dot(h[:, :width], x["w_o"])

    shapes = {
        "x": (tokens, width),
        "w_qkv": (width, qkv),
        "v_qkv": (qkv,),
        "w_o": (width, width),
    }
    return Step("attention", shapes, ours, theirs, 2 * tokens * width * (qkv + width))


def error(got: Arrays, exact: Arrays) -> float:
    """The largest ‖got − exact‖ / ‖exact‖ among gradients; NaN is infinite."""
    worst = 0.0
    for name, want in exact.items():
        difference = jnp.linalg.norm(got[name].astype(want.dtype) - want)
        relative = float(difference / jnp.maximum(jnp.linalg.norm(want), 1e-30))
        worst = max(worst, relative if math.isfinite(relative) else math.inf)
    return worst


def exact(step: Step, operands: Arrays) -> Arrays:
    """The gradients in float32 at full precision."""
    wide = {name: x.astype(jnp.float32) for name, x in operands.items()}
    with jax.default_matmul_precision("highest"):
        return jax.jit(gradients(step.theirs))(wide)


def avals(step: Step, dtype: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Its arrays and the cotangent of its result."""
    shapes = {**step.shapes, "d_bar": step.shapes["x"]}
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
