"""Single- and multi-choice questions out of what a report states.

Options exclude one another: a finding that is not there is said to be absent, or is not mentioned
and resembles nothing that is; regions do not overlap. Their order is random.
"""

import random
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.papers.gemex.construct.facts import SentenceFact, words_of
from cxrjax.papers.gemex.construct.pool import Asker, content_of, with_article
from cxrjax.papers.gemex.construct.questions import Draft
from cxrjax.papers.gemex.construct.refine import (
    has_one_place,
    is_many,
    is_many_of,
    severity_word,
    spoken,
    write_facts,
)
from cxrjax.papers.gemex.dialogue import LETTERS
from cxrjax.papers.sources.regions import load_regions
from cxrjax.radiology_text.english import capital, load_vocabulary

_OPTIONS = 4
_DEGREES = {False: ("mild", "moderate", "severe"), True: ("small", "moderate", "large")}
_ALL = "All of the above"


def single_choice(asker: Asker) -> Iterator[Draft]:
    """Yields every single-choice question that the report can answer."""
    for fact in asker.pool.present.values():
        yield from _about_present(asker, fact)
    there = [words_of(name).noun for name in asker.pool.present]
    for name, fact in asker.pool.absent.items():
        wrong = asker.rng.sample(there, min(len(there), _OPTIONS - 1))
        # So that this option is not right wherever it is.
        last = _ALL if len(wrong) >= 2 and asker.rng.random() < 0.5 else None
        noun = words_of(name).noun
        yield from _single(asker, "abnormality", "absence", fact, noun, wrong, last=last)
    absent = list(asker.pool.absent)
    # It is the last option: any oftener, and the last letter would be right too often.
    if len(absent) >= _OPTIONS - 1 and asker.rng.random() < 1 / (2 * _OPTIONS):
        chosen = asker.rng.sample(absent, _OPTIONS - 1)
        draft = asker.ask("single_choice", "abnormality", "absence")
        options = (*(capital(words_of(name).noun) for name in chosen), _ALL)
        regions = _regions_of(asker.pool.absent[name] for name in chosen)
        yield draft(LETTERS[_OPTIONS - 1], asker.absent(chosen), regions, options)
    for region in asker.pool.normal:
        wrong = [
            words.noun
            for name, words in load_vocabulary().findings.items()
            if _belongs(words.region, region)
            and words.kind != "device"
            and name not in asker.pool.present
            and name not in asker.pool.doubtful
        ]
        draft = asker.ask("single_choice", "abnormality", "condition", region=spoken(region))
        if len(wrong) >= 2:
            wrong = asker.rng.sample(wrong, min(3, len(wrong)))
            options, letters = _shuffle(["normal"], wrong, asker.rng)
            yield draft(letters[0], asker.normal(region), (region,), options)


def _about_present(asker: Asker, fact: SentenceFact) -> Iterator[Draft]:
    """Yields questions which finding there is, where, and how large or severe it is."""
    wrong = [words_of(name).noun for name in _not_there(asker)][: _OPTIONS - 1]
    content = content_of(fact.subject)
    yield from _single(asker, content, "presence", fact, fact.words.noun, wrong, asker.pool.absent)
    if has_one_place(fact):
        (region,) = fact.regions
        yield from _single(asker, "location", "location", fact, region, _apart(region, asker.rng))
    word, degrees = severity_word(fact), _DEGREES[fact.words.sized]
    if word and word in degrees:
        content = "size" if fact.words.sized else "severity"
        wrong = [one for one in degrees if one != word]
        yield from _single(asker, content, content, fact, word, wrong)


def multi_choice(asker: Asker) -> Iterator[Draft]:
    """Yields every multi-choice question with two right options or more."""
    there = list(asker.pool.present)
    away = [words_of(name).noun for name in _not_there(asker)]
    if len(there) >= 2 and away:
        facts = [asker.pool.present[name] for name in asker.rng.sample(there, min(3, len(there)))]
        right = [fact.words.noun for fact in facts]
        reason = asker.present(facts)
        yield _several(asker, "presence", right, away, reason, _regions_of(facts))
    absent = list(asker.pool.absent)
    if there and len(absent) >= 2:
        chosen = asker.rng.sample(absent, min(3, len(absent)))
        right = [words_of(name).noun for name in chosen]
        wrong = [words_of(name).noun for name in asker.rng.sample(there, len(there))]
        regions = _regions_of(asker.pool.absent[name] for name in chosen)
        yield _several(asker, "absence", right, wrong, asker.absent(chosen), regions)
    found = [fact for fact in asker.pool.present.values() if fact.words.kind != "device"]
    affected = _apart_from_each_other([region for fact in found for region in fact.regions])
    normal = _apart_from_each_other(list(asker.pool.normal))
    if len(affected) >= 2 and normal:
        shown = affected[:3]
        reason = asker.present([one for one in found if {*one.regions} & {*shown}])
        yield _several(asker, "regions", shown, normal, reason, tuple(shown))
    if affected and len(normal) >= 2:
        calm = normal[:3]
        reason = " ".join(
            asker.normal(region, sign=region == calm[0] and len(calm) == 2) for region in calm
        )
        yield _several(asker, "normal_regions", calm, affected, reason, tuple(calm))
    yield from _statements(asker)


