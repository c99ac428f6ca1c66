"""Parts of CUDA kernels that are plain C++: compiled for the host and called from here."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from jaxgemm.ffi_kernels import instances, toolchain

_SOURCE = """
#include "parts/tile_walk.cuh"

extern "C" void TileAt(int num_m, int num_n, int strip_width, int position, int* place) {
  const jaxgemm::TilePlace at = jaxgemm::TileWalk{num_m, num_n, strip_width, 0}.At(position);
  place[0] = at.matrix;
  place[1] = at.m_index;
  place[2] = at.n_index;
}
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("parts")
    (folder / "parts.cc").write_text(_SOURCE)
    compiler, sources = toolchain.find_cxx(), instances.source_folder()
    assert compiler is not None
    assert sources is not None
    options = ("-std=c++17", "-shared", "-fPIC", "-Wall", "-Werror", "-I", str(sources))
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
