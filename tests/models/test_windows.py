"""Windows of a tower, and positions in three streams, against plain loops."""

import numpy as np
import pytest

from cxrjax.models.layout import Context
from cxrjax.models.windows import make_windows


@pytest.mark.parametrize(
    ("grid", "pool", "window"),
    [
        *(((side, side), pool, window) for side, pool, window in [(8, 2, 4), (8, 2, 6), (6, 3, 3)]),
        *(((side, side), pool, window) for side, pool, window in [(4, 1, 3), (4, 2, 16)]),
        *(((6, 10), 2, 4), ((10, 6), 2, 4), ((4, 8), 2, None), ((3, 2), 1, 2)),
    ],
)
def test_each_patch_has_one_place_in_its_own_window(grid, pool, window):
    windows = make_windows(grid, pool, window)
    height, width = grid
    inside = np.ones(len(windows.order), bool) if windows.inside is None else windows.inside.ravel()
    order = windows.order[inside]
    assert sorted(order) == list(range(height * width))
    np.testing.assert_array_equal(windows.rows[inside] * width + windows.columns[inside], order)
    length, down, across = len(windows.order) // windows.count, window or height, window or width
    for place in np.flatnonzero(inside):
        row, column = windows.rows[place], windows.columns[place]
        first = row // down * (-(-width // across)) + column // across
        assert place // length == first
    # Tokens in reading order, their patches in reading order within.
    tokens = windows.order[windows.back].reshape(-1, pool, pool)
    for number, patches in enumerate(tokens):
        top, left = (pool * n for n in divmod(number, width // pool))
        expected = [[(top + y) * width + left + x for x in range(pool)] for y in range(pool)]
        np.testing.assert_array_equal(patches, expected)


def _by_hand(tokens, present, grid):
    """Streams as Qwen2.5-VL's paper tells them, token by token."""
    streams, at, place = [], 0, 0
    for image, there in zip(tokens, present, strict=True):
        if image < 0:
            streams.append((at,) * 3)
            at += there
            continue
        streams.append((at, at + place // grid[1], at + place % grid[1]))
        place += 1
        if place == grid[0] * grid[1]:
            at, place = at + max(grid) * there, 0
    return streams, at


@pytest.mark.parametrize("grid", [(3, 3), (2, 4), (4, 2)])
@pytest.mark.parametrize("absent", [None, "second image", "last text"])
def test_streams_of_text_and_images(absent, grid):
    size = grid[0] * grid[1]
    image = np.array([-1, -1, *[0] * size, -1, -1, *[1] * size, -1, -1])
    present = np.ones(len(image), bool)
    if absent == "second image":
        present[size + 3 : 2 * size + 4] = False
    elif absent == "last text":
        present[-1] = False
    mask = None if absent is None else np.stack([present, np.ones_like(present)])
    context = Context(len(image), image[None], mask, grid)
    streams, end = _by_hand(image, present, grid)
    found = np.asarray(context.in_streams(2, grid))[0]
    np.testing.assert_array_equal(found[present], np.array(streams)[present])
    assert int(np.asarray(context.length())[0, 0]) == end
    # Without text an image stands alone.
    alone = Context(size, None, None, grid)
    expected = [(0, y, x) for y in range(grid[0]) for x in range(grid[1])]
    np.testing.assert_array_equal(alone.in_streams(1, grid)[0], expected)
    assert int(alone.length()[0, 0]) == max(grid)
