"""The sources in ffi/: parts that are plain C++, what files include, and what Python repeats."""

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgemm.ffi_kernels import cublaslt, instances, library, limits, realign, toolchain
from jaxgemm.ffi_kernels.instances import Instance
from tests.direct_launch import GemmParams

_FFI = instances.source_folder() or Path()
_SOURCE = """
#include "parts/batch.h"
#include "parts/divisor.h"
#include "parts/lane_pairs.h"
#include "parts/register_rows.h"
#include "parts/tile_walk.cuh"

using jaxgemm::Major;

extern "C" uint32_t Quotient(uint32_t x, uint32_t size) {
  return jaxgemm::Divisor::Of(size).Quotient(x);
}
extern "C" void TileAt(int num_m, int num_n, int strip_width, int position, int* place) {
  const jaxgemm::TilePlace at =
      jaxgemm::TileWalk::Of(2, num_m, num_n, strip_width).At(position);
  place[0] = at.matrix;
  place[1] = at.m_index;
  place[2] = at.n_index;
}
extern "C" void Find(const jaxgemm::GemmParams& params, int rows, int matrix, int64_t* found) {
  const jaxgemm::BatchPlace place = jaxgemm::BatchPlace::Of(params, matrix);
  found[0] = place.Offset(params.a);
  const jaxgemm::OwnMatrices own = jaxgemm::OwnMatrices::Of(params, params.a, rows);
  found[1] = own.At(place);
  found[2] = own.At(jaxgemm::BatchAxes::Of(params).At(matrix));
}

// Rows of a lane, and the bytes at which it reads a product.
template <Major kMajor>
void Rows(int warp, int lane, int product, int* found) {
  using Of = jaxgemm::RegisterRows<kMajor>;
  found[0] = Of::First(warp, lane);
  found[1] = found[0] + Of::kSecondRow;
  found[2] = Of::Place(warp, lane, product);
  found[3] = Of::PlaceOfUpperHalf(found[2]);
}
extern "C" void RowsOf(int is_k_major, int warp, int lane, int product, int* found) {
  (is_k_major ? Rows<Major::kK> : Rows<Major::kMN>)(warp, lane, product, found);
}

// Of a pair: its accumulators, and its row and column from the first accumulator's on.
template <bool kTransposed, Major kMajor>
void Pair(int pair, int* found) {
  using Of = jaxgemm::LanePairs<kTransposed, jaxgemm::RegisterRows<kMajor>::kSecondRow>;
  found[0] = Of::Accumulator(pair, 0);
  found[1] = Of::Accumulator(pair, 1);
  found[2] = Of::Rows(pair);
  found[3] = Of::Columns(pair);
}
extern "C" void PairOf(int is_transposed, int is_k_major, int pair, int* found) {
  (is_transposed ? Pair<true, Major::kMN>
                 : is_k_major ? Pair<false, Major::kK> : Pair<false, Major::kMN>)(pair, found);
}
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("parts")
    (folder / "parts.cc").write_text(_SOURCE)
    return _compiled(folder / "parts.cc", folder / "parts.so")


def _compiled(source: Path, target: Path) -> ctypes.CDLL:
    compiler = toolchain.find_cxx()
    assert compiler is not None
    options = ("-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-I", str(_FFI))
    subprocess.run([str(compiler), *options, "-o", str(target), str(source)], check=True)
    return ctypes.CDLL(str(target))


def test_quotients_are_those_of_a_division(parts: ctypes.CDLL) -> None:
    largest = 2**31 - 1
    sizes = {1, 2, 3, 5, 7, 641, 65537, 2**30 - 1, 2**30 + 1, largest - 1, largest, 2**31}
    sizes |= {2**shift + 1 for shift in range(31)}
    for size in sizes:
        # Where quotients change, and the largest numbers that may be divided.
        multiples = {size, 2 * size, largest // size * size, largest // (2 * size) * size}
        for x in {y + i for y in multiples | {largest} for i in (-1, 0, 1)}:
            if 0 <= x <= largest:
                assert parts.Quotient(x, size) == x // size, (x, size)


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
        found = (ctypes.c_int64 * 3)()
        parts.Find(ctypes.byref(params), rows, matrix, found)
        first = expected[matrix]
        own_matrix = first // (rows * columns)
        assert tuple(found) == (first, own_matrix, own_matrix)


def _found(function: Any, *args: int) -> list[int]:
    """The four numbers that a function of the parts finds."""
    found = (ctypes.c_int * 4)()
    function(*args, found)
    return list(found)


def _in_shared_memory(operand: np.ndarray, is_k_major: bool) -> np.ndarray:
    """64 rows of an operand at the depth of a stage as TMA writes them: words, swizzled."""
    words = np.empty(64 * 32, operand.dtype)
    for row, k in np.ndindex(64, 32):
        # Rows of 128 bytes: of each row of the operand, or of 32 of them at each k.
        line, place = (row, k) if is_k_major else (row // 32 * 32 + k, row % 32)
        words[32 * line + (place // 4 ^ line % 8) * 4 + place % 4] = operand[row, k]
    return words


def _fragments(parts: ctypes.CDLL, words: np.ndarray, is_k_major: bool) -> np.ndarray:
    """What the registers of each warp, lane and product hold."""
    fragments = np.empty((4, 32, 4, 4), words.dtype)
    for warp, lane, product in np.ndindex(4, 32, 4):
        if is_k_major:
            # As ldmatrix: register i comes from the row that lane 8 i + lane / 4 names.
            named = (_found(parts.RowsOf, 1, warp, 8 * i + lane // 4, product) for i in range(4))
            at = [place // 4 + lane % 4 for _, _, place, _ in named]
        else:
            _, _, low, high = _found(parts.RowsOf, 0, warp, lane, product)
            at = [low // 4, low // 4 + 1, high // 4, high // 4 + 1]
        fragments[warp, lane, product] = words[at]
    return fragments


@pytest.mark.parametrize("layout", ["NN", "TT", "NT"])
def test_what_goes_through_registers_comes_out_where_it_belongs(
    parts: ctypes.CDLL, layout: str
) -> None:
    is_k_major, is_transposed = layout == "NT", layout == "NN"
    rng = np.random.default_rng(0)
    operand, shared = (rng.integers(-9, 10, shape) for shape in ((64, 32), (32, 64)))
    fragments = _fragments(parts, _in_shared_memory(operand, is_k_major), is_k_major)
    # As wgmma: register 2 j + h of lane 4 r + q is row r + 8 h of the warp, and k = q + 4 j.
    first = fragments.reshape(4, 8, 4, 4, 2, 2).transpose(0, 5, 1, 3, 4, 2).reshape(64, 32)
    # acc[4 t + 2 h + e] of it is row r + 8 h of the warp, and column 8 t + 2 q + e.
    acc = (first @ shared).reshape(4, 2, 8, 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(4, 32, 32)
    d = np.full((64, 64), 10**6)
    for warp, lane, pair in np.ndindex(4, 32, 16):
        row, column = _found(parts.RowsOf, is_k_major, warp, lane, 0)[0], 2 * (lane % 4)
        if is_transposed:
            row, column = column, row
        one, other, rows, columns = _found(parts.PairOf, is_transposed, is_k_major, pair)
        at = column + columns
        assert at % 2 == 0
        d[row + rows, at : at + 2] = acc[warp, lane, [one, other]]
    expected = operand @ shared
    np.testing.assert_array_equal(d, expected.T if is_transposed else expected)


@pytest.mark.parametrize("is_k_major", [False, True])
def test_lanes_that_read_at_once_read_from_different_banks(
    parts: ctypes.CDLL, is_k_major: bool
) -> None:
    # Eight rows of 16 bytes of ldmatrix, or half a warp with 8 bytes each.
    lanes, num_words = (8, 4) if is_k_major else (16, 2)
    for warp, first, product in np.ndindex(4, 32 // lanes, 4):
        found = [
            _found(parts.RowsOf, is_k_major, warp, first * lanes + lane, product)
            for lane in range(lanes)
        ]
        for place in (2,) if is_k_major else (2, 3):
            words = [numbers[place] // 4 + i for numbers in found for i in range(num_words)]
            assert sorted(word % 32 for word in words) == list(range(32))


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("abi/params.h", "kAbiVersion", library.ABI_VERSION),
        ("abi/params.h", "kMaxBatchAxes", limits._MAX_BATCH_AXES),
        ("parts/tensor_map.cuh", "kTmaAlignment", realign._UNIT_BYTES),
        ("parts/realign.cuh", "kLineUnits", realign._LINE_UNITS),
        ("parts/realign.cuh", "kFewestLines", realign._FEWEST_LINES),
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
        m, n, stages, *cluster = map(int, values[1:6])
        turns = values[6] == "true"
        facts: dict[str, object] = {"cta_tile": (m, n, 64), "stages": stages, "takes_turns": turns}
        # A consumer of whole tiles holds all of their accumulators, else half of them.
        plain = m // 64 * n // (1 if turns else 2) > 256
        facts |= {"cluster": tuple(cluster), "only_plain": plain, "archs": ("90a",)}
    elif name == "Sm90Tf32":
        columns, *stages, cluster = map(int, values)
        return {
            **{"cta_tile": (columns, 128, 32), "stages": min(stages), "cluster": (1, cluster)},
            **{"dtype": "float32", "archs": ("90a",)},
        }
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
