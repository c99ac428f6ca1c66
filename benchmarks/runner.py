"""Runs rows: check, choose, time, record. A row that fails is reported and the rest goes on."""

import concurrent.futures
import contextlib
import dataclasses
import gc
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from benchmarks import cases, fields, implementations, machine_code, records
from benchmarks.cases import Case
from benchmarks.manifest import Row
from benchmarks.records import Record
from benchmarks.variants import Implementation, Variant
from jaxgemm.tuning import gate, timing

# Why an implementation without variants has no time.
NO_CONFIG = "no config of it takes this row"
# Calls of each variant of an implementation, to find the best.
_TRIAL_ITERATIONS = 8


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line decides.

    Attributes:
      backends: names of implementations, as `implementations.select` takes them.
      mode: for rows that do not have their own.
      regimes: "burst", "sustained", or both.
      iterations: timed calls; None: what the protocol takes.
      max_variants: ways of one implementation that are tried.
      max_seconds: no row is begun, and no variant tried, after this time.
      graphs: whether short calls are timed in a captured graph, too.
      tags: added to every record.
    """

    backends: tuple[str, ...] = ("all",)
    mode: str = "forward"
    regimes: tuple[timing.Regime, ...] = ("burst",)
    iterations: int | None = None
    max_variants: int = 8
    max_seconds: float = math.inf
    graphs: bool = False
    tags: tuple[str, ...] = ()


def blank(row: Row, mode: str, regime: timing.Regime, tags: tuple[str, ...]) -> Record:
    """A record of jaxgemm without anything measured."""
    shared = {f.name for f in dataclasses.fields(Row)} & set(Record.__dataclass_fields__)
    return Record(
        **{name: getattr(row, name) for name in shared if name != "mode"},
        row=row.name,
        suite=row.family,
        mode=mode,
        regime=regime,
        impl="jaxgemm",
        status="ok",
        tags=tags,
        **fields.stamp(),
    )


def wrong_record(record: Record, variant: Variant, error: float) -> Record:
    """The record of an answer that does not pass the gate; `error` is over its bound."""
    return dataclasses.replace(
        record,
        status="wrong",
        config=variant.config,
        reason=f"error is {error:.3g} times its bound",
        max_error_ratio=fields.significant(error, 4),
    )


@dataclasses.dataclass(frozen=True)
class _Entry:
    """An implementation that has passed the gate, with the variant that is reported."""

    implementation: Implementation
    variant: Variant
    error: float
    arguments: list[Any]


# Implementation → its variants, why it does not run the row, or what went wrong.
_Ways = dict[str, list[Variant] | str | Exception]


class Runner:
    """Rows in, records out."""

    def __init__(self, options: Options, known: Mapping[str, Implementation] | None = None) -> None:
        """`known` are those that the options choose from, where it is not all of them."""
        self._options = options
        self._chosen = implementations.select(list(options.backends), known)
        self._deadline = time.monotonic() + options.max_seconds

    def run(self, rows: Sequence[Row]) -> Iterator[tuple[str, list[Record]]]:
        """Each row with its records, as soon as they are there."""
        for row in rows:
            if time.monotonic() > self._deadline:
                return
            with jax.enable_x64(row.a_dtype == "float64"):
                yield row.name, list(self._row(row))
            gc.collect()

    def _row(self, row: Row) -> Iterator[Record]:
        mode = row.mode or self._options.mode
        empty = blank(row, mode, self._options.regimes[0], self._options.tags)
        try:
            case = cases.of(row)
        except cases.Unsupported as reason:
            yield dataclasses.replace(empty, status="unsupported", reason=str(reason))
            return
        except Exception as error:  # no such dtype, say
            yield records.failed(empty, error)
            return
        if mode != "forward" and not case.differentiable:
            reason = "has no gradient" if case.is_backward else f"{row.a_dtype} has no gradient"
            yield dataclasses.replace(empty, status="unsupported", reason=reason)
            return
        try:
            sets = case.inputs(mode)
        except Exception as error:
            yield records.failed(empty, error)
            return
        empty = dataclasses.replace(empty, **described(case, sets))
        entries, judge = [], Judge(case, sets[0])
        ways = self._ways(case, mode, sets[0], judge)
        for implementation in self._chosen:
            record = dataclasses.replace(empty, impl=implementation.name)
            found = self._admit(implementation, ways, case, mode, sets, judge, record)
            if isinstance(found, Record):
                yield found
            elif found is not None:
                entries.append(found)
        judge.forget()
        baseline = implementations.baseline([e.implementation.name for e in entries], case)
        # A check compiles once more: it is made of what ratios are about, ours and the baseline.
        checks = {
            e.implementation.name: fields.checked(
                e.variant.call, e.arguments, e.variant.wait, short=self._options.graphs
            )
            for e in entries
            if e.implementation.name == baseline or not e.implementation.stepwise
        }
        for regime in self._options.regimes:
            record = dataclasses.replace(empty, regime=regime)
            for timed in self._timed(entries, case, mode, regime, record):
                ok = timed.status == "ok"
                check = checks.get(timed.impl, {}) if ok else {}
                yield dataclasses.replace(timed, **check)

    def _ways(self, case: Case, mode: str, sample: dict[str, jax.Array], judge: "Judge") -> "_Ways":
        """The compiled variants of every implementation, or why there are none.

        First of those that XLA tunes, for which it times kernels, while nothing else is done. The
        answer is worked out while the others compile.
        """
        tuned = [x for x in self._chosen if _is_tuned_by_xla(x, case, mode)]
        others = [x for x in self._chosen if x not in tuned]
        found = {x.name: self._way(x, case, mode, sample) for x in tuned}
        with judge.at_work(mode):
            return found | {x.name: self._way(x, case, mode, sample) for x in others}

    def _way(
        self, implementation: Implementation, case: Case, mode: str, sample: dict[str, jax.Array]
    ) -> list[Variant] | str | Exception:
        try:
            if reason := implementation.why_not(case, mode):
                return reason
            return list(self._in_time(implementation.variants(case, mode, sample)))
        except Exception as error:
            return error

    def _in_time(self, variants: Iterator[Variant]) -> Iterator[Variant]:
        """As many as may be tried, and those only that there is time to try."""
        for variant in itertools.islice(variants, self._options.max_variants):
            yield variant
            if time.monotonic() > self._deadline:
                return

    def _admit(
        self,
        implementation: Implementation,
        ways: "_Ways",
        case: Case,
        mode: str,
        sets: list[dict[str, jax.Array]],
        judge: "Judge",
        record: Record,
    ) -> _Entry | Record | None:
        """The implementation's best variant that is right; a record without time; or nothing."""
        try:
            found = ways[implementation.name]
            if isinstance(found, Exception):
                return records.failed(record, found)
            if isinstance(found, str):
                report = dataclasses.replace(record, status="unsupported", reason=found)
                return report if self._asked_for(implementation, case, mode) else None
            ranked = self._ranked(found, sets)
            wrong = None
            for variant in ranked:
                result = variant.outputs(variant.finished(variant.prepare(sets[0])))
                error = judge.error(result, stepwise=implementation.stepwise)
                strict = judge.error(result, stepwise=False)
                if error <= 1:
                    arguments = [variant.prepare(x) for x in sets]
                    return _Entry(implementation, variant, strict, arguments)
                wrong = wrong or wrong_record(record, variant, strict)
            return wrong or dataclasses.replace(record, status="unsupported", reason=NO_CONFIG)
        except Exception as error:
            return records.failed(record, error)

    def _asked_for(self, implementation: Implementation, case: Case, mode: str) -> bool:
        """Whether a user who named it would miss it: no form of it, as for a dtype, can run."""
        base = implementation.name.split("[")[0]
        forms = [x for x in self._chosen if x.name.split("[")[0] == base]
        return (
            base in self._options.backends
            and implementation is forms[0]
            and all(form.why_not(case, mode) for form in forms)
        )

    def _ranked(self, found: list[Variant], sets: list[dict[str, jax.Array]]) -> list[Variant]:
        """Variants of an implementation, fastest first by a short trial."""
        if len(found) < 2:
            return found
        trial = {}
        for index, variant in enumerate(found):
            arguments = [variant.prepare(x) for x in sets]
            try:
                trial[index] = timing.trial_us(
                    variant.call, arguments, iterations=_TRIAL_ITERATIONS, wait=variant.wait
                )
            except Exception:  # one config that cannot run; the others can
                continue
        return [found[index] for index in sorted(trial, key=trial.__getitem__)]

    def _timed(
        self,
        entries: list[_Entry],
        case: Case,
        mode: str,
        regime: timing.Regime,
        record: Record,
    ) -> Iterator[Record]:
        if not entries:
            return
        try:
            measured = timing.measure(
                {e.implementation.name: e.variant.call for e in entries},
                {e.implementation.name: e.arguments for e in entries},
                regime=regime,
                iterations=self._options.iterations,
                waits={e.implementation.name: e.variant.wait for e in entries if e.variant.wait},
            )
        except Exception as error:
            yield records.failed(dataclasses.replace(record, impl="all"), error)
            return
        baseline = implementations.baseline(list(measured), case)
        for entry in entries:
            name = entry.implementation.name
            compared = measured[baseline] if baseline else None
            counts = case.total_flops(mode), case.total_bytes(mode)
            yield dataclasses.replace(
                record,
                impl=name,
                baseline=baseline,
                max_error_ratio=fields.significant(entry.error, 4),
                **facts(entry.variant, measured[name].kernels),
                **fields.timed(measured[name], compared, *counts),
            )


