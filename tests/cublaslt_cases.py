"""Problems that only cuBLASLt takes, or that it takes in its own way."""

import dataclasses
from typing import Any

from tests.kernel_cases import EXTRAS, PULLBACK, KernelCase

IN_FLOAT32: dict[str, Any] = {"dtype": "float32", "out": "float32", "dtypes": ()}
INT8 = KernelCase(m=20, n=24, k=32, layout="NT", dtype="int8", out="int32")
FLOAT64 = KernelCase(m=17, n=19, k=23, dtype="float64", out="float64", layout="TN")
FP8 = KernelCase(m=144, n=176, k=336, layout="NT", dtype="float8_e4m3fn")
OWN_CASES = {
    "gelu_with_z": KernelCase(m=24, n=40, k=32, extras=EXTRAS, activation="gelu", save=True),
    "gelu_with_z_batch": KernelCase(
        m=24, n=40, k=32, extras=("bias",), activation="gelu", save=True, batch=((3, "a bias d"),)
    ),
    "beta_alone": KernelCase(m=24, n=40, k=32, extras=("c", "beta"), batch=((3, "a d"),)),
    "alpha_alone": KernelCase(m=24, n=40, k=32, extras=("alpha",), activation="relu"),
    "alpha_of_each_matrix": KernelCase(
        m=24, n=40, k=32, extras=("alpha", "c"), batch=((2, "alpha c d"), (3, "b d"))
    ),
    "true_float32": KernelCase(m=70, n=52, k=65, precision="highest", extras=EXTRAS, **IN_FLOAT32),
    "float64": FLOAT64,
    "float64_scaled": dataclasses.replace(
        FLOAT64, extras=("c", "alpha", "beta"), dtypes=(("alpha", "float64"), ("beta", "float64"))
    ),
    "int8": INT8,
    "int8_and_c": dataclasses.replace(INT8, extras=("c",), dtypes=(("c", "int32"),)),
    "int8_batch": dataclasses.replace(INT8, batch=((3, "a d"), (2, "b d"))),
}
# Of these the library rounds products before it multiplies them by the slope.
BACKWARD_CASES = {
    "pullback": KernelCase(m=24, n=40, k=32, layout="NT", extras=PULLBACK, activation="gelu"),
    "pullback_and_sum": KernelCase(
        m=24, n=40, k=32, layout="NT", extras=("z",), activation="gelu", sums="bfloat16"
    ),
    "pullback_and_sum_batch": KernelCase(
        m=24,
        n=40,
        k=32,
        extras=PULLBACK,
        activation="gelu",
        sums="bfloat16",
        batch=((3, "a d d_sum z"), (2, "alpha b beta d d_sum z")),
    ),
    "pullback_inside": KernelCase(
        m=24,
        n=40,
        k=32,
        layout="NT",
        extras=("z",),
        activation="gelu",
        batch=((3, "a d z"),),
        inside=("d z",),
    ),
}
FP8_CASES = {
    "fp8_e4m3": FP8,
    "fp8_e4m3_e5m2": dataclasses.replace(FP8, dtypes=(("b", "float8_e5m2"),)),
    "fp8_e5m2_e4m3": dataclasses.replace(
        FP8, dtype="float8_e5m2", dtypes=(("b", "float8_e4m3fn"),)
    ),
    "fp8_float32_out": dataclasses.replace(FP8, out="float32"),
    "fp8_scaled_with_bias": dataclasses.replace(
        FP8, extras=("bias", "alpha"), dtypes=(("bias", "bfloat16"),), activation="relu"
    ),
}
