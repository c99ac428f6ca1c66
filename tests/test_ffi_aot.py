"""What `tests/aot/ffi.py` finds in the compiler's log and in machine code."""

import pytest

from tests.aot import ffi as aot

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
    loads_last = "arch = sm_90a\nFunction : f\nHGMMA R2;\nUTMALDG.3D [UR8];\n"
    assert aot.read_sass(loads_last, "90a", mma=True) == [
        "code that loads tiles comes after code that multiplies them"
    ]
    loads_first = "arch = sm_90a\nFunction : f\nUTMALDG.3D [UR8];\nHGMMA R2;\n"
    assert aot.read_sass(loads_first, "90a", mma=True) == []
