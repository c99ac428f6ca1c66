"""The choice of a kernel: pure, cheapest first; and what happens when one fails.

Fakes stand for kernels, so that every case of dispatch exists on a machine without a GPU. Calls
are lowered for CUDA and not run.
"""

import dataclasses
import sys
import types
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxgemm
from jaxgemm import device, dispatch, policy, registry
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.tuning import cost
from tests.dispatch_fakes import (
    REFERENCE,
    REFUSED,
    Config,
    X,
    equations,
    explained,
    fake_kernel,
    lowered_text,
    only_kernels,
    only_packages,
    product,
    square,
    struct,
)

H200, CPU = device.named("nvidia_h200"), device.CPU
AUTO = Policy()
# The tiles of problems as small as those here.
FULL = (Config(cta_tile=(8, 8, 16)),)


# The plan.


def test_plan_is_cached_and_depends_on_its_arguments_alone() -> None:
    problem = product(64, 64, 64)
    plan = dispatch.plan(problem, H200, AUTO)
    again = product(64, 64, 64)
    assert again is not problem
    with jaxgemm.use(backend="xla", strict=True, device="nvidia_b200"):
        assert dispatch.plan(again, H200, AUTO) is plan
        dispatch.plan.cache_clear()
        assert dispatch.plan(again, H200, AUTO) == plan
    assert dispatch.plan(problem, H200, Policy(backend="xla")) != plan


def test_cheapest_kernel_comes_first_and_the_reference_last() -> None:
    slow, fast = fake_kernel("slow", efficiency=0.1), fake_kernel("fast", efficiency=0.5)
    declines = fake_kernel("never", reason="it is not willing")
    with only_kernels(slow, declines, fast):
        plan = dispatch.plan(product(4096, 4096, 4096), H200, AUTO)
    # The reference claims 0.9 of the rate, and still only answers where nothing else does.
    assert [choice.kernel.name for choice in plan.choices] == ["fast", "slow", "xla.reference"]
    assert plan.choices[-1].estimate.time_us < plan.choices[0].estimate.time_us
    assert plan.kernel is fast
    assert plan.chosen_by == "cost model"
    assert plan.reasons == (("never", "it is not willing"),)


def test_order_of_kernels_that_cost_the_same_is_that_of_the_registry() -> None:
    with only_kernels(fake_kernel("first"), fake_kernel("second")):
        plan = dispatch.plan(product(512, 512, 512), H200, AUTO)
    assert [choice.kernel.name for choice in plan.choices[:2]] == ["first", "second"]


def test_tiles_that_would_be_half_empty_leave_a_problem_to_the_reference() -> None:
    fake = fake_kernel("fake", configs=(Config(cta_tile=(64, 128, 64)),))
    for m, first in ((32, "xla.reference"), (33, "fake"), (64, "fake"), (1, "xla.reference")):
        problem = product(m, 4096, 4096)
        with only_kernels(fake):
            plan = dispatch.plan(problem, H200, AUTO)
            named = dispatch.plan(problem, H200, Policy(backend="fake"))
            strict = dispatch.plan(problem, H200, Policy(strict=True))
        assert {c.kernel.name for c in plan.choices} == {"fake", "xla.reference"}
        assert plan.kernel.name == first
        assert named.kernel is strict.kernel is fake
        # The bits of a row must not change when there are more.
        spec = problem.spec.replace(batch_invariant=True)
        invariant = dataclasses.replace(problem, spec=spec)
        with only_kernels(fake):
            assert dispatch.plan(invariant, H200, AUTO).kernel is fake
    with only_kernels(fake), jaxgemm.use(strict=False):
        text = str(jaxgemm.explain(jaxgemm.gemm, struct(16, 64), struct(64, 128), device=H200.name))
    assert "us, with tiles that are 25% full" in text


