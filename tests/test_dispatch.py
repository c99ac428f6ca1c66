"""The choice of a kernel: pure, complete in its key, explained; and what happens when one fails.

Fakes stand for kernels, so that every case of dispatch exists on a machine without a GPU. Calls
are lowered for CUDA and not run.
"""

import contextlib
import dataclasses
import inspect
import itertools
import math
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxgemm
from jaxgemm import canonical, device, dispatch, policy, reference, registry
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.policy import Policy
from jaxgemm.primitive import gemm_p
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec
from jaxgemm.tuning import cost
from tests import oracle

H200, CPU = device.named("nvidia_h200"), device.CPU
AUTO = Policy()
REFERENCE = reference.KERNEL
REFUSED = "accepts it, but the policy is strict: only kernels may answer"


@dataclasses.dataclass(frozen=True)
class Config:
    """A config that says of itself what a test wants."""

    cta_tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 4
    cluster_size: int = 1
    split_k: int = 1
    smem_bytes: int = 1000


def _fake(
    name: str,
    *,
    reason: str | None = None,
    error: Exception | None = None,
    configs: tuple[Config, ...] = (Config(),),
    efficiency: float = 1.0,
    ran: list[str] | None = None,
) -> Kernel:
    """A kernel that declines with a reason, or whose lowering raises, or that is the reference."""

    def run(problem: Problem, config: Any, operands: Operands) -> tuple[jax.Array, ...]:
        if ran is not None:
            ran.append(name)
        if error is not None:
            raise error
        return reference.evaluate(problem.spec, operands, reference.Config(False))

    return Kernel(name, 1, lambda p, d: reason, lambda p, d: configs, run, efficiency)


@contextlib.contextmanager
def _kernels(*fakes: Kernel) -> Iterator[None]:
    """Makes these, and the reference, all the kernels there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "kernels", lambda: (*fakes, REFERENCE))
        dispatch.plan.cache_clear()
        yield
    dispatch.plan.cache_clear()


@contextlib.contextmanager
def _packages(*packages: tuple[str, str]) -> Iterator[None]:
    """Makes kernels come from these packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_PACKAGES", packages)
        registry.kernels.cache_clear()
        dispatch.plan.cache_clear()
        yield
    registry.kernels.cache_clear()
    dispatch.plan.cache_clear()


