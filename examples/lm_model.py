"""A decoder-only byte transformer; every matrix product is an entry of a table of functions.

A block is two layers: attention and a dense SwiGLU, then attention and a mixture of experts. The
table, `Products`, is all that differs between the model on jaxgemm and the one on plain JAX.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from lm_data import VOCABULARY

import jaxgemm

Params = dict[str, Any]
_ROTARY_BASE = 10_000.0
_NORM_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the model's shapes follow from.

    Attributes:
      d_model: width of the residual stream.
      num_layers: even; every second one is a mixture of experts.
      num_heads: attention heads; d_model / num_heads is the width of one.
      d_ff: hidden width of a dense layer.
      num_experts: experts of a mixture.
      top_k: experts that each byte goes to.
      d_expert: hidden width of an expert.
      seq: bytes of context.
      batch_size: sequences in a step.
    """

    d_model: int = 128
    num_layers: int = 2
    num_heads: int = 2
    d_ff: int = 384
    num_experts: int = 8
    top_k: int = 2
    d_expert: int = 128
    seq: int = 128
    batch_size: int = 8

    def __post_init__(self) -> None:
        if self.num_layers % 2:
            raise ValueError(f"num_layers = {self.num_layers}: a block is two layers; make it even")
        if self.d_model % (2 * self.num_heads):
            raise ValueError(
                f"d_model = {self.d_model}: {self.num_heads} heads, each of an even width, should"
                " divide it"
            )
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k = {self.top_k}: there are {self.num_experts} experts only")


@dataclasses.dataclass(frozen=True)
class Products:
    """The matrix products of the model.

    Attributes:
      name: what reports call it.
      gemm: (a, b, c=None, *, alpha=1, transpose_b=False) → alpha · a·b + c.
      gated: (x, w_gate, w_up) → silu(x·w_gate) · (x·w_up).
      grouped: (lhs, rhs, group_sizes, *, activation=None) → act(rows of group g · rhs[g]).
      saveable: the checkpoint policy that keeps such products, those with a batch axis excepted.
    """

    name: str
    gemm: Callable[..., jax.Array]
    gated: Callable[..., jax.Array]
    grouped: Callable[..., jax.Array]
    saveable: Callable[..., Any]


def _plain_gemm(
    a: jax.Array,
    b: jax.Array,
    c: jax.Array | None = None,
    *,
    alpha: float = 1,
    transpose_b: bool = False,
) -> jax.Array:
    product = alpha * jnp.matmul(a, b.mT if transpose_b else b)
    return product if c is None else product + c


def _plain_gated(x: jax.Array, w_gate: jax.Array, w_up: jax.Array) -> jax.Array:
    return jax.nn.silu(jnp.dot(x, w_gate)) * jnp.dot(x, w_up)


def _plain_grouped(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, *, activation: str | None = None
) -> jax.Array:
    product = lax.ragged_dot(lhs, rhs, group_sizes)
    return getattr(jax.nn, activation)(product) if activation else product


JAXGEMM = Products(
    "jaxgemm",
    jaxgemm.gemm,
    jaxgemm.gated_gemm,
    jaxgemm.grouped_gemm,
    jaxgemm.checkpoint_dots_with_no_batch_dims,
)
# JAX's policy does not count ragged_dot as a dot: the backward pass computes it once more, which is
# part of the difference in speed.
BASELINE = Products(
    "baseline",
    _plain_gemm,
    _plain_gated,
    _plain_grouped,
    jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
)


def init(sizes: Sizes, seed: int) -> Params:
    """float32 parameters; those of blocks are stacked, so that a scan can walk over them."""
    d, num_blocks = sizes.d_model, sizes.num_layers // 2
    # Each layer adds twice to the residual stream; all together they about double its variance.
    into_stream = (2 * sizes.num_layers) ** -0.5
    keys = iter(jax.random.split(jax.random.key(seed), 16))

    def weight(*shape: int, scale: float = 1.0) -> jax.Array:
        """Normal, of variance scale² / fan-in: (blocks, …, fan-in, fan-out)."""
        return scale * shape[-2] ** -0.5 * jax.random.normal(next(keys), (num_blocks, *shape))

    def attention() -> Params:
        return {
            "norm_attention": jnp.ones((num_blocks, d)),
            "w_qkv": weight(d, 3 * d),
            "w_out": weight(d, d, scale=into_stream),
            "norm_ff": jnp.ones((num_blocks, d)),
        }

    dense = attention() | {
        "w_gate": weight(d, sizes.d_ff),
        "w_up": weight(d, sizes.d_ff),
        "w_down": weight(sizes.d_ff, d, scale=into_stream),
    }
    experts = attention() | {
        "w_router": weight(d, sizes.num_experts),
        "w_expert_in": weight(sizes.num_experts, d, sizes.d_expert),
        "w_expert_out": weight(sizes.num_experts, sizes.d_expert, d, scale=into_stream),
    }
    embedding = d**-0.5 * jax.random.normal(next(keys), (VOCABULARY, d))
    return {
        "embedding": embedding,
        "norm": jnp.ones(d),
        "blocks": {"dense": dense, "experts": experts},
    }


def _norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """Root-mean-square norm over the last axis, computed in float32."""
    x32 = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + _NORM_EPSILON)
    return (x32 * scale * gain).astype(x.dtype)


