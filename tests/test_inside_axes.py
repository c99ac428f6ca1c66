"""Batch axes between the two dimensions of a matrix stay where they are, and answers are right.

`test_mapped_properties.py` maps over random axes; here are the products that people write so.
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

import jaxgemm
from jaxgemm.spec import Axes
from tests.dispatch_fakes import equations

_SIZE = {"b": 2, "s": 16, "t": 8, "h": 4, "d": 16, "r": 8}
_NN = jaxgemm.gemm
_NT = functools.partial(jaxgemm.gemm, transpose_b=True)


@dataclasses.dataclass(frozen=True)
class Product:
    """A product as an einsum and as mapped calls.

    Attributes:
      equation: the einsum.
      call: the mapped call.
      inside: the spec's field.
    """

    equation: str
    call: Callable[[jax.Array, jax.Array], jax.Array]
    inside: Axes

    @property
    def labels(self) -> tuple[str, str, str]:
        """Those of the operands and of the result."""
        operands, result = self.equation.split("->")
        first, second = operands.split(",")
        return first, second, result

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The operands and a cotangent: small integers, of which all sums are exact."""
        rng = np.random.default_rng(0)
        a, b, d = (
            rng.integers(-3, 4, [_SIZE[label] for label in labels]).astype(np.float32)
            for labels in self.labels
        )
        return a, b, d

    def gradients(self, a: Any, b: Any, d_bar: Any) -> tuple[jax.Array, ...]:
        """Those of Σ d_bar · d."""
        return jax.grad(lambda a, b: (d_bar * self.call(a, b)).sum(), (0, 1))(a, b)


PRODUCTS = {
    "heads_of_a": Product("shr,hdr->shd", jax.vmap(_NT, (1, 0), 1), (("a", "d"),)),
    "scores": Product("bshd,bthd->bhst", jax.vmap(jax.vmap(_NT, (1, 1), 0)), ((), ("a", "b"))),
    "values": Product("bhst,bthd->bshd", jax.vmap(jax.vmap(_NN, (0, 1), 1)), ((), ("b", "d"))),
    "shared_weights": Product("shr,rd->shd", jax.vmap(_NN, (1, None), 1), (("a", "d"),)),
    "shared_rows": Product("sr,rhd->shd", jax.vmap(_NN, (None, 1), 1), (("b", "d"),)),
    "two_axes": Product(
        "sbhr,bhdr->sbhd",
        jax.vmap(jax.vmap(_NT, (1, 0), 1), (1, 0), 1),
        (("a", "d"), ("a", "d")),
    ),
}
_every_product = pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)


@_every_product
def test_values_and_gradients_are_those_of_einsum(product: Product) -> None:
    a, b, d_bar = product.arrays()
    first, second, result = product.labels
    want = np.einsum(product.equation, a, b)
    np.testing.assert_array_equal(jax.jit(product.call)(a, b), want)
    a_bar, b_bar = jax.jit(product.gradients)(a, b, d_bar)
    np.testing.assert_array_equal(a_bar, np.einsum(f"{result},{second}->{first}", d_bar, b))
    np.testing.assert_array_equal(b_bar, np.einsum(f"{first},{result}->{second}", a, d_bar))


def _moves(function: Callable[..., Any], *args: Any) -> bool:
    """Whether anything is transposed in memory around the products."""
    text = str(jax.make_jaxpr(function)(*args))
    permutations = [part.split("]")[0] for part in text.split("permutation=")[1:]]
    return any(p != f"{tuple(range(p.count(',') + 1))}" for p in permutations)


def test_a_transpose_is_noticed() -> None:
    assert _moves(lambda x: x.T + 1, np.ones((2, 3)))
    assert _moves(jax.vmap(_NN, (2, 0)), np.ones((2, 3, 4)), np.ones((4, 3, 2)))


@_every_product
def test_nothing_is_moved(product: Product) -> None:
    a, b, d_bar = product.arrays()
    (forward,) = equations(product.call, a, b)
    assert forward.params["spec"].inside == product.inside
    assert not _moves(product.call, a, b)
    assert not _moves(product.gradients, a, b, d_bar)


@_every_product
def test_nothing_is_moved_for_a_gpu(product: Product) -> None:
    operands = [jnp.asarray(x, jnp.bfloat16) for x in product.arrays()]
    with jaxgemm.use(device="nvidia_h200", backend="pallas", strict=True):
        lowered = jax.jit(product.gradients).trace(*operands).lower(lowering_platforms=("cuda",))
    text = lowered.as_text()
    assert "mosaic_gpu" in text
    assert "stablehlo.transpose" not in text


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("shared_weights", {"m": "sh", "n": "d", "k": "r"}),
        ("shared_rows", {"m": "s", "n": "hd", "k": "r"}),
    ],
)
def test_axis_of_one_operand_is_one_with_its_own(name: str, sizes: dict[str, str]) -> None:
    product = PRODUCTS[name]
    (row,) = jaxgemm.explain(product.call, *product.arrays()[:2]).rows
    want = {label: math.prod(_SIZE[x] for x in labels) for label, labels in sizes.items()}
    assert (row.problem.size, row.problem.spec.batch) == (want, ())


def test_every_operand_has_a_place_of_its_own() -> None:
    """With or without the axis inside of a, b and c, whatever the others do."""
    rng = np.random.default_rng(0)
    a, b, c = (
        rng.integers(-3, 4, shape).astype(np.float32) for shape in ((3, 4, 5), (3, 5, 2), (3, 4, 2))
    )
    for axes in itertools.product((0, 1), repeat=3):
        moved = [np.moveaxis(x, 0, axis) for x, axis in zip((a, b, c), axes, strict=True)]
        (product,) = equations(jax.vmap(_NN, axes), *moved)
        inside = [name for name, axis in zip("abc", axes, strict=True) if axis]
        inside += ["d"] if axes[0] != axes[1] else []
        assert product.params["spec"].inside == ((tuple(inside),) if inside else ())
        np.testing.assert_array_equal(jax.jit(jax.vmap(_NN, axes))(*moved), a @ b + c)


def test_equal_sizes_with_other_places_do_not_share_a_key() -> None:
    shape = jax.ShapeDtypeStruct((8, 8, 8), jnp.bfloat16)
    problems = {
        jaxgemm.explain(jax.vmap(_NN, axes), shape, shape, device="nvidia_h200").rows[0].problem
        for axes in itertools.product((0, 1), repeat=2)
    }
    assert len(problems) == len({str(p) for p in problems}) == 4
