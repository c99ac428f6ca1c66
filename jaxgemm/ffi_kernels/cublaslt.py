"""NVIDIA's cuBLASLt: the algorithms that its heuristics propose, as configs of one kernel.

The library is found when the kernel is first asked for, and never needed for building or importing.
What it takes is what its documentation lists; the dtypes and epilogues it has no form for are
declined, and so are those forms in which it does not round once: `benchmarks/` alone asks for
these, as a yardstick. It sums in the accumulator dtype, and is not asked to promise more: which
algorithm an index means depends on its version and on the device.
"""

import ctypes
import dataclasses
import functools
import importlib.util
import math
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxgemm import dtypes, traffic
from jaxgemm.device import Device
from jaxgemm.ffi_kernels import call, instances, library, limits
from jaxgemm.ffi_kernels.toolchain import BuildError
from jaxgemm.kernel import Kernel, Operands
from jaxgemm.problem import Problem
from jaxgemm.spec import OPERAND_ORDER

_NAME = instances.CUBLASLT
_CAPABILITIES = (8, 0), (12, 1)
# As kLibraryName in ffi/cublaslt/api.cc.
_LIBRARY = "libcublasLt.so.13"
# As kNumAlgorithms in ffi/cublaslt/matmul.cc.
_NUM_ALGORITHMS = 8
# A batch axis that the library cannot stride over takes a launch for each of its entries.
_MAX_LAUNCHES = 64
# dtype of a → dtypes that d may have.
_OUTPUTS = {
    "float64": ("float64",),
    "float32": ("float32",),
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
    "int8": ("int32",),
    "float8_e4m3fn": ("bfloat16", "float16", "float32"),
    "float8_e5m2": ("bfloat16", "float16", "float32"),
}
_ACTIVATIONS = (None, "relu", "gelu")
# How far its slope of gelu may be off, whatever z is: it approximates tanh by a quotient, of which
# the tails are 0. Version 13.1 on an H200: 1.6e-5 at |z| = 3.5.
SLOPE_ERROR = 2e-5
# The multiple of elements that rows of z must be.
_Z_COLUMNS = 8
# The dtypes that have no epilogue beyond alpha and beta.
_PLAIN = ("float64", "int8")
_EPILOGUE_ROW_BYTES = 16
# The bytes of which rows must be multiples: the instructions for these read k-major operands only.
_ROW_BYTES = {"int8": 4, "float8_e4m3fn": 16, "float8_e5m2": 16}


@dataclasses.dataclass(frozen=True)
class Config:
    """The choice of an algorithm.

    Attributes:
      index: its place in the list that the heuristics give, best first. A place past the end is
        the last one: a choice that was tuned must run whatever the library's version.
      workspace_bytes: the most that it may use.
    """

    index: int
    workspace_bytes: int

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        """A guess, for the cost model: the library does not say."""
        return (128, 256, 64)

    @property
    def stages(self) -> int:
        """A guess, as the tile is."""
        return 1

    @property
    def cluster_size(self) -> int:
        """A guess, as the tile is."""
        return 1

    @property
    def split_k(self) -> int:
        """A guess, as the tile is."""
        return 1

    @property
    def smem_bytes(self) -> int:
        """0: unknown."""
        return 0


@functools.cache
def find() -> str | None:
    """What to load the library by: $JAXGEMM_CUBLASLT, a copy in memory, a package, or its name."""
    if named := os.environ.get("JAXGEMM_CUBLASLT"):
        return named if Path(named).is_file() else None
    with_name = functools.partial(ctypes.CDLL, _LIBRARY)
    if _loads(functools.partial(with_name, mode=os.RTLD_LAZY | os.RTLD_NOLOAD)):
        return _LIBRARY
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "cu13" / "lib" / _LIBRARY
        if path.is_file():
            return str(path)
    return _LIBRARY if _loads(with_name) else None


def _loads(load: functools.partial[ctypes.CDLL]) -> bool:
    try:
        load()
    except OSError:
        return False
    return True


def why_not_found() -> str | None:
    """Why there is no library to load."""
    if find() is not None:
        return None
    if named := os.environ.get("JAXGEMM_CUBLASLT"):
        return f"JAXGEMM_CUBLASLT is {named}, which is not a file"
    return f"{_LIBRARY} is missing: install nvidia-cublas (jax[cuda13] brings it)"


def _why_not(problem: Problem, device: Device) -> str | None:
    return _why_not_device(device) or why_not_problem(problem) or _why_not_there()


def _why_not_device(device: Device) -> str | None:
    return limits.why_not_device(device, *_CAPABILITIES)


def _why_not_there() -> str | None:
    return library.why_not() or why_not_found()


def why_not_problem(problem: Problem) -> str | None:
    """Why this kernel does not compute a problem, whatever the device."""
    return why_not_form(problem) or _why_not_rounded_once(problem)


