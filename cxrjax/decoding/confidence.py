"""Confidence of a model in the decision of its answer, and separately in its boxes.

The probability of a whole answer is a product over all of its tokens, and each coordinate is one
choice of a thousand: such a product tells whether there are boxes, and nothing else. So it is taken
apart:

* the decision: of an answer that opens with yes or no, that word in all of its spellings, against
  all else that could stand there; of an answer that is an option's letter, that letter likewise; of
  any other answer, the words of its first sentence (the findings that it names, the words that say
  that there is none), multiplied; how many boxes there are is no part of it;
* the coordinates: the tokens in which its boxes are written, multiplied.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cxrjax.decoding.box_readings import expected_iou, spreads
from cxrjax.input_pipeline.tokenizer import Tokenizer

# Their probability is noted at every step, beside that of the token that is chosen.
ANSWER_WORDS = ("yes", "no", "a", "b", "c", "d")
# Markup and words that announce an answer and decide nothing.
_BEFORE = re.compile(r"(?:\W|<\w+>|(?:final |the )*answer(?: is)?\s*:)*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n|;|<reason>")
_JSON = ("[", "{", "`")
_JOINS = ("", "and")
# What follows the word where it is the whole answer: "no effusion" is not "no", nor "A, C" "A".
_AFTER_YES_NO = re.compile(r"(?!\s*\w)")
_AFTER_OPTION = re.compile(r"[\s'\"\])}*]*(?:[.:]|$)")


def answer_word_tokens(tokenizer: Tokenizer) -> Int[np.ndarray, "words spellings"]:
    """The tokens that are one of `ANSWER_WORDS`, in any case, with or without a space before it.

    Filled up with -1.
    """
    spellings: dict[str, list[int]] = {word: [] for word in ANSWER_WORDS}
    for token in range(tokenizer.vocab_size):
        word = tokenizer.piece_of(token).strip("\u2581 ").lower()
        if word in spellings:
            spellings[word].append(token)
    table = np.full((len(spellings), max(map(len, spellings.values()))), -1, np.int32)
    for row, tokens in zip(table, spellings.values(), strict=True):
        row[: len(tokens)] = tokens
    return table


@dataclasses.dataclass(frozen=True)
class Spelled:
    """An answer as the text of its tokens, with what the model gave each of them."""

    texts: Sequence[str]  # they make the answer when set side by side; the token that ends it is ""
    logprobs: Float[np.ndarray, " tokens"]  # natural log-probability of each
    # Of each of `ANSWER_WORDS`, in any spelling, in each token's place; None where it was not
    # noted.
    words: Float[np.ndarray, "tokens words"] | None = None
    # Of the distribution that each location token was taken from, as of `Generation`; None where
    # they were not noted.
    quantiles: Int[np.ndarray, "tokens levels"] | None = None

    @property
    def ends(self) -> Int[np.ndarray, " tokens"]:
        """Index of the character after each token's last."""
        return np.cumsum([len(text) for text in self.texts], dtype=np.int64)

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self.texts)

    def within(self, start: int, end: int) -> "Spelled":
        """The tokens that have some of these characters, and what of them these are.

        What ends the whole text ends its last part too.
        """
        ends = self.ends
        starts = np.concatenate([[0], ends[:-1]])
        kept = (starts < end) & (ends > start) | (starts == ends) & (ends == end)
        cuts = zip(starts[kept].clip(start), ends[kept].clip(max=end), strict=True)
        texts = [self.text[a:b] for a, b in cuts]
        words, quantiles = (
            None if noted is None else noted[kept] for noted in (self.words, self.quantiles)
        )
        return Spelled(texts, self.logprobs[kept], words, quantiles)


def spell(
    tokens: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    logprobs: Float[np.ndarray, " tokens"],
    words: Float[np.ndarray, "tokens words"] | None = None,
    quantiles: Int[np.ndarray, "tokens levels"] | None = None,
) -> Spelled:
    """An answer in texts of its tokens.

    Args:
        tokens: without the one that ends the answer.
        decode: from tokens to text.
        logprobs, words, quantiles: of the tokens and, where there is one, of that which ends the
            answer.
    """
    ends, text = [0], decode(tokens)
    for count in range(1, len(tokens) + 1):
        so_far = decode(tokens[:count])
        # Half a character is shown as another one: it belongs to the token that makes it whole.
        ends.append(len(so_far) if text.startswith(so_far) else ends[-1])
    ends += [len(text)] * (len(logprobs) - len(tokens))
    texts = [text[start:end] for start, end in itertools.pairwise(ends)]
    return Spelled(texts, logprobs, words, quantiles)


@dataclasses.dataclass(frozen=True)
class AnswerConfidence:
    """Natural log-probabilities: of what is decided, and of all coordinates.

    None where nothing was written, or no box.
    """

    decision: float | None = None
    coordinates: float | None = None

    def fields(self) -> dict[str, float | None]:
        """The fields of a line of predictions."""
        return {
            "decision_logprob": _rounded(self.decision),
            "coordinate_logprob": _rounded(self.coordinates),
        }


