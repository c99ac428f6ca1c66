"""Which of a user's table, a shipped one, a similar problem and the cost model decides."""

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxgemm
from jaxgemm import device, dispatch, reference, registry
from jaxgemm.ffi_kernels import cublaslt
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.tuning import cache, search
from tests.kernel_cases import LARGE_CASES
from tests.tuning_fakes import (
    TALL,
    WIDE,
    Config,
    entry_of,
    fake_kernel,
    only_kernels,
    product,
    tables_of,
)

H200, CPU = device.named("nvidia_h200"), device.CPU
ROOT = Path(__file__).parent.parent
# As a user has it: a kernel that is wrong or missing never stops a search or a plan.
AUTO = Policy()

pytestmark = pytest.mark.usefixtures("home")


def test_user_then_shipped_then_nearest_then_model() -> None:
    problem, near = product(4096, 4096, 4096), product(4096, 4096, 3072)
    configs = (Config((128, 256, 64)), Config((256, 128, 64)), Config((128, 128, 64)))
    with only_kernels(fake_kernel(configs=configs)):
        by_model = dispatch.plan(problem, H200, AUTO, tables_of())
        assert (by_model.chosen_by, by_model.choices[0].config) == ("cost model", configs[0])
        entries = [entry_of(near, configs[1])]
        nearest = dispatch.plan(problem, H200, AUTO, tables_of(tuple(entries)))
        assert (nearest.chosen_by, nearest.choices[0].config) == (dispatch.NEAREST, configs[1])
        assert nearest.choices[0].neighbour == near
        assert nearest.choices[0].measured_us is None
        shipped = (entry_of(problem, configs[2], 30.0),)
        plan = dispatch.plan(problem, H200, AUTO, tables_of(tuple(entries), shipped))
        assert (plan.chosen_by, plan.choices[0].config) == ("shipped table", configs[2])
        assert plan.choices[0].measured_us == plan.choices[0].time_us == 30.0
        entries.append(entry_of(problem, configs[1], 40.0))
        plan = dispatch.plan(problem, H200, AUTO, tables_of(tuple(entries), shipped))
        assert (plan.chosen_by, plan.choices[0].config) == ("tuned cache", configs[1])


def test_a_plan_depends_on_tables_as_values() -> None:
    problem = product()
    with only_kernels(fake_kernel()):
        one = dispatch.plan(problem, H200, AUTO, tables_of((entry_of(problem, WIDE),)))
        same = dispatch.plan(problem, H200, AUTO, tables_of((entry_of(problem, WIDE),)))
        other = dispatch.plan(problem, H200, AUTO, tables_of((entry_of(problem, TALL),)))
    assert one is same
    assert (one.choices[0].config, other.choices[0].config) == (WIDE, TALL)


def test_the_fastest_measured_kernel_answers_and_measured_ones_before_others() -> None:
    problem = product()
    fakes = [fake_kernel(f"fake.{name}") for name in ("one", "two", "three")]
    entries = (entry_of(problem, time_us=20.0), entry_of(problem, time_us=10.0, kernel="fake.two"))
    with only_kernels(*fakes):
        plan = dispatch.plan(problem, H200, AUTO, tables_of(entries))
    names = [choice.kernel.name for choice in plan.choices]
    assert names == ["fake.two", "fake.one", "fake.three", "xla.reference"]
    assert [c.source for c in plan.choices[:3]] == ["tuned cache", "tuned cache", "cost model"]


