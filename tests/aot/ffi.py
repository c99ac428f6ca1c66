"""Compiles every instance in ffi/ for GPUs that are not there, and reads what came out.

    JAX_PLATFORMS=cpu python -m tests.aot.ffi

Needs nvcc and g++, and `pip install "jax[cuda13-local]" nvidia-cuda-cuobjdump
nvidia-cuda-nvdisasm`. An instance fails if the compiler warns, spills, uses local memory or more
registers than its row says, lacks the tensor-core instructions that its row promises, puts loads by
TMA behind them, or does not wait for copies of operands before it loads. Then XLA compiles a call
of every kernel for an H200, with the library loaded, and must put it into a command buffer, which
becomes a CUDA graph.
"""

import dataclasses
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from tests.aot import ptxas

_ARCHS = flags.DEFINE_list("archs", ["80", "90a"], "architectures")

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_MMA = re.compile(r"\b(?:HGMMA|QGMMA|IGMMA|HMMA|IMMA)\b")
_LOCAL = re.compile(r"\b(?:LDL|STL)\b")


@dataclasses.dataclass
class Report:
    """What the compiler said of one instance on one architecture.

    Attributes:
      entries: kernels in it: one for each layout, say.
      registers: the most that one of them uses.
      problems: what is wrong, in words.
    """

    entries: int = 0
    registers: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)


def read_log(log: str, arch: str, max_registers: int) -> Report:
    """The report of what nvcc and ptxas wrote."""
    report = Report()
    current = None
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            current = found[2]
            report.entries += current == arch
        if ptxas.serialises(line):
            report.problems.append(line.strip())
        if current != arch:
            continue
        if (found := _SPILLS.search(line)) and set(found.groups()) != {"0"}:
            report.problems.append(line.strip())
        if found := _REGISTERS.search(line):
            report.registers = max(report.registers, int(found[1]))
    if not report.entries:
        report.problems.append(f"ptxas said nothing of sm_{arch}; the log ends: {log[-300:]}")
    if report.registers > max_registers:
        report.problems.append(f"{report.registers} registers, but the row says {max_registers}")
    return report


def read_sass(sass: str, arch: str, mma: bool) -> list[str]:
    """What is wrong with the machine code for one architecture."""
    code = "\n".join(part for part in sass.split("arch = sm_")[1:] if part.startswith(arch))
    problems = []
    if "Function :" not in code:
        problems.append(f"there is no machine code for sm_{arch}")
    if _LOCAL.search(code):
        problems.append("local memory is used")
    if mma and not _MMA.search(code):
        problems.append("no tensor-core instruction")
    # Whoever runs a cold kernel waits for each line of code up to the first load.
    for kernel in code.split("Function :")[1:]:
        load, product = kernel.find("UTMALDG"), kernel.find("HGMMA")
        if 0 <= product < load:
            problems.append("code that loads tiles comes after code that multiplies them")
        # Launched early, it would read copies that are not written yet: no other test can see that
        # without a GPU.
        if load >= 0 and "ACQBULK" not in kernel[:load]:
            problems.append("tiles are loaded before griddepcontrol.wait")
    return problems


def find_cuobjdump() -> str:
    """The disassembler, on PATH or from a package; exits if it, or its nvdisasm, is missing."""
    spec = importlib.util.find_spec("nvidia")
    folders = [
        str(Path(folder) / "cu13" / "bin")
        for folder in (spec and spec.submodule_search_locations) or ()
    ]
    os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *folders])
    found = shutil.which("cuobjdump")
    if found is None or shutil.which("nvdisasm") is None:
        sys.exit("no disassembler: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    return found


def _check_instances(recipe: Any, logs: dict[str, str], folder: Path, disassembler: str) -> int:
    """Prints a line for each instance and architecture; returns how many are wrong."""
    from jaxgemm.ffi_kernels import toolchain

    num_failed = 0
    for row in recipe.instances:
        sass = toolchain.run([disassembler, "-sass", str(folder / f"{row.name}.o")])
        for arch in filter(row.compiles_for, recipe.archs):
            report = read_log(logs[row.name], arch, row.max_registers)
            report.problems += read_sass(sass, arch, row.mma)
            print(
                f"{row.name:24} sm_{arch:4} {report.entries:2} kernels"
                f" {report.registers:4} of {row.max_registers} registers"
                f" {row.smem_bytes:7} bytes of shared memory"
            )
            for problem in report.problems:
                print(f"    FAILED: {problem}")
            num_failed += bool(report.problems)
    return num_failed


def _compile_calls(path: Path) -> int:
    """Compiles a call of every kernel for an H200 in XLA; returns how many fail."""
    import jax

    from jaxgemm.ffi_kernels import KERNELS, call, instances, library
    from jaxgemm.tuning import graphs
    from tests.aot.targets import TARGETS
    from tests.kernel_cases import EXTRAS, KernelCase

    library.register_file(path, "CUDA")
    [device] = TARGETS["h200"].devices()
    mesh = jax.sharding.Mesh([device], ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    num_failed = 0
    for kernel in KERNELS:
        # A kernel without compiled instances calls a library, which takes bfloat16.
        rows = [(row.name, row.dtype) for row in instances.of_kernel(kernel.name)]
        [(instance, dtype), *_] = (*rows, (kernel.name, "bfloat16"))
        case = KernelCase(dtype=dtype, extras=EXTRAS, batch=((2, "a alpha d"),), save=True)
        problem = case.problem()
        operands = {
            name: jax.ShapeDtypeStruct(problem.shape(name), problem.dtype(name), sharding=sharding)
            for name in problem.spec.operands
        }
        f = jax.jit(lambda x, p=problem, k=kernel.name, i=instance: call.call(p, k, i, x))
        try:
            lowered = f.trace(operands).lower(lowering_platforms=("cuda",))
            with tempfile.TemporaryDirectory() as folder:
                options = {"xla_gpu_graph_min_graph_size": 1, "xla_dump_to": folder}
                text = lowered.compile(compiler_options=options).as_text()
                [thunks] = Path(folder).glob("*after_thunk_passes.txt")
                assert graphs.is_graph(thunks.read_text()), thunks.read_text()
            assert f"jaxgemm.{kernel.name}" in text, text
        except Exception as error:
            print(f"{kernel.name}: FAILED in XLA: {error}")
            num_failed += 1
    print(f"{len(KERNELS)} calls compiled by XLA for an H200, {num_failed} failed")
    return num_failed


def main(argv: Sequence[str]) -> None:
    """Builds, checks, and exits with 1 if anything is wrong."""
    del argv
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jaxgemm.ffi_kernels import build

    disassembler = find_cuobjdump()
    recipe = build.cuda_recipe(_ARCHS.value, ("-Werror", "all-warnings"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build.write_instances(recipe, folder)
        steps = build.steps(recipe, folder)
        logs = build.compile_steps(steps, folder, build.progress_line("all instances"))
        num_failed = _check_instances(recipe, logs, folder, disassembler)
        num_failed += _compile_calls(build.link(recipe, steps, folder))
    sys.exit(num_failed > 0)


if __name__ == "__main__":
    app.run(main)