def test_config_with_the_lowest_estimate_is_chosen() -> None:
    wasteful, fitting = Config(cta_tile=(256, 256, 64)), Config(cta_tile=(64, 64, 64))
    problem = product(64, 64, 4096)
    with only_kernels(fake_kernel("fake", configs=(wasteful, fitting, wasteful))):
        plan = dispatch.plan(problem, H200, AUTO)
    assert plan.choices[0].config is fitting
    assert plan.choices[0].estimate == cost.estimate(problem, fitting, H200, 1.0)


def test_only_the_reference_is_left_where_all_decline() -> None:
    with only_kernels(fake_kernel("one", reason="no"), fake_kernel("two", reason="never")):
        plan = dispatch.plan(product(8, 8, 8), H200, AUTO)
        assert plan.kernel is REFERENCE
        assert plan.chosen_by == "only kernel"
        with pytest.raises(jaxgemm.UnsupportedProblem) as raised:
            dispatch.plan(product(8, 8, 8), H200, Policy(strict=True))
        assert raised.value.reasons == {"one": "no", "two": "never", REFERENCE.name: REFUSED}
        # On a CPU the reference is what should run.
        assert dispatch.plan(product(8, 8, 8), CPU, Policy(strict=True)).kernel is REFERENCE
        # Whoever asks for the reference gets it.
        strict = Policy(backend="xla", strict=True)
        assert dispatch.plan(product(8, 8, 8), H200, strict).kernel is REFERENCE


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("auto", ["p.one", "p.two", "q", "xla.reference"]),
        ("p", ["p.one", "p.two"]),
        ("p.two", ["p.two"]),
        ("q", ["q"]),
        ("xla", ["xla.reference"]),
    ],
)
def test_backend_allows_a_kernel_or_a_family(backend: str, names: list[str]) -> None:
    with only_kernels(fake_kernel("p.one"), fake_kernel("p.two"), fake_kernel("q")):
        plan = dispatch.plan(product(64, 64, 64), H200, Policy(backend=backend))
        assert sorted(choice.kernel.name for choice in plan.choices) == names
        assert [kernel.name for kernel in registry.selected(backend)] == names


def test_use_nests_and_the_argument_of_a_call_wins() -> None:
    assert policy.current() == Policy(strict=True), "the fixture of all tests"
    with jaxgemm.use(backend="xla", strict=False) as outer:
        with jaxgemm.use(device="nvidia_a100-sxm4-80gb") as inner:
            assert inner == Policy("xla", False, "nvidia_a100-sxm4-80gb") == policy.current()
            (equation,) = equations(
                lambda x: jaxgemm.gemm(x, x, backend="xla.reference"), X[:8, :8]
            )
            assert equation.params["policy"] == dataclasses.replace(inner, backend="xla.reference")
        assert policy.current() == outer
    assert policy.current() == Policy(strict=True)


def test_function_compiled_under_one_policy_is_not_reused_under_another() -> None:
    ran: list[str] = []
    function = jax.jit(square)
    with only_kernels(fake_kernel("one", ran=ran), fake_kernel("two", ran=ran)):
        for backend in ("one", "two", "one"):
            with jaxgemm.use(backend=backend, device="nvidia_h200"):
                function.trace(X).lower(lowering_platforms=("cuda",))
    # The third time there is nothing left to lower.
    assert ran == ["one", "two"]


# Faults.


def test_kernel_whose_lowering_raises_is_skipped_with_one_warning() -> None:
    broken = fake_kernel("fake.broken", error=RuntimeError("out of registers"), configs=FULL)
    warns = pytest.warns(jaxgemm.FallbackWarning)
    with only_kernels(broken), jaxgemm.use(strict=False), warns as caught:
        text = lowered_text(square, X)
    assert "stablehlo.dot_general" in text
    assert [str(warning.message) for warning in caught] == [
        "fake.broken failed to lower m=8 n=8 k=16 NT float32·float32→float32, so xla.reference"
        " answers: RuntimeError: out of registers"
    ]


