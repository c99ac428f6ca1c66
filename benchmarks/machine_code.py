"""What the machine code of the CUDA library says of its kernels, as fields of a record."""

import functools
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxgemm.ffi_kernels import build, instances, library, toolchain

_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


def facts(kernels: Iterable[str]) -> dict[str, Any]:
    """Registers and stack of a thread, the largest of these kernels; empty where none is known.

    Args:
      kernels: names as CUPTI gives them. Those of other libraries are passed over.
    """
    known = _of_library()
    found = [known[name] for name in kernels if name in known]
    if not found:
        return {}
    stack_bytes = max(stack for _, stack in found)
    # What is spilled lies on the stack, with whatever else does.
    spills = {} if stack_bytes else {"spill_bytes": 0}
    return {"registers": max(count for count, _ in found), "stack_bytes": stack_bytes, **spills}


def parse(usage: str, gpu: str) -> dict[str, tuple[int, int]]:
    """Name → registers and bytes of stack on a GPU's architecture, from what cuobjdump says."""
    parts = [(part.split(None, 1)[0], part) for part in usage.split("arch = sm_")[1:]]
    return {
        name: (int(registers), int(stack) + int(local))
        for arch, part in sorted(parts)
        # Where several run, the newest does.
        if instances.runs_on(arch, gpu)
        for name, registers, stack, local in _USAGE.findall(part)
    }


@functools.cache
def _of_library() -> dict[str, tuple[int, int]]:
    """All kernels of the library that is in use; none where it, or cuobjdump, is missing.

    None either without a GPU, or with GPUs that run different code.
    """
    gpus = library.gpu_archs()
    if len(gpus) != 1:
        return {}
    try:
        path = library.prebuilt() or library.path_of(build.cuda_recipe(library.archs()))
        program = _cuobjdump()
        if program is None or not path.exists():
            return {}
        return parse(toolchain.run([program, "-res-usage", str(path)]), gpus[0])
    except (toolchain.BuildError, OSError):
        return {}


def _cuobjdump() -> str | None:
    """It comes with nvcc."""
    nvcc = toolchain.find_nvcc()
    beside = None if nvcc is None else Path(nvcc.path).parent / "cuobjdump"
    return str(beside) if beside is not None and beside.exists() else shutil.which("cuobjdump")
