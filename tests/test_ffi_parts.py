"""The sources in ffi/: parts that are plain C++, what files include, and what Python repeats."""

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jaxgemm.ffi_kernels import cublaslt, instances, library, limits, realign, toolchain
from jaxgemm.ffi_kernels.instances import Instance
from tests.direct_launch import GemmParams

_FFI = instances.source_folder() or Path()
_SOURCE = """
#include "parts/batch.h"
#include "parts/tile_walk.cuh"

extern "C" void TileAt(int num_m, int num_n, int strip_width, int position, int* place) {
  const jaxgemm::TilePlace at = jaxgemm::TileWalk{num_m, num_n, strip_width, 0}.At(position);
  place[0] = at.matrix;
  place[1] = at.m_index;
  place[2] = at.n_index;
}
extern "C" void Find(const jaxgemm::GemmParams& params, int rows, int matrix, int64_t* found) {
  const jaxgemm::BatchPlace place = jaxgemm::BatchPlace::Of(params, matrix);
  found[0] = place.Offset(params.a);
  found[1] = jaxgemm::OwnMatrices::Of(params, params.a, rows).At(place);
}
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("parts")
    (folder / "parts.cc").write_text(_SOURCE)
    compiler = toolchain.find_cxx()
    assert compiler is not None
    options = ("-std=c++17", "-shared", "-fPIC", "-Wall", "-Werror", "-I", str(_FFI))
    files = ("-o", str(folder / "parts.so"), str(folder / "parts.cc"))
    subprocess.run([str(compiler), *options, *files], check=True)
    return ctypes.CDLL(str(folder / "parts.so"))


def _walk(parts: ctypes.CDLL, num_m: int, num_n: int, width: int) -> list[tuple[int, ...]]:
    places = []
    for position in range(2 * num_m * num_n):
        place = (ctypes.c_int * 3)()
        parts.TileAt(num_m, num_n, width, position, place)
        places.append(tuple(place))
    return places


@pytest.mark.parametrize(("num_m", "num_n", "width"), [(5, 7, 3), (1, 9, 2), (4, 6, 8), (3, 1, 1)])
def test_walk_visits_every_tile_once_matrix_by_matrix(
    parts: ctypes.CDLL, num_m: int, num_n: int, width: int
) -> None:
    places = _walk(parts, num_m, num_n, width)
    tiles = {(m, n) for m in range(num_m) for n in range(num_n)}
    for matrix in (0, 1):
        of_matrix = places[matrix * len(tiles) : (matrix + 1) * len(tiles)]
        assert {place[0] for place in of_matrix} == {matrix}
        assert len(of_matrix) == len(tiles)
        assert {place[1:] for place in of_matrix} == tiles


def test_walk_goes_through_strips_down_one_and_up_the_next(parts: ctypes.CDLL) -> None:
    assert [place[1:] for place in _walk(parts, 2, 5, 2)[:10]] == [
        *((0, 0), (0, 1), (1, 0), (1, 1)),
        *((1, 2), (1, 3), (0, 2), (0, 3)),
        *((0, 4), (1, 4)),
    ]


@pytest.mark.parametrize("own", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_a_matrix_of_the_batch_is_found_in_an_operand_that_has_some_of_its_axes(
    parts: ctypes.CDLL, own: tuple[int, ...]
) -> None:
    sizes, rows, columns = (2, 3, 5), 7, 11
    # Each element of the operand is its own place in memory.
    shape = tuple(size if axis in own else 1 for axis, size in enumerate(sizes))
    places = np.arange(np.prod(shape) * rows * columns).reshape(*shape, rows, columns)
    params = GemmParams(num_matrices=30, num_batch_axes=3)
    params.batch_sizes[:3] = list(sizes)
    params.a.row_stride = columns
    for axis in own:
        params.a.batch_strides[axis] = places.strides[axis] // places.itemsize
    expected = np.broadcast_to(places, (*sizes, rows, columns))[..., 0, 0].ravel()
    for matrix in range(30):
        found = (ctypes.c_int64 * 2)()
        parts.Find(ctypes.byref(params), rows, matrix, found)
        first = expected[matrix]
        assert tuple(found) == (first, first // (rows * columns))


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("abi/params.h", "kAbiVersion", library.ABI_VERSION),
        ("abi/params.h", "kMaxBatchAxes", limits._MAX_BATCH_AXES),
        ("parts/tensor_map.cuh", "kTmaAlignment", realign._UNIT_BYTES),
        ("cublaslt/matmul.cc", "kNumAlgorithms", cublaslt._NUM_ALGORITHMS),
        ("cublaslt/api.cc", "kLibraryName", f'"{cublaslt._LIBRARY}"'),
    ],
)
def test_python_repeats_what_the_sources_say(file: str, name: str, value: object) -> None:
    [found] = re.findall(rf"constexpr .*\b{name} = (.+);", (_FFI / file).read_text())
    assert found == str(value)


_CXX_TYPES = {"float": "float32", "__nv_bfloat16": "bfloat16", "__half": "float16"}


def _by_template(row: Instance) -> dict[str, object]:
    """What the arguments of a row's template say, in the row's terms."""
    name, *values = re.findall(r"\w+", row.template)
    if name == "Sm90Dense":
        m, n, stages, *cluster = map(int, values[1:-1])
        turns = values[-1] == "true"
        facts: dict[str, object] = {"cta_tile": (m, n, 64), "stages": stages, "takes_turns": turns}
        # A consumer of whole tiles holds all of their accumulators, else half of them.
        plain = m // 64 * n // (1 if turns else 2) > 256
        facts |= {"cluster": tuple(cluster), "only_plain": plain, "archs": ("90a",)}
    elif name == "MmaSync":
        m, n, stages = map(int, values[1:])
        depth = 32 if values[0] == "float" else 64
        facts = {"cta_tile": (64 * m, 64 * n, depth), "stages": stages}
    elif name == "Warptiled":
        warps_m, warps_n, block_m, block_n, depth, stages = map(int, values)
        tile = (8 * warps_m * block_m, 4 * warps_n * block_n, depth)
        return {"cta_tile": tile, "stages": stages, "dtype": "float32"}
    else:
        facts = {"stages": 1}
    return {**facts, "dtype": _CXX_TYPES[values[0]]}


@pytest.mark.parametrize("row", instances.instances(), ids=lambda row: row.name)
def test_a_row_says_what_its_template_does(row: Instance) -> None:
    facts = _by_template(row)
    assert {name: getattr(row, name) for name in facts} == facts


def _allowed_includes() -> dict[str, set[str]]:
    """Folder or file → what it may include, by the table in ffi/README.md."""
    rows = re.findall(r"^\| `(\S+)` \|.*\|(.*)\|$", (_FFI / "README.md").read_text(), re.MULTILINE)
    return {name.rstrip("/"): set(re.findall(r"`([a-z]+)/", allowed)) for name, allowed in rows}


def test_sources_include_what_the_table_in_the_readme_allows() -> None:
    allowed = _allowed_includes()
    assert {path.name for path in _FFI.iterdir() if path.is_dir()} <= set(allowed)
    for path in _FFI.rglob("*.*"):
        name = str(path.relative_to(_FFI)).split("/")[0]
        included = set(re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE))
        if path.suffix in (".cc", ".h", ".cuh"):
            assert included - {"xla"} <= allowed[name], path
        if name not in ("abi", "handlers") and path.suffix in (".h", ".cuh"):
            assert "xla" not in included, path
