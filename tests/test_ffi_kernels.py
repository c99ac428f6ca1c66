"""Kernels behind XLA's FFI: what they decline and why, what `auto` takes, and all on a GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import device, dispatch, registry
from jaxgemm.ffi_kernels import (
    KERNELS,
    call,
    cublaslt,
    instances,
    library,
    limits,
    mma_sync,
    sm90,
    sm90_tf32,
)
from jaxgemm.kernel import Kernel
from jaxgemm.policy import Policy
from jaxgemm.tuning import cache, cost
from tests import kernel_answers
from tests.cublaslt_cases import BACKWARD_CASES
from tests.ffi_cases import accepted
from tests.kernel_cases import (
    BUSY_CASES,
    EXTRAS,
    KernelCase,
    in_float32,
)

_H200 = device.named("h200")


def test_bounds_beyond_float32_are_infinite_and_warn_nobody() -> None:
    with np.errstate(over="raise"):
        found = call.attributes(KernelCase(clamp=(-1e39, 1e39)).problem(), "naive_f32", ("d",))
    np.testing.assert_array_equal(found["clamp"], np.float32([-np.inf, np.inf]))


_DECLINED = {
    "grouped": (KernelCase(), {"ragged": "m"}, "divided into groups"),
    "gated": (KernelCase(), {"operands": ("a", "b", "b_up")}, "b_up is present"),
    "float64": (KernelCase(dtype="float64", out="float64"), {}, "a is float64"),
    "mixed": (KernelCase(dtypes=(("b", "float16"),)), {}, "b is float16"),
    "bias": (KernelCase(extras=("bias",), dtypes=(("bias", "float8_e5m2"),)), {}, "bias is float8"),
    "summed": (KernelCase(batch=((3, "a b"),)), {}, "summed over"),
    "axes": (KernelCase(m=8, batch=((2, "a d"),) * 5), {}, "5 batch axes"),
    "grid": (KernelCase(batch=((2**20, "a d"), (2**10, "a d"))), {}, "split the batch"),
    "far_rows": (
        KernelCase(m=8, k=2**20, batch=((2**10, "a b d"),), inside=("a",)),
        {},
        "a has 8192 rows in all, 1073741824 elements apart",
    ),
    "far_matrices": (
        KernelCase(m=2**16, n=8, k=8, batch=((2**8, "a b d"), (2**6, "a b d")), inside=("", "d")),
        {},
        "d has 1073741824 rows in all",
    ),
    "size": (KernelCase(m=8, k=2**30), {}, "k = 1073741824: this kernel takes at most"),
}


@pytest.mark.parametrize("name", _DECLINED)
def test_ladder_declines_with_a_reason(name: str) -> None:
    case, changes, word = _DECLINED[name]
    with jax.enable_x64(name == "float64"):
        problem = case.problem()
    problem = dataclasses.replace(problem, spec=dataclasses.replace(problem.spec, **changes))
    reason = limits.why_not_problem(problem, "cuda.naive")
    assert reason is not None
    assert word in reason
    assert not reason.endswith(".")


_MANY, _FEWER = (((2**15, "a d"), (size, "a d")) for size in (2**15, 2**10))


@pytest.mark.parametrize(
    ("kernel", "case", "text"),
    [
        (sm90.KERNEL, KernelCase(m=1, n=8, k=8, batch=_MANY), "d has 1073741824 tiles"),
        (sm90.KERNEL, KernelCase(m=128, n=8, k=17, batch=_FEWER), "a has rows of 17 elements"),
        (mma_sync.KERNEL, KernelCase(m=128, n=8, k=17, batch=_FEWER), "a has rows of 17 elements"),
        (cublaslt.KERNEL, KernelCase(m=2**31, n=8, k=8), "m = 2147483648: this kernel takes"),
        (
            sm90_tf32.KERNEL,
            KernelCase(m=1, n=8, k=8, batch=(*_FEWER, (2**5, "a d")), dtype="float32"),
            "d has 1073741824 tiles: this kernel takes 536870911",
        ),
    ],
    ids=["tiles", "copies", "copies_mma_sync", "size", "tiles_of_tf32"],
)
def test_what_needs_longer_integers_is_declined(
    kernel: Kernel, case: KernelCase, text: str
) -> None:
    assert text in str(kernel.why_not(case.problem(), _H200))


_IN_FLOAT32 = {"dtype": "float32", "out": "float32"}


@pytest.mark.parametrize(
    ("case", "word"),
    [
        (KernelCase(**_IN_FLOAT32, layout="TN"), "a must be (m, k), or b (n, k)"),
        (KernelCase(**_IN_FLOAT32, precision="highest"), "precision is highest"),
        (KernelCase(), "a is bfloat16: this kernel needs float32"),
        (KernelCase(**_IN_FLOAT32, dtypes=(("b", "bfloat16"),)), "b is bfloat16"),
    ],
    ids=["layout", "precision", "dtype", "mixed"],
)
def test_tf32_kernel_declines_with_a_reason(case: KernelCase, word: str) -> None:
    assert word in str(sm90_tf32.KERNEL.why_not(case.problem(), _H200))


@pytest.mark.parametrize(
    ("layout", "tile", "along"),
    [("NN", (256, 128, 32), "n"), ("NT", (128, 256, 32), "m"), ("TT", (128, 256, 32), "m")],
)
def test_tiles_of_tf32_lie_as_the_operand_from_registers_does(
    layout: str, tile: tuple[int, int, int], along: str
) -> None:
    problem = KernelCase(4096, 4096, 4096, **_IN_FLOAT32, layout=layout).problem()
    config = sm90_tf32.KERNEL.configs(problem, _H200)[0]
    assert (config.cta_tile, config.cluster_along, config.cluster_size) == (tile, along, 2)
    # Strips are as wide.
    width = {"NN": 2 * 128, "NT": 256, "TT": 256}[layout]
    assert config.strip_width * width == 2048


def test_kernels_decline_a_cpu() -> None:
    for kernel in KERNELS:
        assert "cpu" in kernel.why_not(KernelCase().problem(), device.CPU)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernel_has_configs_that_fit_the_device(kernel: Kernel) -> None:
    [*params] = (p for p in accepted() if p.values[0] is kernel)
    assert params
    for param in params:
        configs = kernel.configs(param.values[1].problem(), _H200)
        assert len(set(configs)) == len(configs) > 0
        for config in configs:
            assert config.smem_bytes <= _H200.smem_bytes
            assert config.split_k >= 1


@pytest.mark.parametrize("precision", ["default", "highest"])
def test_auto_leaves_the_lessons_to_those_who_name_them(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "why_not", lambda: None)
    dispatch.forget()
    case = KernelCase(1024, 1024, 1024, dtype="float32", out="float32", precision=precision)
    plan = dispatch.plan(case.problem(), _H200, Policy())
    rungs = [k.name for k in KERNELS if "a lesson" in (k.why_not_auto() or "")]
    assert "cuda.warptiled" in rungs
    assert not {choice.kernel.name for choice in plan.choices} & set(rungs)
    assert set(rungs) <= dict(plan.reasons).keys()
    assert "a lesson" in dict(plan.reasons)["cuda.warptiled"]
    named = dispatch.plan(case.problem(), _H200, Policy(backend="cuda.naive"))
    assert named.kernel.name == "cuda.naive"
    dispatch.forget()


@pytest.mark.parametrize(
    ("case", "names"),
    [
        (KernelCase(4096, 4096, 4096), ("pallas.hopper.dense", "cuda.sm90.dense")),
        (KernelCase(512, 1024, 8192), ("pallas.hopper.dense", "cuda.sm90.dense")),
        (KernelCase(4097, 4095, 4096), ("cuda.sm90.dense",)),
        (KernelCase(4096, 4096, 588), ("cuda.sm90.dense",)),
        (KernelCase(1000, 1001, 1003, extras=EXTRAS), ("cuda.sm90.dense",)),
        (KernelCase(4096, 4096, 4096, **_IN_FLOAT32), ("cuda.sm90.tf32",)),
        (KernelCase(1000, 1001, 1003, **_IN_FLOAT32, layout="TT"), ("cuda.sm90.tf32",)),
        (
            KernelCase(4096, 4096, 4096, **_IN_FLOAT32, layout="NT"),
            ("pallas.hopper.dense", "cuda.sm90.tf32"),
        ),
        (KernelCase(4096, 4096, 4096, **_IN_FLOAT32, layout="TN"), ()),
    ],
    ids=str,
)
def test_hopper_kernels_answer_where_pallas_declines(
    case: KernelCase, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("why_not", "why_not_built"):
        monkeypatch.setattr(library, name, lambda: None)
    # A kernel holds the function itself.
    built = {
        k: dataclasses.replace(k, why_not_auto=lambda: None)
        for k in (sm90.KERNEL, sm90_tf32.KERNEL)
    }
    known = tuple(built.get(k, k) for k in registry.kernels())
    monkeypatch.setattr(registry, "kernels", lambda: known)
    dispatch.forget()
    plan = dispatch.plan(case.problem(), _H200, Policy(), cache.Tables())
    assert tuple(choice.kernel.name for choice in plan.choices[:-1]) == names
    dispatch.forget()


def test_estimates_are_in_the_order_of_the_ladder() -> None:
    case = KernelCase(4096, 4096, 4096, dtype="float32", out="float32", precision="highest")
    problem, times = case.problem(), {}
    for kernel in KERNELS:
        if limits.why_not_problem(problem, kernel.name) is None:
            configs = kernel.configs(problem, _H200)
            times[kernel.name] = cost.ranked(problem, configs, _H200, kernel.efficiency)[0][
                1
            ].time_us
    ladder = ("naive", "coalesced", "tiled", "register_blocked", "warptiled")
    ordered = [times[f"cuda.{name}"] for name in ladder]
    assert ordered == sorted(ordered, reverse=True)


@pytest.mark.parametrize(
    ("case", "num_bytes"),
    [
        (KernelCase(m=33, n=64, k=128), 0),
        (KernelCase(m=33, n=64, k=127), 33 * 256),
        (KernelCase(m=33, n=65, k=127), 33 * 256 + 127 * 144),
        (KernelCase(m=33, n=65, k=127, layout="TT"), 127 * 80 + 65 * 256),
        (KernelCase(m=33, n=64, k=127, batch=((3, "a d"), (5, "b d"))), 3 * 33 * 256),
        (KernelCase(m=33, n=65, k=0), 0),
        (KernelCase(m=1, n=64, k=128), 256),
    ],
    ids=str,
)
def test_hopper_kernel_asks_for_room_for_rows_that_tma_cannot_address(
    case: KernelCase, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        call, "run", lambda *_, workspace_bytes, **__: asked.append(workspace_bytes)
    )
    problem = case.problem()
    sm90.KERNEL.run(problem, sm90.KERNEL.configs(problem, _H200)[0], {})
    assert asked == [num_bytes]


def test_what_was_never_timed_is_left_to_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    row, *rest = instances.of_kernel("cuda.sm90.dense")
    untimed = {row.name: dataclasses.replace(row, unmeasured=True)}
    monkeypatch.setattr(instances, "by_name", lambda: untimed | {x.name: x for x in rest})
    for name in ("why_not", "why_not_built"):
        monkeypatch.setattr(library, name, lambda: None)
    kernel = dataclasses.replace(sm90.KERNEL, why_not_auto=lambda: None)
    reference = registry.kernels()[-1]
    problem = KernelCase(4097, 4095, 4096).problem()
    first, *others = kernel.configs(problem, _H200)
    assert [first.only_measured, others[0].only_measured] == [True, False]

    def plan(tables: cache.Tables, configs: tuple[sm90.Config, ...]) -> dispatch.Plan:
        dispatch.forget()
        known = dataclasses.replace(kernel, configs=lambda *_: configs)
        monkeypatch.setattr(registry, "kernels", lambda: (known, reference))
        return dispatch.plan(problem, _H200, Policy(), tables)

    assert plan(cache.Tables(), (first, *others)).choices[0].config != first
    alone = plan(cache.Tables(), (first,))
    assert alone.kernel.name == "xla.reference"
    assert "no config of it was ever timed" in dict(alone.reasons)["cuda.sm90.dense"]
    entry = cache.Entry(
        kernel.name, kernel.version, cache.key_of(problem), cache.config_text(first), 1.0
    )
    timed = cache.Tables(user=cache.Table((entry,)))
    assert plan(timed, (first, *others)).choices[0].config == first
    dispatch.forget()


@pytest.mark.parametrize(
    ("case", "is_plain"),
    [
        (KernelCase(m=33, n=64, k=127), True),
        (KernelCase(n=65), False),
        (KernelCase(m=1, n=64), False),
        (KernelCase(out="float32"), False),
        (KernelCase(extras=("alpha",)), False),
        (KernelCase(activation="relu"), False),
        (KernelCase(clamp=(None, 6.0)), False),
    ],
    ids=str,
)
def test_instances_for_plain_products_are_left_out_of_others(
    case: KernelCase, is_plain: bool
) -> None:
    rows = instances.by_name()
    configs = sm90.KERNEL.configs(case.problem(), _H200)
    assert any(rows[config.instance].only_plain for config in configs) == is_plain


def _in_tf32(x: jax.Array) -> jax.Array:
    """Float32 without the bits that TF32 does not have: Tensor Cores then multiply exactly."""
    if x.dtype != jnp.float32:
        return x
    return (x.view(jnp.uint32) & jnp.uint32(0xFFFFE000)).view(jnp.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "case"), accepted())
def test_every_config_is_right_on_a_gpu_with_the_same_bits(
    kernel: Kernel, case: KernelCase
) -> None:
    target = device.current()
    problem = case.problem()
    assert library.why_not() is None
    if reason := kernel.why_not(problem, target):
        pytest.skip(f"{target.name}: {reason}")
    arrays = case.arrays()
    if kernel in (mma_sync.KERNEL, cublaslt.KERNEL, sm90_tf32.KERNEL):
        arrays |= {name: _in_tf32(arrays[name]) for name in ("a", "b")}
    kernel_answers.check_every_config(
        kernel,
        problem,
        arrays,
        same_bits=kernel is not cublaslt.KERNEL,
        is_exact=case.is_exact,
        u_curved=kernel_answers.U_CURVED,
    )


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "case"),
    accepted((sm90.KERNEL, sm90_tf32.KERNEL), {**BUSY_CASES, **in_float32(BUSY_CASES)}),
)
def test_a_grid_that_stays_stores_every_tile_in_its_place(kernel: Kernel, case: KernelCase) -> None:
    problem, target = case.problem(), device.current()
    if reason := kernel.why_not(problem, target):
        pytest.skip(f"{target.name}: {reason}")
    arrays = {n: _in_tf32(x) if n in ("a", "b") else x for n, x in case.arrays().items()}
    kernel_answers.check_every_config(kernel, problem, arrays, u_curved=kernel_answers.U_CURVED)


@pytest.mark.gpu
def test_handler_refuses_backward_epilogues_of_compiled_kernels() -> None:
    case = BACKWARD_CASES["pullback_and_sum"]
    with pytest.raises(jax.errors.JaxRuntimeError, match="which only a library computes"):
        call.run(case.problem(), "cuda.mma_sync", "mma_sync_bf16_128x128_s2", case.arrays())


@pytest.mark.gpu
def test_named_kernel_answers_through_gemm_and_its_gradient() -> None:
    a, b = (
        jnp.asarray(np.random.default_rng(i).normal(size=(129, 129)), jnp.float32) for i in (0, 1)
    )
    loss = lambda a, b: (jaxgemm.gemm(a, b, backend="cuda.warptiled") ** 2).sum()  # noqa: E731
    plain = lambda a, b: ((a @ b) ** 2).sum()  # noqa: E731
    with jax.default_matmul_precision("highest"):
        got, want = (jax.jit(jax.grad(f, (0, 1)))(a, b) for f in (loss, plain))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-2)