def _struct(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def _problem(m: int, n: int, k: int, dtype: str = "bfloat16", **fields: Any) -> Problem:
    out = np.dtype("float32") if dtype == "float32" else jnp.dtype(dtype)
    spec = GemmSpec(("a", "b"), 1, 0, out, out, "default").replace(**fields)
    sizes = {"m": m, "n": n, "k": k, "g": 4, "b0": 3}
    avals = [
        _struct(*(sizes[x] for x in spec.labels(name)), dtype="int32" if "_" in name else dtype)
        for name in spec.operands
    ]
    return Problem.of(spec, avals)


def _lower(function: Callable[..., Any], *args: Any) -> str:
    """The code of a function for an H200."""
    with jaxgemm.use(device="nvidia_h200"):
        traced = jax.jit(lambda *xs: function(*xs)).trace(*args)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


X = np.ones((8, 16), np.float32)


def _square(x: Any) -> jax.Array:
    return jaxgemm.gemm(x, x, transpose_b=True)


def _row(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The one row of an explanation for an H200."""
    (row,) = jaxgemm.explain(function, *args, device="nvidia_h200", **kwargs).rows
    return row


# The plan.


def test_plan_is_cached_and_depends_on_its_arguments_alone() -> None:
    problem = _problem(64, 64, 64)
    plan = dispatch.plan(problem, H200, AUTO)
    again = _problem(64, 64, 64)
    assert again is not problem
    with jaxgemm.use(backend="xla", strict=True, device="nvidia_b200"):
        assert dispatch.plan(again, H200, AUTO) is plan
        dispatch.plan.cache_clear()
        assert dispatch.plan(again, H200, AUTO) == plan
    assert dispatch.plan(problem, H200, Policy(backend="xla")) != plan


def test_cheapest_kernel_comes_first_and_the_reference_last() -> None:
    slow, fast = _fake("slow", efficiency=0.1), _fake("fast", efficiency=0.5)
    declines = _fake("never", reason="it is not willing")
    with _kernels(slow, declines, fast):
        plan = dispatch.plan(_problem(4096, 4096, 4096), H200, AUTO)
    # The reference claims 0.9 of the rate, and still only answers where nothing else does.
    assert [choice.kernel.name for choice in plan.choices] == ["fast", "slow", "xla.reference"]
    assert plan.choices[-1].estimate.time_us < plan.choices[0].estimate.time_us
    assert plan.kernel is fast
    assert plan.chosen_by == "cost model"
    assert plan.reasons == (("never", "it is not willing"),)


def test_order_of_kernels_that_cost_the_same_is_that_of_the_registry() -> None:
    with _kernels(_fake("first"), _fake("second")):
        plan = dispatch.plan(_problem(512, 512, 512), H200, AUTO)
    assert [choice.kernel.name for choice in plan.choices[:2]] == ["first", "second"]


def test_config_with_the_lowest_estimate_is_chosen() -> None:
    wasteful, fitting = Config(cta_tile=(256, 256, 64)), Config(cta_tile=(64, 64, 64))
    problem = _problem(64, 64, 4096)
    with _kernels(_fake("fake", configs=(wasteful, fitting, wasteful))):
        plan = dispatch.plan(problem, H200, AUTO)
    assert plan.choices[0].config is fitting
    assert plan.choices[0].estimate == cost.estimate(problem, fitting, H200, 1.0)


def test_only_the_reference_is_left_where_all_decline() -> None:
    with _kernels(_fake("one", reason="no"), _fake("two", reason="never")):
        plan = dispatch.plan(_problem(8, 8, 8), H200, AUTO)
        assert plan.kernel is REFERENCE
        assert plan.chosen_by == "only kernel"
        with pytest.raises(jaxgemm.UnsupportedProblem) as raised:
            dispatch.plan(_problem(8, 8, 8), H200, Policy(strict=True))
        assert raised.value.reasons == {"one": "no", "two": "never", REFERENCE.name: REFUSED}
        # On a CPU the reference is what should run.
        assert dispatch.plan(_problem(8, 8, 8), CPU, Policy(strict=True)).kernel is REFERENCE
        # Whoever asks for the reference gets it.
        strict = Policy(backend="xla", strict=True)
        assert dispatch.plan(_problem(8, 8, 8), H200, strict).kernel is REFERENCE


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
    with _kernels(_fake("p.one"), _fake("p.two"), _fake("q")):
        plan = dispatch.plan(_problem(64, 64, 64), H200, Policy(backend=backend))
        assert sorted(choice.kernel.name for choice in plan.choices) == names
        assert [kernel.name for kernel in registry.selected(backend)] == names


def test_use_nests_and_the_argument_of_a_call_wins() -> None:
    assert policy.current() == Policy(strict=True), "the fixture of all tests"
    with jaxgemm.use(backend="xla", strict=False) as outer:
        with jaxgemm.use(device="nvidia_a100-sxm4-80gb") as inner:
            assert inner == Policy("xla", False, "nvidia_a100-sxm4-80gb") == policy.current()
            (equation,) = _equations(
                lambda x: jaxgemm.gemm(x, x, backend="xla.reference"), X[:8, :8]
            )
            assert equation.params["policy"] == dataclasses.replace(inner, backend="xla.reference")
        assert policy.current() == outer
    assert policy.current() == Policy(strict=True)


def test_function_compiled_under_one_policy_is_not_reused_under_another() -> None:
    ran: list[str] = []
    function = jax.jit(_square)
    with _kernels(_fake("one", ran=ran), _fake("two", ran=ran)):
        for backend in ("one", "two", "one"):
            with jaxgemm.use(backend=backend, device="nvidia_h200"):
                function.trace(X).lower(lowering_platforms=("cuda",))
    # The third time there is nothing left to lower.
    assert ran == ["one", "two"]


# The key.


def _equations(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """The equations that bind `gemm_p` when a function is traced."""
    pending = [jax.make_jaxpr(lambda *xs: function(*xs, **kwargs))(*args).jaxpr]
    found = []
    while pending:
        for equation in pending.pop().eqns:
            if equation.primitive is gemm_p:
                found.append(equation)
                continue
            inner = (getattr(x, "jaxpr", x) for x in equation.params.values())
            pending += [x for x in inner if hasattr(x, "eqns")]
    return found


def _key(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Problem, Policy]:
    """What dispatch is asked for a call."""
    (equation,) = _equations(function, *args, **kwargs)
    avals = [v.aval for v in equation.invars]
    problem = canonical.canonical(Problem.of(equation.params["spec"], avals))
    return problem, equation.params["policy"]


_S, _W, _I = _struct(8, 8), _struct(4, 8, 8), _struct(4, dtype="int32")
_HALF = jnp.float32(0.5)
# operation → its operands, and for every other argument a call that differs from them in it.
CALLS: dict[Callable[..., Any], tuple[tuple[Any, ...], dict[str, dict[str, Any]]]] = {
    jaxgemm.gemm: (
        (_S, _S),
        {
            "c": {"c": jnp.ones((8, 8))},
            "alpha": {"alpha": 0.5},
            "beta": {"c": jnp.ones((8, 8)), "beta": 0.5},
            "bias": {"bias": jnp.ones(8)},
            "activation": {"activation": "gelu"},
            "transpose_a": {"transpose_a": True},
            "transpose_b": {"transpose_b": True},
            "out_dtype": {"out_dtype": "float32"},
            "precision": {"precision": "highest"},
            "backend": {"backend": "xla"},
            "batch_invariant": {"batch_invariant": True},
        },
    ),
    jaxgemm.gated_gemm: (
        (_S, _S, _S),
        {
            "activation": {"activation": "gelu"},
            "transpose_w": {"transpose_w": True},
            "out_dtype": {"out_dtype": "float32"},
            "precision": {"precision": "highest"},
            "backend": {"backend": "xla"},
            "batch_invariant": {"batch_invariant": True},
        },
    ),
    jaxgemm.grouped_gemm: (
        (_S, _W, _I),
        {
            "bias": {"bias": jnp.ones((4, 8))},
            "activation": {"activation": "gelu"},
            "transpose_rhs": {"transpose_rhs": True},
            "out_dtype": {"out_dtype": "float32"},
            "precision": {"precision": "highest"},
            "backend": {"backend": "xla"},
            "batch_invariant": {"batch_invariant": True},
        },
    ),
}


def _name(function: Callable[..., Any]) -> str:
    return function.__name__


@pytest.mark.parametrize("function", CALLS, ids=_name)
def test_calls_that_differ_in_one_argument_have_different_keys(
    function: Callable[..., Any],
) -> None:
    operands, variants = CALLS[function]
    parameters = list(inspect.signature(function).parameters)[len(operands) :]
    # How a call is differentiated does not change which kernel computes it.
    assert set(parameters) - {"autodiff"} == variants.keys(), "name the new argument in CALLS"
    keys = {"": _key(function, *operands)}
    keys |= {name: _key(function, *operands, **kw) for name, kw in variants.items()}
    if function is jaxgemm.gemm:
        extra = {"c row": {"c": jnp.ones((1, 8))}, "bias dtype": {"bias": jnp.ones(8, "bfloat16")}}
        extra |= {f"activation {x}": {"activation": x} for x in ("relu", "silu", "gelu_exact")}
        extra |= {"c bf16": {"c": jnp.ones((8, 8), "bfloat16")}, "high": {"precision": "high"}}
        extra |= {"bias+relu": {"bias": jnp.ones(8), "activation": "relu"}}
        extra |= {"both": {"transpose_a": True, "transpose_b": True}}
        keys |= {name: _key(function, *operands, **kw) for name, kw in extra.items()}
        # A row of c is laid out for every row of d, so it is a c like any other.
        assert keys.pop("c row") == keys["c"]
    for (one, first), (two, second) in itertools.combinations(keys.items(), 2):
        assert first != second, f"{one!r} and {two!r} share {first}"
    for autodiff in ("vjp", "jvp"):
        assert _key(function, *operands, autodiff=autodiff) == keys[""]


@pytest.mark.parametrize("function", CALLS, ids=_name)
def test_operands_of_other_sizes_and_dtypes_have_different_keys(
    function: Callable[..., Any],
) -> None:
    operands, _ = CALLS[function]
    keys = {_key(function, *operands)}
    for dtype in ("float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"):
        changed = [x.update(dtype=jnp.dtype(dtype)) if x is not _I else x for x in operands]
        options = {"activation": None} if function is jaxgemm.gated_gemm else {}
        keys.add(_key(function, *changed, **options))
    for i in range(2):
        mixed = [
            x.update(dtype=jnp.dtype("float32")) if (i == 0) == (j == 0) and x is not _I else x
            for j, x in enumerate(operands)
        ]
        keys.add(_key(function, *mixed))
    keys.add(_key(function, _struct(9, 8), *operands[1:]))
    assert len(keys) == 9


def test_values_of_scalars_and_group_sizes_are_not_in_the_key() -> None:
    keys = {_key(jaxgemm.gemm, _S, _S, alpha=alpha) for alpha in (0.5, 2, 0, np.float64(3), _HALF)}
    assert len(keys) == 1
    x, w = jnp.ones((8, 8), "bfloat16"), jnp.ones((4, 8, 8), "bfloat16")
    sizes = [jnp.array([1, 2, 3, 2]), jnp.array([0, 0, 0, 8])]
    assert len({_key(jaxgemm.grouped_gemm, x, w, s) for s in sizes}) == 1


def test_strictness_and_device_are_in_the_key() -> None:
    keys = set()
    for strict in (False, True):
        for name in ("nvidia_h200", "nvidia_b200"):
            with jaxgemm.use(strict=strict, device=name):
                keys.add(_key(jaxgemm.gemm, _S, _S))
    assert len(keys) == 4


def test_precision_of_the_surroundings_is_in_the_key_forward_and_backward() -> None:
    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        with jax.default_matmul_precision("highest"):
            return jaxgemm.gemm(a, b, activation="gelu").sum()

    x = _struct(8, 8, dtype="float32")
    found = {e.params["spec"].precision for e in _equations(jax.grad(loss, (0, 1)), x, x)}
    assert found == {"highest"}
    assert _key(jaxgemm.gemm, x, x)[0].spec.precision == "default"
    for name, promised in [("tensorfloat32", "high"), ("float32", "highest"), ("high", "high")]:
        with jax.default_matmul_precision(name):
            assert _key(jaxgemm.gemm, x, x)[0].spec.precision == promised


# JAX takes the names of algorithms as a default too; none may become something less exact.
@pytest.mark.parametrize(
    ("name", "promises"),
    [
        ("BF16_BF16_F32", ("default", "high", "highest")),
        ("TF32_TF32_F32", ("high", "highest")),
        ("BF16_BF16_F32_X3", ("highest",)),
        ("BF16_BF16_F32_X9", ("highest",)),
        ("F32_F32_F32", ("highest",)),
    ],
)
def test_algorithm_as_the_default_precision_is_followed(
    name: str, promises: tuple[str, ...]
) -> None:
    x = _struct(8, 8, dtype="float32")
    with jax.default_matmul_precision(name):
        assert _key(jaxgemm.gemm, x, x)[0].spec.precision in promises


def test_calls_that_differ_in_one_argument_are_right_in_either_order() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (jnp.asarray(rng.normal(size=(8, 8)), jnp.bfloat16) for _ in range(3))
    bias = jnp.asarray(rng.normal(size=8), jnp.float32)
    variants: list[dict[str, Any]] = [
        {},
        {"activation": "gelu"},
        {"bias": bias},
        {"bias": bias, "activation": "relu"},
        {"c": c, "beta": 0.5},
        {"out_dtype": "float32"},
        {"transpose_b": True},
        {"transpose_a": True},
        {"alpha": 3},
    ]
    for options in (*variants, *reversed(variants)):
        out = options.get("out_dtype", "bfloat16")
        meaning = {name: x for name, x in options.items() if name != "out_dtype"}
        oracle.check(jaxgemm.gemm(a, b, **options), oracle.gemm(a, b, **meaning), out)


# Faults.


def test_kernel_whose_lowering_raises_is_skipped_with_one_warning() -> None:
    broken = _fake("fake.broken", error=RuntimeError("out of registers"))
    warns = pytest.warns(jaxgemm.FallbackWarning)
    with _kernels(broken), jaxgemm.use(strict=False), warns as caught:
        text = _lower(_square, X)
    assert "stablehlo.dot_general" in text
    assert [str(warning.message) for warning in caught] == [
        "fake.broken failed to lower m=8 n=8 k=16 NT float32·float32→float32, so xla.reference"
        " answers: RuntimeError: out of registers"
    ]


def test_fallback_goes_to_the_next_cheapest_kernel() -> None:
    ran: list[str] = []
    first = _fake("a.first", error=ValueError("one"), efficiency=1.0, ran=ran)
    second = _fake("a.second", error=KeyError("two"), efficiency=0.8, ran=ran)
    third = _fake("a.third", efficiency=0.6, ran=ran)
    last = _fake("a.last", efficiency=0.4, ran=ran)
    x = np.ones((512, 512), np.float32)
    fakes, warns = (last, third, second, first), pytest.warns(jaxgemm.FallbackWarning)
    with _kernels(*fakes), jaxgemm.use(strict=False), warns as caught:
        _lower(lambda x: jaxgemm.gemm(x, x), x)
    assert ran == ["a.first", "a.second", "a.third"]
    texts = [str(warning.message) for warning in caught]
    assert [text.split(" failed")[0] for text in texts] == ["a.first", "a.second"]
    assert texts[0].endswith("so a.second answers: ValueError: one")
    assert texts[1].endswith("so a.third answers: KeyError: 'two'")


@pytest.mark.parametrize("backend", ["auto", "fake", "fake.broken"])
def test_strict_raises_the_error_of_the_kernel(backend: str) -> None:
    broken = _fake("fake.broken", error=RuntimeError("out of registers"))
    raises = pytest.raises(RuntimeError, match=r"^out of registers$")
    with _kernels(broken), jaxgemm.use(backend=backend, strict=True), raises:
        _lower(_square, X)


def test_named_kernel_that_fails_is_not_replaced_by_another() -> None:
    broken, fine = _fake("p.broken", error=RuntimeError("no")), _fake("q.fine")
    raises = pytest.raises(RuntimeError, match=r"^no$")
    with _kernels(broken, fine), jaxgemm.use(strict=False), raises:
        _lower(lambda x: jaxgemm.gemm(x, x, transpose_b=True, backend="p.broken"), X)


def test_strict_refuses_the_reference_and_not_strict_takes_it_silently() -> None:
    with _kernels(_fake("fake", reason="k is odd")):
        with jaxgemm.use(strict=False), warnings.catch_warnings(action="error"):
            assert "stablehlo.dot_general" in _lower(_square, X)
        with pytest.raises(jaxgemm.UnsupportedProblem) as raised:
            _lower(_square, X)
    assert raised.value.reasons == {"fake": "k is odd", REFERENCE.name: REFUSED}
    assert str(raised.value) == (
        "no allowed kernel can run m=8 n=8 k=16 NT float32·float32→float32 on nvidia_h200:\n"
        "  fake: k is odd\n"
        f"  xla.reference: {REFUSED}"
    )


def test_named_backend_raises_with_every_reason_of_its_kernels() -> None:
    fakes = _fake("p.one", reason="m is small"), _fake("p.two", reason="n is odd"), _fake("q")
    raises = pytest.raises(jaxgemm.UnsupportedProblem)
    with _kernels(*fakes), jaxgemm.use(strict=False), raises as raised:
        _lower(lambda x: jaxgemm.gemm(x, x, transpose_b=True, backend="p"), X)
    assert raised.value.reasons == {"p.one": "m is small", "p.two": "n is odd"}


def test_every_product_of_a_gradient_falls_back() -> None:
    broken = _fake("fake", error=RuntimeError("no"))
    warns = pytest.warns(jaxgemm.FallbackWarning)
    with _kernels(broken), jaxgemm.use(strict=False), warns as caught:
        text = _lower(jax.value_and_grad(lambda x, w: jaxgemm.gemm(x, w).sum(), (0, 1)), X, X.T)
    failed = [str(warning.message).split("failed to lower ")[1] for warning in caught]
    assert sorted(text.split(" float32")[0] for text in failed) == [
        "m=16 n=8 k=8 TN",
        "m=8 n=16 k=8 NT",
        "m=8 n=8 k=16 NN",
    ]
    assert text.count("stablehlo.dot_general") == 3


def test_kernel_gets_the_folded_problem_and_gives_the_callers_shape() -> None:
    seen: list[Problem] = []
    fake = _fake("fake")
    spy = dataclasses.replace(
        fake, run=lambda p, config, xs: (seen.append(p), fake.run(p, config, xs))[1]
    )
    x, w = np.ones((5, 4, 16), np.float32), np.ones((16, 8), np.float32)
    with _kernels(spy):
        text = _lower(lambda x, w: jax.vmap(lambda row: jaxgemm.gemm(row, w))(x), x, w)
    assert [(p.m, p.n, p.k, p.spec.batch) for p in seen] == [(20, 8, 16, ())]
    assert "-> (tensor<5x4x8xf32>" in text


def test_kernels_of_cuda_do_not_run_on_a_cpu() -> None:
    ran: list[str] = []
    with _kernels(_fake("fake", ran=ran)):
        result = jax.jit(lambda x: _square(x) + 1)(X)
        jax.jit(_square).trace(X).lower(lowering_platforms=("cpu",))
    assert not ran
    np.testing.assert_array_equal(np.asarray(result), 17)


def test_cuda_that_nobody_described_gets_the_reference() -> None:
    ran: list[str] = []
    with _kernels(_fake("fake", ran=ran)):
        lowered = jax.jit(lambda x: _square(x)).trace(X).lower(lowering_platforms=("cuda",))
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
    with _packages(("fake", package)):
        assert [kernel.name for kernel in registry.kernels()] == [
            "fake.unavailable",
            REFERENCE.name,
        ]
        row = _row(_square, X)
        assert row.reasons["fake.unavailable"] == reason
        assert f"not      fake.unavailable: {reason}" in str(row)
        with pytest.raises(jaxgemm.UnsupportedProblem) as raised:
            jaxgemm.gemm(X, X, transpose_b=True, backend="fake")
        assert raised.value.reasons == {"fake.unavailable": reason}
        with jaxgemm.use(strict=False):
            assert "stablehlo.dot_general" in _lower(_square, X)
    monkeypatch.delitem(sys.modules, package, raising=False)


def test_one_broken_package_does_not_hide_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = types.ModuleType("jaxgemm_fake_kernels")
    package.KERNELS = (_fake("fake.good"),)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    with _packages(("gone", "jaxgemm_no_such_package"), ("fake", package.__name__)):
        names = [kernel.name for kernel in registry.kernels()]
        assert names == ["gone.unavailable", "fake.good", REFERENCE.name]
        assert _row(_square, X).kernel == "fake.good"


def test_names_of_kernels_are_distinct_and_the_reference_is_last() -> None:
    names = [kernel.name for kernel in registry.kernels()]
    assert len(set(names)) == len(names)
    assert registry.kernels()[-1] is REFERENCE
    assert not any(name.endswith(".unavailable") for name in names)


# What explain prints.


def test_explanation_of_a_large_product_in_full() -> None:
    config = Config(cta_tile=(128, 256, 64), stages=3, cluster_size=2)
    fakes = (
        _fake("fake.chosen", configs=(config,)),
        _fake("fake.dearer", efficiency=0.5),
        _fake("fake.other", reason="it is for Blackwell"),
    )
    x = _struct(4096, 4096)
    with _kernels(*fakes):
        shown = jaxgemm.explain(jaxgemm.gemm, x, x, device="nvidia_h200")
        chosen, dearer, _ = dispatch.plan(shown.rows[0].problem, H200, AUTO).choices
    # 2 · 4096³ flops at 830e12 a second; 3 · 4096² elements of 2 bytes at 4300e9 a second.
    # 32 x 16 tiles over 132 multiprocessors: 3.88 waves of which the fourth is not full.
    expected = f"""1 distinct GEMMs on nvidia_h200

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
    with _kernels(_fake("fake", configs=(config,))):
        row = _row(jaxgemm.gemm, _struct(8, 4096), _struct(4096, 1000))
    num_bytes = 2 * (8 * 4096 + 4096 * 1000 + 8 * 1000)
    assert row.roof.binds == "memory"
    assert row.roof.min_bytes == num_bytes
    assert row.roof.time_us == row.roof.memory_us == pytest.approx(num_bytes / 4300e3)
    assert row.roof.intensity == pytest.approx(2 * 8 * 4096 * 1000 / num_bytes)
    assert "8 of 64x128x64 in 0.06 waves: 6% of the slots used" in str(row)
    # 8 of 64 rows and 1000 of 1024 columns.
    assert "12% of the tiles' elements" in str(row)


def test_explanation_on_a_cpu_names_the_reference_and_every_reason() -> None:
    (row,) = jaxgemm.explain(_square, X).rows
    assert row.kernel == "xla.reference"
    assert row.reasons.keys() == {kernel.name for kernel in registry.kernels()} - {row.kernel}
    assert row.reasons["pallas.hopper.dense"] == "cpu has compute capability 0.0: wgmma needs 9.0"
    assert "kernel   xla.reference (chosen by only kernel)" in str(row)
    # A CPU has no waves.
    assert "waves" not in str(row)


@pytest.mark.parametrize("how", ["argument", "use"])
def test_explanation_for_an_h200_comes_from_any_machine(how: str) -> None:
    x = _struct(1024, 1024)
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
    with _kernels(_fake("fake", reason="k is odd")):
        row = _row(_square, X)
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

    counts = _counts(layers, _struct(512, 256), _struct(256, 256))
    assert counts == {"m=512 n=256 k=256 NN": 3, "m=512 n=256 k=256 NT": 1}


def test_explanation_goes_into_loops_branches_and_inner_functions() -> None:
    x = _struct(256, 256)

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
    args = _struct(512, 256), _struct(256, 128)
    assert _counts(jax.value_and_grad(loss, (0, 1)), *args) == products | forward
    assert _counts(jax.value_and_grad(loss), *args).keys() == {
        "m=512 n=256 k=128 NT",
        "m=512 n=128 k=256 NN",
    }


def test_explanation_of_a_grouped_and_a_gated_product() -> None:
    grouped = _row(
        jaxgemm.grouped_gemm, _struct(512, 64), _struct(8, 64, 96), _struct(8, dtype="int32")
    )
    assert "groups=8 ragged=m" in str(grouped)
    gated = _row(jaxgemm.gated_gemm, _struct(64, 32), _struct(32, 48), _struct(32, 48))
    assert "+ silu, gated" in str(gated)
    assert gated.roof.flops == 2 * 2 * 64 * 32 * 48


def test_explanation_takes_keyword_arrays_and_options() -> None:
    x = _struct(64, 64)
    row = _row(jaxgemm.gemm, x, x, bias=_struct(64), activation="relu", transpose_b=True)
    assert str(row.problem) == ("m=64 n=64 k=64 NT bfloat16·bfloat16→bfloat16 + bias, relu")


def test_explanation_of_nothing_is_empty() -> None:
    shown = jaxgemm.explain(lambda x: x + 1, X, device="nvidia_h200")
    assert shown.rows == ()
    assert str(shown) == "0 distinct GEMMs on nvidia_h200"
    assert shown.table() == "count  kernel  bound  roof us  flop/B  problem"


# Devices.


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("nvidia_h200", "nvidia_h200"),
        ("h200", "nvidia_h200"),
        ("H200", "nvidia_h200"),
        ("b200", "nvidia_b200"),
        ("h100", "nvidia_h100_80gb_hbm3"),
        ("a100", "nvidia_a100-sxm4-80gb"),
        ("cpu", "cpu"),
    ],
)
def test_device_has_a_full_and_a_short_name(name: str, full: str) -> None:
    assert device.named(name).name == full


