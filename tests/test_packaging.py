"""What the package says of itself, in the several places that must agree."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jaxgemm

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement)[0]


def test_version_heads_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert newest is not None
    assert newest[1] == jaxgemm.__version__


def test_hard_dependencies_are_few():
    names = {"absl-py", "filelock", "jax", "numpy", "platformdirs"}
    assert {_name(x) for x in PROJECT["dependencies"]} == names


def test_every_binary_of_benchmarks_is_a_console_script():
    sources = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    binaries = {name for name, text in sources.items() if 'if __name__ == "__main__":' in text}
    names = {f"jaxgemm-bench-{name.replace('_', '-')}" for name in binaries}
    assert PROJECT["scripts"] == dict.fromkeys(names, "benchmarks.script:main")


def test_a_console_script_shows_the_flags_of_its_binary(tmp_path: Path):
    script = tmp_path / "jaxgemm-bench-train-step"
    script.write_text("from benchmarks.script import main; main()")
    done = subprocess.run(
        [sys.executable, script, "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "projections around attention" in done.stdout, done.stderr
    assert "--kv_width" in done.stdout


def test_every_mention_of_jax_has_the_same_range():
    extras = PROJECT["optional-dependencies"].values()
    requirements = [*PROJECT["dependencies"], *(x for extra in extras for x in extra)]
    ranges = {x.split("jax", 1)[1].split("]")[-1] for x in requirements if _name(x) == "jax"}
    assert ranges == {">=0.11,<0.13"}


def test_python_versions_agree():
    oldest = (ROOT / ".python-version").read_text().strip()
    assert PROJECT["requires-python"] == f">={oldest}"
    assert f"Python {oldest} or newer" in (ROOT / "README.md").read_text()


def test_hooks_have_the_versions_of_the_lint_extra():
    pins = {x.replace("[nodejs]", "") for x in PROJECT["optional-dependencies"]["lint"]}
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    hooked = set(re.findall(r'"(\S+==\S+)"', hooks))
    assert hooked
    assert hooked <= pins


def test_ffi_cannot_be_imported_as_a_package():
    assert not list((ROOT / "ffi").rglob("*.py"))
