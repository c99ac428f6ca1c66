"""The binding: a `Problem` and its operands as a call of a target that XLA knows."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from jaxgemm.epilogue import Clamp
from jaxgemm.ffi_kernels import library
from jaxgemm.kernel import Operands
from jaxgemm.problem import Problem
from jaxgemm.spec import Axes

_AXIS_NAMES = {"a": {1: "k", 0: "mn"}, "b": {0: "mn", 1: "k"}}


def bounds(clamp: Clamp | None) -> tuple[float, float]:
    """The bounds of a clamp, infinite where there is none."""
    low, high = clamp or (None, None)
    return -math.inf if low is None else low, math.inf if high is None else high


def _axes(axes: Axes) -> str:
    return ";".join(" ".join(names) for names in axes)


def attributes(
    problem: Problem, instance: str, outputs: Sequence[str], knobs: Sequence[int] = ()
) -> dict[str, str | np.int32 | np.ndarray]:
    """What `DecodeCall` in ffi/abi/call.cc reads.

    Each has one exact type always: JAX caches eager calls by Python's equality, in which True, 1
    and 1.0 are the same.
    """
    spec = problem.spec
    # A bound beyond float32 is infinite in it.
    with np.errstate(over="ignore"):
        clamp = np.asarray(bounds(spec.clamp), np.float32)
    return {
        "abi_version": np.int32(library.ABI_VERSION),
        "instance": instance,
        "operands": " ".join(spec.operands),
        "outputs": " ".join(outputs),
        "batch": _axes(spec.batch),
        "inside": _axes(spec.inside),
        "a_major": _AXIS_NAMES["a"][spec.a_contract],
        "b_major": _AXIS_NAMES["b"][spec.b_contract],
        "activation": spec.activation or "",
        "clamp": clamp,
        "knobs": np.asarray(knobs, np.int32),
    }


def call(
    problem: Problem,
    kernel: str,
    instance: str,
    operands: Operands,
    *,
    knobs: Sequence[int] = (),
    workspace_bytes: int = 0,
    overrides: Mapping[str, object] | None = None,
) -> tuple[jax.Array, ...]:
    """The outputs of a problem, by a registered target.

    Args:
      problem: what is computed.
      kernel: the name of the kernel.
      instance: the name of its instance.
      operands: by name.
      knobs: run-time integers whose meaning the kernel knows.
      workspace_bytes: scratch memory that the kernel needs on the device.
      overrides: attributes to send instead, for tests of what a handler refuses.
    """
    outputs = problem.spec.outputs
    shapes = [jax.ShapeDtypeStruct(problem.shape(n), problem.dtype(n)) for n in outputs]
    if workspace_bytes:
        outputs = (*outputs, "workspace")
        shapes.append(jax.ShapeDtypeStruct((workspace_bytes,), np.uint8))
    sent = {**attributes(problem, instance, outputs, knobs), **(overrides or {})}
    target = jax.ffi.ffi_call(f"jaxgemm.{kernel}", shapes)
    results = target(*(operands[name] for name in problem.spec.operands), **sent)
    return tuple(results[: len(problem.spec.outputs)])


def run(
    problem: Problem,
    kernel: str,
    instance: str,
    operands: Operands,
    *,
    knobs: Sequence[int] = (),
    workspace_bytes: int = 0,
) -> tuple[jax.Array, ...]:
    """`call` on a CUDA device, with the library built and loaded where it is not yet."""
    library.register("CUDA")
    return call(problem, kernel, instance, operands, knobs=knobs, workspace_bytes=workspace_bytes)