def test_fallback_goes_to_the_next_cheapest_kernel() -> None:
    ran: list[str] = []
    first = fake_kernel("a.first", error=ValueError("one"), efficiency=1.0, ran=ran)
    second = fake_kernel("a.second", error=KeyError("two"), efficiency=0.8, ran=ran)
    third = fake_kernel("a.third", efficiency=0.6, ran=ran)
    last = fake_kernel("a.last", efficiency=0.4, ran=ran)
    x = np.ones((512, 512), np.float32)
    fakes, warns = (last, third, second, first), pytest.warns(jaxgemm.FallbackWarning)
    with only_kernels(*fakes), jaxgemm.use(strict=False), warns as caught:
        lowered_text(lambda x: jaxgemm.gemm(x, x), x)
    assert ran == ["a.first", "a.second", "a.third"]
    texts = [str(warning.message) for warning in caught]
    assert [text.split(" failed")[0] for text in texts] == ["a.first", "a.second"]
    assert texts[0].endswith("so a.second answers: ValueError: one")
    assert texts[1].endswith("so a.third answers: KeyError: 'two'")


@pytest.mark.parametrize("backend", ["auto", "fake", "fake.broken"])
def test_strict_raises_the_error_of_the_kernel(backend: str) -> None:
    broken = fake_kernel("fake.broken", error=RuntimeError("out of registers"))
    raises = pytest.raises(RuntimeError, match=r"^out of registers$")
    with only_kernels(broken), jaxgemm.use(backend=backend, strict=True), raises:
        lowered_text(square, X)


def test_named_kernel_that_fails_is_not_replaced_by_another() -> None:
    broken, fine = fake_kernel("p.broken", error=RuntimeError("no")), fake_kernel("q.fine")
    raises = pytest.raises(RuntimeError, match=r"^no$")
    with only_kernels(broken, fine), jaxgemm.use(strict=False), raises:
        lowered_text(lambda x: jaxgemm.gemm(x, x, transpose_b=True, backend="p.broken"), X)


def test_strict_refuses_the_reference_and_not_strict_takes_it_silently() -> None:
    with only_kernels(fake_kernel("fake", reason="k is odd")):
        with jaxgemm.use(strict=False), warnings.catch_warnings(action="error"):
            assert "stablehlo.dot_general" in lowered_text(square, X)
        with pytest.raises(jaxgemm.UnsupportedProblem) as raised:
            lowered_text(square, X)
    assert raised.value.reasons == {"fake": "k is odd", REFERENCE.name: REFUSED}
    assert str(raised.value) == (
        "no allowed kernel can run m=8 n=8 k=16 NT float32·float32→float32 on nvidia_h200:\n"
        "  fake: k is odd\n"
        f"  xla.reference: {REFUSED}"
    )


def test_named_backend_raises_with_every_reason_of_its_kernels() -> None:
    fakes = (
        fake_kernel("p.one", reason="m is small"),
        fake_kernel("p.two", reason="n is odd"),
        fake_kernel("q"),
    )
    raises = pytest.raises(jaxgemm.UnsupportedProblem)
    with only_kernels(*fakes), jaxgemm.use(strict=False), raises as raised:
        lowered_text(lambda x: jaxgemm.gemm(x, x, transpose_b=True, backend="p"), X)
    assert raised.value.reasons == {"p.one": "m is small", "p.two": "n is odd"}


def test_every_product_of_a_gradient_falls_back() -> None:
    broken = fake_kernel("fake", error=RuntimeError("no"), configs=FULL)
    warns = pytest.warns(jaxgemm.FallbackWarning)
    with only_kernels(broken), jaxgemm.use(strict=False), warns as caught:
        text = lowered_text(
            jax.value_and_grad(lambda x, w: jaxgemm.gemm(x, w).sum(), (0, 1)), X, X.T
        )
    failed = [str(warning.message).split("failed to lower ")[1] for warning in caught]
    assert sorted(text.split(" float32")[0] for text in failed) == [
        "m=16 n=8 k=8 TN",
        "m=8 n=16 k=8 NT",
        "m=8 n=8 k=16 NN",
    ]
    assert text.count("stablehlo.dot_general") == 3


