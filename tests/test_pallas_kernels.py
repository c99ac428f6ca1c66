"""Every registered Pallas kernel: interpreted with race detection, lowered, and run on a GPU."""

import dataclasses
import itertools
import math
import random
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import pytest
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as interpreter

from jaxgemm import device, dtypes
from jaxgemm.kernel import Config, Kernel
from pallas_kernels import KERNELS
from pallas_kernels.hopper import dense
from tests import kernel_answers
from tests.kernel_cases import EXTRAS, FITTING_CASES, SMALL_CASES, KernelCase

_HOPPER = device.named("h200")
# Fewer CTAs than tiles, so that every CTA works on several and its rings go on across them.
_TWO_SMS = dataclasses.replace(_HOPPER, num_sms=2)


def _checks(case: KernelCase) -> dict[str, Any]:
    """How exact outputs must be: float32 is multiplied as TF32."""
    u_mul = dtypes.TF32_UNIT_ROUNDOFF if case.dtype == "float32" else 0.0
    return {"u_mul": u_mul, "is_exact": case.is_exact}


def _interpret(kernel: Kernel, case: KernelCase, config: Config) -> None:
    problem = case.problem()
    params = plgpu.InterpretGPUParams(
        detect_races=True, out_of_bounds_reads="raise", uninitialized_memory="nan"
    )
    # The interpreter runs on the default device, where there is a GPU too.
    with jax.default_device(jax.devices("cpu")[0]), plgpu.force_gpu_interpret_mode(params):
        arrays = case.arrays()
        outputs = jax.jit(lambda x: kernel.run(problem, config, x))(arrays)
        jax.block_until_ready(outputs)
    assert not interpreter.get_races().races_found
    kernel_answers.check(problem, arrays, outputs, **_checks(case))


def _accepted() -> list[Any]:
    """Every kernel with every case that it accepts."""
    return [
        pytest.param(kernel, case, id=f"{kernel.name}-{name}")
        for kernel, (name, case) in itertools.product(KERNELS, SMALL_CASES.items())
        if kernel.why_not(case.problem(), _HOPPER) is None
    ]


# In special values; the interpreter warns of them in numpy's words.
_MAY_BE_NAN = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@_MAY_BE_NAN
@pytest.mark.parametrize(("kernel", "case"), _accepted())
def test_interpreted_kernel_is_right_and_has_no_races(kernel: Kernel, case: KernelCase) -> None:
    """The smallest tile of each kind of config."""
    kinds: dict[Any, list[Any]] = {}
    for config in kernel.configs(case.problem(), _TWO_SMS):
        kinds.setdefault(getattr(config, "takes_turns", None), []).append(config)
    for configs in kinds.values():
        _interpret(kernel, case, min(configs, key=lambda config: math.prod(config.cta_tile)))


_ODD_TILES = KernelCase(m=144, n=272, k=80, layout="TT")


@pytest.mark.parametrize(
    ("kernel", "config"),
    [
        pytest.param(kernel, config, id=f"{kernel.name}-{i}")
        for kernel in KERNELS
        for i, config in enumerate(kernel.configs(_ODD_TILES.problem(), _TWO_SMS))
    ],
)
def test_every_interpreted_config_is_right(kernel: Kernel, config: Config) -> None:
    _interpret(kernel, _ODD_TILES, config)


def _fitting_configs(case: KernelCase) -> list[Any]:
    """The configs of the other heights, of which consumers compute the transpose."""
    configs = dense.configs(case.problem(), _TWO_SMS)
    return [config for config in configs if config.computes_transpose]


@_MAY_BE_NAN
@pytest.mark.parametrize("name", FITTING_CASES)
def test_interpreted_tile_that_fits_is_right(name: str) -> None:
    case = FITTING_CASES[name]
    configs = _fitting_configs(case)
    assert configs
    _interpret(dense.KERNEL, case, configs[-1])


def test_tiles_that_fit_take_turns_if_there_is_more_than_one_wave() -> None:
    ways = {
        config.takes_turns for case in FITTING_CASES.values() for config in _fitting_configs(case)
    }
    assert ways == {True, False}


@pytest.mark.parametrize(
    ("size", "cta_tile_m"), [(1536, 144), (1600, 160), (1664, 176), (5120, 144), (4096, None)]
)
def test_other_heights_are_for_sizes_that_they_fit(size: int, cta_tile_m: int | None) -> None:
    problem = KernelCase(size, size, 4096).problem()
    found = {x.cta_tile_m for x in dense.configs(problem, _HOPPER) if x.computes_transpose}
    assert found == ({cta_tile_m} if cta_tile_m else set())


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernel_accepts_some_case(kernel: Kernel) -> None:
    assert any(kernel.why_not(case.problem(), _HOPPER) is None for case in SMALL_CASES.values())


@pytest.mark.parametrize(("kernel", "case"), _accepted())
def test_configs_fit_the_device(kernel: Kernel, case: KernelCase) -> None:
    configs = kernel.configs(case.problem(), _HOPPER)
    assert configs
    assert len(set(configs)) == len(configs)
    for config in configs:
        assert config.smem_bytes <= _HOPPER.smem_bytes
        assert config.stages > 0
        assert config.cluster_size > 0
        assert config.split_k > 0


