"""What kernels behind XLA's FFI leave alone: graphs, streams, and memory that is not theirs."""

import ctypes
import dataclasses
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

from jaxgemm import device
from jaxgemm.dtypes import TF32_UNIT_ROUNDOFF
from jaxgemm.ffi_kernels import KERNELS, build, call, instances, library, sm90_tf32
from jaxgemm.kernel import Kernel
from jaxgemm.problem import Problem
from jaxgemm.tuning import graphs, timing
from tests import direct_launch, kernel_answers
from tests.direct_launch import GemmParams, Tensor
from tests.kernel_cases import KernelCase

# With and without copies of unaligned rows in a workspace.
_SIZES = (256, 249)
_COMPILED = [kernel for kernel in KERNELS if instances.of_kernel(kernel.name)]
_every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
_every_compiled = pytest.mark.parametrize("kernel", _COMPILED, ids=lambda kernel: kernel.name)


def _case(kernel: Kernel, size: int) -> KernelCase:
    # A kernel without compiled instances calls a library, which takes bfloat16.
    dtypes = [row.dtype for row in instances.of_kernel(kernel.name)]
    dtype = dtypes[0] if dtypes else "bfloat16"
    return KernelCase(m=size, n=size, k=size, dtype=dtype, out=dtype)


def _configs(kernel: Kernel, problem: Problem) -> tuple[Any, ...]:
    """Every config on the device that is there."""
    target = device.current()
    assert library.why_not() is None
    if reason := kernel.why_not(problem, target):
        pytest.skip(f"{target.name}: {reason}")
    return kernel.configs(problem, target)


def _run(kernel: Kernel, problem: Problem) -> Callable[[Any], jax.Array]:
    """The product by the first config."""
    [config, *_] = _configs(kernel, problem)
    return lambda x: kernel.run(problem, config, x)[0]


def _sets(problem: Problem) -> list[dict[str, jax.Array]]:
    avals = {n: jax.ShapeDtypeStruct(problem.shape(n), problem.dtype(n)) for n in ("a", "b")}
    return timing.inputs(avals, total_bytes=3 * problem.min_bytes)[:3]


def _bits(x: Any) -> np.ndarray:
    return np.asarray(x).view(np.uint8)


@pytest.mark.gpu
@_every_kernel
@pytest.mark.parametrize("size", _SIZES)
def test_a_captured_graph_follows_its_operands_to_other_buffers(kernel: Kernel, size: int) -> None:
    problem = _case(kernel, size).problem()
    sets, run = _sets(problem), _run(kernel, problem)

    def twice(x: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # The second call reads what the first wrote.
        d = run(x)
        return d, run({**x, "a": d})

    single = timing.compile_for(twice, sets[0])
    expected = [single(x) for x in sets]
    u_mul = TF32_UNIT_ROUNDOFF if kernel is sm90_tf32.KERNEL else 0.0
    kernel_answers.check(problem, sets[0], expected[0][:1], u_mul=u_mul)
    chain, captured = graphs.compile_chain(single, sets)
    assert captured
    kept = []
    for first in range(12):
        order = [(first + i) % len(sets) for i in range(len(sets))]
        # Results are kept, so that the next launch must write somewhere else.
        kept.append(chain([sets[i] for i in order]))
        for i, got in zip(order, kept[-1], strict=True):
            for x, y in zip(got, expected[i], strict=True):
                np.testing.assert_array_equal(_bits(x), _bits(y))


def _on_streams(run: Callable[[Any], jax.Array]) -> Callable[[Sequence[Any]], list[jax.Array]]:
    """A function that computes on several sets, each on a stream of its own."""

    def both(sets: Sequence[Any]) -> list[jax.Array]:
        results = []
        for stream, operands in enumerate(sets, 1):
            # A function of its own: XLA keeps a call only if it stands alone.
            once = jax.jit(lambda x: run(x))
            with set_xla_metadata(_xla_stream_annotation=str(stream), inlineable="false"):
                results.append(once(operands))
        return results

    return both


@pytest.mark.gpu
@_every_kernel
@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("captured", [False, True], ids=["launched", "captured"])
def test_calls_on_two_streams_do_not_disturb_each_other(
    kernel: Kernel, size: int, captured: bool
) -> None:
    problem = _case(kernel, size).problem()
    sets, run = _sets(problem)[:2], _run(kernel, problem)
    expected = [_bits(jax.jit(run)(x)) for x in sets]
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"xla_gpu_experimental_stream_annotation": True}
        options |= {"xla_gpu_graph_min_graph_size": 1} if captured else {}
        options |= {} if captured else {"xla_gpu_enable_command_buffer": ""}
        lowered = jax.jit(_on_streams(run)).lower(sets)
        compiled = lowered.compile(compiler_options={**options, "xla_dump_to": folder})
        thunks = "".join(x.read_text() for x in pathlib.Path(folder).glob("*jit_both.thunk_seq*"))
    assert {1, 2} <= {i for i in range(9) if f"computation_stream[{i}]" in thunks}
    assert ("kCommandBuffer" in thunks) == captured
    for _ in range(20):
        for got, want in zip(compiled(sets), expected, strict=True):
            np.testing.assert_array_equal(_bits(got), want)


