"""Languages of answers: every form of answer as a grammar of tokens."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.decoding.answer_forms import ANSWER_FORMS, answer_grammar
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
from cxrjax.errors import UserError
from tests.decoding.conftest import TOKENIZER
from tests.papers.cases import data

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


def test_walks_meet_boxes_and_every_short_answer():
    scores = np.random.default_rng(0).random((14, 400, 1060), np.float32)
    tokens = np.asarray(_WALKS["named"](scores[:, :30], 14)[0])
    assert ((tokens >= 20) & (tokens < 1044)).any()
    expected = {"yes_no": {"yes", "no", "Yes", "No"}, "option": set("ABCD"), "names": set(_NAMES)}
    for form, answers in expected.items():
        for seed in range(20):
            for answer in np.asarray(_walk(_GRAMMARS[form], seed, _SLOTS)[0]).T:
                length = int(np.argmax(answer == TOKENIZER.eos_id))
                _SEEN[form].add(TOKENIZER.decode(answer[:length]))
        assert _SEEN[form] == answers


def test_tables_stay_small_and_free_text_knows_no_end():
    names = [Tokens((100 + i, 200 + i % 3, 300 + i)) for i in range(40)]
    grammar = compile_grammar(OneOf(tuple(names)))
    # One state for each prefix; the ends are one state each, since nothing is minimised.
    assert grammar.tokens.shape == (1 + 3 * 40, 40)
    assert grammar.shortest[0] == 3
    grammar = compile_grammar(FREE_TEXT)
    assert grammar.tokens.shape[1] == 0 and grammar.ends[0] and grammar.shortest[0] == 0
    stop_allowed = np.asarray(allowed_tokens(grammar, initial_state(()), 0, _WITH_BOXES))
    assert stop_allowed[1] and stop_allowed[3] and stop_allowed[5] and not stop_allowed[20]


_VOCABULARY = TokenVocabulary(2048, int(TOKENIZER.loc_ids[0]), (TOKENIZER.eos_id,))
_NAMES = ("Pleural effusion", "Pleural thickening", "ILD", "Nodule/Mass", "Nodule")
_NAME = f"({'|'.join(_NAMES)})"
_FORM_BOX = r"(<loc\d{4}>){4}"
_FORM_PATTERNS = {
    "located": f"(?s:.*{_FORM_BOX}.*)",
    "yes_no": "[Yy]es|[Nn]o",
    "option": "[A-D]",
    "options": "(?=.)(A(, (?=.))?)?(B(, (?=.))?)?(C(, (?=.))?)?D?",
    "names": _NAME,
    "findings": f"none|{_NAME} {_FORM_BOX}( {_FORM_BOX})*",
    "detections": f"none|{_FORM_BOX} {_NAME}( ; {_FORM_BOX} {_NAME})*",
}
_SLOTS = 24


def _padded(grammar):
    """The tables in one size for all forms, so that what uses them is compiled once."""
    states, branches = 100, 16
    assert len(grammar.ends) <= states and grammar.tokens.shape[1] <= branches
    filled = [
        np.pad(
            table,
            [(0, size - n) for n, size in zip(table.shape, (states, branches), strict=False)],
            constant_values=False if table.dtype == bool else -1,
        )
        for table in grammar
    ]
    return type(grammar)(*filled)


@jax.jit
def _walk_by(grammar, scores, used):
    def step(state, k):
        allowed = allowed_tokens(grammar, state, used - 1 - k, _VOCABULARY)
        token = jnp.argmax(jnp.where(allowed, scores[k], -1), axis=-1)
        state = advance(grammar, state, token, _VOCABULARY)
        return state, (token, jnp.any(allowed, axis=-1))

    return jax.lax.scan(step, initial_state((16,)), jnp.arange(_SLOTS))[1]


def _walk(grammar, seed, used):
    """Sixteen answers: the best-scored allowed token at each step, until all slots are full."""
    scores = np.random.default_rng(seed).random((_SLOTS, 16, 2048), np.float32)
    # Most walks should get past the stop token, which is one of few.
    scores[..., TOKENIZER.eos_id] *= 0.7
    return _walk_by(grammar, scores, used)


@jax.jit
def _step(grammar, state, remaining, token):
    allowed = allowed_tokens(grammar, state, remaining, _VOCABULARY)
    return allowed[token], advance(grammar, state, token, _VOCABULARY)


_GRAMMARS = {
    form: _padded(answer_grammar(form, TOKENIZER, _NAMES)) for form in ("boxes", *_FORM_PATTERNS)
}
_SEEN: dict[str, set[str]] = {form: set() for form in _FORM_PATTERNS}


@pytest.mark.parametrize("form", _FORM_PATTERNS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31 - 1), slots=st.integers(10, _SLOTS))
def test_every_answer_of_a_form_is_in_the_language(form, seed, slots):
    tokens, possible = (np.asarray(x).T for x in _walk(_GRAMMARS[form], seed, slots))
    for answer, alive in zip(tokens[:, :slots], possible[:, :slots], strict=True):
        stops = np.flatnonzero(answer == TOKENIZER.eos_id)
        length = stops[0] if len(stops) else slots
        assert alive[: length + 1].all()
        text = TOKENIZER.decode(answer[:length])
        assert re.fullmatch(_FORM_PATTERNS[form], text), text
        for box in re.findall(r"(?:<loc\d{4}>){4}", text):
            y0, x0, y1, x1 = map(int, re.findall(r"\d{4}", box))
            assert y0 < y1 and x0 < x1
        _SEEN[form].add(re.sub(r"\d", "", text))


_SPELLED = data(__file__)["spelled"]


@pytest.mark.parametrize(
    ("form", "text"), [(form, text) for form, texts in _SPELLED.items() for text in texts]
)
def test_as_the_tokenizer_spells_it(form, text):
    text = text.replace("*", "<loc0001><loc0002><loc0003><loc0004>")
    state = jax.tree.map(np.asarray, initial_state(()))
    ids = [*TOKENIZER.encode(text), TOKENIZER.eos_id]
    for k, token in enumerate(ids):
        allowed, state = _step(_GRAMMARS[form], state, len(ids) - 1 - k, token)
        assert allowed, TOKENIZER.decode(ids[:k])


def test_forms_names_and_pairs_of_boxes_are_checked():
    assert answer_grammar("none", TOKENIZER) is None
    assert {"none", "boxes", *_FORM_PATTERNS} == set(ANSWER_FORMS)
    with pytest.raises(UserError, match="'findings' needs the findings' names"):
        answer_grammar("findings", TOKENIZER)
    with pytest.raises(UserError, match=r"'poetry'.*expected one of none, boxes"):
        answer_grammar("poetry", TOKENIZER)
    with pytest.raises(ValueError, match="OneOf of nothing"):
        compile_grammar(OneOf(()))
    box = BoxTokens()
    pairs = Concat((Repeat(box), Repeat(Concat((box, box)))))
    free = Concat((Repeat(AnyToken()), OneOf((box, Repeat(box))), box))
    for part in (free, OneOf((box, pairs))):
        assert set(compile_grammar(part).coordinate) == {0, 1, 2, 3}
