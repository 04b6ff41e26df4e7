"""Drafts of questions, the interface of generators, and the checks a draft has to pass."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from cxrjax.papers.gemex.construct.refine import Refinement
from cxrjax.papers.gemex.dialogue import LETTERS
from cxrjax.papers.sources.report import ImageReport
from cxrjax.radiology_text.english import load_vocabulary, plain_words
from cxrjax.records_io.quality import Unusable

# Section 3.2: three open, two closed, three single-choice and three multi-choice questions.
QUESTIONS_PER_REPORT: Mapping[str, int] = {
    "open_ended": 3,
    "closed_ended": 2,
    "single_choice": 3,
    "multi_choice": 3,
}
MAX_QUESTIONS = sum(QUESTIONS_PER_REPORT.values())
CONTENT_TYPES = ("abnormality", "disease", "location", "severity", "cause", "size", "implication")


@dataclasses.dataclass(frozen=True)
class Draft:
    """A question with its answer."""

    question_type: str
    content_type: str
    question: str
    answer: str | tuple[str, ...]  # words; "Yes." or "No."; the letter; or the letters
    reason: str
    regions: tuple[str, ...]  # of the 30, in which the answer is seen
    choices: tuple[str, ...] = ()  # options without letters, in order
    template_id: str | None = None  # None of a language model

    @property
    def lettered(self) -> list[str]:
        """Options as the release writes them: `A: Pulmonary edema`."""
        return [f"{letter}: {text}" for letter, text in zip(LETTERS, self.choices, strict=False)]

    @property
    def answer_words(self) -> list[str]:
        """Answer in words: the options that its letters name, or itself."""
        if not self.choices:
            return [self.answer] if isinstance(self.answer, str) else list(self.answer)
        return [self.choices[LETTERS.index(letter)] for letter in self.answer]


class RefinedReport(NamedTuple):
    """A report and what refining made of it."""

    report: ImageReport
    refinement: Refinement


class QuestionGenerator(Protocol):
    """Makes questions out of refined reports; `left_out` counts those not asked."""

    name: str
    version: str
    left_out: int

    def generate(
        self, reports: Iterable[RefinedReport]
    ) -> Iterator[tuple[RefinedReport, list[Draft]]]:
        """Yields each report with its questions, in order; none where none can be made."""
        ...


# Rule 3 of Table 2: who answers sees the image alone. ("The report" of one who was told is rule 4.)
_TEXT = re.compile(
    r"\b(?:report(?:s|ed)?|sentences?|phrases?|(?:the|this) (?:text|description)|stated|states)\b"
)


def check(draft: Draft) -> None:
    """Filters a question: rules of the paper's Table 2, and ours.

    Raises:
        Unusable: `longitudinal`, `view_wording`, `answer_leakage`, `choices_not_exclusive`,
            `text_reference`, `invalid_record`.
    """
    _check_answer(draft)
    cues = load_vocabulary().cues
    said = " ".join([draft.question, *draft.choices, *draft.answer_words, draft.reason]).lower()
    for cue, reason in (
        (cues["longitudinal"], "longitudinal"),
        (cues["view"], "view_wording"),
        (_TEXT, "text_reference"),
    ):
        if found := cue.search(said):
            raise Unusable(reason, f"the word {found[0]!r}")
    if draft.content_type not in CONTENT_TYPES:
        raise Unusable("invalid_record", f"content type {draft.content_type!r}")
    _check_leakage(draft)
    _check_exclusive(draft)


def _check_answer(draft: Draft) -> None:
    choosing = draft.question_type in ("single_choice", "multi_choice")
    letters, answer = LETTERS[: len(draft.choices)], draft.answer
    fits = {
        "open_ended": isinstance(answer, str) and bool(answer.strip()),
        "closed_ended": answer in ("Yes.", "No."),
        "single_choice": isinstance(answer, str) and answer in tuple(letters),
        "multi_choice": not isinstance(answer, str)
        and 0 < len(answer) == len({*answer} & {*letters}),
    }[draft.question_type]
    if not fits or choosing != (len(draft.choices) >= 2):
        found = f"{draft.question_type} answered {answer!r} of {len(draft.choices)} options"
        raise Unusable("invalid_record", found)
    if not draft.question.strip() or not draft.reason.strip() or not draft.regions:
        raise Unusable("invalid_record", "no question, no reason or no region")


def _check_leakage(draft: Draft) -> None:
    """Refuses an answer in its own question; of a list, one that the others are not in."""
    if draft.question_type == "closed_ended":
        return
    # "How severe" leaves the degree open.
    asked = f" {plain_words(draft.question)} ".replace(" how severe ", " how ")
    named = {option for option in draft.choices if f" {plain_words(option)} " in asked}
    inside = any(f" {plain_words(answer)} " in asked for answer in draft.answer_words)
    if inside and named != {*draft.choices}:
        raise Unusable("answer_leakage", f"{draft.question_type} {draft.template_id}")


def _check_exclusive(draft: Draft) -> None:
    for option, other in itertools.combinations(map(plain_words, draft.choices), 2):
        if not option or option == other:
            raise Unusable("choices_not_exclusive", "two options are the same")
        held = f" {option} " in f" {other} " or f" {other} " in f" {option} "
        if held and not {"normal", "abnormal", "absent"} & {option, other}:
            raise Unusable("choices_not_exclusive", "one option holds another")
