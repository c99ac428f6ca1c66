"""Compiles every config of every kernel for a GPU that is not there, and reads what came out.

    JAX_PLATFORMS=cpu python -m tests.aot.compile --target=h200

Needs `pip install "jax[cuda13-local]" nvidia-cuda-nvdisasm` and the ptxas of a CUDA toolkit. A
config fails if ptxas spills registers, serialises wgmma or complains, if its shared memory is not
what the config says, or if the machine code has local memory or lacks tensor-core instructions. It
is a failure too if nothing is compiled, or if there is no nvdisasm to read the machine code with.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import app, flags

from tests.aot.mosaic import Report, find_nvdisasm, read_log

_TARGET = flags.DEFINE_enum("target", "h200", ["h200", "b200", "a100"], "the GPU to compile for")
_KERNEL = flags.DEFINE_string("kernel", "", "only kernels whose name begins with this")
_CASE = flags.DEFINE_string("case", "", "only cases whose name begins with this")
_SHARD = flags.DEFINE_string("shard", "0/1", "i/n: every n-th config from the i-th on")
_CUDA = flags.DEFINE_string("cuda", "/usr/local/cuda", "the toolkit with bin/ptxas and nvvm")

# The cases that make different code: layouts, epilogues, swizzles, element sizes, batch axes.
_CASES = (
    "4096",
    "4096_nt",
    "4096_tn",
    "4096_tt",
    "wide_bias_gelu",
    "wide_beta_c",
    "batch_64",
    "5120",
    "1536_nt",
    "1600",
    "1664",
    "wider_c_and_bias",
    "all_tails",
    "preactivation_with_all",
    "wide_pullback_gelu",
    "pullback",
    "pullback_with_all",
    "pullback_batch",
    "gated_silu",
    "gated_with_tails",
    "4096_tf32",
    "tf32_with_all",
    "gelu_exact",
    "batch_of_epilogue",
    "batch",
    "gated_batch",
    "float16",
    "float32_out",
    "clamp",
    "tanh",
    "short_k_relu2",
    "few_steps",
    "few_steps_576",
    "few_steps_c",
    "batch_with_tails",
    "batch_8_inside",
    "inside_a_and_b",
    "inside_of_transposed",
    "inside_and_outside",
)


def _prepare_tools(folder: pathlib.Path) -> None:
    """Makes a CUDA root that has both ptxas and nvdisasm.

    Mosaic looks for both in bin/ of one folder, named by CUDA_ROOT when jax is imported, but pip
    and the toolkit put them in different ones.
    """
    (folder / "bin").mkdir(parents=True)
    toolkit = pathlib.Path(_CUDA.value)
    (folder / "nvvm").symlink_to(toolkit / "nvvm")
    (folder / "bin" / "ptxas").symlink_to(toolkit / "bin" / "ptxas")
    (folder / "bin" / "nvdisasm").symlink_to(find_nvdisasm(toolkit))
    os.environ["CUDA_ROOT"] = str(folder)
    for what in ("PTXAS", "RESOURCES", "SASS"):
        os.environ[f"MOSAIC_GPU_DUMP_{what}"] = "1"


@contextlib.contextmanager
def _captured() -> Iterator[Callable[[], str]]:
    """Collects what is written to the process's stdout and stderr, C++ included."""
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        sys.stderr.flush()
        saved = os.dup(1), os.dup(2)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

        def text() -> str:
            log.seek(0)
            return log.read().decode(errors="replace")

        try:
            yield text
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for fd, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, fd)
                os.close(copy)


