"""Windows of a tower, and positions in three streams, against plain loops."""

import numpy as np
import pytest

from cxrjax.models.layout import Context
from cxrjax.models.windows import make_windows


@pytest.mark.parametrize(
    ("side", "pool", "window"),
    [(8, 2, 4), (8, 2, 6), (6, 3, 3), (4, 1, 3), (8, 2, None), (4, 2, 16)],
)
def test_each_patch_has_one_place_in_its_own_window(side, pool, window):
    windows = make_windows(side, pool, window)
    inside = np.ones(len(windows.order), bool) if windows.inside is None else windows.inside.ravel()
    order = windows.order[inside]
    assert sorted(order) == list(range(side**2))
    np.testing.assert_array_equal(windows.rows[inside] * side + windows.columns[inside], order)
    length, across = len(windows.order) // windows.count, window or side
    for place in np.flatnonzero(inside):
        row, column = windows.rows[place], windows.columns[place]
        first = row // across * (-(-side // across)) + column // across
        assert place // length == first
    # Tokens in reading order, their patches in reading order within.
    tokens = windows.order[windows.back].reshape(-1, pool, pool)
    for number, patches in enumerate(tokens):
        top, left = (pool * n for n in divmod(number, side // pool))
        expected = [[(top + y) * side + left + x for x in range(pool)] for y in range(pool)]
        np.testing.assert_array_equal(patches, expected)


def _by_hand(tokens, present, side):
    """Streams as Qwen2.5-VL's paper tells them, token by token."""
    streams, at, place = [], 0, 0
    for image, there in zip(tokens, present, strict=True):
        if image < 0:
            streams.append((at,) * 3)
            at += there
            continue
        streams.append((at, at + place // side, at + place % side))
        place += 1
        if place == side**2:
            at, place = at + side * there, 0
    return streams, at


@pytest.mark.parametrize("absent", [None, "second image", "last text"])
def test_streams_of_text_and_images(absent):
    side = 3
    image = np.array([-1, -1, *[0] * 9, -1, -1, *[1] * 9, -1, -1])
    present = np.ones(len(image), bool)
    if absent == "second image":
        present[12:22] = False
    elif absent == "last text":
        present[-1] = False
    mask = None if absent is None else np.stack([present, np.ones_like(present)])
    context = Context(len(image), image[None], mask, side)
    streams, end = _by_hand(image, present, side)
    found = np.asarray(context.in_streams(2, side))[0]
    np.testing.assert_array_equal(found[present], np.array(streams)[present])
    assert int(np.asarray(context.length())[0, 0]) == end
    # Without text an image stands alone.
    alone = Context(9, None, None, side)
    expected = [(0, y, x) for y in range(3) for x in range(3)]
    np.testing.assert_array_equal(alone.in_streams(1, side)[0], expected)
    assert int(alone.length()[0, 0]) == 3
