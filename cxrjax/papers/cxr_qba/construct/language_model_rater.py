"""Verdicts of a language model on questions and answers, as the release has them.

Each criterion is asked about on its own, with the context that the published table gives it: for
the criteria of answers one request holds a question's answers with their sub-answers, and a verdict
comes back for each. The release asked Llama 3.1 8B. A criterion without a usable answer stays away,
which leaves the question `unrated` (ratings.py).
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import pydantic

from cxrjax.language_model.client import Client
from cxrjax.language_model.request import NoAnswer, Request
from cxrjax.language_model.stage import Stage, Strict, make_request
from cxrjax.papers.cxr_qba.construct.language_model_answers import CONTENT, load_prompt
from cxrjax.papers.cxr_qba.construct.ratings import ANSWER_CRITERIA, QUESTION_CRITERIA
from cxrjax.papers.cxr_qba.native import NativeQuestion, StudyQuestions, StudySceneGraph
from cxrjax.records_io.quality import QualityLog

PROMPT = "rating_prompt_v1"
CRITERIA = {**ANSWER_CRITERIA, **QUESTION_CRITERIA}
# Contexts, by the criteria's table on the release's page.
WITH_REPORT = ("entailment",)
WITH_QUESTION = ("entailment", "relevance", "completeness", "question_clarity")
WITH_ANSWERS = ("entailment", "relevance", "completeness", "answer_clarity")
_TOKENS_PER_VERDICT = 20


class _Asked(NamedTuple):
    """One criterion of one question, and what is told about it."""

    question: NativeQuestion
    criterion: str
    text: str

    @property
    def answers(self) -> int:
        return sum(1 for _ in self.question.all_answers())


class LanguageModelRater(Stage[_Asked, Any]):
    """Rates a study's questions, several requests at once."""

    content = CONTENT

    def __init__(self, client: Client) -> None:
        super().__init__(client, load_prompt(PROMPT)["version"])

    def rate(self, graph: StudySceneGraph, made: StudyQuestions, quality: QualityLog) -> None:
        """Writes verdicts into `answer_quality` and `question_quality`; counts those that failed.

        Raises:
            UserError: as `Stage.answers`.
        """
        for (question, criterion, _), found in self.answers(_asked(graph, made)):
            quality.examined["verdicts of a language model"] += 1
            if isinstance(found, NoAnswer):
                # Without the detail, which may quote the report.
                quality.warnings[f"{criterion} left unrated: {found.category}"] += 1
            elif criterion in QUESTION_CRITERIA:
                rated = {**question.question_quality, criterion: found.verdict}
                question.question_quality = rated
            else:
                ordered = sorted(found.verdicts, key=lambda one: one.number)
                for answer, one in zip(question.all_answers(), ordered, strict=True):
                    answer.answer_quality = {**answer.answer_quality, criterion: one.verdict}

    def require_permission_for(
        self, studies: Iterable[tuple[StudySceneGraph, StudyQuestions]]
    ) -> None:
        """Refuses to send reports off this machine unasked, before anything is sent.

        Raises:
            UserError: as `Client.require_permission`.
        """
        self.require_permission(one for graph, made in studies for one in _asked(graph, made))

    def planned_requests(self, graph: StudySceneGraph, made: StudyQuestions) -> Iterator[Request]:
        """Returns the requests that `rate` makes about a study."""
        return map(self.request, _asked(graph, made))

    def request(self, item: _Asked) -> Request:
        """See `Stage.request`."""
        count = item.answers if item.criterion in ANSWER_CRITERIA else 1
        prompt, form = load_prompt(PROMPT)[item.criterion], verdict_form(item.criterion)
        return make_request(prompt, item.text, form, _TOKENS_PER_VERDICT * count)

    def check(self, item: _Asked, answer: Any) -> None:
        """Refuses verdicts on answers that are not one on each."""
        if item.criterion in QUESTION_CRITERIA:
            return
        expected = list(range(1, 1 + item.answers))
        numbers = sorted(one.number for one in answer.verdicts)
        if numbers != expected:
            raise ValueError(f"verdicts on {numbers}; give one on each of {expected}")


def _asked(graph: StudySceneGraph, made: StudyQuestions) -> Iterator[_Asked]:
    report = _report(graph)
    for question in made.questions:
        answers = list(question.all_answers())
        listed = [f"{n} ({a.answer_type}): {a.text}" for n, a in enumerate(answers, start=1)]
        for criterion in CRITERIA:
            if criterion in WITH_ANSWERS and not answers:
                continue
            parts = [f"Report:\n{report}\n"] if criterion in WITH_REPORT else []
            parts += [f"Question: {question.question}"] if criterion in WITH_QUESTION else []
            parts += listed if criterion in WITH_ANSWERS else []
            yield _Asked(question, criterion, "\n".join(parts))


@functools.cache
def verdict_form(criterion: str) -> type[pydantic.BaseModel]:
    """{"verdict"} on a question, {"verdicts": [{"number", "verdict"}]} on answers."""
    verdict: Any = Literal.__getitem__(tuple(CRITERIA[criterion]))
    if criterion in QUESTION_CRITERIA:
        return pydantic.create_model(criterion, __base__=Strict, verdict=verdict)
    one = pydantic.create_model(
        f"{criterion}_verdict", __base__=Strict, number=int, verdict=verdict
    )
    every: Any = list[one]  # type: ignore[valid-type]
    return pydantic.create_model(criterion, __base__=Strict, verdicts=every)


def _report(graph: StudySceneGraph) -> str:
    sections: dict[str, list[str]] = {}
    for sentence in graph.sentences.values():
        sections.setdefault(sentence.section_type, []).append(sentence.sentence)
    return "\n".join(f"{section}: {' '.join(texts)}" for section, texts in sections.items())
