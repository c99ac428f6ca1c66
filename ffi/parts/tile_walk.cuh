// The order in which a persistent grid walks the tiles of d.
//
// Tiles that are computed at the same time should share rows of a and columns of b in the L2 cache.
// So the walk goes in strips of `strip_width` tiles along n: through a strip row by row, down one
// strip and up the next. At one time the grid then covers a region that is nearly square.
#pragma once

#include "parts/host_device.h"

namespace jaxgemm {

struct TilePlace {
  int matrix;
  int m_index;
  int n_index;
};

struct TileWalk {
  int num_m;
  int num_n;
  int strip_width;
  int num_tiles;

  JAXGEMM_HOST_DEVICE TilePlace At(int position) const {
    const int per_matrix = num_m * num_n;
    const int matrix = position / per_matrix;
    const int within_matrix = position - matrix * per_matrix;
    const int per_strip = strip_width * num_m;
    const int strip = within_matrix / per_strip;
    const int within_strip = within_matrix - strip * per_strip;
    const int first_n = strip * strip_width;
    const int width = num_n - first_n < strip_width ? num_n - first_n : strip_width;
    const int row = within_strip / width;
    const int m_index = strip % 2 == 0 ? row : num_m - 1 - row;
    return {matrix, m_index, first_n + within_strip - row * width};
  }
};

}  // namespace jaxgemm
