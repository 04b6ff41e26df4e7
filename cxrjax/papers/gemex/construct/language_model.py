"""Refining reports and asking about them by a language model, as the paper did both.

It used OpenBioLLM-70B to refine and GPT-4o to ask (sections 3.1.2 and 3.2); any model behind an
OpenAI-compatible server will do. What it says is checked: regions and forms by the client's check,
which has it answer again, and each question by the same filters as the templates' questions.
"""

import collections
import dataclasses
import random
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from cxrjax.errors import UserError
from cxrjax.language_model import Client, CostEstimate, NoAnswer, Request, request
from cxrjax.language_model.flags import ClientFlags, client_from_flags
from cxrjax.language_model.request import Form, Strict
from cxrjax.papers.gemex.construct.questions import (
    CONTENT_TYPES,
    QUESTIONS_PER_REPORT,
    Draft,
    RefinedReport,
)
from cxrjax.papers.gemex.construct.refine import Refinement
from cxrjax.papers.gemex.dialogue import LETTERS
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import ImageReport, RefinedSentence
from cxrjax.radiology_text.vocabulary import load_vocabulary
from cxrjax.records_io.quality import QualityLog

PROMPT_VERSION = "1"
CACHE_NAME = "language_model_answers.jsonl"
CONTENT = "sentences of radiology reports"
MAX_OUTPUT_TOKENS = 8192
_USUAL_REFINING, _USUAL_QUESTIONS = 400, 1500
FAILED = "generator_failed"


class Pair(Strict):
    """A refined sentence; `source` is the number of the report's sentence, from 1."""

    source: int
    sentence: str
    region: str


class Pairs(Strict):
    """What the refiner's model returns."""

    pairs: list[Pair]


class Asked(Strict):
    """One question; `answer` holds the right choices word for word, or the one answer."""

    question_type: Literal["open_ended", "closed_ended", "single_choice", "multi_choice"]
    content_type: str
    question: str
    choices: list[str]
    answer: list[str]
    reason: str
    regions: list[str]


class AskedQuestions(Strict):
    """What the generator's model returns."""

    questions: list[Asked]


class LanguageModelRefiner:
    """A `Refiner` that asks a language model, one request a report.

    Args:
        prompt: what `load_prompt` gives; another, where one is to be tried.

    Attributes:
        name, version: the model, and the version of the prompt.
    """

    def __init__(
        self, client: Client, quality: QualityLog, prompt: Mapping[str, Any] | None = None
    ) -> None:
        self.client = client
        self.name = client.settings.model
        self.version = f"prompt {PROMPT_VERSION}" if prompt is None else "another prompt"
        self._quality = quality
        self._prompt = prompt or load_prompt()

    def refine(self, reports: Iterable[ImageReport]) -> Iterator[tuple[ImageReport, Refinement]]:
        """Each report with its refined sentences, in order; several are asked for at once.

        Raises:
            UserError: sending is not allowed, the cost limit is reached, or the server is unusable;
                answers so far are in the cache.
        """
        if not (self.client.settings.is_local or self.client.settings.allow_sending):
            reports = list(reports)  # the refusal says how many there are
            self.client.require_permission(CONTENT, map(self._request, reports))
        for report, result in self.client.map(self._ask, reports):
            if isinstance(result, NoAnswer):
                # Without the detail, which may quote the report.
                self._quality.set_aside(FAILED, report.report_id, report.where, result.category)
                result = Refinement([], collections.Counter())
            yield report, result

    def estimate(self, reports: Iterable[ImageReport]) -> CostEstimate:
        """The dry run: what `refine` would send and cost. Sends nothing."""
        return self.client.estimate(map(self._request, reports))

    def _request(self, report: ImageReport) -> Request[Pairs]:
        return refining_request(report, self._prompt)

    def _ask(self, report: ImageReport) -> Refinement | NoAnswer:
        def check(answer: Pairs) -> None:
            for pair in answer.pairs:
                _known_region(pair.region)
                if not 1 <= pair.source <= len(report.sentences):
                    raise ValueError(f"no sentence has the number {pair.source}")
                if len(pair.sentence.split()) < 3:
                    raise ValueError(f"{pair.sentence!r} is no complete sentence")

        try:
            answer = self.client.ask(self._request(report), check)
        except NoAnswer as failure:
            return failure
        return _refinement(report, answer)