@pytest.mark.parametrize(("reference_us", "first"), [(9.7, "xla.reference"), (9.9, "fake.one")])
def test_the_reference_answers_first_only_where_it_was_measured_to_be_faster(
    reference_us: float, first: str
) -> None:
    problem = product()
    entries = (
        entry_of(problem, reference.Config(False), reference_us, kernel="xla.reference"),
        entry_of(problem, WIDE, 10.0),
    )
    with only_kernels(fake_kernel(), fake_kernel("fake.two")):
        plan = dispatch.plan(problem, H200, AUTO, tables_of(entries))
        assert (plan.kernel.name, plan.chosen_by) == (first, "tuned cache")
        # By the user, before what was shipped.
        plan = dispatch.plan(problem, H200, AUTO, tables_of(entries[1:], entries[:1]))
        assert plan.kernel.name == "fake.one"
        plan = dispatch.plan(problem, H200, Policy(strict=True), tables_of(entries))
        assert (plan.kernel.name, plan.choices[-1].kernel.name) == ("fake.one", "xla.reference")
        # As it was for the nearest problem.
        plan = dispatch.plan(product(k=128), H200, AUTO, tables_of(entries))
        assert plan.kernel.name == first
        assert (plan.choices[0].neighbour == cache.key_of(problem)) == (first == "xla.reference")
        far = dispatch.plan(product(k=2048), H200, AUTO, tables_of(entries))
        assert (far.kernel.name, far.chosen_by) == ("fake.one", "cost model")


def test_a_library_answers_where_it_was_measured_to_be_faster_and_where_it_is_named() -> None:
    problem = product()
    library = dataclasses.replace(fake_kernel("fake.library"), is_black_box=True)
    with only_kernels(fake_kernel(), library):
        plan = dispatch.plan(product(4096, 4096, 4096), H200, AUTO, tables_of())
        assert [c.kernel.name for c in plan.choices] == ["fake.one", "xla.reference"]
        assert "measured to be faster" in dict(plan.reasons)["fake.library"]
        named = dispatch.plan(problem, H200, Policy(backend="fake.library"), tables_of())
        assert named.kernel is library
        entries = (
            entry_of(problem, TALL, 9.0, kernel="fake.library"),
            entry_of(problem, WIDE, 10.0),
        )
        for near in (problem, product(k=128)):
            plan = dispatch.plan(near, H200, AUTO, tables_of(entries))
            assert (plan.kernel, plan.choices[0].config) == (library, TALL)
        # Of rows that are aligned differently it says nothing.
        odd = dispatch.plan(product(k=129), H200, AUTO, tables_of(entries))
        assert odd.kernel.name == "fake.one"
        assert plan.chosen_by == "nearest tuned problem"
        expected = plan.choices[1].time_us
        assert plan.choices[0].time_us == pytest.approx(0.9 * expected)


@pytest.mark.parametrize(
    ("m", "n", "k", "first"),
    [
        # 66 tiles of 128 x 128 for 132 SMs, and one more.
        (128, 8448, 4096, "fake.library"),
        (128, 8576, 4096, "fake.one"),
        # 32 tiles more than a wave.
        (128, 20992, 4096, "fake.one"),
        # 128 of 132, a little more and a little less than half full.
        (134, 8192, 4096, "fake.one"),
        (130, 8192, 4096, "fake.library"),
        (32, 16384, 4096, "fake.library"),
        # Rows of a that are not aligned.
        (128, 8448, 4095, "fake.one"),
    ],
)
def test_a_library_answers_where_tiles_would_leave_half_of_the_device_idle(
    m: int, n: int, k: int, first: str
) -> None:
    problem = product(m, n, k)
    library = dataclasses.replace(fake_kernel("fake.library"), is_black_box=True)
    with only_kernels(fake_kernel(configs=(Config(),)), library):
        plan = dispatch.plan(problem, H200, AUTO, tables_of())
        assert (plan.kernel.name, plan.chosen_by) == (first, "cost model")
        assert ("fake.library" in dict(plan.reasons)) == (first == "fake.one")
        # What was measured decides, where anything was.
        measured = tables_of((entry_of(problem, Config(), 99.0),))
        assert dispatch.plan(problem, H200, AUTO, measured).kernel.name == "fake.one"
    # Without kernels of ours nothing says that tiles are few.
    with only_kernels(library):
        assert dispatch.plan(problem, H200, AUTO, tables_of()).kernel.name == "xla.reference"


