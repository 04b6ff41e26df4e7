"""Questions by sampling: options that tell nothing, contents in the paper's shares.

Questions are asked in sets. Those of a set have the same options and each another right one (of
two multi-choice questions, what is right in one is wrong in the other), so that neither an option's
words nor their number, the region, or the finding that is named tell which are right.
"""

import collections
import dataclasses
import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from cxrjax.papers.gemex.construct.questions import CONTENT_TYPES, QUESTIONS_PER_REPORT
from cxrjax.papers.gemex.statistics import PAPER

_TRIED = 150  # questions that might complete a set, of which the first that does is taken
# How many options are right in one and the other question of a pair, by how often that is so of
# random options: four have 4 + 4 sets of one or three and 6 of two.
_NUMBERS = {(1, 3): 8, (2, 2): 6, (1, 2): 3}
# By how much the share of a content may be above the paper's; more of the first few questions.
_ABOVE = {"abnormality": 0.02, "disease": 0.015, "others": 0.01}
_FIRST = 2
_PRINTED = {
    name: float(PAPER[f"train_content_percent/{name}"].value) / 100  # type: ignore[arg-type]
    for name in CONTENT_TYPES
    if f"train_content_percent/{name}" in PAPER
}
# Figure 6 has no readable share of the others, which have the rest together.
_SHARES = _PRINTED | {"others": 1 - sum(_PRINTED.values())}


class Option(NamedTuple):
    """Words to choose, and the finding or region that they are about."""

    text: str
    about: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Offer:
    """A question that a report can answer, its options not chosen yet."""

    kind: str
    content: str
    asked: str  # name of its phrasings
    # (right options, wrong ones) -> reason and regions.
    tell: Callable[[Sequence[Option], Sequence[Option]], tuple[str, Sequence[str]]]
    # `right`, `wrong`: all options that hold and do not; of closed questions yes or no. An open one
    # has some only where its answer could be guessed by the region.
    right: Sequence[Option] = ()
    wrong: Sequence[Option] = ()
    # Whether what two options are about cannot stand side by side.
    clash: Callable[[str, str], bool] = lambda one, other: False
    # `about`, `region`: the finding and the region that the question names.
    about: str | None = None
    region: str | None = None
    answer: str = ""  # of an open question
    report: int = 0  # number of the report

    @property
    def group(self) -> Hashable:
        """Kind, phrasings and names, by which options are balanced."""
        return self.kind, self.asked, self.about, self.region


class Chosen(NamedTuple):
    """A question with its right and its wrong options; those of a set have one phrasing."""

    offer: Offer
    right: Sequence[Option]
    wrong: Sequence[Option]
    phrasing: int = 0


Set = list[Chosen]


def choose(offers: Sequence[Offer], content_of: Callable[[Chosen], str], seed: str) -> Set:
    """Chooses questions of a batch of reports, at most `QUESTIONS_PER_REPORT` of each type."""
    rng = random.Random(seed)
    groups: dict[Hashable, list[Offer]] = collections.defaultdict(list)
    for offer in rng.sample(offers, len(offers)):
        groups[offer.group].append(offer)
    sets: list[Set] = []
    for group in groups.values():
        if group[0].kind == "multi_choice":
            sets += _pairs(group, rng)
        elif group[0].right:
            sets += _sets(group, *((3, 4) if group[0].kind == "single_choice" else (2, 2)))
        else:
            sets += [[Chosen(offer, (), ())] for offer in group]
    rng.shuffle(sets)
    numbers = [rng.randrange(1 << 16) for _ in sets]
    phrased = [
        [one._replace(phrasing=number) for one in some]
        for number, some in zip(numbers, sets, strict=True)
    ]
    return _in_shares(phrased, content_of)


def _sets(offers: Sequence[Offer], least: int, most: int) -> Iterator[Set]:
    """Yields sets of questions, each with another right option of the same ones."""
    waiting: dict[Option, list[Offer]] = collections.defaultdict(list)
    for offer in offers:
        waiting[offer.right[0]].append(offer)
    while waiting:
        word = max(waiting, key=lambda one: len(waiting[one]))
        members = {word: waiting[word].pop()}
        frequent = sorted(members[word].wrong, key=lambda one: -len(waiting.get(one, ())))
        for other in frequent:
            tried = waiting.get(other, ())[: -_TRIED - 1 : -1]
            fits = (offer for offer in tried if _fit(members, other, offer))
            if len(members) < most and (found := next(fits, None)):
                members[other] = found
        if len(members) >= least:
            for other, offer in members.items():
                if other != word:
                    waiting[other].remove(offer)
            yield [
                Chosen(offer, [right], [one for one in members if one != right])
                for right, offer in members.items()
            ]
        waiting = {one: left for one, left in waiting.items() if left}


