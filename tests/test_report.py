"""What comparisons, tables and pictures make of records."""

import dataclasses
import pathlib
import re

import pytest

from benchmarks import (
    compare,
    environment,
    manifest,
    measured,
    pictures,
    plotting,
    records,
    report,
    rooflines,
    tables,
)
from tests.benchmark_helpers import (
    captured_records,
    counted_record,
    ladder_records,
    record_of,
    run_python,
)

_ROOT = pathlib.Path(__file__).parents[1]


def test_compare_finds_what_became_slower():
    before = [record_of(row="a"), record_of(row="b"), record_of(row="c")]
    after = [record_of(row="a"), record_of(row="b", median_us=22.0), record_of(row="d")]
    found = compare.compare(before, after)
    assert [(c.key[0], c.verdict) for c in found] == [("a", "tie"), ("b", "slower")]
    text = compare.table(found)
    assert "2 compared: 0 faster, 1 tie, 1 slower" in text
    assert "with another config 0" in text


def test_compare_says_where_another_config_was_chosen():
    before, after = ([record_of(row="a", config=config)] for config in ("one", "other"))
    (only,) = compare.compare(before, after)
    assert not only.same_config
    assert "another config\n" in compare.table([only])


def _results(folder: pathlib.Path) -> pathlib.Path:
    """Made-up records of every row of the manifest and of every sweep that has a picture."""
    device = folder / "nvidia_h200"
    wanted = [*manifest.rows(), *manifest.sweep("512:2048:512", "4096", "4096")]
    grouped = [(1, "balanced"), (8, "balanced"), (8, "zipf1.0"), (8, "onehot")]
    wanted += [
        manifest.Row(
            f"grouped_{g}_{x}", 4096, 64, 64, suites="grouped_sweep", groups=g, distribution=x
        )
        for g, x in grouped
    ]
    wanted.append(manifest.Row("mlp", 64, 64, 64, suites="train_step"))
    wanted.append(manifest.Row("one beside other", 64, 64, 64, suites="side_by_side"))
    for row in wanted:
        names = ("m", "n", "k", "batch", "groups", "distribution", "epilogue")
        shared = {n: getattr(row, n) for n in names}
        shared |= {"row": row.name, "suite": row.family, "mode": row.mode or "forward"}
        for index, impl in enumerate(("jaxgemm", "jnp.dot", "torch.mm")):
            rates = {"tflops": 100.0 + index, "gbps": 1000.0, "ratio": 1.0 + 0.05 * index}
            records.append(device / "a.jsonl", record_of(impl=impl, **shared, **rates))
    ceiling = record_of(row="ceiling_read", suite="ceiling", impl="jax.numpy", gbps=4000.0)
    records.append(device / "ceilings.jsonl", ceiling)
    for record in [*ladder_records(), *captured_records(), counted_record()]:
        records.append(device / "ladder.jsonl", record)
    return folder


def test_report_writes_between_its_markers_only(tmp_path: pathlib.Path):
    devices = report.load(_results(tmp_path / "results"))
    before = "# Title\n\n<!-- table:readme-h200 -->\nold\n<!-- end -->\n\ntext | <!-- end -->\n"
    unknown = "<!-- table:dense-b200 -->\nkept\n<!-- end -->\n"
    target = tmp_path / "target"
    (target / "docs").mkdir(parents=True)
    (target / "README.md").write_text(before + unknown)
    assert report.write_tables(target, devices, check=True) == ["README.md"]
    assert (target / "README.md").read_text() == before + unknown
    assert report.write_tables(target, devices, check=False) == ["README.md"]
    after = (target / "README.md").read_text()
    assert after.startswith("# Title\n\n<!-- table:readme-h200 -->\n")
    assert after.endswith("<!-- end -->\n\ntext | <!-- end -->\n" + unknown)
    assert "old" not in after
    assert "8192×8192×8192" in after
    assert f"commit {environment.commit()[:9]}" in after
    assert report.write_tables(target, devices, check=False) == []


def test_a_table_shows_the_last_measurement(tmp_path: pathlib.Path):
    path = tmp_path / "nvidia_h200" / "a.jsonl"
    for time, rate in (("2026-01-02", 2.0), ("2026-01-03", 3.0), ("2026-01-01", 1.0)):
        records.append(path, record_of(row="sq_1024_bf16", time=time, tflops=rate))
    (only,) = measured.load(path.parent).found
    assert only.tflops == 3
    (path.parent / "other.jsonl").write_text("of another kind")
    (path.parent / "other.meta.json").write_text("{}")
    text = tables.of_marker("readme-h200", report.load(tmp_path))
    assert text is not None
    assert "2026-01-03" in text


