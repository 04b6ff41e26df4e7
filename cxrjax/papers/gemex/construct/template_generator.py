"""The offline generator: questions from templates, decided by the seed and a batch of reports."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.papers.gemex.construct.choice_questions import multi_choice, single_choice
from cxrjax.papers.gemex.construct.facts import SentenceFact
from cxrjax.papers.gemex.construct.offers import Offer, Option, choose
from cxrjax.papers.gemex.construct.pool import (
    VERSION,
    Asker,
    alone_in,
    content_of,
    content_type_of,
    places,
    pool_of,
)
from cxrjax.papers.gemex.construct.questions import QUESTIONS_PER_REPORT, Draft, RefinedReport
from cxrjax.papers.gemex.construct.refine import (
    BY_PLACE,
    has_one_place,
    is_placed,
    is_several,
    phrase,
    severity_word,
)
from cxrjax.papers.sources.regions import load_regions
from cxrjax.radiology_text.english import capital, join


def open_ended(asker: Asker) -> Iterator[Offer]:
    """Yields every open question that the report can answer."""
    normal, abnormal = Option("normal"), Option("abnormal")
    for region, facts in alone_in(asker.pool).items():
        # Asked about a region, all that is said of it is the answer.
        diseases = {fact.words.kind for fact in facts} == {"disease"}
        content = "disease" if diseases else "abnormality"
        here = [dataclasses.replace(one, regions=(region,)) for one in facts]
        nouns = [one.words.plural if is_several(one) else one.words.noun for one in here]
        answer = capital(join(nouns)) + "."
        tell = _teller(asker, here)
        terms: dict[str, Any] = {"region": region, "answer": answer}
        yield Offer("open_ended", content, content, tell, **terms)
        yield Offer("open_ended", content, "condition", tell, [abnormal], [normal], **terms)
    for region in asker.pool.normal:
        word = "Clear." if "lung" in region else "Normal."
        terms = {"region": region, "answer": word}
        tell = _teller(asker, calm=region)
        yield Offer("open_ended", "abnormality", "condition", tell, [normal], [abnormal], **terms)
    for fact in asker.pool.present.values():
        yield from _about(asker, fact)


def _teller(
    asker: Asker,
    facts: Sequence[SentenceFact] = (),
    absent: Sequence[str] = (),
    calm: str = "",
    cause: bool = False,
) -> Callable[[object, object], tuple[str, Sequence[str]]]:
    """Returns what words the reason: findings that are there or are not, or a normal region."""

    def tell(right: object, wrong: object) -> tuple[str, Sequence[str]]:
        parts = [asker.present(facts, cause)] if facts else []
        parts += [asker.absent(absent)] if absent else []
        parts += [asker.normal(calm)] if calm else []
        missing = [asker.pool.absent[name] for name in absent if not facts]
        places = [region for fact in (*facts, *missing) for region in fact.regions]
        return " ".join(parts), [*places, *([calm] if calm else [])]

    return tell


def _about(asker: Asker, fact: SentenceFact) -> Iterator[Offer]:
    """Yields questions about one finding: where, how severe, of what cause, meaning what."""
    words, name = fact.words, fact.subject
    placed = words.region in BY_PLACE and fact.located
    for content, answer in (
        ("location", places(fact) if placed else None),
        ("size" if words.sized else "severity", severity_word(fact)),
        ("cause", fact.cause),
    ):
        if answer:
            tell = _teller(asker, [fact], cause=content == "cause")
            terms: dict[str, Any] = {"about": name, "answer": capital(answer) + "."}
            yield Offer("open_ended", content, content, tell, **terms)
    pool = asker.pool
    for line in load_implications().get(name, ()):
        beside = [pool.present[one] for one in line.get("with", ()) if one in pool.present]
        beside = [one for one in beside if may_touch(fact, one)]
        missing = [one for one in line.get("without", ()) if one in pool.absent]
        if not _fits(line, fact, beside, missing):
            continue
        several = len(beside) > 1 or any(map(is_several, beside))
        answer = line["says"].format(
            place=places(fact),
            extent=phrase(fact),
            **{"with": join([phrase(one) for one in beside]), "is": "are" if several else "is"},
        )
        tell = _teller(asker, [fact, *beside], missing)
        terms = {"about": name, "answer": capital(answer)}
        yield Offer("open_ended", "implication", "implication", tell, **terms)
        return  # the first line that fits


def may_touch(*facts: SentenceFact) -> bool:
    """Returns false for findings of which one is on the right and the other on the left."""
    one, other = ({r.split()[0] for r in fact.regions} & {"left", "right"} for fact in facts)
    return not one or not other or bool(one & other)


def load_implications() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Returns what findings imply beside others, from the package's data file."""
    return read_packaged(str(__package__), "implications.toml")