def _fit(members: dict[Option, Offer], word: Option, offer: Offer) -> bool:
    """Returns whether a question can join a set with another right option."""
    return (
        all(other.report != offer.report and word in other.wrong for other in members.values())
        and all(one in offer.wrong for one in members)
        and not any(
            each.clash(one.about, word.about)
            for each in (offer, *members.values())
            for one in members
        )
    )


def _pairs(offers: Sequence[Offer], rng: random.Random) -> Iterator[Set]:
    """Yields pairs of questions with the same options, those right in one wrong in the other."""
    counts = collections.Counter[tuple[int, int]]()
    # How many of a pair's options are offered more often than the one that is right alone, evenly:
    # a report of one finding has a common one, which would be the best guess.
    offered, ranks = collections.Counter[Option](), collections.Counter[int]()
    left = list(offers)
    while left:
        one = left.pop()
        # Three options only where four cannot be had. Pairs of one and three are easier to find
        # than of two and two; with more of them one right option would be the best guess.
        often = counts[1, 3] / _NUMBERS[1, 3] > (counts[2, 2] + 1) / _NUMBERS[2, 2]
        usable = (n for n in _NUMBERS if not often or n != (1, 3))
        wanted = sorted(usable, key=lambda n: (-sum(n), counts[n] / _NUMBERS[n]))
        tried = [other for other in left[: -_TRIED - 1 : -1] if other.report != one.report]
        for numbers, other in itertools.product(wanted, tried):
            if found := _opposed(one, other, numbers, rng):
                ours, theirs = found
                alone, *others = sorted(found, key=len)
                rank = sum(offered[each] > offered[alone[0]] for each in others[0])
                if len(alone) == 1 and ranks[rank] > min(ranks[k] for k in range(3)) + 1:
                    continue
                ranks[rank] += len(alone) == 1
                offered.update([*ours, *theirs])
                counts[numbers] += 1
                left.remove(other)
                yield [Chosen(one, ours, theirs), Chosen(other, theirs, ours)]
                break


def _opposed(
    one: Offer, other: Offer, numbers: tuple[int, int], rng: random.Random
) -> tuple[list[Option], list[Option]] | None:
    """Returns options that hold in the first question alone, and in the second alone."""
    ours = [option for option in one.right if option in other.wrong]
    theirs = [option for option in other.right if option in one.wrong]
    # Which one is right alone is left to chance, or it would be the most frequent one.
    ours, theirs = rng.sample(ours, len(ours)), rng.sample(theirs, len(theirs))
    for number in rng.sample(numbers, 2):
        chosen: list[Option] = []
        for options, most in ((ours, number), (theirs, sum(numbers))):
            for option in options:
                clash = any(
                    each.clash(option.about, o.about) for each in (one, other) for o in chosen
                )
                if len(chosen) < most and not clash:
                    chosen.append(option)
            if len(chosen) < most:
                break
        else:
            return chosen[:number], chosen[number:]
    return None


def _in_shares(sets: Sequence[Set], content_of: Callable[[Chosen], str]) -> Set:
    """Chooses sets so that contents have their shares, as long as reports may have more."""
    by_content: dict[str, list[tuple[Set, collections.Counter[str]]]] = {}
    for some in sets:
        told = collections.Counter(
            name if name in _PRINTED else "others" for name in map(content_of, some)
        )
        by_content.setdefault(told.most_common(1)[0][0], []).append((some, told))
    asked = collections.Counter[tuple[int, Hashable]]()
    counted = collections.Counter[str]()
    chosen: Set = []
    while by_content:
        total = counted.total()
        name = min(by_content, key=lambda one: counted[one] - _SHARES[one] * total)
        some, told = by_content[name].pop()
        if not by_content[name]:
            del by_content[name]
        after = counted + told
        fits = all(
            after[one] - _FIRST <= (_SHARES[one] + _ABOVE[one]) * after.total() for one in told
        )
        kind = some[0].offer.kind
        free = all(
            asked[one.offer.report, kind] < QUESTIONS_PER_REPORT[kind]
            and not asked[one.offer.report, one.offer.group]
            for one in some
        )
        if fits and free:
            counted = after
            asked.update((o.report, what) for o, *_ in some for what in (kind, o.group))
            chosen += some
        elif free and len(by_content) == 1:
            break
    return chosen
