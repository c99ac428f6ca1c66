"""What `explain` prints: the kernel, the roof, the tiles, and why nothing else runs."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from jaxgemm import device, dispatch, registry
from jaxgemm.policy import Policy
from tests.dispatch_fakes import (
    REFERENCE,
    REFUSED,
    Config,
    X,
    explained,
    fake_kernel,
    only_kernels,
    square,
    struct,
)

H200, CPU = device.named("nvidia_h200"), device.CPU
AUTO = Policy()


def test_explanation_of_a_large_product_in_full() -> None:
    config = Config(cta_tile=(128, 256, 64), stages=3, cluster_size=2)
    fakes = (
        fake_kernel("fake.chosen", configs=(config,)),
        fake_kernel("fake.dearer", efficiency=0.5),
        fake_kernel("fake.other", reason="it is for Blackwell"),
    )
    x = struct(4096, 4096)
    with only_kernels(*fakes):
        shown = jaxgemm.explain(jaxgemm.gemm, x, x, device="nvidia_h200")
        chosen, dearer, _ = dispatch.plan(shown.rows[0].problem, H200, AUTO).choices
    # 2 · 4096³ flops at 830e12 a second; 3 · 4096² elements of 2 bytes at 4300e9 a second.
    # 32 x 16 tiles over 132 multiprocessors: 3.88 waves of which the fourth is not full.
    expected = f"""1 distinct GEMM on nvidia_h200

