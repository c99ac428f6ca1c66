"""The cost model: by hand, and against what every config of a kernel took on an H200."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import untuned
from jaxgemm import device
from jaxgemm.problem import Problem
from jaxgemm.tuning import cost, regret
from pallas_kernels import KERNELS
from tests.kernel_cases import LARGE_CASES, KernelCase

H200 = device.named("nvidia_h200")
RESULTS = Path(__file__).parent.parent / "benchmarks/results/nvidia_h200"
SWEEP, TUNED = RESULTS / "dense_sweep.jsonl", RESULTS / "tuning_times.jsonl"
PROBLEMS = {str(case.problem()): case.problem() for case in LARGE_CASES.values()}


@dataclasses.dataclass(frozen=True)
class Config:
    """What the model reads of a config."""

    cta_tile: tuple[int, int, int] = (128, 256, 64)
    cluster_along: str | None = None
    split_k: int = 1
    stages: int = 4
    smem_bytes: int = 1000
    keeps_operands: bool = False
    waits_for_c: bool = False
    # What the model does not read; two measured configs may differ only in it.
    consumers_along: str = "m"

    @property
    def cluster_size(self) -> int:
        return 1 if self.cluster_along is None else 2


def _estimate(problem: Problem, config: Any, efficiency: float = 1.0) -> cost.Estimate:
    return cost.estimate(problem, config, H200, efficiency)


def _measurements() -> list[regret.Measurement]:
    """The sweep as it was measured: its configs have the fields of the kernel of that day."""
    found = []
    for record in map(json.loads, SWEEP.read_text().splitlines()):
        fields, problem = record.get("config"), PROBLEMS.get(record["problem"])
        if fields is not None and problem is not None and "us" in record:
            tile = fields["cta_tile_m"], fields["cta_tile_n"], fields["tile_k"]
            config = Config(
                tile,
                fields["cluster_along"],
                stages=fields["stages"],
                consumers_along=fields["consumers_along"],
            )
            found.append(regret.Measurement(problem, config, record["us"]))
    return found


def test_choice_without_tuning_is_within_a_tenth_of_the_best_measured(
    capsys: pytest.CaptureFixture[str],
):
    found = regret.regrets(_measurements(), H200)
    with capsys.disabled():
        print(f"\n{untuned.of_regrets(found)}")
    assert len(found) >= 12
    assert regret.mean(found) < 1.03, "what was aimed at; 1.10 is the limit"
    assert max(x.ratio for x in found) < 1.10


def test_estimates_are_near_what_was_measured():
    ratios = [math.log(_estimate(x.problem, x.config).time_us / x.time_us) for x in _measurements()]
    # Cards of one kind differ in the clock that their power limit allows.
    card = float(np.median(ratios))
    assert abs(card) < 0.08
    errors = np.abs(np.array(ratios) - card)
    assert np.median(errors) < 0.05
    # The model leaves out that narrow tiles have bank conflicts, and, in very few cases, that
    # writes of d crowd L2: with 128 x 128 tiles and a short k ncu saw twice the sector writes.
    assert np.quantile(errors, 0.98) < 0.35
    assert max(errors) < 0.5


def test_rows_within_lines_and_large_outputs_cost_what_l2_was_not_asked_to_keep():
    config = Config()
    kept = dataclasses.replace(config, keeps_operands=True)
    for n, k, factor in (
        (4096, 4096, 1),
        (4096, 4112, 1.5),
        (8192, 64, 1.7),
        (8192, 80, 1.5 * 1.7),
    ):
        problem = KernelCase(4096, n, k).problem()
        strained, free = (_estimate(problem, x).l2_us for x in (config, kept))
        assert strained == pytest.approx(factor * free), (n, k)
    # Rows that begin in the middle of a sector are slow for whoever loads them.
    apart, within = (KernelCase(4096, 4096, k).problem() for k in (4104, 4096))
    slow, fast = (_estimate(problem, kept).l2_us for problem in (apart, within))
    assert slow == pytest.approx((1 + 3.4) / 2 * fast * 4160 / 4096)


def test_a_c_that_is_loaded_in_the_epilogue_costs_more_of_it():
    problem = KernelCase(4096, 4096, 4096, extras=("c",)).problem()
    early, late = Config(), dataclasses.replace(Config(), waits_for_c=True)
    tile_us = (_estimate(problem, late).sm_us - _estimate(problem, early).sm_us) / 4
    # The weights of a byte differ by 5.5, for 128 x 256 elements of 2 bytes.
    assert tile_us == pytest.approx(5.5 * 128 * 256 * 2 * 3e-5)


def test_choice_among_our_kernels_is_near_the_best_that_the_tuner_saw():
    found = regret.regrets(regret.tried(TUNED, H200), H200)
    assert len(found) >= 60
    assert regret.mean(found) < 1.02
    # Of 130 rows, for which it chooses tiles of 128, it is wrong by 38 %: the few rows of the last
    # tile take longer than whole tiles. The shipped table sends such products to cuBLASLt.
    assert max(x.ratio for x in found if x.problem.m != 130) < 1.11
    assert max(x.ratio for x in found) < 1.4


def test_large_products_get_the_tile_and_the_cluster_that_were_measured_best():
    (kernel,) = [k for k in KERNELS if k.name == "pallas.hopper.dense"]
    for name in ("4096", "8192", "wide", "4096_nt", "4096_tn", "4096_tt"):
        problem = LARGE_CASES[name].problem()
        # Tiles that fit one problem are not among those that were measured for all.
        usual = [x for x in kernel.configs(problem, H200) if not x.computes_transpose]
        (config, _), *_ = cost.ranked(problem, usual, H200)
        assert config.cta_tile == (128, 256, 64)
        assert config.cluster_along == "m"


def test_estimate_by_hand():
    problem = KernelCase(4096, 4096, 4096).problem()
    found = _estimate(problem, Config(), 0.5)
    # 32 x 16 tiles on 132 multiprocessors: four waves, of which the last is not full.
    assert (found.tiles, found.waves) == (512, pytest.approx(512 / 132))
    assert found.tail_utilisation == pytest.approx(512 / (4 * 132))
    assert found.edge_utilisation == 1
    # At full clock, half of 1.2 times the sustained rate of one of 132.
    main_us = 2 * 128 * 256 * 4096 / (830e6 / 132 * 1.2 * 0.5)
    # Every element of d has two bytes.
    epilogue_us = 0.15 + 128 * 256 * 2 * 3e-5
    assert found.sm_us == pytest.approx(4 * (main_us + epilogue_us))
    assert found.power_us == pytest.approx(2 * 4096**3 / 830e6)
    assert found.tile_bytes == found.l2_bytes == 512 * (128 + 256) * 4096 * 2
    assert found.l2_us == pytest.approx(found.l2_bytes / (100e3 * 132))
    assert found.dram_us == pytest.approx(3 * 4096**2 * 2 / 4300e3)
    times = np.array([found.sm_us, found.power_us, found.l2_us, found.dram_us])
    assert found.time_us == pytest.approx(H200.launch_us + np.sum(times**7) ** (1 / 7))
    assert times.max() < found.time_us - H200.launch_us < 1.1 * times.max()


def test_a_cluster_loads_what_it_shares_once_and_its_tiles_come_in_pairs():
    problem = KernelCase(4096, 4096 + 1, 512).problem()
    alone, pair_m, pair_n = (_estimate(problem, Config(cluster_along=x)) for x in (None, "m", "n"))
    assert (alone.tiles, pair_m.tiles, pair_n.tiles) == (32 * 17, 32 * 17, 32 * 18)
    assert alone.l2_bytes == alone.tile_bytes == alone.tiles * (128 + 256) * 512 * 2
    # Along m the CTAs of a pair share b, along n they share a.
    assert pair_m.tile_bytes == alone.tile_bytes
    assert pair_m.l2_bytes == pair_m.tiles * (128 + 256 / 2) * 512 * 2
    assert pair_n.l2_bytes == pair_n.tiles * (128 / 2 + 256) * 512 * 2
    # A few tiles gain nothing from sharing, and wait for each other.
    small = KernelCase(1024, 1024, 1024).problem()
    assert _estimate(small, Config()).time_us < _estimate(small, Config(cluster_along="m")).time_us
    large = KernelCase(8192, 8192, 8192).problem()
    assert _estimate(large, Config()).time_us > _estimate(large, Config(cluster_along="m")).time_us


def test_a_config_that_does_not_say_what_its_cluster_shares_shares_the_larger_part():
    @dataclasses.dataclass(frozen=True)
    class Silent:
        cta_tile: tuple[int, int, int] = (128, 256, 64)
        cluster_size: int = 2
        split_k: int = 1

    problem = KernelCase(4096, 4096, 512).problem()
    found, known = _estimate(problem, Silent()), _estimate(problem, Config(cluster_along="m"))
    assert found.l2_bytes == known.l2_bytes


def test_few_tiles_are_bound_by_the_ports_of_their_multiprocessors():
    problem = KernelCase(64, 256, 16384).problem()
    found = _estimate(problem, Config((64, 256, 64)))
    assert found.tiles == 1
    # One of 132 may draw more than its share of what all draw together, but no more than 120 GB/s.
    assert found.l2_us == pytest.approx((64 + 256) * 16384 * 2 / 120e3)


def test_an_epilogue_that_does_more_costs_more_and_a_longer_k_hides_none_of_it():
    plain = KernelCase(4096, 4096, 256)
    cases = {
        "plain": plain,
        "c": dataclasses.replace(plain, extras=("c",)),
        "activation": dataclasses.replace(plain, activation="gelu"),
        "saved": dataclasses.replace(plain, activation="gelu", save=True),
        "float32": dataclasses.replace(plain, out="float32"),
    }
    us = {name: _estimate(case.problem(), Config()).sm_us for name, case in cases.items()}
    unit = 4 * 128 * 256 * 3e-5
    assert us["float32"] - us["plain"] == pytest.approx(2 * unit)
    assert us["c"] - us["plain"] == pytest.approx(2 * 1.5 * unit)
    assert us["activation"] - us["plain"] == pytest.approx(3 * unit)
    assert us["saved"] - us["activation"] == pytest.approx(2 * unit)
    longer = _estimate(KernelCase(4096, 4096, 512, extras=("c",)).problem(), Config()).sm_us
    twice = _estimate(KernelCase(4096, 4096, 512).problem(), Config()).sm_us
    assert longer - twice == pytest.approx(us["c"] - us["plain"])


def test_splitting_a_long_k_fills_the_device_and_moves_partial_sums():
    problem = KernelCase(256, 256, 65536).problem()
    whole, split = _estimate(problem, Config()), _estimate(problem, Config(split_k=32))
    assert (whole.tiles, split.tiles) == (2, 64)
    assert split.time_us < whole.time_us / 10
    assert split.l2_bytes == pytest.approx(split.tile_bytes + 64 * 2 * 128 * 256 * 4)


def test_batch_axes_that_are_summed_lengthen_the_contraction():
    once = KernelCase(1024, 1024, 512).problem()
    summed = KernelCase(1024, 1024, 512, batch=((3, "a b"),)).problem()
    assert "d" not in summed.spec.batch[0]
    assert _estimate(summed, Config()).tile_bytes == 3 * _estimate(once, Config()).tile_bytes
    assert _estimate(summed, Config()).power_us == 3 * _estimate(once, Config()).power_us


def test_ranked_keeps_the_order_of_equals():
    problem = KernelCase(4096, 4096, 4096).problem()
    one, other = Config(consumers_along="m"), Config(consumers_along="n")
    worse = Config((64, 64, 64))
    for first, second in ((one, other), (other, one)):
        ordered = cost.ranked(problem, [worse, first, second], H200)
        assert [config for config, _ in ordered] == [first, second, worse]


def test_regret_of_a_choice():
    problem = KernelCase(4096, 4096, 4096).problem()
    rows = [
        regret.Measurement(problem, Config((64, 64, 64)), 100.0),
        regret.Measurement(problem, Config(), 125.0),
    ]
    (found,) = regret.regrets(rows, H200)
    assert (found.best, found.chosen, found.ratio) == (rows[0], rows[1], 1.25)
    assert found.estimate_us == _estimate(problem, Config()).time_us
    assert regret.mean([found, dataclasses.replace(found, chosen=rows[0])]) == pytest.approx(
        math.sqrt(1.25)
    )
    table = untuned.of_regrets([found])
    assert "128x256x64 | 125.0 |  64x64x64 | 100.0 | 25.0 % |" in table
    assert table.endswith("25.0 % in geometric mean over 1 problems.")
    assert regret.mean([]) == 1
    paired = dataclasses.replace(rows[1], config=Config(cluster_along="m", split_k=2))
    assert "128x256x64/m2/k2" in untuned.of_regrets(regret.regrets([paired], H200))


def test_an_empty_product_costs_a_launch():
    spec = KernelCase().problem().spec
    arrays = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((0, 64), (64, 64))]
    found = _estimate(Problem.of(spec, arrays), Config())
    assert found.time_us > H200.launch_us
    assert math.isfinite(found.time_us)
