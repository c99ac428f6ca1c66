"""What holds for every call: random calls against the float64 oracle, loops and one another.

Sizes come from a short list and calls are eager, because compiling is what takes the time; each
property has a `slow` twin that draws far more, from longer lists.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import jaxgemm
from tests import oracle
from tests.cases import Case, GroupedCase

FLOATS = ["float32", "bfloat16", "float16"]
FP8 = ["float8_e4m3fn", "float8_e5m2"]
LAYOUTS = ["NN", "NT", "TN", "TT"]
ACTIVATIONS = [None, "relu", "gelu", "gelu_exact", "silu", "sigmoid", "tanh", "relu2"]
BATCHES = [
    ((), ()), ((), ()), ((3,), ()), ((), (3,)), ((3,), (3,)), ((2, 1), (3,)), ((2, 3), (2, 1)),
    ((0,), (1,)), ((1,), ()),
]  # fmt: skip
SMALL, LARGE = [0, 1, 2, 5, 17], [0, 1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 65, 130]


# Calls of gemm.


@dataclasses.dataclass(frozen=True)
class Scalars:
    """How alpha and beta are given: Python numbers, numpy's, arrays, or traced."""

    kind: str

    def run(self, case: Case, operands: dict[str, jax.Array]) -> jax.Array:
        """The call, with its scalars so given."""
        given = {n: x for n, x in (("alpha", case.alpha), ("beta", case.beta)) if x is not None}
        if self.kind == "traced":
            return jax.jit(lambda xs: case.run(operands, **xs))(given)
        make = {"python": lambda x: x, "numpy": np.asarray, "array": jnp.asarray}[self.kind]
        return case.run(operands, **{name: make(x) for name, x in given.items()})


SCALAR_KINDS = st.builds(Scalars, st.sampled_from(["python", "numpy", "array", "traced"]))


def _float_cases(sizes: list[int]) -> st.SearchStrategy[Case]:
    size = st.sampled_from(sizes)
    c = st.sampled_from([None, "full", "row", "column", "scalar"])
    return st.builds(
        Case,
        m=size,
        n=size,
        k=size,
        a=st.sampled_from(FLOATS + FP8),
        b=st.sampled_from(FLOATS + FP8),
        out=st.sampled_from([None, None, *FLOATS, *FP8]),
        layout=st.sampled_from(LAYOUTS),
        c=c,
        bias=st.booleans(),
        alpha=st.sampled_from([1, 0, -0.75, 2.5]),
        beta=st.sampled_from([None, 0, 1, -0.5]),
        activation=st.sampled_from(ACTIVATIONS),
        addend=st.sampled_from(FLOATS + FP8),
        batch=st.sampled_from(BATCHES),
        data=st.sampled_from(["normal", "positive", "cancelling"]),
    ).map(_without_lone_beta)


def _integer_cases(sizes: list[int]) -> st.SearchStrategy[Case]:
    size = st.sampled_from(sizes)
    return st.builds(
        Case,
        m=size,
        n=size,
        k=size,
        a=st.just("int8"),
        b=st.just("int8"),
        out=st.sampled_from([None, "int32", *FLOATS]),
        layout=st.sampled_from(LAYOUTS),
        c=st.sampled_from([None, "full", "row", "column", "scalar"]),
        bias=st.booleans(),
        alpha=st.sampled_from([1, 0, -3]),
        beta=st.sampled_from([None, 0, 1, 5]),
        activation=st.sampled_from([None, "relu"]),
        addend=st.sampled_from(["int8", "int16", "int32"]),
        batch=st.sampled_from(BATCHES),
    ).map(_without_lone_beta)


def _without_lone_beta(case: Case) -> Case:
    return case if case.c else dataclasses.replace(case, beta=None)


def _check_gemm(case: Case, scalars: Scalars, seed: int) -> None:
    operands = case.operands(seed)
    if case.beta == 0 and jnp.issubdtype(jnp.dtype(case.addend), jnp.floating):
        operands["c"] = jnp.full_like(operands["c"], jnp.nan)
    result = scalars.run(case, operands)
    # Both may be infinite.
    with np.errstate(invalid="ignore"):
        oracle.check(result, case.answer(operands), case.expected_out)
    shaped = jax.eval_shape(case.run, operands)
    assert (shaped.shape, shaped.dtype, shaped.weak_type) == (result.shape, result.dtype, False)


@settings(max_examples=150)
@given(_float_cases(SMALL), SCALAR_KINDS, st.integers(0, 9))
def test_gemm_of_floats_is_within_its_bound(case: Case, scalars: Scalars, seed: int) -> None:
    _check_gemm(case, scalars, seed)


