"""Runs small problems with tails through every kernel, to be watched by compute-sanitizer.

    compute-sanitizer --error-exitcode=1 --tool=memcheck python -m tests.gpu.sanitize
    compute-sanitizer --error-exitcode=1 --tool=initcheck python -m tests.gpu.sanitize
    compute-sanitizer --error-exitcode=1 --tool=racecheck python -m tests.gpu.sanitize \
        --cases=all_tails,all_tails-float32,layout_TN-float32 --configs=12

The program prints what it ran; the tool prints what it found and says so in its exit code. Every
buffer is an allocation of its own here, as the tool knows no smaller ones: JAX would otherwise cut
all of them from one.
"""

import os

import jax
from absl import app, flags

from jaxgemm import device, registry
from tests.kernel_cases import ODD_CASES, SMALL_CASES, in_float32

_KNOWN = {**SMALL_CASES, **ODD_CASES}
_KNOWN |= in_float32(_KNOWN)
_CASES = flags.DEFINE_list(
    "cases",
    [
        *("all_tails", "one_row", "batch_of_epilogue", "odd"),
        *("all_tails-float32", "odd_transposed-float32", "layout_TN-float32"),
    ],
    "names in kernel_cases.py",
)
_CONFIGS = flags.DEFINE_integer("configs", 2, "how many configs of each, from both ends")


def main(argv: list[str]) -> None:
    """Runs every case with the first and last configs of every kernel that accepts it."""
    del argv
    # Read when JAX first sees the device.
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
    target = device.current()
    # The last one is the XLA reference.
    for kernel in registry.kernels()[:-1]:
        for name in _CASES.value:
            case = _KNOWN[name]
            problem = case.problem()
            if kernel.why_not(problem, target):
                continue
            configs = kernel.configs(problem, target)
            half = max(1, _CONFIGS.value // 2)
            for config in dict.fromkeys((*configs[:half], *configs[-half:])):
                run = jax.jit(lambda x, c=config, p=problem, k=kernel: k.run(p, c, x))
                jax.block_until_ready(run(case.arrays()))
                print(f"ran {kernel.name} {name} {config}")


if __name__ == "__main__":
    jax.config.config_with_absl()
    app.run(main)
