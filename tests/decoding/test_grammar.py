"""The automaton against languages written down in another way."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.decoding.grammar import (
    FREE_TEXT,
    AnyToken,
    BoxTokens,
    Concat,
    OneOf,
    Repeat,
    Tokens,
    TokenVocabulary,
    advance,
    allowed_tokens,
    compile_grammar,
    initial_state,
)

# 16 tokens without boxes: letters a to o, and 15 to stop.
_LETTERS = TokenVocabulary(16, -1, (15,))
_WITH_BOXES = TokenVocabulary(1060, 20, (1, 3))


def _letters(text):
    return Tokens(tuple(ord(c) - ord("a") for c in text))


def _language(grammar, vocabulary, slots):
    """Every answer of at most so many tokens, by looking at every state's mask."""
    found, pending = set(), [((), initial_state(()))]
    while pending:
        tokens, state = pending.pop()
        allowed = np.asarray(allowed_tokens(grammar, state, slots - 1 - len(tokens), vocabulary))
        assert allowed.any()
        for token in np.flatnonzero(allowed):
            if token in vocabulary.stop_ids:
                found.add(tokens)
            elif len(tokens) + 1 == slots:
                found.add((*tokens, token))
            else:
                following = advance(grammar, state, jnp.asarray(token), vocabulary)
                pending.append(((*tokens, token), following))
    return {"".join(chr(ord("a") + t) for t in tokens) for tokens in found}


@pytest.mark.parametrize(
    ("part", "pattern"),
    [
        (OneOf((_letters("ab"), _letters("abc"), _letters("b"))), "ab|abc|b"),
        (Concat((_letters("a"), Repeat(_letters("bc")), _letters("b"))), "a(bc)*b"),
        (Repeat(OneOf((_letters("a"), Repeat(_letters("bb"))))), "(a|(bb)*)*"),
        (Concat((Repeat(_letters("a")), OneOf((_letters(""), _letters("ac"))))), "a*(|ac)"),
        # A listed token beside any token: both ways stay open.
        (OneOf((_letters("ab"), Concat((AnyToken(), _letters("c"))))), "ab|[a-o]c"),
    ],
)
def test_exactly_the_language_and_nothing_cut_off(part, pattern):
    letters = "abc" if "[" not in pattern else "abcdefghijklmno"
    slots = 4 if "[" not in pattern else 2
    expected = {
        text
        for length in range(slots + 1)
        for text in map("".join, itertools.product(letters, repeat=length))
        if re.fullmatch(pattern, text)
    }
    assert _language(compile_grammar(part), _LETTERS, slots) == expected


def _walker(grammar, slots):
    """A jitted walk: the best-scored allowed token at each step, until all slots are full."""

    def walk(scores, used):
        def step(state, k):
            allowed = allowed_tokens(grammar, state, used - 1 - k, _WITH_BOXES)
            token = jnp.argmax(jnp.where(allowed, scores[k], -1), axis=-1)
            state = advance(grammar, state, token, _WITH_BOXES)
            return state, (token, jnp.any(allowed, axis=-1))

        return jax.lax.scan(step, initial_state(scores.shape[1:2]), jnp.arange(slots))[1]

    return jax.jit(walk)


_PARTS = {
    "free": FREE_TEXT,
    # A name and boxes, or 7: with text between boxes, and one choice inside another's beginning.
    "named": OneOf(
        (
            Tokens((7,)),
            Concat((Tokens((7, 8)), BoxTokens(), Repeat(Concat((Tokens((9,)), BoxTokens()))))),
            Concat((Tokens((7, 8, 10)), BoxTokens())),
        )
    ),
}
_WALKS = {name: _walker(compile_grammar(part), 14) for name, part in _PARTS.items()}
_BOX = r"(?:L\d+ ){4}"
_PATTERNS = {
    "free": rf"(?:t\d+ |{_BOX})*",
    "named": rf"t7 |t7 t8 {_BOX}(?:t9 {_BOX})*|t7 t8 t10 {_BOX}",
}


@pytest.mark.parametrize("name", _PARTS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), slots=st.integers(1, 14), towards_boxes=st.floats(0, 1))
def test_every_answer_is_in_the_language(name, seed, slots, towards_boxes):
    scores = np.random.default_rng(seed).random((14, 30, 1060), np.float32)
    scores[:, :, 20:1044] *= towards_boxes
    scores[:, :, [1, 3]] *= 1 + (1 - towards_boxes) / 20
    tokens, possible = (np.asarray(x).T for x in _WALKS[name](scores, slots))
    for answer, alive in zip(tokens[:, :slots], possible[:, :slots], strict=True):
        stops = np.flatnonzero(np.isin(answer, (1, 3)))
        length = stops[0] if len(stops) else slots
        assert alive[: length + 1].all()
        words = [f"L{t - 20} " if 20 <= t < 1044 else f"t{t} " for t in answer[:length]]
        assert re.fullmatch(_PATTERNS[name], "".join(words))
        for box in re.findall(_BOX, "".join(words)):
            y0, x0, y1, x1 = (int(word[1:]) for word in box.split())
            assert y0 < y1 and x0 < x1


def test_walks_meet_boxes_and_ends_at_every_length():
    scores = np.random.default_rng(0).random((14, 400, 1060), np.float32)
    tokens = np.asarray(_WALKS["named"](scores[:, :30], 14)[0])
    assert ((tokens >= 20) & (tokens < 1044)).any()


def test_the_tables_stay_small():
    names = [Tokens((100 + i, 200 + i % 3, 300 + i)) for i in range(40)]
    grammar = compile_grammar(OneOf(tuple(names)))
    # One state for each prefix; the ends are one state each, since nothing is minimised.
    assert grammar.tokens.shape == (1 + 3 * 40, 40)
    assert grammar.shortest[0] == 3


def test_free_text_knows_no_end():
    grammar = compile_grammar(FREE_TEXT)
    assert grammar.tokens.shape[1] == 0 and grammar.ends[0] and grammar.shortest[0] == 0
    stop_allowed = np.asarray(allowed_tokens(grammar, initial_state(()), 0, _WITH_BOXES))
    assert stop_allowed[1] and stop_allowed[3] and stop_allowed[5] and not stop_allowed[20]


def test_boxes_side_by_side_are_certain():
    with pytest.raises(ValueError, match="OneOf of nothing"):
        compile_grammar(OneOf(()))
    box = BoxTokens()
    pairs = Concat((Repeat(box), Repeat(Concat((box, box)))))
    free = Concat((Repeat(AnyToken()), OneOf((box, Repeat(box))), box))
    for part in (free, OneOf((box, pairs))):
        assert set(compile_grammar(part).coordinate) == {0, 1, 2, 3}
