"""The meaning of a spec in Python loops over batch axes and groups, to compare with.

Operands are small integers, so that every comparison is exact.
"""

import functools
import itertools
from collections.abc import Callable, Iterator

import jax
import numpy as np

from jaxgemm import reference
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec

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


def spec_of(operands: tuple[str, ...], layout: str = "NN", **fields: object) -> GemmSpec:
    a_contract, b_contract = LAYOUTS[layout]
    return GemmSpec(operands, a_contract, b_contract, F32, F32, "highest").replace(**fields)


def with_some_inside(spec: GemmSpec, rng: np.random.Generator) -> GemmSpec:
    """The spec with batch axes inside of some of its matrices."""
    inside = tuple(
        tuple(n for n in names if n in ("a", "b", "c", "d") and rng.random() < 0.5)
        for names in spec.batch
    )
    return spec.replace(inside=inside)


def ragged(kind: str, layout: str, batch: tuple[tuple[str, ...], ...], first: bool) -> GemmSpec:
    extra = ("row_start",) if first else ()
    return spec_of(("a", "b", "group_sizes", *extra), layout, ragged=kind, batch=batch)


def shape_of(spec: GemmSpec, name: str) -> tuple[int, ...]:
    return tuple(SIZE[label] for label in spec.labels(name))


def draw(spec: GemmSpec, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    arrays = {n: rng.integers(-3, 4, shape_of(spec, n)).astype(np.float32) for n in spec.operands}
    if spec.ragged:
        choices = np.asarray(GROUP_SIZES[spec.ragged], np.int32)
        lead = shape_of(spec, "group_sizes")[:-1]
        arrays["group_sizes"] = choices[rng.integers(0, len(choices), lead)]
    if "row_start" in arrays:
        arrays["row_start"] = rng.integers(0, 2, shape_of(spec, "row_start")).astype(np.int32)
    return arrays


def part_of(spec: GemmSpec, name: str, x: np.ndarray, at: dict[str, int]) -> np.ndarray:
    """The part of an operand that belongs to one index of every batch axis."""
    return x[place_of(spec, name, at)]


def place_of(spec: GemmSpec, name: str, at: dict[str, int]) -> tuple[int | slice, ...]:
    """The index of that part."""
    return tuple(at.get(label, slice(None)) for label in spec.labels(name))


def indices(labels: tuple[str, ...]) -> Iterator[dict[str, int]]:
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


def naive(spec: GemmSpec, arrays: Arrays) -> np.ndarray:
    """d of a spec without activation, or with relu."""
    d = np.zeros(shape_of(spec, "d"))
    for at in indices(tuple(f"b{i}" for i in range(len(spec.batch)))):
        part = functools.partial(lambda n, at: part_of(spec, n, arrays[n].astype(float), at), at=at)
        bounds = _bounds(spec, lambda name, part=part: part(name).astype(int))
        d[place_of(spec, "d", at)] += _core_product(spec, part("a"), part("b"), bounds)
    for at in indices(spec.batch_labels("d")):
        index = place_of(spec, "d", at)
        for name, x in arrays.items():
            if name == "alpha":
                d[index] *= part_of(spec, name, x, at)
        if "c" in arrays:
            beta = part_of(spec, "beta", arrays["beta"], at) if "beta" in arrays else 1
            d[index] += beta * part_of(spec, "c", arrays["c"], at)
        if "bias" in arrays:
            d[index] += part_of(spec, "bias", arrays["bias"], at)
    return np.maximum(d, 0) if spec.activation == "relu" else d


@functools.cache
def compiled(spec: GemmSpec) -> Callable[[Arrays], tuple[jax.Array, ...]]:
    return jax.jit(lambda operands: reference.evaluate(spec, operands, CONFIG))


def run_reference(spec: GemmSpec, arrays: Arrays) -> np.ndarray:
    return np.asarray(compiled(spec)(arrays)[0])


def problem_of(spec: GemmSpec, **size: int) -> Problem:
    sizes = {**SIZE, **size}
    arrays = [
        jax.ShapeDtypeStruct([sizes[x] for x in spec.labels(name)], F32) for name in spec.operands
    ]
    return Problem.of(spec, arrays)
