"""The algebra of specs: gradients are products again. See `naive_specs.py`."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm import reference
from jaxgemm.spec import OPERAND_ORDER, GemmSpec
from tests.naive_specs import (
    AXES,
    F32,
    LAYOUTS,
    RAGGED_AXES,
    SIZE,
    draw,
    indices,
    naive,
    part_of,
    ragged,
    run_reference,
    shape_of,
    spec_of,
    with_some_inside,
)


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
    arrays = draw(spec)
    np.testing.assert_array_equal(run_reference(spec, arrays), naive(spec, arrays))
    ct = np.random.default_rng(1).integers(-3, 4, shape_of(spec, "d")).astype(np.float32)
    product, roles = spec.gradient_product(wrt, F32, scaled="alpha" in spec.operands)
    sources = {**arrays, "d": ct}
    named = {**arrays, "a": sources[roles[0]], "b": sources[roles[1]]}
    result = run_reference(product, {name: named[name] for name in product.operands})
    want = _adjoint(lambda x: naive(spec, {**arrays, wrt: x}), arrays[wrt], ct)
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
    gradient = _check_gradient(spec_of(("a", "b"), layout, batch=(axes,) if axes else ()), wrt)
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
    spec = ragged("m", layout, (axes,) if axes else (), first)
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
    gradient = _check_gradient(ragged("k", "TN", (axes,) if axes else (), first), wrt)
    assert gradient.ragged == "m"
    assert _is_product(gradient)


@pytest.mark.parametrize("seed", range(16))
def test_gradients_of_gradients_with_several_axes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = str(rng.choice(list(LAYOUTS)))
    batch = tuple(AXES[i] for i in rng.integers(0, len(AXES), 2))
    wrt = [str(x) for x in rng.choice(["a", "b"], 2)]
    spec = spec_of(("a", "b"), layout, batch=batch)
    # Every second one has all axes in front.
    once = _check_gradient(with_some_inside(spec, rng) if seed % 2 else spec, wrt[0])
    # Sizes go by label, so the gradient is checked as a spec of its own.
    _check_gradient(once, wrt[1])


@pytest.mark.parametrize("wrt", ["a", "b"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_alpha_scales_a_gradient_where_it_is_asked_to(layout: str, wrt: str) -> None:
    spec = spec_of(("a", "b", "alpha"), layout, batch=(("a", "d"),))
    assert _check_gradient(spec, wrt).operands == ("a", "b", "alpha")
    unscaled, _ = spec.gradient_product(wrt, F32)
    assert unscaled.operands == ("a", "b")


def test_product_keeps_only_what_is_bilinear() -> None:
    batch = (tuple(sorted(("a", "b", "bias", "c", "d", "alpha"))), ("b_up", "d"))
    operands = tuple(n for n in OPERAND_ORDER if n not in ("group_sizes", "row_start"))
    spec = spec_of(operands, "NT", batch=batch, activation="gelu", save_preactivation=True)
    spec = spec.replace(sum_dtype=F32)
    plain, scaled = spec.product(np.dtype("float16")), spec.product(F32, scaled=True)
    assert plain.operands == ("a", "b")
    assert scaled.operands == ("a", "b", "alpha")
    assert plain.batch == (("a", "b", "d"), ("d",))
    assert scaled.batch == (("a", "alpha", "b", "d"), ("d",))
    assert (plain.activation, plain.save_preactivation) == (None, False)
    assert plain.out_dtype == plain.residual_dtype == np.float16
    assert (plain.a_contract, plain.b_contract) == (1, 1)
    assert plain.sum_dtype is None


def test_equal_places_of_axes_are_equal_specs() -> None:
    batch = (("a", "d"), ("b", "d"))
    plain = spec_of(("a", "b"), batch=batch)
    assert spec_of(("a", "b"), batch=batch, inside=((), ())) == plain
    inside = plain.replace(inside=(("a", "d"), ()))
    assert inside != plain
    assert [inside.labels(name) for name in "abd"] == [
        ("m", "b0", "k"),
        ("b1", "k", "n"),
        ("b1", "m", "b0", "n"),
    ]
    assert inside.without_axes([0]) == spec_of(("a", "b"), batch=batch[1:])
    mapped = inside.with_batch_axis(("a", "b"), ("b",))
    assert mapped.inside == (("b",), ("a", "d"), ())
    assert mapped.labels("a") == ("b0", "m", "b1", "k")


def test_axis_that_only_d_has_is_computed_once_and_broadcast() -> None:
    spec = spec_of(("a", "b"), batch=(("d",), ("a", "d"), ("d",)))
    product, labels = spec.without_lone_axes()
    assert (product.batch, labels) == ((("a", "d"),), ("b1", "m", "n"))
    rng = np.random.default_rng(0)
    # In the product that is left, the axis of a is the first one.
    a = rng.integers(-3, 4, (SIZE["b1"], SIZE["m"], SIZE["k"])).astype(np.float32)
    b = rng.integers(-3, 4, (SIZE["k"], SIZE["n"])).astype(np.float32)
    d = reference.align(
        jnp.asarray(run_reference(product, {"a": a, "b": b})), labels, spec.labels("d")
    )
    assert d.shape == (1, SIZE["b1"], 1, SIZE["m"], SIZE["n"])
    np.testing.assert_array_equal(np.asarray(d)[0, :, 0], a @ b)


@pytest.mark.parametrize("batch", [(), (("bias", "d"),), (("d", "group_sizes"),)], ids=str)
def test_bias_product_deals_each_row_its_groups_bias(batch: tuple[tuple[str, ...], ...]) -> None:
    operands = ("a", "b", "bias", "group_sizes")
    spec = spec_of(operands, "NT", ragged="m", batch=batch, precision="default")
    arrays, product = draw(spec), spec.bias_product(F32)
    assert product.precision == "highest"
    ones, bias = np.ones((SIZE["m"], 1), np.float32), arrays["bias"][..., None, :]
    named = {"a": ones, "b": bias, "group_sizes": arrays["group_sizes"]}
    got = run_reference(product, named)
    assert got.shape == shape_of(spec, "d")
    for at in indices(spec.batch_labels("d")):
        sizes = part_of(spec, "group_sizes", arrays["group_sizes"], at)
        rows = np.repeat(part_of(spec, "bias", arrays["bias"], at), sizes, axis=0)[: SIZE["m"]]
        want = np.concatenate([rows, np.zeros((SIZE["m"] - len(rows), SIZE["n"]))])
        np.testing.assert_array_equal(got[tuple(at.values())], want)


@pytest.mark.parametrize("inside", [(), (("d",),)], ids=str)
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_plus_c_adds_an_operand_of_the_shape_of_d(
    axes: tuple[str, ...], inside: tuple[tuple[str, ...], ...]
) -> None:
    inside = inside if "d" in axes else ()
    spec = spec_of(("a", "b", "alpha"), "TN", batch=(axes,), inside=inside).plus("c")
    assert spec.operands == ("a", "b", "c", "alpha")
    assert spec.labels("c") == spec.labels("d")
    arrays = draw(spec)
    np.testing.assert_array_equal(run_reference(spec, arrays), naive(spec, arrays))
