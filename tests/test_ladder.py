"""The ladder: what each rung asks for, which form counts, what the tables say."""

import dataclasses
import pathlib

import pytest

from benchmarks import ladder_tables, measured, records, rungs
from jaxgemm import device
from jaxgemm.ffi_kernels import KERNELS
from tests.benchmark_helpers import ladder_records, record_of, run_python
from tests.kernel_cases import KernelCase

_KERNELS = {kernel.name: kernel for kernel in KERNELS}


def _asked_bytes(kernel: str, **sizes: int) -> float:
    dtype = rungs.RUNGS[kernel]
    problem = KernelCase(**sizes, dtype=dtype, out=dtype, precision="highest").problem()
    config = _KERNELS[kernel].configs(problem, device.named("h200"))[0]
    return rungs.asked_bytes(problem, config)


@pytest.mark.parametrize(
    ("kernel", "loads"),
    [
        # Loads of elements for each multiply-add, as at the heads of the files in ffi/kernels/.
        ("cuda.naive", 2.0),
        ("cuda.coalesced", 2.0),
        ("cuda.tiled", 2 / 32),
        ("cuda.register_blocked", 2 / 128),
        ("cuda.warptiled", 1 / 128 + 1 / 256),
        ("cuda.mma_sync", 2 / 128),
        # Two CTAs share the tile of b of 256 columns.
        ("cuda.sm90.dense", 1 / 256 + 1 / 256),
    ],
)
def test_what_a_rung_asks_for_is_the_formula_of_its_file(kernel: str, loads: float):
    m, n, k = 1024, 512, 256
    itemsize = 4 if rungs.RUNGS[kernel] == "float32" else 2
    expected = itemsize * (m * n * k * loads + m * n)
    assert _asked_bytes(kernel, m=m, n=n, k=k) == pytest.approx(expected)


def test_every_rung_is_a_kernel_with_forms():
    # A library, and the last rung once more for another dtype.
    assert set(rungs.RUNGS) == set(_KERNELS) - {"cublaslt", "cuda.sm90.tf32"}
    assert {form.kernel for form in rungs.compiled()} == set(rungs.RUNGS)


def test_the_fastest_form_of_each_rung_counts_in_the_order_of_the_ladder():
    some = [r for r in ladder_records() if r.status == "ok"]
    quick = dataclasses.replace(
        next(r for r in some if r.impl == "warptiled_64x64x16"), median_us=5.0
    )
    found = rungs.fastest([*some, quick])
    names = [rungs.name_of(record) for record in found]
    assert names == [*list(rungs.RUNGS)[:5], "jnp.dot", "cuda.mma_sync", "cuda.sm90.dense"]
    assert found[4] is quick


_TABLES = (
    ladder_tables.climb,
    ladder_tables.moved,
    ladder_tables.stages,
    ladder_tables.roofs,
)


def _results(folder: pathlib.Path) -> measured.Results:
    path = folder / "nvidia_h200" / "ladder.jsonl"
    for record in ladder_records():
        records.append(path, record)
    ceiling = record_of(row="ceiling_read", suite="ceiling", impl="jax.numpy", gbps=4000.0)
    records.append(path, ceiling)
    return measured.load(path.parent)


def test_tables_hold_formula_counters_and_stages(tmp_path: pathlib.Path):
    found = _results(tmp_path)
    climb, moved, stages, roofs = (table(found) for table in _TABLES)
    assert climb is not None
    assert "| `cuda.naive` | f32 | 32×8×1 | 11.0 | 1 | 1 % | 40 | 0 |" in climb
    assert "| `jnp.dot` | f32 | `sgemm` | 11.0 |" in climb
    assert climb.endswith("(pictures/nvidia_h200_ladder.png)")
    assert moved is not None
    assert "| DRAM, GB | SM, % | L1, % |" in moved
    assert "| `cuda.tiled` | f32 | 4 | 3 | 0.2 | 2 | 55 | **77** |" in moved
    assert stages is not None
    assert [line.split(" | ")[0] for line in stages.splitlines()[2:]] == [
        f"| {depth}" for depth in range(1, 6)
    ]
    # The first form of rung 5, the fifth of all.
    assert roofs is not None
    assert "| f32 | 5 | 4 | 1.25 |" in roofs
    nothing = measured.Results("cpu", ())
    assert not any(table(nothing) for table in _TABLES)


def test_cycles_of_tensor_cores_are_shown_where_they_are_counted(tmp_path: pathlib.Path):
    found = _results(tmp_path)
    counted = tuple(dataclasses.replace(r, tensor_active_percent=91.2) for r in found.counted)
    text = ladder_tables.moved(dataclasses.replace(found, counted=counted))
    assert text is not None
    assert "| SM, % | Tensor Cores, % | L1, % |" in text
    # It is one of the SM's pipes, and no unit beside it.
    assert "| 55 | 91 | **77** |" in text


def test_shared_memory_of_a_library_is_without_what_the_driver_keeps(tmp_path: pathlib.Path):
    found = _results(tmp_path)
    jnp_dot = next(r for r in found.found if r.impl == "jnp.dot[highest]")
    timeless = dict.fromkeys(("median_us", "p10_us", "p90_us", "p99_us"))
    counted = dataclasses.replace(
        jnp_dot, status="counted", smem_bytes=67 * 1024, registers=254, **timeless
    )
    text = ladder_tables.climb(dataclasses.replace(found, counted=(counted,)))
    assert text is not None
    assert "| 100 % | 254 | 66 |" in text


# Runs nothing and says what a profiler would.
_NCU = """#!/bin/sh
case "$*" in *--child=ladder_16_float32*) echo '"ID","Kernel Name","Metric Name","Metric Value"'
echo '"0","gemm","dram__bytes_read.sum","2,048"';; *) echo "no counters" >&2; exit 9;; esac
"""


def test_ladder_is_timed_and_then_counted(tmp_path: pathlib.Path):
    ncu, out = tmp_path / "ncu", tmp_path / "ladder.jsonl"
    ncu.write_text(_NCU)
    ncu.chmod(0o755)
    flags = ("--size=16", "--iterations=3", "--counters", f"--ncu={ncu}", f"--out={out}")
    done = run_python("-m", "benchmarks.ladder", *flags)
    found = {(r.a_dtype, r.impl, r.status): r for r in records.read(out)}
    assert found["float32", "jnp.dot[highest]", "ok"].median_us
    assert found["float32", "jnp.dot[highest]", "counted"].dram_bytes == 2048
    assert "no counters" in found["bfloat16", "jnp.dot", "failed"].reason
    assert "not a CUDA device" in found["float32", "naive_f32", "unsupported"].reason
    assert ("bfloat16", "naive_f32", "unsupported") not in found
    assert done.returncode == 1
    done = run_python("-m", "benchmarks.ladder", "--counters", "--ncu=/nowhere/ncu")
    assert "--ncu: /nowhere/ncu should be installed" in done.stdout + done.stderr