def _gpu(kind: str, capability: str, **fields: Any) -> Any:
    return types.SimpleNamespace(
        platform="gpu", device_kind=kind, compute_capability=capability, **fields
    )


def test_device_of_jax_is_a_row_with_the_counts_that_it_reports() -> None:
    known = device.from_jax(_gpu("NVIDIA H200", "9.0"))
    assert known == H200
    part = device.from_jax(
        _gpu("NVIDIA H200", "9.0", core_count=16, shared_memory_per_block_optin=1000)
    )
    assert (part.num_sms, part.smem_bytes, part.dram_gbps) == (16, 1000, H200.dram_gbps)
    assert device.from_jax(jax.devices("cpu")[0]) == CPU


def test_unknown_device_gets_the_rates_of_its_generation_and_keeps_its_name() -> None:
    pcie = device.from_jax(_gpu("NVIDIA H100 PCIe", "9.0", core_count=114))
    assert (pcie.name, pcie.num_sms, pcie.tflops) == ("nvidia_h100_pcie", 114, H200.tflops)
    newer = device.from_jax(_gpu("NVIDIA GB202", "12.0"))
    assert newer.compute_capability == (12, 0)
    assert newer.tflops == device.named("nvidia_a100-sxm4-80gb").tflops


def test_peak_of_a_family_that_a_chip_lacks_is_that_of_plain_fmas() -> None:
    a100 = device.named("nvidia_a100-sxm4-80gb")
    assert a100.peak_tflops("f8") == a100.peak_tflops("") < a100.peak_tflops("i8")


