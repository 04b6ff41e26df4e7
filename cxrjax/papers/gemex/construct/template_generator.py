"""The offline generator: questions from templates, decided by (seed, report)."""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.papers.gemex.construct.choice_questions import multi_choice, single_choice
from cxrjax.papers.gemex.construct.facts import SentenceFact
from cxrjax.papers.gemex.construct.pool import (
    VERSION,
    Pool,
    places,
    pool_of,
    question,
    reason_absent,
    reason_normal,
    reason_present,
    words_of,
)
from cxrjax.papers.gemex.construct.questions import QUESTIONS_PER_REPORT, Draft, RefinedReport
from cxrjax.papers.gemex.construct.refine import BY_PLACE, severity_word, spoken
from cxrjax.papers.sources.regions import load_regions
from cxrjax.radiology_text.english import capital, join


def open_ended(pool: Pool, rng: random.Random) -> Iterator[Draft]:
    """Every open question that the report can answer."""
    by_region: dict[str, list[SentenceFact]] = {}
    for fact in pool.present.values():
        for region in fact.regions:
            by_region.setdefault(region, []).append(fact)
    for region, facts in by_region.items():
        # Asked about a region, all that is said of it is the answer; doubts leave it open.
        doubts = (other for fact in pool.doubtful.values() for other in fact.regions)
        others = (*doubts, *(other for other in by_region if other != region))
        if any(load_regions().overlap(region, other) for other in others):
            continue
        kinds = {words_of(fact.subject).kind for fact in facts}
        content = "disease" if kinds == {"disease"} else "abnormality"
        if kinds == {"device"}:
            continue
        text, template = question("open_ended", content, rng, region=spoken(region))
        names = [words_of(fact.subject).noun for fact in facts]
        yield Draft(
            "open_ended",
            content,
            text,
            capital(join(names)) + ".",
            reason_present([dataclasses.replace(one, regions=(region,)) for one in facts], rng),
            (region,),
            finding=facts[0].subject,
            template_id=template,
        )
    for fact in pool.present.values():
        yield from _about(fact, rng)
    for region in pool.normal:
        text, template = question("open_ended", "condition", rng, region=spoken(region))
        word = "Clear." if "lung" in region else "Normal."
        yield Draft(
            "open_ended",
            "abnormality",
            text,
            word,
            reason_normal(pool, region, rng),
            (region,),
            template_id=template,
        )


def _about(fact: SentenceFact, rng: random.Random) -> Iterator[Draft]:
    """Questions about one finding: where, how severe, of what cause, meaning what."""
    words = words_of(fact.subject)
    answers = []
    if words.region in BY_PLACE and fact.located:
        answers.append(("location", capital(places(fact)) + "."))
    if fact.severity:
        content = "size" if words.sized else "severity"
        answers.append((content, capital(severity_word(fact) or "") + "."))
    if fact.cause:
        answers.append(("cause", capital(fact.cause) + "."))
    if words.implication:
        answers.append(("implication", capital(words.implication) + "."))
    for content, answer in answers:
        text, template = question("open_ended", content, rng, fact.subject)
        yield Draft(
            "open_ended",
            content,
            text,
            answer,
            reason_present([fact], rng, cause=content == "cause"),
            fact.regions,
            finding=fact.subject,
            template_id=template,
        )


def closed_ended(pool: Pool, rng: random.Random) -> Iterator[Draft]:
    """Every closed question that the report can answer."""

    def draft(content: str, asked: str, yes: bool, reason: str, regions: tuple, **values) -> Draft:
        text, template = question("closed_ended", asked, rng, **values)
        return Draft(
            "closed_ended",
            content,
            text,
            "Yes." if yes else "No.",
            reason,
            tuple(regions),
            template_id=template,
        )

    for fact in pool.present.values():
        kind = words_of(fact.subject).kind
        content = "disease" if kind == "disease" else "abnormality"
        about = {"about": fact.subject}
        reason = reason_present([fact], rng)
        yield draft(content, "presence", True, reason, fact.regions, **about)
        if words_of(fact.subject).region in BY_PLACE and fact.located and len(fact.regions) == 1:
            region = fact.regions[0]
            for asked in (region, _other_side(region)):
                if asked:
                    reason = reason_present([fact], rng)
                    where = {"region": spoken(asked), **about}
                    right = asked == region
                    yield draft("location", "location", right, reason, fact.regions, **where)
        if kind != "device":
            where = {"region": spoken(fact.regions[0])}
            reason = reason_present([fact], rng)
            yield draft("abnormality", "condition", False, reason, fact.regions, **where)
    for name, fact in pool.absent.items():
        content = "disease" if words_of(name).kind == "disease" else "abnormality"
        reason = reason_absent([name], rng)
        yield draft(content, "presence", False, reason, fact.regions, about=name)
    for region in pool.normal:
        reason = reason_normal(pool, region, rng)
        yield draft("abnormality", "condition", True, reason, (region,), region=spoken(region))


def _other_side(region: str) -> str | None:
    side, _, rest = region.partition(" ")
    return {"left": f"right {rest}", "right": f"left {rest}"}.get(side)


_MAKERS = {
    "open_ended": open_ended,
    "closed_ended": closed_ended,
    "single_choice": single_choice,
    "multi_choice": multi_choice,
}


class TemplateGenerator:
    """Words what refined sentences state, and nothing else."""

    name = "templates"
    version = VERSION

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def generate(
        self, reports: Iterable[RefinedReport]
    ) -> Iterator[tuple[RefinedReport, list[Draft]]]:
        """Each report with its questions, at most `QUESTIONS_PER_REPORT` of each type."""
        for refined in reports:
            pool = pool_of(refined.refinement.sentences)
            drafts: list[Draft] = []
            for kind, maker in _MAKERS.items():
                rng = random.Random(f"{self.seed}/{refined.report.report_id}/{kind}")
                made = list(maker(pool, rng))
                drafts += _pick(made, QUESTIONS_PER_REPORT[kind], rng)
            yield refined, drafts


def _pick(drafts: Sequence[Draft], count: int, rng: random.Random) -> list[Draft]:
    """Different questions: each time of the content and the answer asked about least so far."""
    left = rng.sample(list(drafts), len(drafts))
    contents: Counter[str] = Counter()
    answers: Counter[object] = Counter()
    subjects: Counter[object] = Counter()
    chosen: list[Draft] = []
    while left and len(chosen) < count:
        best = min(
            left,
            key=lambda d: (
                answers[d.answer] if d.question_type == "closed_ended" else 0,
                subjects[d.finding or d.regions],
                contents[d.content_type],
                # An option that stands for all others tells its own place.
                "All of the above" in d.choices,
            ),
        )
        left = [d for d in left if d.question != best.question]
        chosen.append(best)
        contents[best.content_type] += 1
        answers[best.answer] += 1
        subjects[best.finding or best.regions] += 1
    return chosen