@pytest.mark.parametrize(("library_us", "first"), [(12.0, "fake.one"), (9.0, "fake.library")])
def test_a_library_that_the_user_timed_alone_is_compared_with_what_was_shipped_of_ours(
    library_us: float, first: str
) -> None:
    problem = product()
    library = dataclasses.replace(fake_kernel("fake.library"), is_black_box=True)
    user = (entry_of(problem, TALL, library_us, kernel="fake.library"),)
    with only_kernels(fake_kernel(), library):
        plan = dispatch.plan(problem, H200, AUTO, tables_of(user, (entry_of(problem, WIDE, 10.0),)))
    assert plan.kernel.name == first


def test_a_time_of_the_reference_alone_says_nothing() -> None:
    problem = product()
    alone = (entry_of(problem, reference.Config(False), 1.0, kernel="xla.reference"),)
    with only_kernels(fake_kernel()):
        plan = dispatch.plan(problem, H200, AUTO, tables_of(alone))
        assert [c.kernel.name for c in plan.choices] == ["fake.one", "xla.reference"]
        assert plan.chosen_by == "cost model"


def test_a_named_kernel_answers_alone() -> None:
    problem = product()
    entries = (
        entry_of(problem, reference.Config(False), 1.0, kernel="xla.reference"),
        entry_of(problem, WIDE),
    )
    with only_kernels(fake_kernel(), fake_kernel("fake.two")):
        forced = dispatch.plan(problem, H200, Policy(backend="fake.two"), tables_of(entries))
        assert [c.kernel.name for c in forced.choices] == ["fake.two"]
        assert forced.chosen_by == "only kernel"
        forced = dispatch.plan(problem, H200, Policy(backend="fake.one"), tables_of(entries))
        assert (forced.chosen_by, forced.choices[0].config) == ("tuned cache", WIDE)


@pytest.mark.parametrize(
    "changed",
    [
        {"kernel_version": 2},
        {"kernel": "fake.gone"},
        {"config": cache.config_text(Config((32, 32, 32)))},
        {"config": cache.config_text(dataclasses.replace(WIDE, stages=9))},
        {"config": "{}"},
    ],
)
def test_a_stale_entry_is_ignored(changed: dict[str, Any]) -> None:
    problem = product()
    entry = dataclasses.replace(entry_of(problem, WIDE), **changed)
    near = dataclasses.replace(entry_of(product(k=128), WIDE), **changed)
    with only_kernels(fake_kernel()):
        for table in (tables_of((entry,)), tables_of((), (entry,)), tables_of((near,))):
            assert dispatch.plan(problem, H200, AUTO, table).chosen_by == "cost model"


def test_an_entry_of_a_kernel_that_declines_is_ignored() -> None:
    problem = product()
    with only_kernels(fake_kernel(reason="not today"), fake_kernel("fake.two")):
        plan = dispatch.plan(problem, H200, AUTO, tables_of((entry_of(problem),)))
    assert plan.kernel.name == "fake.two"


def test_the_nearest_problem_is_the_one_whose_sizes_differ_least() -> None:
    one = product(1024, 1024, 1024)
    assert cache.distance(one, one) == 0
    assert cache.distance(one, product(2048, 512, 1024)) == 2
    assert cache.distance(one, product(1024, 1024, 1025)) < 0.01
    assert cache.distance(one, dataclasses.replace(one, sizes=(("k", 0), ("m", 1), ("n", 1)))) > 9
    others = [
        product(1024, 1024, 1024, layout="NT"),
        product(1024, 1024, 1024, extras=("bias",)),
        product(1024, 1024, 1024, dtype="float16"),
        product(1024, 1024, 1024, batch=((2, "a b d"),)),
    ]
    assert [cache.distance(one, other) for other in others] == [math.inf] * 4
    sizes = (700, 900, 1100, 1500, 3000)
    far = tables_of(
        (entry_of(product(1024, 1024, 700)),),
        tuple(entry_of(product(1024, 1024, k)) for k in sizes),
    )
    found = [entry.problem.k for entry in far.nearest(one, fake_kernel(), 1.0)]
    assert found == [1100, 900, 700, 700, 1500]


