"""Verdicts of a language model on questions and answers, as the release has them.

Each criterion is asked about on its own, with the context that the published table gives it: for
the criteria of answers one request holds a question's answers with their sub-answers, and a verdict
comes back for each. The release asked Llama 3.1 8B. A criterion without a usable answer stays away,
which leaves the question `unrated` (ratings.py).
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import pydantic

from cxrjax.language_model import Client, NoAnswer, Request
from cxrjax.papers.cxr_qba.construct.prompts import CONTENT, Strict, load_prompt, make_request
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


class LanguageModelRater:
    """Rates a study's questions, several requests at once.

    Attributes:
        name, version: the model, and the version of the prompt.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = client.settings.model
        self.version = f"prompt {load_prompt(PROMPT)['version']}"

    def rate(self, graph: StudySceneGraph, made: StudyQuestions, quality: QualityLog) -> None:
        """Writes verdicts into `answer_quality` and `question_quality`; counts those that failed.

        Raises:
            UserError: sending is not allowed, the cost limit is reached, or the server is unusable;
                answers so far are in the cache.
        """

        def ask(item: tuple[NativeQuestion, str, Request]) -> list[str] | NoAnswer:
            question, criterion, request = item
            try:
                answer: Any = self.client.ask(request, _check(question, criterion))
            except NoAnswer as failure:
                return failure
            if criterion in QUESTION_CRITERIA:
                return [answer.verdict]
            ordered = sorted(answer.verdicts, key=lambda one: one.number)
            return [one.verdict for one in ordered]

        for (question, criterion, _), found in self.client.map(ask, _asked(graph, made)):
            quality.examined["verdicts of a language model"] += 1
            if isinstance(found, NoAnswer):
                # Without the detail, which may quote the report.
                quality.warnings[f"{criterion} left unrated: {found.category}"] += 1
            elif criterion in QUESTION_CRITERIA:
                question.question_quality = {**question.question_quality, criterion: found[0]}
            else:
                for answer, verdict in zip(question.all_answers(), found, strict=True):
                    answer.answer_quality = {**answer.answer_quality, criterion: verdict}

    def require_permission(self, studies: Iterable[tuple[StudySceneGraph, StudyQuestions]]) -> None:
        """Refuses to send reports off this machine unasked, before anything is sent.

        Raises:
            UserError: as `Client.require_permission`.
        """
        self.client.require_permission(
            CONTENT, (one for graph, made in studies for one in rating_requests(graph, made))
        )


def rating_requests(graph: StudySceneGraph, made: StudyQuestions) -> Iterator[Request]:
    """What `LanguageModelRater.rate` asks about a study."""
    return (request for _, _, request in _asked(graph, made))


def _asked(
    graph: StudySceneGraph, made: StudyQuestions
) -> Iterator[tuple[NativeQuestion, str, Request]]:
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
            count = len(answers) if criterion in ANSWER_CRITERIA else 1
            request = make_request(
                load_prompt(PROMPT)[criterion],
                "\n".join(parts),
                verdict_form(criterion),
                _TOKENS_PER_VERDICT * count,
            )
            yield question, criterion, request


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


def _check(question: NativeQuestion, criterion: str) -> Any:
    if criterion in QUESTION_CRITERIA:
        return None
    expected = list(range(1, 1 + sum(1 for _ in question.all_answers())))

    def check(answer: Any) -> None:
        numbers = sorted(one.number for one in answer.verdicts)
        if numbers != expected:
            raise ValueError(f"verdicts on {numbers}; give one on each of {expected}")

    return check


def _report(graph: StudySceneGraph) -> str:
    sections: dict[str, list[str]] = {}
    for sentence in graph.sentences.values():
        sections.setdefault(sentence.section_type, []).append(sentence.sentence)
    return "\n".join(f"{section}: {' '.join(texts)}" for section, texts in sections.items())
