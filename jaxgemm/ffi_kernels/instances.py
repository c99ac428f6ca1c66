"""The compiled instances: rows of `ffi/instances.json`, read by the build and by the kernels."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from jaxgemm.device import Device

_PACKAGE = Path(__file__).resolve().parent.parent
# In a wheel the sources lie inside the package, in a checkout beside it.
_SOURCE_FOLDERS = (_PACKAGE / "_csrc", _PACKAGE.parent / "ffi")
# What an instance is compiled for unless its row says otherwise: the forms that CI compiles.
DEFAULT_ARCHS = ("80", "90a")
# The kernel, and its one instance, that is not compiled: it calls a library.
CUBLASLT = "cublaslt"


@dataclasses.dataclass(frozen=True)
class Instance:
    """One compiled form of a kernel.

    Attributes:
      name: what the handler looks it up by; a C identifier.
      kernel: the kernel's name, such as "cuda.naive".
      header: the kernel's file, relative to ffi/.
      template: the C++ type with its template arguments.
      dtype: that of a and b.
      cta_tile: rows, columns and depth of a step of one CTA.
      stages: how many steps of operands are in flight.
      smem_bytes: shared memory of one CTA.
      max_registers: what a thread may use; the build's checks hold the compiler to it.
      cluster: CTAs along m and n that share operand loads.
      takes_turns: whether warpgroups take whole tiles in turns.
      only_plain: whether it computes a · b alone, in the dtype of a, with rows of d that are a
        multiple of 16 bytes long.
      unmeasured: whether no GPU has timed it yet: `auto` then takes it only where a table says so.
      mma: whether its machine code must have tensor-core instructions.
      archs: the architectures it can be compiled for, as in "90a".
    """

    name: str
    kernel: str
    header: str
    template: str
    dtype: str
    cta_tile: tuple[int, int, int]
    stages: int
    smem_bytes: int
    max_registers: int
    cluster: tuple[int, int] = (1, 1)
    takes_turns: bool = False
    only_plain: bool = False
    unmeasured: bool = False
    mma: bool = False
    archs: tuple[str, ...] = DEFAULT_ARCHS

    def compiles_for(self, arch: str) -> bool:
        """Whether it can be compiled for an architecture: for all from 80 on, if its row has 80."""
        if "80" in self.archs:
            return int(arch.rstrip("af")) >= 80
        return arch in self.archs


@dataclasses.dataclass(frozen=True)
class Config:
    """The choice of an instance, by a kernel that launches one tile a CTA.

    Attributes:
      instance: its name.
      cta_tile: rows, columns and contraction depth of one step.
      stages: how many steps of operands are in flight.
      smem_bytes: shared memory of one CTA.
    """

    instance: str
    cta_tile: tuple[int, int, int]
    stages: int
    smem_bytes: int

    @property
    def cluster_size(self) -> int:
        """CTAs that share operand loads."""
        return 1

    @property
    def split_k(self) -> int:
        """CTAs that share one tile's contraction."""
        return 1


def source_folder() -> Path | None:
    """The folder of the C++ sources, None where they are missing."""
    return next((path for path in _SOURCE_FOLDERS if (path / "instances.json").exists()), None)


def runs_on(code: str, gpu: str) -> bool:
    """Whether machine code for one architecture runs on a GPU of another.

    It does on GPUs of its generation that are as new or newer; what has features of one GPU, as
    "90a" has, on that one only.
    """
    if code.endswith("a"):
        return code == gpu
    number, target = int(code.rstrip("f")), int(gpu.rstrip("a"))
    return number // 10 == target // 10 and number <= target


def arch(device: Device) -> str:
    """The architecture to compile for a device: with the features of its own where it has any."""
    major, minor = device.compute_capability
    return f"{major}{minor}" + ("a" if major >= 9 else "")


@functools.cache
def instances() -> tuple[Instance, ...]:
    """Every row of instances.json; none where the sources are missing."""
    folder = source_folder()
    if folder is None:
        return ()
    found = []
    for kernel, data in json.loads((folder / "instances.json").read_text()).items():
        for row in data["instances"]:
            values: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in row.items()
            }
            found.append(Instance(kernel=kernel, header=data["header"], **values))
    return tuple(found)


@functools.cache
def by_name() -> dict[str, Instance]:
    """Name → row, in the file's order."""
    return {row.name: row for row in instances()}


def of_kernel(kernel: str) -> tuple[Instance, ...]:
    """The rows of a kernel, in the file's order."""
    return tuple(row for row in instances() if row.kernel == kernel)


def kernel_names() -> tuple[str, ...]:
    """The names of all kernels, each of which is a target that XLA can call."""
    return (*dict.fromkeys(row.kernel for row in instances()), CUBLASLT)