@settings(max_examples=25)
@given(_integer_cases(SMALL), SCALAR_KINDS, st.integers(0, 9))
def test_gemm_of_integers_is_exact(case: Case, scalars: Scalars, seed: int) -> None:
    _check_gemm(case, scalars, seed)


@pytest.mark.slow
@settings(max_examples=600)
@given(_float_cases(LARGE) | _integer_cases(LARGE), SCALAR_KINDS, st.integers(0, 99))
def test_gemm_is_within_its_bound_in_a_longer_sweep(
    case: Case, scalars: Scalars, seed: int
) -> None:
    _check_gemm(case, scalars, seed)


# Calls of grouped_gemm.


def _grouped_cases(sizes: list[int], rows: list[int]) -> st.SearchStrategy[GroupedCase]:
    size = st.sampled_from(sizes)
    # Long enough that the sum is often less than m, often more, and groups are often empty.
    groups = st.lists(st.sampled_from([0, 0, 1, 3, 7, 30]), min_size=1, max_size=4).map(tuple)
    dtypes = st.sampled_from(
        [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"), tuple(FP8)]
    )
    cases = st.builds(
        lambda types, **fields: GroupedCase(a=types[0], b=types[1], **fields),
        types=dtypes,
        m=st.sampled_from(rows),
        n=size,
        k=size,
        sizes=groups,
        out=st.sampled_from([None, "float32", "bfloat16"]),
        transpose_rhs=st.booleans(),
        bias=st.booleans(),
        activation=st.sampled_from(ACTIVATIONS),
    )
    integers = st.builds(
        GroupedCase,
        m=st.sampled_from(rows),
        n=size,
        k=size,
        sizes=groups,
        a=st.just("int8"),
        b=st.just("int8"),
        transpose_rhs=st.booleans(),
    )
    return st.one_of(cases, cases, cases, integers)


def _check_grouped(case: GroupedCase, seed: int) -> None:
    operands = case.operands(seed)
    if case.a != "int8":
        # What no group needs must influence nothing.
        tail = oracle.group_rows(case.sizes, case.m)[-1].stop
        empty = np.asarray(case.sizes) == 0
        operands["lhs"] = operands["lhs"].at[tail:].set(jnp.nan)
        operands["rhs"] = jnp.where(empty[:, None, None], jnp.nan, operands["rhs"])
        operands["rhs"] = operands["rhs"].astype(case.b)
    result = case.run(operands)
    out = case.out or {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(case.a, case.b)
    oracle.check(result, case.answer(operands), out)
    used = min(case.m, sum(case.sizes))
    assert not np.asarray(result[used:], np.float32).any(), "rows of no group are exactly zero"


@settings(max_examples=45)
@given(_grouped_cases([0, 1, 5], [0, 1, 8, 20]), st.integers(0, 9))
def test_grouped_gemm_is_within_its_bound(case: GroupedCase, seed: int) -> None:
    _check_grouped(case, seed)


@pytest.mark.slow
@settings(max_examples=400)
@given(_grouped_cases(LARGE, [0, 1, 2, 8, 20, 64, 100, 600]), st.integers(0, 99))
def test_grouped_gemm_is_within_its_bound_in_a_longer_sweep(case: GroupedCase, seed: int) -> None:
    _check_grouped(case, seed)


# Mapped calls. An operand has, for every level from the outermost in, the axis along which it is
# mapped, or None.


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
    st.sampled_from(ACTIVATIONS),
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


# Calls that must agree with one another. Operands are integers, so that they do to the bit.


def _check_transposed(m: int, n: int, k: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (jnp.asarray(rng.integers(-4, 5, s), dtype) for s in ((m, k), (k, n)))
    c = jnp.asarray(rng.integers(-9, 10, (m, n)), jnp.float32)
    options = {"alpha": 2, "beta": -3, "activation": "relu", "out_dtype": "float32"}
    want = oracle.gemm(a, b, c, alpha=2, beta=-3, activation="relu").value
    for transpose_a, transpose_b in itertools.product((False, True), repeat=2):
        left, right = a.T if transpose_a else a, b.T if transpose_b else b
        flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        d = jaxgemm.gemm(left, right, c, **options, **flags)
        np.testing.assert_array_equal(np.asarray(d), want)
        # (op(a) op(b))ᵀ = op(b)ᵀ op(a)ᵀ
        flags = {"transpose_a": not transpose_b, "transpose_b": not transpose_a}
        d = jaxgemm.gemm(right, left, c.T, **options, **flags)
        np.testing.assert_array_equal(np.asarray(d), want.T)


@settings(max_examples=6)
@given(*[st.integers(1, 17)] * 3, st.sampled_from(FLOATS), st.integers(0, 9))
def test_transposed_calls_agree(m: int, n: int, k: int, dtype: str, seed: int) -> None:
    _check_transposed(m, n, k, dtype, seed)


@pytest.mark.slow
@settings(max_examples=100)
@given(*[st.integers(0, 40)] * 3, st.sampled_from(FLOATS), st.integers(0, 99))
def test_transposed_calls_agree_in_a_longer_sweep(
    m: int, n: int, k: int, dtype: str, seed: int
) -> None:
    _check_transposed(m, n, k, dtype, seed)


@dataclasses.dataclass(frozen=True)
class Groups:
    """lhs, rhs, bias and sizes of a grouped product whose rows all have a group."""

    lhs: np.ndarray
    rhs: np.ndarray
    bias: np.ndarray
    sizes: np.ndarray

    @classmethod
    def draw(cls, sizes: list[int], seed: int) -> "Groups":
        """Operands of integers."""
        rng, g = np.random.default_rng(seed), len(sizes)
        shapes = (sum(sizes), 5), (g, 5, 7), (g, 7)
        arrays = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
        return cls(*arrays, np.asarray(sizes, np.int32))

    def run(self) -> np.ndarray:
        """The product."""
        return np.asarray(
            jaxgemm.grouped_gemm(self.lhs, self.rhs, self.sizes, bias=self.bias, activation="relu")
        )

    def rows(self) -> list[np.ndarray]:
        """The numbers of the rows of each group."""
        return np.split(np.arange(len(self.lhs)), np.cumsum(self.sizes)[:-1])


# Four groups of 24 rows in all, so that one compiled product serves every example.
FOUR_SIZES = st.lists(st.integers(0, 24), min_size=3, max_size=3).map(
    lambda cuts: np.diff([0, *sorted(cuts), 24]).tolist()
)


@settings(max_examples=30)
@given(FOUR_SIZES, st.permutations(range(4)), st.integers(0, 99))
def test_permuting_groups_permutes_the_result(
    sizes: list[int], order: list[int], seed: int
) -> None:
    groups = Groups.draw(sizes, seed)
    moved = np.concatenate([groups.rows()[g] for g in order])
    permuted = Groups(
        groups.lhs[moved], *(x[order] for x in (groups.rhs, groups.bias, groups.sizes))
    )
    np.testing.assert_array_equal(permuted.run(), groups.run()[moved])


@settings(max_examples=30)
@given(FOUR_SIZES, st.integers(0, 99))
def test_grouped_product_is_a_gemm_for_every_group(sizes: list[int], seed: int) -> None:
    groups = Groups.draw(sizes, seed)
    result = groups.run()
    # One gemm of all rows with each matrix: only the rows of its group count.
    for g, rows in enumerate(groups.rows()):
        whole = jaxgemm.gemm(groups.lhs, groups.rhs[g], bias=groups.bias[g], activation="relu")
        np.testing.assert_array_equal(result[rows], np.asarray(whole)[rows])


@settings(max_examples=30)
@given(FOUR_SIZES, st.integers(0, 99))
def test_groups_with_equal_weights_are_one_group(sizes: list[int], seed: int) -> None:
    groups = Groups.draw(sizes, seed)
    rhs, bias = (np.repeat(x[:1], 4, axis=0) for x in (groups.rhs, groups.bias))
    split = dataclasses.replace(groups, rhs=rhs, bias=bias)
    whole = jaxgemm.gemm(groups.lhs, rhs[0], bias=bias[0], activation="relu")
    np.testing.assert_array_equal(split.run(), np.asarray(whole))


@settings(max_examples=12)
@given(st.integers(1, 9), st.sampled_from([None, "silu"]), st.integers(0, 9))
def test_gated_product_with_a_gate_of_ones_is_a_plain_product(
    m: int, activation: str | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (m, 5)).astype(np.float32)
    x[:, 0] = 1
    up = rng.integers(-3, 4, (5, 7)).astype(np.float32)
    # Picks the column of ones.
    gate = np.zeros((5, 7), np.float32)
    gate[0] = 1
    result = jaxgemm.gated_gemm(x, gate, up, activation=activation)
    one = oracle.ACTIVATIONS[activation][0](np.float64(1))
    np.testing.assert_allclose(np.asarray(result), one * (x @ up), rtol=1e-6)
