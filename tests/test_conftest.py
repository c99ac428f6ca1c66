"""What `tests/conftest.py` makes of tests that are skipped."""

import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("setting", "code"), [("0", 0), ("1", 1)])
def test_a_skipped_test_fails_where_nothing_may_be_skipped(
    setting: str, code: int, tmp_path: pathlib.Path
) -> None:
    tests = tmp_path / "test_one.py"
    tests.write_text("import pytest\ndef test_one(): pytest.skip('there is no compiler')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "-rs", tests],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[1],
        env={**os.environ, "JAXGEMM_TEST_NO_SKIPS": setting},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "there is no compiler" in done.stdout
