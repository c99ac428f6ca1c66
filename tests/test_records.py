"""Records of measurements: checked when they are written and when they are read."""

import csv
import io
import json
import math
import pathlib
from typing import Any

import jax
import pytest

from benchmarks import console, fields, records
from jaxgemm.tuning import cupti
from jaxgemm.tuning.graphs import Check
from tests.benchmark_helpers import record_of


def test_a_record_survives_being_written_and_read(tmp_path: pathlib.Path):
    record = record_of(throttle=("power cap",), tags=("x",))
    records.append(tmp_path / "nested" / "a.jsonl", record)
    assert records.read(tmp_path / "nested" / "a.jsonl") == (record,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "surprise"),
        ({"m": "64"}, "m = '64'"),
        ({"m": True}, "m = True"),
        ({"median_us": math.nan}, "finite"),
        ({"status": "fine"}, "status"),
        ({"median_us": None}, "should have all of"),
        ({"status": "wrong"}, "should have no time"),
        ({"kernels": "one"}, "kernels"),
        ({"versions": {"jax": 11}}, "versions"),
        ({"check": "guess", "graph_us": 1.0}, "check 'guess'"),
        ({"check": "graph"}, "should have graph_us"),
        ({"check": "calls"}, "should have wall_us"),
        ({"graph_us": 1.0}, "should have check"),
        ({"check": "graph", "graph_us": 1.0, "clocks_agree": True}, "should have check_cupti_us"),
    ],
)
def test_invalid_records_are_refused(changes: dict[str, Any], message: str):
    good = json.loads(records.to_json(record_of()))
    with pytest.raises(ValueError, match=message):
        records.validate({**good, **changes})


def test_a_check_that_breaks_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(cupti, "record", lambda run: run())

    def broken(x: Any) -> None:
        raise RuntimeError("no memory")

    found = fields.checked(broken, [1, 2])
    assert found == {"reason": "clocks are not compared: RuntimeError: no memory"}


@pytest.mark.parametrize("launched", records.CHECKS)
def test_a_check_is_recorded_and_only_disagreement_is_shown(launched: Any):
    for wall_us, cupti_us, agrees in (
        (110.0, 100.0, False),
        (101.0, 100.0, True),
        (9.0, 5.0, None),
    ):
        found = fields.of_check(Check(launched, wall_us, cupti_us, 1.0, 1))
        record = record_of(**found)
        assert records.from_json(records.to_json(record)) == record
        assert (record.check, record.clocks_agree) == (launched, agrees)
        assert (record.wall_us if launched == "calls" else record.graph_us) == wall_us
        assert ("gaps between kernels" in record.reason) == (agrees is None)
        assert ("CLOCKS DISAGREE" in console.line(record)) == (agrees is False)


def test_a_record_without_a_field_or_a_reason_is_refused(tmp_path: pathlib.Path):
    good = json.loads(records.to_json(record_of()))
    with pytest.raises(ValueError, match="commit"):
        records.validate({name: x for name, x in good.items() if name != "commit"})
    timeless = {name: x for name, x in good.items() if not name.endswith("_us")}
    with pytest.raises(ValueError, match="reason"):
        records.validate({**timeless, "status": "failed"})
    (tmp_path / "a.jsonl").write_text(records.to_json(record_of()) + "\n[]\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:2"):
        records.read(tmp_path / "a.jsonl")


def test_other_formats_are_for_programs():
    found = [record_of(row="a"), record_of(row="b")]
    shown = {}
    for kind in ("json", "csv"):
        stream = io.StringIO()
        printer = console.Printer(kind, stream)
        for record in found:
            printer.show(record)
        shown[kind] = stream.getvalue().splitlines()
    assert [records.from_json(line) for line in shown["json"]] == found
    assert [line["row"] for line in csv.DictReader(shown["csv"])] == ["a", "b"]
