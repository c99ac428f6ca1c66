"""`Problem`: a spec with sizes and dtypes, the value that kernels and the cost model see."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxgemm import dtypes
from jaxgemm.spec import GemmSpec


@dataclasses.dataclass(frozen=True)
class Problem:
    """A GEMM as a kernel sees it.

    Attributes:
      spec: what it means.
      sizes: (label, elements) of every label of the spec.
      dtypes: (operand, dtype name) of every operand.
    """

    spec: GemmSpec
    sizes: tuple[tuple[str, int], ...]
    dtypes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, spec: GemmSpec, operands: Sequence[Any]) -> "Problem":
        """The problem of operands (anything with shape and dtype) that fit the spec."""
        _check_backward(spec)
        _check_inside(spec)
        sizes: dict[str, int] = {}
        for name, x in zip(spec.operands, operands, strict=True):
            labels = spec.labels(name)
            assert len(labels) == len(x.shape), (spec, name, x.shape)
            for label, size in zip(labels, x.shape, strict=True):
                assert sizes.setdefault(label, size) == size, (spec, name, label, x.shape, sizes)
        kinds = tuple((n, x.dtype.name) for n, x in zip(spec.operands, operands, strict=True))
        return cls(spec, tuple(sorted(sizes.items())), kinds)

    @functools.cached_property
    def size(self) -> dict[str, int]:
        """label → elements."""
        return dict(self.sizes)

    @property
    def m(self) -> int:
        """Rows of d; the contracted rows' partner for `ragged="k"`."""
        return self.size["m"]

    @property
    def n(self) -> int:
        """Columns of d."""
        return self.size["n"]

    @property
    def k(self) -> int:
        """Length of the contraction, without batch axes that are summed over."""
        return self.size["k"]

    @property
    def num_groups(self) -> int:
        """Number of groups, 0 if the problem is not grouped."""
        return self.size.get("g", 0)

    @property
    def batch_size(self) -> int:
        """Number of matrices in d."""
        return math.prod(self.size[label] for label in self.spec.batch_labels("d"))

    def dtype(self, operand: str) -> np.dtype:
        """The dtype of an operand or output."""
        if operand == "d":
            return self.spec.out_dtype
        if operand == "d_sum" and self.spec.sum_dtype is not None:
            return self.spec.sum_dtype
        if operand in ("z", "z_up") and not self.spec.pullback:
            return self.spec.residual_dtype
        return jnp.dtype(dict(self.dtypes)[operand])

    @property
    def accumulator(self) -> np.dtype:
        """The dtype in which products are summed and the epilogue runs."""
        return dtypes.accumulator(self.dtype("a"), self.dtype("b"))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an operand or output."""
        return tuple(self.size[label] for label in self.spec.labels(name))

    def has(self, *operands: str) -> bool:
        """Whether any of these operands is present."""
        return any(name in self.spec.operands for name in operands)

    @property
    def flops(self) -> int:
        """Multiplies and adds of the matrix product, two for each pair that is multiplied."""
        rows = self.spec.ragged is not None
        labels = {"m", "n", "k", *self.spec.batch_labels("a"), *self.spec.batch_labels("b")}
        labels |= {*self.spec.batch_labels("d")} if rows else set()
        return 2 * math.prod(self.size[label] for label in labels) * (2 if self.spec.gated else 1)

    def bytes_of(self, name: str) -> int:
        """Bytes of an operand or output."""
        return math.prod(self.shape(name)) * self.dtype(name).itemsize

    @property
    def min_bytes(self) -> int:
        """Bytes moved if every operand is read once and every output written once."""
        return sum(self.bytes_of(n) for n in (*self.spec.operands, *self.spec.outputs))

    def __str__(self) -> str:
        parts = [f"m={self.m} n={self.n} k={self.k}"]
        if self.batch_size > 1 or self.spec.batch:
            parts.append(f"batch={self.batch_size}")
        if self.spec.inside:
            names = dict.fromkeys(name for axis in self.spec.inside for name in axis)
            parts.append(f"inside {','.join(sorted(names))}")
        if self.spec.ragged:
            parts.append(f"groups={self.num_groups} ragged={self.spec.ragged}")
        layout = ("N" if self.spec.a_contract == 1 else "T") + "NT"[self.spec.b_contract]
        kinds = f"{self.dtype('a')}·{self.dtype('b')}→{self.spec.out_dtype}"
        extras = [n for n in ("alpha", "c", "beta", "bias") if self.has(n)]
        slope = "slope of " if self.spec.pullback else ""
        extras += [slope + self.spec.activation] if self.spec.activation else []
        extras += [f"clamp{self.spec.clamp}"] if self.spec.clamp else []
        extras += ["gated"] if self.spec.gated else []
        extras += ["preactivation"] if self.spec.save_preactivation else []
        extras += ["sum over rows"] if self.spec.sum_dtype else []
        tail = " + " + ", ".join(extras) if extras else ""
        return f"{' '.join(parts)} {layout} {kinds}{tail}"


def _check_backward(spec: GemmSpec) -> None:
    """z and d_sum are for whole matrices, and z is for an activation without a bias."""
    if spec.pullback or spec.sum_dtype is not None:
        assert not any((spec.ragged, spec.gated, spec.batch_invariant)), spec
    if spec.pullback:
        others = (spec.activation is None, spec.save_preactivation, "bias" in spec.operands)
        assert not any(others), spec


def _check_inside(spec: GemmSpec) -> None:
    """Only of matrices of two dimensions of their own can a batch axis lie between these."""
    if spec.inside:
        assert spec.ragged is None, spec
        for names, inside in zip(spec.batch, spec.inside, strict=True):
            assert {*inside} <= {*names} & {"a", "b", "b_up", "c", "d", "z"}, spec


class Shaped(NamedTuple):
    """What a check needs to know of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype
