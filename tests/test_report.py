"""What comparisons, tables and pictures make of records."""

import pathlib

import pytest

from benchmarks import compare, environment, manifest, measured, pictures, records, report, tables
from tests.benchmark_helpers import ladder_records, record_of, run_python

_PAIR = ("jaxgemm", "jnp.dot")


def test_compare_finds_what_became_slower():
    before = [record_of(row="a"), record_of(row="b"), record_of(row="c")]
    after = [record_of(row="a"), record_of(row="b", median_us=22.0), record_of(row="d")]
    found = compare.compare(before, after)
    assert [(c.key[0], c.verdict) for c in found] == [("a", "tie"), ("b", "slower")]
    text = compare.table(found)
    assert "2 compared: 0 faster, 1 tie, 1 slower" in text


def _results(folder: pathlib.Path) -> pathlib.Path:
    """Made-up records of rows that pictures and tables show."""
    device = folder / "nvidia_h200"
    wanted = [r for r in manifest.rows() if {"readme", "sawtooth", "decode"} & {*r.suites.split()}]
    wanted += manifest.sweep("512:2048:512", "4096", "4096")
    grouped = [(1, "balanced"), (8, "balanced"), (8, "zipf1.0"), (8, "onehot")]
    wanted += [
        manifest.Row(
            f"grouped_{g}_{x}", 4096, 64, 64, suites="grouped_sweep", groups=g, distribution=x
        )
        for g, x in grouped
    ]
    for row in wanted:
        names = ("m", "n", "k", "batch", "groups", "distribution", "epilogue")
        shared = {n: getattr(row, n) for n in names}
        shared |= {"row": row.name, "suite": row.family, "mode": row.mode or "forward"}
        for index, impl in enumerate(("jaxgemm", "jnp.dot", "torch.mm")):
            rates = {"tflops": 100.0 + index, "gbps": 1000.0, "ratio": 1.0 + 0.05 * index}
            records.append(device / "a.jsonl", record_of(impl=impl, **shared, **rates))
    ceiling = record_of(row="ceiling_read", suite="ceiling", impl="jax.numpy", gbps=4000.0)
    records.append(device / "ceilings.jsonl", ceiling)
    for record in ladder_records():
        records.append(device / "ladder.jsonl", record)
    return folder


def test_tables_say_how_well_another_run_agrees(tmp_path: pathlib.Path):
    path = tmp_path / "nvidia_h200" / "a.jsonl"
    times = [f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
    runs = [("old", "first", 9.0), ("new", "second", 1.0), ("new", "third", 1.02)]
    for time, (commit, command, ratio) in zip(times, runs, strict=True):
        for impl in _PAIR:
            fields = {"time": time, "commit": commit, "command": command, "ratio": ratio}
            records.append(path, record_of(row="sq_4096_bf16", impl=impl, **fields))
    found = measured.load(path.parent)
    assert [(a.command, b.command) for a, b in found.repeated] == [("third", "second")] * 2
    text = tables.of_marker("dense-h200", [found])
    assert text is not None
    assert "gave 1 of these ratios again: they differ by 2.0% in the median and by 2.0% at" in text


def test_report_writes_between_its_markers_only(tmp_path: pathlib.Path):
    devices = report.load(_results(tmp_path / "results"))
    before = "# Title\n\n<!-- table:dense-h200 -->\nold\n<!-- end -->\n\ntext | <!-- end -->\n"
    unknown = "<!-- table:dense-b200 -->\nkept\n<!-- end -->\n"
    target = tmp_path / "target"
    (target / "docs").mkdir(parents=True)
    (target / "README.md").write_text(before + unknown)
    assert report.write_tables(target, devices, check=True) == ["README.md"]
    assert (target / "README.md").read_text() == before + unknown
    assert report.write_tables(target, devices, check=False) == ["README.md"]
    after = (target / "README.md").read_text()
    assert after.startswith("# Title\n\n<!-- table:dense-h200 -->\n")
    assert after.endswith("<!-- end -->\n\ntext | <!-- end -->\n" + unknown)
    assert "old" not in after
    assert "8192×8192×8192" in after
    assert environment.commit() in after
    assert report.write_tables(target, devices, check=False) == []


def test_a_table_shows_the_last_measurement(tmp_path: pathlib.Path):
    path = tmp_path / "nvidia_h200" / "a.jsonl"
    for time, rate in (("2026-01-02", 2.0), ("2026-01-03", 3.0), ("2026-01-01", 1.0)):
        records.append(path, record_of(row="sq_1024_bf16", time=time, tflops=rate))
    (only,) = measured.load(path.parent).found
    assert only.tflops == 3
    (path.parent / "other.jsonl").write_text("of another kind")
    (path.parent / "other.meta.json").write_text("{}")
    text = tables.of_marker("dense-h200", report.load(tmp_path))
    assert text is not None
    assert "2026-01-03" in text


def test_a_line_that_is_no_record_is_named(tmp_path: pathlib.Path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "a.jsonl").write_text("{}\n")
    done = run_python("-m", "benchmarks.report", "--check", f"--results={tmp_path}")
    assert done.returncode != 0
    assert "a.jsonl:1: record: " in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_skew_is_the_largest_group_over_the_mean(tmp_path: pathlib.Path):
    devices = report.load(_results(tmp_path / "results"))
    figure = pictures.PICTURES["grouped"](devices[0])
    assert figure is not None
    by_label = {axes.get_xlabel(): axes for axes in figure.axes if axes.lines}
    skews = by_label["rows of the largest group / mean"].lines[0].get_xdata()
    # Of one over 1 + 1/2 + … + 1/8 of the rows, as drawn.
    assert list(skews) == pytest.approx([1.0, 8 / 2.718, 8.0], rel=0.05)
    assert list(by_label["groups"].lines[0].get_xdata()) == [1, 8]


def test_pictures_are_drawn_where_there_is_data(tmp_path: pathlib.Path):
    devices = report.load(_results(tmp_path / "results"))
    names = report.draw(tmp_path, devices)
    drawn = {pathlib.Path(n).stem.removeprefix("nvidia_h200_") for n in names}
    assert drawn == set(pictures.PICTURES) - {"speedup_grouped"}
    assert all((tmp_path / "docs" / "pictures" / name).stat().st_size > 5000 for name in names)
    empty = measured.Results("cpu", ())
    assert not any(picture(empty) for picture in pictures.PICTURES.values())


def test_times_of_two_runs_do_not_stand_side_by_side(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nvidia_h200" / "a.jsonl"
    shared = {"row": "sq_1024_bf16", "mode": "forward"}
    for hour, commit, impls in ((1, "old", ("jaxgemm", "jnp.dot", "torch.mm")), (2, "new", _PAIR)):
        for impl in impls:
            time = f"2026-11-30T0{hour}:00:00+00:00"
            records.append(path, record_of(impl=impl, commit=commit, time=time, **shared))
    records.append(path, record_of(row="other", commit="old", mode="forward"))
    found = measured.load(path.parent).found
    of_row = {r.impl: r.commit for r in found if r.row == "sq_1024_bf16"}
    assert of_row == dict.fromkeys(_PAIR, "new")
    assert [r.commit for r in found if r.row == "other"] == ["old"]


def test_committed_results_can_be_read_and_are_in_the_documents() -> None:
    root = pathlib.Path(__file__).parents[1]
    devices = report.load(root / "benchmarks" / "results")
    assert {"nvidia_h200", "cpu"} <= {device.name for device in devices}
    assert report.write_tables(root, devices, check=True) == []