def test_current_device_is_the_default_one() -> None:
    assert device.current() == CPU
    assert device.current_cuda() is None
    with jax.default_device(jax.devices("cpu")[1]):
        assert device.current() == CPU


# The cost model.


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
    roof = cost.roof(_problem(1000, 2000, 3000), H200)
    assert roof.flops == 12_000_000_000
    assert roof.min_bytes == 2 * (3_000_000 + 6_000_000 + 2_000_000)
    assert roof.compute_us == pytest.approx(12e9 / 830e12 * 1e6)
    assert roof.memory_us == pytest.approx(22e6 / 4300e9 * 1e6)
    assert (roof.binds, roof.time_us) == ("compute", roof.compute_us)
    assert roof.intensity == pytest.approx(12e9 / 22e6)
    true_f32 = cost.roof(_problem(1000, 2000, 3000, "float32", precision="highest"), H200)
    assert true_f32.compute_us == pytest.approx(12e9 / 51e12 * 1e6)
    assert true_f32.memory_us == pytest.approx(2 * roof.memory_us)


def test_tiles_waves_and_utilisation_by_hand() -> None:
    config = Config(cta_tile=(128, 256, 64), split_k=2)
    found = cost.estimate(_problem(1000, 2000, 3000), config, H200, 0.8)
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
    found = cost.estimate(_problem(1024, 1024, 64), config, H200, 1.0)
    assert found.waves == pytest.approx(256 / slots)
    assert found.tail_utilisation == pytest.approx(256 / (2 * slots))


