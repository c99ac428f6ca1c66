"""What can be timed: a compiled callable with what it needs before and after a call."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from benchmarks.cases import Case, Function, Operands
from jaxgemm.tuning import compiling, timing
from jaxgemm.tuning.resources import Resources


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way in which an implementation can run a case.

    Attributes:
      config: what distinguishes it, as text.
      call: starts the work on prepared arguments.
      prepare: turns a set of operands into the arguments of `call`; it is not timed.
      outputs: turns what `call` returned into (d or None, all else by name), arrays of JAX. A
        gradient has the name of its operand.
      wait: waits for the device, for libraries that JAX does not know of; None for JAX itself.
      compile_seconds: tracing and compiling.
      resources: what the compiler said, of our kernels in Pallas.
      smem_bytes: of a thread block, as the config has it, of our kernels.
      waves: output tiles over those that run at once, by the cost model; tail_utilisation: the
        share of the slots of all waves that have a tile.
      predicted_l2_bytes: what its mapping asks of the memories, where a formula says so.
    """

    config: str
    call: Callable[[Any], Any]
    prepare: Callable[[Operands], Any]
    outputs: Callable[[Any], tuple[jax.Array | None, dict[str, jax.Array]]]
    wait: Callable[[], None] | None = None
    compile_seconds: float | None = None
    resources: Resources | None = None
    smem_bytes: int | None = None
    waves: float | None = None
    tail_utilisation: float | None = None
    predicted_l2_bytes: float | None = None

    def finished(self, arguments: Any) -> Any:
        """What `call` returns, once the device has done it."""
        result = self.call(arguments)
        return jax.block_until_ready(result) if self.wait is None else (self.wait(), result)[1]


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Something that can run rows.

    Attributes:
      name: the same string in records, tables and `--backends`.
      why_not: None, or why it does not run a case in a mode here.
      variants: the ways in which it can; the best one is reported.
      stepwise: whether it rounds on its way, as a chain of operations does.
      tuned_by_xla: whether compiling it lets XLA time kernels on the device.
    """

    name: str
    why_not: Callable[[Case, str], str | None]
    variants: Callable[[Case, str, Operands], Iterator[Variant]]
    stepwise: bool = True
    tuned_by_xla: Callable[[Case, str], bool] = lambda case, mode: False


def compiled(
    function: Function,
    case: Case,
    mode: str,
    sample: Operands,
    *,
    config: str = "",
    options: Mapping[str, Any] | None = None,
) -> Variant:
    """A function of a case's operands, compiled for a mode.

    For "vjp" the forward pass runs beforehand and what it saves is part of the arguments.
    """
    start = time.perf_counter()
    if mode == "forward":
        call, prepare = timing.compile_for(function, sample, options=options), _same
        outputs = functools.partial(_forward_results, case)
    elif mode == "forward_and_vjp":
        both = forward_and_vjp(function, case.differentiable)
        call, prepare, outputs = timing.compile_for(both, sample, options=options), _same, _same
    else:
        pull = functools.partial(_pull, function, case.differentiable)
        forward = timing.compile_for(pull, sample, options=options)

        def prepare(x: Operands) -> Any:
            return forward(x)[1], x["d_bar"]

        backward = lambda saved: saved[0](saved[1])[0]  # noqa: E731
        call = timing.compile_for(backward, prepare(sample), options=options)
        outputs = lambda gradients: (None, gradients)  # noqa: E731
    seconds = time.perf_counter() - start
    return Variant(config, call, prepare, outputs, compile_seconds=seconds)


def compiled_together(
    functions: Mapping[str, Function], sample: Operands
) -> Iterator[Variant | Exception]:
    """Forward functions that give d alone, by what distinguishes them, compiled at the same time.

    In place of one that cannot be compiled stands why. None may be tuned by XLA.
    """
    compiled = compiling.compile_together([*functions.values()], sample)
    for config, found in zip(functions, compiled, strict=True):
        if isinstance(found, Exception):
            yield found
        else:
            call, seconds = found
            yield Variant(config, call, _same, lambda d: (d, {}), compile_seconds=seconds)


def _forward_results(case: Case, found: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """What a function of a case returned, by name."""
    if not isinstance(found, tuple | list):
        return found, {}
    d, *others = found
    return d, dict(zip(case.problem.spec.outputs[1:], others, strict=True))


def _pull(
    function: Function, names: tuple[str, ...], x: Operands
) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    return jax.vjp(lambda part: function({**x, **part}), {name: x[name] for name in names})


def forward_and_vjp(
    function: Function, names: tuple[str, ...]
) -> Callable[[Operands], tuple[jax.Array, dict[str, jax.Array]]]:
    """A function of operands and the cotangent "d_bar" that gives d and gradients by operand."""

    def both(x: Operands) -> tuple[jax.Array, dict[str, jax.Array]]:
        d, pull = _pull(function, names, x)
        return d, pull(x["d_bar"])[0]

    return both


def _same(x: Any) -> Any:
    return x
