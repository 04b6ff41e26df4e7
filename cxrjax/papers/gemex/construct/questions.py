"""Drafts of questions, the interface of generators, and the checks a draft has to pass."""

import dataclasses
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
    """A question with its answer.

    Attributes:
        content_type: one of `CONTENT_TYPES`.
        choices: options without letters, in order; empty where there are none.
        answer: words; "Yes." or "No."; the letter; or the letters.
        regions: of the 30, in which the answer is seen.
        finding: name of the vocabulary's finding that it is about, if one.
        template_id: which wording, None of a language model.
    """

    question_type: str
    content_type: str
    question: str
    answer: str | tuple[str, ...]
    reason: str
    regions: tuple[str, ...]
    choices: tuple[str, ...] = ()
    finding: str | None = None
    template_id: str | None = None

    @property
    def lettered(self) -> list[str]:
        """The options as the release writes them: `A: Pulmonary edema`."""
        return [f"{letter}: {text}" for letter, text in zip(LETTERS, self.choices, strict=False)]

    @property
    def answer_words(self) -> list[str]:
        """The answer in words: the options that its letters name, or itself."""
        if not self.choices:
            return [self.answer] if isinstance(self.answer, str) else list(self.answer)
        return [self.choices[LETTERS.index(letter)] for letter in self.answer]


class RefinedReport(NamedTuple):
    """A report and what refining made of it."""

    report: ImageReport
    refinement: Refinement


class QuestionGenerator(Protocol):
    """Makes questions out of refined reports.

    Attributes:
        name, version: what the records' `generator` says.
    """

    name: str
    version: str

    def generate(
        self, reports: Iterable[RefinedReport]
    ) -> Iterator[tuple[RefinedReport, list[Draft]]]:
        """Each report with its questions, in order; no questions where none can be made."""
        ...


# Rule 3 of Table 2: who answers sees the image alone. ("The report" of one who was told is rule 4.)
_TEXT = re.compile(
    r"\b(?:report(?:s|ed)?|sentences?|phrases?|(?:the|this) (?:text|description)|stated|states)\b"
)


def check(draft: Draft) -> None:
    """The filters on a question: rules of the paper's Table 2, and ours.

    Raises:
        Unusable: `longitudinal`, `view_wording`, `answer_leakage`, `choices_not_exclusive`,
            `text_reference`, `invalid_record`.
    """
    _check_answer(draft)
    words = load_vocabulary()
    said = " ".join([draft.question, *draft.choices, *draft.answer_words, draft.reason]).lower()
    for cue, reason in (("longitudinal", "longitudinal"), ("view", "view_wording")):
        found = words.cues[cue].search(said)
        if found:
            raise Unusable(reason, f"the word {found[0]!r}")
    if found := _TEXT.search(said):
        raise Unusable("text_reference", f"the word {found[0]!r}")
    if draft.content_type not in CONTENT_TYPES:
        raise Unusable("invalid_record", f"content type {draft.content_type!r}")
    _check_leakage(draft)
    _check_exclusive(draft)


def _check_answer(draft: Draft) -> None:
    choosing = draft.question_type in ("single_choice", "multi_choice")
    letters = LETTERS[: len(draft.choices)]
    fits = {
        "open_ended": isinstance(draft.answer, str) and bool(draft.answer.strip()),
        "closed_ended": draft.answer in ("Yes.", "No."),
        "single_choice": isinstance(draft.answer, str) and draft.answer in tuple(letters),
        "multi_choice": not isinstance(draft.answer, str)
        and len(draft.answer) > 0
        and len(set(draft.answer)) == len(draft.answer)
        and set(draft.answer) <= set(letters),
    }[draft.question_type]
    if not fits or choosing != (len(draft.choices) >= 2):
        found = f"{draft.question_type} answered {draft.answer!r} of {len(draft.choices)} options"
        raise Unusable("invalid_record", found)
    if not draft.question.strip() or not draft.reason.strip() or not draft.regions:
        raise Unusable("invalid_record", "no question, no reason or no region")


def _check_leakage(draft: Draft) -> None:
    """No answer may stand in its own question; of a list, none that the others do not."""
    if draft.question_type == "closed_ended":
        return
    asked = f" {plain_words(draft.question)} "
    named = [option for option in draft.choices if f" {plain_words(option)} " in asked]
    for answer in draft.answer_words:
        inside = f" {plain_words(answer)} " in asked
        if inside and set(named) != set(draft.choices):
            raise Unusable("answer_leakage", f"{draft.question_type} {draft.template_id}")


def _check_exclusive(draft: Draft) -> None:
    plain = [plain_words(option) for option in draft.choices]
    for k, option in enumerate(plain):
        for other in plain[k + 1 :]:
            if not option or option == other:
                raise Unusable("choices_not_exclusive", "two options are the same")
            held = f" {option} " in f" {other} " or f" {other} " in f" {option} "
            if held and not {"normal", "abnormal", "absent"} & {option, other}:
                raise Unusable("choices_not_exclusive", "one option holds another")
