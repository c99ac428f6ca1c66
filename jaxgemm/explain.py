"""`explain`: what would run for a function's GEMMs, what bounds it, and why nothing else runs."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

from jaxgemm import device, dispatch, policy
from jaxgemm.device import Device
from jaxgemm.errors import UnsupportedProblem
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.tuning import cost, search, text


@dataclasses.dataclass(frozen=True)
class Row:
    """One distinct GEMM of a function.

    Attributes:
      problem: it, as kernels see it: batch axes merged and folded.
      count: how often it occurs in the traced function (a loop body counts once).
      roof: the two lower bounds.
      plan: what runs, or the `UnsupportedProblem` that running it raises.
    """

    problem: Problem
    count: int
    roof: cost.Roof
    plan: dispatch.Plan | UnsupportedProblem

    @property
    def kernel(self) -> str:
        """The name of the kernel that runs, or "none"."""
        return self.plan.kernel.name if isinstance(self.plan, dispatch.Plan) else "none"

    @property
    def reasons(self) -> dict[str, str]:
        """Every kernel that does not run → why."""
        if isinstance(self.plan, UnsupportedProblem):
            return self.plan.reasons
        others = {
            choice.kernel.name: f"accepts it; {_expected(self.problem, choice)}"
            for choice in self.plan.choices[1:]
        }
        return {**dict(self.plan.reasons), **others}

    def __str__(self) -> str:
        roof, lines = self.roof, [f"{self.problem}  (x{self.count})"]
        lines.append(
            f"  roof     {roof.binds}-bound: {roof.time_us:.2f} us at the roof"
            f" (compute {roof.compute_us:.2f} us, memory {roof.memory_us:.2f} us),"
            f" {roof.intensity:.1f} flop/byte, {roof.flops / 1e9:.4g} Gflop,"
            f" {roof.min_bytes / 1e6:.4g} MB"
        )
        if isinstance(self.plan, dispatch.Plan):
            choice, estimate = self.plan.choices[0], self.plan.choices[0].estimate
            lines.append(f"  kernel   {choice.kernel.name} ({_chosen_by(self.plan)})")
            if self.plan.problem != self.problem:
                lines.append(f"  computes {self.plan.problem}; XLA does the rest")
            if choice.measured_us is not None:
                lines.append(f"  measured {choice.measured_us:.1f} us")
            if choice.neighbour is not None:
                lines.append(f"  nearest  {choice.neighbour}")
            if choice.scaled_us is not None:
                lines.append(f"  expected {choice.scaled_us:.1f} us, by what was measured for that")
            lines.append(f"  config   {choice.config}")
            if choice.config.smem_bytes:
                lines.append(
                    f"  tiles    {estimate.tiles} of {'x'.join(map(str, choice.config.cta_tile))}"
                    f" in {estimate.waves:.2f} waves: {estimate.tail_utilisation:.0%} of the slots"
                    f" used, {estimate.edge_utilisation:.0%} of the tiles' elements;"
                    f" estimated {estimate.time_us:.1f} us"
                )
        else:
            lines.append("  kernel   none: running it raises UnsupportedProblem")
        lines += [f"  not      {name}: {reason}" for name, reason in self.reasons.items()]
        return "\n".join(lines)


def _chosen_by(plan: dispatch.Plan) -> str:
    if plan.chosen_by == dispatch.ONLY:
        return "the only kernel that may answer"
    return f"chosen by {plan.chosen_by}"


def _expected(problem: Problem, choice: dispatch.Choice) -> str:
    """What is known of the time of a kernel that is not chosen."""
    if choice.measured_us is not None:
        return f"measured at {choice.measured_us:.1f} us"
    if choice.scaled_us is not None:
        return f"expected at {choice.scaled_us:.1f} us by the nearest tuned problem"
    if choice.kernel.is_black_box:
        return "runs if everything else fails"
    estimated = f"estimated at {choice.time_us:.1f} us"
    if dispatch.is_mostly_empty(problem, choice):
        return f"{estimated}, with tiles that are {choice.estimate.edge_utilisation:.0%} full"
    return estimated


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The distinct GEMMs of a function, in the order in which they first occur.

    `str` gives every detail, `table()` a line for each.
    """

    device: Device
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        plural = "" if len(self.rows) == 1 else "s"
        head = f"{len(self.rows)} distinct GEMM{plural} on {self.device.name}"
        return "\n\n".join([head, *map(str, self.rows)])

    def table(self) -> str:
        """One line a GEMM: count, problem, kernel, what binds it, time at the roof."""
        cells = [("count", "kernel", "bound", "roof us", "flop/B", "problem")]
        for row in self.rows:
            numbers = (f"{row.roof.time_us:.2f}", f"{row.roof.intensity:.0f}")
            cells.append((str(row.count), row.kernel, row.roof.binds, *numbers, str(row.problem)))
        return text.columns(cells)


def explain(
    function: Callable[..., Any], *args: Any, device: str | None = None, **kwargs: Any
) -> Explanation:
    """What jaxgemm would run for every GEMM of a function, and why.

    Nothing is computed or compiled: the function is traced.

    Args:
      function: anything JAX can trace: `jaxgemm.gemm` itself, a model, `jax.grad` of a loss.
      *args: its arguments: arrays or `jax.ShapeDtypeStruct`s.
      device: a chip such as "nvidia_h200" to plan for; None means the one that is there.
      **kwargs: its keyword arguments. Those that hold arrays are traced.

    Returns:
      An `Explanation`: print it, or read its `rows`.

    Raises:
      ValueError: the device is unknown; or whatever tracing the function raises.

    Example:
      >>> import jax, jax.numpy as jnp, jaxgemm
      >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> print(jaxgemm.explain(jaxgemm.gemm, x, x, device="nvidia_h200").table())  # doctest: +SKIP
    """
    with policy.use(device=device):
        target = device_named(device)
        counts = collections.Counter(search.traced(function, *args, **kwargs))
    rows = [_row(problem, rules, n, target) for (problem, rules), n in counts.items()]
    return Explanation(target, tuple(rows))


def device_named(name: str | None) -> Device:
    """The device to plan for: the named one, that of `use(device=…)`, or the one that is there."""
    name = name or policy.current().device
    return device.named(name) if name else device.current()


def _row(problem: Problem, rules: Policy, count: int, target: Device) -> Row:
    try:
        plan = dispatch.plan(problem, target, rules)
    except UnsupportedProblem as error:
        plan = error
    return Row(problem, count, cost.roof(problem, target), plan)
