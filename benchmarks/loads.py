"""What loads by threads took where copies let TMA load instead, as a table: an attempt that lost.

The records are those of a tuner at the last commit that had both; their .meta.json says how.
"""

import collections
import json
import pathlib

from benchmarks import markdown

_BY_THREADS = "_threads"


def table(path: pathlib.Path | None) -> str | None:
    """A line for each problem, with the fastest config of either way; None without records."""
    if path is None:
        return None
    fastest: dict[tuple[str, str], dict[str, float]] = collections.defaultdict(dict)
    for line in path.read_text().splitlines():
        record = json.loads(line)
        times, way = fastest[_problem(record["problem"])], _way(record)
        if record["time_us"] is not None:
            times[way] = min(record["time_us"], times.get(way, record["time_us"]))
    lines = [["m×n×k", "", "copies, μs", "threads, μs", "threads take", "XLA reference, μs"]]
    lines.append(["---", "---", *["--:"] * 4])
    for (sizes, layout), times in fastest.items():
        copies, threads = times["copies"], times["threads"]
        cells = [markdown.three_digits(x) for x in (copies, threads)]
        reference = markdown.three_digits(times.get("reference"))
        lines.append([sizes, layout, *cells, f"{threads / copies:.2f}×", reference])
    return f"{markdown.table(lines)}\n\n{_origin(path)}"


def _problem(problem: dict) -> tuple[str, str]:
    size, spec = dict(problem["sizes"]), problem["spec"]
    layout = ("TN"[spec["a_contract"]], "NT"[spec["b_contract"]])
    return "×".join(str(size[label]) for label in "mnk"), "".join(layout)


def _way(record: dict) -> str:
    if record["kernel"] == "xla.reference":
        return "reference"
    return "threads" if record["config"]["instance"].endswith(_BY_THREADS) else "copies"


def _origin(path: pathlib.Path) -> str:
    meta = json.loads(path.with_suffix(".meta.json").read_text())
    versions = ", ".join(f"{name} {version}" for name, version in meta["versions"].items())
    return (
        "The fastest config of each way; sums of all kernels, copies included. Operands in bfloat16"
        f" rotate through more than twice the cache. {meta['device']}, {versions}; commit"
        f" {meta['kernel_commit']}; {meta['time'][:10]}."
    )
