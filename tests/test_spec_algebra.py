"""The algebra of specs: gradients are products again, and folding batch axes changes nothing.

`_naive` is the meaning of a spec in Python loops over batch axes and groups. Operands are small
integers, so that every comparison is exact.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import canonical, reference
from jaxgemm.problem import Problem
from jaxgemm.spec import OPERAND_ORDER, GemmSpec

Arrays = dict[str, np.ndarray]
F32 = np.dtype("float32")
CONFIG = reference.Config(dynamic_trip_count=True)
SIZE = {"m": 3, "n": 2, "k": 5, "g": 3, "b0": 2, "b1": 3, "b2": 2}
LAYOUTS = {"NN": (1, 0), "NT": (1, 1), "TN": (0, 0), "TT": (0, 1)}
# A batch axis of a product is on two of its three matrices at least, like m, n and k. An axis that
# only d has, `without_lone_axes` takes away before the product.
AXES = [("a", "d"), ("b", "d"), ("a", "b"), ("a", "b", "d")]
RAGGED_AXES = [*AXES, ("d", "group_sizes"), ("a", "group_sizes"), ("a", "b", "d", "group_sizes")]
# Sizes with an empty group, with rows left over, and with more rows than there are.
GROUP_SIZES = {"m": [(1, 0, 1), (2, 0, 1), (3, 2, 1)], "k": [(2, 0, 2), (5, 0, 0), (4, 0, 9)]}


def _spec(operands: tuple[str, ...], layout: str = "NN", **fields: object) -> GemmSpec:
    a_contract, b_contract = LAYOUTS[layout]
    return GemmSpec(operands, a_contract, b_contract, F32, F32, "highest").replace(**fields)


def _ragged(kind: str, layout: str, batch: tuple[tuple[str, ...], ...], first: bool) -> GemmSpec:
    extra = ("row_start",) if first else ()
    return _spec(("a", "b", "group_sizes", *extra), layout, ragged=kind, batch=batch)


def _shape(spec: GemmSpec, name: str) -> tuple[int, ...]:
    return tuple(SIZE[label] for label in spec.labels(name))


def _draw(spec: GemmSpec, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    arrays = {n: rng.integers(-3, 4, _shape(spec, n)).astype(np.float32) for n in spec.operands}
    if spec.ragged:
        choices = np.asarray(GROUP_SIZES[spec.ragged], np.int32)
        lead = _shape(spec, "group_sizes")[:-1]
        arrays["group_sizes"] = choices[rng.integers(0, len(choices), lead)]
    if "row_start" in arrays:
        arrays["row_start"] = rng.integers(0, 2, _shape(spec, "row_start")).astype(np.int32)
    return arrays


def _part(spec: GemmSpec, name: str, x: np.ndarray, at: dict[str, int]) -> np.ndarray:
    """The part of an operand that belongs to one index of every batch axis."""
    return x[tuple(at[label] for label in spec.batch_labels(name))]


def _indices(labels: tuple[str, ...]) -> Iterator[dict[str, int]]:
    for index in itertools.product(*(range(SIZE[label]) for label in labels)):
        yield dict(zip(labels, index, strict=True))


def _core_product(spec: GemmSpec, a: np.ndarray, b: np.ndarray, bounds: list[slice]) -> np.ndarray:
    """a·b without batch axes; `bounds` are the rows of each group."""
    if spec.ragged == "k":
        return np.stack([a[rows].T @ b[rows] for rows in bounds])
    a = a if spec.a_contract == 1 else a.T
    b = b if spec.b_contract == 0 else b.swapaxes(-1, -2)
    if spec.ragged is None:
        return a @ b
    out = np.zeros((a.shape[0], b.shape[-1]))
    for group, rows in enumerate(bounds):
        out[rows] = a[rows] @ b[group]
    return out


def _bounds(spec: GemmSpec, part: Callable[[str], np.ndarray]) -> list[slice]:
    """The rows of each group, clipped to those there are."""
    if not spec.ragged:
        return []
    num_rows, bounds = SIZE[spec.ragged], []
    first = int(part("row_start")) if "row_start" in spec.operands else 0
    for size in np.minimum(part("group_sizes"), num_rows):
        bounds.append(slice(min(first, num_rows), min(first + int(size), num_rows)))
        first += int(size)
    return bounds


def _naive(spec: GemmSpec, arrays: Arrays) -> np.ndarray:
    """d of a spec without activation, or with relu."""
    d = np.zeros(_shape(spec, "d"))
    for at in _indices(tuple(f"b{i}" for i in range(len(spec.batch)))):
        part = functools.partial(lambda n, at: _part(spec, n, arrays[n].astype(float), at), at=at)
        bounds = _bounds(spec, lambda name, part=part: part(name).astype(int))
        product = _core_product(spec, part("a"), part("b"), bounds)
        d[tuple(at[label] for label in spec.batch_labels("d"))] += product
    for at in _indices(spec.batch_labels("d")):
        index = tuple(at.values())
        for name, x in arrays.items():
            if name == "alpha":
                d[index] *= _part(spec, name, x, at)
        if "c" in arrays:
            beta = _part(spec, "beta", arrays["beta"], at) if "beta" in arrays else 1
            d[index] += beta * _part(spec, "c", arrays["c"], at)
        if "bias" in arrays:
            d[index] += _part(spec, "bias", arrays["bias"], at)
    return np.maximum(d, 0) if spec.activation == "relu" else d


@functools.cache
def _compiled(spec: GemmSpec) -> Callable[[Arrays], tuple[jax.Array, ...]]:
    return jax.jit(lambda operands: reference.evaluate(spec, operands, CONFIG))


def _reference(spec: GemmSpec, arrays: Arrays) -> np.ndarray:
    return np.asarray(_compiled(spec)(arrays)[0])


def _adjoint(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, ct: np.ndarray) -> np.ndarray:
    """The gradient of Σ ct · f(x) of a linear f, one basis vector at a time."""
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        basis = np.zeros(x.shape)
        basis[index] = 1
        gradient[index] = (ct * f(basis)).sum()
    return gradient


def _check_gradient(spec: GemmSpec, wrt: str) -> GemmSpec:
    """Asserts that `gradient_product` is the gradient; returns its spec."""
    arrays = _draw(spec)
    np.testing.assert_array_equal(_reference(spec, arrays), _naive(spec, arrays))
    ct = np.random.default_rng(1).integers(-3, 4, _shape(spec, "d")).astype(np.float32)
    product, roles = spec.gradient_product(wrt, F32, scaled="alpha" in spec.operands)
    sources = {**arrays, "d": ct}
    named = {**arrays, "a": sources[roles[0]], "b": sources[roles[1]]}
    result = _reference(product, {name: named[name] for name in product.operands})
    want = _adjoint(lambda x: _naive(spec, {**arrays, wrt: x}), arrays[wrt], ct)
    np.testing.assert_array_equal(result, want)
    return product


def _is_product(spec: GemmSpec) -> bool:
    """Whether it is bilinear with every batch axis on two of a, b and d."""
    return spec == spec.product(spec.out_dtype, scaled=True) and all(
        len({"a", "b", "d", "group_sizes"} & set(names)) >= 2 for names in spec.batch
    )


@pytest.mark.parametrize("wrt", ["a", "b"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", [None, *AXES], ids=str)
def test_gradient_of_a_product_is_a_product(
    axes: tuple[str, ...] | None, layout: str, wrt: str
) -> None:
    gradient = _check_gradient(_spec(("a", "b"), layout, batch=(axes,) if axes else ()), wrt)
    # Its own gradients are those of a spec in this list, so every order of them is right.
    assert _is_product(gradient)
    assert gradient.ragged is None


# (batch axis, layout, whether there is a row_start): every axis, and a sample of the rest.
GROUPED = [
    *((axes, "NN", False) for axes in (None, *RAGGED_AXES)),
    (None, "NT", False),
    (("a", "b", "d"), "NT", True),
    (None, "NN", True),
    (("d", "group_sizes"), "NN", True),
]


@pytest.mark.parametrize("wrt", ["a", "b"])
@pytest.mark.parametrize(("axes", "layout", "first"), GROUPED, ids=str)
def test_gradient_of_a_grouped_product(
    axes: tuple[str, ...] | None, layout: str, first: bool, wrt: str
) -> None:
    spec = _ragged("m", layout, (axes,) if axes else (), first)
    gradient = _check_gradient(spec, wrt)
    assert gradient.ragged == ("m" if wrt == "a" else "k")
    assert _is_product(gradient)


@pytest.mark.parametrize("wrt", ["a", "b"])
@pytest.mark.parametrize(
    ("axes", "first"), [(axes, first) for axes, layout, first in GROUPED if layout == "NN"], ids=str
)
def test_gradient_of_a_grouped_weight_gradient(
    axes: tuple[str, ...] | None, first: bool, wrt: str
) -> None:
    gradient = _check_gradient(_ragged("k", "TN", (axes,) if axes else (), first), wrt)
    assert gradient.ragged == "m"
    assert _is_product(gradient)


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_gradients_with_several_axes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = str(rng.choice(list(LAYOUTS)))
    batch = tuple(AXES[i] for i in rng.integers(0, len(AXES), 2))
    wrt = [str(x) for x in rng.choice(["a", "b"], 2)]
    once = _check_gradient(_spec(("a", "b"), layout, batch=batch), wrt[0])
    # Sizes go by label, so the gradient is checked as a spec of its own.
    _check_gradient(once, wrt[1])


@pytest.mark.parametrize("wrt", ["a", "b"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_alpha_scales_a_gradient_where_it_is_asked_to(layout: str, wrt: str) -> None:
    spec = _spec(("a", "b", "alpha"), layout, batch=(("a", "d"),))
    assert _check_gradient(spec, wrt).operands == ("a", "b", "alpha")
    unscaled, _ = spec.gradient_product(wrt, F32)
    assert unscaled.operands == ("a", "b")


def test_product_keeps_only_what_is_bilinear() -> None:
    batch = (tuple(sorted(("a", "b", "bias", "c", "d", "alpha"))), ("b_up", "d"))
    operands = tuple(n for n in OPERAND_ORDER if n not in ("group_sizes", "row_start"))
    spec = _spec(operands, "NT", batch=batch, activation="gelu", save_preactivation=True)
    plain, scaled = spec.product(np.dtype("float16")), spec.product(F32, scaled=True)
    assert plain.operands == ("a", "b")
    assert scaled.operands == ("a", "b", "alpha")
    assert plain.batch == (("a", "b", "d"), ("d",))
    assert scaled.batch == (("a", "alpha", "b", "d"), ("d",))
    assert (plain.activation, plain.save_preactivation) == (None, False)
    assert plain.out_dtype == plain.residual_dtype == np.float16
    assert (plain.a_contract, plain.b_contract) == (1, 1)


def test_axis_that_only_d_has_is_computed_once_and_broadcast() -> None:
    spec = _spec(("a", "b"), batch=(("d",), ("a", "d"), ("d",)))
    product, labels = spec.without_lone_axes()
    assert (product.batch, labels) == ((("a", "d"),), ("b1", "m", "n"))
    rng = np.random.default_rng(0)
    # In the product that is left, the axis of a is the first one.
    a = rng.integers(-3, 4, (SIZE["b1"], SIZE["m"], SIZE["k"])).astype(np.float32)
    b = rng.integers(-3, 4, (SIZE["k"], SIZE["n"])).astype(np.float32)
    d = reference.align(
        jnp.asarray(_reference(product, {"a": a, "b": b})), labels, spec.labels("d")
    )
    assert d.shape == (1, SIZE["b1"], 1, SIZE["m"], SIZE["n"])
    np.testing.assert_array_equal(np.asarray(d)[0, :, 0], a @ b)


@pytest.mark.parametrize("batch", [(), (("bias", "d"),), (("d", "group_sizes"),)], ids=str)
def test_bias_product_deals_each_row_its_groups_bias(batch: tuple[tuple[str, ...], ...]) -> None:
    operands = ("a", "b", "bias", "group_sizes")
    spec = _spec(operands, "NT", ragged="m", batch=batch, precision="default")
    arrays, product = _draw(spec), spec.bias_product(F32)
    assert product.precision == "highest"
    ones, bias = np.ones((SIZE["m"], 1), np.float32), arrays["bias"][..., None, :]
    named = {"a": ones, "b": bias, "group_sizes": arrays["group_sizes"]}
    got = _reference(product, named)
    assert got.shape == _shape(spec, "d")
    for at in _indices(spec.batch_labels("d")):
        sizes = _part(spec, "group_sizes", arrays["group_sizes"], at)
        rows = np.repeat(_part(spec, "bias", arrays["bias"], at), sizes, axis=0)[: SIZE["m"]]
        want = np.concatenate([rows, np.zeros((SIZE["m"] - len(rows), SIZE["n"]))])
        np.testing.assert_array_equal(got[tuple(at.values())], want)


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_plus_c_adds_an_operand_of_the_shape_of_d(axes: tuple[str, ...]) -> None:
    spec = _spec(("a", "b", "alpha"), "TN", batch=(axes,)).plus_c()
    assert spec.operands == ("a", "b", "c", "alpha")
    assert spec.labels("c") == spec.labels("d")
    arrays = _draw(spec)
    np.testing.assert_array_equal(_reference(spec, arrays), _naive(spec, arrays))


NUM_RANDOM = 32


def _random_spec(seed: int) -> GemmSpec:
    """Any operands, layout and up to three batch axes, half of them such as can be folded."""
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
    return _spec(operands, layout, batch=tuple(batch), activation=activation)


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
    arrays = _draw(spec, seed)
    want = _naive(spec, arrays)
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
        shapes = [np.empty(_shape(spec, name), np.float32) for name in spec.operands]
        problem = canonical.fold(Problem.of(spec, shapes))
        folded += problem.m > SIZE["m"]
        summed += problem.k > SIZE["k"]
        merged += any(a == b for a, b in itertools.pairwise(spec.batch))
    assert min(folded, summed, merged) >= 1, (folded, summed, merged)


def _problem(spec: GemmSpec, **size: int) -> Problem:
    sizes = {**SIZE, **size}
    arrays = [
        jax.ShapeDtypeStruct([sizes[x] for x in spec.labels(name)], F32) for name in spec.operands
    ]
    return Problem.of(spec, arrays)


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
    problem = canonical.canonical(_problem(_spec(operands, layout, batch=tuple(batch))))
    assert problem.spec.batch == tuple(left)
    assert (problem.m, problem.k, problem.n) == (rows * SIZE["m"], depth * SIZE["k"], SIZE["n"])


def test_axis_of_size_one_vanishes() -> None:
    spec = _spec(("a", "b"), batch=(("a", "b", "d"), ("b", "d"), ("a", "b", "d")))
    problem = canonical.fold(_problem(spec, b1=1))
    assert problem.spec.batch == (("a", "b", "d"),)
    assert problem.size["b0"] == SIZE["b0"] * SIZE["b2"]


def test_grouped_products_keep_their_batch_axes() -> None:
    spec = _ragged("m", "NN", (("a", "d"),), first=False)
    problem = canonical.canonical(_problem(spec))
    assert problem.spec.batch == (("a", "d"),)
    assert problem.m == SIZE["m"]


@pytest.mark.parametrize(("m", "rows"), [(1, 64), (64, 64), (65, 128), (0, 0)])
def test_batch_invariant_rows_are_padded_for_every_kernel(m: int, rows: int) -> None:
    spec = _spec(("a", "b", "c", "bias"), batch_invariant=True)
    problem = _problem(spec, m=m)
    assert canonical.canonical(problem).m == rows
    assert canonical.canonical(_problem(spec.replace(batch_invariant=False), m=m)).m == m


def test_padding_reaches_the_kernel_and_not_the_caller() -> None:
    spec = _spec(("a", "b", "c", "bias"), batch=(("a", "c", "d"),), batch_invariant=True)
    arrays, seen = _draw(spec), []
    got, _ = _folded(spec, arrays, seen)
    np.testing.assert_array_equal(got, _naive(spec, arrays))
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


def test_dense_flops_and_bytes_by_hand() -> None:
    operands = ("a", "b", "c", "bias", "alpha", "beta")
    spec = _spec(operands, batch=(("a", "d"), ("b", "bias", "c", "d")))
    size = {"m": 3, "n": 4, "k": 5, "b0": 2, "b1": 6}
    kinds = {"a": "bfloat16", "b": "float32", "c": "float16"}
    avals = [
        jax.ShapeDtypeStruct([size[x] for x in spec.labels(n)], jnp.dtype(kinds.get(n, "float32")))
        for n in operands
    ]
    problem = Problem.of(spec, avals)
    assert problem.flops == 2 * 3 * 4 * 5 * (2 * 6)
    read = 2 * (2 * 3 * 5) + 4 * (6 * 5 * 4) + 2 * (6 * 3 * 4) + 4 * (6 * 4) + 4 + 4
    assert problem.min_bytes == read + 4 * (2 * 6 * 3 * 4)
    assert problem.batch_size == 12
    saved = Problem.of(
        spec.replace(
            save_preactivation=True, activation="gelu", residual_dtype=np.dtype("float16")
        ),
        avals,
    )
    assert saved.min_bytes == problem.min_bytes + 2 * (2 * 6 * 3 * 4)
    assert saved.flops == problem.flops


def test_flops_of_a_summed_axis_a_gated_and_a_grouped_product() -> None:
    summed = _problem(_spec(("a", "b"), "TN", batch=(("a", "b"),)), m=3, n=4, k=5, b0=7)
    assert summed.flops == 2 * 3 * 4 * 5 * 7
    assert summed.min_bytes == 4 * (7 * 5 * 3 + 7 * 5 * 4 + 3 * 4)
    gated = _problem(_spec(("a", "b", "b_up"), activation="silu"), m=3, n=4, k=5)
    assert gated.flops == 2 * (2 * 3 * 4 * 5)
    assert gated.min_bytes == 4 * (3 * 5 + 2 * (5 * 4) + 3 * 4)
    # Every row is multiplied once, whichever group it is in.
    rows = _problem(_ragged("m", "NN", (), first=False), m=9, n=4, k=5, g=6)
    assert rows.flops == 2 * 9 * 4 * 5
    assert rows.min_bytes == 4 * (9 * 5 + 6 * 5 * 4 + 6 + 9 * 4)
    depth = _problem(_ragged("k", "TN", (), first=False), m=3, n=4, k=9, g=6)
    assert depth.flops == 2 * 3 * 4 * 9
    assert depth.min_bytes == 4 * (9 * 3 + 9 * 4 + 6 + 6 * 3 * 4)
