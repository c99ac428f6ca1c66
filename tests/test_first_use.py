"""What the CUDA library costs whoever does not use it, and whoever has it already."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import measured, records, tables
from tests.benchmark_helpers import ROOT, record_of

_IMPORT = """
import jax.numpy as jnp, jaxgemm
x = jnp.ones((64, 64), jnp.bfloat16)
jaxgemm.gemm(x, x).block_until_ready()
print(jaxgemm.explain(jaxgemm.gemm, x, x, device="nvidia_h200"))
"""
# Processor time, that of compilers included: others may use this machine too.
_LOAD = """
import os, jax
from jaxgemm.ffi_kernels import build, library
library.ensure_built(build.cpu_recipe())
jax.devices()
before = sum(os.times()[:4])
library.register("cpu")
print(sum(os.times()[:4]) - before)
"""


def _python(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_neither_import_nor_a_call_nor_explain_builds(tmp_path: Path) -> None:
    nvcc, cache = tmp_path / "nvcc", tmp_path / "cache"
    nvcc.write_text(f'#!/bin/sh\n[ "$1" = --version ] || touch {tmp_path}/compiled\necho 13.0\n')
    nvcc.chmod(0o755)
    shown = _python(_IMPORT, JAXGEMM_NVCC=str(nvcc), JAXGEMM_CACHE_DIR=str(cache))
    assert "cuda.naive" in shown
    assert {path.name for path in tmp_path.iterdir()} == {"nvcc"}


def test_a_library_that_is_there_is_loaded_in_50_ms() -> None:
    assert float(_python(_LOAD)) < 0.05


@pytest.mark.parametrize(("us", "text"), [(12345.6, "0.012"), (75.4e6, "75.4")])
def test_the_table_of_first_use_is_in_seconds(us: float, text: str, tmp_path: Path) -> None:
    path = tmp_path / "cpu" / "first_use.jsonl"
    times = dict.fromkeys(("median_us", "p10_us", "p90_us", "p99_us"), us)
    records.append(path, record_of(row="build", suite="first_use", config="41 instances", **times))
    table = tables.of_marker("first_use-cpu", [measured.load(path.parent)])
    assert table is not None
    assert f"| build | 41 instances | {text} |" in table
