"""The offline generator: questions from templates, decided by (seed, report)."""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.papers.gemex.construct.choice_questions import multi_choice, single_choice
from cxrjax.papers.gemex.construct.facts import SentenceFact
from cxrjax.papers.gemex.construct.pool import VERSION, Asker, content_of, places, pool_of
from cxrjax.papers.gemex.construct.questions import QUESTIONS_PER_REPORT, Draft, RefinedReport
from cxrjax.papers.gemex.construct.refine import BY_PLACE, has_one_place, severity_word, spoken
from cxrjax.papers.sources.regions import load_regions
from cxrjax.radiology_text.english import capital, join


def open_ended(asker: Asker) -> Iterator[Draft]:
    """Yields every open question that the report can answer."""
    by_region: dict[str, list[SentenceFact]] = {}
    for fact in asker.pool.present.values():
        for region in fact.regions:
            by_region.setdefault(region, []).append(fact)
    doubts = [region for fact in asker.pool.doubtful.values() for region in fact.regions]
    for region, facts in by_region.items():
        # Asked about a region, all that is said of it is the answer; doubts leave it open.
        others = (*doubts, *(other for other in by_region if other != region))
        kinds = {fact.words.kind for fact in facts}
        if kinds == {"device"} or any(load_regions().overlap(region, one) for one in others):
            continue
        content = "disease" if kinds == {"disease"} else "abnormality"
        draft = asker.ask("open_ended", content, content, region=spoken(region))
        answer = capital(join([fact.words.noun for fact in facts])) + "."
        here = [dataclasses.replace(one, regions=(region,)) for one in facts]
        yield draft(answer, asker.present(here), (region,), finding=facts[0].subject)
    for fact in asker.pool.present.values():
        yield from _about(asker, fact)
    for region in asker.pool.normal:
        draft = asker.ask("open_ended", "abnormality", "condition", region=spoken(region))
        word = "Clear." if "lung" in region else "Normal."
        yield draft(word, asker.normal(region), (region,))


def _about(asker: Asker, fact: SentenceFact) -> Iterator[Draft]:
    """Yields questions about one finding: where, how severe, of what cause, meaning what."""
    words = fact.words
    placed = words.region in BY_PLACE and fact.located
    for content, answer in (
        ("location", places(fact) if placed else None),
        ("size" if words.sized else "severity", severity_word(fact)),
        ("cause", fact.cause),
        ("implication", words.implication),
    ):
        if answer:
            draft = asker.ask("open_ended", content, content, fact.subject)
            reason = asker.present([fact], cause=content == "cause")
            yield draft(capital(answer) + ".", reason, fact.regions, finding=fact.subject)


def closed_ended(asker: Asker) -> Iterator[Draft]:
    """Yields every closed question that the report can answer."""
    for fact in asker.pool.present.values():
        asked: list[tuple[str, str, bool, dict[str, str]]] = []
        about = {"about": fact.subject}
        asked.append((content_of(fact.subject), "presence", True, about))
        if has_one_place(fact):
            (region,) = fact.regions
            asked += [
                ("location", "location", one == region, {"region": spoken(one), **about})
                for one in (region, _other_side(region))
                if one
            ]
        if fact.words.kind != "device":
            asked.append(("abnormality", "condition", False, {"region": spoken(fact.regions[0])}))
        for content, template, yes, values in asked:
            reason = asker.present([fact])
            draft = asker.ask("closed_ended", content, template, **values)
            yield draft("Yes." if yes else "No.", reason, fact.regions)
    for name, fact in asker.pool.absent.items():
        reason = asker.absent([name])
        draft = asker.ask("closed_ended", content_of(name), "presence", name)
        yield draft("No.", reason, fact.regions)
    for region in asker.pool.normal:
        reason = asker.normal(region)
        draft = asker.ask("closed_ended", "abnormality", "condition", region=spoken(region))
        yield draft("Yes.", reason, (region,))


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
        """Yields each report with its questions, at most `QUESTIONS_PER_REPORT` of each type."""
        for refined in reports:
            pool = pool_of(refined.refinement.sentences)
            drafts: list[Draft] = []
            for kind, maker in _MAKERS.items():
                rng = random.Random(f"{self.seed}/{refined.report.report_id}/{kind}")
                made = list(maker(Asker(pool, rng)))
                drafts += _pick(made, QUESTIONS_PER_REPORT[kind], rng)
            yield refined, drafts


def _pick(drafts: Sequence[Draft], count: int, rng: random.Random) -> list[Draft]:
    """Picks different questions: each time of the content and the answer asked about least so
    far."""
    left = rng.sample(drafts, len(drafts))
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
                # An option that stands for all others gives its own place away.
                "All of the above" in d.choices,
            ),
        )
        left = [d for d in left if d.question != best.question]
        chosen.append(best)
        contents[best.content_type] += 1
        answers[best.answer] += 1
        subjects[best.finding or best.regions] += 1
    return chosen
