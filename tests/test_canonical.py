"""The canonical form: folding batch axes and padding rows change no result."""

import itertools
import math

import jax
import numpy as np
import pytest

import jaxgemm
from jaxgemm import canonical, reference
from jaxgemm.problem import Problem
from jaxgemm.spec import OPERAND_ORDER, GemmSpec
from tests.naive_specs import (
    CONFIG,
    F32,
    LAYOUTS,
    SIZE,
    Arrays,
    draw,
    naive,
    problem_of,
    ragged,
    shape_of,
    spec_of,
    with_some_inside,
)

NUM_RANDOM = 48


def _random_spec(seed: int) -> GemmSpec:
    """Any operands, layout and up to three batch axes, most of them such as can be folded.

    Of every second one, axes lie inside of some matrices, or of all that have them.
    """
    rng = np.random.default_rng(seed)
    extras = [n for n in ("c", "bias", "alpha") if rng.random() < 0.4]
    if "c" in extras and rng.random() < 0.5:
        extras.append("beta")
    operands = tuple(n for n in OPERAND_ORDER if n in ("a", "b", *extras))
    layout = str(rng.choice(list(LAYOUTS)))
    rows = ("a", "c", "d") if "c" in extras else ("a", "d")
    # Only bare products sum over an axis.
    foldable = ("a", "b") if layout == "TN" and not extras else rows
    batch = []
    for _ in range(rng.integers(0, 4)):
        named = {n for n in operands if rng.random() < 0.6} or {str(rng.choice(operands))}
        batch.append(foldable if rng.random() < 0.6 else tuple(sorted({*named, "d"})))
    activation = "relu" if extras and rng.random() < 0.5 else None
    spec = spec_of(operands, layout, batch=tuple(batch), activation=activation)
    if seed % 4 == 1:
        return with_some_inside(spec, rng)
    if seed % 4 == 3:
        matrices = {"a", "b", "c", "d"}
        return spec.replace(inside=tuple(tuple(sorted({*x} & matrices)) for x in batch))
    return spec


