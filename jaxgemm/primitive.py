"""`gemm_p`: the one primitive. Transform rules rewrite its spec; only lowering knows kernels."""

import functools
from typing import Any, Literal

import jax
from jax.extend.core import Primitive

from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.spec import GemmSpec

Autodiff = Literal["vjp", "jvp"]

gemm_p = Primitive("gemm")
gemm_p.multiple_results = True


def bind(
    spec: GemmSpec, policy: Policy, operands: tuple[Any, ...], autodiff: Autodiff = "jvp"
) -> tuple[jax.Array, ...]:
    """The outputs of a spec; operands in the order of `spec.operands`.

    `autodiff` says how the call is differentiated: by a `jax.custom_vjp` or by `gemm_p`'s own
    forward rule and its transpose. The rules themselves always bind with "jvp".
    """
    return tuple(gemm_p.bind(*operands, spec=spec, policy=policy, autodiff=autodiff))


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
def _impl(
    *operands: jax.Array, spec: GemmSpec, policy: Policy, autodiff: Autodiff
) -> tuple[jax.Array, ...]:
    del autodiff
    # A kernel is compiled even where `jax.disable_jit` makes everything around it eager.
    with jax.disable_jit(False):
        return _compiled(spec, policy)(*operands)


@gemm_p.def_abstract_eval
def _abstract_eval(*avals: Any, spec: GemmSpec, policy: Policy, autodiff: Autodiff) -> list[Any]:
    del policy, autodiff
    problem = Problem.of(spec, avals)
    axes = _explicit_axes(spec, avals)
    return [
        avals[0].update(
            shape=problem.shape(name),
            dtype=problem.dtype(name),
            weak_type=False,
            sharding=avals[0].sharding.update(spec=[axes.get(x) for x in spec.labels(name)]),
        )
        for name in spec.outputs
    ]


def _explicit_axes(spec: GemmSpec, avals: tuple[Any, ...]) -> dict[str, Any]:
    """label of d → the mesh axes that its type says it is divided over, in explicit sharding.

    As in a dot, a dimension lies as in the operand that has it; a sharded contraction is summed
    over the devices, so it leaves no trace in the type.
    """
    axes: dict[str, Any] = {}
    used: set[Any] = set()
    for name, aval in zip(spec.operands, avals, strict=True):
        for label, part in zip(spec.labels(name), aval.sharding.spec, strict=False):
            parts = part if isinstance(part, tuple) else (part,)
            if part is None or label in axes or used & set(parts):
                continue
            used |= set(parts)
            axes[label] = part
    return axes