@pytest.mark.gpu
@_every_kernel
def test_thousand_runs_give_the_same_bits(kernel: Kernel) -> None:
    # Some tiles of every kernel, with tails, and more steps than a pipeline has stages.
    case = dataclasses.replace(_case(kernel, 1024), m=1096, n=1160, k=520)
    problem = case.problem()
    assert kernel_answers.num_changed(_run(kernel, problem), case.arrays(), 1000) == 0


def _integers(case: KernelCase) -> dict[str, np.ndarray]:
    """Operands whose products are exact in every dtype, TF32 included."""
    problem, rng = case.problem(), np.random.default_rng(0)
    return {
        name: rng.integers(-4, 5, problem.shape(name)).astype(problem.dtype(name))
        for name in problem.spec.operands
    }


def _check_launch(loaded: ctypes.CDLL, case: KernelCase, instance: str, **options: Any) -> None:
    problem, arrays = case.problem(), _integers(case)
    outputs = direct_launch.launch(loaded, instance, problem, arrays, **options)
    kernel_answers.check(problem, {n: jax.numpy.asarray(x) for n, x in arrays.items()}, outputs)


@pytest.mark.gpu
@_every_compiled
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_a_kernel_touches_only_its_own_memory(
    kernel: Kernel, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        call, "run", lambda _, __, instance, *___, **options: asked.append((instance, options))
    )
    loaded = ctypes.CDLL(str(library.ensure_built(build.cuda_recipe(library.archs()))))
    for dtype in dict.fromkeys(row.dtype for row in instances.of_kernel(kernel.name)):
        for m, n, k in ((136, 176, 80), (129, 257, 63), (1, 1, 1), (300, 8, 200)):
            sizes = {"m": m, "n": n, "k": k, "layout": layout, "dtype": dtype, "out": dtype}
            full = KernelCase(**sizes, extras=("c", "bias"), activation="relu", save=True)
            # Some instances compute a · b alone.
            for case in (full, KernelCase(**sizes)):
                asked.clear()
                for config in _configs(kernel, case.problem()):
                    kernel.run(case.problem(), config, {})
                for instance, options in asked:
                    _check_launch(loaded, case, instance, **options)


# A product in the way of a kernel, and one that writes a row too many.
_SOURCE = """
#include <cstddef>
#include "abi/params.h"
using namespace jaxgemm;
extern "C" const char* jaxgemm_launch_fake(const GemmParams& p, void*) {
  const float* a = static_cast<float*>(p.a.data);
  const float* b = static_cast<float*>(p.b.data);
  const int num_rows = p.m + (p.num_knobs > 0 ? p.knobs[0] : 0);
  for (int i = 0; i < num_rows; ++i) {
    for (int j = 0; j < p.n; ++j) {
      float sum = 0;
      for (int k = 0; k < p.k; ++k) {
        sum += a[i * p.a.row_stride + k] * b[j * p.b.row_stride + k];
      }
      static_cast<float*>(p.d.data)[i * p.d.row_stride + j] = sum;
    }
  }
  return nullptr;
}
extern "C" int Size() { return sizeof(GemmParams); }
extern "C" int KnobsOffset() { return offsetof(GemmParams, knobs); }
extern "C" int StrideOffset() { return offsetof(Tensor, row_stride); }
"""


def test_the_harness_sees_a_row_too_many(tmp_path: pathlib.Path) -> None:
    folder = instances.source_folder()
    assert folder is not None
    source, target = tmp_path / "fake.cc", tmp_path / "fake.so"
    source.write_text(_SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", "-I", folder, "-o", target, source], check=True)
    fake = ctypes.CDLL(str(target))
    assert fake.Size() == ctypes.sizeof(GemmParams)
    assert fake.KnobsOffset() == GemmParams.knobs.offset
    assert fake.StrideOffset() == Tensor.row_stride.offset
    case = KernelCase(m=5, n=7, k=3, layout="NT", dtype="float32", out="float32")
    _check_launch(fake, case, "fake")
    with pytest.raises(AssertionError, match="bytes changed"):
        _check_launch(fake, case, "fake", knobs=(1,))