def why_not_yardstick(problem: Problem, device: Device) -> str | None:
    """As `why_not` of the kernel, but for a result that may be rounded on its way."""
    return _why_not_device(device) or why_not_form(problem) or _why_not_there()


def why_not_form(problem: Problem) -> str | None:
    """Why the library has no form for a problem."""
    return next((x for x in _reasons(problem) if x is not None), None)


def _reasons(problem: Problem) -> Iterator[str | None]:
    spec = problem.spec
    yield limits.why_not_shape(problem)
    yield limits.why_not_sizes(problem, limits.MAX_DIMENSION)
    if spec.batch_invariant:
        yield "batch_invariant: the library chooses an algorithm by the number of rows"
    if problem.k == 0:
        yield "k is 0: the library multiplies nothing; the reference fills d"
    yield _why_not_operands(problem)
    yield _why_not_layout(problem)
    yield _why_not_epilogue(problem)
    launches = _num_launches(problem)
    if launches > _MAX_LAUNCHES:
        yield (
            f"the batch takes {launches} launches, because the library strides over one axis only:"
            f" this kernel makes at most {_MAX_LAUNCHES}; merge batch axes"
        )


def _why_not_operands(problem: Problem) -> str | None:
    a, b, d = (problem.dtype(name).name for name in ("a", "b", "d"))
    mixed = dtypes.is_fp8(a) and dtypes.is_fp8(b)
    if a != b and not mixed:
        return f"b is {b}: the library needs {a}, as a is"
    if a == b == "float8_e5m2":
        return "a and b are float8_e5m2: the library needs one of them to be float8_e4m3fn"
    if d not in _OUTPUTS[a]:
        return f"d is {d}: for {a} the library writes {' or '.join(_OUTPUTS[a])}"
    if problem.has("c") and problem.dtype("c") != problem.dtype("d"):
        return f"c is {problem.dtype('c')}: the library needs {d}, as d is"
    return None


def _why_not_layout(problem: Problem) -> str | None:
    spec, dtype = problem.spec, problem.dtype("a").name
    multiple = _ROW_BYTES.get(dtype)
    if multiple is None:
        return None
    if spec.a_contract != 1 or spec.b_contract != 1:
        return f"a and b are {dtype}: the library needs both with k as their last dimension"
    labels = "nk" if dtype == "int8" else "mnk"
    for label in labels:
        if problem.size[label] % multiple:
            return (
                f"{label} = {problem.size[label]}: for {dtype} the library needs a multiple of"
                f" {multiple}"
            )
    return None


def _why_not_epilogue(problem: Problem) -> str | None:
    spec, dtype = problem.spec, problem.dtype("a").name
    if spec.clamp is not None:
        return "clamp is given: the library has no such epilogue"
    if spec.activation not in _ACTIVATIONS:
        return f"activation is {spec.activation}: the library has relu and gelu"
    if dtype in _PLAIN and (problem.has("bias") or spec.activation is not None):
        return f"a is {dtype}: the library adds no bias and applies no activation to its products"
    if dtype == "int8" and problem.has("alpha", "beta"):
        return "a is int8: the library does not scale its products; leave alpha and beta out"
    # Version 13.1 on an H200: relu of NaN is 0 with every algorithm.
    if dtype == "float32" and spec.activation == "relu":
        return "activation is relu: the library makes NaN of float32 0 by it"
    if problem.has("bias") and problem.dtype("bias") != _bias_dtype(problem):
        return f"bias is {problem.dtype('bias')}: the library needs {_bias_dtype(problem)}"
    if spec.pullback and (reason := _why_not_slope(problem)):
        return reason
    if spec.sum_dtype is not None and (reason := _why_not_sum(problem)):
        return reason
    return _why_not_z(problem) if spec.save_preactivation or spec.pullback else None


def _why_not_slope(problem: Problem) -> str | None:
    activation, a, d = problem.spec.activation, problem.dtype("a"), problem.dtype("d")
    if activation == "relu":
        return "activation is relu: the library keeps where it is flat as bits, and does not read z"
    if activation is None:
        return "z is given without an activation: the library has no slope but that of gelu"
    if d.itemsize > 2:
        return f"d is {d}: the library's slope of gelu is off by up to {SLOPE_ERROR}"
    if dtypes.is_fp8(a):
        return f"a is {a}: the library multiplies no such products by the slope of gelu"
    return None


def _why_not_sum(problem: Problem) -> str | None:
    d_sum, d = problem.dtype("d_sum"), problem.dtype("d")
    if not problem.spec.pullback:
        return "d_sum is asked for: the library sums only what it multiplies by the slope of gelu"
    if d_sum != d:
        return f"d_sum is {d_sum}: the library writes {d}, as d is"
    if problem.m == 0:
        return "m is 0: the library sums nothing; the reference fills d_sum"
    for index, names in enumerate(problem.spec.batch):
        if "d_sum" not in names:
            size = problem.size[f"b{index}"]
            return (
                f"batch axis {index} of {size} is summed over in d_sum: the library sums rows only"
            )
    return None


