"""The cached loop against the model run anew for every token, and the grammar."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.decoding.generate import Generator
from cxrjax.decoding.grammar import BoxState, advance, allowed_tokens, initial_state
from cxrjax.models import PRESETS, VLM

_CONFIG = dataclasses.replace(
    PRESETS["tiny"],
    vision=dataclasses.replace(
        PRESETS["tiny"].vision, image_size=16, patch_size=8, width=24, depth=1, mlp_dim=32
    ),
    decoder=dataclasses.replace(
        PRESETS["tiny"].decoder, vocab_size=1060, width=24, depth=2, head_dim=6, mlp_dim=32
    ),
)
_ANSWER, _EOS = 9, 1


def _inputs():
    rng = np.random.default_rng(4)
    prefix_mask = np.ones((2, 3, 6), bool)
    prefix_mask[0, 1, :4] = False
    prefix_mask[1, 0] = False  # an empty slot
    prefix_tokens = rng.integers(2, 1060, (2, 3, 6)) * prefix_mask
    return rng.integers(0, 256, (2, 16, 16, 3)).astype(np.uint8), prefix_tokens, prefix_mask


@nnx.jit
def _hidden(model, *inputs):
    return model(*inputs)


def _slow_greedy(model, images, prefix_tokens, prefix_mask, use_grammar):
    """Greedy without a cache: the whole sequence again for each token, one question at a time."""
    rows, questions, _ = prefix_tokens.shape
    answers = np.zeros((rows, questions, _ANSWER), np.int32)
    start = _CONFIG.loc_token_start
    for b in range(rows):
        for q in range(questions):
            if not prefix_mask[b, q].any():
                continue
            tokens = []
            while len(tokens) < _ANSWER and _EOS not in tokens:
                so_far = np.zeros((1, 1, _ANSWER), np.int32)
                so_far[0, 0, : len(tokens)] = tokens
                hidden = _hidden(
                    model,
                    images[b : b + 1],
                    prefix_tokens[b : b + 1, q : q + 1],
                    prefix_mask[b : b + 1, q : q + 1],
                    so_far,
                    np.ones_like(so_far, bool),
                )
                # What stands after position len(tokens) is not seen: answers are causal.
                logits = np.array(model.logits(hidden[0, 0, len(tokens)]))
                if use_grammar:
                    locs = 0
                    while locs < len(tokens) and start <= tokens[-1 - locs] < start + 1024:
                        locs += 1
                    in_box = locs % 4
                    keep = np.zeros(len(logits), bool)
                    bins = np.arange(len(logits)) - start
                    is_loc = (bins >= 0) & (bins < 1024)
                    if in_box == 0:
                        keep = ~is_loc | (bins < 1023)
                    elif in_box == 1:
                        keep = is_loc & (bins < 1023)
                    else:
                        keep = is_loc & (bins > tokens[-2] - start)
                    logits[~keep] = -np.inf
                tokens.append(int(np.argmax(logits)))
            answers[b, q, : len(tokens)] = tokens
    return answers


@pytest.mark.parametrize("share", ["tower", "image"])
@pytest.mark.parametrize("use_grammar", [False, True])
def test_the_cache_changes_nothing(share, use_grammar):
    model = VLM(_CONFIG, rngs=nnx.Rngs(2), share=share)
    # Without this an untrained model says one token for ever.
    layers = model.decoder.layers
    layers.attn.o_proj.kernel[...] *= 4.0
    inputs = _inputs()
    generate = Generator(model, max_answer_tokens=_ANSWER, eos_id=_EOS, use_grammar=use_grammar)
    expected = _slow_greedy(model, *inputs, use_grammar)
    answer = generate(*inputs)
    np.testing.assert_array_equal(answer.tokens, expected)
    assert (answer.tokens[1, 0] == 0).all() and (answer.logprobs[1, 0] == 0).all()

    hidden = _hidden(model, *inputs, answer.tokens, np.ones_like(answer.tokens, bool))
    logprobs = jax.nn.log_softmax(model.logits(hidden))
    chosen = jnp.take_along_axis(logprobs, answer.tokens[..., None], axis=-1)[..., 0]
    said = answer.tokens > 0
    np.testing.assert_allclose(answer.logprobs[said], np.asarray(chosen)[said], atol=1e-4)


def test_an_answer_ends_at_the_end_token():
    model = VLM(_CONFIG, rngs=nnx.Rngs(2), share="image")
    free = Generator(model, max_answer_tokens=_ANSWER, eos_id=_EOS, use_grammar=False)
    first = free(*_inputs()).tokens[0, 0, 0]
    ended = Generator(model, max_answer_tokens=_ANSWER, eos_id=int(first), use_grammar=False)
    answer = ended(*_inputs())
    assert answer.tokens[0, 0, 0] == first
    assert (answer.tokens[0, 0, 1:] == 0).all() and (answer.logprobs[0, 0, 1:] == 0).all()


def test_the_grammar_leaves_only_whole_boxes_with_corners_in_order():
    rng = np.random.default_rng(0)
    vocab, start = 1060, 20
    state, tokens = initial_state((200,)), []
    for _ in range(24):
        allowed = np.asarray(allowed_tokens(state, vocab, start))
        assert allowed.any(axis=-1).all()
        scores = np.where(allowed, rng.random((200, vocab)), -1)
        # Favour location tokens, or a random walk would hardly ever enter a box.
        scores[:, start : start + 1024] += 0.2 * allowed[:, start : start + 1024]
        token = scores.argmax(-1)
        tokens.append(token)
        state = advance(state, jnp.asarray(token), start)
    boxes = 0
    for answer in np.stack(tokens, -1):
        run: list[int] = []
        for token in [*answer, -1]:
            if start <= token < start + 1024:
                run.append(token - start)
                continue
            whole = run if token != -1 else run[: len(run) // 4 * 4]
            assert len(whole) % 4 == 0
            for y0, x0, y1, x1 in np.reshape(whole, (-1, 4)):
                assert y0 < y1 and x0 < x1
                boxes += 1
            run = []
    assert boxes > 200


def test_box_state_counts_tokens_of_the_current_box():
    state = BoxState(*(jnp.zeros((), jnp.int32) for _ in range(3)))
    counts = []
    for token in (20, 21, 30, 31, 20, 5):
        state = advance(state, jnp.asarray(token), 20)
        counts.append(int(state.placed))
    assert counts == [1, 2, 3, 0, 1, 0]
