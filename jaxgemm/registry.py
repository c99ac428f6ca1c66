"""All kernels, in order of preference. The last one is the reference, which takes everything."""

import functools
import importlib

from jaxgemm import reference
from jaxgemm.device import Device
from jaxgemm.kernel import Kernel
from jaxgemm.problem import Problem

# The packages that export KERNELS, and the backend name under which a broken one is reported.
_PACKAGES = (("pallas", "pallas_kernels"), ("cuda", "jaxgemm.ffi_kernels"))


@functools.cache
def kernels() -> tuple[Kernel, ...]:
    """Every registered kernel; a package that cannot be imported is one that always declines."""
    found: list[Kernel] = []
    for backend, package in _PACKAGES:
        try:
            found += importlib.import_module(package).KERNELS
        except Exception as error:  # a broken package is a reason, never a failed import
            found.append(_unavailable(backend, package, error))
    return (*found, reference.KERNEL)


def _unavailable(backend: str, package: str, error: Exception) -> Kernel:
    reason = f"{package} cannot be imported: {type(error).__name__}: {error}"

    def why_not(problem: Problem, device: Device) -> str:
        del problem, device
        return reason

    return Kernel(f"{backend}.unavailable", 0, why_not, lambda p, d: (), lambda p, c, o: ())


def selected(backend: str) -> tuple[Kernel, ...]:
    """The kernels that a `backend` argument allows: "auto", a kernel's name, or its beginning."""
    if backend == "auto":
        left_out = passed_over(backend)
        return tuple(k for k in kernels() if k.name not in left_out)
    chosen = tuple(k for k in kernels() if f"{k.name}.".startswith(f"{backend}."))
    if not chosen:
        names = sorted({k.name.split(".")[0] for k in kernels()} | {k.name for k in kernels()})
        raise ValueError(f"backend: {backend!r} is unknown; it should be 'auto' or one of {names}")
    return chosen


def passed_over(backend: str) -> dict[str, str]:
    """The kernels that "auto" leaves to those who name them, each with the reason."""
    if backend != "auto":
        return {}
    return {k.name: reason for k in kernels() if (reason := k.why_not_auto()) is not None}