class LanguageModelGenerator:
    """A `QuestionGenerator` that asks a language model, one request a report.

    Args:
        seed: decides the order of choices, which is drawn, not the model's.
    """

    def __init__(self, client: Client, quality: QualityLog, seed: int = 0) -> None:
        self.client = client
        self.name = client.settings.model
        self.version = f"prompt {PROMPT_VERSION}"
        self.seed = seed
        self._quality = quality

    def generate(
        self, reports: Iterable[RefinedReport]
    ) -> Iterator[tuple[RefinedReport, list[Draft]]]:
        """Each report with its questions, in order; several are asked for at once.

        Raises:
            UserError: as `LanguageModelRefiner.refine`.
        """
        if not (self.client.settings.is_local or self.client.settings.allow_sending):
            reports = list(reports)
            self.client.require_permission(CONTENT, map(question_request, reports))
        for refined, result in self.client.map(self._ask, reports):
            report = refined.report
            if isinstance(result, NoAnswer):
                self._quality.set_aside(FAILED, report.image_id, report.where, result.category)
                result = []
            yield refined, result

    def estimate(self, reports: Iterable[RefinedReport]) -> CostEstimate:
        """The dry run: what `generate` would send and cost. Sends nothing."""
        return self.client.estimate(map(question_request, reports))

    def _ask(self, refined: RefinedReport) -> list[Draft] | NoAnswer:
        try:
            answer = self.client.ask(question_request(refined), _check_questions)
        except NoAnswer as failure:
            return failure
        rng = random.Random(f"{self.seed}/{refined.report.report_id}/choices")
        return [to_draft(asked, rng) for asked in answer.questions]


def make_stages(
    flags: ClientFlags, out: Path, seed: int, quality: QualityLog
) -> tuple[LanguageModelRefiner, LanguageModelGenerator]:
    """Both stages, with one client each.

    Answers are kept in `out` where `--cache` names no other file.

    Raises:
        UserError: as `client_from_flags`.
    """
    # The client maps over one stage at a time, and the stages interleave.
    refining = client_from_flags(flags, out / f"refining_{CACHE_NAME}")
    if flags.cache:
        cache = flags.cache.with_name(f"questions_{flags.cache.name}")
        flags = dataclasses.replace(flags, cache=cache)
    asking = client_from_flags(flags, out / f"questions_{CACHE_NAME}")
    return LanguageModelRefiner(refining, quality), LanguageModelGenerator(asking, quality, seed)


def load_prompt() -> dict[str, Any]:
    """The prompts, from the package's data file."""
    return request.load_prompt(str(__package__), f"language_model_prompt_v{PROMPT_VERSION}")


def read_prompt(path: Path) -> dict[str, Any]:
    """A prompt file that is tried before it becomes a version of the package's.

    Raises:
        UserError: it cannot be read, or has no `[refine] system` with `{regions}`.
    """
    try:
        prompt = tomllib.loads(path.read_text(encoding="utf-8"))
        written = prompt["refine"]["system"].format(regions="REGIONS")
    except OSError as error:
        raise UserError(f"{path}: cannot read the prompt: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"{path}: {error}; expected TOML as cxrjax/papers/gemex/"
            f"language_model_prompt_v{PROMPT_VERSION}.toml, with [refine] system"
        ) from None
    if "REGIONS" not in written:
        raise UserError(f"{path}: [refine] system has no place for {{regions}}")
    return prompt


def refining_request(report: ImageReport, prompt: Mapping[str, Any]) -> Request[Pairs]:
    """What is asked to refine a report."""
    system = prompt["refine"]["system"].format(regions=", ".join(load_regions().regions))
    lines = [f"{k}: {sentence.text}" for k, sentence in enumerate(report.sentences, start=1)]
    return _request(system, "\n".join(lines), Pairs, _USUAL_REFINING)


