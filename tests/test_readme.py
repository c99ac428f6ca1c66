"""What README.md and the docstrings say: every example runs, every name exists, the table holds."""

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from jaxgemm import dtypes, registry

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
LADDER = (ROOT / "docs" / "ladder.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
FUNCTIONS = [name for name in jaxgemm.__all__ if inspect.isfunction(getattr(jaxgemm, name))]
_DEVICE = "nvidia_h200"


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example_of_the_readme_runs(index: int):
    exec(compile(EXAMPLES[index], f"README.md, example {index}", "exec"), {})


def test_readme_has_examples():
    assert len(EXAMPLES) >= 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example_of_the_docstring_runs(name: str):
    text = inspect.getdoc(getattr(jaxgemm, name)) or ""
    names = {"jax": jax, "jnp": jnp, "jaxgemm": jaxgemm}
    example = doctest.DocTestParser().get_doctest(text, names, f"jaxgemm.{name}", None, None)
    assert example.examples, f"jaxgemm.{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    output: list[str] = []
    result = runner.run(example, out=output.append)
    assert result.failed == 0, "".join(output)


# Checkpoint policies are called by JAX, with what it calls every policy with.
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "checkpoint" not in name])
def test_docstring_names_every_parameter(name: str):
    function = getattr(jaxgemm, name)
    text = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^  \**{parameter}: ", text, re.MULTILINE), f"{name}: {parameter}"


def _call(operation: str, dtype: str) -> tuple[tuple[jax.ShapeDtypeStruct, ...], dict[str, Any]]:
    """Arguments that suit every kernel: large, and a multiple of every tile."""
    square = jax.ShapeDtypeStruct((1024, 1024), dtype)
    weights = jax.ShapeDtypeStruct((8, 1024, 1024), dtype)
    return {
        "gemm": ((square, square), {}),
        "gated_gemm": ((square, square, square), {"activation": None}),
        "grouped_gemm": ((square, weights, jax.ShapeDtypeStruct((8,), jnp.int32)), {}),
    }[operation]


def _support() -> list[tuple[str, str, str]]:
    """(dtype, operation, kernel) for every cell of the README's table."""
    lines = [line for line in README.splitlines() if line.startswith("|")]
    start = next(i for i, line in enumerate(lines) if line.startswith("| operands"))
    operations = re.findall(r"`(\w+)`", lines[start])
    cells = []
    for line in lines[start + 2 :]:
        first, *rest = line.strip("|").split("|")
        names = [name for name in re.findall(r"`(\w+)`", first) if name in dtypes.OPERANDS]
        if len(rest) != len(operations):
            break
        kernels = [cell.strip(" `") for cell in rest]
        cells += [(n, op, k) for n in names for op, k in zip(operations, kernels, strict=True)]
    return cells


def test_table_of_support_has_every_dtype_and_operation():
    operations = {"gemm", "grouped_gemm", "gated_gemm"}
    expected = {(dtype, operation) for dtype in dtypes.OPERANDS for operation in operations}
    assert {cell[:2] for cell in _support()} == expected
    # These answer where they are named, or once their library is built.
    by_name = ("cuda.", "cublaslt")
    as_installed = {k.name for k in registry.kernels() if not k.name.startswith(by_name)}
    assert {cell[2] for cell in _support()} == as_installed


@pytest.mark.parametrize(("dtype", "operation", "kernel"), _support())
def test_table_of_support_holds(dtype: str, operation: str, kernel: str):
    with jax.enable_x64(dtype == "float64"), jaxgemm.use(strict=False):
        args, options = _call(operation, dtype)
        function = getattr(jaxgemm, operation)
        shown = jaxgemm.explain(function, *args, device=_DEVICE, **options)
    assert [row.kernel for row in shown.rows] == [kernel], str(shown)


@pytest.mark.parametrize(
    "text", [README, ARCHITECTURE, LADDER], ids=["README", "architecture", "ladder"]
)
def test_named_files_exist(text: str):
    paths = set(re.findall(r"`([\w.]+/(?:[\w./]*\w\.\w+|[\w./]*/|))`", text))
    paths |= {"LICENSE", "Makefile"}
    missing = sorted(path for path in paths if not (ROOT / path).exists())
    assert len(paths) > 5
    assert not missing


def test_named_targets_exist():
    targets = set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", README + ARCHITECTURE, re.MULTILINE))
    assert {"demo", "test", "lint", "types", "aot", "bench"} <= targets
    assert named <= targets


def test_two_commands_are_one_line_each():
    assert re.search(r"^make demo\b.*\nmake test\b", README, re.MULTILINE)
