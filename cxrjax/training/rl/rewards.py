"""Rewards of answers for reinforcement learning: for boxes, statements and form.

The reference is the record's own answer, read in the same way as the model's, so that nothing but
the two texts is needed: with other texts of the same convention IoU is the same in every frame.

iou      `mean_iou`: the IoUs of the best one-to-one matching, summed and divided by the number of
         true or of predicted boxes, whichever is larger: what is missed and what is too much
         counts 0. `f1`: F1 of such matchings, mean over `THRESHOLDS`. Where neither has a box both
         are 1, where one of them has none 0: of a finding that is absent, to say nothing is right.
         A box with swapped corners has no area.
answer   1 where yes or no, as the reader of radiology language reads it, is the reference's, and
         where the reference opens by neither ("2 areas", "Left.", "Cardiomegaly at ...") what is
         found beside what was asked about, the number where one is asked for and the place that
         the reference names are too; where the reference decides nothing, where the words beside
         the boxes are the same.
format   1 where the answer ends in its slots and every box in it is written exactly.

The reward is the mean of the parts, weighted (group `rl`), or what a user's function returns
(`rl.reward`); the parts are reported either way.
"""

import dataclasses
import functools
import importlib
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from cxrjax import boxes
from cxrjax.codecs import Codec
from cxrjax.errors import UserError, first_line
from cxrjax.radiology_text.answer_details import SaidPlace, count_said, place_said
from cxrjax.radiology_text.answers import AskedFor, EnglishReader

# Of the reward `f1`: the benchmark's, and two at which its boxes are good.
THRESHOLDS = (0.3, 0.5, 0.75)
# Kinds of `rl.kind` that learn from the best and the worst answer to a question alone.
PREFERENCES = ("dpo", "ipo", "hinge")
# Standard deviation of rewards up to which a group tells nothing: rounding.
DEAD = 1e-6
# Side of the frame in which boxes in pixels are read; larger than any radiograph, to clip nothing.
_FRAME = 8192
_BOX = re.compile(r"(<loc\d{4}>|<loc_[^>]*>)+")


# (question, reference, answer, the reference's boxes, the answer's) -> a finite number.
RewardFunction = Callable[[str, str, str, np.ndarray, np.ndarray], float]


@dataclasses.dataclass(frozen=True)
class Reward:
    """The reward of one answer, and what it was made of."""

    total: float  # from 0 to 1; of a user's function, its number
    # `iou`, `answer`, `format`: the parts, from 0 to 1.
    iou: float
    answer: float
    format: float
    # `missed`, `spurious`: boxes of the reference, and of the answer, without a partner that
    # overlaps them by 0.3 or more.
    missed: int
    spurious: int
    # `boxes`, `true_boxes`: of the answer, and of the reference.
    boxes: int
    true_boxes: int


@dataclasses.dataclass(frozen=True)
class RewardWeights:
    """Weights of the parts, and which reward boxes get (`mean_iou` or `f1`)."""

    iou: float
    answer: float
    format: float
    of_boxes: str


def matched_ious(
    predicted: Float[np.ndarray, "n 4"], truth: Float[np.ndarray, "m 4"]
) -> Float[np.ndarray, " pairs"]:
    """IoUs of the one-to-one matching with the largest sum; min(n, m) of them."""
    if not len(predicted) or not len(truth):
        return np.zeros(0)
    overlap = np.asarray(boxes.iou(predicted[:, None], truth[None], swapped="empty"))
    return overlap[linear_sum_assignment(overlap, maximize=True)]


def box_reward(
    predicted: Float[np.ndarray, "n 4"], truth: Float[np.ndarray, "m 4"], kind: str
) -> float:
    """The reward of an answer's boxes, 0 to 1; `kind` is `mean_iou` or `f1`."""
    if not len(predicted) and not len(truth):
        return 1.0
    found = matched_ious(predicted, truth)
    if kind == "mean_iou":
        return float(found.sum()) / max(len(predicted), len(truth))
    # The matching of the largest sum may have one hit less than the one with most hits.
    hits = [
        len(matched_at(predicted, truth, threshold)) if len(found) else 0
        for threshold in THRESHOLDS
    ]
    return float(np.mean(hits)) * 2 / (len(predicted) + len(truth))


