"""Coordinates from whole distributions, against SciPy's and the model run anew for every token."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage, special, stats
from scipy.stats import qmc

from cxrjax.codecs import CODECS
from cxrjax.decoding import box_readings as readings
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.grammar import BoxTokens, Concat, Tokens, TokenVocabulary, compile_grammar
from cxrjax.decoding.predictor import TokenAnswer, prediction
from cxrjax.decoding.strategy import DecodingConfig, Strategy, read_decoding
from cxrjax.errors import UserError
from cxrjax.input_pipeline.examples import ExampleConfig
from tests.asked import asked
from tests.decoding.conftest import TOKENIZER
from tests.papers.cases import cases

_START, _BINS, _WORD, _STOP = 4, 1024, 1040, 1
# Two boxes and a word between them.
_GRAMMAR = compile_grammar(Concat((BoxTokens(), Tokens((_WORD,)), BoxTokens())))
_VOCABULARY = TokenVocabulary(1060, _START, (_STOP,))


def _distribution(case, b, q, tokens):
    """Over the bins that may come next, float64; None where a word or the end must."""
    place = len(tokens) % 5
    if place == 4:
        return None
    logits = case.logits(b, q, tokens)[_START : _START + _BINS]
    bins = np.arange(_BINS)
    allowed = bins < 1023 if place < 2 else bins > tokens[-2] - _START
    weights = np.where(allowed, np.exp(logits - logits.max()), 0)
    return weights / weights.sum()


def _quantile(probability, level):
    return stats.rv_discrete(values=(np.arange(_BINS), probability)).ppf(level).astype(int)


def _smoothed(probability):
    around = ndimage.gaussian_filter1d(probability, readings.SMOOTHING, mode="constant", truncate=4)
    return int(np.argmax(np.where(probability > 0, around, -1)))


_ONE_PASS = {
    "greedy": lambda probability: int(np.argmax(probability)),
    "smoothed": _smoothed,
    "median": lambda probability: _quantile(probability, 0.5),
}


def _iou(a, b):
    height, width = (min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1))
    shared = max(height, 0) * max(width, 0)
    sizes = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return shared / (sum(sizes) - shared)


def _box(case, b, q, tokens, read):
    for place in range(4):
        tokens = [*tokens, _START + read(_distribution(case, b, q, tokens), place)]
    return tokens


def _expected_box(case, b, q, tokens):
    found = [
        _box(case, b, q, tokens, lambda p, k, own=own: _quantile(p, own[k]))
        for own in readings.BOX_LEVELS
    ]
    totals = [sum(_iou(one[-4:], other[-4:]) for other in found) for one in found]
    return found[int(np.argmax(totals))]


@pytest.fixture(scope="module")
def case(tiny):
    return dataclasses.replace(tiny("image", 1060), slots=10)


@pytest.mark.parametrize("reading", readings.BOX_READINGS)
def test_two_boxes_as_a_plain_loop_reads_them(case, reading):
    strategy = Strategy(case.slots, (_STOP,), boxes=reading)
    answer = Generator(case.model, strategy, _GRAMMAR)(*case.inputs)
    for b, q in case.asked[::2]:
        tokens = []
        for word in (_WORD, _STOP):
            if reading == "expected_iou":
                tokens = _expected_box(case, b, q, tokens)
            else:
                tokens = _box(case, b, q, tokens, lambda p, _: _ONE_PASS[reading](p))
            tokens.append(word)
        assert answer.tokens[b, q].tolist() == tokens
        for place in (0, 3, 6):
            probability = _distribution(case, b, q, tokens[:place])
            exact = _quantile(probability, readings.LEVELS)
            assert np.abs(answer.quantiles[b, q, place] - exact).max() <= 1
        assert not answer.quantiles[b, q, [4, 9]].any()
    assert not answer.tokens[1, 0].any() and not answer.quantiles[1, 0].any()
    said = answer.tokens > 0
    np.testing.assert_allclose(answer.logprobs[said], case.forced(answer.tokens)[said], atol=1e-4)


@pytest.mark.slow
def test_rows_of_their_own_and_beams_note_the_same(case, tiny):
    other = dataclasses.replace(tiny("tower", 1060), slots=10)
    found = {
        boxes: Generator(other.model, Strategy(10, (_STOP,), boxes=boxes), _GRAMMAR)(*other.inputs)
        for boxes in ("greedy", "expected_iou")
    }
    forced = other.forced(found["expected_iou"].tokens)
    said = found["expected_iou"].tokens > 0
    np.testing.assert_allclose(found["expected_iou"].logprobs[said], forced[said], atol=1e-4)
    beams = Generator(other.model, Strategy(10, (_STOP,), beams=2), _GRAMMAR)(*other.inputs)
    same = (beams.tokens == found["greedy"].tokens).all(-1)
    first = beams.tokens[..., 0] == found["greedy"].tokens[..., 0]
    assert first.any() and not (same.all() and beams.tokens.any() == 0)
    np.testing.assert_array_equal(
        beams.quantiles[first][:, 0], found["greedy"].quantiles[first][:, 0]
    )
    assert not beams.quantiles[..., 4, :].any()


def test_levels_of_boxes_are_sobol_s_and_reached_exactly():
    points = qmc.Sobol(4, scramble=False).random(8) + 1 / 16
    np.testing.assert_array_equal(
        readings.BOX_LEVELS, np.r_[[[0.5] * 4], points].astype(np.float32)
    )
    # Half of the probability on each of two bins: the median is the first.
    probability = jnp.zeros((2, _BINS)).at[:, jnp.array([100, 300])].set(0.5)
    found = readings.quantile_bins(probability, jnp.asarray([0.25, 0.5, 0.75]))
    assert found.tolist() == [[100, 100, 300]] * 2


def test_expected_iou_is_that_of_draws():
    rng = np.random.default_rng(0)
    bins = np.array([300, 200, 520, 610])
    sizes = np.array([5.0, 60.0, 12.0, 30.0])
    logits = -0.5 * ((np.arange(_BINS) - bins[:, None]) / sizes[:, None]) ** 2
    choices = jnp.full((4, 1060), -jnp.inf).at[:, _START : _START + _BINS].set(logits)
    quantiles = np.asarray(readings.location_quantiles(choices, _VOCABULARY))
    probability = special.softmax(logits, axis=-1)
    draws = np.stack([rng.choice(_BINS, 20_000, p=p) for p in probability], axis=1)
    exact = np.mean([_iou(bins, draw) for draw in draws])
    assert readings.expected_iou(bins, quantiles) == pytest.approx(exact, abs=0.01)
    # Sixteen quantiles leave out the outermost sixteenth.
    np.testing.assert_allclose(readings.spreads(quantiles), sizes, rtol=0.08)
    certain = np.repeat(bins[:, None], len(readings.LEVELS), axis=1)
    assert readings.expected_iou(bins, certain) == 1.0
    assert readings.expected_iou(bins, certain + 500) == 0.0


def test_a_box_scores_the_iou_that_is_expected_of_it():
    """A sharp box beside a vague one, both as likely token by token."""
    loc = TOKENIZER.loc_ids
    bins = [[300, 200, 520, 610], [300, 200, 520, 610]]
    tokens = np.array([loc[b] for b in bins[0]] + [1500] + [loc[b] for b in bins[1]] + [1])
    logprobs = np.log(np.array([0.5] * 4 + [0.8] + [0.5] * 4 + [1.0]))
    quantiles = np.zeros((10, len(readings.LEVELS)), np.int32)
    quantiles[:4] = np.array(bins[0])[:, None] + np.arange(-8, 8)
    quantiles[5:9] = np.array(bins[1])[:, None] + 8 * np.arange(-8, 8)
    record = asked(dataset="vindr_cxr_vqa", split="test", image_hw=(512, 256))
    config = ExampleConfig(112, geometry="letterbox")
    answer = TokenAnswer(record, tokens, logprobs, None, quantiles)
    line = prediction(answer, TOKENIZER, config, (1,))
    expected = [readings.expected_iou(np.array(bins[0]), quantiles[:4])]
    expected.append(0.8 * readings.expected_iou(np.array(bins[1]), quantiles[5:9]))
    np.testing.assert_allclose(line["box_scores"], expected, atol=1e-6)
    assert line["box_scores"][0] > 0.9 > 0.6 > line["box_scores"][1]
    # The letterbox has the tall image in half of its width: a bin there is twice as much of it.
    sharp = np.sqrt(np.var(np.arange(16)) + 1 / 12) / 1024
    np.testing.assert_allclose(line["box_spreads"][0], [2 * sharp, sharp] * 2, atol=1e-5)
    assert CODECS["paligemma"].y_first


@cases("keys, codec, message")
def test_what_does_not_go_together_is_refused(keys, codec, message):
    with pytest.raises(UserError, match=message):
        read_decoding(DecodingConfig(**keys), TOKENIZER, codec)


def test_the_box_nearest_to_the_others_is_chosen_and_no_bin_that_is_not_allowed():
    """Of three beside each other the one in the middle; all overlap themselves alike."""
    row = jnp.asarray([[[100, 100, 200, 200], [150, 100, 250, 200], [200, 100, 300, 200]]])
    assert readings.central_boxes(row).tolist() == [1]
    # Smoothed, the most is in the middle of two bins, of which none is allowed
    probability = jnp.zeros((1, _BINS)).at[0, jnp.array([100, 110])].set(jnp.array([0.51, 0.49]))
    assert readings.smoothed_bins(probability).tolist() == [100]
    everywhere = probability * 0.9 + 0.1 / _BINS
    assert 103 < readings.smoothed_bins(everywhere)[0] < 107
