"""The problems that tests run, as values. A new case is one more line.

Sizes include 1, 0, primes and tails of every tile; every operand, layout, dtype and activation
occurs; and each case says how to call jaxgemm and where the float64 answer comes from.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from jaxgemm.epilogue import Clamp
from tests import oracle
from tests.arrays import repeat


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of `gemm`.

    Attributes:
      m, n, k: sizes.
      a, b: operand dtypes.
      out: out_dtype, or None for the default.
      layout: "NN", "NT", "TN" or "TT".
      c: None, or the shape of c ("full", "row", "column", "scalar").
      bias: whether there is one.
      alpha, beta: scalars.
      activation: its name.
      clamp: its bounds.
      addend: the dtype of c and bias.
      batch: (leading axes of a, leading axes of b).
      data: "normal", "positive", "cancelling" or "integer".
    """

    m: int
    n: int
    k: int
    a: str = "float32"
    b: str = "float32"
    out: str | None = None
    layout: str = "NN"
    c: str | None = None
    bias: bool = False
    alpha: float = 1
    beta: float | None = None
    activation: str | None = None
    clamp: Clamp | None = None
    addend: str = "float32"
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    data: str = "normal"

    def __str__(self) -> str:
        default = Case(0, 0, 0)
        changed = [
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if f.name not in "mnk" and getattr(self, f.name) != getattr(default, f.name)
        ]
        return " ".join([f"{self.m}x{self.n}x{self.k}", *changed])

    @property
    def differentiable(self) -> bool:
        """Whether its operands are floats."""
        return self.a != "int8"

    @property
    def expected_out(self) -> str:
        """The dtype that the result must have."""
        if self.out or self.a == "int8":
            return self.out or "int32"
        kinds = {x for x in (self.a, self.b) if not x.startswith("float8")}
        if not kinds:
            return "bfloat16"
        return kinds.pop() if len(kinds) == 1 else "float64" if "float64" in kinds else "float32"

    def operands(self, seed: int = 0) -> dict[str, jax.Array]:
        """a, b and, where the case has them, c and bias."""
        rng = np.random.default_rng(seed)
        a_shape = (self.m, self.k) if self.layout[0] == "N" else (self.k, self.m)
        b_shape = (self.k, self.n) if self.layout[1] == "N" else (self.n, self.k)
        k_axes = (1 if self.layout[0] == "N" else 0, 0 if self.layout[1] == "N" else 1)
        arrays = {
            "a": _draw(rng, (*self.batch[0], *a_shape), self.a, self.data),
            "b": _draw(rng, (*self.batch[1], *b_shape), self.b, self.data),
        }
        if self.data == "cancelling":
            for (name, x), k_axis, sign in zip(arrays.items(), k_axes, (-1, 1), strict=True):
                repeated = np.array(x)
                repeat(repeated, k_axis - 2, sign)
                arrays[name] = jnp.asarray(repeated)
        lead = np.broadcast_shapes(*self.batch)
        shapes = {"full": (*lead, self.m, self.n), "row": (self.n,), "column": (self.m, 1)}
        if self.c:
            arrays["c"] = _draw(rng, shapes.get(self.c, ()), self.addend, self.data)
        if self.bias:
            arrays["bias"] = _draw(rng, (self.n,), self.addend, self.data)
        return arrays

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments that are not operands and mean the same to the oracle."""
        return {
            "alpha": self.alpha,
            "beta": self.beta,
            "activation": self.activation,
            "clamp": self.clamp,
            "transpose_a": self.layout[0] == "T",
            "transpose_b": self.layout[1] == "T",
        }

    def run(self, operands: dict[str, jax.Array], **changed: Any) -> jax.Array:
        """The call; `changed` overrides keyword arguments."""
        named = dict(operands)
        a, b, c = named.pop("a"), named.pop("b"), named.pop("c", None)
        return jaxgemm.gemm(a, b, c, **{**self.options, "out_dtype": self.out, **named, **changed})

    def answer(self, operands: dict[str, jax.Array]) -> oracle.Answer:
        """The float64 answer."""
        named = dict(operands)
        a, b, c = named.pop("a"), named.pop("b"), named.pop("c", None)
        return oracle.gemm(a, b, c, **named, **self.options)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, data: str) -> jax.Array:
    if dtype.startswith("int"):
        return jnp.asarray(rng.integers(-128, 128, shape), dtype)
    if data == "integer":
        return jnp.asarray(rng.integers(-4, 5, shape), dtype)
    x = rng.normal(size=shape)
    if data == "positive":
        x = np.abs(x) + 0.5
    return jnp.asarray(x, dtype)


_FLOATS = ("float32", "bfloat16", "float16")
_FP8 = ("float8_e4m3fn", "float8_e5m2")
_EVERYTHING = {"c": "full", "bias": True, "alpha": 0.5, "beta": -1.5}

SIZES = [
    Case(m, n, k)
    for m, n, k in [
        (1, 1, 1), (1, 17, 5), (7, 1, 3), (3, 5, 1), (64, 64, 64), (65, 63, 67), (130, 40, 257),
        (2, 3, 1000), (16, 136, 72), (0, 4, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0),
    ]
]  # fmt: skip
EMPTY_K = [Case(4, 5, 0, **_EVERYTHING, activation=act) for act in (None, "relu", "sigmoid")]
LAYOUTS = [
    Case(9, 6, 7, a=d, b=d, layout=layout, **_EVERYTHING)
    for d in _FLOATS
    for layout in ("NN", "NT", "TN", "TT")
]
DTYPES = [
    *(Case(33, 20, 70, a=a, b=b, bias=True) for a in _FLOATS for b in _FLOATS),
    *(Case(33, 20, 70, a=a, b=b, out=o) for a in _FP8 for b in _FP8 for o in (None, "float32")),
    *(Case(33, 20, 70, a=a, b="bfloat16", out=a) for a in _FP8),
    *(Case(33, 20, 70, a=d, b=d, out=o) for d in _FLOATS for o in _FLOATS),
    *(Case(17, 9, 40, a="int8", b="int8", out=o) for o in (None, "float32", "bfloat16")),
    Case(17, 9, 40, a="int8", b="int8", c="full", bias=True, alpha=2, beta=-3, addend="int32"),
    Case(17, 9, 40, a="int8", b="int8", bias=True, activation="relu", addend="int8"),
    Case(17, 9, 40, a="int8", b="int8", bias=True, clamp=(-20_000, 30_000), addend="int8"),
]
EPILOGUES = [
    Case(12, 10, 30, c=c, bias=bias, alpha=alpha, beta=beta)
    for c, beta in [(None, None), ("full", None), ("row", 0.25), ("column", 2.0), ("full", 0.0)]
    for bias in (False, True)
    for alpha in (1, -0.75)
]
ACTIVATIONS = [
    Case(12, 10, 30, a=d, b=d, **_EVERYTHING, activation=act, addend=d)
    for d in ("float32", "bfloat16")
    for act in ("relu", "gelu", "gelu_exact", "silu", "sigmoid", "tanh", "relu2")
]
CLAMPS = [
    Case(12, 10, 30, a=d, b=d, **_EVERYTHING, activation=act, clamp=clamp, addend=d)
    for d in ("float32", "bfloat16")
    for act, clamp in [(None, (-1.5, 2.25)), ("relu", (None, 6.0)), ("silu", (0.25, 1.0))]
]
BATCHES = [
    Case(4, 5, 6, batch=batch, **_EVERYTHING)
    for batch in [
        ((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((1,), (1,)),
        ((0,), ()), ((2, 3), (2, 1)),
    ]
]  # fmt: skip
DATA = [
    Case(20, 24, k, a=d, b=d, data=data, out="float32")
    for d in _FLOATS
    for data in ("positive", "cancelling", "integer")
    for k in (64, 4096)
]
CASES = [
    *SIZES, *EMPTY_K, *LAYOUTS, *DTYPES, *EPILOGUES, *ACTIVATIONS, *CLAMPS, *BATCHES, *DATA,
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class GroupedCase:
    """A call of `grouped_gemm`; m may be more, or less, than the sizes add up to."""

    m: int
    n: int
    k: int
    sizes: tuple[int, ...]
    a: str = "float32"
    b: str = "float32"
    out: str | None = None
    transpose_rhs: bool = False
    bias: bool = False
    activation: str | None = None
    clamp: Clamp | None = None

    def __str__(self) -> str:
        extras = [self.a, self.b, self.out, self.activation]
        extras += [str(self.clamp)] if self.clamp else []
        flags = [n for n in ("transpose_rhs", "bias") if getattr(self, n)]
        return " ".join([f"{self.m}x{self.n}x{self.k} {self.sizes}", *filter(None, extras), *flags])

    def operands(self, seed: int = 0) -> dict[str, jax.Array]:
        """lhs, rhs, group_sizes and, where there is one, bias."""
        rng = np.random.default_rng(seed)
        num = len(self.sizes)
        rhs = (num, self.n, self.k) if self.transpose_rhs else (num, self.k, self.n)
        arrays = {
            "lhs": jnp.asarray(rng.normal(size=(self.m, self.k)), self.a),
            "rhs": jnp.asarray(rng.normal(size=rhs), self.b),
            "group_sizes": jnp.asarray(self.sizes, jnp.int32),
        }
        if self.bias:
            arrays["bias"] = jnp.asarray(rng.normal(size=(num, self.n)), jnp.float32)
        return arrays

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments that the oracle shares."""
        return {
            "transpose_rhs": self.transpose_rhs,
            "activation": self.activation,
            "clamp": self.clamp,
        }

    def run(self, operands: dict[str, jax.Array]) -> jax.Array:
        """The call."""
        return jaxgemm.grouped_gemm(**operands, **self.options, out_dtype=self.out)

    def answer(self, operands: dict[str, jax.Array]) -> oracle.Answer:
        """The float64 answer."""
        return oracle.grouped(**operands, **self.options)


