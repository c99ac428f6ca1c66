"""What holds for every mapped call: random nestings of vmap against loops.

An operand has, for every level from the outermost in, the axis along which it is mapped, or None.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import jaxgemm
from tests import oracle


@dataclasses.dataclass(frozen=True)
class Mapped:
    """Nested vmaps of a call.

    Attributes:
      batch: the size of each level, outermost first.
      axes: operand → its axis at each level.
      out_axes: the axis of the result at each level.
    """

    batch: tuple[int, ...]
    axes: dict[str, tuple[int | None, ...]]
    out_axes: tuple[int, ...]

    def shape(self, name: str, core: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an operand whose shape is `core` in one call."""
        for size, axis in zip(reversed(self.batch), reversed(self.axes[name]), strict=True):
            if axis is not None:
                core = (*core[:axis], size, *core[axis:])
        return core

    def apply(self, function: Callable[..., Any], operands: dict[str, Any]) -> Any:
        """The mapped call."""
        names = tuple(operands)

        def call(*xs: Any) -> Any:
            return function(dict(zip(names, xs, strict=True)))

        for level in reversed(range(len(self.batch))):
            in_axes = tuple(self.axes[name][level] for name in names)
            call = jax.vmap(call, in_axes, self.out_axes[level])
        return call(*operands.values())

    def entries(self, name: str, x: np.ndarray) -> list[np.ndarray]:
        """What each call gets of an operand, in the order of `batch`."""
        parts = []
        for index in itertools.product(*map(range, self.batch)):
            part = x
            for i, axis in zip(index, self.axes[name], strict=True):
                part = part if axis is None else np.take(part, i, axis)
            parts.append(part)
        return parts

    def joined(self, name: str, parts: list[np.ndarray], core: tuple[int, ...]) -> np.ndarray:
        """The operand's gradient, given that of each call: the sum over calls that share it."""
        total = np.zeros(self.shape(name, core))
        for index, part in zip(itertools.product(*map(range, self.batch)), parts, strict=True):
            view = total
            for i, axis in zip(index, self.axes[name], strict=True):
                # The dots keep a number a view.
                view = view if axis is None else np.moveaxis(view, axis, 0)[i, ...]
            view += part
        return total

    def stacked(self, parts: list[np.ndarray], core: tuple[int, ...]) -> np.ndarray:
        """The results of all calls, where vmap puts them."""
        result = np.asarray(parts).reshape(*self.batch, *core)
        for level in reversed(range(len(self.batch))):
            # Levels further in have been moved already.
            result = np.moveaxis(result, level, level + self.out_axes[level])
        return result


@st.composite
def _mapped(draw: st.DrawFn, cores: dict[str, int]) -> Mapped:
    """Maps of a call whose operands have these ranks; each level maps one of them at least."""
    levels = draw(st.integers(1, 2))
    batch = tuple(draw(st.sampled_from([3, 3, 1, 0])) for _ in range(levels))
    axes: dict[str, list[int | None]] = {name: [] for name in cores}
    ranks = dict(cores)
    for _ in range(levels):
        chosen = draw(st.sets(st.sampled_from(list(cores)), min_size=1))
        for name in cores:
            axis = draw(st.integers(0, ranks[name])) if name in chosen else None
            axes[name].insert(0, axis)
            ranks[name] += axis is not None
    # The result of the innermost level has one more axis, and so on outwards.
    out_axes = tuple(draw(st.integers(0, 2 + i)) for i in reversed(range(levels)))
    return Mapped(batch, {name: tuple(x) for name, x in axes.items()}, out_axes)


M, N, K = 2, 4, 3
CORES = {"a": (M, K), "b": (K, N), "c": (M, N), "bias": (N,), "alpha": (), "beta": ()}
RANKS = {name: len(core) for name, core in CORES.items()}


