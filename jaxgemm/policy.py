"""How a GEMM may be computed: the part of a call that never changes what it means."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from jaxgemm.device import named


@dataclasses.dataclass(frozen=True)
class Policy:
    """Which kernels a call allows.

    Attributes:
      backend: "auto", the name of a kernel, or the beginning of one ("pallas", "xla").
      strict: raise where "auto" would warn and fall back to another kernel.
      device: the name of the chip to plan for; None means the one that is there.
    """

    backend: str = "auto"
    strict: bool = False
    device: str | None = None


# Part of JAX's compilation-cache key, so a function compiled under one policy is not reused
# under another.
_context = jax.make_user_context(Policy())


def current() -> Policy:
    """The policy of the innermost `use`."""
    return _context.value


@contextlib.contextmanager
def use(
    *, backend: str | None = None, strict: bool | None = None, device: str | None = None
) -> Iterator[Policy]:
    """Sets, for the calls traced inside, which kernels jaxgemm may choose.

    Args:
      backend: as the `backend` argument of `gemm`, for calls that leave it at "auto".
      strict: True makes it an error that "auto" ends at the XLA reference on a CUDA device, or
        that a chosen kernel fails to lower; otherwise the fallback is silent in the first case
        (`explain` shows it) and warned of in the second. Where the reference was measured to be
        faster, a kernel answers all the same.
      device: a chip such as "nvidia_h200" to plan for, when it is not the one that is there.

    Yields:
      The policy in force.

    Raises:
      ValueError: the device is unknown.
      TypeError: strict is not a bool.

    Example:
      >>> import jaxgemm
      >>> with jaxgemm.use(backend="xla"):
      ...     y = jaxgemm.gemm(jnp.ones((2, 3)), jnp.ones((3, 4)))
    """
    if device is not None:
        named(device)
    if strict is not None and not isinstance(strict, bool):
        raise TypeError(f"strict: {strict!r} is a {type(strict).__name__}; it should be a bool")
    changes: dict[str, Any] = {"backend": backend, "strict": strict, "device": device}
    changes = {name: value for name, value in changes.items() if value is not None}
    policy = dataclasses.replace(current(), **changes)
    with _context(policy):
        yield policy