def test_kernel_gets_the_folded_problem_and_gives_the_callers_shape() -> None:
    seen: list[Problem] = []
    fake = fake_kernel("fake")
    spy = dataclasses.replace(
        fake, run=lambda p, config, xs: (seen.append(p), fake.run(p, config, xs))[1]
    )
    x, w = np.ones((5, 4, 16), np.float32), np.ones((16, 8), np.float32)
    with only_kernels(spy):
        text = lowered_text(lambda x, w: jax.vmap(lambda row: jaxgemm.gemm(row, w))(x), x, w)
    assert [(p.m, p.n, p.k, p.spec.batch) for p in seen] == [(20, 8, 16, ())]
    assert "-> (tensor<5x4x8xf32>" in text


def test_kernels_of_cuda_do_not_run_on_a_cpu() -> None:
    ran: list[str] = []
    with only_kernels(fake_kernel("fake", ran=ran)):
        result = jax.jit(lambda x: square(x) + 1)(X)
        jax.jit(square).trace(X).lower(lowering_platforms=("cpu",))
    assert not ran
    np.testing.assert_array_equal(np.asarray(result), 17)


def test_cuda_that_nobody_described_gets_the_reference() -> None:
    ran: list[str] = []
    with only_kernels(fake_kernel("fake", ran=ran)):
        lowered = jax.jit(lambda x: square(x)).trace(X).lower(lowering_platforms=("cuda",))
    assert "stablehlo.dot_general" in lowered.as_text()
    assert not ran


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (None, "ModuleNotFoundError: No module named 'jaxgemm_fake_kernels'"),
        ("raise OSError('libfake.so: no such file')", "OSError: libfake.so: no such file"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("", "AttributeError: module 'jaxgemm_fake_kernels' has no attribute 'KERNELS'"),
    ],
)
def test_package_that_cannot_be_imported_is_a_reason(
    code: str | None, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "jaxgemm_fake_kernels"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    if code is not None:
        (tmp_path / f"{package}.py").write_text(code)
    reason = f"{package} cannot be imported: {error}"
    with only_packages(("fake", package)):
        assert [kernel.name for kernel in registry.kernels()] == [
            "fake.unavailable",
            REFERENCE.name,
        ]
        row = explained(square, X)
        assert row.reasons["fake.unavailable"] == reason
        assert f"not      fake.unavailable: {reason}" in str(row)
        with pytest.raises(jaxgemm.UnsupportedProblem) as raised:
            jaxgemm.gemm(X, X, transpose_b=True, backend="fake")
        assert raised.value.reasons == {"fake.unavailable": reason}
        with jaxgemm.use(strict=False):
            assert "stablehlo.dot_general" in lowered_text(square, X)
    monkeypatch.delitem(sys.modules, package, raising=False)


def test_one_broken_package_does_not_hide_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = types.ModuleType("jaxgemm_fake_kernels")
    package.KERNELS = (fake_kernel("fake.good"),)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    with only_packages(("gone", "jaxgemm_no_such_package"), ("fake", package.__name__)):
        names = [kernel.name for kernel in registry.kernels()]
        assert names == ["gone.unavailable", "fake.good", REFERENCE.name]
        assert explained(square, X).kernel == "fake.good"


def test_names_of_kernels_are_distinct_and_the_reference_is_last() -> None:
    names = [kernel.name for kernel in registry.kernels()]
    assert len(set(names)) == len(names)
    assert registry.kernels()[-1] is REFERENCE
    assert not any(name.endswith(".unavailable") for name in names)
