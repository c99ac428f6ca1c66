"""What comparisons, tables and pictures make of records."""

import pathlib

from benchmarks import compare, environment, manifest, measured, pictures, records, report, tables
from tests.benchmark_helpers import record_of


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
    wanted += [
        manifest.Row(f"grouped_{g}_balanced", 4096, 64, 64, suites="grouped_sweep", groups=g)
        for g in (1, 8)
    ]
    for row in wanted:
        shared = {n: getattr(row, n) for n in ("m", "n", "k", "batch", "groups", "epilogue")}
        shared |= {"row": row.name, "suite": row.family, "mode": row.mode or "forward"}
        for index, impl in enumerate(("jaxgemm", "jnp.dot", "torch.mm")):
            rates = {"tflops": 100.0 + index, "gbps": 1000.0, "ratio": 1.0 + 0.05 * index}
            records.append(device / "a.jsonl", record_of(impl=impl, **shared, **rates))
    ceiling = record_of(row="ceiling_read", suite="ceiling", gbps=4000.0)
    records.append(device / "ceilings.jsonl", ceiling)
    return folder


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


def test_pictures_are_drawn_where_there_is_data(tmp_path: pathlib.Path):
    devices = report.load(_results(tmp_path / "results"))
    names = report.draw(tmp_path, devices)
    drawn = {pathlib.Path(n).stem.removeprefix("nvidia_h200_") for n in names}
    assert drawn == set(pictures.PICTURES) - {"speedup_grouped"}
    assert all((tmp_path / "docs" / "pictures" / name).stat().st_size > 5000 for name in names)
    empty = measured.Results("cpu", ())
    assert not any(picture(empty) for picture in pictures.PICTURES.values())