def _why_not_z(problem: Problem) -> str | None:
    z, d, activation = problem.dtype("z"), problem.dtype("d"), problem.spec.activation
    if activation != "gelu":
        return f"pre-activations are saved for {activation}: the library does so for gelu only"
    if z != d:
        return f"z is {z}: the library needs {d}, as d is"
    if problem.n % _Z_COLUMNS:
        return (
            f"n = {problem.n}: of z the library needs rows of a multiple of {_Z_COLUMNS} elements"
        )
    return None


def _why_not_rounded_once(problem: Problem) -> str | None:
    # Version 13.1 on an H200, 2026-11-30: with every algorithm d of 16 bits is up to 1.9 times as
    # far off as one rounding allows (m = 8192, n = 1024, k = 512).
    if problem.spec.pullback:
        return (
            f"z is given: the library rounds products to {problem.dtype('d')}, as d is, before it"
            f" multiplies them by the slope of gelu, which is off by up to {SLOPE_ERROR}"
        )
    # The same version: where rows are not aligned, epilogues take what was rounded.
    has_epilogue = problem.has("bias") or problem.spec.activation is not None
    if problem.dtype("d").itemsize > 2 or not has_epilogue:
        return None
    for name in ("a", "b", "d"):
        if traffic.row_bytes(problem, name) % _EPILOGUE_ROW_BYTES:
            return (
                f"{name} has rows of {problem.shape(name)[-1]} elements: where they are not a"
                f" multiple of {_EPILOGUE_ROW_BYTES} bytes, the library rounds before its epilogue"
                " too"
            )
    return None


def _bias_dtype(problem: Problem) -> jnp.dtype:
    """That of d, but for products of 8-bit floats, which are written to float32."""
    narrow = dtypes.is_fp8(problem.dtype("a")) and problem.dtype("d").name == "float32"
    return jnp.dtype("bfloat16") if narrow else problem.dtype("d")


def _num_launches(problem: Problem) -> int:
    """As `DivideBatch` in ffi/cublaslt/product.cc divides the batch."""
    spec = problem.spec
    sizes = [problem.size[f"b{i}"] for i in range(len(spec.batch))]
    shared = [
        size
        for size, names in zip(sizes, spec.batch, strict=True)
        if not {"alpha", "beta"} & {*names}
    ]
    return math.prod(sizes) // max([1, *shared])


def _configs(problem: Problem, device: Device) -> tuple[Config, ...]:
    del problem
    # What NVIDIA recommends for each.
    workspace_bytes = (32 if device.compute_capability >= (9, 0) else 4) << 20
    return tuple(Config(index, workspace_bytes) for index in range(_NUM_ALGORITHMS))


def prepared(problem: Problem, operands: Operands) -> tuple[Problem, Operands]:
    """The problem with both of alpha and beta, or neither: the library reads both in one place."""
    if not problem.has("alpha", "beta"):
        return problem, operands
    neutral = {"alpha": 1, "beta": 1 if problem.has("c") else 0}
    added = {
        name: jnp.asarray(value, problem.accumulator)
        for name, value in neutral.items()
        if not problem.has(name)
    }
    names = tuple(name for name in OPERAND_ORDER if name in (*problem.spec.operands, *added))
    known = {**operands, **added}
    spec = problem.spec.replace(operands=names)
    return Problem.of(spec, [known[name] for name in names]), known


def run_on(problem: Problem, config: Config, operands: Operands) -> tuple[jax.Array, ...]:
    """The outputs of a problem, where the library is loaded and its target registered."""
    problem, operands = prepared(problem, operands)
    as_it_is = problem.spec.precision == "highest"
    return call.call(
        problem,
        _NAME,
        _NAME,
        operands,
        knobs=(config.index, int(as_it_is)),
        workspace_bytes=config.workspace_bytes,
    )


def load_into(ours: ctypes.CDLL) -> None:
    """Makes our library find NVIDIA's.

    Raises:
      BuildError: it is missing or cannot be loaded.
    """
    file = find()
    if file is None:
        raise BuildError(str(why_not_found()))
    ours.JaxgemmLoadCublasLt.restype = ctypes.c_char_p
    error = ours.JaxgemmLoadCublasLt(file.encode())
    if error is not None:
        raise BuildError(error.decode())


@functools.cache
def _load() -> None:
    load_into(library.register("CUDA"))


def _run(problem: Problem, config: Config, operands: Operands) -> tuple[jax.Array, ...]:
    _load()
    return run_on(problem, config, operands)


KERNEL = Kernel(
    name=_NAME,
    version=1,
    why_not=_why_not,
    configs=_configs,
    run=_run,
    # Of the rate that the roof is drawn at, which is that of this library at its best.
    efficiency=0.95,
    why_not_auto=library.why_not_built,
    is_black_box=True,
)