def _statements(asker: Asker) -> Iterator[Draft]:
    """Yields sentences of which some hold; every subject is in one question only."""
    right: list[tuple[str, str, tuple[str, ...], str]] = []  # holds, does not, where, why
    for fact in asker.pool.present.values():
        holds = write_facts([fact], fact.regions[0])[0]
        fails = f"{_there(fact.subject)} no {fact.words.noun}."
        reason = asker.present([fact], cause=True, sign=False)
        right.append((holds, fails, fact.regions, reason))
    for name, fact in asker.pool.absent.items():
        holds = f"{_there(name)} no {words_of(name).noun}."
        fails = f"{_there(name)} {with_article(name)}."
        right.append((holds, fails, fact.regions, asker.absent([name], sign=False)))
    for region, holds in asker.pool.normal.items():
        look = "look" if is_many(spoken(region)) else "looks"
        fails = f"{capital(spoken(region))} {look} abnormal."
        right.append((holds, fails, (region,), asker.normal(region, sign=False)))
    asker.rng.shuffle(right)
    while len(right) >= 3:
        used, right = right[:_OPTIONS], right[_OPTIONS:]
        kept = used[: asker.rng.randint(2, len(used) - 1)]
        yield _several(
            asker,
            "statements",
            [holds.rstrip(".") for holds, _, _, _ in kept],
            [fails.rstrip(".") for _, fails, _, _ in used[len(kept) :]],
            " ".join(reason for _, _, _, reason in kept),
            tuple(dict.fromkeys(region for _, _, where, _ in kept for region in where)),
        )


def _there(finding: str) -> str:
    return "There are" if is_many_of(finding) else "There is"


def _single(
    asker: Asker,
    content: str,
    asked: str,
    fact: SentenceFact,
    right: str,
    wrong: Sequence[str],
    absent: Iterable[str] = (),
    last: str | None = None,
) -> Iterator[Draft]:
    """Yields a question, unless wrong options are too few; the reason denies `absent` options."""
    if len(wrong) < 2:
        return
    draft = asker.ask("single_choice", content, asked, fact.subject)
    options, letters = _shuffle([right], wrong[: _OPTIONS - 1 - bool(last)], asker.rng)
    options = (*options, last) if last else options
    named = [name for name in absent if capital(words_of(name).noun) in options]
    if fact.polarity == "neg":
        reason = asker.absent([fact.subject], sign=not named)
    else:
        reason = asker.present([fact], sign=not named)
    if named:
        reason = f"{reason} {asker.absent(named, sign=False)}"
    yield draft(letters[0], reason, fact.regions, options, finding=fact.subject)


def _several(
    asker: Asker,
    asked: str,
    right: Sequence[str],
    wrong: Sequence[str],
    reason: str,
    regions: tuple[str, ...],
) -> Draft:
    content = "location" if asked in ("regions", "normal_regions") else "abnormality"
    draft = asker.ask("multi_choice", content, asked)
    options, letters = _shuffle(right, wrong[: _OPTIONS - len(right)], asker.rng)
    return draft(letters, reason, regions, options)


def _shuffle(
    right: Sequence[str], wrong: Sequence[str], rng: random.Random
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns options in random order, and the letters of the right ones."""
    options = [*((text, True) for text in right), *((text, False) for text in wrong)]
    rng.shuffle(options)
    letters = tuple(letter for letter, (_, holds) in zip(LETTERS, options, strict=False) if holds)
    return tuple(capital(text) for text, _ in options), letters


def _not_there(asker: Asker) -> list[str]:
    """Returns findings for wrong options, in random order: those said to be absent first, one a
    group."""
    absent, other = list(asker.pool.absent), asker.pool.unmentioned()
    ordered = [*asker.rng.sample(absent, len(absent)), *asker.rng.sample(other, len(other))]
    chosen: list[str] = []
    for name in ordered:
        group = words_of(name).group
        if (
            not group
            or name in asker.pool.absent
            or group not in {words_of(n).group for n in chosen}
        ):
            chosen.append(name)
    return chosen


def _apart(region: str, rng: random.Random) -> list[str]:
    """Returns three regions of lung that overlap neither this one nor each other."""
    lung = [name for name in load_regions().regions if "lung" in name and name != region]
    return _apart_from_each_other([region, *rng.sample(lung, len(lung))])[1:_OPTIONS]


def _apart_from_each_other(names: Sequence[str]) -> list[str]:
    chosen: list[str] = []
    for name in names:
        if not any(load_regions().overlap(name, other) for other in chosen):
            chosen.append(name)
    return chosen


def _belongs(role: str | None, region: str) -> bool:
    if role in ("lung", "side", "effusion"):
        return "lung" in region
    if role in ("hilar", "hemidiaphragm"):
        return role in region
    return role == region


def _regions_of(facts: Iterable[SentenceFact]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(region for fact in facts for region in fact.regions))