def _folded(
    spec: GemmSpec, arrays: Arrays, seen: list[Problem] | None = None
) -> tuple[np.ndarray, Problem]:
    """d by way of the canonical problem, and that problem."""
    problem = Problem.of(spec, [arrays[name] for name in spec.operands])

    def run(p: Problem, operands: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        assert {n: x.shape for n, x in operands.items()} == {n: p.shape(n) for n in operands}
        if seen is not None:
            seen.append(p)
        return reference.evaluate(p.spec, operands, CONFIG)

    (d,) = jax.jit(lambda xs: canonical.evaluate(problem, xs, run))(arrays)
    return np.asarray(d), canonical.fold(problem)


@pytest.mark.parametrize("seed", range(NUM_RANDOM))
def test_folding_changes_no_result(seed: int) -> None:
    spec = _random_spec(seed)
    arrays = draw(spec, seed)
    want = naive(spec, arrays)
    got, problem = _folded(spec, arrays)
    np.testing.assert_array_equal(got, want)
    assert len(problem.spec.batch) <= len(spec.batch)
    original = Problem.of(spec, [arrays[name] for name in spec.operands])
    assert (problem.flops, problem.min_bytes) == (original.flops, original.min_bytes)
    for name in (*spec.operands, "d"):
        assert math.prod(problem.shape(name)) == math.prod(original.shape(name))


def test_random_specs_reach_every_way_of_folding() -> None:
    folded, summed, merged = 0, 0, 0
    for seed in range(NUM_RANDOM):
        spec = _random_spec(seed)
        shapes = [np.empty(shape_of(spec, name), np.float32) for name in spec.operands]
        problem = canonical.fold(Problem.of(spec, shapes))
        folded += problem.m > SIZE["m"]
        summed += problem.k > SIZE["k"]
        merged += any(a == b for a, b in itertools.pairwise(spec.batch))
    assert min(folded, summed, merged) >= 1, (folded, summed, merged)


# (batch, extra operands, layout) → the batch axes that are left, and by what m and k grow.
FOLDS = [
    ([("a", "d")], (), "NN", [], 2, 1),
    ([("a", "d")], (), "NT", [], 2, 1),
    ([("a", "d")], ("bias", "alpha"), "NN", [], 2, 1),
    ([("a", "c", "d")], ("c",), "NN", [], 2, 1),
    ([("a", "d"), ("a", "d")], (), "NN", [], 6, 1),
    ([("a", "b")], (), "TN", [], 1, 2),
    ([("a", "b"), ("a", "b")], (), "TN", [], 1, 6),
    ([("a", "b", "d"), ("a", "d")], (), "NN", [("a", "b", "d")], 3, 1),
    # Neighbours with the same operands become one axis.
    ([("a", "b", "d"), ("a", "b", "d")], (), "NN", [("a", "b", "d")], 1, 1),
    # The rows of the examples do not lie one after the other, or something else would be copied.
    ([("a", "d")], (), "TN", [("a", "d")], 1, 1),
    ([("b", "d")], (), "NN", [("b", "d")], 1, 1),
    ([("a", "d")], ("c",), "NN", [("a", "d")], 1, 1),
    ([("a", "bias", "d")], ("bias",), "NN", [("a", "bias", "d")], 1, 1),
    ([("a", "alpha", "d")], ("alpha",), "NN", [("a", "alpha", "d")], 1, 1),
    ([("a", "b")], (), "NN", [("a", "b")], 1, 1),
    ([("a", "d"), ("a", "b", "d")], (), "NN", [("a", "d"), ("a", "b", "d")], 1, 1),
]


@pytest.mark.parametrize(("batch", "extras", "layout", "left", "rows", "depth"), FOLDS, ids=str)
def test_axis_is_folded_only_where_memory_lies_that_way(
    batch: list[tuple[str, ...]],
    extras: tuple[str, ...],
    layout: str,
    left: list[tuple[str, ...]],
    rows: int,
    depth: int,
) -> None:
    operands = tuple(n for n in OPERAND_ORDER if n in ("a", "b", *extras))
    problem = canonical.canonical(problem_of(spec_of(operands, layout, batch=tuple(batch))))
    assert problem.spec.batch == tuple(left)
    assert (problem.m, problem.k, problem.n) == (rows * SIZE["m"], depth * SIZE["k"], SIZE["n"])


# (batch, inside, extra operands, layout) → what is left of batch and inside, and which of m, n
# and k grow.
INSIDE_FOLDS = [
    # Rows of all examples lie one after the other, whichever changes first.
    ([("a", "d")], [("a", "d")], (), "NN", [], [], "m"),
    ([("a", "c", "d")], [("a", "c", "d")], ("c", "bias"), "NN", [], [], "m"),
    ([("a", "d")], [("a",)], (), "TN", [], [], "m"),
    ([("b", "d")], [("b", "d")], (), "NN", [], [], "n"),
    ([("b", "d")], [("d",)], (), "NT", [], [], "n"),
    ([("a", "b")], [("a",)], (), "NN", [], [], "k"),
    ([("a", "b")], [("a", "b")], (), "TN", [], [], "k"),
    ([("a", "d"), ("a", "d")], [("a", "d")] * 2, (), "NT", [], [], "mm"),
    ([("a", "d"), ("b", "d")], [("a", "d"), ()], (), "NN", [("b", "d")], [], "m"),
    # Neighbours become one axis where they lie alike.
    ([("a", "b", "d")] * 2, [("a", "d")] * 2, (), "NT", [("a", "b", "d")], [("a", "d")], ""),
    (
        *([("a", "b", "d")] * 2, [("a", "d"), ()], (), "NT"),
        *([("a", "b", "d")] * 2, [("a", "d"), ()], ""),
    ),
    # Inside of one and outside of the other, rows do not follow each other.
    ([("a", "d")], [("a",)], (), "NN", [("a", "d")], [("a",)], ""),
    ([("a", "d")], [("d",)], (), "NN", [("a", "d")], [("d",)], ""),
    ([("a", "c", "d")], [("a", "d")], ("c",), "NN", [("a", "c", "d")], [("a", "d")], ""),
    ([("b", "bias", "d")], [("b", "d")], ("bias",), "NN", [], [], "n"),
    ([("b", "d")], [("b", "d")], ("bias",), "NN", [("b", "d")], [("b", "d")], ""),
    ([("a", "b")], [("a", "b")], (), "NN", [("a", "b")], [("a", "b")], ""),
]


@pytest.mark.parametrize(
    ("batch", "inside", "extras", "layout", "left", "left_inside", "grown"), INSIDE_FOLDS, ids=str
)
def test_axis_inside_is_folded_only_where_memory_lies_that_way(
    batch: list[tuple[str, ...]],
    inside: list[tuple[str, ...]],
    extras: tuple[str, ...],
    layout: str,
    left: list[tuple[str, ...]],
    left_inside: list[tuple[str, ...]],
    grown: str,
) -> None:
    operands = tuple(n for n in OPERAND_ORDER if n in ("a", "b", *extras))
    spec = spec_of(operands, layout, batch=tuple(batch), inside=tuple(inside))
    problem = canonical.canonical(problem_of(spec))
    assert (problem.spec.batch, problem.spec.inside) == (tuple(left), tuple(left_inside))
    lengths = {label: SIZE[label] for label in "mnk"}
    for axis, label in enumerate(grown):
        lengths[label] *= SIZE[f"b{axis}"]
    assert {label: problem.size[label] for label in "mnk"} == lengths


def test_axis_is_not_folded_into_more_than_kernels_count() -> None:
    rows = 2**16

    def folded(batch: int) -> Problem:
        shape = jax.ShapeDtypeStruct((batch, rows, 8), np.float32)
        weight = jax.ShapeDtypeStruct((8, 8), np.float32)
        spec = spec_of(("a", "b"), batch=(("a", "d"),))
        return canonical.fold(Problem.of(spec, [shape, weight]))

    assert (folded(2**13).m, folded(2**13).spec.batch) == (2**29, ())
    assert (folded(2**14).m, folded(2**14).spec.batch) == (rows, (("a", "d"),))


def test_axis_of_size_one_vanishes() -> None:
    spec = spec_of(("a", "b"), batch=(("a", "b", "d"), ("b", "d"), ("a", "b", "d")))
    problem = canonical.fold(problem_of(spec, b1=1))
    assert problem.spec.batch == (("a", "b", "d"),)
    assert problem.size["b0"] == SIZE["b0"] * SIZE["b2"]


def test_grouped_products_keep_their_batch_axes() -> None:
    spec = ragged("m", "NN", (("a", "d"),), first=False)
    problem = canonical.canonical(problem_of(spec))
    assert problem.spec.batch == (("a", "d"),)
    assert problem.m == SIZE["m"]


@pytest.mark.parametrize(("m", "rows"), [(1, 64), (64, 64), (65, 128), (0, 0)])
def test_batch_invariant_rows_are_padded_for_every_kernel(m: int, rows: int) -> None:
    spec = spec_of(("a", "b", "c", "bias"), batch_invariant=True)
    problem = problem_of(spec, m=m)
    assert canonical.canonical(problem).m == rows
    assert canonical.canonical(problem_of(spec.replace(batch_invariant=False), m=m)).m == m


def test_padding_reaches_the_kernel_and_not_the_caller() -> None:
    spec = spec_of(("a", "b", "c", "bias"), batch=(("a", "c", "d"),), batch_invariant=True)
    arrays, seen = draw(spec), []
    got, _ = _folded(spec, arrays, seen)
    np.testing.assert_array_equal(got, naive(spec, arrays))
    assert [p.m for p in seen] == [64]


def test_one_sided_vmap_reaches_kernels_as_more_rows() -> None:
    x, w = jax.ShapeDtypeStruct((7, 4, 8), F32), jax.ShapeDtypeStruct((8, 16), F32)

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: jaxgemm.gemm(row, w))(x).sum()

    (forward,) = jaxgemm.explain(loss, x, w).rows
    assert (forward.problem.m, forward.problem.spec.batch) == (28, ())
    batched = jax.ShapeDtypeStruct((7, 4, 8), F32)
    rows = jaxgemm.explain(jax.grad(lambda w, x: jaxgemm.gemm(x, w).sum()), w, batched).rows
    (weights,) = [row.problem for row in rows if row.problem.spec.a_contract == 0]
    assert (weights.m, weights.n, weights.k, weights.spec.batch) == (8, 16, 28, ())
