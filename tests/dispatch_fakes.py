"""Kernels that are not real and products without arrays, for the tests of dispatch."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import dispatch, reference, registry
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.primitive import gemm_p
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec
from tests.tuning_fakes import Config

REFERENCE = reference.KERNEL
REFUSED = "accepts it, but the policy is strict: only kernels may answer"


def fake_kernel(
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
def only_kernels(*fakes: Kernel) -> Iterator[None]:
    """Makes these, and the reference, all the kernels there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "kernels", lambda: (*fakes, REFERENCE))
        dispatch.plan.cache_clear()
        yield
    dispatch.plan.cache_clear()


@contextlib.contextmanager
def only_packages(*packages: tuple[str, str]) -> Iterator[None]:
    """Makes kernels come from these packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_PACKAGES", packages)
        registry.kernels.cache_clear()
        dispatch.plan.cache_clear()
        yield
    registry.kernels.cache_clear()
    dispatch.plan.cache_clear()


def struct(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def product(m: int, n: int, k: int, dtype: str = "bfloat16", **fields: Any) -> Problem:
    out = np.dtype("float32") if dtype == "float32" else jnp.dtype(dtype)
    spec = GemmSpec(("a", "b"), 1, 0, out, out, "default").replace(**fields)
    sizes = {"m": m, "n": n, "k": k, "g": 4, "b0": 3}
    avals = [
        struct(*(sizes[x] for x in spec.labels(name)), dtype="int32" if "_" in name else dtype)
        for name in spec.operands
    ]
    return Problem.of(spec, avals)


def lowered_text(function: Callable[..., Any], *args: Any) -> str:
    """The code of a function for an H200."""
    with jaxgemm.use(device="nvidia_h200"):
        traced = jax.jit(lambda *xs: function(*xs)).trace(*args)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


X = np.ones((8, 16), np.float32)


def square(x: Any) -> jax.Array:
    return jaxgemm.gemm(x, x, transpose_b=True)


def explained(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The one row of an explanation for an H200."""
    (row,) = jaxgemm.explain(function, *args, device="nvidia_h200", **kwargs).rows
    return row


def equations(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
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
