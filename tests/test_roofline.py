"""The formulas of naive, tiled and ideal traffic, and what follows for the attainable rate."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxgemm
from jaxgemm import device
from jaxgemm.tuning import cost, search
from jaxgemm.tuning import roofline as formulas
from tests.kernel_cases import KernelCase

H200 = device.named("nvidia_h200")
SIZES = st.integers(1, 4096)


def test_naive_traffic_is_two_loads_for_each_multiply_add():
    # 2 · 3 · 5 · 7 loads of 2 bytes, 3 · 5 stores of 4.
    assert formulas.naive_bytes(3, 5, 7, 2, 4) == 2 * 2 * 105 + 4 * 15
    assert formulas.product_flops(3, 5, 7) == 210
    # "about 0.25 FLOP/byte for FP32 inputs and 0.5 for FP16 or BF16".
    assert formulas.naive_flops_per_byte(4) == 0.25
    assert formulas.naive_flops_per_byte(2) == 0.5
    long = formulas.product_flops(8, 8, 10**6) / formulas.naive_bytes(8, 8, 10**6, 4, 4)
    assert long == pytest.approx(0.25, rel=1e-5)


def test_tiled_traffic_by_counting_the_loads_of_every_tile():
    m, n, k, tile_m, tile_n = 96, 160, 56, 32, 40
    a_loads = (m // tile_m) * (n // tile_n) * tile_m * k
    b_loads = (m // tile_m) * (n // tile_n) * tile_n * k
    expected = 2 * (a_loads + b_loads) + 4 * m * n
    assert formulas.tiled_bytes(m, n, k, (tile_m, tile_n), 2, 4) == pytest.approx(expected)
    # Each element that a tile loads takes part in so many multiply-adds.
    assert formulas.tile_reuse(tile_m, tile_n) == pytest.approx(m * n * k / (a_loads + b_loads))


def test_a_square_tile_has_an_intensity_of_its_edge_over_the_bytes_of_an_element():
    for edge in (16, 32, 64):
        assert formulas.tile_flops_per_byte(edge, edge, 4) == edge / 4
        assert formulas.tile_flops_per_byte(2 * edge, 2 * edge, 2) == edge
        assert formulas.tile_reuse(edge, edge) == edge / 2
    assert formulas.tile_flops_per_byte(1, 1, 2) == formulas.naive_flops_per_byte(2)


@given(SIZES, SIZES, SIZES, st.integers(1, 512), st.integers(1, 512))
def test_more_reuse_never_moves_more(m: int, n: int, k: int, tile_m: int, tile_n: int):
    naive = formulas.naive_bytes(m, n, k, 2, 4)
    tiled = formulas.tiled_bytes(m, n, k, (tile_m, tile_n), 2, 4)
    ideal = formulas.ideal_bytes(m, n, k, 2, 4)
    assert naive * 1.000001 >= tiled >= ideal * 0.999999
    assert formulas.tiled_bytes(m, n, k, (1, 1), 2, 4) == pytest.approx(naive)
    assert formulas.tiled_bytes(m, n, k, (m, n), 2, 4) == pytest.approx(ideal)


def test_the_two_roofs_meet_at_the_ridge():
    ridge = formulas.ridge_flops_per_byte(830, 4300)
    assert ridge == pytest.approx(193.02, abs=0.01)
    assert formulas.attainable_tflops(ridge, 830, 4300) == pytest.approx(830)
    assert formulas.attainable_tflops(ridge / 2, 830, 4300) == pytest.approx(415)
    assert formulas.attainable_tflops(ridge * 2, 830, 4300) == 830


def test_roofline_of_sizes():
    found = jaxgemm.roofline(
        (4096, 2048, 1024), "nvidia_h200", tile=(128, 128), out_dtype="float32"
    )
    sizes = (4096, 2048, 1024)
    assert found.flops == formulas.product_flops(*sizes)
    assert found.naive.num_bytes == formulas.naive_bytes(*sizes, 2, 4)
    assert found.tiled.num_bytes == formulas.tiled_bytes(*sizes, (128, 128), 2, 4)
    assert found.ideal.num_bytes == formulas.ideal_bytes(*sizes, 2, 4)
    assert (found.peak_tflops, found.memory_gbps) == (830.0, 4300.0)
    assert (found.binds, found.ideal.attainable_tflops) == ("compute", 830.0)
    assert found.ideal.time_us == pytest.approx(found.flops / 830e6)
    naive_us = found.naive.num_bytes / 4300e3
    assert found.naive.time_us == pytest.approx(naive_us)
    assert found.naive.attainable_tflops == pytest.approx(found.flops / naive_us / 1e6)
    lines = str(found).splitlines()
    assert lines[0].startswith("m=4096 n=2048 k=1024 NN bfloat16·bfloat16→float32 on nvidia_h200")
    assert "ridge at 193 flop/byte: compute-bound" in lines[1]
    assert [line.split()[0] for line in lines[2:]] == ["mapping", "naive", "tiled", "ideal"]


def test_roofline_agrees_with_the_roof_of_the_cost_model():
    cases = [
        KernelCase(512, 1024, 256),
        KernelCase(512, 1024, 256, extras=("c", "bias"), activation="gelu", save=True),
        KernelCase(64, 64, 64, batch=((5, "a b d"),), out="float32"),
    ]
    x, w, sizes = np.ones((96, 32)), np.ones((3, 32, 64)), np.array([32, 32, 32], np.int32)
    problems = [case.problem() for case in cases]
    problems += search.problems_of(lambda: jaxgemm.grouped_gemm(x, w, sizes))
    problems += search.problems_of(lambda: jaxgemm.gated_gemm(x, w[0], w[1]))
    for problem in problems:
        found, roof = jaxgemm.roofline(problem, H200), cost.roof(problem, H200)
        assert (found.flops, found.ideal.num_bytes) == (roof.flops, roof.min_bytes)
        assert found.ideal.time_us == pytest.approx(roof.time_us)
        assert found.binds == roof.binds
        assert found.naive.num_bytes > found.tiled.num_bytes >= found.ideal.num_bytes
    # A gated product loads x and two weights for two multiply-adds; its one d is stored once.
    gated = jaxgemm.roofline(problems[-1], H200)
    item = problems[-1].dtype("a").itemsize
    assert gated.naive.num_bytes == 2 * 2 * 96 * 64 * 32 * item + 96 * 64 * item


def test_one_row_is_bound_by_memory_and_float32_has_its_own_roof():
    row = jaxgemm.roofline((1, 4096, 4096), H200)
    assert row.binds == "memory"
    # A tile that is larger than d reuses no more than d allows.
    assert row.tiled.num_bytes == pytest.approx(row.ideal.num_bytes, rel=0.01)
    exact = jaxgemm.roofline((64, 64, 64), H200, dtype=jnp.float32)
    assert exact.peak_tflops == 413.0


def test_the_device_is_named_given_or_the_one_that_is_there():
    sizes = (64, 64, 64)
    assert jaxgemm.roofline(sizes).device == device.CPU
    assert jaxgemm.roofline(sizes, "nvidia_b200").device == device.named("b200")
    half = dataclasses.replace(H200, dram_gbps=H200.dram_gbps / 2)
    found = jaxgemm.roofline(sizes, half)
    assert found.ridge_flops_per_byte == 2 * jaxgemm.roofline(sizes, H200).ridge_flops_per_byte
    with pytest.raises(ValueError, match="device: 'c64' is unknown"):
        jaxgemm.roofline(sizes, "c64")


def test_an_empty_product_moves_nothing():
    found = jaxgemm.roofline((0, 64, 64), H200)
    assert found.flops == 0
    assert np.isfinite([found.naive.time_us, found.tiled.time_us, found.ideal.time_us]).all()
