"""The layers of docs/architecture.md: a file imports only from its own layer or one above it."""

import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# From facts down to the surface; a package stands for everything in it.
LAYERS = {
    "facts": ("jaxgemm.dtypes", "jaxgemm.device", "jaxgemm.errors"),
    "values": (
        *("jaxgemm.epilogue", "jaxgemm.spec", "jaxgemm.problem", "jaxgemm.checks"),
        "jaxgemm.traffic",
    ),
    "meaning and contract": (
        "jaxgemm.reference",
        "jaxgemm.kernel",
        "jaxgemm.canonical",
        "jaxgemm.remainder",
    ),
    "kernels": ("pallas_kernels", "jaxgemm.ffi_kernels"),
    "choice": ("jaxgemm.registry", "jaxgemm.tuning", "jaxgemm.policy", "jaxgemm.dispatch"),
    "transforms": (
        "jaxgemm.primitive",
        "jaxgemm.rules",
        "jaxgemm.autodiff",
        "jaxgemm.mlp",
        "jaxgemm.lowering",
    ),
    "surface": ("jaxgemm", "jaxgemm.call", "jaxgemm.api", "jaxgemm.dropins", "jaxgemm.explain"),
    "programs": ("benchmarks",),
}
_RANKS = {name: rank for rank, names in enumerate(LAYERS.values()) for name in names}
# What may be imported besides the standard library and ourselves: the hard dependencies.
_DEPENDENCIES = {"absl", "filelock", "jax", "numpy", "platformdirs"}
_ALLOWED = {*_DEPENDENCIES, "jaxgemm", "pallas_kernels", "benchmarks", *sys.stdlib_module_names}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _files() -> dict[str, Path]:
    """Module name → file, for everything that is installed."""
    folders = (ROOT / "jaxgemm", ROOT / "pallas_kernels", ROOT / "benchmarks")
    return {_name(path): path for folder in folders for path in sorted(folder.rglob("*.py"))}


FILES = _files()


def _imports(module: str) -> set[str]:
    """Modules that a file names in import statements, wherever they stand in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute here"
            base = str(node.module)
            names = {f"{base}.{alias.name}" for alias in node.names}
            # `from package import module` names the module, `from module import x` the module.
            found |= {name if name in FILES else base for name in names}
    return found


def _rank(module: str) -> int | None:
    """The number of the layer that names the module or, if none does, a package around it."""
    if module in _RANKS:
        return _RANKS[module]
    package = module.rpartition(".")[0]
    # The package jaxgemm is the surface; that says nothing about a file in it.
    return _rank(package) if package not in ("", "jaxgemm") else None


@pytest.mark.parametrize("module", FILES)
def test_file_has_a_layer(module: str):
    assert _rank(module) is not None, f"{module}: name it in LAYERS in tests/test_layers.py"


@pytest.mark.parametrize("module", FILES)
def test_file_imports_only_from_its_own_layer_or_above(module: str):
    names = list(LAYERS)
    own = _rank(module)
    assert own is not None
    below = {
        imported: names[rank]
        for imported in _imports(module)
        if imported in FILES and (rank := _rank(imported)) is not None and rank > own
    }
    assert not below, f"{module} is in {names[own]!r} and imports from below it: {below}"


@pytest.mark.parametrize("module", FILES)
def test_file_imports_only_hard_dependencies(module: str):
    foreign = {name for name in _imports(module) if name.partition(".")[0] not in _ALLOWED}
    assert not foreign, f"{module} imports {sorted(foreign)}"


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("pallas_kernels")])
def test_kernel_file_uses_no_private_jax(module: str):
    private = {name for name in _imports(module) if name.startswith("jax._src")}
    assert not private, f"{module} imports {sorted(private)}"


def test_imports_have_no_cycle():
    graph = {module: _imports(module) & FILES.keys() - {module} for module in FILES}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(order) == FILES.keys()


def test_layers_name_no_file_that_is_gone():
    assert _RANKS.keys() <= FILES.keys(), sorted(_RANKS.keys() - FILES.keys())


def _python(code: str, *path: Path, cwd: Path = ROOT) -> str:
    """What a fresh interpreter prints; modules are looked for in `path` first."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (*path, ROOT)))
    command = [sys.executable, "-P", "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_of_jaxgemm_loads_no_kernel():
    code = "import sys, jaxgemm; print(*sys.modules)"
    loaded = _python(code).split()
    assert "jaxgemm.registry" in loaded
    kernels = [m for m in loaded if m.startswith(("pallas_kernels", "jax.experimental.pallas"))]
    assert not kernels


def test_a_broken_kernel_package_is_a_reason_and_not_a_failure(tmp_path: Path):
    (tmp_path / "pallas_kernels").mkdir()
    stub = "raise ImportError('libmosaic.so: no such file')"
    (tmp_path / "pallas_kernels" / "__init__.py").write_text(stub)
    code = """
import jax.numpy as jnp, jaxgemm
x = jnp.ones((8, 16), jnp.bfloat16)
assert jaxgemm.gemm(x, x, transpose_b=True)[0, 0] == 16
shown = jaxgemm.explain(jaxgemm.gemm, x, x, transpose_b=True, device="nvidia_h200")
print(shown.rows[0].kernel, shown.rows[0].reasons["pallas.unavailable"], sep=": ")
assert "no such file" in str(shown)
"""
    reason = "pallas_kernels cannot be imported: ImportError: libmosaic.so: no such file"
    assert _python(code, tmp_path).strip() == f"xla.reference: {reason}"