def matched_at(
    predicted: Float[np.ndarray, "n 4"], truth: Float[np.ndarray, "m 4"], threshold: float
) -> Float[np.ndarray, " pairs"]:
    """IoUs of the matching with the most pairs that overlap by `threshold` or more."""
    if not len(predicted) or not len(truth):
        return np.zeros(0)
    overlap = np.asarray(boxes.iou(predicted[:, None], truth[None], swapped="empty"))
    found = overlap[linear_sum_assignment(overlap >= threshold, maximize=True)]
    return found[found >= threshold]


def reward_function(name: str) -> RewardFunction:
    """Imports the MODULE:FUNCTION of `rl.reward`; raises UserError if there is none."""
    where, (module, _, function) = f"rl.reward={name!r}", name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise UserError(f"{where}: expected MODULE:FUNCTION, such as 'my_rewards:tight_boxes'")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever the user's module raises
        raise UserError(
            f"{where}: {module} cannot be imported ({type(error).__name__}: {first_line(error)}); "
            "add its folder to PYTHONPATH"
        ) from None
    if not callable(reward := getattr(found, function, None)):
        names = ", ".join(n for n, value in vars(found).items() if callable(value) and n[0] != "_")
        raise UserError(f"{where}: {module} has no function {function!r}; it has {names or 'none'}")
    return reward  # type: ignore[no-any-return]


class Rewarder:
    """Rewards answers in one convention of boxes; `function` replaces the mean of the parts."""

    def __init__(
        self, codec: Codec, weights: RewardWeights, function: RewardFunction | None = None
    ) -> None:
        self._codec = codec
        self._weights = weights
        self._function = function
        self._reader = EnglishReader()
        self._read = functools.lru_cache(maxsize=4096)(self._boxes_of)

    def __call__(self, question: str, reference: str, answer: str, *, ended: bool) -> Reward:
        """The reward of an answer.

        Args:
            question: as the model was asked.
            reference, answer: without the token that ends them.
            ended: whether the answer came to its end, rather than to that of its slots.
        """
        truth, _ = self._read(reference)
        predicted, exact = self._read(answer)
        weights = self._weights
        parts = (
            box_reward(predicted, truth, weights.of_boxes),
            float(self._says_the_same(question, reference, answer)),
            float(exact and ended),
        )
        by = (weights.iou, weights.answer, weights.format)
        hits = len(matched_at(predicted, truth, THRESHOLDS[0]))
        total = float(np.dot(parts, by)) / max(sum(by), DEAD)
        if self._function is not None:  # with copies, as its boxes are cached
            given = question, reference, answer, truth.copy(), predicted.copy()
            total = _number(self._function(*given), answer)
        return Reward(
            total,
            *parts,
            missed=len(truth) - hits,
            spurious=len(predicted) - hits,
            boxes=len(predicted),
            true_boxes=len(truth),
        )

    def _boxes_of(self, text: str) -> tuple[Float[np.ndarray, "n 4"], bool]:
        """The boxes as they are written, and whether each is written exactly."""
        read = self._codec.read_as_written(text, _FRAME, _FRAME)
        found = np.array([span.as_written for span in read.spans], np.float64).reshape(-1, 4)
        ordered = not any(any(span.swapped) for span in read.spans)
        return found, read.parse == "ok" and not read.repaired and ordered

    def _says_the_same(self, question: str, reference: str, answer: str) -> bool:
        truth, said = _words(reference), _words(answer)
        if truth == said:
            return True
        outcome = self._outcome(question, truth, reference)
        if outcome not in ("yes", "no") or self._outcome(question, said, answer) != outcome:
            return False
        asked = self._reader.asked(question)
        if outcome == "no" or self._reader.opening(truth, asked) is not None:
            return True
        (found, place, number), (also, there, counted) = (
            self._content(words, asked) for words in (truth, said)
        )
        is_placed = bool(place.sides or place.regions)
        return found == also and number == counted and (place == there or not is_placed)

    def _content(self, words: str, asked: AskedFor) -> tuple[set[str], SaidPlace, int | None]:
        """Findings beside those asked about, the place, and the number where one is asked for."""
        assertions = self._reader.read_about(words, asked).assertions
        found = {one.finding for one in assertions if one.status == "present"}
        others = words
        for first, last in (one.span for one in assertions):  # "lung opacity" names no place
            others = others[:first] + " " * (last - first) + others[last:]
        place = place_said(others, np.zeros((0, 4)))
        return found - set(asked.findings), place, count_said(words) if asked.counts else None

    def _outcome(self, question: str, words: str, text: str) -> str | None:
        return self._reader.read(words, question, len(self._read(text)[0]) > 0).outcome


