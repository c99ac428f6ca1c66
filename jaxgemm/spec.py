"""`GemmSpec`: what a GEMM means, without sizes; and the algebra that transforms need.

A spec reads like an einsum. Every operand has a tuple of labels, one a dimension: first the batch
axes it has ("b0", "b1", …), then its own ("m", "k" …); or some of these axes inside, between its
own two dimensions. With act an activation, a clamp, one after the other or neither, and with no
ragged dimension

    d[b…, m, n] = act(alpha · Σ_k a[b…, m, k] · b[b…, k, n] + beta · c[b…, m, n] + bias[b…, n])

and for `ragged="m"` (rows of a belong to groups) and `ragged="k"` (its weight gradient)

    d[m, n]    = act(alpha · Σ_k a[m, k] · b[group(m), k, n] + bias[group(m), n])
    d[g, m, n] = alpha · Σ_{k in group g} a[k, m] · b[k, n]

where group g is the rows [row_start + Σ_{h<g} group_sizes[h], … + group_sizes[g]).
With the operand z, which lies as d does, it is the step back through an activation:

    d[b…, m, n] = act'(z[b…, m, n]) · (alpha · Σ_k a[b…, m, k] · b[b…, k, n] + beta · c[b…, m, n])

and the output d_sum[b…, n] = Σ_m d[b…, m, n] is what a bias before the activation gets: as that
bias, it may lack batch axes of d, over which it sums too.
A batch axis that d lacks is summed over, as k is. The three forms are closed under
differentiation: the gradient for a or b is again a product of the same kind with its operands
renamed (`gradient_product`), so every transform is written once and none moves data.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np

from jaxgemm import epilogue
from jaxgemm.epilogue import Activation, Clamp

# The order in which the primitive takes its operands.
OPERAND_ORDER = (
    "a",
    "b",
    "b_up",
    "c",
    "bias",
    "z",
    "alpha",
    "beta",
    "group_sizes",
    "row_start",
)
Ragged = Literal["m", "k"]
# Names of operands and outputs, for each batch axis.
Axes = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class GemmSpec:
    """The meaning of one GEMM.

    Attributes:
      operands: the names of the operands there are, in `OPERAND_ORDER`. "b_up" makes it gated:
        d = act(a·b) · (a·b_up). "z" makes it a pullback: d = act'(z) · (a·b).
      a_contract: which of a's last two dimensions is contracted (1: a is (m, k), 0: (k, m)).
      b_contract: which of b's last two dimensions is contracted (0: b is (k, n), 1: (n, k)).
      out_dtype: the dtype of d; everything before it is in the accumulator dtype.
      residual_dtype: the dtype of saved pre-activations.
      precision: accuracy class of float32 operands: "default", "high" or "highest".
      ragged: the label that the groups divide, or None.
      batch: for each batch axis, outermost first, the sorted names of the operands (and "d" and
        "d_sum") that have it. An operand without it is shared along it and is never copied.
      inside: for each batch axis, those of its names where it lies inside: after the first of the
        matrix's own two dimensions, as in (m, b0, k), and not before both. Empty if there are none.
        What is ragged has none.
      activation: a name in `epilogue.ACTIVATIONS`, or None.
      clamp: the bounds between which what the activation gives is kept, or None.
      save_preactivation: also return what the activation was applied to.
      batch_invariant: the bits of a row of d do not depend on the number of rows.
      sum_dtype: the dtype of d_sum, or None where it is not returned. It is added up in the
        accumulator dtype, from d before or after d is rounded.
    """

    operands: tuple[str, ...]
    a_contract: int
    b_contract: int
    out_dtype: np.dtype
    residual_dtype: np.dtype
    precision: str
    ragged: Ragged | None = None
    batch: Axes = ()
    activation: str | None = None
    clamp: Clamp | None = None
    save_preactivation: bool = False
    batch_invariant: bool = False
    sum_dtype: np.dtype | None = None
    inside: Axes = ()

    def __post_init__(self) -> None:
        """One way to say that nothing is inside, so that equal specs are equal."""
        if not any(self.inside):
            object.__setattr__(self, "inside", ())

    @property
    def gated(self) -> bool:
        """Whether this is act(a·b) · (a·b_up)."""
        return "b_up" in self.operands

    @property
    def function(self) -> Activation | None:
        """What is applied to the pre-activation: the activation and the clamp, as one function."""
        return epilogue.function(self.activation, self.clamp)

    @property
    def pullback(self) -> bool:
        """Whether this is act'(z) · (a·b)."""
        return "z" in self.operands

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results: "d", saved pre-activations "z" (and "z_up"), and "d_sum"."""
        saved = ("z", "z_up")[: 1 + self.gated] if self.save_preactivation else ()
        return ("d", *saved, *(("d_sum",) if self.sum_dtype is not None else ()))

    def core_labels(self, name: str) -> tuple[str, ...]:
        """The labels of an operand or output, without batch axes."""
        groups = ("g",) if self.ragged == "m" else ()
        if name == "a":
            return ("m", "k") if self.a_contract == 1 else ("k", "m")
        if name in ("b", "b_up"):
            return groups + (("k", "n") if self.b_contract == 0 else ("n", "k"))
        if name in ("d", "z", "z_up"):
            return ("g", "m", "n") if self.ragged == "k" else ("m", "n")
        return {
            "c": ("m", "n"),
            "bias": (*groups, "n"),
            "d_sum": ("n",),
            "alpha": (),
            "beta": (),
            "group_sizes": ("g",),
            "row_start": (),
        }[name]

    def batch_labels(self, name: str) -> tuple[str, ...]:
        """The labels of the batch axes that an operand or output has."""
        return self._labels_of(self.batch, name)

    def inside_labels(self, name: str) -> tuple[str, ...]:
        """Of these, the ones that lie between its own two dimensions."""
        return self._labels_of(self.inside, name)

    def outside_labels(self, name: str) -> tuple[str, ...]:
        """Of these, the ones that lie before its own dimensions."""
        inside = self.inside_labels(name)
        return tuple(x for x in self.batch_labels(name) if x not in inside)

    def _labels_of(self, axes: Axes, name: str) -> tuple[str, ...]:
        role = "d" if name in self.outputs and name != "d_sum" else name
        return tuple(f"b{i}" for i, names in enumerate(axes) if role in names)

    def labels(self, name: str) -> tuple[str, ...]:
        """The label of every dimension of an operand or output."""
        core = self.core_labels(name)
        return (*self.outside_labels(name), *core[:1], *self.inside_labels(name), *core[1:])

    def replace(self, **changes: object) -> "GemmSpec":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def with_batch_axis(self, names: tuple[str, ...], inside: tuple[str, ...] = ()) -> "GemmSpec":
        """The spec with one more batch axis that `names` (and d and d_sum) have.

        It comes before all others: those of its names in `inside` have it right after the first of
        their own two dimensions, the others have it outermost.
        """
        outputs = {"d", "d_sum"} & {*self.outputs}
        others = self.inside or ((),) * len(self.batch)
        return self.replace(
            batch=(tuple(sorted({*names, *outputs})), *self.batch),
            inside=(tuple(sorted(inside)), *others),
        )

    def without_axes(self, gone: Collection[int]) -> "GemmSpec":
        """The spec without some batch axes, given by their places."""

        def left(axes: Axes) -> Axes:
            return tuple(names for i, names in enumerate(axes) if i not in gone)

        return self.replace(batch=left(self.batch), inside=left(self.inside))

    def renamed(self, new_names: Mapping[str, str]) -> "GemmSpec":
        """The spec whose batch axes have operands and outputs by other names, and no others."""

        def rename(axes: Axes) -> Axes:
            return tuple(
                tuple(sorted({new_names[n] for n in names if n in new_names})) for names in axes
            )

        return self.replace(batch=rename(self.batch), inside=rename(self.inside))

    def product(self, out_dtype: np.dtype, *, scaled: bool = False) -> "GemmSpec":
        """Only alpha · a · b (alpha if `scaled` and present): the bilinear part of the spec."""
        kept = {"a", "b", "group_sizes", "row_start", *(("alpha",) if scaled else ())}
        return self.restricted(kept).replace(
            out_dtype=out_dtype,
            residual_dtype=out_dtype,
            activation=None,
            clamp=None,
            save_preactivation=False,
            sum_dtype=None,
        )

    def for_weight(self, weight: str) -> "GemmSpec":
        """One of the two products of a gated spec: with b, or with b_up in its place."""
        dropped = "b" if weight == "b_up" else "b_up"
        kept = {n: n for n in (*self.operands, "d", "d_sum") if n != dropped} | {weight: "b"}
        operands = tuple(n for n in self.operands if n != "b_up")
        return self.replace(operands=operands).renamed(kept)

    def without_lone_axes(self) -> tuple["GemmSpec", tuple[str, ...]]:
        """The spec without batch axes that only d has, and how this spec labels its d.

        Such an axis is left when an operand that had it is not part of a product; what is
        computed is the same for every entry, and `reference.align` broadcasts it again.
        """
        lone = [i for i, names in enumerate(self.batch) if names == ("d",)]
        gone = {f"b{i}" for i in lone}
        return self.without_axes(lone), tuple(x for x in self.labels("d") if x not in gone)

    def gradient_product(
        self, wrt: str, out_dtype: np.dtype, *, scaled: bool = False
    ) -> tuple["GemmSpec", tuple[str, str]]:
        """The product that is the gradient for operand a or b, given the cotangent of d.

        Its rows and columns are those of the operand as stored, so its first operand is the one
        of {d, the other operand} that has the row label and its second has the column label.

        Returns:
          The spec, and which of "a", "b", "d" (the cotangent) are its operands a and b.
        """
        rows, columns = self.core_labels(wrt)[-2:]
        others = ("d", "b" if wrt == "a" else "a")
        first = next(name for name in others if rows in self.core_labels(name))
        second = next(name for name in others if name != first)
        contract = next(label for label in "mnk" if label not in (rows, columns))
        new_names = {first: "a", second: "b", wrt: "d"}
        kept = ("group_sizes", "row_start", *(("alpha",) if scaled else ()))
        product = self.product(out_dtype, scaled=scaled)
        return product.renamed({**new_names, **{name: name for name in kept}}).replace(
            a_contract=self.core_labels(first)[-2:].index(contract),
            b_contract=self.core_labels(second)[-2:].index(contract),
            ragged=self.ragged and ("m" if rows == self.ragged else "k"),
            batch_invariant=self.batch_invariant and rows == "m",
        ), (first, second)

    def bias_product(self, out_dtype: np.dtype) -> "GemmSpec":
        """`ragged="m"`: ones (m, 1) times bias (g, 1, n), which deals each row its group's bias."""
        new_names = {"bias": "b", **{n: n for n in ("d", "group_sizes", "row_start")}}
        spec = self.renamed(new_names).product(out_dtype)
        # "highest": a bias is added as it is, whatever precision products of float32 have.
        return spec.replace(a_contract=1, b_contract=0, precision="highest")

    def plus(self, added: str) -> "GemmSpec":
        """The spec with one more operand, c or z, of the shape of d."""
        names = {*self.operands, added}
        operands = tuple(name for name in OPERAND_ORDER if name in names)

        def add(axes: Axes) -> Axes:
            return tuple(tuple(sorted({*axis, added})) if "d" in axis else axis for axis in axes)

        return self.replace(operands=operands, batch=add(self.batch), inside=add(self.inside))

    def without_sum(self) -> "GemmSpec":
        """The spec without d_sum."""
        return self.restricted(set(self.operands)).replace(sum_dtype=None)

    def restricted(self, names: Collection[str]) -> "GemmSpec":
        """The spec with only the operands that are named; they and d keep their batch axes."""
        kept = tuple(name for name in self.operands if name in names)
        return self.replace(operands=kept).renamed({name: name for name in (*names, "d")})
