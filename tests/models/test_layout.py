"""Masks and positions against their definition, token by token."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.models.layout import Context, SequenceLayout, image_of_token, make_layout
from cxrjax.models.presets import DecoderConfig

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


def dense(layout: SequenceLayout, local: bool, num_context: int, slots: int) -> np.ndarray:
    """The mask of a row with one question as one [C + L, C + L] array."""
    seen = layout.seen_locally if local and layout.seen_locally is not None else layout.seen
    full = np.zeros((num_context + slots, num_context + slots), bool)
    c = num_context
    full[:c, :c] = True if seen.context is None else np.asarray(seen.context)[0, 0]
    full[c:, :c] = True if seen.text_to_context is None else np.asarray(seen.text_to_context)[0, 0]
    full[c:, c:] = np.asarray(seen.text)[0, 0]
    if seen.context_to_prefix is not None:
        prefix = np.asarray(seen.context_to_prefix)[0, 0]
        full[:c, c : c + prefix.shape[-1]] = prefix
    return full


@settings(max_examples=60, deadline=None)
@given(
    causal=st.booleans(),
    window=st.sampled_from([None, 3, 5, 40]),
    kinds=st.lists(st.sampled_from(["text", "image"]), min_size=0, max_size=7),
    context_padding=st.integers(0, 2),
    prefix=st.integers(1, 3),
    prefix_padding=st.integers(0, 2),
    answer=st.integers(1, 4),
    answer_padding=st.integers(0, 2),
)
def test_every_pair_of_tokens_is_as_defined(
    causal, window, kinds, context_padding, prefix, prefix_padding, answer, answer_padding
):
    config = dataclasses.replace(
        PLAIN,
        prefix_attention="causal" if causal else "full",
        window=window,
        global_every=2 if window else 1,
    )
    is_image = np.array([False] * context_padding + [kind == "image" for kind in kinds])[None]
    present = np.array([False] * context_padding + [True] * len(kinds))[None]
    num_context = is_image.shape[1]
    context = Context(
        num_context,
        image_of_token(jnp.asarray(is_image)) if num_context else None,
        jnp.asarray(present) if context_padding else None,
    )
    there = [False] * prefix_padding + [True] * (prefix + answer) + [False] * answer_padding
    mask = jnp.asarray(there)[None, None]
    num_prefix = prefix_padding + prefix
    layout = make_layout(config, context, mask, num_prefix, context_sees_prefix=True)

    images = np.asarray(image_of_token(jnp.asarray(is_image)))[0] if num_context else []
    tokens = [("image" if image >= 0 else "text", int(image)) for image in images]
    tokens += [("text" if slot < num_prefix else "answer", -1) for slot in range(len(there))]
    valid = np.concatenate([present[0], there]).astype(bool)
    position = np.cumsum(valid) - 1
    np.testing.assert_array_equal(np.asarray(layout.positions)[0][valid], position[valid])

    for local in (False, True) if window else (False,):
        found = dense(layout, local, num_context, len(there))
        for i in np.flatnonzero(valid):
            for j in range(len(valid)):
                expected = bool(valid[j]) and sees(
                    (position[i], *tokens[i]), (position[j], *tokens[j]), config, local
                )
                assert found[i, j] == expected, (i, j, local)


def test_windows_that_hold_everything_cost_no_mask():
    config = dataclasses.replace(PLAIN, window=8, global_every=2)
    mask = jnp.ones((1, 3, 4), bool)
    context = Context(4, None, None)
    assert make_layout(config, context, mask, 2, context_sees_prefix=False).seen_locally is None
    longer = Context(5, None, None)
    assert make_layout(config, longer, mask, 2, context_sees_prefix=False).seen_locally is not None


@pytest.mark.parametrize(
    ("is_image", "expected"),
    [
        ([0, 1, 1, 0, 1], [-1, 0, 0, -1, 1]),
        ([1, 1, 1], [0, 0, 0]),
        ([0, 0], [-1, -1]),
    ],
)
def test_a_run_of_image_tokens_is_an_image(is_image, expected):
    found = image_of_token(jnp.asarray(is_image, bool)[None])
    np.testing.assert_array_equal(found[0], expected)
