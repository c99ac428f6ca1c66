"""Climbs the ladder of docs/ladder.md: one product by every form of every rung, next to XLA's.

    python -m benchmarks.ladder --out=benchmarks/results/nvidia_h200/ladder.jsonl
    python -m benchmarks.ladder --counters --out=benchmarks/results/nvidia_h200/ladder.jsonl

The rungs up to warp tiles multiply float32 without rounding, the others bfloat16. With --counters
the fastest form of each rung then runs once more under ncu, for the bytes that really moved. The
forms of `cuda.mma_sync` are its pipeline with one to five stages.
"""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence

from absl import app, flags

from benchmarks import cases, command, implementations, ncu, records, rungs
from benchmarks.manifest import Row
from benchmarks.records import Record
from benchmarks.runner import Runner, blank
from benchmarks.variants import Implementation, Variant, compiled
from jaxgemm import device, registry
from jaxgemm.ffi_kernels.instances import Instance
from jaxgemm.kernel import Kernel

_SIZE = flags.DEFINE_integer("size", 4096, "m, n and k", lower_bound=1)
_COUNTERS = flags.DEFINE_bool("counters", False, "count bytes with ncu, too")


def _rows() -> list[Row]:
    """The product in each dtype of the ladder."""
    size = _SIZE.value
    return [
        Row(
            f"ladder_{size}_{dtype}",
            *(size, size, size),
            suites="ladder",
            a_dtype=dtype,
            b_dtype=dtype,
            out_dtype=dtype,
            source="docs/ladder.md",
        )
        for dtype in dict.fromkeys(rungs.RUNGS.values())
    ]


def _form(kernel: Kernel, row: Instance) -> Implementation:
    """One instance of a rung."""

    def why_not(case: cases.Case, mode: str) -> str | None:
        if case.row.a_dtype != row.dtype:
            return f"a is {case.row.a_dtype}: this form multiplies {row.dtype}"
        return kernel.why_not(case.problem, device.current())

    def variants(case: cases.Case, mode: str, sample: cases.Operands) -> Iterator[Variant]:
        for config in kernel.configs(case.problem, device.current()):
            if config.instance != row.name:
                continue
            run = lambda x, c=config: kernel.run(case.problem, c, x)[0]  # noqa: E731
            variant = compiled(run, case, mode, sample, config=str(config))
            asked = rungs.asked_bytes(case.problem, config)
            smem_bytes = config.smem_bytes or None
            yield dataclasses.replace(variant, predicted_l2_bytes=asked, smem_bytes=smem_bytes)

    return Implementation(row.name, why_not, variants, stepwise=False)


def climbed() -> dict[str, Implementation]:
    """Every form of every rung, and what they are held against, by name."""
    kernels = {kernel.name: kernel for kernel in registry.kernels()}
    forms = [_form(kernels[row.kernel], row) for row in rungs.compiled()]
    references = [
        known
        for name, known in implementations.implementations().items()
        if name.split("[")[0] in rungs.REFERENCES and not name.endswith(("[tf32]", "[f32acc]"))
    ]
    return {known.name: known for known in (*forms, *references)}


def _measured(rows: Sequence[Row], runner: Runner) -> Iterator[tuple[str, Iterable[Record]]]:
    """Times of all rows, each followed by its counters if they are wanted."""
    for row, (name, found) in zip(rows, runner.run(rows), strict=False):
        timed = [record for record in found if _belongs(record)]
        yield name, timed
        if _COUNTERS.value:
            yield f"{name}, counters", _counters(row, timed)


def _counters(row: Row, timed: Sequence[Record]) -> Iterator[Record]:
    """The counters of the fastest forms; where there are none of the first, no others are tried."""
    ok = [record for record in timed if record.status == "ok"]
    for index, record in enumerate(rungs.fastest(ok)):
        counted = _counted(row, record)
        yield counted
        if index == 0 and counted.status == "failed":
            return


def _belongs(record: Record) -> bool:
    """Whether it is of the dtype in which its kernel is a rung."""
    form = rungs.instance_of(record)
    return form is None or form.dtype == record.a_dtype


def _counted(row: Row, timed: Record) -> Record:
    empty = dataclasses.replace(
        blank(row, "forward", "burst", command.tags()),
        impl=timed.impl,
        config=timed.config,
        predicted_l2_bytes=timed.predicted_l2_bytes,
    )
    try:
        wanted = f"{row.name} {timed.impl} {timed.config}"
        counted = ncu.counted("benchmarks.ladder", wanted)
    except Exception as error:
        return records.failed(empty, error)
    moved = cases.of(row).total_bytes("forward")
    return dataclasses.replace(empty, status="counted", predicted_dram_bytes=moved, **counted)


def _run_child(wanted: str) -> None:
    """Runs one config of one implementation of one row under ncu."""
    name, impl, config = wanted.split(maxsplit=2)
    case = cases.of(next(row for row in _rows() if row.name == name))
    sets = case.inputs("forward")
    variants = climbed()[impl].variants(case, "forward", sets[0])
    variant = next(x for x in variants if x.config == config)
    ncu.look_at(variant.call, [variant.prepare(x) for x in sets])


def main(argv: Sequence[str]) -> None:
    """Climbs once."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    if (wanted := ncu.child()) is not None:
        _run_child(wanted)
        return
    if _COUNTERS.value and (reason := ncu.why_not()):
        raise app.UsageError(reason)
    known = climbed()
    try:
        runner = Runner(command.options(backends=tuple(known)), known)
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    rows = [row for row in _rows() if command.matches(row.name)]
    parts = ("", ", counters") if _COUNTERS.value else ("",)
    names = [f"{row.name}{part}" for row in rows for part in parts]
    sys.exit(command.collect(names, _measured(rows, runner)))


if __name__ == "__main__":
    app.run(main)
