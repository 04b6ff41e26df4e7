"""Reads a system's answer to one of CXR-QBA's questions: findings, yes or no, boxes."""

import functools
import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.metrics.localization import region_areas, region_iou
from cxrjax.papers.cxr_qba.claims import CLAIMS, Verdict, judge
from cxrjax.papers.cxr_qba.truth import CxrQbaQuestion, read_question
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.mention_details import UNCERTAIN, DetailedMention, DetailedReader
from cxrjax.radiology_text.mentions import yes_or_no
from cxrjax.records import QARecord
from cxrjax.scoring.predictions import Prediction, ReadBoxes, read_boxes
from cxrjax.scoring.scores import Outcome

# A question that the answer need not repeat: "Where is the effusion?" "In the left lung."
_PRESUPPOSES = re.compile(r"^[A-Z]\d\d_(?:where_is|how_severe_is)_")
_MAYBE = re.compile(r"^\W*(?:possibl[ey]|perhaps|maybe|probably|likely)\b", re.IGNORECASE)
# Notation of boxes: location tokens, tags, and lists of numbers.
_NOTATION = re.compile(r"<[^<>]*>|\[[\s\d.,;\[\]-]*\]|\([\s\d.,-]*\)")
# What a question that names no finding asks about.
_ABOUT = {"device": "device", "artifact": "artifact"}


@dataclass(frozen=True)
class PredictedAnswer:
    """A prediction, read.

    Attributes:
        boxes: float64 [n, 4], fractions.
        mentions: what it says of findings; the one asked about too, where only a yes, a no or a
            place speaks for it.
        yes: what it answers to a yes-or-no question; None where it says neither.
        parse: `ok`, a failure category, or None where there is no prediction.
    """

    text: str
    boxes: Float[np.ndarray, "n 4"]
    mentions: list[DetailedMention]
    yes: bool | None
    parse: str | None
    problems: tuple[str, ...]


@functools.cache
def _detailed_reader() -> DetailedReader:
    """One for all: it keeps the sentences that it has read."""
    return DetailedReader()


class AnswerReader:
    """Reads predictions beside their questions."""

    def __init__(self, codec: Codec | None, source: str) -> None:
        self.definitions = load_definitions()
        self._reader = _detailed_reader()
        self._codec = codec
        self._source = source

    def read(self, question: CxrQbaQuestion, prediction: Prediction | None) -> PredictedAnswer:
        """The answer; an empty one where there is no prediction.

        Raises:
            UserError: the prediction has no boxes and there is no codec.
        """
        if prediction is None:
            nothing = np.zeros((0, 4))
            return PredictedAnswer("", nothing, [], None, None, ())
        read = read_boxes(prediction, self._codec, question.height, question.width, self._source)
        plain = _without_boxes(prediction.text, read)
        mentions = self._mentions(question, plain)
        problems = read.problems
        if not plain.strip() and not len(read.boxes):
            problems = (*problems, "blank_answer")
        yes = self._yes(question, plain, mentions) if question.asks_yes_no else None
        return PredictedAnswer(plain, read.boxes, mentions, yes, read.parse, problems)

    def judge(self, question: CxrQbaQuestion, answer: PredictedAnswer) -> Verdict:
        """Its claims against the reference."""
        return judge(question, answer.mentions, self.definitions)

    def _mentions(self, question: CxrQbaQuestion, plain: str) -> list[DetailedMention]:
        mentions = self._reader.read(plain)
        asked = question.asked
        if asked is None or not plain.strip() or any(m.name == asked for m in mentions):
            return mentions
        if question.asks_yes_no:
            said = yes_or_no(plain)
            if said is None and _MAYBE.match(plain):
                return [*mentions, DetailedMention(asked, 0, 0, False, UNCERTAIN)]
            if said is not None:
                return [*mentions, DetailedMention(asked, 0, 0, not said)]
        elif not mentions and _PRESUPPOSES.match(str(question.attributes["question_type"])):
            if yes_or_no(plain) is False:
                return [DetailedMention(asked, 0, 0, True)]
            return self._reader.read(f"{asked} {plain}")
        return mentions

    def _yes(
        self, question: CxrQbaQuestion, plain: str, mentions: list[DetailedMention]
    ) -> bool | None:
        said = yes_or_no(plain)
        if said is not None:
            return said
        kind = str(question.attributes["question_type"])
        about = next((category for word, category in _ABOUT.items() if word in kind), "abnormality")
        concerned = [
            mention
            for mention in mentions
            if (
                mention.name == question.asked
                if question.asked
                else getattr(self.definitions.findings.get(mention.name), "category", "") == about
            )
        ]
        if not concerned:
            return True if _MAYBE.match(plain) else None
        there = any(not mention.negated for mention in concerned)
        return not there if "_is_normal" in kind else there


def _without_boxes(written: str, read: ReadBoxes) -> str:
    """The words of an answer: box notation taken out where it was read, and what looks like it."""
    for start, end in sorted(read.places or (), reverse=True):
        written = f"{written[:start]} {written[end:]}"
    return re.sub(r"[ \t]+", " ", _NOTATION.sub(" ", written)).strip()


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """What came of one question, for the page.

    Right: the yes or no is, where one is asked for; else every claim is borne out with all that is
    said of it, and every statement found. Not decidable where there is neither a claim nor a
    statement.
    """
    question = read_question(record, "references")
    reader = AnswerReader(codec, "predictions")
    answer = reader.read(question, prediction)
    verdict = reader.judge(question, answer)
    iou = None
    if len(answer.boxes) and len(question.boxes):
        iou = float(region_iou(*region_areas(answer.boxes, question.boxes)))
    right, note = _right(question, answer, verdict)
    return Outcome(right, iou, note)


def _right(
    question: CxrQbaQuestion, answer: PredictedAnswer, verdict: Verdict
) -> tuple[bool | None, str]:
    wrong = [f"{CLAIMS[kind]}: {claim.name}" for claim, kind in verdict.claims if kind != "right"]
    lost = [
        f"{'denied' if kind == 'contradicted' else 'not mentioned'}; it is there: {name}"
        for name, kind in verdict.statements
        if kind != "found"
    ]
    faults = "; ".join([*wrong, *lost])
    if question.yes is not None:
        said = {True: "yes", False: "no", None: "neither yes nor no"}
        right = answer.yes == question.yes
        note = f"said {said[answer.yes]}" + ("" if right else f", not {said[question.yes]}")
        return right, "; ".join(filter(None, [note, faults]))
    if faults:
        return False, faults
    if not verdict.claims and not verdict.statements:
        return None, "names nothing that is there, nor does the reference"
    return True, "all that it names is borne out, and nothing is missed"