def _integers(mapped: Mapped, cores: dict[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    """Operands of small integers: every sum and product of them is exact."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-3, 4, mapped.shape(name, core)).astype(np.float32)
        for name, core in cores.items()
    }


def _call(operands: dict[str, Any], **options: Any) -> jax.Array:
    named = dict(operands)
    a, b, c = named.pop("a"), named.pop("b"), named.pop("c")
    return jaxgemm.gemm(a, b, c, **named, **options)


def _check_mapped_gemm(mapped: Mapped, activation: str | None, seed: int) -> None:
    operands = _integers(mapped, CORES, seed)
    result = mapped.apply(lambda named: _call(named, activation=activation), operands)
    entries = {name: mapped.entries(name, x) for name, x in operands.items()}
    answers = []
    for values in zip(*entries.values(), strict=True):
        named = dict(zip(entries, values, strict=True))
        a, b, c = named.pop("a"), named.pop("b"), named.pop("c")
        answers.append(oracle.gemm(a, b, c, **named, activation=activation))
    fields = {
        field.name: mapped.stacked([getattr(x, field.name) for x in answers], (M, N))
        for field in dataclasses.fields(oracle.Answer)
    }
    oracle.check(result, oracle.Answer(**fields), "float32")


@settings(max_examples=80)
@given(_mapped(RANKS), st.sampled_from([None, "gelu"]), st.integers(0, 9))
def test_mapped_gemm_is_a_loop(mapped: Mapped, activation: str | None, seed: int) -> None:
    _check_mapped_gemm(mapped, activation, seed)


def _check_mapped_gradients(mapped: Mapped, autodiff: str, seed: int) -> None:
    operands = _integers(mapped, CORES, seed)
    shape = mapped.stacked([np.zeros((M, N))] * math.prod(mapped.batch), (M, N)).shape
    weights = np.random.default_rng(seed + 1).integers(-3, 4, shape).astype(np.float32)
    run = functools.partial(_call, autodiff=autodiff)
    gradients = jax.grad(lambda xs: (weights * mapped.apply(run, xs)).sum())(operands)
    bars = _unstacked(mapped, weights)
    entries = [mapped.entries(name, x) for name, x in operands.items()]
    loops: dict[str, list[np.ndarray]] = {name: [] for name in operands}
    for bar, a, b, c, _, alpha, beta in zip(bars, *entries, strict=True):
        loops["a"].append(alpha * bar @ b.T)
        loops["b"].append(alpha * a.T @ bar)
        loops["c"].append(beta * bar)
        loops["bias"].append(bar.sum(0))
        loops["alpha"].append((bar * (a @ b)).sum())
        loops["beta"].append((bar * c).sum())
    for name, core in CORES.items():
        want = mapped.joined(name, loops[name], core)
        np.testing.assert_array_equal(np.asarray(gradients[name]), want, name)


def _unstacked(mapped: Mapped, x: np.ndarray) -> list[np.ndarray]:
    """The entry of each call in something of the result's shape."""
    for level in range(len(mapped.batch)):
        x = np.moveaxis(x, level + mapped.out_axes[level], level)
    return list(x.reshape(-1, *x.shape[len(mapped.batch) :]))


@settings(max_examples=25)
@given(_mapped(RANKS), st.sampled_from(["vjp", "jvp"]), st.integers(0, 9))
def test_gradients_of_mapped_gemm_are_those_of_a_loop(
    mapped: Mapped, autodiff: str, seed: int
) -> None:
    assume(math.prod(mapped.batch))
    _check_mapped_gradients(mapped, autodiff, seed)


GROUPED_CORES = {"lhs": (6, K), "rhs": (3, K, N), "bias": (3, N), "group_sizes": (3,)}
GROUPED_RANKS = {name: len(core) for name, core in GROUPED_CORES.items()}


def _check_mapped_grouped(mapped: Mapped, seed: int) -> None:
    operands = _integers(mapped, GROUPED_CORES, seed)
    operands["group_sizes"] = np.abs(operands["group_sizes"]).astype(np.int32)
    result = mapped.apply(lambda named: jaxgemm.grouped_gemm(**named), operands)
    entries = {name: mapped.entries(name, x) for name, x in operands.items()}
    parts = [
        oracle.grouped(**dict(zip(entries, values, strict=True))).value
        for values in zip(*entries.values(), strict=True)
    ]
    np.testing.assert_array_equal(np.asarray(result), mapped.stacked(parts, (6, N)))


@settings(max_examples=12)
@given(_mapped(GROUPED_RANKS), st.integers(0, 9))
def test_mapped_grouped_gemm_is_a_loop(mapped: Mapped, seed: int) -> None:
    _check_mapped_grouped(mapped, seed)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    _mapped(RANKS),
    _mapped(GROUPED_RANKS),
    st.sampled_from(list(oracle.ACTIVATIONS)),
    st.sampled_from(["vjp", "jvp"]),
    st.integers(0, 99),
)
def test_mapped_calls_are_loops_in_a_longer_sweep(
    mapped: Mapped, grouped: Mapped, activation: str | None, autodiff: str, seed: int
) -> None:
    _check_mapped_gemm(mapped, activation, seed)
    _check_mapped_grouped(grouped, seed)
    if math.prod(mapped.batch):
        _check_mapped_gradients(mapped, autodiff, seed)
