"""Single- and multi-choice questions out of what a report states.

Options exclude one another: a finding that is not there is said to be absent, or is not spoken of
and resembles nothing that is; regions do not overlap. Their order is drawn.
"""

import random
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.papers.gemex.construct.facts import SentenceFact
from cxrjax.papers.gemex.construct.pool import (
    Pool,
    question,
    reason_absent,
    reason_normal,
    reason_present,
    with_article,
    words_of,
)
from cxrjax.papers.gemex.construct.questions import Draft
from cxrjax.papers.gemex.construct.refine import (
    BY_PLACE,
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


def single_choice(pool: Pool, rng: random.Random) -> Iterator[Draft]:
    """Every single-choice question that the report can answer."""
    for fact in pool.present.values():
        content = "disease" if words_of(fact.subject).kind == "disease" else "abnormality"
        wrong = [words_of(name).noun for name in _not_there(pool, rng)][: _OPTIONS - 1]
        yield from _single(
            rng, content, "presence", fact, words_of(fact.subject).noun, wrong, reason_absence=pool
        )
        if words_of(fact.subject).region in BY_PLACE and fact.located and len(fact.regions) == 1:
            yield from _single(
                rng, "location", "location", fact, fact.regions[0], _apart(fact.regions[0], rng)
            )
        if fact.severity and (word := severity_word(fact)):
            sized = words_of(fact.subject).sized
            content = "size" if sized else "severity"
            degrees = [one for one in _DEGREES[sized] if one != word]
            if word in _DEGREES[sized]:
                yield from _single(rng, content, content, fact, word, degrees)
    there = [words_of(name).noun for name in pool.present]
    for name, fact in pool.absent.items():
        wrong = rng.sample(there, min(len(there), _OPTIONS - 1))
        # So that this option is not right wherever it stands.
        last = _ALL if len(wrong) >= 2 and rng.random() < 0.5 else None
        yield from _single(
            rng, "abnormality", "absence", fact, words_of(name).noun, wrong, last=last
        )
    absent = list(pool.absent)
    # It stands last: any oftener, and the last letter would be right too often.
    if len(absent) >= _OPTIONS - 1 and rng.random() < 1 / (2 * _OPTIONS):
        chosen = rng.sample(absent, _OPTIONS - 1)
        text, template = question("single_choice", "absence", rng)
        yield Draft(
            "single_choice",
            "abnormality",
            text,
            LETTERS[_OPTIONS - 1],
            reason_absent(chosen, rng),
            _regions_of(pool.absent[name] for name in chosen),
            (*(capital(words_of(name).noun) for name in chosen), _ALL),
            template_id=template,
        )
    for region in pool.normal:
        wrong = [
            words.noun
            for name, words in load_vocabulary().findings.items()
            if _belongs(words.region, region)
            and words.kind != "device"
            and name not in pool.present
            and name not in pool.doubtful
        ]
        text, template = question("single_choice", "condition", rng, region=spoken(region))
        if len(wrong) >= 2:
            options, letters = _shuffle(["normal"], rng.sample(wrong, min(3, len(wrong))), rng)
            yield Draft(
                "single_choice",
                "abnormality",
                text,
                letters[0],
                reason_normal(pool, region, rng),
                (region,),
                options,
                template_id=template,
            )


def multi_choice(pool: Pool, rng: random.Random) -> Iterator[Draft]:
    """Every multi-choice question that the report can answer, of two right options at least."""
    there = list(pool.present)
    away = _not_there(pool, rng)
    if len(there) >= 2 and away:
        facts = [pool.present[name] for name in rng.sample(there, min(3, len(there)))]
        yield _several(
            rng,
            "presence",
            [words_of(fact.subject).noun for fact in facts],
            [words_of(name).noun for name in away],
            reason_present(facts, rng),
            _regions_of(facts),
        )
    absent = list(pool.absent)
    if there and len(absent) >= 2:
        chosen = rng.sample(absent, min(3, len(absent)))
        yield _several(
            rng,
            "absence",
            [words_of(name).noun for name in chosen],
            [words_of(name).noun for name in rng.sample(there, len(there))],
            reason_absent(chosen, rng),
            _regions_of(pool.absent[name] for name in chosen),
        )
    affected = _apart_from_each_other(
        [
            r
            for f in pool.present.values()
            if words_of(f.subject).kind != "device"
            for r in f.regions
        ]
    )
    normal = _apart_from_each_other(list(pool.normal))
    if len(affected) >= 2 and normal:
        shown = affected[:3]
        facts = [
            fact
            for fact in pool.present.values()
            if words_of(fact.subject).kind != "device" and set(fact.regions) & set(shown)
        ]
        reason = reason_present(facts, rng)
        yield _several(rng, "regions", shown, normal, reason, tuple(shown))
    if affected and len(normal) >= 2:
        calm = normal[:3]
        reason = " ".join(
            reason_normal(pool, region, rng, sign=region == calm[0] and len(calm) == 2)
            for region in calm
        )
        yield _several(rng, "normal_regions", calm, affected, reason, tuple(calm))
    yield from _statements(pool, rng)


def _statements(pool: Pool, rng: random.Random) -> Iterator[Draft]:
    """Sentences of which some hold; every subject stands in one question alone."""
    right: list[tuple[str, str, tuple[str, ...], str]] = []  # holds, does not, where, why
    for fact in pool.present.values():
        holds = write_facts([fact], fact.regions[0])[0]
        start = "There are" if is_many_of(fact.subject) else "There is"
        noun = words_of(fact.subject).noun
        reason = reason_present([fact], rng, cause=True, sign=False)
        right.append((holds, f"{start} no {noun}.", fact.regions, reason))
    for name, fact in pool.absent.items():
        start = "There are" if is_many_of(name) else "There is"
        holds = f"{start} no {words_of(name).noun}."
        reason = reason_absent([name], rng, sign=False)
        right.append((holds, f"{start} {with_article(name)}.", fact.regions, reason))
    for region, holds in pool.normal.items():
        look = "look" if is_many(spoken(region)) else "looks"
        fails = f"{capital(spoken(region))} {look} abnormal."
        right.append((holds, fails, (region,), reason_normal(pool, region, rng, sign=False)))
    rng.shuffle(right)
    while len(right) >= 3:
        used, right = right[:_OPTIONS], right[_OPTIONS:]
        kept = used[: rng.randint(2, len(used) - 1)]
        yield _several(
            rng,
            "statements",
            [holds.rstrip(".") for holds, _, _, _ in kept],
            [fails.rstrip(".") for _, fails, _, _ in used[len(kept) :]],
            " ".join(reason for _, _, _, reason in kept),
            tuple(dict.fromkeys(region for _, _, where, _ in kept for region in where)),
        )


def _single(
    rng: random.Random,
    content: str,
    asked: str,
    fact: SentenceFact,
    right: str,
    wrong: Sequence[str],
    reason_absence: Pool | None = None,
    last: str | None = None,
) -> Iterator[Draft]:
    if len(wrong) < 2:
        return
    text, template = question("single_choice", asked, rng, fact.subject)
    room = _OPTIONS - 1 - bool(last)
    options, letters = _shuffle([right], wrong[:room], rng)
    options = (*options, last) if last else options
    absent = reason_absence.absent if reason_absence else {}
    named = [n for n in absent if capital(words_of(n).noun) in options]
    if fact.polarity == "neg":
        reason = reason_absent([fact.subject], rng, sign=not named)
    else:
        reason = reason_present([fact], rng, sign=not named)
    if named:
        reason = f"{reason} {reason_absent(named, rng, sign=False)}"
    yield Draft(
        "single_choice",
        content,
        text,
        letters[0],
        reason,
        fact.regions,
        options,
        finding=fact.subject,
        template_id=template,
    )


def _several(
    rng: random.Random,
    asked: str,
    right: Sequence[str],
    wrong: Sequence[str],
    reason: str,
    regions: tuple[str, ...],
) -> Draft:
    text, template = question("multi_choice", asked, rng)
    content = "location" if asked in ("regions", "normal_regions") else "abnormality"
    options, letters = _shuffle(right, wrong[: _OPTIONS - len(right)], rng)
    return Draft(
        "multi_choice", content, text, letters, reason, regions, options, template_id=template
    )


def _shuffle(
    right: Sequence[str], wrong: Sequence[str], rng: random.Random
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(options in drawn order, letters of the right ones)."""
    options = [*((text, True) for text in right), *((text, False) for text in wrong)]
    rng.shuffle(options)
    letters = tuple(letter for letter, (_, holds) in zip(LETTERS, options, strict=False) if holds)
    return tuple(capital(text) for text, _ in options), letters


def _not_there(pool: Pool, rng: random.Random) -> list[str]:
    """Findings for wrong options, in drawn order: those said to be absent first, one a group."""
    absent, other = list(pool.absent), pool.unmentioned()
    ordered = [*rng.sample(absent, len(absent)), *rng.sample(other, len(other))]
    chosen: list[str] = []
    for name in ordered:
        group = words_of(name).group
        if not group or name in pool.absent or group not in {words_of(n).group for n in chosen}:
            chosen.append(name)
    return chosen


def _apart(region: str, rng: random.Random) -> list[str]:
    """Three regions of lung that overlap neither this one nor each other."""
    regions = load_regions()
    lung = [name for name in regions.regions if "lung" in name and name != region]
    chosen: list[str] = []
    for name in rng.sample(lung, len(lung)):
        if not any(regions.overlap(name, other) for other in (region, *chosen)):
            chosen.append(name)
    return chosen[: _OPTIONS - 1]


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