GROUPED = [
    GroupedCase(40, 6, 8, (10, 0, 25, 3)),
    GroupedCase(40, 6, 8, (10, 0, 25, 3), bias=True, activation="gelu"),
    GroupedCase(40, 6, 8, (10, 0, 25, 3), transpose_rhs=True, bias=True),
    GroupedCase(40, 6, 8, (10, 0, 25, 3), a="bfloat16", b="bfloat16", activation="silu"),
    GroupedCase(40, 6, 8, (10, 0, 25, 3), a="bfloat16", b="float32", out="bfloat16"),
    GroupedCase(40, 6, 8, (10, 0, 25, 3), a="float16", b="float16", out="float32"),
    GroupedCase(40, 6, 8, (40,), bias=True, activation="sigmoid"),
    GroupedCase(50, 6, 8, (20, 20), bias=True, activation="silu", clamp=(0.25, 1.0)),
    GroupedCase(40, 6, 8, (0, 0, 0)),
    GroupedCase(40, 6, 8, (0, 0, 40)),
    GroupedCase(40, 6, 8, (30, 30, 30), bias=True),
    GroupedCase(0, 6, 8, (0, 0)),
    GroupedCase(9, 0, 8, (4, 5)),
    GroupedCase(9, 6, 0, (4, 3), bias=True, activation="sigmoid"),
    GroupedCase(1, 1, 1, (0, 1)),
    GroupedCase(600, 16, 24, (513, 1, 0, 80)),
    GroupedCase(64, 8, 8, tuple([1, 0] * 32)),
    GroupedCase(20, 6, 8, (5, 5), a="float8_e4m3fn", b="float8_e5m2"),
    GroupedCase(20, 6, 8, (7, 5), a="int8", b="int8"),
]
