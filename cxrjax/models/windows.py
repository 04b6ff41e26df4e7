"""Squares of patches that see only themselves, in the order in which a tower keeps them.

As arXiv 2502.13923, section 2.1.1: most layers attend within squares, a few to the whole
image, and the squares of patches that become one token lie within these.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int


@dataclasses.dataclass(frozen=True)
class Windows:
    """The places of one image's patches, a window after the other.

    The windows at the right and lower edge may reach over it. All have the same number of places,
    so that attention is over one array; what lies beyond the edge is never seen.
    """

    # The patch in each place, in reading order of the image; 0 beyond the edge, [W * M].
    order: Int[np.ndarray, " S"]
    inside: Bool[np.ndarray, "W M"] | None  # which places hold a patch, [W, M]; None: all of them
    # `rows`, `columns`: of the patch in each place, [W * M].
    rows: Int[np.ndarray, " S"]
    columns: Int[np.ndarray, " S"]
    # The places of each token's patches, tokens in reading order, [N * P].
    back: Int[np.ndarray, " NP"]
    count: int  # W, how many windows there are


def make_windows(grid: tuple[int, int], pool: int, window: int | None) -> Windows:
    """The windows of an image.

    Args:
        grid: rows and columns of the image's patches; `pool` divides them.
        pool: patches along a side of what becomes one token.
        window: patches along a side of a window; `pool` divides it; None: the whole image.
    """
    tokens_down, tokens_across = ((window or side) // pool for side in grid)
    down, across = -(-grid[0] // (tokens_down * pool)), -(-grid[1] // (tokens_across * pool))
    # Window, token within it, patch within that; down and across each.
    shape = (down, across, tokens_down, tokens_across, pool, pool)
    wy, wx, ty, tx, py, px = np.indices(shape).reshape(6, -1)
    token_row, token_column = wy * tokens_down + ty, wx * tokens_across + tx
    rows, columns = token_row * pool + py, token_column * pool + px
    inside = (rows < grid[0]) & (columns < grid[1])
    places = np.flatnonzero(inside)
    in_reading_order = np.lexsort((px, py, token_column, token_row))
    return Windows(
        order=np.where(inside, rows * grid[1] + columns, 0),
        inside=None if len(places) == len(inside) else inside.reshape(down * across, -1),
        rows=rows,
        columns=columns,
        back=in_reading_order[inside[in_reading_order]],
        count=down * across,
    )
