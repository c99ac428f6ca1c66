"""What Mosaic, ptxas and nvdisasm say of a Pallas kernel, and what is wrong with it."""

import dataclasses
import importlib.util
import pathlib
import re
import sys

from tests.aot import ptxas

# A thread block of 384 threads starts with this many registers a thread; setmaxnreg moves them.
_MAX_REGISTERS = 168


@dataclasses.dataclass
class Report:
    """What the compiler said of one kernel.

    Attributes:
      registers: at launch.
      spill_bytes: stores and loads.
      smem_bytes: what Mosaic allocates for tiles.
      mma: tensor-core instructions in the machine code.
      problems: what is wrong, in words.
      seconds: of lowering and compiling.
    """

    registers: int = 0
    spill_bytes: int = 0
    smem_bytes: int = 0
    mma: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


def find_nvdisasm(toolkit: pathlib.Path) -> pathlib.Path:
    """The disassembler of the toolkit or of a package; exits if there is none."""
    spec = importlib.util.find_spec("nvidia")
    packages = (spec and spec.submodule_search_locations) or ()
    folders = [toolkit, *(pathlib.Path(p) / "cu13" for p in packages)]
    for path in (folder / "bin" / "nvdisasm" for folder in folders):
        if path.exists():
            return path
    sys.exit(f"nvdisasm is in none of {[*map(str, folders)]}; pip install nvidia-cuda-nvdisasm")


def read_log(log: str, smem_bytes: int) -> Report:
    """The report of a log of Mosaic, ptxas and nvdisasm."""
    report = Report()
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.findall(r"Used (\d+) registers", log)
    allocated = re.findall(r"smem_scratch_bytes=(\d+)", log)
    report.spill_bytes = sum(int(x) for pair in spills for x in pair)
    report.registers = max(map(int, registers), default=0)
    report.smem_bytes = max(map(int, allocated), default=0)
    if not registers:
        report.problems.append(f"ptxas said nothing; the end of the log: {log[-300:]}")
    if report.spill_bytes:
        report.problems.append(f"{report.spill_bytes} bytes are spilled")
    if report.registers > _MAX_REGISTERS:
        report.problems.append(f"{report.registers} registers at launch")
    if report.smem_bytes != smem_bytes:
        report.problems.append(f"the config says {smem_bytes} bytes of shared memory")
    for line in log.splitlines():
        if ptxas.serialises(line):
            report.problems.append(line.strip())
    report.mma = len(re.findall(r"\b(?:HGMMA|QGMMA|IGMMA|HMMA|UTC\w*MMA)\b", log))
    if report.mma == 0:
        report.problems.append("no tensor-core instruction")
    if re.search(r"\b(?:LDL|STL)\b", log):
        report.problems.append("local memory is used")
    return report