def test_a_transfer_takes_the_legal_config_that_differs_least() -> None:
    problem, near = product(4096, 4096, 4096), product(4096, 4096, 4000)
    stored = Config((128, 256, 64), stages=4, smem_bytes=200)
    legal = (
        Config((128, 128, 64), stages=4, smem_bytes=200),
        Config((128, 256, 64), stages=3, smem_bytes=100, note="x"),
        Config((128, 256, 64), stages=3, smem_bytes=200),
        Config((128, 256, 64), stages=4, smem_bytes=200, cluster_size=2),
    )

    def configs(asked: Problem, chip: Any) -> tuple[Config, ...]:
        return (stored,) if asked == near else legal

    kernel = dataclasses.replace(fake_kernel(), configs=configs)
    with only_kernels(kernel):
        plan = dispatch.plan(problem, H200, AUTO, tables_of((entry_of(near, stored),)))
        assert (plan.chosen_by, plan.choices[0].config) == (dispatch.NEAREST, legal[2])
    # What is not the same tile and cluster is another choice: nothing stands for it.
    with only_kernels(
        dataclasses.replace(kernel, configs=lambda p, d: (stored,) if p == near else legal[:1])
    ):
        assert (
            dispatch.plan(problem, H200, AUTO, tables_of((entry_of(near, stored),))).chosen_by
            == "cost model"
        )


def test_a_transfer_does_not_cross_a_number_of_waves_or_too_great_a_distance() -> None:
    large = Config((128, 256, 64))
    small = Config((128, 128, 64))
    # One wave of large tiles; half as many leave half of the device idle.
    measured = entry_of(product(2048, 2048, 2048), large)
    with only_kernels(fake_kernel(configs=(large, small))):
        for m, source in ((2048, dispatch.NEAREST), (1024, "cost model")):
            problem = product(m, 2048, 2040)
            plan = dispatch.plan(problem, H200, AUTO, tables_of((measured,)))
            assert plan.chosen_by == source
        assert dispatch.plan(
            product(8192, 8192, 8192), H200, AUTO, tables_of((measured,))
        ).chosen_by == ("cost model")


def test_plans_use_the_users_table_once_it_is_read_again(home: Path) -> None:
    problem = product()
    with only_kernels(fake_kernel()):
        before = dispatch.plan(problem, H200, AUTO)
        path = cache.save([entry_of(problem, WIDE)], "nvidia_h200")
        assert dispatch.plan(problem, H200, AUTO) is before, "a plan is not changed by a file"
        dispatch.forget()
        assert dispatch.plan(problem, H200, AUTO).chosen_by == "tuned cache"
        assert dispatch.plan(problem, device.named("nvidia_b200"), AUTO).chosen_by == "cost model"
        path.unlink()
        assert dispatch.plan(problem, H200, AUTO).chosen_by == "tuned cache"


def test_explain_says_who_chose(home: Path) -> None:
    x, y = (jax.ShapeDtypeStruct((256, n), "bfloat16") for n in (256, 320))
    (problem,) = search.problems_of(jaxgemm.gemm, x, x)
    cache.save(
        [entry_of(problem, WIDE, 12.5), entry_of(problem, time_us=25.0, kernel="fake.two")],
        H200.name,
    )
    with only_kernels(
        fake_kernel(configs=(WIDE,)), fake_kernel("fake.two"), fake_kernel("fake.three")
    ):
        shown = str(jaxgemm.explain(jaxgemm.gemm, x, x, device="h200"))
        near = str(jaxgemm.explain(jaxgemm.gemm, x, y, device="h200"))
    assert "kernel   fake.one (chosen by tuned cache)\n  measured 12.5 us\n" in shown
    assert "fake.two: accepts it; measured at 25.0 us" in shown
    assert "fake.three: accepts it; estimated at" in shown
    assert "(chosen by nearest tuned problem)\n  nearest  m=256 n=256 k=256 NN" in near