def _fits(
    line: Mapping[str, Any],
    fact: SentenceFact,
    beside: Sequence[SentenceFact],
    missing: Sequence[str],
) -> bool:
    """Returns whether a line's conditions hold of a finding and of what is seen beside it."""
    both = any(region.startswith("bilateral") for region in fact.regions) or (
        {region.split()[0] for region in fact.regions} >= {"left", "right"}
    )
    sides = line.get("sides")
    return (
        (bool(beside) or "with" not in line)
        and (len(missing) == len(line.get("without", ())))
        and (sides is None or (is_placed(fact) and sides == ("both" if both else "one")))
        and ("degree" not in line or severity_word(fact) in line["degree"])
        and ("{place}" not in line["says"] or (is_placed(fact) and has_one_place(fact)))
    )


def closed_ended(asker: Asker) -> Iterator[Offer]:
    """Yields every closed question that the report can answer."""
    yes, no = Option("Yes."), Option("No.")
    regions = load_regions()

    def offer(content: str, asked: str, holds: bool, tell: Any, **terms: Any) -> Offer:
        answers = ([yes], [no]) if holds else ([no], [yes])
        return Offer("closed_ended", content, asked, tell, *answers, **terms)

    for name, fact in asker.pool.present.items():
        tell, content = _teller(asker, [fact]), content_of(name)
        yield offer(content, "presence", True, tell, about=name)
        first = fact.regions[0]
        if has_one_place(fact):
            yield offer("location", "location", True, tell, about=name, region=first)
            if other := _other_side(first):
                yield offer("location", "location", False, tell, about=name, region=other)
        for whole in regions.regions if fact.words.kind != "device" else ():
            # What is not normal in a part is not normal in the whole; other parts are not told of.
            parts = [one for one in fact.regions if regions.atoms(one) <= regions.atoms(whole)]
            inside = [one for one in parts if ("lung" in whole) == ("lung" in one)]
            if inside:
                here = _teller(asker, [dataclasses.replace(fact, regions=tuple(inside))])
                yield offer("abnormality", "condition", False, here, region=whole)
    for name in asker.pool.absent:
        tell = _teller(asker, absent=[name])
        yield offer(content_of(name), "presence", False, tell, about=name)
    for region in asker.pool.normal:
        yield offer("abnormality", "condition", True, _teller(asker, calm=region), region=region)


def _other_side(region: str) -> str | None:
    side, _, rest = region.partition(" ")
    return {"left": f"right {rest}", "right": f"left {rest}"}.get(side)


_MAKERS = (open_ended, closed_ended, single_choice, multi_choice)
# Reports whose questions are balanced together: all of a split, or as many as memory has room for.
TOGETHER = 5_000


class TemplateGenerator:
    """Words what refined sentences state, and nothing else."""

    name = "templates"
    version = VERSION

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.left_out = 0

    def generate(
        self, reports: Iterable[RefinedReport]
    ) -> Iterator[tuple[RefinedReport, list[Draft]]]:
        """Yields each report with its questions, at most `QUESTIONS_PER_REPORT` of each type; what
        would unbalance those of a batch is left out."""
        left = iter(reports)
        while batch := list(itertools.islice(left, TOGETHER)):
            yield from zip(batch, self._ask(batch), strict=True)

    def _ask(self, batch: Sequence[RefinedReport]) -> list[list[Draft]]:
        """Returns the questions of each report of a batch, type by type."""
        askers = []
        for refined in batch:
            rng = random.Random(f"{self.seed}/{refined.report.report_id}")
            told, report = refined.refinement.sentences, refined.report
            kept = {sentence.source for sentence in told}
            rest = [one.text for n, one in enumerate(report.sentences) if n not in kept]
            pool = pool_of(told, report.boxes, rest)
            askers.append(Asker(pool, rng))
        offers = [
            dataclasses.replace(offer, report=number)
            for number, asker in enumerate(askers)
            for maker in _MAKERS
            for offer in maker(asker)
        ]
        chosen = choose(offers, content_type_of, f"{self.seed}/{batch[0].report.report_id}")
        self.left_out += len(offers) - len(chosen)
        kinds = list(QUESTIONS_PER_REPORT)
        asked: list[list[Draft]] = [[] for _ in batch]
        for one in sorted(chosen, key=lambda one: kinds.index(one.offer.kind)):
            asked[one.offer.report].append(askers[one.offer.report].ask(one))
        return asked
