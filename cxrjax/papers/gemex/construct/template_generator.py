"""The offline generator: questions from the template file, decided by (seed, report)."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.papers.gemex.construct.choice_questions import multi_choice, single_choice
from cxrjax.papers.gemex.construct.free_questions import closed_ended, open_ended
from cxrjax.papers.gemex.construct.pool import pool_of
from cxrjax.papers.gemex.construct.questions import QUESTIONS_PER_REPORT, Draft, RefinedReport
from cxrjax.papers.gemex.construct.wording import VERSION

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
