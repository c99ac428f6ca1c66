// The order in which a persistent grid walks the tiles of d.
//
// Tiles that are computed at the same time should share rows of a and columns of b in the L2 cache.
// So the walk goes in strips of `strip_width` tiles along n: through a strip row by row, down one
// strip and up the next. At one time the grid then covers a region that is nearly square.
#pragma once

#include "parts/divisor.h"

namespace jaxgemm {

struct TilePlace {
  int matrix;
  int m_index;
  int n_index;
};

struct TileWalk {
  int num_tiles;
  int num_m;
  int num_n;
  Divisor per_matrix;
  Divisor per_strip;
  Divisor width;
  // Of the last strip, which may be narrower.
  Divisor last_width;

  // Of `num_matrices` that have num_m x num_n tiles.
  static TileWalk Of(int num_matrices, int num_m, int num_n, int strip_width) {
    const int width = strip_width < num_n ? strip_width : num_n;
    TileWalk walk = {};
    walk.num_tiles = num_matrices * num_m * num_n;
    walk.num_m = num_m;
    walk.num_n = num_n;
    walk.per_matrix = Divisor::Of(num_m * num_n);
    walk.per_strip = Divisor::Of(width * num_m);
    walk.width = Divisor::Of(width);
    walk.last_width = Divisor::Of((num_n - 1) % width + 1);
    return walk;
  }

  JAXGEMM_HOST_DEVICE TilePlace At(int position) const {
    const int matrix = per_matrix.Quotient(position);
    const int within_matrix = position - matrix * per_matrix.size;
    const int strip = per_strip.Quotient(within_matrix);
    const int within_strip = within_matrix - strip * per_strip.size;
    const int first_n = strip * width.size;
    const bool is_last = num_n - first_n <= static_cast<int>(last_width.size);
    const int row = (is_last ? last_width : width).Quotient(within_strip);
    const int column = within_strip - row * (is_last ? last_width : width).size;
    return {matrix, strip % 2 == 0 ? row : num_m - 1 - row, first_n + column};
  }
};

}  // namespace jaxgemm
