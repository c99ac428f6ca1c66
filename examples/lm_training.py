"""The training of the language-model example: Adam, the step, the loop and its progress."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lm_data
import lm_model
import numpy as np
from jax.typing import DTypeLike
from lm_model import Params, Products, Sizes
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_BETA_MEAN, _BETA_SQUARE, _EPSILON = 0.9, 0.98, 1e-9
_CLIP_NORM = 1.0
_WARMUP = 0.05
_BALANCE_WEIGHT = 0.01
_REPORTS = 20


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a model is trained.

    Attributes:
      steps: updates.
      learning_rate: the highest; it warms up to this and falls to a tenth along a cosine.
      seed: of the parameters and the batches.
      dtype: what products are computed in; parameters are float32.
    """

    steps: int
    learning_rate: float
    seed: int
    dtype: DTypeLike


class State(NamedTuple):
    """What a step changes: parameters, Adam's two moments, and how many steps there were."""

    params: Params
    mean: Params
    square: Params
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class Run:
    """A training that is over.

    Attributes:
      params: what was learnt.
      losses: (steps,), nats a byte of each batch before its update.
      compile_s: seconds to compile a step.
      tokens_per_s: bytes trained on a second, without compilation.
    """

    params: Params
    losses: np.ndarray
    compile_s: float
    tokens_per_s: float


def start(sizes: Sizes, seed: int) -> State:
    """The state before the first step."""
    params = lm_model.init(sizes, seed)
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(params, zeros, jax.tree.map(jnp.copy, zeros), jnp.int32(0))


def gradient(
    products: Products, sizes: Sizes, dtype: DTypeLike
) -> Callable[[Params, jax.Array], tuple[jax.Array, Params]]:
    """The function (params, batch) → (loss, gradients of loss and balance)."""

    def objective(params: Params, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, imbalance = lm_model.loss(products, sizes, params, batch, dtype)
        return loss + _BALANCE_WEIGHT * imbalance, loss

    def loss_and_gradients(params: Params, batch: jax.Array) -> tuple[jax.Array, Params]:
        (_, loss), gradients = jax.value_and_grad(objective, has_aux=True)(params, batch)
        return loss, gradients

    return loss_and_gradients


def adam(state: State, gradients: Params, settings: Settings) -> State:
    """The state after one update; the gradients are scaled down to norm 1 if theirs is larger."""
    step = state.step + 1
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradients)))
    shrink = jnp.minimum(1, _CLIP_NORM / norm)
    gradients = jax.tree.map(lambda g: g * shrink, gradients)
    mean = jax.tree.map(lambda m, g: _BETA_MEAN * m + (1 - _BETA_MEAN) * g, state.mean, gradients)
    square = jax.tree.map(
        lambda s, g: _BETA_SQUARE * s + (1 - _BETA_SQUARE) * g * g, state.square, gradients
    )
    rate = _learning_rate(step, settings)

    def move(x: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        m, s = m / (1 - _BETA_MEAN**step), s / (1 - _BETA_SQUARE**step)
        return x - rate * m / (jnp.sqrt(s) + _EPSILON)

    return State(jax.tree.map(move, state.params, mean, square), mean, square, step)


def _learning_rate(step: jax.Array, settings: Settings) -> jax.Array:
    """A linear warm-up, then half a cosine down to a tenth."""
    done = step / settings.steps
    cosine = 0.55 + 0.45 * jnp.cos(jnp.pi * done)
    return settings.learning_rate * jnp.minimum(done / _WARMUP, 1) * cosine


def batch_shape(sizes: Sizes) -> jax.ShapeDtypeStruct:
    """What a batch looks like: a sequence and the byte after it, in every row."""
    return jax.ShapeDtypeStruct((sizes.batch_size, sizes.seq + 1), jnp.int32)


def train(products: Products, sizes: Sizes, settings: Settings, text: np.ndarray) -> Run:
    """Trains from the seed on random pieces of the text, and shows how it goes."""
    loss_and_gradients = gradient(products, sizes, settings.dtype)

    def step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
        loss, gradients = loss_and_gradients(state.params, batch)
        return adam(state, gradients, settings), loss

    state, begin = start(sizes, settings.seed), time.perf_counter()
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch_shape(sizes)).compile()
    compile_s = time.perf_counter() - begin

    batches = lm_data.batches(text, sizes.batch_size, sizes.seq, settings.seed)
    tokens, losses, begin = sizes.batch_size * sizes.seq, [], time.perf_counter()
    with _progress(products.name, settings.steps) as report:
        for done, batch in zip(range(1, settings.steps + 1), batches, strict=False):
            state, loss = compiled(state, batch)
            losses.append(loss)
            # Reading a loss keeps the host from running ahead, so not every one is read.
            if done % max(1, settings.steps // _REPORTS) == 0 or done == settings.steps:
                loss_now = float(loss)
                report(done, loss_now, done * tokens / (time.perf_counter() - begin))
    elapsed_s = time.perf_counter() - begin
    return Run(state.params, np.stack(losses), compile_s, settings.steps * tokens / elapsed_s)


@contextlib.contextmanager
def _progress(label: str, steps: int) -> Iterator[Callable[[int, float, float], None]]:
    """Yields report(steps done, loss, tokens/s): a bar on a terminal, a line a report elsewhere."""
    console = Console()
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=steps, status="")

        def report(done: int, loss: float, tokens_per_s: float) -> None:
            status = f"loss {loss:.3f}  {tokens_per_s:,.0f} tokens/s"
            bar.update(task, completed=done, status=status)
            if not console.is_terminal:
                print(f"{label}  {done}/{steps}  {status}", flush=True)

        yield report


def evaluate(
    products: Products, sizes: Sizes, dtype: DTypeLike, params: Params, text: np.ndarray
) -> float:
    """Mean nats a byte over a text, cut into windows."""
    loss = jax.jit(lambda params, batch: lm_model.loss(products, sizes, params, batch, dtype)[0])
    batches = lm_data.windows(text, sizes.batch_size, sizes.seq)
    return float(np.mean([loss(params, batch) for batch in batches]))


def sample(
    products: Products,
    sizes: Sizes,
    settings: Settings,
    params: Params,
    prompt: np.ndarray,
    count: int,
    temperature: float = 0.7,
) -> bytes:
    """`count` bytes that continue a prompt of (seq,) bytes; each is drawn from the last `seq`."""

    def extend(window: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        predicted, _ = lm_model.logits(products, sizes, params, window[None], settings.dtype)
        byte = jax.random.categorical(key, predicted[0, -1] / temperature)
        return jnp.append(window[1:], byte), byte

    keys = jax.random.split(jax.random.key(settings.seed), count)
    _, drawn = jax.jit(lambda window: jax.lax.scan(extend, window, keys))(jnp.asarray(prompt, int))
    return bytes(np.asarray(drawn, np.uint8))