def _random_cases(count: int) -> list[KernelCase]:
    """Sizes at the edges of what TMA can address, so about half are declined."""
    rng = random.Random(0)
    sizes = (1, 4, 8, 12, 16, 24, 48, 64, 72, 80, 96, 128, 130, 200, 264, 1000, 4096)
    layouts = ("NN", "NT", "TN", "TT")
    epilogues = ((), ("c", "beta"), ("bias",), EXTRAS)
    batch = ((3, "a b d"),)
    batches = ({}, {"batch": batch}, {"batch": batch, "inside": ("a d",)})
    return [
        KernelCase(
            *(rng.choice(sizes) for _ in range(3)),
            layout=rng.choice(layouts),
            out=rng.choice(("bfloat16", "float32")),
            extras=rng.choice(epilogues),
            **rng.choice(batches),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_accepted_problem_lowers(kernel: Kernel) -> None:
    problems = (case.problem() for case in _random_cases(400))
    accepted = [p for p in problems if kernel.why_not(p, _HOPPER) is None][:24]
    assert accepted
    for problem in accepted:
        config = kernel.configs(problem, _HOPPER)[0]
        names = problem.spec.operands
        arrays = {n: jax.ShapeDtypeStruct(problem.shape(n), problem.dtype(n)) for n in names}
        f = jax.jit(lambda x, p=problem, c=config: kernel.run(p, c, x))
        f.trace(arrays).lower(lowering_platforms=("cuda",))


_DECLINED = {
    "sm_100": (KernelCase(), device.named("b200"), "compute capability"),
    "grouped": (KernelCase(), _HOPPER, "groups"),
    "a_dtype": (KernelCase(dtype="float8_e4m3fn"), _HOPPER, "float8_e4m3fn"),
    "float32_layout": (KernelCase(dtype="float32", out="float32"), _HOPPER, "layout NN"),
    "float32_precision": (
        KernelCase(dtype="float32", out="float32", layout="NT", precision="highest"),
        _HOPPER,
        "precision is highest",
    ),
    "mixed_dtypes": (KernelCase(dtypes=(("b", "float16"),)), _HOPPER, "float16"),
    "bias_dtype": (
        KernelCase(extras=("bias",), dtypes=(("bias", "float8_e5m2"),)),
        _HOPPER,
        "float8_e5m2",
    ),
    "summed_batch": (KernelCase(batch=((3, "a b"),)), _HOPPER, "summed"),
    "empty_m": (KernelCase(m=0), _HOPPER, "m = 0"),
    "empty_k": (KernelCase(k=0), _HOPPER, "k = 0"),
    "empty_batch": (KernelCase(batch=((0, "a d"),)), _HOPPER, "b0 = 0"),
    "long_batch": (KernelCase(batch=((2**28, "a d"),)), _HOPPER, "int32"),
    "odd_k": (KernelCase(k=100), _HOPPER, "k = 100"),
    "odd_m": (KernelCase(m=130), _HOPPER, "m = 130"),
    "odd_n": (KernelCase(n=1001, layout="NT"), _HOPPER, "n = 1001"),
    "k_not_of_a_swizzle": (KernelCase(k=72), _HOPPER, "k = 72"),
    "n_not_of_a_swizzle": (KernelCase(n=72), _HOPPER, "n = 72"),
    "bias_not_of_a_slice": (KernelCase(n=40, extras=("bias",)), _HOPPER, "n = 40"),
}


@pytest.mark.parametrize("name", _DECLINED)
def test_dense_kernel_declines_with_a_reason(name: str) -> None:
    case, target, word = _DECLINED[name]
    problem = case.problem()
    if name == "grouped":
        problem = dataclasses.replace(
            problem,
            spec=dataclasses.replace(problem.spec, ragged="m"),
            sizes=(*problem.sizes, ("g", 4)),
        )
    kernel = next(kernel for kernel in KERNELS if kernel.name == "pallas.hopper.dense")
    reason = kernel.why_not(problem, target)
    assert reason is not None
    assert word in reason
    assert "\n" not in reason
    assert not reason.endswith(".")


# Some waves, of which the last is partly filled, and more steps than the ring has slots.
_REPEATED = KernelCase(m=5120, n=1280, k=1024, extras=("bias",), activation="gelu")


def _way(config: Any) -> str:
    """What distinguishes configs in how their warpgroups work together."""
    if config.computes_transpose:
        return "transposed"
    return "takes turns" if config.takes_turns else "cooperates"


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "case"), _accepted())
def test_every_config_is_right_on_a_gpu_with_the_same_bits(
    kernel: Kernel, case: KernelCase
) -> None:
    target = device.current()
    problem = case.problem()
    if reason := kernel.why_not(problem, target):
        pytest.skip(f"{target.name}: {reason}")
    kernel_answers.check_every_config(kernel, problem, case.arrays(), **_checks(case))


@pytest.mark.gpu
@pytest.mark.parametrize("name", FITTING_CASES)
def test_tiles_that_fit_are_right_on_a_gpu_with_the_bits_of_the_others(name: str) -> None:
    if device.current().compute_capability != _HOPPER.compute_capability:
        pytest.skip("these tiles are for Hopper")
    case = FITTING_CASES[name]
    on_two_sms = dataclasses.replace(
        dense.KERNEL, configs=lambda problem, _: dense.configs(problem, _TWO_SMS)
    )
    kernel_answers.check_every_config(on_two_sms, case.problem(), case.arrays())


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["takes turns", "cooperates", "transposed"])
def test_thousand_runs_on_a_gpu_give_the_same_bits(way: str) -> None:
    target = device.current()
    if dense.KERNEL.why_not(_REPEATED.problem(), target):
        pytest.skip(f"{target.name} does not run this kernel")
    problem, arrays = _REPEATED.problem(), _REPEATED.arrays()
    config = next(x for x in dense.configs(problem, target) if _way(x) == way)
    run = lambda x: dense.run(problem, config, x)[0]  # noqa: E731
    assert kernel_answers.num_changed(run, arrays, 1000) == 0
