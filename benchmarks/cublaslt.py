"""NVIDIA's cuBLASLt at its best: every algorithm that its heuristics propose, as a yardstick.

That includes forms which round on their way, as chains of operations do, and which the kernel
therefore declines.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.cases import Case, Function, Operands
from benchmarks.variants import Implementation, Variant, compiled
from jaxgemm import canonical, device
from jaxgemm.ffi_kernels import cublaslt

_KERNEL = cublaslt.KERNEL


def _why_not(case: Case, mode: str) -> str | None:
    if mode != "forward":
        return "has no gradient"
    return cublaslt.why_not_yardstick(canonical.canonical(case.problem), device.current())


def _function(case: Case, config: Any) -> Function:
    def function(x: Operands) -> Any:
        operands = {n: x[n] for n in case.problem.spec.operands}
        return canonical.evaluate(
            case.problem, operands, lambda problem, inputs: _KERNEL.run(problem, config, inputs)
        )

    return function


def _variants(case: Case, mode: str, sample: Operands) -> Iterator[Variant]:
    for config in _KERNEL.configs(canonical.canonical(case.problem), device.current()):
        text = f"algorithm={config.index} workspace_bytes={config.workspace_bytes}"
        yield compiled(_function(case, config), case, mode, sample, config=text)


IMPLEMENTATION = Implementation("cublaslt-best", _why_not, _variants)