def _number(value: Any, answer: str) -> float:
    """Checks the result of a user's reward."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"rl.reward: {value!r} for the answer {answer!r}; expected a finite number")
    return number


def _words(text: str) -> str:
    """A text beside its boxes in location tokens, in lower case, spaces and end mark apart."""
    return " ".join(_BOX.sub(" ", text).lower().split()).rstrip(" .")


def advantages(
    rewards: Float[np.ndarray, "*batch group"], kind: str
) -> Float[np.ndarray, "*batch group"]:
    """Advantage of each answer over the others to the same question.

    Args:
        kind: `grpo`: less the group's mean, divided by its standard deviation (arXiv 2402.03300);
            `grpo_no_std`: not divided (arXiv 2503.20783); `rloo`: less the mean of the others
            (arXiv 2402.14740); `best_of_n`: 1 for the best answer, the first of several, and 0 for
            the others, which is supervised training on the best of n.

    Returns:
        0 throughout where all of a group are worth the same.
    """
    middle = rewards.mean(-1, keepdims=True)
    away = rewards - middle
    spread = rewards.std(-1, keepdims=True)
    alive = spread > DEAD
    if kind == "grpo":
        away = away / np.where(alive, spread, 1)
    elif kind == "rloo":
        away = away * rewards.shape[-1] / max(rewards.shape[-1] - 1, 1)
    elif kind == "best_of_n":
        away = np.eye(rewards.shape[-1])[rewards.argmax(-1)]
    return np.where(alive, away, 0.0)


def preference_slopes(
    margins: Float[np.ndarray, "*batch"], kind: str, beta: float
) -> Float[np.ndarray, "*batch"]:
    """Negative slope of a pair's loss by its margin; the gradient of a preference loss is this
    multiple of the policy gradient, for the better answer and, negated, for the worse.

    Args:
        margins: log(p / p_ref) of the better answer less that of the worse, over all its tokens.
        kind: `dpo`: -log sigmoid(beta margin) (arXiv 2305.18290); `ipo`: (margin - 1 / (2 beta))^2
            (arXiv 2310.12036); `hinge`: max(0, 1 - beta margin) (arXiv 2305.10425).
    """
    if kind == "dpo":
        return beta / (1 + np.exp(np.clip(beta * margins, -50, 50)))
    if kind == "ipo":
        return 2 * (1 / (2 * beta) - margins)
    return beta * (beta * margins < 1)


def preference_losses(
    margins: Float[np.ndarray, "*batch"], kind: str, beta: float
) -> Float[np.ndarray, "*batch"]:
    """The losses whose slopes `preference_slopes` gives."""
    if kind == "dpo":
        return np.logaddexp(0, -beta * margins)
    if kind == "ipo":
        return np.square(margins - 1 / (2 * beta))
    return np.maximum(0, 1 - beta * margins)