def _compile(kernel: Any, problem: Any, config: Any, device: Any) -> Report:
    import jax

    mesh = jax.sharding.Mesh([device], ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    operands = {
        name: jax.ShapeDtypeStruct(problem.shape(name), problem.dtype(name), sharding=sharding)
        for name in problem.spec.operands
    }
    start = time.monotonic()
    error = ""
    with _captured() as text:
        try:
            with jax.default_device(device):
                f = jax.jit(lambda x: kernel.run(problem, config, x))
                f.trace(operands).lower(lowering_platforms=("cuda",)).compile()
        except Exception as e:
            error = f"{type(e).__name__}: {str(e).strip()[-300:]}"
        log = text()
    report = read_log(log, config.smem_bytes)
    if error:
        report.problems.insert(0, error)
    report.seconds = time.monotonic() - start
    return report


def _moves(device: Any) -> list[str]:
    """What XLA moves in memory around products whose heads lie between rows and columns.

    With (sequence, head, dim) for a and d and (head, dim, dim) for b, forward and backward.
    """
    import jax

    import jaxgemm
    from jaxgemm import device as devices

    def both(a: jax.Array, b: jax.Array, d_bar: jax.Array) -> Any:
        product = jax.vmap(lambda a, b: jaxgemm.gemm(a, b, transpose_b=True), (1, 0), 1)
        d, pull = jax.vjp(product, a, b)
        return d, pull(d_bar)

    mesh = jax.sharding.Mesh([device], ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    operands = (
        jax.ShapeDtypeStruct(shape, "bfloat16", sharding=sharding)
        for shape in ((512, 8, 256), (8, 128, 256), (512, 8, 128))
    )
    name = devices.from_jax(device).name
    with jaxgemm.use(device=name, backend="pallas", strict=True), _captured():
        lowered = jax.jit(both).trace(*operands).lower(lowering_platforms=("cuda",))
        text = lowered.compile().as_text()
    assert text.count("custom-call(") >= 3, text
    return [x.strip() for x in text.splitlines() if re.search(r" (copy|transpose|fusion)\S*\(", x)]


def _print(name: str, case: str, config: Any, report: Report) -> None:
    choices = " ".join(str(value) for value in dataclasses.asdict(config).values())
    print(
        f"{name:20} {case:22} {choices:42} {report.registers:4} regs {report.spill_bytes:5} spilled"
        f" {report.smem_bytes:7} smem {report.mma:4} mma {report.seconds:5.1f} s",
        flush=True,
    )
    for problem in report.problems:
        print(f"    FAILED: {problem}", flush=True)


def main(argv: Sequence[str]) -> None:
    """Compiles for one target and exits with 1 if anything is wrong, or nothing was compiled."""
    del argv
    os.environ["JAX_PLATFORMS"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        _prepare_tools(pathlib.Path(folder) / "cuda")
        # Only now: jax reads CUDA_ROOT when it is imported.
        from jaxgemm import device as devices
        from pallas_kernels import KERNELS
        from tests.aot.targets import TARGETS
        from tests.kernel_cases import LARGE_CASES, SMALL_CASES

        [device] = TARGETS[_TARGET.value].devices()
        target = devices.from_jax(device)
        num_compiled, num_failed = 0, 0
        index, num_shards = map(int, _SHARD.value.split("/"))
        for kernel in KERNELS:
            for case in _CASES:
                problem = {**SMALL_CASES, **LARGE_CASES}[case].problem()
                wanted = kernel.name.startswith(_KERNEL.value) and case.startswith(_CASE.value)
                if not wanted or kernel.why_not(problem, target) is not None:
                    continue
                for config in kernel.configs(problem, target)[index::num_shards]:
                    report = _compile(kernel, problem, config, device)
                    _print(kernel.name, case, config, report)
                    num_compiled += 1
                    num_failed += bool(report.problems)
        for moved in _moves(device) if _TARGET.value == "h200" else ():
            print(f"    FAILED: XLA moves an operand: {moved}", flush=True)
            num_failed += 1
    print(f"{num_compiled} compiled for {_TARGET.value}, {num_failed} failed")
    if num_compiled == 0:
        print("FAILED: no kernel takes any of these cases")
    sys.exit(num_failed > 0 or num_compiled == 0)


if __name__ == "__main__":
    app.run(main)
