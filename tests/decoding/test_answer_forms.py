"""The answer forms, spelled by the shipped tokenizer and read again from the decoded text."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.decoding.answer_forms import ANSWER_FORMS, answer_grammar
from cxrjax.decoding.grammar import TokenVocabulary, advance, allowed_tokens, initial_state
from cxrjax.errors import UserError
from tests.decoding.conftest import TOKENIZER

_VOCABULARY = TokenVocabulary(2048, int(TOKENIZER.loc_ids[0]), (TOKENIZER.eos_id,))
_NAMES = ("Pleural effusion", "Pleural thickening", "ILD", "Nodule/Mass", "Nodule")
_NAME = f"({'|'.join(_NAMES)})"
_BOX = r"(<loc\d{4}>){4}"
_PATTERNS = {
    "yes_no": "[Yy]es|[Nn]o",
    "option": "[A-D]",
    "options": "(?=.)(A(, (?=.))?)?(B(, (?=.))?)?(C(, (?=.))?)?D?",
    "names": _NAME,
    "findings": f"none|{_NAME} {_BOX}( {_BOX})*",
    "detections": f"none|{_BOX} {_NAME}( ; {_BOX} {_NAME})*",
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
    form: _padded(answer_grammar(form, TOKENIZER, _NAMES)) for form in ("boxes", *_PATTERNS)
}
_SEEN: dict[str, set[str]] = {form: set() for form in _PATTERNS}


@pytest.mark.parametrize("form", _PATTERNS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31 - 1), slots=st.integers(10, _SLOTS))
def test_every_answer_is_in_the_language(form, seed, slots):
    tokens, possible = (np.asarray(x).T for x in _walk(_GRAMMARS[form], seed, slots))
    for answer, alive in zip(tokens[:, :slots], possible[:, :slots], strict=True):
        stops = np.flatnonzero(answer == TOKENIZER.eos_id)
        length = stops[0] if len(stops) else slots
        assert alive[: length + 1].all()
        text = TOKENIZER.decode(answer[:length])
        assert re.fullmatch(_PATTERNS[form], text), text
        for box in re.findall(r"(?:<loc\d{4}>){4}", text):
            y0, x0, y1, x1 = map(int, re.findall(r"\d{4}", box))
            assert y0 < y1 and x0 < x1
        _SEEN[form].add(re.sub(r"\d", "", text))


def test_every_short_answer_can_be_given():
    expected = {"yes_no": {"yes", "no", "Yes", "No"}, "option": set("ABCD"), "names": set(_NAMES)}
    for form, answers in expected.items():
        for seed in range(20):
            for answer in np.asarray(_walk(_GRAMMARS[form], seed, _SLOTS)[0]).T:
                length = int(np.argmax(answer == TOKENIZER.eos_id))
                _SEEN[form].add(TOKENIZER.decode(answer[:length]))
        assert _SEEN[form] == answers


_SPELLED = {
    "findings": ("none", "ILD * *", "Nodule *"),
    "detections": ("* ILD", "* ILD ; * Nodule"),
    "options": ("B, D", "A, B, C, D"),
    "boxes": ("The ILD is at *.",),
}


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


def test_forms_and_names_are_checked():
    assert answer_grammar("none", TOKENIZER) is None
    assert {"none", "boxes", *_PATTERNS} == set(ANSWER_FORMS)
    with pytest.raises(UserError, match="'findings' needs the findings' names"):
        answer_grammar("findings", TOKENIZER)
    with pytest.raises(UserError, match=r"'poetry'.*expected one of none, boxes"):
        answer_grammar("poetry", TOKENIZER)
