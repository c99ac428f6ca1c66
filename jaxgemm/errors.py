"""Exceptions and warnings that jaxgemm raises."""

from collections.abc import Mapping


class UnsupportedProblem(ValueError):  # noqa: N818 - the public name, as `explain` prints it
    """No kernel that the caller allows can run the problem.

    Attributes:
      reasons: kernel name → the one sentence that says why it declines.
    """

    def __init__(self, problem: str, reasons: Mapping[str, str]):
        self.reasons = dict(reasons)
        lines = [f"no allowed kernel can run {problem}:"]
        lines += [f"  {name}: {reason}" for name, reason in self.reasons.items()]
        super().__init__("\n".join(lines))


class FallbackWarning(UserWarning):
    """A kernel that was chosen failed to lower and another one answers."""