def test_groups_add_a_partial_tile_each() -> None:
    config = Config(cta_tile=(128, 128, 64))
    rows = _problem(1024, 256, 512, operands=("a", "b", "group_sizes"), ragged="m")
    assert cost.estimate(rows, config, H200, 1.0).tiles == (1024 // 128 + 4) * 2
    depth = _problem(1024, 256, 512, operands=("a", "b", "group_sizes"), ragged="k", a_contract=0)
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
    _problem,
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(["bfloat16", "float32", "float8_e4m3fn"]),
    batch=st.sampled_from([(), (("a", "b", "d"),), (("a", "d"),), (("b", "d"),), (("a", "b"),)]),
)
GROUPED = st.builds(
    lambda m, n, k, kind: _problem(
        m, n, k, operands=("a", "b", "group_sizes"), ragged=kind, a_contract=int(kind == "m")
    ),
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(["m", "k"]),
)


@example(_problem(4096, 4096, 4096, batch=(("a", "b"),)), Config(cta_tile=(128, 256, 64)), H200)
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
    sizes = {**problem.size, label: problem.size[label] + more}
    larger = dataclasses.replace(problem, sizes=tuple(sorted(sizes.items())))
    roof, roof_of_larger = cost.roof(problem, H200), cost.roof(larger, H200)
    assert roof_of_larger.compute_us > roof.compute_us
    assert roof_of_larger.memory_us > roof.memory_us
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
    assert cost.roof(_problem(m, n, k), H200) == cost.roof(_problem(n, m, k), H200)