@pytest.mark.parametrize("document", ["README.md", "docs/measured.md", "docs/ladder.md"])
def test_everything_that_is_measured_is_shown(tmp_path: pathlib.Path, document: str):
    devices = report.load(_results(tmp_path / "results"))
    empty = re.sub(
        r"(<!-- \S+:\S+ -->\n).*?(?=<!-- end -->)", r"\1", _text(document), flags=re.DOTALL
    )
    path = tmp_path / document
    path.parent.mkdir(exist_ok=True)
    path.write_text(empty)
    for name in pictures.PICTURES:
        picture = tmp_path / "docs" / "pictures" / f"nvidia_h200_{name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.touch()
    report.write_tables(tmp_path, devices, check=False)
    filled = path.read_text()
    blank = set(re.findall(r"<!-- (\S+) -->\n<!-- end -->", filled))
    # One run of each, nothing of a CPU, nothing of a tuner.
    missing = ("spread-h200", "untuned-h200", "loads-h200")
    assert blank <= {"picture:speedup-cpu", *(f"table:{name}" for name in missing)}
    links = re.findall(r"\]\((\S+\.png)\)", filled)
    assert links
    assert all((path.parent / link).exists() for link in links)


def test_a_picture_that_is_not_drawn_is_not_linked(tmp_path: pathlib.Path):
    devices = report.load(_results(tmp_path / "results"))
    text = (
        "<!-- picture:roofline-h200 -->\n<!-- end -->\n<!-- picture:none-h200 -->\n<!-- end -->\n"
    )
    (tmp_path / "README.md").write_text(text)
    assert report.write_tables(tmp_path, devices, check=False) == []


def test_styles_of_all_suites_differ():
    suites = {row.family for row in manifest.rows()}
    assert len({plotting.style_of(index) for index in range(len(suites))}) == len(suites)


def test_pictures_of_all_products_leave_out_suites_that_stand_apart(tmp_path: pathlib.Path):
    (device,) = report.load(_results(tmp_path / "results"))
    families = {r.suite.replace("_", " ") for r in device.found}
    apart = {suite.replace("_", " ") for suite in measured.APART}
    assert apart < families
    shown = set()
    for picture in (pictures.speedup, pictures.speedup_grouped):
        figure = picture(device)
        assert figure is not None
        shown |= {axes.get_title(loc="left") for part in figure.subfigs for axes in part.axes}
    assert shown == families - apart - {"ceiling"}
    roofline = rooflines.roofline(device)
    assert roofline is not None
    labels = {label for axes in roofline.axes for label in axes.get_legend_handles_labels()[1]}
    assert labels == shown


def test_pictures_say_what_they_are_of(tmp_path: pathlib.Path):
    (device,) = report.load(_results(tmp_path / "results"))
    other = record_of(row="x", commit="abcdef0123456", ratio=0.3, ratio_low=0.3, ratio_high=0.3)
    device = dataclasses.replace(device, found=(*device.found, other))
    commits = {environment.commit()[:9], "abcdef012"}
    speedup = pictures.speedup(device)
    assert speedup is not None
    assert all(commit in speedup.get_supxlabel() for commit in commits)
    panels = [axes for part in speedup.subfigs for axes in part.axes]
    assert "train step" in {axes.get_title(loc="left") for axes in panels}
    assert "0.3×" in {label.get_text() for axes in panels for label in axes.get_xticklabels()}
    ladder = rooflines.ladder(device)
    assert ladder is not None
    texts = {text.get_text() for text in ladder.axes[0].texts}
    assert "DRAM 4000 GB/s" in texts
    assert any(environment.commit()[:9] in text for text in texts)
    assert "hollow" in ladder.axes[0].get_xlabel()
    uncounted = rooflines.ladder(dataclasses.replace(device, counted=()))
    assert uncounted is not None
    assert "hollow" not in uncounted.axes[0].get_xlabel()


def _text(document: str) -> str:
    return (_ROOT / document).read_text()


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
    assert drawn == set(pictures.PICTURES)
    assert all((tmp_path / "docs" / "pictures" / name).stat().st_size > 5000 for name in names)
    empty = measured.Results("cpu", ())
    assert not any(picture(empty) for picture in pictures.PICTURES.values())


def test_committed_results_can_be_read_and_are_in_the_documents() -> None:
    devices = report.load(_ROOT / "benchmarks" / "results")
    assert {"nvidia_h200", "cpu"} <= {device.name for device in devices}
    assert report.write_tables(_ROOT, devices, check=True) == []
