"""Launches a compiled instance without XLA, in memory that is laid out here.

Everything lies in one block, apart by guards, and all of it is NaN at first, outputs and workspace
too. So a kernel that reads what it should not has NaN in its result, and one that writes where it
should not is seen in a guard or an operand. Buffers begin at multiples of 16 bytes, and of no more,
as XLA's may.
"""

import ctypes
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from jaxgemm.ffi_kernels import call
from jaxgemm.problem import Problem

_GUARD_BYTES = 4096
# NaN in every float dtype, and one that no arithmetic gives.
_NAN = np.array([0x7FA5], np.uint16)
_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
_ACTIVATIONS = {None: 0, "relu": 1}
_NAMES = ("a", "b", "c", "bias", "alpha", "beta", "d", "z", "d_sum")


class Tensor(ctypes.Structure):
    """As in ffi/abi/params.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("row_stride", ctypes.c_int64),
        ("batch_strides", ctypes.c_int64 * 4),
    )


class GemmParams(ctypes.Structure):
    """As in ffi/abi/params.h."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("m", "n", "k")),
        ("num_matrices", ctypes.c_int64),
        ("num_batch_axes", ctypes.c_int32),
        ("batch_sizes", ctypes.c_int32 * 4),
        *((name, ctypes.c_int32) for name in ("a_major", "b_major", "activation")),
        *((name, ctypes.c_float) for name in ("clamp_low", "clamp_high")),
        ("pullback", ctypes.c_bool),
        *((name, Tensor) for name in _NAMES),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("num_knobs", ctypes.c_int32),
        ("knobs", ctypes.c_int32 * 8),
    )


def _params(
    problem: Problem, addresses: Mapping[str, int], workspace_bytes: int, knobs: Sequence[int]
) -> GemmParams:
    """The arguments of a problem without batch axes, alpha and beta."""
    spec = problem.spec
    params = GemmParams(m=problem.m, n=problem.n, k=problem.k, num_matrices=1)
    # 1 is Major::kK.
    params.a_major, params.b_major = spec.a_contract, spec.b_contract
    params.activation, params.pullback = _ACTIVATIONS[spec.activation], spec.pullback
    params.clamp_low, params.clamp_high = call.bounds(spec.clamp)
    for name in (*spec.operands, *spec.outputs):
        shape = problem.shape(name)
        row_stride = shape[-1] if len(shape) == 2 else 0
        dtype = _DTYPES[problem.dtype(name).name]
        setattr(params, name, Tensor(addresses[name], dtype, row_stride))
    params.workspace, params.workspace_bytes = addresses["workspace"], workspace_bytes
    params.num_knobs = len(knobs)
    params.knobs[: len(knobs)] = list(knobs)
    return params


def _layout(sizes: Mapping[str, int]) -> tuple[dict[str, slice], int]:
    """Where each buffer of so many bytes lies, and the bytes of the whole."""
    places, end = {}, _GUARD_BYTES
    for name, size in sizes.items():
        start = -(-end // 256) * 256 + 16
        places[name] = slice(start, start + size)
        end = start + size + _GUARD_BYTES
    return places, end + end % 2


def launch(
    library: ctypes.CDLL,
    instance: str,
    problem: Problem,
    arrays: Mapping[str, np.ndarray],
    *,
    workspace_bytes: int = 0,
    knobs: Sequence[int] = (),
) -> tuple[np.ndarray, ...]:
    """The outputs of one launch; an assertion fails if it wrote anywhere else.

    Args:
      library: it has the instance.
      instance: its name.
      problem: without batch axes, alpha and beta.
      arrays: the operands.
      workspace_bytes: what the kernel asks for.
      knobs: what its config says at run time.
    """
    spec = problem.spec
    sizes = {name: problem.bytes_of(name) for name in (*spec.operands, *spec.outputs)}
    places, num_bytes = _layout({**sizes, "workspace": workspace_bytes})
    before = np.tile(_NAN.view(np.uint8), num_bytes // 2)
    for name in spec.operands:
        before[places[name]] = np.ascontiguousarray(arrays[name]).view(np.uint8).ravel()
    block = jax.block_until_ready(jax.device_put(before.copy()))
    base = block.unsafe_buffer_pointer()
    addresses = {name: base + place.start for name, place in places.items()}
    run = library[f"jaxgemm_launch_{instance}"]
    run.restype = ctypes.c_char_p
    error = run(ctypes.byref(_params(problem, addresses, workspace_bytes, knobs)), None)
    assert error is None, error
    if jax.default_backend() == "gpu":
        assert ctypes.CDLL("libcuda.so.1").cuCtxSynchronize() == 0
    after = np.asarray(block)
    may_change = np.zeros(num_bytes, bool)
    for name in (*spec.outputs, "workspace"):
        may_change[places[name]] = True
    changed = np.flatnonzero((after != before) & ~may_change)
    assert changed.size == 0, f"{changed.size} bytes changed from {changed[:1]}; {places}"
    return tuple(
        after[places[name]].view(problem.dtype(name)).reshape(problem.shape(name))
        for name in spec.outputs
    )
