"""Writes tables between the markers of README files and docs/, and pictures into docs/pictures/.

    python -m benchmarks.report            everything, from benchmarks/results/
    python -m benchmarks.report --check    exits with 1 if a table would change; writes nothing

Outside a checkout all of these are in the current folder.

A marker is `<!-- table:SUITE-DEVICE -->` … `<!-- end -->`; "dense-h200" is the suite "dense" of the
folder nvidia_h200. `<!-- picture:NAME-DEVICE -->` is for a link to the picture that `pictures.py`
names so. Markers for which nothing is measured, or not drawn, stay as they are.
"""

import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from benchmarks import environment, measured, pictures, tables
from benchmarks.measured import Results

_RESULTS = flags.DEFINE_string("results", None, "folder of results; default: benchmarks/results/")
_TARGET = flags.DEFINE_string(
    "target", None, "folder with README.md and docs/; default: the checkout or the current folder"
)
_CHECK = flags.DEFINE_bool("check", False, "write nothing; exit with 1 if a table would change")
_PICTURES = flags.DEFINE_bool("pictures", True, "draw pictures, too")


def load(folder: pathlib.Path) -> list[Results]:
    """The results of every device."""
    found = [measured.load(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    return [device for device in found if device.found]


def write_tables(target: pathlib.Path, devices: Sequence[Results], *, check: bool) -> list[str]:
    """Fills the markers of every document; returns the names of those that differed."""
    changed = []
    readmes = (target / name / "README.md" for name in ("", "ffi"))
    for path in (*readmes, *sorted((target / "docs").glob("*.md"))):
        if not path.exists():
            continue
        text = path.read_text()

        def content(kind: str, name: str, folder: pathlib.Path = path.parent) -> str | None:
            if kind == "picture":
                return _link(target, folder, name, devices)
            return tables.of_marker(name, devices)

        filled = tables.fill(text, content)
        if filled != text:
            changed.append(str(path.relative_to(target)))
            if not check:
                path.write_text(filled)
    return changed


def _link(
    target: pathlib.Path, folder: pathlib.Path, name: str, devices: Sequence[Results]
) -> str | None:
    """The link of a document in `folder` to a picture; None if it is not drawn."""
    picture, device = tables.device_of(name, devices)
    if device is None or picture not in pictures.PICTURES:
        return None
    path = _pictures(target) / f"{device.name}_{picture}.png"
    what = (pictures.PICTURES[picture].__doc__ or picture).split("\n")[0].rstrip(".")
    return f"![{what}]({os.path.relpath(path, folder)})" if path.exists() else None


def _pictures(target: pathlib.Path) -> pathlib.Path:
    return target / "docs" / "pictures"


def draw(target: pathlib.Path, devices: Sequence[Results]) -> list[str]:
    """Draws what there is data for; returns the names of the files."""
    folder = _pictures(target)
    written = []
    for device in devices:
        for name, picture in pictures.PICTURES.items():
            figure = picture(device)
            if figure is None:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                path = folder / f"{device.name}_{name}.{suffix}"
                figure.savefig(path, metadata=metadata)
                written.append(path.name)
    return written


def main(argv: Sequence[str]) -> None:
    """Writes, or checks, everything."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1:]} should be flags")
    source = pathlib.Path(_RESULTS.value or environment.folder() / "benchmarks" / "results")
    target = pathlib.Path(_TARGET.value or environment.folder())
    if not source.is_dir():
        raise app.UsageError(f"--results: {source.name} should be a folder of folders of results")
    try:
        devices = load(source)
    except ValueError as error:
        raise app.UsageError(
            f"{error}; beside a file of other data, a .meta.json says so"
        ) from None
    # Tables link to pictures that are there.
    if _PICTURES.value and not _CHECK.value:
        if importlib.util.find_spec("matplotlib") is None:
            print("no pictures: matplotlib is not installed", file=sys.stderr)
        else:
            print("pictures:", ", ".join(draw(target, devices)) or "none")
    changed = write_tables(target, devices, check=_CHECK.value)
    print("tables changed:", ", ".join(changed) or "none")
    sys.exit(1 if _CHECK.value and changed else 0)


if __name__ == "__main__":
    app.run(main)