def question_request(refined: RefinedReport) -> Request[AskedQuestions]:
    """What is asked to get a report's questions."""
    counts = ", ".join(f"{count} {kind}" for kind, count in QUESTIONS_PER_REPORT.items())
    system = load_prompt()["generate"]["system"].format(
        counts=f"{counts} questions", contents=", ".join(CONTENT_TYPES)
    )
    lines = [f"{one.text} ({one.region})" for one in refined.refinement.sentences]
    return _request(system, "\n".join(lines), AskedQuestions, _USUAL_QUESTIONS)


def to_draft(asked: Asked, rng: random.Random) -> Draft:
    """The question as the construction has it, choices in drawn order, lettered answers."""
    regions = tuple(dict.fromkeys(_known_region(name) for name in asked.regions))
    choosing = asked.question_type in ("single_choice", "multi_choice")
    choices = rng.sample(asked.choices, len(asked.choices)) if choosing else []
    given = asked.answer[0].strip()
    answer: str | tuple[str, ...] = given
    if choosing:
        letters = tuple(
            letter for letter, text in zip(LETTERS, choices, strict=False) if text in asked.answer
        )
        answer = letters[0] if asked.question_type == "single_choice" else letters
    elif asked.question_type == "closed_ended":
        answer = given.rstrip(".").capitalize() + "."
    return Draft(
        asked.question_type,
        asked.content_type,
        asked.question.strip(),
        answer,
        asked.reason.strip(),
        regions,
        tuple(choices),
    )


def _check_questions(answer: AskedQuestions) -> None:
    """The form of the questions; what they say is filtered one by one later.

    Raises:
        ValueError: with what is wrong, in words for the model.
    """
    found = collections.Counter[str](asked.question_type for asked in answer.questions)
    for kind, count in QUESTIONS_PER_REPORT.items():
        if found[kind] != count:
            raise ValueError(f"{found[kind]} {kind} questions; write {count}")
    for asked in answer.questions:
        if asked.content_type not in CONTENT_TYPES:
            raise ValueError(f"content {asked.content_type!r}; it must be one of {CONTENT_TYPES}")
        if not asked.regions or not asked.answer:
            raise ValueError(f"{asked.question!r} has no region or no answer")
        for name in asked.regions:
            _known_region(name)
        choosing = asked.question_type in ("single_choice", "multi_choice")
        if choosing:
            if not 3 <= len(asked.choices) <= 4 or not set(asked.answer) <= set(asked.choices):
                raise ValueError(
                    f"{asked.question!r} needs three or four choices, and answers from among them"
                )
            if asked.question_type == "single_choice" and len(asked.answer) != 1:
                raise ValueError(f"{asked.question!r} needs one right choice")
        elif asked.choices or len(asked.answer) != 1:
            raise ValueError(f"{asked.question!r} needs one answer and no choices")


def _refinement(report: ImageReport, answer: Pairs) -> Refinement:
    cue = load_vocabulary().cues["longitudinal"]
    left_out: collections.Counter[str] = collections.Counter()
    sentences = []
    for pair in sorted(answer.pairs, key=lambda pair: pair.source):
        if cue.search(pair.sentence.lower()):
            left_out["longitudinal"] += 1
            continue
        text = " ".join(pair.sentence.split())
        sentences.append(RefinedSentence(text, _known_region(pair.region), pair.source - 1))
    used = {pair.source for pair in answer.pairs}
    left_out["no_region"] += len(report.sentences) - len(used)
    return Refinement(list(dict.fromkeys(sentences)), +left_out)


def _known_region(name: str) -> str:
    region = load_regions().name(name)
    if region is None:
        raise ValueError(f"{name!r} is no region of the list")
    return region


def _request(system: str, user: str, form: type[Form], usual: int) -> Request[Form]:
    # The demonstrations are in the instruction.
    stage = {"system": system, "demonstrations": ()}
    return request.make_request(stage, user, form, usual, MAX_OUTPUT_TOKENS)