m=4096 n=4096 k=4096 NN bfloat16·bfloat16→bfloat16  (x1)
  roof     compute-bound: 165.59 us at the roof (compute 165.59 us, memory 23.41 us),\
 1365.3 flop/byte, 137.4 Gflop, 100.7 MB
  kernel   fake.chosen (chosen by cost model)
  config   {config}
  tiles    512 of 128x256x64 in 3.88 waves: 97% of the slots used, 100% of the tiles' elements;\
 estimated {chosen.estimate.time_us:.1f} us
  not      fake.other: it is for Blackwell
  not      fake.dearer: accepts it; estimated at {dearer.estimate.time_us:.1f} us
  not      xla.reference: accepts it; runs if everything else fails"""
    assert str(shown) == expected
    assert shown.table() == (
        "count  kernel       bound    roof us  flop/B  problem\n"
        "1      fake.chosen  compute  165.59   1365   "
        " m=4096 n=4096 k=4096 NN bfloat16·bfloat16→bfloat16"
    )


def test_explanation_of_a_small_batch_of_rows_is_bound_by_memory() -> None:
    config = Config(cta_tile=(64, 128, 64))
    with only_kernels(fake_kernel("fake", configs=(config,))):
        row = explained(jaxgemm.gemm, struct(8, 4096), struct(4096, 1000))
    num_bytes = 2 * (8 * 4096 + 4096 * 1000 + 8 * 1000)
    assert row.roof.binds == "memory"
    assert row.roof.min_bytes == num_bytes
    assert row.roof.time_us == row.roof.memory_us == pytest.approx(num_bytes / 4300e3)
    assert row.roof.intensity == pytest.approx(2 * 8 * 4096 * 1000 / num_bytes)
    assert "8 of 64x128x64 in 0.06 waves: 6% of the slots used" in str(row)
    # 8 of 64 rows and 1000 of 1024 columns.
    assert "12% of the tiles' elements" in str(row)


def test_explanation_on_a_cpu_names_the_reference_and_every_reason() -> None:
    (row,) = jaxgemm.explain(square, X).rows
    assert row.kernel == "xla.reference"
    assert row.reasons.keys() == {kernel.name for kernel in registry.kernels()} - {row.kernel}
    assert row.reasons["pallas.hopper.dense"] == "cpu has compute capability 0.0: wgmma needs 9.0"
    assert row.reasons["cuda.sm90.dense"] == "cpu is not a CUDA device", "nothing to build for it"
    assert "kernel   xla.reference (the only kernel that may answer)" in str(row)
    # A CPU has no waves.
    assert "waves" not in str(row)


@pytest.mark.parametrize("how", ["argument", "use"])
def test_explanation_for_an_h200_comes_from_any_machine(how: str) -> None:
    x = struct(1024, 1024)
    with jaxgemm.use(device="nvidia_h200" if how == "use" else None):
        named = None if how == "use" else "h200"
        shown = jaxgemm.explain(jaxgemm.gemm, x, x, device=named)
    (row,) = shown.rows
    assert shown.device == H200
    assert row.kernel.startswith("pallas.hopper.")
    assert row.plan.choices[0].config in row.plan.kernel.configs(row.problem, H200)
    tile_m, tile_n, _ = row.plan.choices[0].config.cta_tile
    tiles = math.ceil(1024 / tile_m) * math.ceil(1024 / tile_n)
    assert f"  tiles    {tiles} of " in str(row)


def test_explanation_of_what_would_raise_says_so() -> None:
    with only_kernels(fake_kernel("fake", reason="k is odd")):
        row = explained(square, X)
    assert row.kernel == "none"
    assert isinstance(row.plan, jaxgemm.UnsupportedProblem)
    assert row.reasons == {"fake": "k is odd", REFERENCE.name: REFUSED}
    assert "  kernel   none: running it raises UnsupportedProblem\n" in str(row)
    assert "  not      fake: k is odd" in str(row)


def _counts(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """How often each problem occurs."""
    rows = jaxgemm.explain(function, *args, device="nvidia_h200").rows
    return {str(row.problem).split(" bfloat16")[0]: row.count for row in rows}


def test_explanation_counts_equal_products_and_tells_others_apart() -> None:
    def layers(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jaxgemm.gemm(x, w)
        return jaxgemm.gemm(x, w, transpose_b=True)

    counts = _counts(layers, struct(512, 256), struct(256, 256))
    assert counts == {"m=512 n=256 k=256 NN": 3, "m=512 n=256 k=256 NT": 1}


def test_explanation_goes_into_loops_branches_and_inner_functions() -> None:
    x = struct(256, 256)

    def step(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return jaxgemm.gemm(x, x), None

    def branches(x: jax.Array) -> jax.Array:
        return jax.lax.cond(
            x[0, 0] > 0,
            lambda x: jaxgemm.gemm(x, x),
            lambda x: jaxgemm.gemm(x, x, transpose_a=True),
            x,
        )

    loop = jax.lax.fori_loop
    functions = {
        "scan": lambda x: jax.lax.scan(step, x, None, length=7)[0],
        "fori": lambda x: loop(0, 5, lambda i, x: jaxgemm.gemm(x, x), x),
        "while": lambda x: jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: step(x, 0)[0], x),
        "jit": jax.jit(lambda x: jaxgemm.gemm(x, x)),
        "remat": jax.checkpoint(lambda x: jaxgemm.gemm(x, x)),
    }
    for name, function in functions.items():
        assert _counts(function, x) == {"m=256 n=256 k=256 NN": 1}, name
    expected = {"m=256 n=256 k=256 NN": 1, "m=256 n=256 k=256 TN": 1}
    assert _counts(branches, x) == expected


def test_explanation_of_a_gradient_has_its_three_products() -> None:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jaxgemm.gemm(x, w).astype(jnp.float32).sum()

    # Nothing but the value itself reads the forward product.
    products = {"m=512 n=256 k=128 NT": 1, "m=256 n=128 k=512 TN": 1}
    forward = {"m=512 n=128 k=256 NN": 1}
    args = struct(512, 256), struct(256, 128)
    assert _counts(jax.value_and_grad(loss, (0, 1)), *args) == products | forward
    assert _counts(jax.value_and_grad(loss), *args).keys() == {
        "m=512 n=256 k=128 NT",
        "m=512 n=128 k=256 NN",
    }


def test_explanation_of_a_grouped_and_a_gated_product() -> None:
    grouped = explained(
        jaxgemm.grouped_gemm, struct(512, 64), struct(8, 64, 96), struct(8, dtype="int32")
    )
    assert "groups=8 ragged=m" in str(grouped)
    gated = explained(jaxgemm.gated_gemm, struct(64, 32), struct(32, 48), struct(32, 48))
    assert "+ silu, gated" in str(gated)
    assert gated.roof.flops == 2 * 2 * 64 * 32 * 48


def test_explanation_takes_keyword_arrays_and_options() -> None:
    x = struct(64, 64)
    row = explained(jaxgemm.gemm, x, x, bias=struct(64), activation="relu", transpose_b=True)
    assert str(row.problem) == ("m=64 n=64 k=64 NT bfloat16·bfloat16→bfloat16 + bias, relu")


def test_explanation_of_nothing_is_empty() -> None:
    shown = jaxgemm.explain(lambda x: x + 1, X, device="nvidia_h200")
    assert shown.rows == ()
    assert str(shown) == "0 distinct GEMMs on nvidia_h200"
    assert shown.table() == "count  kernel  bound  roof us  flop/B  problem"
