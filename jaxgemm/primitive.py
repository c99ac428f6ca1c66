"""`gemm_p`: the one primitive. Transform rules rewrite its spec; only its lowering knows kernels."""

import functools
from typing import Any

import jax
from jax.extend.core import Primitive

from jaxgemm import reference
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec

gemm_p = Primitive("gemm")
gemm_p.multiple_results = True


def bind(spec: GemmSpec, policy: Policy, operands: tuple[Any, ...]) -> tuple[jax.Array, ...]:
    """The outputs of a spec; operands in the order of `spec.operands`."""
    return tuple(gemm_p.bind(*operands, spec=spec, policy=policy))


def bind_named(
    spec: GemmSpec, policy: Policy, operands: dict[str, Any], **changed: Any
) -> tuple[jax.Array, ...]:
    """`bind` with operands by name; `changed` ones take the place of those."""
    named = {**operands, **changed}
    return bind(spec, policy, tuple(named[name] for name in spec.operands))


@functools.cache
def _compiled(spec: GemmSpec, policy: Policy) -> Any:
    return jax.jit(lambda *operands: bind(spec, policy, operands))


@gemm_p.def_impl
def _impl(*operands: jax.Array, spec: GemmSpec, policy: Policy) -> tuple[jax.Array, ...]:
    return _compiled(spec, policy)(*operands)


@gemm_p.def_abstract_eval
def _abstract_eval(*avals: Any, spec: GemmSpec, policy: Policy) -> list[Any]:
    del policy
    problem = Problem.of(spec, avals)
    outputs = [
        avals[0].update(
            shape=problem.shape(name),
            dtype=problem.dtype(name),
            weak_type=False,
            sharding=avals[0].sharding.update(spec=[None] * len(problem.shape(name))),
        )
        for name in spec.outputs
    ]
    if not any(aval.sharding.spec and any(aval.sharding.spec) for aval in avals):
        return outputs
    # Explicit sharding: the type of the result says where it lies; the reference knows.
    config = reference.Config(dynamic_trip_count=True)
    typed = jax.eval_shape(
        lambda *xs: reference.evaluate(spec, dict(zip(spec.operands, xs, strict=True)), config),
        *(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in avals),
    )
    return [
        out.update(sharding=out.sharding.update(spec=struct.sharding.spec))
        for out, struct in zip(outputs, typed, strict=True)
    ]
