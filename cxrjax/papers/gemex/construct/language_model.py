"""Refining reports and asking about them by a language model, as the paper did both.

It used OpenBioLLM-70B to refine and GPT-4o to ask (sections 3.1.2 and 3.2); any model behind an
OpenAI-compatible server will do. What it says is checked: regions and forms by the client's check,
which has it answer again, and each question by the same filters as the templates' questions.
"""

import collections
import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic

from cxrjax.errors import UserError
from cxrjax.files import read_packaged, reading
from cxrjax.language_model.client import Client
from cxrjax.language_model.flags import CACHE_NAME, ClientFlags, client_from_flags
from cxrjax.language_model.request import NoAnswer, Request
from cxrjax.language_model.stage import Stage, Strict, make_request
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
from cxrjax.radiology_text.english import load_vocabulary
from cxrjax.records_io.quality import QualityLog
from cxrjax.untrusted.foreign_files import MIB, read_lines
from cxrjax.untrusted.json_text import parse_object

PROMPT, DEMONSTRATIONS = "language_model_prompt_v1", "demonstrations.jsonl"
CONTENT = "sentences of radiology reports"
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


class LanguageModelRefiner(Stage[ImageReport, Pairs]):
    """A `Refiner` that asks a language model, one request a report.

    Args:
        prompt: what `load_prompt` gives; another, where one is to be tried.
    """

    content = CONTENT

    def __init__(
        self, client: Client, quality: QualityLog, prompt: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(client, (prompt or load_prompt()).get("version", "untitled"))
        self._quality = quality
        system = (prompt or load_prompt())["refine"]["system"]
        # The demonstrations are in the instruction.
        self._prompt = {"system": system.format(regions=", ".join(load_regions().regions))}

    def refine(self, reports: Iterable[ImageReport]) -> Iterator[tuple[ImageReport, Refinement]]:
        """Yields each report with its refined sentences, in order; none where asking failed.

        Raises:
            UserError: as `Stage.answers`.
        """
        for report, answer in self.answers(reports):
            if isinstance(answer, NoAnswer):
                # Without the detail, which may quote the report.
                self._quality.set_aside(FAILED, report.report_id, report.where, answer.category)
                yield report, Refinement([], collections.Counter())
            else:
                yield report, _refinement(report, answer)

    def request(self, item: ImageReport) -> Request[Pairs]:
        """See `Stage.request`."""
        lines = [f"{k}: {sentence.text}" for k, sentence in enumerate(item.sentences, start=1)]
        return make_request(self._prompt, "\n".join(lines), Pairs, 400)

    def check(self, item: ImageReport, answer: Pairs) -> None:
        """See `Stage.check`."""
        for pair in answer.pairs:
            _known_region(pair.region)
            if not 1 <= pair.source <= len(item.sentences):
                raise ValueError(f"no sentence has the number {pair.source}")
            if len(pair.sentence.split()) < 3:
                raise ValueError(f"{pair.sentence!r} is no complete sentence")


class LanguageModelGenerator(Stage[RefinedReport, AskedQuestions]):
    """A `QuestionGenerator` that asks a language model, one request a report.

    Args:
        seed: decides the order of choices, which is drawn, not the model's.
        demonstrations: of `read_demonstrations`; None: the package's.
    """

    content = CONTENT
    left_out = 0

    def __init__(
        self, client: Client, quality: QualityLog, seed: int = 0, demonstrations: str | None = None
    ) -> None:
        super().__init__(client, load_prompt()["version"])
        if demonstrations is None:
            demonstrations = read_demonstrations(Path(__file__).with_name(DEMONSTRATIONS))
        self.seed = seed
        self._quality = quality
        counts = ", ".join(f"{count} {kind}" for kind, count in QUESTIONS_PER_REPORT.items())
        system = load_prompt()["generate"]["system"]
        contents = ", ".join(CONTENT_TYPES)
        system = system.format(counts=f"{counts} questions", contents=contents)
        self._prompt = {"system": f"{system}\n{demonstrations}"}

    def generate(
        self, reports: Iterable[RefinedReport]
    ) -> Iterator[tuple[RefinedReport, list[Draft]]]:
        """Yields each report with its questions, in order; none where asking failed.

        Raises:
            UserError: as `Stage.answers`.
        """
        for refined, answer in self.answers(reports):
            report = refined.report
            if isinstance(answer, NoAnswer):
                self._quality.set_aside(FAILED, report.image_id, report.where, answer.category)
                yield refined, []
                continue
            rng = random.Random(f"{self.seed}/{report.report_id}/choices")
            yield refined, [to_draft(asked, rng) for asked in answer.questions]

    def request(self, item: RefinedReport) -> Request[AskedQuestions]:
        """See `Stage.request`."""
        lines = [f"{one.text} ({one.region})" for one in item.refinement.sentences]
        return make_request(self._prompt, "\n".join(lines), AskedQuestions, 1500)

    def check(self, item: RefinedReport, answer: AskedQuestions) -> None:
        """See `Stage.check`."""
        _check_questions(answer)


def make_stages(
    flags: ClientFlags, out: Path, seed: int, quality: QualityLog, shown: Path | None = None
) -> tuple[LanguageModelRefiner, LanguageModelGenerator]:
    """Returns both stages, with one client each; answers are cached in `out`, or by `--cache`.

    Raises:
        UserError: as `client_from_flags`.
    """
    told = read_demonstrations(shown) if shown else None
    # The client maps over one stage at a time, and the stages interleave.
    refining = client_from_flags(flags, out / f"refining_{CACHE_NAME}", ["gemex"])
    if flags.cache:
        cache = flags.cache.with_name(f"questions_{flags.cache.name}")
        flags = dataclasses.replace(flags, cache=cache)
    asking = client_from_flags(flags, out / f"questions_{CACHE_NAME}", ["gemex"])
    generator = LanguageModelGenerator(asking, quality, seed, told)
    return LanguageModelRefiner(refining, quality), generator


def load_prompt() -> dict[str, Any]:
    """Returns the prompts, from the package's data file."""
    return read_packaged(str(__package__), f"{PROMPT}.toml")


class Demonstration(pydantic.BaseModel):
    """A question about an image, with the sentences that it is asked from."""

    sentences: list[tuple[str, str]]
    type: Literal["open_ended", "closed_ended", "single_choice", "multi_choice"]
    content: Literal[CONTENT_TYPES]  # type: ignore[valid-type]
    question: str
    choices: list[str] | None = None
    key: str | list[str]
    reason: str
    regions: list[str]

    @property
    def words(self) -> str:
        """The demonstration as the prompt has its own, choices and answers in words."""
        told = " ".join(f'"{text}" ({_known_region(region)})' for text, region in self.sentences)
        options = dict(choice.split(": ", 1) for choice in self.choices or ())
        keys = [self.key] if isinstance(self.key, str) else self.key
        answer = "; ".join(options[key] for key in keys) if options else " ".join(keys)
        offered = f" Choices: {'; '.join(options.values())}." if options else ""
        seen = ", ".join(map(_known_region, self.regions))
        return (
            f"For {told}\n{self.type}, {self.content}: {self.question}{offered} "
            f"Answer: {answer.rstrip('.')}. Reason: {self.reason} Regions: {seen}."
        )


def read_demonstrations(path: Path) -> str:
    """Returns the demonstrations of a JSON Lines file as a prompt shows them.

    Raises:
        UserError: the file cannot be read, or a line is no demonstration (names it).
    """
    shown = []
    with reading(path, "demonstrations"):
        for number, line in read_lines(path, MIB):
            try:
                shown.append(Demonstration.model_validate(parse_object(line)).words)
            except (ValueError, KeyError) as error:
                raise UserError(
                    f"{path}:{number}: {' '.join(str(error).split())}; expected a demonstration as "
                    f"in cxrjax/papers/gemex/construct/{DEMONSTRATIONS}"
                ) from None
    if not shown:
        raise UserError(f"{path}: no demonstration in it; expected one a line")
    return "\n".join(shown)


def to_draft(asked: Asked, rng: random.Random) -> Draft:
    """Returns the question as a draft: choices in random order, answers as letters."""
    regions = tuple(dict.fromkeys(_known_region(name) for name in asked.regions))
    choosing = asked.question_type in ("single_choice", "multi_choice")
    choices = rng.sample(asked.choices, len(asked.choices)) if choosing else []
    answer: str | tuple[str, ...] = asked.answer[0].strip()
    if choosing:
        lettered = zip(LETTERS, choices, strict=False)
        letters = tuple(letter for letter, text in lettered if text in asked.answer)
        answer = letters[0] if asked.question_type == "single_choice" else letters
    elif asked.question_type == "closed_ended":
        answer = str(answer).rstrip(".").capitalize() + "."
    kind, content, question = asked.question_type, asked.content_type, asked.question.strip()
    return Draft(kind, content, question, answer, asked.reason.strip(), regions, tuple(choices))


def _check_questions(answer: AskedQuestions) -> None:
    """Checks the form of the questions; what they say is filtered one by one later."""
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