def test_explain_says_why_a_library_answers_and_what_was_measured_of_the_others(home: Path) -> None:
    x, y = (jax.ShapeDtypeStruct((256, n), "bfloat16") for n in (256, 320))
    (problem,) = search.problems_of(jaxgemm.gemm, x, x)
    library = dataclasses.replace(fake_kernel("fake.library"), is_black_box=True)
    alone = entry_of(problem, reference.Config(False), 9.0, kernel="xla.reference")
    cache.save([alone, entry_of(problem, WIDE, 12.0)], H200.name)
    with only_kernels(fake_kernel(), library), jaxgemm.use(strict=False):
        faster = str(jaxgemm.explain(jaxgemm.gemm, x, x, device="h200"))
        near = jaxgemm.explain(jaxgemm.gemm, x, y, device="h200").rows[0]
    assert "kernel   xla.reference (chosen by tuned cache)\n  measured 9.0 us\n" in faster
    assert "not      fake.one: accepts it; measured at 12.0 us" in faster
    assert "not      fake.library: a library: `auto` takes it where it was measured" in faster
    other_us = near.plan.choices[1].time_us
    assert "xla.reference (chosen by nearest tuned problem)\n  nearest  m=256 n=256" in str(near)
    assert f"\n  expected {0.75 * other_us:.1f} us, by what was measured for that\n" in str(near)
    assert f"fake.one: accepts it; estimated at {other_us:.1f} us" in str(near)
    cache.save([entry_of(problem, WIDE, 8.0)], H200.name)
    with only_kernels(fake_kernel()), jaxgemm.use(strict=False):
        slower = str(jaxgemm.explain(jaxgemm.gemm, x, x, device="h200"))
    assert "xla.reference: accepts it; measured at 9.0 us" in slower


def test_lowering_runs_the_config_of_the_users_table(home: Path) -> None:
    ran = []
    kernel = fake_kernel()
    spy = dataclasses.replace(kernel, run=lambda p, c, xs: (ran.append(c), kernel.run(p, c, xs))[1])
    x = np.ones((256, 256), np.float32)
    (problem,) = search.problems_of(jaxgemm.gemm, x, x)
    cache.save([entry_of(problem, WIDE)], H200.name)
    with only_kernels(spy), jaxgemm.use(device="nvidia_h200"):
        traced = jax.jit(lambda x: jaxgemm.gemm(x, x)).trace(x)
        traced.lower(lowering_platforms=("cuda",))
    assert ran == [WIDE]


def _shipped() -> list[Path]:
    return sorted((ROOT / "jaxgemm" / "tuning" / "tables").glob("*.json"))


@pytest.mark.parametrize("path", _shipped(), ids=lambda path: path.stem)
def test_shipped_tables_name_configs_that_kernels_list(path: Path) -> None:
    chip = device.named(path.stem)
    with warnings.catch_warnings(action="error"):
        table = cache.load(path, chip.name)
    assert table.entries
    kernels = {kernel.name: kernel for kernel in registry.kernels()}
    for entry in table.entries:
        kernel = kernels[entry.kernel]
        assert cache.key_of(entry.problem) == entry.problem
        assert {"clock", "jax", "time"} <= dict(entry.measured).keys()
        if not entry.is_of(kernel):
            continue
        # The library itself may be missing here.
        is_library = kernel is cublaslt.KERNEL
        assert not is_library or cublaslt.why_not_problem(entry.problem) is None
        assert is_library or kernel.why_not(entry.problem, chip) is None
        texts = map(cache.config_text, kernel.configs(entry.problem, chip))
        assert entry.config in texts, f"{kernel.name} lists other configs: raise its version"


def test_the_shipped_table_decides_for_its_problems() -> None:
    problem = LARGE_CASES["4096"].problem()
    plan = dispatch.plan(problem, H200, AUTO)
    assert plan.chosen_by == "shipped table"
    choice = plan.choices[0]
    entry = cache.current(H200).shipped.find(problem, choice.kernel)
    assert entry is not None
    assert cache.config_text(choice.config) == entry.config
