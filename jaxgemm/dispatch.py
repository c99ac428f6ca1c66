"""The choice of a kernel and its config: (problem, device, policy) → plan. Pure, and cached."""

import dataclasses
import functools
from typing import Any

from jaxgemm import registry
from jaxgemm.device import Device
from jaxgemm.errors import UnsupportedProblem
from jaxgemm.kernel import Kernel
from jaxgemm.policy import Policy
from jaxgemm.problem import Problem
from jaxgemm.tuning import cost


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel with its cheapest config."""

    kernel: Kernel
    config: Any
    estimate: cost.Estimate


@dataclasses.dataclass(frozen=True)
class Plan:
    """What runs, what would run if that failed, and why the others do not.

    Attributes:
      choices: kernels that accept the problem, cheapest first; the XLA reference comes last.
      chosen_by: what decided: "cost model", or "only kernel" where nothing else accepts.
      reasons: kernel name → why it declines.
    """

    problem: Problem
    device: Device
    choices: tuple[Choice, ...]
    chosen_by: str
    reasons: tuple[tuple[str, str], ...]

    @property
    def kernel(self) -> Kernel:
        """The kernel that runs."""
        return self.choices[0].kernel


@functools.lru_cache(maxsize=4096)
def plan(problem: Problem, device: Device, policy: Policy) -> Plan:
    """Decides which kernel answers a canonical problem.

    Raises:
      UnsupportedProblem: no kernel that the policy allows accepts it, with each reason; or the
        policy is strict and only the XLA reference does.
      ValueError: the policy names a backend that does not exist.
    """
    allowed = registry.selected(policy.backend)
    reasons = {kernel.name: kernel.why_not(problem, device) for kernel in allowed}
    choices = [
        _cheapest(kernel, problem, device) for kernel in allowed if reasons[kernel.name] is None
    ]
    declined = {name: reason for name, reason in reasons.items() if reason is not None}
    reference = registry.kernels()[-1]
    only_reference = all(choice.kernel is reference for choice in choices)
    strict = policy.strict and policy.backend == "auto" and device.platform == "cuda"
    if not choices or (strict and only_reference):
        raise UnsupportedProblem(f"{problem} on {device.name}", declined)
    # Preference: whatever its estimate, the reference answers only where nothing else does.
    choices.sort(key=lambda c: (c.kernel is reference, c.estimate.time_us))
    chosen_by = "cost model" if len(choices) > 1 else "only kernel"
    return Plan(problem, device, tuple(choices), chosen_by, tuple(declined.items()))


def _cheapest(kernel: Kernel, problem: Problem, device: Device) -> Choice:
    configs = kernel.configs(problem, device)
    assert configs, f"{kernel.name} accepts {problem} but has no config for it"
    scored = [(c, cost.estimate(problem, c, device, kernel.efficiency)) for c in configs]
    config, estimate = min(scored, key=lambda pair: pair[1].time_us)
    return Choice(kernel, config, estimate)
