"""Masks, positions and windows against their definition, token by token."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.models.layout import Context, SequenceLayout, image_of_token, make_layout
from cxrjax.models.presets import DecoderConfig
from cxrjax.models.windows import make_windows

PLAIN = DecoderConfig(
    vocab_size=16, width=8, depth=2, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=8
)


def sees(
    query: tuple[int, str, int], key: tuple[int, str, int], config: DecoderConfig, local: bool
) -> bool:
    """Whether one token of a single example sees another: (logical position, kind, image)."""
    past = key[0] <= query[0]
    if config.prefix_attention == "causal":
        same_image = query[1] == key[1] == "image" and query[2] == key[2]
        allowed = past or same_image
        return allowed and (not local or query[0] - key[0] < config.window)
    both_prefix = query[1] != "answer" and key[1] != "answer"
    near = not local or query[0] - key[0] < config.window
    return both_prefix or (past and near)


def masks_in_full(layout: SequenceLayout, local: bool, row: int) -> np.ndarray:
    """The masks of one row as one [S, S] array."""
    seen = layout.seen_locally if local and layout.seen_locally is not None else layout.seen
    c, (_, questions, slots, _) = layout.num_context, seen.text.shape

    def of_row(mask):
        return np.asarray(mask)[row if mask.shape[0] > 1 else 0]

    full = np.zeros((c + questions * slots,) * 2, bool)
    full[:c, :c] = True if seen.context is None else of_row(seen.context)[0]
    for i in range(questions):
        own = slice(c + i * slots, c + (i + 1) * slots)
        full[own, own] = np.asarray(seen.text)[row, i]
        to = seen.text_to_context
        full[own, :c] = True if to is None else of_row(to)[min(i, to.shape[1] - 1)]
    if seen.context_to_prefix is not None:
        prefix = of_row(seen.context_to_prefix)[0]
        full[:c, c : c + prefix.shape[-1]] = prefix
    return full


# The same shapes in many examples, which differ by row: every new shape is compiled.
_ROW = st.fixed_dictionaries(
    {
        "kinds": st.lists(st.sampled_from(["text", "image"]), min_size=7, max_size=7),
        "context_padding": st.integers(0, 2),
        "prefix_padding": st.integers(0, 2),
        "answer": st.integers(1, 4),
    }
)


@settings(max_examples=60)
@given(
    causal=st.booleans(),
    window=st.sampled_from([None, 3, 5, 40]),
    num_context=st.sampled_from([0, 2, 7]),
    padded=st.booleans(),
    num_prefix=st.sampled_from([3, 5]),
    rows=st.lists(_ROW, min_size=4, max_size=4),
)
def test_every_pair_of_tokens_is_as_defined(causal, window, num_context, padded, num_prefix, rows):
    config = dataclasses.replace(
        PLAIN,
        prefix_attention="causal" if causal else "full",
        window=window,
        global_every=2 if window else 1,
    )
    slot = np.arange(num_context)
    paddings = np.array([[row["context_padding"] if padded else 0] for row in rows])
    present = slot >= paddings
    kinds = np.array([row["kinds"][:num_context] for row in rows])
    is_image = (kinds == "image") & present
    context = Context(
        num_context,
        image_of_token(jnp.asarray(is_image)) if num_context else None,
        jnp.asarray(present) if padded else None,
    )
    slot = np.arange(num_prefix + 4)
    there = np.array(
        [(slot >= row["prefix_padding"]) & (slot < num_prefix + row["answer"]) for row in rows]
    )
    mask = jnp.asarray(there)[:, None]
    layout = make_layout(config, context, mask, num_prefix, context_sees_prefix=True)

    image = np.asarray(image_of_token(jnp.asarray(is_image)))
    valid = np.concatenate([present, there], axis=1)
    position = np.cumsum(valid, axis=1) - 1
    np.testing.assert_array_equal(np.asarray(layout.positions)[valid], position[valid])

    for local in (False, True) if window else (False,):
        for row in range(len(rows)):
            found = masks_in_full(layout, local, row)
            tokens = [("image" if i >= 0 else "text", int(i)) for i in image[row]]
            tokens += [("text" if i < num_prefix else "answer", -1) for i in slot]
            for i in np.flatnonzero(valid[row]):
                for j in range(len(tokens)):
                    expected = bool(valid[row, j]) and sees(
                        (position[row, i], *tokens[i]),
                        (position[row, j], *tokens[j]),
                        config,
                        local,
                    )
                    assert found[i, j] == expected, (row, i, j, local)


def test_windows_that_hold_everything_cost_no_mask():
    config = dataclasses.replace(PLAIN, window=8, global_every=2)
    mask = jnp.ones((1, 3, 4), bool)
    context = Context(4, None, None)
    assert make_layout(config, context, mask, 2, context_sees_prefix=False).seen_locally is None
    longer = Context(5, None, None)
    assert make_layout(config, longer, mask, 2, context_sees_prefix=False).seen_locally is not None


@pytest.mark.parametrize(
    ("is_image", "expected"),
    [([0, 1, 1, 0, 1], [-1, 0, 0, -1, 1]), ([1, 1, 1], [0, 0, 0]), ([0, 0], [-1, -1])],
)
def test_a_run_of_image_tokens_is_an_image(is_image, expected):
    found = image_of_token(jnp.asarray(is_image, bool)[None])
    np.testing.assert_array_equal(found[0], expected)


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
