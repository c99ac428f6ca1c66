"""What `tests/aot/` finds in the compiler's log and in machine code, and that it finds enough."""

import importlib.util
from pathlib import Path

import pytest

from tests.aot import ffi as aot
from tests.aot import mosaic

_PTXAS = """
ptxas info    : Compiling entry function 'kernel' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 99 registers, used 1 barriers
ptxas info    : Compiling entry function 'kernel' for 'sm_90a'
    {spills} bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers
"""


@pytest.mark.parametrize(
    ("log", "limit", "text"),
    [
        (_PTXAS.format(spills=0), 64, None),
        (_PTXAS.format(spills=8), 64, "8 bytes spill stores"),
        (_PTXAS.format(spills=0), 63, "64 registers, but the row says 63"),
        (_PTXAS.format(spills=0) + "(C7510) wgmma serialized", 64, "C7510"),
        (_PTXAS.format(spills=0) + "(C7519) warpgroup.arrive is injected", 64, None),
        ("", 64, "ptxas said nothing of sm_90a"),
    ],
)
def test_checks_of_the_build_see_what_is_wrong(log: str, limit: int, text: str | None) -> None:
    report = aot.read_log(log, "90a", limit)
    assert (report.problems == []) if text is None else (text in report.problems[0])


def test_checks_of_machine_code_see_what_is_wrong() -> None:
    good = "arch = sm_80\nFunction : f\nLDL R1;\narch = sm_90a\nFunction : f\nHGMMA R2;\n"
    assert aot.read_sass(good, "90a", mma=True) == []
    assert aot.read_sass(good, "80", mma=True) == [
        "local memory is used",
        "no tensor-core instruction",
    ]
    assert aot.read_sass(good, "100a", mma=False) == ["there is no machine code for sm_100a"]
    loads_last = "arch = sm_90a\nFunction : f\nACQBULK;\nHGMMA R2;\nUTMALDG.3D [UR8];\n"
    assert aot.read_sass(loads_last, "90a", mma=True) == [
        "code that loads tiles comes after code that multiplies them"
    ]
    loads_first = "arch = sm_90a\nFunction : f\nACQBULK;\nUTMALDG.3D [UR8];\nHGMMA R2;\n"
    assert aot.read_sass(loads_first, "90a", mma=True) == []
    waits_last = "arch = sm_90a\nFunction : f\nUTMALDG.3D [UR8];\nACQBULK;\nHGMMA R2;\n"
    assert aot.read_sass(waits_last, "90a", mma=True) == [
        "tiles are loaded before griddepcontrol.wait"
    ]


_MOSAIC = """
ptxas info    : {spills} bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 5 barriers
smem_scratch_bytes=1024
{sass} R2;
"""


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (_MOSAIC.format(spills=0, sass="HGMMA"), None),
        (_MOSAIC.format(spills=8, sass="HGMMA"), "8 bytes are spilled"),
        (_MOSAIC.format(spills=0, sass="HGMMA R1; LDL"), "local memory is used"),
        (_MOSAIC.format(spills=0, sass="FFMA"), "no tensor-core instruction"),
        (_MOSAIC.format(spills=0, sass="HGMMA").replace("1024", "2048"), "says 1024 bytes"),
        (_MOSAIC.format(spills=0, sass="HGMMA").replace("168", "200"), "200 registers at launch"),
        (_MOSAIC.format(spills=0, sass="HGMMA\n(C7510) wgmma"), "C7510"),
        (_MOSAIC.format(spills=0, sass="HGMMA\n(C7519) warpgroup.arrive is injected"), None),
        ("", "ptxas said nothing"),
    ],
)
def test_checks_of_pallas_kernels_see_what_is_wrong(log: str, text: str | None) -> None:
    problems = mosaic.read_log(log, 1024).problems
    assert (problems == []) if text is None else (text in problems[0])


def test_compiling_ends_without_a_disassembler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install nvidia-cuda-nvdisasm"):
        mosaic.find_nvdisasm(tmp_path)
    with pytest.raises(SystemExit, match="pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"):
        aot.find_cuobjdump()
