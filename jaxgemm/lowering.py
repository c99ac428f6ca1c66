"""How `gemm_p` becomes code: the reference on CPUs, a planned kernel on CUDA devices."""

import warnings
from typing import Any

import jax
from jax.interpreters import mlir

from jaxgemm import canonical, device, dispatch, reference, remainder
from jaxgemm.errors import FallbackWarning
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.policy import Policy
from jaxgemm.primitive import gemm_p
from jaxgemm.problem import Problem
from jaxgemm.rules import sharding
from jaxgemm.spec import GemmSpec


def _lower_kernel(
    ctx: Any,
    operands: tuple[Any, ...],
    spec: GemmSpec,
    kernel: Kernel,
    config: Any,
    computed: Problem | None = None,
) -> Any:
    """Emits one kernel for the operands' sizes, which leaves to XLA all but what is `computed`."""

    def run(problem: Problem, named: Operands) -> tuple[jax.Array, ...]:
        return kernel.run(problem, config, named)

    def call(*xs: jax.Array) -> tuple[jax.Array, ...]:
        problem = Problem.of(spec, xs)
        named = dict(zip(spec.operands, xs, strict=True))
        return canonical.evaluate(
            problem, named, lambda p, ops: remainder.evaluate(p, computed or p, ops, run)
        )

    # Inside shard_map types say which values differ between devices. A kernel is local code: the
    # primitive has settled that already, and loops in it must not have to repeat it.
    avals = [x.update(manual_axis_type=type(x.manual_axis_type)()) for x in ctx.avals_in]
    local = ctx.replace(avals_in=avals)
    return mlir.lower_fun(call, multiple_results=True)(local, *operands)


def _lower_elsewhere(
    ctx: Any, *operands: Any, spec: GemmSpec, policy: Policy, autodiff: str
) -> Any:
    del autodiff
    if sharding.is_global(ctx):
        return sharding.lower_partitioned(ctx, operands, spec, policy)
    del policy
    dynamic = "cpu" in (ctx.platforms or ctx.module_context.platforms)
    config = reference.Config(dynamic_trip_count=dynamic)
    return _lower_kernel(ctx, operands, spec, reference.KERNEL, config)


def _lower_cuda(ctx: Any, *operands: Any, spec: GemmSpec, policy: Policy, autodiff: str) -> Any:
    del autodiff
    if sharding.is_global(ctx):
        return sharding.lower_partitioned(ctx, operands, spec, policy)
    target = device.named(policy.device) if policy.device else device.current_cuda()
    if target is None:
        # Lowering for a GPU that nobody described: only XLA itself can plan for it.
        config = reference.Config(dynamic_trip_count=False)
        return _lower_kernel(ctx, operands, spec, reference.KERNEL, config)
    plan = dispatch.plan(canonical.canonical(Problem.of(spec, ctx.avals_in)), target, policy)
    for choice, following in zip(plan.choices, (*plan.choices[1:], None), strict=True):
        try:
            return _lower_kernel(ctx, operands, spec, choice.kernel, choice.config, plan.problem)
        except Exception as error:
            if policy.strict or following is None:
                raise
            warnings.warn(
                f"{choice.kernel.name} failed to lower {plan.problem}, so"
                f" {following.kernel.name} answers: {type(error).__name__}: {error}",
                FallbackWarning,
                stacklevel=2,
            )
    raise AssertionError("unreachable: the last choice returns or raises")


mlir.register_lowering(gemm_p, _lower_elsewhere)
mlir.register_lowering(gemm_p, _lower_cuda, platform="cuda")
