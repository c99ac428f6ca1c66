"""How tiles lie in shared memory: tiling, swizzle, and what a TMA copy can address."""

import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np

# A swizzle permutes 16-byte chunks within 8 rows of at most this many bytes.
MAX_SWIZZLE_BYTES = 128
# Rows of one swizzle atom; a TMA copy addresses whole atoms.
ATOM_ROWS = 8
# Most elements a TMA box may have along a dimension.
MAX_BOX = 256


def swizzled(shape: tuple[int, ...], dtype: np.dtype) -> plgpu.SMEM:
    """Shared memory for tiles (…, rows, columns), swizzled as TMA and wgmma agree on it."""
    columns = min(shape[-1], MAX_SWIZZLE_BYTES // dtype.itemsize)
    return plgpu.SMEM(
        shape,
        dtype,
        transforms=(
            plgpu.TilingTransform((ATOM_ROWS, columns)),
            plgpu.SwizzleTransform(columns * dtype.itemsize),
        ),
    )