def _rotate(x: jax.Array) -> jax.Array:
    """Rotary positions: each pair of features turned by an angle that grows with the position."""
    seq, half = x.shape[-2], x.shape[-1] // 2
    rates = _ROTARY_BASE ** (-jnp.arange(half) / half)
    angle = jnp.arange(seq)[:, None] * rates  # (seq, half)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x0, x1 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x0 * cos - x1 * sin, x1 * cos + x0 * sin], -1).astype(x.dtype)


def _attend(products: Products, sizes: Sizes, params: Params, x: jax.Array) -> jax.Array:
    """x plus causal self-attention of its norm."""
    batch, seq, d = x.shape
    qkv = products.gemm(_norm(x, params["norm_attention"]), params["w_qkv"])
    qkv = qkv.reshape(batch, seq, 3, sizes.num_heads, d // sizes.num_heads)
    q, k, v = jnp.transpose(qkv, (2, 0, 3, 1, 4))  # each (batch, heads, seq, head)
    scores = products.gemm(_rotate(q), _rotate(k), transpose_b=True, alpha=q.shape[-1] ** -0.5)
    causal = jnp.tril(jnp.ones((seq, seq), bool))
    scores = jnp.where(causal, scores.astype(jnp.float32), -jnp.inf)
    mixed = products.gemm(jax.nn.softmax(scores).astype(x.dtype), v)
    mixed = jnp.swapaxes(mixed, 1, 2).reshape(batch, seq, d)
    return products.gemm(mixed, params["w_out"], x)


def _dense_layer(products: Products, sizes: Sizes, params: Params, x: jax.Array) -> jax.Array:
    x = _attend(products, sizes, params, x)
    hidden = products.gated(_norm(x, params["norm_ff"]), params["w_gate"], params["w_up"])
    return products.gemm(hidden, params["w_down"], x)


def _expert_layer(
    products: Products, sizes: Sizes, params: Params, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x = _attend(products, sizes, params, x)
    rows = _norm(x, params["norm_ff"]).reshape(-1, sizes.d_model)
    mixed, imbalance = _mix_experts(products, sizes, params, rows)
    return x + mixed.reshape(x.shape), imbalance


def _mix_experts(
    products: Products, sizes: Sizes, params: Params, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The experts that each row of x chooses, weighted; and how unevenly they are chosen.

    Sorted by expert, the rows of each are contiguous, which is what a grouped product takes. How
    many there are is known on the device only, and only there is it needed.
    """
    router = products.gemm(x, params["w_router"]).astype(jnp.float32)
    probability = jax.nn.softmax(router)  # (rows, experts)
    gates, chosen = lax.top_k(probability, sizes.top_k)  # (rows, top_k)
    gates = gates / gates.sum(-1, keepdims=True)
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    group_sizes = jnp.bincount(chosen.reshape(-1), length=sizes.num_experts)

    by_expert = x[order // sizes.top_k]  # (rows · top_k, d_model)
    hidden = products.grouped(by_expert, params["w_expert_in"], group_sizes, activation="silu")
    answers = products.grouped(hidden, params["w_expert_out"], group_sizes)
    answers = answers[jnp.argsort(order)].reshape(*gates.shape, -1)  # (rows, top_k, d_model)
    mixed = (gates[..., None] * answers).sum(1).astype(x.dtype)

    # 1 when rows are spread evenly, num_experts when one expert gets them all.
    load = group_sizes / order.size
    return mixed, sizes.num_experts * (load * probability.mean(0)).sum()


def logits(
    products: Products, sizes: Sizes, params: Params, tokens: jax.Array, dtype: DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """What comes after each byte.

    Args:
      products: the table to compute with.
      sizes: of the model.
      params: as `init` made them.
      tokens: (batch, seq) integers.
      dtype: what products are computed in.

    Returns:
      (batch, seq, 256) of float32, and the mean imbalance of the mixtures.
    """
    params = jax.tree.map(lambda x: x.astype(dtype), params)

    def remat(layer: Callable[..., Any]) -> Callable[..., Any]:
        # Inside a scan nothing can be merged with the recomputation, so nothing need prevent it.
        layer = functools.partial(layer, products, sizes)
        return jax.checkpoint(layer, policy=products.saveable, prevent_cse=False)

    def block(x: jax.Array, block_params: Params) -> tuple[jax.Array, jax.Array]:
        x = remat(_dense_layer)(block_params["dense"], x)
        return remat(_expert_layer)(block_params["experts"], x)

    # One matrix embeds and unembeds: of unit rows on the way out, of unit variance on the way in.
    x = params["embedding"][tokens] * jnp.asarray(sizes.d_model**0.5, dtype)
    x, imbalance = lax.scan(block, x, params["blocks"])
    predicted = products.gemm(_norm(x, params["norm"]), params["embedding"], transpose_b=True)
    return predicted.astype(jnp.float32), imbalance.mean()


def loss(
    products: Products, sizes: Sizes, params: Params, batch: jax.Array, dtype: DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """Mean nats a byte of (batch, seq + 1) given those before it; and the mean imbalance."""
    predicted, imbalance = logits(products, sizes, params, batch[:, :-1], dtype)
    targets = batch[:, 1:, None]
    return -jnp.take_along_axis(jax.nn.log_softmax(predicted), targets, -1).mean(), imbalance
