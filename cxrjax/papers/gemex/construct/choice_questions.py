"""Single- and multi-choice questions out of what a report states.

Options exclude one another: a finding that is not there is said to be absent, or is not mentioned
and resembles nothing that is; regions do not overlap.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.papers.gemex.construct.facts import SentenceFact, words_of
from cxrjax.papers.gemex.construct.offers import Offer, Option
from cxrjax.papers.gemex.construct.pool import Asker, Pool, alone_in, content_of, with_article
from cxrjax.papers.gemex.construct.refine import (
    has_one_place,
    is_many,
    is_many_of,
    severity_word,
    spoken,
)
from cxrjax.papers.sources.regions import load_regions
from cxrjax.radiology_text.english import capital, load_vocabulary

_DEGREES = {False: ("mild", "moderate", "severe"), True: ("small", "moderate", "large")}
_NORMAL = Option("normal")
Told = tuple[str, Sequence[str]]


def single_choice(asker: Asker) -> Iterator[Offer]:
    """Yields every single-choice question that the report can answer."""
    pool = asker.pool
    alike = functools.partial(_alike, pool)
    for fact in pool.present.values():
        yield from _about_present(asker, fact)
    there = [_noun(name) for name in pool.present]
    for name, fact in pool.absent.items():
        tell = functools.partial(_tell_absent, asker, fact)
        yield Offer("single_choice", "abnormality", "absence", tell, [_noun(name)], there, alike)
    for region in pool.normal:
        tell = functools.partial(_tell_normal, asker, region)
        terms = ("single_choice", "abnormality", "condition", tell)
        yield Offer(*terms, [_NORMAL], _findings_of(pool, region), alike, region=region)
    for region, (fact, *more) in alone_in(pool).items():
        if not more:
            here = dataclasses.replace(fact, regions=(region,))
            tell = functools.partial(_tell_present, asker, here)
            terms = ("single_choice", content_of(fact.subject), "condition", tell)
            right, wrong = [_noun(fact.subject)], [_NORMAL, *_findings_of(pool, region)]
            yield Offer(*terms, right, wrong, alike, region=region)


def _about_present(asker: Asker, fact: SentenceFact) -> Iterator[Offer]:
    """Yields questions which finding there is, where, and how large or severe it is."""
    name, kind = fact.subject, "single_choice"
    tell = functools.partial(_tell_present, asker, fact)
    alike = functools.partial(_alike, asker.pool)
    away = _not_there(asker.pool)
    content = content_of(name)
    yield Offer(kind, content, "presence", tell, [_noun(name)], away, alike)
    if has_one_place(fact):
        (place,) = fact.regions
        overlap = load_regions().overlap
        lung = [one for one in load_regions().regions if "lung" in one and not overlap(one, place)]
        terms = (kind, "location", "location", tell, [Option(place, place)])
        yield Offer(*terms, [Option(one, one) for one in lung], overlap, name)
    word, degrees = severity_word(fact), _DEGREES[fact.words.sized]
    if word in degrees:
        content = "size" if fact.words.sized else "severity"
        wrong = [Option(one) for one in degrees if one != word]
        terms = (kind, content, content, tell, [Option(word)])
        yield Offer(*terms, wrong, about=name)


def _alike(pool: Pool, one: str, other: str) -> bool:
    """Returns whether options are of one group of findings, and the report keeps them apart."""
    findings = load_vocabulary().findings
    if one not in findings or other not in findings:
        return one == other
    said = {one, other} <= pool.present.keys() | pool.absent.keys()
    group = findings[one].group
    return one == other or (bool(group) and group == findings[other].group and not said)


def _tell_present(
    asker: Asker, fact: SentenceFact, right: Sequence[Option], wrong: Sequence[Option]
) -> Told:
    """Words that a finding is there, and that options which are said to be absent are not."""
    named = [one.about for one in wrong if one.about in asker.pool.absent]
    reason = asker.present([fact], sign=not named)
    denied = f" {asker.absent(named, sign=False)}" if named else ""
    return reason + denied, fact.regions


def _tell_absent(
    asker: Asker, fact: SentenceFact, right: Sequence[Option], wrong: Sequence[Option]
) -> Told:
    return asker.absent([fact.subject]), fact.regions


def _tell_normal(
    asker: Asker, region: str, right: Sequence[Option], wrong: Sequence[Option]
) -> Told:
    return asker.normal(region), (region,)


def multi_choice(asker: Asker) -> Iterator[Offer]:
    """Yields every multi-choice question that the report can answer."""
    pool = asker.pool
    there, absent = ([*map(_noun, names)] for names in (pool.present, pool.absent))
    found = [fact for fact in pool.present.values() if fact.words.kind != "device"]
    affected = [Option(one, one) for one in _regions_of(found)]
    normal = [Option(one, one) for one in pool.normal]

    def presence(right: Sequence[Option], wrong: Sequence[Option]) -> Told:
        facts = [pool.present[one.about] for one in right]
        return asker.present(facts), _regions_of(facts)

    def absence(right: Sequence[Option], wrong: Sequence[Option]) -> Told:
        names = [one.about for one in right]
        return asker.absent(names), _regions_of(pool.absent[name] for name in names)

    def regions(right: Sequence[Option], wrong: Sequence[Option]) -> Told:
        shown = [one.about for one in right]
        return asker.present(_within(found, shown)), shown

    def normal_regions(right: Sequence[Option], wrong: Sequence[Option]) -> Told:
        calm = [one.about for one in right]
        signs = [len(calm) < 3 and region == calm[0] for region in calm]
        return " ".join(map(asker.normal, calm, signs)), calm

    alike, overlap = functools.partial(_alike, pool), load_regions().overlap
    for content, tell, right, wrong, clash in (
        ("abnormality", presence, there, _not_there(pool), alike),
        ("abnormality", absence, absent, there, alike),
        ("location", regions, affected, normal, overlap),
        ("location", normal_regions, normal, affected, overlap),
    ):
        yield Offer("multi_choice", content, tell.__name__, tell, right, wrong, clash)
    yield _statements(asker)


def _statements(asker: Asker) -> Offer:
    """Returns a question with sentences of which some hold, each subject in one of them only."""
    pool, overlap = asker.pool, load_regions().overlap
    holds: list[Option] = []
    fails: list[Option] = []
    for there, names in ((True, pool.present), (False, pool.absent)):
        for name in names:
            verb = "are" if is_many_of(name) else "is"
            present = Option(f"There {verb} {with_article(name)}", name)
            absent = Option(f"There {verb} no {words_of(name).noun}", name)
            holds.append(present if there else absent)
            fails.append(absent if there else present)
    found = [fact for fact in pool.present.values() if fact.words.kind != "device"]
    for calm, places in ((True, pool.normal), (False, _regions_of(found))):
        for region in places:
            look = f"{capital(spoken(region))} {'look' if is_many(spoken(region)) else 'looks'}"
            normal, abnormal = (Option(f"{look} {one}", region) for one in ("normal", "abnormal"))
            holds.append(normal if calm else abnormal)
            fails.append(abnormal if calm else normal)

    def where(about: str) -> Sequence[str]:
        fact = pool.present.get(about)
        return fact.regions if fact else () if about in pool.absent else (about,)

    def clash(one: str, other: str) -> bool:
        if one in pool.present and other in pool.present:
            return one == other
        return one == other or any(overlap(a, b) for a in where(one) for b in where(other))

    def tell(right: Sequence[Option], wrong: Sequence[Option]) -> Told:
        told = [one.about for one in right]
        here = [pool.present[one] for one in told if one in pool.present] + _within(found, told)
        absent = [one for one in told if one in pool.absent]
        calm = [one for one in told if one in pool.normal]
        reasons = [asker.present([fact], sign=False) for fact in here]
        reasons += [asker.absent(absent, sign=False)] if absent else []
        reasons += [asker.normal(one, sign=False) for one in calm]
        places = _regions_of([*here, *(pool.absent[one] for one in absent)])
        return " ".join(reasons), [*places, *calm]

    return Offer("multi_choice", "abnormality", "statements", tell, holds, fails, clash)


def _within(facts: Iterable[SentenceFact], shown: Sequence[str]) -> list[SentenceFact]:
    """Returns the facts that are in these regions, as far as they are."""
    there = [(fact, tuple(one for one in fact.regions if one in shown)) for fact in facts]
    return [dataclasses.replace(fact, regions=some) for fact, some in there if some]


def _noun(name: str) -> Option:
    return Option(words_of(name).noun, name)


def _not_there(pool: Pool) -> list[Option]:
    """Returns findings for wrong options: said to be absent, or not mentioned."""
    return [_noun(name) for name in (*pool.absent, *pool.unmentioned())]


def _findings_of(pool: Pool, region: str) -> list[Option]:
    """Returns findings that a region may have and that are nowhere in the image."""
    said = {words_of(name).group for name in (*pool.present, *pool.doubtful)} - {""}
    return [
        _noun(name)
        for name, words in load_vocabulary().findings.items()
        if _belongs(words.region, region)
        and words.kind != "device"
        and name not in pool.present
        and name not in pool.doubtful
        and (name in pool.absent or region in pool.normal or words.group not in said)
    ]


def _belongs(role: str | None, region: str) -> bool:
    if role in ("lung", "side", "effusion"):
        return "lung" in region
    if role in ("hilar", "hemidiaphragm"):
        return role in region
    return role == region


def _regions_of(facts: Iterable[SentenceFact]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(region for fact in facts for region in fact.regions))
