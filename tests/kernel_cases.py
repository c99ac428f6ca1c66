"""Problems for kernels, as values: specs that no call of `gemm` can be made to produce on demand.

`cases.py` lists calls of the public functions; these are what the layer below is given.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm.epilogue import Clamp
from jaxgemm.problem import Problem
from jaxgemm.spec import OPERAND_ORDER, GemmSpec
from tests.arrays import repeat


@dataclasses.dataclass(frozen=True)
class KernelCase:
    """A problem in a few words.

    Attributes:
      m, n, k: sizes.
      layout: "NN", "NT", "TN" or "TT".
      dtype: that of a, b and z, and of c and bias unless `dtypes` says otherwise.
      out: that of d.
      extras: operands besides a and b.
      dtypes: (operand, dtype) pairs.
      scalars: the first values of alpha and beta.
      batch: for each axis its size and the names, with spaces, of those that have it.
      inside: for each axis the names of those where it lies between their own dimensions.
      activation: its name.
      clamp: its bounds.
      save: whether z is an output.
      sums: the dtype of d_sum, or None where it is no output.
      precision: of float32 operands.
      nan_c: whether c is NaN everywhere.
      specials: whether a and b each have a NaN, an infinity and a negative one.
      data: "normal"; "positive": over (0, 1]; "cancelling": most products have one that undoes
        them in the other half of k; "integer": so small that every sum is exact in float32.
    """

    m: int = 128
    n: int = 128
    k: int = 128
    layout: str = "NN"
    dtype: str = "bfloat16"
    out: str = "bfloat16"
    extras: tuple[str, ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    scalars: tuple[float, float] = (0.75, -1.5)
    batch: tuple[tuple[int, str], ...] = ()
    inside: tuple[str, ...] = ()
    activation: str | None = None
    clamp: Clamp | None = None
    save: bool = False
    sums: str | None = None
    precision: str = "default"
    nan_c: bool = False
    specials: bool = False
    data: str = "normal"

    @property
    def is_exact(self) -> bool:
        """Whether only the last rounding, that of an output, can change a value."""
        return self.data == "integer" and self.activation in (None, "relu")

    def problem(self) -> Problem:
        """The value that kernels see."""
        spec = GemmSpec(
            operands=tuple(n for n in OPERAND_ORDER if n in ("a", "b", *self.extras)),
            a_contract="TN".index(self.layout[0]),
            b_contract="NT".index(self.layout[1]),
            out_dtype=jnp.dtype(self.out),
            residual_dtype=jnp.dtype(self.dtype),
            precision=self.precision,
            batch=tuple(tuple(sorted(names.split())) for _, names in self.batch),
            inside=tuple(tuple(sorted(names.split())) for names in self.inside),
            activation=self.activation,
            clamp=self.clamp,
            save_preactivation=self.save,
            sum_dtype=None if self.sums is None else jnp.dtype(self.sums),
        )
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        sizes |= {f"b{i}": size for i, (size, _) in enumerate(self.batch)}
        kinds = {"alpha": "float32", "beta": "float32", **dict(self.dtypes)}
        arrays = []
        for name in spec.operands:
            shape = tuple(sizes[label] for label in spec.labels(name))
            arrays.append(jax.ShapeDtypeStruct(shape, kinds.get(name, self.dtype)))
        return Problem.of(spec, arrays)

    def arrays(self) -> dict[str, jax.Array]:
        """Operands of the data that the case names."""
        problem = self.problem()
        rng = np.random.default_rng(0)
        arrays = {n: _draw(rng, problem.shape(n), self.data) for n in problem.spec.operands}
        if self.data == "cancelling":
            repeat(arrays["a"], problem.spec.a_contract - 2, -1)
            repeat(arrays["b"], problem.spec.b_contract - 2, 1)
        for name, value in zip(("alpha", "beta"), self.scalars, strict=True):
            if name in arrays:
                # Different for every matrix, unless it is to be zero.
                steps = np.arange(arrays[name].size).reshape(arrays[name].shape)
                arrays[name] = value * (1 + steps)
        if self.nan_c:
            arrays["c"] = np.full_like(arrays["c"], np.nan)
        if self.specials:
            for name, offset in (("a", 1), ("b", 3)):
                x = arrays[name].reshape(-1, arrays[name].shape[-1])
                for i, value in enumerate((np.nan, np.inf, -np.inf)):
                    x[offset + 5 * i, offset + 7 * i] = value
        return {n: jnp.asarray(x, problem.dtype(n)) for n, x in arrays.items()}


def _draw(rng: np.random.Generator, shape: tuple[int, ...], data: str) -> np.ndarray:
    if data == "positive":
        return 1 - rng.random(shape, np.float32)
    if data == "integer":
        return rng.integers(-4, 5, shape).astype(np.float32)
    return rng.standard_normal(shape, np.float32)


EXTRAS = ("c", "bias", "alpha", "beta")
PULLBACK = ("c", "z", "alpha", "beta")
SMALL_CASES = {
    **{f"layout_{x}": KernelCase(m=192, n=128, k=320, layout=x) for x in ("NN", "NT", "TN", "TT")},
    "float16": KernelCase(dtype="float16", out="float16", layout="TT"),
    "float16_to_bfloat16": KernelCase(dtype="float16", out="bfloat16"),
    "float32_out": KernelCase(out="float32"),
    "k_shorter_than_a_stage": KernelCase(k=16),
    "k_shorter_than_the_pipeline": KernelCase(k=64, layout="NT"),
    "k_tail": KernelCase(k=336, layout="TN"),
    "m_tail": KernelCase(m=136),
    "n_tail": KernelCase(n=192, layout="NT"),
    "all_tails": KernelCase(
        m=136, n=176, k=80, extras=EXTRAS, activation="gelu", clamp=(-0.125, 6.0)
    ),
    "one_row": KernelCase(m=1, n=64),
    "less_than_an_atom": KernelCase(m=4, n=40, k=24, layout="NT"),
    "narrow": KernelCase(m=128, n=32, k=192, extras=("bias",)),
    "long": KernelCase(m=1024, n=64, k=64),
    "alpha": KernelCase(extras=("alpha",)),
    "c": KernelCase(extras=("c",)),
    "c_and_beta": KernelCase(extras=("c", "beta")),
    "c_is_not_read": KernelCase(extras=("c", "beta"), scalars=(1.0, 0.0), nan_c=True),
    "wider_c_and_bias": KernelCase(extras=EXTRAS, dtypes=(("c", "float32"), ("bias", "float32"))),
    "narrower_c": KernelCase(extras=("c",), dtypes=(("c", "float16"),), out="float32"),
    "nan_is_kept": KernelCase(extras=("c",), nan_c=True, activation="relu"),
    "special_values": KernelCase(m=192, k=96, specials=True, extras=("bias",)),
    "bias_relu": KernelCase(extras=("bias",), activation="relu"),
    "bias_gelu": KernelCase(extras=("bias",), activation="gelu", n=192),
    "silu": KernelCase(activation="silu", out="float32"),
    "clamp": KernelCase(clamp=(-2.5, 6.0)),
    "nan_is_not_clamped": KernelCase(extras=("c",), nan_c=True, clamp=(0.0, 1.0)),
    "relu_and_clamp": KernelCase(
        m=136, n=176, k=80, extras=("bias",), activation="relu", clamp=(None, 6.0), save=True
    ),
    "tanh": KernelCase(activation="tanh"),
    "gelu_exact": KernelCase(activation="gelu_exact", out="float32"),
    "preactivation": KernelCase(extras=("bias",), activation="silu", save=True),
    "preactivation_with_all": KernelCase(
        m=136, n=96, extras=EXTRAS, activation="gelu", save=True, out="float32"
    ),
    # Rows of d can be addressed by TMA, and those of z cannot.
    "preactivation_by_stores": KernelCase(
        m=136,
        n=188,
        k=80,
        layout="NT",
        extras=("bias",),
        activation="silu",
        save=True,
        out="float32",
    ),
    "gated": KernelCase(extras=("b_up",), activation="silu", layout="NT"),
    "gated_with_tails": KernelCase(
        m=136, n=176, k=80, extras=("b_up",), activation="gelu", out="float32", save=True
    ),
    "gated_batch": KernelCase(
        m=64, n=64, k=64, extras=("b_up",), batch=((3, "a d"),), activation="sigmoid"
    ),
    "tf32": KernelCase(m=136, k=336, dtype="float32", out="float32", layout="NT"),
    # More tiles than a GPU computes at a time, of a number of steps that fits no ring.
    "many_tiles": KernelCase(m=2200, n=2176, k=72, dtype="float32", out="float32"),
    "tf32_with_all": KernelCase(
        k=80, dtype="float32", layout="NT", extras=EXTRAS, activation="silu", save=True
    ),
    "pullback": KernelCase(m=72, n=80, k=48, layout="NT", extras=("z",), activation="gelu"),
    "pullback_with_all": KernelCase(
        m=64, n=64, k=64, extras=PULLBACK, activation="silu", out="float32"
    ),
    "pullback_batch": KernelCase(
        m=64,
        n=64,
        k=64,
        extras=("z",),
        activation="gelu_exact",
        dtypes=(("z", "float32"),),
        batch=((2, "a d z"),),
    ),
    "batch": KernelCase(m=64, n=64, batch=((3, "a b d"),)),
    "batch_with_tails": KernelCase(m=72, n=80, k=48, batch=((3, "a b c d"),), extras=("c",)),
    "batch_of_b_only": KernelCase(m=64, n=64, k=64, batch=((3, "b d"),)),
    "batch_of_epilogue": KernelCase(
        m=64, n=64, k=64, batch=((2, "alpha bias d"), (2, "a beta c d")), extras=EXTRAS
    ),
    "batch_of_different_axes": KernelCase(m=64, n=64, k=64, batch=((2, "a d"), (3, "b d"))),
    "positive": KernelCase(m=136, k=208, data="positive"),
    "positive_float32_out": KernelCase(m=72, n=192, k=336, data="positive", out="float32"),
    "cancelling": KernelCase(m=144, k=208, layout="TN", data="cancelling"),
    "cancelling_float32_out": KernelCase(
        m=72, n=192, k=336, layout="NT", data="cancelling", out="float32"
    ),
    "integers": KernelCase(m=136, k=208, data="integer"),
    "integers_with_all": KernelCase(
        m=144, n=96, k=208, layout="TT", data="integer", extras=EXTRAS, activation="relu", save=True
    ),
    "integers_float16": KernelCase(
        m=72, k=80, layout="NT", dtype="float16", out="float16", data="integer"
    ),
    "integers_tf32": KernelCase(
        m=72, k=336, layout="NT", dtype="float32", out="float32", data="integer"
    ),
    "inside_a_and_d": KernelCase(
        m=64, n=64, k=192, layout="NT", batch=((3, "a b d"),), inside=("a d",)
    ),
    "inside_b_and_d": KernelCase(m=64, n=64, batch=((3, "a b d"),), inside=("b d",)),
    "inside_a_and_b": KernelCase(
        m=64, n=64, layout="NT", batch=((2, "a b d"), (3, "a b d")), inside=("", "a b")
    ),
    "inside_of_transposed": KernelCase(
        m=64, n=64, layout="TN", batch=((3, "a b d"),), inside=("a b",), out="float32"
    ),
    "inside_with_tails": KernelCase(
        m=72, n=80, k=48, extras=("c",), batch=((3, "a c d"), (2, "b c d")), inside=("a c", "b d")
    ),
    "inside_and_outside": KernelCase(
        m=136,
        n=64,
        k=64,
        layout="NT",
        extras=EXTRAS,
        activation="silu",
        save=True,
        batch=((2, "a b bias d"), (3, "a b beta c d")),
        inside=("a d", "c"),
    ),
    "gated_inside": KernelCase(
        m=64,
        n=64,
        k=64,
        extras=("b_up",),
        activation="silu",
        batch=((3, "a b b_up d"),),
        inside=("a b_up d",),
    ),
    "pullback_inside": KernelCase(
        m=64,
        n=64,
        k=64,
        extras=("z",),
        activation="gelu",
        batch=((2, "a b d z"),),
        inside=("a z",),
    ),
}


def in_float32(cases: Mapping[str, KernelCase]) -> dict[str, KernelCase]:
    """The cases of bfloat16 once more, in float32."""
    return {
        f"{name}-float32": dataclasses.replace(case, dtype="float32", out="float32", dtypes=())
        for name, case in cases.items()
        if case.dtype == "bfloat16"
    }


# On two SMs these take a whole number of waves of tiles with as many rows as they have, and more
# waves of powers of two.
FITTING_CASES = {
    "144": KernelCase(m=144, n=512, k=80, layout="NT", extras=("bias",), activation="silu"),
    "160": KernelCase(m=160, n=256, k=80, extras=EXTRAS, activation="gelu", save=True),
    "176": KernelCase(m=176, n=512, k=80, extras=EXTRAS, activation="relu", save=True),
    "208": KernelCase(m=208, n=512, k=336, layout="NT", extras=("bias",), specials=True),
    "pullback": KernelCase(m=160, n=256, k=80, extras=("c", "z"), activation="gelu"),
    "tails": KernelCase(m=272, n=192, k=80, batch=((3, "a b c d"),), extras=("c", "bias")),
}
# Sizes, strides and activations that kernels with wider loads decline.
ODD_CASES = {
    "odd": KernelCase(m=131, n=67, k=37, extras=EXTRAS, activation="relu2", save=True),
    "odd_transposed": KernelCase(m=67, n=131, k=53, layout="TT", extras=EXTRAS),
    "odd_batch": KernelCase(
        m=33, n=17, k=19, layout="TN", batch=((3, "a b c d"), (2, "b d")), extras=("c",)
    ),
    # Copies of rows as long as those of a begin with a line of the cache.
    "odd_inside": KernelCase(
        m=33,
        n=17,
        k=19,
        layout="TN",
        extras=("c",),
        activation="relu",
        save=True,
        batch=((3, "a b c d"), (2, "b d")),
        inside=("a c", "b d"),
    ),
    # Rows begin at multiples of 16 bytes, and matrices do not.
    "odd_matrices_inside": KernelCase(
        m=40, n=36, k=44, layout="NT", batch=((4, "a b c d"),), inside=("a b c d",), extras=("c",)
    ),
    "odd_long_rows": KernelCase(m=40, n=36, k=523, extras=("bias",)),
    # Behind the end of a row lies the NaN of the next.
    "odd_special_values": KernelCase(m=67, n=61, k=35, layout="NT", specials=True),
    "pullback_relu": KernelCase(m=65, n=63, k=31, extras=("z",), activation="relu"),
    "pullback_and_sum": KernelCase(
        m=33, n=17, k=19, extras=("z",), activation="relu2", sums="float32"
    ),
    "pullback_and_sum_of_two_axes": KernelCase(
        m=6,
        n=8,
        k=5,
        extras=("z",),
        activation="tanh",
        sums="float32",
        batch=((3, "a d z"), (2, "b d d_sum")),
    ),
    "sum": KernelCase(m=19, n=5, k=7, extras=EXTRAS, activation="tanh", save=True, sums="bfloat16"),
    "one_element": KernelCase(m=1, n=1, k=1),
    "odd_clamp": KernelCase(m=33, n=35, k=37, activation="silu", clamp=(0.5, None), out="float32"),
    "empty_k": KernelCase(k=0, extras=("c", "bias"), activation="sigmoid"),
    "empty_m": KernelCase(m=0),
    "empty_batch": KernelCase(m=8, n=8, batch=((0, "a d"),)),
    "gelu_exact_odd": KernelCase(m=65, n=63, k=31, activation="gelu_exact", layout="NT"),
    "four_batch_axes": KernelCase(
        m=5, n=6, k=7, batch=((2, "a d"), (3, "b d"), (2, "bias d"), (2, "a b d")), extras=("bias",)
    ),
    "large_tiles": KernelCase(m=384, n=520, k=100, extras=("bias",)),
}
# More tiles than an H200 has SMs, whatever their shape, and a k of more steps than a tile has
# slices: grids that stay take several, and store one while they multiply the next.
_BUSY = KernelCase(m=2312, n=2568, k=328)
BUSY_CASES = {
    **{f"busy_{x}": dataclasses.replace(_BUSY, layout=x) for x in ("NN", "NT", "TN", "TT")},
    "busy_float16": dataclasses.replace(_BUSY, dtype="float16", out="float16"),
    "busy_batch": KernelCase(m=520, n=776, k=392, batch=((5, "a d"), (4, "b d"))),
    "busy_epilogue": dataclasses.replace(_BUSY, extras=EXTRAS, activation="gelu", save=True),
    "busy_odd": KernelCase(m=2311, n=2565, k=329),
}
# Sizes that fill a device, for compiling every config and for timing.
LARGE_CASES = {
    "4096": KernelCase(4096, 4096, 4096),
    "8192": KernelCase(8192, 8192, 8192),
    "wide": KernelCase(4096, 14336, 4096),
    "4096_nt": KernelCase(4096, 4096, 4096, layout="NT"),
    "4096_tn": KernelCase(4096, 4096, 4096, layout="TN"),
    "4096_tt": KernelCase(4096, 4096, 4096, layout="TT"),
    "wide_bias_gelu": KernelCase(4096, 14336, 4096, extras=("bias",), activation="gelu"),
    "wide_bias_relu": KernelCase(4096, 14336, 4096, extras=("bias",), activation="relu"),
    "wide_silu": KernelCase(4096, 14336, 4096, activation="silu"),
    "wide_beta_c": KernelCase(4096, 14336, 4096, extras=("c", "beta")),
    "wide_pullback_gelu": KernelCase(4096, 14336, 4096, "NT", extras=("z",), activation="gelu"),
    "gated_silu": KernelCase(4096, 7168, 4096, extras=("b_up",), activation="silu"),
    "4096_float32_out": KernelCase(4096, 4096, 4096, out="float32"),
    "4096_tf32": KernelCase(4096, 4096, 4096, layout="NT", dtype="float32", out="float32"),
    "2048": KernelCase(2048, 2048, 2048),
    "1024": KernelCase(1024, 1024, 1024),
    "batch_64": KernelCase(512, 512, 128, batch=((64, "a b d"),)),
    "batch_8": KernelCase(4096, 4096, 512, batch=((8, "a b d"),)),
    "batch_8_inside": KernelCase(
        4096, 4096, 1024, layout="NT", batch=((8, "a b d"),), inside=("a d",)
    ),
    "short_k": KernelCase(8192, 8192, 64),
    "short_k_relu2": KernelCase(8192, 8192, 64, activation="relu2"),
    # Few enough steps along k for a compiler to unroll them.
    "few_steps": KernelCase(4096, 4096, 512),
    "few_steps_576": KernelCase(4096, 4096, 576),
    "few_steps_c": KernelCase(4096, 4096, 512, extras=("c", "beta")),
    "5120": KernelCase(5120, 5120, 5120),
    "1536_nt": KernelCase(1536, 1536, 4096, layout="NT", extras=("bias",), activation="silu"),
    "1600": KernelCase(1600, 1600, 4096, extras=EXTRAS, activation="gelu", save=True),
    "1664": KernelCase(1664, 1664, 4096),
}
