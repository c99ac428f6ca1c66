"""Every wrong call is one error at trace time: which argument, what it is, what it should be.

Each call is made eagerly, under `jax.jit` and under `jax.eval_shape`: the error must not depend on
when the call is traced.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import device, registry
from tests.bad_calls import (
    DTYPES,
    NOT_ARRAYS,
    ONES,
    OPTIONS,
    SCALARS,
    SHAPES,
    TOO_LARGE,
    Wrong,
    calls_of,
)


def _error(call: Callable[[], Any]) -> Exception:
    try:
        result = call()
    except Exception as error:
        return error
    pytest.fail(f"no error, but {jax.tree.map(jax.typeof, result)}")


def _described(error: Exception) -> tuple[str, str]:
    return type(error).__name__, str(error)


CASES = [
    case
    for table in (SHAPES, DTYPES, OPTIONS, SCALARS, ONES, NOT_ARRAYS)
    for case in calls_of(table)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_wrong_call_is_one_exact_error_whenever_it_is_traced(case: Wrong) -> None:
    calls = {
        "eager": lambda: case.run(*case.ones()),
        "jit": lambda: jax.jit(case.run)(*case.ones()),
        "eval_shape": lambda: jax.eval_shape(case.run, *case.structs()),
    }
    for how, call in calls.items():
        assert _described(_error(call)) == (case.error, case.message), how


@pytest.mark.parametrize("case", calls_of(TOO_LARGE), ids=str)
def test_size_that_no_kernel_can_index_is_an_error(case: Wrong) -> None:
    error = _error(lambda: jax.eval_shape(case.run, *case.structs()))
    assert _described(error) == (case.error, case.message)


def test_largest_size_is_accepted() -> None:
    a = jax.ShapeDtypeStruct((2**31 - 1, 2), jnp.bfloat16)
    b = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
    assert jax.eval_shape(jaxgemm.gemm, a, b).shape == (2**31 - 1, 3)


# (argument, call): values of a type that nobody should pass, but somebody will. Whatever the text
# is, it must begin with the name of the argument.
STRANGE = [
    ("alpha", "gemm(a, a, alpha='2')"),
    ("alpha", "gemm(a, a, alpha=None)"),
    ("alpha", "gemm(a, a, alpha=[2.0])"),
    ("beta", "gemm(a, a, a, beta='2')"),
    ("out_dtype", "gemm(a, a, out_dtype=['float32'])"),
    ("backend", "gemm(a, a, backend=['xla'])"),
    ("backend", "gemm(a, a, backend=None)"),
    ("backend", "gemm(a, a, backend=3)"),
    ("autodiff", "gemm(a, a, autodiff=['vjp'])"),
    ("precision", "gemm(a, a, precision=['high'])"),
    ("dimension_numbers", "dot_general(a, a, ((1,), (0,)))"),
    ("dimension_numbers", "dot_general(a, a, (((1,), (0,)),))"),
    ("dimension_numbers", "dot_general(a, a, None)"),
]


@pytest.mark.parametrize(("argument", "call"), STRANGE)
def test_error_for_a_strange_type_names_the_argument(argument: str, call: str) -> None:
    error = _error(lambda: Wrong("", call, "", "").run(np.ones((2, 2), np.float32)))
    assert isinstance(error, TypeError | ValueError)
    assert str(error).startswith(f"{argument}: ")


def _backends() -> list[str]:
    names = [kernel.name for kernel in registry.kernels()]
    return sorted({*names, *(name.split(".")[0] for name in names)})


@pytest.mark.parametrize("backend", ["cublas", "pal", "pallas.", "Pallas", "", "auto.x"])
@pytest.mark.parametrize("how", ["argument", "use"])
def test_unknown_backend_lists_those_there_are(backend: str, how: str) -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    message = f"backend: {backend!r} is unknown; it should be 'auto' or one of {_backends()}"

    def call(a: Any, b: Any) -> jax.Array:
        with jaxgemm.use(backend=backend if how == "use" else None):
            return jaxgemm.gemm(a, b, backend=backend if how == "argument" else "auto")

    for run in (call, jax.jit(call), lambda a, b: jax.eval_shape(call, a, b)):
        error = _error(lambda run=run: run(a, b))
        assert _described(error) == ("ValueError", message)


@pytest.mark.parametrize("backend", ["pallas", "pallas.hopper.dense"])
def test_named_kernel_on_a_cpu_says_why_it_cannot(backend: str) -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    kernels = [k for k in registry.kernels() if f"{k.name}.".startswith(f"{backend}.")]
    assert any(kernel.name == "pallas.hopper.dense" for kernel in kernels)
    problem = jaxgemm.explain(jaxgemm.gemm, a, b).rows[0].problem
    reasons = {kernel.name: kernel.why_not(problem, device.CPU) for kernel in kernels}
    lines = [f"  {name}: {reason}" for name, reason in reasons.items()]
    head = "no allowed kernel can run m=2 n=4 k=3 NN float32·float32→float32 on cpu:"

    def call(a: Any, b: Any) -> jax.Array:
        return jaxgemm.gemm(a, b, backend=backend)

    for run in (call, jax.jit(call), lambda a, b: jax.eval_shape(call, a, b)):
        error = _error(lambda run=run: run(a, b))
        assert isinstance(error, jaxgemm.UnsupportedProblem)
        assert isinstance(error, ValueError)
        assert error.reasons == reasons
        assert str(error) == "\n".join([head, *lines])
    wanted = "cpu has compute capability 0.0: wgmma needs 9.0"
    assert reasons["pallas.hopper.dense"] == wanted


def test_named_kernel_is_refused_in_the_other_operations_too() -> None:
    x, w = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    with pytest.raises(jaxgemm.UnsupportedProblem, match="gated"):
        jaxgemm.gated_gemm(x, w, w, backend="pallas")
    with pytest.raises(jaxgemm.UnsupportedProblem, match="groups=1 ragged=m"):
        jaxgemm.grouped_gemm(x, w[None], np.array([2], np.int32), backend="pallas")


@pytest.mark.parametrize("name", ["h300", "gpu", "", "nvidia"])
def test_unknown_device_lists_those_there_are(name: str) -> None:
    a = np.zeros((2, 2), np.float32)
    error = _error(lambda: device.named(name))
    message = f"device: {name!r} is unknown; it should be one of {sorted(device.DEVICES)}"
    assert _described(error) == ("ValueError", message)
    if name:
        explained = _error(lambda: jaxgemm.explain(jaxgemm.gemm, a, a, device=name))
        assert _described(explained) == ("ValueError", message)


def test_direct_forward_mode_is_jaxs_own_error() -> None:
    a, b = jnp.ones((2, 3)), jnp.ones((3, 4))
    error = _error(lambda: jax.jvp(lambda a: jaxgemm.gemm(a, b), (a,), (a,)))
    message = "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
    assert _described(error) == ("TypeError", message)


def test_operands_that_hold_no_numbers_are_type_errors() -> None:
    b = np.zeros((3, 4), np.float32)
    for a in (
        np.array([["x", "y", "z"]]),
        np.array([[None] * 3]),
        np.zeros((2, 3), [("field", "f4")]),
        jax.random.split(jax.random.key(0), (2, 3)),
    ):
        assert isinstance(_error(lambda a=a: jaxgemm.gemm(a, b)), TypeError)
