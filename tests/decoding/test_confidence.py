"""Draws against the exact distribution, and the confidence of the answers that they decide."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cxrjax.codecs import CODECS
from cxrjax.decoding import confidence
from cxrjax.decoding.beam import watched_logprobs
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.grammar import OneOf, Tokens, compile_grammar
from cxrjax.decoding.strategy import Strategy, filter_logits, sample_keys, sample_tokens
from tests.decoding.conftest import TOKENIZER, slow


def _sure(parts, codec="paligemma", words=None):
    """Of texts and probabilities; the end of the answer is the last of them."""
    texts, probabilities = zip(*parts, strict=True)
    spelled = confidence.Spelled(texts, np.log(np.array(probabilities)), words)
    read = CODECS[codec].read_as_written("".join(texts), 1000, 1000, None)
    found = confidence.answer_confidence(spelled, [(span.start, span.end) for span in read.spans])
    return tuple(None if f is None else math.exp(f) for f in (found.decision, found.coordinates))


_BOX = [("<loc0100>", 0.1), ("<loc0200>", 0.2), ("<loc0300>", 0.1), ("<loc0400>", 0.2)]


def test_words_and_digits_have_the_probability_of_their_tokens():
    parts = [("Left", 0.5), (" effusion.", 0.8), (" ", 1.0), *_BOX, (" ", 0.1), *_BOX]
    parts += [(" No", 0.9), (" nodule.", 0.5), ("", 0.7)]
    texts, probabilities = zip(*parts, strict=True)
    spelled = confidence.Spelled(texts, np.log(np.array(probabilities)))
    read = CODECS["paligemma"].read_as_written(spelled.text, 1000, 1000, None)
    places = [(span.start, span.end) for span in read.spans]
    assert confidence.sentence_probabilities(spelled, places) == pytest.approx([0.4, 0.45])
    parts = [("ILD at <loc_", 0.5), ("1", 0.1), ("0_20_", 0.1), ("300_400", 0.1), (">", 1), ("", 1)]
    decision, coordinates = _sure(parts, "vindr_px")
    # The token that begins with words is the box's: it cannot be cut.
    assert coordinates == pytest.approx(0.5e-3)
    assert decision is None
    parts[0:1] = [("ILD at ", 0.6), ("<loc_", 0.5)]
    assert _sure(parts, "vindr_px") == (pytest.approx(0.6), pytest.approx(0.5e-3))


@pytest.mark.parametrize(
    ("parts", "decision", "coordinates"),
    [
        # What stands behind the coordinates does not matter, however unlikely they are.
        ([("The", 0.5), (" ILD at ", 0.8), *_BOX, (".", 0.3), ("", 0.9)], 0.4, 0.0004),
        ([("ILD ", 0.7), *_BOX, (" and ", 0.2), *_BOX, ("", 0.5)], 0.7, 0.0004**2),
        # The class that is named behind a box does.
        ([("Here ", 0.9), *_BOX, (" is", 1.0), (" ILD", 0.5), (".", 1.0)], 0.45, 0.0004),
        # A reason, a second sentence, another line: not the decision.
        ([("There is no", 0.6), (" ILD", 0.9), (".", 1.0), (" Clear lungs.", 0.01)], 0.54, None),
        ([("none", 0.25), ("\n", 0.8), ("as I see it", 0.01)], 0.2, None),
        # What ends an answer without a full stop says that it names no more.
        ([("ILD", 0.5), ("", 0.5)], 0.25, None),
        ([*_BOX, ("", 0.5)], None, 0.0004),
        ([("", 0.7)], 0.7, None),
    ],
)
def test_words_and_coordinates_are_taken_apart(parts, decision, coordinates):
    assert _sure(parts) == (
        None if decision is None else pytest.approx(decision),
        None if coordinates is None else pytest.approx(coordinates),
    )


def _words(tokens, **given):
    words = np.full((tokens, len(confidence.ANSWER_WORDS)), -np.inf)
    for word, probability in given.items():
        words[0, confidence.ANSWER_WORDS.index(word)] = math.log(probability)
    return words


@pytest.mark.parametrize(
    ("parts", "decision"),
    [
        # "Yes" and "yes" are one decision; what else the answer says is none.
        ([("Yes", 0.4), (",", 0.5), (" ILD", 0.5), ("", 1)], 0.7),
        ([("yes", 0.3), ("", 0.5)], 0.7),
        # A word of another answer.
        ([("no", 0.2), (" ILD", 0.5), ("", 1)], 0.1),
        ([("Y", 0.4), ("es", 1.0), ("", 1)], 0.4),
        ([("A", 0.1), (".", 0.5)], 0.3),
        ([("A", 0.5), (", C", 0.5), ("", 1)], 0.25),
        ([("A", 0.5), (" mass", 0.5), ("", 1)], 0.25),
    ],
)
def test_a_word_that_is_the_answer_counts_in_all_its_spellings(parts, decision):
    words = _words(len(parts), yes=0.7, no=0.2, a=0.3)
    assert _sure(parts, words=words)[0] == pytest.approx(decision)


def test_texts_of_tokens_make_the_answer_and_words_have_spellings():
    for text in ("Yes, ILD at <loc0001><loc0002>", " <answer> No. <reason> x", "\u4e2d\n\u00e9"):
        tokens = TOKENIZER.encode(text)
        spelled = confidence.spell(tokens, TOKENIZER.decode, np.zeros(len(tokens) + 1))
        assert spelled.text == TOKENIZER.decode(tokens)
        assert len(spelled.texts) == len(tokens) + 1 and spelled.texts[-1] == ""
        half = spelled.within(0, len(spelled.text) // 2)
        assert half.text == spelled.text[: len(spelled.text) // 2]
    table = confidence.answer_word_tokens(TOKENIZER)
    named = {
        word: {TOKENIZER.piece_of(int(token)) for token in row if token >= 0}
        for word, row in zip(confidence.ANSWER_WORDS, table, strict=True)
    }
    assert named["no"] == {"no", "\u2581no", "No"} and named["yes"] == {"Yes"}


@pytest.mark.parametrize(
    "strategy", [{}, slow({"beams": 2}), slow({"temperature": 1.0, "best_of": 2})]
)
def test_watched_words_are_summed_over_their_tokens(tiny, strategy):
    """Against the model run anew, with a grammar too: then among what it allows."""
    case = tiny("image", 12)
    watched = np.array([[3, 7], [9, -1]], np.int32)
    index = np.zeros(case.inputs[1].shape[:2], np.int32)
    for allowed in (None, (3, 7, 9)):
        grammar = None
        if allowed is not None:
            grammar = compile_grammar(OneOf(tuple(Tokens((token,)) for token in allowed)))
        generator = Generator(
            case.model, Strategy(case.slots, (1, 5), **strategy), grammar, watched=watched
        )
        answer = generator(*case.inputs, index)
        for b, q in case.asked:
            first = np.asarray(case.logprobs(b, q, ()))
            if allowed is not None:
                first = np.where(np.isin(np.arange(len(first)), allowed), first, -np.inf)
            expected = watched_logprobs(jnp.asarray(first), jnp.asarray(watched))
            np.testing.assert_allclose(answer.words[b, q, 0], expected, atol=1e-4)
            mass = np.exp(first) / np.exp(first).sum()
            assert np.exp(expected) == pytest.approx([mass[3] + mass[7], mass[9]], rel=1e-4)


def test_a_box_is_there_as_surely_as_the_least_likely_word_before_it():
    """In location tokens, and behind the second of two boxes another word that is sure."""
    parts = [("No", 0.9), (" or", 0.3), (" ILD ", 0.8), *_BOX, (" and ", 0.6), *_BOX, (" ", 0.1)]
    texts, probabilities = zip(*parts, strict=True)
    spelled = confidence.Spelled(texts, np.log(np.array(probabilities)))
    places = [(start, start + 36) for start in (10, 51)]
    assert all(spelled.text[start:end] == "".join(t for t, _ in _BOX) for start, end in places)
    scores = [one.score for one in confidence.box_confidences(spelled, places)]
    assert scores == pytest.approx([0.3 * 0.0004**0.25] * 2)


_PROBABILITIES = np.array([0.05, 0.4, 0.02, 0.2, 0.13, 0.1, 0.06, 0.04])


def _exact(temperature, top_k, top_p):
    """Temperature, top-k, top-p on the table, one token at a time."""
    weights = _PROBABILITIES ** (1 / temperature)
    ranked = sorted(range(8), key=lambda t: -weights[t])[: top_k or 8]
    total = sum(weights[t] for t in ranked)
    kept, reached = [], 0.0
    for token in ranked:
        if reached >= top_p:
            break
        kept.append(token)
        reached += weights[token] / total
    exact = np.zeros(8)
    exact[kept] = weights[kept] / weights[kept].sum()
    return exact


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.7), (1.5, 5, 0.6), (1.0, 0, 1e-6)],
)
def test_frequencies(temperature, top_k, top_p):
    exact = _exact(temperature, top_k, top_p)
    logits = filter_logits(jnp.log(_PROBABILITIES) + 3.0, temperature, top_k, top_p)
    np.testing.assert_allclose(jax.nn.softmax(logits), exact, atol=1e-6)
    keys = sample_keys(5, jnp.arange(4000).reshape(40, 100), 2)
    draws = np.asarray(sample_tokens(keys, 3, jnp.broadcast_to(logits, (40, 200, 8))))
    counts = np.bincount(draws.ravel(), minlength=8)
    assert counts[exact == 0].sum() == 0
    drawn = exact > 0
    if drawn.sum() > 1:
        assert stats.chisquare(counts[drawn], exact[drawn] * counts.sum()).pvalue > 1e-4


def test_ties_and_masked_tokens_of_filtered_logits():
    logits = jnp.log(jnp.array([0.4, 0.2, 0.2, 0.2]))
    kept = [
        np.flatnonzero(np.isfinite(filter_logits(logits, 1.0, k, p)))
        for k, p in ((2, 1.0), (0, 0.5))
    ]
    assert all(found.tolist() == [0, 1, 2, 3] for found in kept)
    logits = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1])).at[0].set(-jnp.inf)
    kept = np.isfinite(filter_logits(logits, 1.0, 2, 1.0))
    assert kept.tolist() == [False, True, True, False]
    # More places than allowed tokens: nothing forbidden comes in.
    kept = np.isfinite(filter_logits(logits, 1.0, 4, 0.999999))
    assert kept.tolist() == [False, True, True, True]


def test_keys_are_a_matter_of_seed_question_sample_and_step():
    keys = sample_keys(0, jnp.array([[3, 8], [5, 3]]), 2)
    data = np.asarray(jax.random.key_data(keys))
    assert (data[0, :2] == data[1, 2:]).all()
    assert len({tuple(row) for row in data[:, :, :].reshape(-1, 2)}) == 6
    other = sample_keys(1, jnp.array([[3, 8], [5, 3]]), 2)
    assert (data != np.asarray(jax.random.key_data(other))).any(axis=-1).all()
    flat = jnp.zeros((2, 4, 1000))
    first, second = (np.asarray(sample_tokens(keys, step, flat)) for step in (0, 1))
    assert (first != second).any(axis=-1).all()