def _is_tuned_by_xla(implementation: Implementation, case: Case, mode: str) -> bool:
    try:
        return implementation.tuned_by_xla(case, mode)
    except Exception:  # it will be told why it does not compile
        return False


def facts(variant: Variant, kernels: tuple[str, ...]) -> dict[str, Any]:
    """What is known of a variant without running it, and of the kernels that ran."""
    known = machine_code.facts(kernels)
    known |= dataclasses.asdict(variant.resources) if variant.resources else {}
    return {
        "smem_bytes": variant.smem_bytes,
        "config": variant.config,
        "compile_seconds": fields.significant(variant.compile_seconds, 3),
        "waves": fields.significant(variant.waves, 4),
        "tail_utilisation": fields.significant(variant.tail_utilisation, 4),
        "predicted_l2_bytes": fields.significant(variant.predicted_l2_bytes, 7),
        **known,
    }


class Judge:
    """Compares results for one set of operands with what they should be, which it finds once."""

    def __init__(self, case: Case, operands: dict[str, jax.Array]) -> None:
        self._case = case
        self._operands = {name: operands[name] for name in case.problem.spec.operands}
        self._d_bar = operands.get("d_bar")
        self._answers: dict[str, gate.Answer] = {}

    def error(
        self, result: tuple[jax.Array | None, dict[str, jax.Array]], *, stepwise: bool
    ) -> float:
        """The largest error over its bound, of d and of the gradients, those that there are."""
        d, others = result
        results = {} if d is None else {"d": d}
        outputs = self._case.problem.spec.outputs
        results |= {name if name in outputs else f"{name}_bar": x for name, x in others.items()}
        errors = [self._answer(n).error(x, stepwise=stepwise) for n, x in results.items()]
        return max(errors) if not any(map(math.isnan, errors)) else math.inf

    @contextlib.contextmanager
    def at_work(self, mode: str) -> Iterator[None]:
        """Works out the answer meanwhile, in a thread of its own."""
        wide = jax.config.read("jax_enable_x64")

        def work() -> None:
            with jax.enable_x64(wide):
                self._answer("d" if mode == "forward" else f"{self._case.differentiable[0]}_bar")

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            # What goes wrong goes wrong again, and is told, where the answer is needed.
            pool.submit(work)
            yield

    def forget(self) -> None:
        """Frees the memory of the answers; they are found again when they are asked for."""
        self._answers.clear()

    def _answer(self, name: str) -> gate.Answer:
        if name not in self._answers:
            problem = self._case.problem
            if name == "d":
                self._answers["d"] = gate.answer(problem, self._operands)
            elif name == "d_sum":
                self._answers["d_sum"] = gate.answer_of_sum(problem, self._operands)
            else:
                assert self._d_bar is not None, name
                found = gate.gradient_answers(
                    problem, self._operands, self._d_bar, self._case.differentiable
                )
                self._answers |= {f"{x}_bar": answer for x, answer in found.items()}
        return self._answers[name]


def described(case: Case, sets: list[dict[str, jax.Array]]) -> dict[str, Any]:
    """The bytes of distinct arrays of all sets of operands, and how these are drawn."""
    distinct = {id(x): x.nbytes for operands in sets for x in operands.values()}
    scale = "".join(f", {name} scaled by {s:.3g}" for name, s in case.scale.items())
    integer = case.row.a_dtype == "int8"
    drawn = "uniform over [-127, 127]" if integer else f"normal{scale}"
    return {"rotation_bytes": sum(distinct.values()), "inputs": drawn}
