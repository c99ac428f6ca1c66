"""The cost model: roofs and tiles by hand, and what holds for every product and config."""

import dataclasses
import types
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxgemm import device
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec
from jaxgemm.tuning import cost
from tests.dispatch_fakes import Config, product

H200, CPU = device.named("nvidia_h200"), device.CPU


@pytest.mark.parametrize(
    ("a", "b", "precision", "family"),
    [
        ("bfloat16", "bfloat16", "highest", "f16"),
        ("bfloat16", "float16", "default", "tf32"),
        ("float32", "float32", "default", "tf32"),
        ("float32", "float32", "high", "tf32"),
        ("float32", "float32", "highest", ""),
        ("bfloat16", "float32", "highest", ""),
        ("float8_e4m3fn", "float8_e5m2", "default", "f8"),
        ("float8_e4m3fn", "bfloat16", "default", "f16"),
        ("int8", "int8", "default", "i8"),
        ("float64", "float32", "default", "f64"),
    ],
)
def test_instruction_family(a: str, b: str, precision: str, family: str) -> None:
    spec = GemmSpec(("a", "b"), 1, 0, np.dtype("float32"), np.dtype("float32"), precision)
    avals = [types.SimpleNamespace(shape=(8, 8), dtype=jnp.dtype(x)) for x in (a, b)]
    assert cost.mma_family(Problem.of(spec, avals)) == family


def test_roof_by_hand() -> None:
    roof = cost.roof(product(1000, 2000, 3000), H200)
    assert roof.flops == 12_000_000_000
    assert roof.min_bytes == 2 * (3_000_000 + 6_000_000 + 2_000_000)
    assert roof.compute_us == pytest.approx(12e9 / 830e12 * 1e6)
    assert roof.memory_us == pytest.approx(22e6 / 4300e9 * 1e6)
    assert (roof.binds, roof.time_us) == ("compute", roof.compute_us)
    assert roof.intensity == pytest.approx(12e9 / 22e6)
    true_f32 = cost.roof(product(1000, 2000, 3000, "float32", precision="highest"), H200)
    assert true_f32.compute_us == pytest.approx(12e9 / 51e12 * 1e6)
    assert true_f32.memory_us == pytest.approx(2 * roof.memory_us)


def test_tiles_waves_and_utilisation_by_hand() -> None:
    config = Config(cta_tile=(128, 256, 64), split_k=2)
    found = cost.estimate(product(1000, 2000, 3000), config, H200, 0.8)
    # 8 x 8 tiles, each computed by two CTAs of 24 steps of k.
    assert found.tiles == 128
    assert found.waves == pytest.approx(128 / 132)
    assert found.tail_utilisation == pytest.approx(128 / 132)
    assert found.edge_utilisation == pytest.approx(1000 * 2000 / (1024 * 2048))
    depth = 24 * 64
    assert found.tile_bytes == 128 * (128 + 256) * depth * 2
    # What a power limit sustains is the rate of the roof, for all that tiles multiply.
    assert found.power_us == pytest.approx(128 * 2 * 128 * 256 * depth / 830e6)
    assert found.dram_us == pytest.approx(22e6 / 4300e3)
    parts = (found.sm_us, found.power_us, found.l2_us, found.dram_us)
    assert found.time_us >= 3 + max(parts)


@pytest.mark.parametrize(("cluster", "slots"), [(1, 132), (2, 132), (4, 132), (8, 128), (16, 128)])
def test_clusters_leave_multiprocessors_idle_that_fill_no_cluster(cluster: int, slots: int) -> None:
    config = Config(cta_tile=(64, 64, 64), cluster_size=cluster)
    found = cost.estimate(product(1024, 1024, 64), config, H200, 1.0)
    assert found.waves == pytest.approx(256 / slots)
    assert found.tail_utilisation == pytest.approx(256 / (2 * slots))


def test_groups_add_a_partial_tile_each() -> None:
    config = Config(cta_tile=(128, 128, 64))
    rows = product(1024, 256, 512, operands=("a", "b", "group_sizes"), ragged="m")
    assert cost.estimate(rows, config, H200, 1.0).tiles == (1024 // 128 + 4) * 2
    depth = product(1024, 256, 512, operands=("a", "b", "group_sizes"), ragged="k", a_contract=0)
    assert cost.estimate(depth, config, H200, 1.0).tiles == 4 * 8 * 2


SIZES = st.integers(1, 5000)
CONFIGS = st.builds(
    Config,
    cta_tile=st.tuples(st.sampled_from([64, 128]), st.sampled_from([8, 64, 256]), st.just(64)),
    cluster_size=st.sampled_from([1, 2, 4]),
    split_k=st.sampled_from([1, 3]),
)
DEVICES = st.sampled_from([H200, device.named("nvidia_b200"), CPU])
PRODUCTS = st.builds(
    product,
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(["bfloat16", "float32", "float8_e4m3fn"]),
    batch=st.sampled_from([(), (("a", "b", "d"),), (("a", "d"),), (("b", "d"),), (("a", "b"),)]),
)
GROUPED = st.builds(
    lambda m, n, k, kind: product(
        m, n, k, operands=("a", "b", "group_sizes"), ragged=kind, a_contract=int(kind == "m")
    ),
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(["m", "k"]),
)


@example(product(4096, 4096, 4096, batch=(("a", "b"),)), Config(cta_tile=(128, 256, 64)), H200)
@given(PRODUCTS | GROUPED, CONFIGS, DEVICES)
def test_no_config_is_faster_than_the_roof(problem: Problem, config: Config, chip: Any) -> None:
    roof, found = cost.roof(problem, chip), cost.estimate(problem, config, chip, 1.0)
    assert roof.time_us == max(roof.compute_us, roof.memory_us) > 0
    assert found.time_us >= roof.time_us + chip.launch_us
    assert 0 < found.tail_utilisation <= 1
    assert 0 < found.edge_utilisation <= 1
    assert found.waves > 0


@given(PRODUCTS, CONFIGS, st.sampled_from(["m", "n", "k"]), st.integers(1, 3000))
def test_more_of_anything_never_costs_less(
    problem: Problem, config: Config, label: str, more: int
) -> None:
    # But for what L2 does with rows that begin within a line or a sector, or with operands that it
    # gives up.
    config = dataclasses.replace(config, keeps_operands=True)
    sizes = {**problem.size, label: problem.size[label] + more}
    larger = dataclasses.replace(problem, sizes=tuple(sorted(sizes.items())))
    roof, roof_of_larger = cost.roof(problem, H200), cost.roof(larger, H200)
    assert roof_of_larger.compute_us > roof.compute_us
    assert roof_of_larger.memory_us > roof.memory_us
    with mock.patch.object(cost, "_SECTORS_CROSSED", 1.0):
        found, found_of_larger = (cost.estimate(p, config, H200, 0.7) for p in (problem, larger))
    assert found_of_larger.tiles >= found.tiles
    assert found_of_larger.time_us >= found.time_us


@given(PRODUCTS, CONFIGS, st.floats(0.1, 1), st.floats(0.1, 1))
def test_a_better_main_loop_never_costs_more(
    problem: Problem, config: Config, one: float, two: float
) -> None:
    worse, better = (cost.estimate(problem, config, H200, x) for x in sorted((one, two)))
    assert better.time_us <= worse.time_us
    assert better.tiles == worse.tiles


@settings(max_examples=30)
@given(SIZES, SIZES, SIZES)
def test_transposing_the_product_does_not_change_its_roof(m: int, n: int, k: int) -> None:
    assert cost.roof(product(m, n, k), H200) == cost.roof(product(n, m, k), H200)
