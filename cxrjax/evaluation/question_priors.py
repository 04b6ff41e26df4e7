"""Answers of who knows the question and other images' answers, and sees no image.

Answers of an image's own questions are never used for it, so that the priors may be made from the
references themselves.
"""

import collections
import functools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.lexicon import load_english, plain_text

if TYPE_CHECKING:
    from cxrjax.evaluation.baselines import BlindQuestion

# Texts of a group among which the one most like the others is searched.
_MOST_TEXTS = 300


class _Votes:
    """Counts of what other images say in each group."""

    def __init__(self) -> None:
        self._all: dict[Hashable, collections.Counter[Any]] = collections.defaultdict(
            collections.Counter
        )
        self._own: dict[Hashable, collections.Counter[Any]] = collections.defaultdict(
            collections.Counter
        )

    def add(self, group: Hashable, image: str, said: Any) -> None:
        self._all[group][said] += 1
        self._own[group, image][said] += 1

    def of_others(self, group: Hashable, image: str) -> collections.Counter[Any]:
        own = self._own.get((group, image))
        counted = self._all.get(group, collections.Counter())
        return counted - own if own else counted


class QuestionPriors:
    """The most frequent answer, options, number of boxes and report of other images.

    Args:
        known: questions with their answers.
    """

    def __init__(self, known: Sequence["BlindQuestion"]) -> None:
        self._said, self._right, self._boxes = _Votes(), _Votes(), _Votes()
        self._texts: dict[Hashable, str] = {}
        for one in known:
            for group in _groups(one):
                self._said.add(group, one.image_id, one.said)
                self._texts.setdefault((group, one.said), one.text)
                self._boxes.add(group, one.image_id, len(one.boxes) > 0)
            for letter, words in _options(one):
                self._right.add((one.kind, words), one.image_id, letter in one.key)
        self._numbers, self._sums = _Votes(), dict[Hashable, np.ndarray]()
        self._came: dict[Hashable, dict[str, int]] = collections.defaultdict(dict)
        for order, one in enumerate(known):
            place, number = named_place(one), len(one.boxes)
            in_order = one.boxes[np.argsort(one.boxes[:, 0])]
            self._came[place, number].setdefault(one.image_id, order)
            self._numbers.add(place, one.image_id, number)
            for key in [(place, number), (place, number, one.image_id)]:
                self._sums[key] = self._sums.get(key, 0) + in_order
        self._reports = _Medoids([one for one in known if is_report(one)])

    def answer(self, one: "BlindQuestion") -> str:
        """Returns the most frequent answer to the question in these words, else to its kind."""
        if is_report(one):
            return self._reports.text(one)
        if one.choices:
            return self.options(one)
        for group in _groups(one):
            if counted := self._said.of_others(group, one.image_id):
                return self._texts[group, counted.most_common(1)[0][0]]
        return ""

    def options(self, one: "BlindQuestion") -> str:
        """Returns the options whose words are right most often where they are offered."""
        shares: dict[str, float] = {}
        for letter, words in _options(one):
            votes = self._right.of_others((one.kind, words), one.image_id)
            # One of four where nobody was offered it.
            shares[letter] = (votes[True] + 0.25) / (votes.total() + 1)
        best = max(shares, key=lambda letter: shares[letter])
        if one.kind != "multi_choice":
            return best
        return str([letter for letter, share in shares.items() if share > 0.5] or [best])

    def shows_box(self, one: "BlindQuestion") -> bool:
        """Returns whether most answers to the question have boxes."""
        for group in _groups(one):
            if counted := self._boxes.of_others(group, one.image_id):
                return counted[True] >= counted[False]
        return False

    def mean_boxes(self, one: "BlindQuestion") -> np.ndarray:
        """Returns the mean boxes of what the question names, by how many there mostly are.

        Of equally frequent numbers the one that came first.
        """
        place = named_place(one)

        def frequency(number: int) -> tuple[int, int]:
            others = (n for image, n in self._came[place, number].items() if image != one.image_id)
            return counted[number], -next(others)

        counted = self._numbers.of_others(place, one.image_id)
        most = max(counted, key=frequency) if counted else 0
        own = self._sums.get((place, most, one.image_id), 0)
        return (self._sums[place, most] - own) / counted[most] if most else np.zeros((0, 4))


def is_report(one: "BlindQuestion") -> bool:
    """Returns whether a question asks for a text of which nothing is known beforehand."""
    return not (one.choices or one.closed or one.finding or one.labels or len(one.boxes))


def named_place(one: "BlindQuestion") -> str:
    """Returns the region that a question names, with the finding; else its finding or kind."""
    region = _region(one.question)
    return f"{one.finding or ''}@{region}" if region else one.finding or one.kind


@functools.lru_cache(maxsize=1 << 12)
def _region(question: str) -> str:
    plain = plain_text(question)
    tokens = load_english().read_tokens(plain, 0, len(plain)).tokens
    found = load_definitions().region_names.find(tokens)
    return max((match.payload for match in found), key=len, default="")


def _groups(one: "BlindQuestion") -> list[Hashable]:
    words = one.question.lower().strip()
    return [(one.kind, words), (one.kind, one.finding), one.kind]


def _options(one: "BlindQuestion") -> list[tuple[str, str]]:
    pairs = (choice.partition(":") for choice in one.choices)
    return [(letter.strip(), words.strip().lower()) for letter, _, words in pairs]


class _Medoids:
    """Reports of each kind in the order of the words that they share with the others."""

    def __init__(self, reports: Sequence["BlindQuestion"]) -> None:
        groups: dict[Hashable, list[BlindQuestion]] = collections.defaultdict(list)
        for one in reports:
            groups[one.kind].append(one)
        self._best: dict[Hashable, list[BlindQuestion]] = {}
        for kind, found in groups.items():
            every = np.linspace(0, len(found) - 1, min(len(found), _MOST_TEXTS)).astype(int)
            some = [found[n] for n in every]
            likeness = word_likeness([one.text for one in some]).sum(axis=0)
            self._best[kind] = [some[n] for n in np.argsort(-likeness, kind="stable")]

    def text(self, one: "BlindQuestion") -> str:
        others = (o.text for o in self._best.get(one.kind, ()) if o.image_id != one.image_id)
        return next(others, "")


def word_likeness(texts: Sequence[str]) -> np.ndarray:
    """F1 of the words of each two texts."""
    counted = [collections.Counter(text.lower().split()) for text in texts]
    return np.array(
        [
            [
                2 * (a & b).total() / max(a.total() + b.total(), 1) if a is not b else 0
                for b in counted
            ]
            for a in counted
        ]
    )