def answer_confidence(spelled: Spelled, places: Sequence[tuple[int, int]]) -> AnswerConfidence:
    """Takes an answer's probability apart.

    Args:
        places: the characters, from and to, of which boxes were read.
    """
    text, ends = spelled.text, spelled.ends
    starts = np.concatenate([[0], ends[:-1]])
    drawn = np.zeros(len(ends), bool)
    for start, end in places:
        drawn |= (starts < end) & (ends > start)
    coordinates = float(spelled.logprobs[drawn].sum()) if drawn.any() else None
    opening = _BEFORE.match(text)
    begin = opening.end() if opening else 0
    stop = None if text.lstrip()[:1] in _JSON else _SENTENCE_END.search(text, begin)
    # The token that ends an answer without a full stop says that no more is named: it counts.
    words = ~drawn & (starts < (stop.end() if stop else len(text) + 1))
    first_box = min((start for start, _ in places), default=len(text))
    # Beyond the first box, what only joins boxes or ends their list says how many there are.
    for place in np.flatnonzero(words & (starts >= first_box) & (len(places) > 0)).tolist():
        words[place] = re.sub(r"\W", "", spelled.texts[place]).lower() not in _JOINS
    if not words.any():
        return AnswerConfidence(None, coordinates)
    word = _answer_word(spelled, int(np.searchsorted(ends, begin, side="right")))
    decision = float(spelled.logprobs[words].sum()) if word is None else word
    return AnswerConfidence(min(decision, 0.0), coordinates)


def sentence_probabilities(spelled: Spelled, places: Sequence[tuple[int, int]]) -> list[float]:
    """Returns the probability of each sentence's words, boxes left out; `places` as above."""
    ends = spelled.ends
    starts = np.concatenate([[0], ends[:-1]])
    words = np.array([not text.isspace() for text in spelled.texts])
    for start, end in places:
        words &= (starts >= end) | (ends <= start)
    stops = [found.end() for found in _SENTENCE_END.finditer(spelled.text)]
    of = np.searchsorted(stops, starts, side="right")
    own = [spelled.logprobs[words & (of == n) & (ends > starts)] for n in range(len(stops) + 1)]
    return [round(math.exp(min(float(one.sum()), 0.0)), 6) for one in own if len(one)]


# A box's coordinates, and what else may stand in it and have digits.
_DIGITS = re.compile(
    r"box_2d|label[\"']?\s{0,9}:\s{0,9}[\"'][^\"']{0,200}|(?P<number>[0-9]+)", re.IGNORECASE
)
_LOCATION = re.compile("<loc([0-9]{4})>")


class BoxConfidence(NamedTuple):
    """Confidence of the model in a box."""

    score: float  # 0 to 1, what is to be expected of its IoU with a true box
    # Standard deviation of each coordinate, in bins, in the order of its tokens; None of a box that
    # is not written in location tokens.
    spread: Float[np.ndarray, "4"] | None


def box_confidences(spelled: Spelled, places: Sequence[tuple[int, int]]) -> list[BoxConfidence]:
    """The model's confidence in each box, in order.

    The IoU that it expects of the box (`expected_iou`), times the probability that there is one:
    the least of the words before it, where it was decided that there is a box, and another one.
    (The product of all words would rank answers by their length.) Of a box in digits, whose
    distribution is not noted, the geometric mean of their probabilities stands for the IoU.

    Args:
        places: the characters, from and to, of which boxes were read.
    """
    if not places:
        return []
    ends = spelled.ends
    starts = np.concatenate([[0], ends[:-1]])
    numbers = []
    for start, end in places:
        own = np.zeros(len(ends), bool)
        for digits in _DIGITS.finditer(spelled.text, start, end):
            if digits["number"]:
                own |= (starts < digits.end()) & (ends > digits.start())
        numbers.append(np.flatnonzero(own))
    words = np.ones(len(ends), bool)
    words[np.concatenate(numbers)] = False
    least = np.minimum.accumulate(np.where(words, spelled.logprobs, 0.0))
    there = [math.exp(min(float(least[own[0]]), 0.0)) if len(own) else 0.0 for own in numbers]
    return [
        _box_confidence(spelled, own, is_there) if len(own) else BoxConfidence(0.0, None)
        for own, is_there in zip(numbers, there, strict=True)
    ]


def _box_confidence(
    spelled: Spelled, own: Int[np.ndarray, " tokens"], is_there: float
) -> BoxConfidence:
    """The confidence in the box that these tokens write."""
    bins = [_LOCATION.fullmatch(spelled.texts[token]) for token in own]
    if spelled.quantiles is None or len(own) != 4 or not all(bins):
        mean = math.exp(min(float(spelled.logprobs[own].mean()), 0.0))
        return BoxConfidence(is_there * mean, None)
    quantiles = spelled.quantiles[own]
    placed = expected_iou(np.array([int(found[1]) for found in bins if found]), quantiles)
    return BoxConfidence(is_there * placed, spreads(quantiles))


def _answer_word(spelled: Spelled, place: int) -> float | None:
    """The log-probability of the word that is the answer; None where the one here is not."""
    if spelled.words is None or place >= len(spelled.texts):
        return None
    word = re.sub(r"\W", "", spelled.texts[place]).lower()
    if word not in ANSWER_WORDS:
        return None
    after = _AFTER_YES_NO if word in ("yes", "no") else _AFTER_OPTION
    if not after.match("".join(spelled.texts[place + 1 :])):
        return None
    return float(spelled.words[place, ANSWER_WORDS.index(word)])


def _rounded(logprob: float | None) -> float | None:
    return None if logprob is None or not math.isfinite(logprob) else round(logprob, 6)
