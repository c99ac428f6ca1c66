"""The epilogue of a backward pass: d = act'(z) · (a·b), and the sum of its rows."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import canonical, device, dispatch, epilogue, reference, remainder
from jaxgemm.errors import UnsupportedProblem
from jaxgemm.kernel import Kernel
from jaxgemm.policy import Policy
from jaxgemm.primitive import bind
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec
from jaxgemm.tuning import search
from tests import kernel_answers
from tests.dispatch_fakes import fake_kernel, lowered_text, only_kernels
from tests.kernel_cases import ODD_CASES, PULLBACK, SMALL_CASES, KernelCase
from tests.naive_specs import F32, spec_of
from tests.tuning_fakes import Config, entry_of, tables_of

_CASES = {
    name: case
    for name, case in {**SMALL_CASES, **ODD_CASES}.items()
    if "z" in case.extras or case.sums is not None
}
_H200 = device.named("h200")
_CONFIG = reference.Config(dynamic_trip_count=False)
_WHOLE = KernelCase(m=128, n=128, k=32, extras=PULLBACK, activation="gelu", sums="bfloat16")


def _run(problem: Problem, operands: Any) -> tuple[jax.Array, ...]:
    return reference.evaluate(problem.spec, operands, _CONFIG)


@pytest.mark.parametrize("name", _CASES)
def test_reference_and_what_tuning_compares_with_agree_with_float64(name: str) -> None:
    problem, arrays = _CASES[name].problem(), _CASES[name].arrays()
    outputs = jax.jit(lambda x: _run(problem, x))(arrays)
    kernel_answers.check(problem, arrays, outputs, u_curved=kernel_answers.U_CURVED)
    for answer, output in zip(search.answers_of(problem, arrays), outputs, strict=True):
        assert answer.error(output) <= 1
        assert answer.error(output * 1.05) > 1


def test_a_sum_of_rounded_rows_is_right_too() -> None:
    case = dataclasses.replace(_WHOLE, sums="float32")
    problem, arrays = case.problem(), case.arrays()
    d, total = jax.jit(lambda x: _run(problem, x))(arrays)
    rounded = d.astype(jnp.float32).sum(0)
    assert (total != rounded).any()
    answer = search.answers_of(problem, arrays)[1]
    for x in (total, rounded):
        kernel_answers.check(problem, arrays, (d, x))
        assert answer.error(x) <= 1


@pytest.mark.parametrize("activation", epilogue.ACTIVATIONS)
def test_nan_and_infinities_of_z_are_those_of_the_gradient(activation: str) -> None:
    z = jnp.asarray([[jnp.nan, jnp.inf, -jnp.inf, 0.0, -1.0, 2.0]], jnp.float32)
    a, b = jnp.ones((1, 2)), jnp.ones((2, 6))
    spec = spec_of(("a", "b", "z"), activation=activation)
    (d,) = reference.evaluate(spec, {"a": a, "b": b, "z": z}, _CONFIG)
    want = epilogue.ACTIVATIONS[activation].pullback(z, jnp.full((1, 6), 2.0))
    np.testing.assert_array_equal(np.asarray(d), np.asarray(want))


_SPEC = spec_of(
    ("a", "b", "c", "z", "alpha"), "NT", activation="gelu", precision="highest", sum_dtype=F32
)


def _operands(spec: GemmSpec = _SPEC, lead: tuple[int, ...] = ()) -> dict[str, jax.Array]:
    rng, size = np.random.default_rng(0), {"m": 5, "n": 4, "k": 3}
    return {
        name: jnp.asarray(rng.normal(size=(*lead, *(size[x] for x in spec.labels(name)))), F32)
        for name in spec.operands
    }


def _bound(named: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    return bind(_SPEC, Policy(), tuple(named[name] for name in _SPEC.operands))


def _plain(named: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    product = jnp.matmul(named["a"], named["b"].T, precision="highest")
    bar = named["alpha"] * product + named["c"]
    d = jax.vjp(jax.nn.gelu, named["z"])[1](bar)[0]
    return d, d.sum(0)


def _check_close(got: Any, want: Any) -> None:
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=2e-5, atol=2e-5), got, want)


@pytest.mark.parametrize("mapped", [("a",), ("b", "z"), ("c",), _SPEC.operands], ids="".join)
def test_mapped_operands_give_each_entry_its_own_d_and_sum(mapped: tuple[str, ...]) -> None:
    whole, parts = _operands(), _operands(lead=(3,))
    axes = {name: 0 if name in mapped else None for name in whole}
    named = {name: parts[name] if name in mapped else x for name, x in whole.items()}
    got = jax.jit(jax.vmap(_bound, in_axes=(axes,)))(named)
    _check_close(got, jax.vmap(_plain, in_axes=(axes,))(named))


def _loss(f: Any) -> Any:
    return lambda named: sum((y**2).sum() for y in f(named))


def _norm(f: Any) -> Any:
    """Of the gradient, whose own gradient takes every second derivative."""
    return lambda named: sum((x**2).sum() for x in jax.grad(_loss(f))(named).values())


def test_derivatives_of_every_operand_in_both_modes_and_again() -> None:
    named = _operands()
    tangents = {name: jnp.cos(x) for name, x in named.items()}
    for moving in (("a",), ("z",), tuple(named)):
        along = {name: tangents[name] for name in moving}
        point = {name: named[name] for name in moving}
        got, want = (
            jax.jit(lambda xs, ts, f=f: jax.jvp(lambda ys: f({**named, **ys}), (xs,), (ts,)))(
                point, along
            )
            for f in (_bound, _plain)
        )
        _check_close(got, want)
    for scalar in (_loss, _norm):
        got, want = (jax.jit(jax.grad(scalar(f)))(named) for f in (_bound, _plain))
        for name, x in want.items():
            largest = float(abs(x).max())
            np.testing.assert_allclose(got[name], x, rtol=1e-4, atol=1e-4 * largest)


def test_derivative_has_one_product_for_each_operand_that_moves() -> None:
    named = _operands()
    loss = lambda xs: sum(y.sum() for y in _bound({**named, **xs}))  # noqa: E731
    counts = {
        name: sum(r.count for r in jaxgemm.explain(jax.grad(loss), {name: named[name]}).rows)
        for name in named
    }
    assert counts == {"a": 2, "b": 2, "c": 1, "z": 1, "alpha": 1}


def test_rows_of_a_batch_are_folded_unless_each_entry_has_a_sum() -> None:
    case = KernelCase(m=8, n=16, k=4, extras=("z",), activation="gelu", sums="float32")
    alike = dataclasses.replace(case, batch=((3, "a d z"),)).problem()
    assert (canonical.canonical(alike).spec.batch, canonical.canonical(alike).m) == ((), 24)
    apart = dataclasses.replace(case, batch=((3, "a d d_sum z"),)).problem()
    assert canonical.canonical(apart) == apart
    part = remainder.simpler(apart)
    assert part is not None
    assert (part.spec.batch, part.m) == ((), 24)


def test_problem_says_what_it_is() -> None:
    text = str(_WHOLE.problem())
    assert text.endswith("alpha, c, beta, slope of gelu, sum over rows")


@pytest.mark.parametrize(
    "batch", [(), ((3, "a d z d_sum"),), ((2, "z c d"),), ((2, "z c d"), (3, "b d d_sum"))], ids=str
)
def test_what_kernels_leave_over_is_the_same_whoever_computes_it(batch: Any) -> None:
    case = dataclasses.replace(_WHOLE, batch=batch, dtypes=(("z", "float32"),))
    whole, arrays = case.problem(), case.arrays()
    chain = [whole]
    while (part := remainder.simpler(chain[-1])) is not None:
        chain.append(part)
    assert [p.spec.outputs for p in chain] == [("d", "d_sum"), ("d",), ("d",)]
    assert [p.spec.pullback for p in chain] == [True, True, False]
    for computed in chain:
        outputs = jax.jit(lambda x, p=computed: remainder.evaluate(whole, p, x, _run))(arrays)
        kernel_answers.check(whole, arrays, outputs)


def _taking(*, z: bool, total: bool) -> Kernel:
    """A kernel that takes pullbacks, sums, or neither."""

    def why_not(problem: Problem, device: device.Device) -> str | None:
        del device
        if problem.spec.pullback and not z:
            return "z is given"
        return "d_sum is asked for" if problem.spec.sum_dtype is not None and not total else None

    name = f"fake.{'z' * z}{'s' * total}"
    return dataclasses.replace(fake_kernel(name), why_not=why_not)


@pytest.mark.parametrize("backend", ["auto", "fake"])
def test_a_kernel_that_takes_less_runs_and_the_plan_says_what_it_computes(backend: str) -> None:
    whole = _WHOLE.problem()
    without_sum = remainder.simpler(whole)
    assert without_sum is not None
    alone = remainder.simpler(without_sum)
    for kernel, computed in (
        (_taking(z=True, total=True), whole),
        (_taking(z=True, total=False), without_sum),
        (_taking(z=False, total=False), alone),
    ):
        with only_kernels(kernel):
            plan = dispatch.plan(whole, _H200, Policy(backend=backend, strict=True))
            assert (plan.kernel.name, plan.problem) == (kernel.name, computed)


@pytest.mark.parametrize(
    ("library_us", "ours_us", "first"),
    [
        (9.0, 10.0, "fake.library"),
        (10.0, 10.0, "fake."),
        (9.0, None, "fake."),
        (None, 10.0, "fake."),
    ],
)
def test_a_library_computes_the_whole_where_it_was_measured_to_be_faster(
    library_us: float | None, ours_us: float | None, first: str
) -> None:
    whole = _WHOLE.problem()
    part = remainder.simpler(whole)
    assert part is not None
    part = remainder.simpler(part)
    assert part is not None
    # So small that they fill the device: otherwise a library that nobody timed may answer.
    tiles = Config(cta_tile=(8, 8, 16))
    ours = dataclasses.replace(_taking(z=False, total=False), configs=lambda p, d: (tiles,))
    library = fake_kernel("fake.library", configs=(tiles,))
    library = dataclasses.replace(library, is_black_box=True)
    entries = [
        entry_of(problem, tiles, time_us, kernel=name)
        for problem, time_us, name in (
            (whole, library_us, library.name),
            (part, ours_us, ours.name),
        )
        if time_us is not None
    ]
    with only_kernels(ours, library):
        plan = dispatch.plan(whole, _H200, Policy(), tables_of(tuple(entries)))
        assert (plan.kernel.name, plan.problem == whole) == (first, first == library.name)
        named = dispatch.plan(whole, _H200, Policy(backend=library.name), tables_of(()))
        assert (named.kernel, named.problem) == (library, whole)


def test_what_is_left_of_a_problem_is_tuned_too() -> None:
    whole = _WHOLE.problem()
    listed = search._with_parts([whole, whole])
    assert [p.spec.outputs for p in listed] == [("d", "d_sum"), ("d",), ("d",)]
    assert [p.spec.pullback for p in listed] == [True, True, False]


def test_the_reference_computes_the_whole_where_no_kernel_takes_a_part() -> None:
    whole = _WHOLE.problem()
    with only_kernels(fake_kernel("fake", reason="m is even")):
        plan = dispatch.plan(whole, _H200, Policy())
        assert (plan.kernel, plan.problem) == (reference.KERNEL, whole)
        with pytest.raises(UnsupportedProblem, match="m is even"):
            dispatch.plan(whole, _H200, Policy(strict=True))


def test_explanation_says_what_xla_does() -> None:
    problem = _WHOLE.problem()
    avals = [
        jax.ShapeDtypeStruct(problem.shape(n), problem.dtype(n)) for n in problem.spec.operands
    ]
    call = lambda *xs: bind(problem.spec, Policy(), xs)  # noqa: E731
    with only_kernels(_taking(z=True, total=False)):
        (row,) = jaxgemm.explain(call, *avals, device="nvidia_h200").rows
    assert row.problem == problem
    part = remainder.simpler(problem)
    assert f"  kernel   fake.z (chosen by cost model)\n  computes {part}; XLA does the rest" in str(
        row
    )


def test_lowering_runs_the_kernel_for_the_part_that_it_takes() -> None:
    problem = _WHOLE.problem()
    avals = [
        jax.ShapeDtypeStruct(problem.shape(n), problem.dtype(n)) for n in problem.spec.operands
    ]
    seen = []

    def run(computed: Problem, config: Any, operands: Any) -> tuple[jax.Array, ...]:
        del config
        seen.append(computed)
        return _run(computed, operands)

    kernel = dataclasses.replace(_taking(z=False, total=False), run=run)
    with only_kernels(kernel):
        policy = Policy(device="nvidia_h200")
        text = lowered_text(lambda *xs: bind(problem.spec, policy, xs), *avals)
    assert [p.spec for p in seen] == [problem.spec.product(F32)]
    assert "tensor<128x128xbf16>, tensor<128xbf16>" in text
