"""Reads a system's answer to one of CXR-QBA's questions, and holds it against the reference.

A claim is a finding that the answer says is there; a statement, one that the reference's main
answers say is there. Every claim falls into one category, the first of these that fits, and so does
every statement. A claim is borne out by the finding itself or by something more special (who says
"lung opacity" of a consolidation is right); it is denied by the reference's denial of the finding
or of something more general.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.evaluation.counted import Outcome
from cxrjax.evaluation.on_topic import is_about_another
from cxrjax.evaluation.predictions import Prediction, ReadBoxes, read_boxes
from cxrjax.evaluation.text_scores.sentences import without_notation
from cxrjax.files import read_packaged
from cxrjax.metrics.localization import region_areas, region_iou
from cxrjax.papers.cxr_qba.truth import (
    CxrQbaQuestion,
    TrueFinding,
    asked_for,
    read_question,
)
from cxrjax.radiology_text.answers import ANY_FINDING
from cxrjax.radiology_text.assertions import Assertion, Side, joined_side
from cxrjax.radiology_text.definitions import SIDES, Definitions, load_definitions
from cxrjax.radiology_text.facts import said_of
from cxrjax.radiology_text.mentions import yes_or_no
from cxrjax.radiology_text.reading import said_now
from cxrjax.records import QARecord

_CATEGORIES = read_packaged(str(__package__), "answers.toml")
CLAIMS: Mapping[str, str] = _CATEGORIES["claims"]
STATEMENTS: Mapping[str, str] = _CATEGORIES["statements"]
# Of these the finding itself is borne out.
SUPPORTED = ("wrong_side", "wrong_region", "wrong_severity", "wrong_certainty", "right")
# Region questions whose "no" clears the region of any abnormality; devices are none.
_REGION_TYPES = ("C02_describe_abnormal_region", "C03_is_abnormal_region", "C04_is_normal_region")


class SideTally(NamedTuple):
    """Claims borne out that name a side, where the reference names one too; and how they differ."""

    compared: int
    swapped: int
    partial: int


@dataclass(frozen=True)
class Claim:
    """A finding said to be there; of several mentions, what they say together."""

    name: str
    side: Side | None
    severity: str
    certain: bool
    regions: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """An answer against its reference."""

    claims: tuple[tuple[Claim, str], ...]  # (claim, key of `CLAIMS`)
    statements: tuple[tuple[str, str], ...]  # (finding, key of `STATEMENTS`)
    sides: SideTally


def judge(question: CxrQbaQuestion, said: Sequence[Assertion], definitions: Definitions) -> Verdict:
    """Every claim and every statement with its category."""
    claims = _claims(said)
    claimed = {claim.name for claim in claims}
    claimed |= {above for name in claimed for above in definitions.finding_ancestors(name)}
    denied = {one.finding for one in said if one.denies} - {claim.name for claim in claims}
    judged = tuple((claim, _claim_category(question, claim, definitions)) for claim in claims)
    statements = tuple(
        (name, _statement_category(name, claimed, denied, definitions))
        for name in sorted(question.stated)
    )
    return Verdict(judged, statements, _sides(question, claims, definitions))


def _claims(said: Sequence[Assertion]) -> list[Claim]:
    by_name: dict[str, list[Assertion]] = {}
    for one in said:
        if not one.denies:
            by_name.setdefault(one.finding, []).append(one)
    return [
        Claim(
            name=name,
            side=joined_side(one.side for one in found),
            severity=next((one.severity for one in found if one.severity), ""),
            certain=any(one.certainty == "certain" for one in found),
            regions=tuple(dict.fromkeys(r for one in found for r in one.regions)),
        )
        for name, found in by_name.items()
    ]


def _borne_out_by(
    question: CxrQbaQuestion, name: str, definitions: Definitions
) -> list[TrueFinding]:
    """The reference's findings that this one is, or is a more general name for."""
    if name == ANY_FINDING:
        return [true for one, true in question.present.items() if _is_abnormal(one, definitions)]
    if name in question.present:
        return [question.present[name]]
    return [
        true
        for special, true in question.present.items()
        if name in definitions.finding_ancestors(special)
    ]


def _is_abnormal(name: str, definitions: Definitions) -> bool:
    finding = definitions.findings.get(name)
    return finding is None or finding.category == "abnormality"


def _claim_category(question: CxrQbaQuestion, claim: Claim, definitions: Definitions) -> str:
    true = _borne_out_by(question, claim.name, definitions)
    if not true:
        above = set(definitions.finding_ancestors(claim.name))
        if claim.name in question.absent or above & (question.absent - question.denied_narrowly):
            return "denied_finding"
        return "denied_region" if _region_is_clear(question, claim, definitions) else "unsupported"
    sides = joined_side(finding.side for finding in true)
    if {claim.side, sides} == set(SIDES):
        return "wrong_side"
    regions = frozenset(region for finding in true for region in finding.regions)
    if claim.regions and regions and not _same_place(claim.regions, regions, definitions):
        return "wrong_region"
    severities = {finding.severity for finding in true} - {""}
    if claim.severity and severities and claim.severity not in severities:
        return "wrong_severity"
    return "right" if claim.certain in {finding.certain for finding in true} else "wrong_certainty"


def _region_is_clear(question: CxrQbaQuestion, claim: Claim, definitions: Definitions) -> bool:
    """Returns whether the question is about a region without abnormality in the reference."""
    if question.attributes["question_type"] not in _REGION_TYPES or question.present:
        return False
    finding = definitions.findings.get(claim.name)
    if finding is None or finding.category != "abnormality" or question.region is None:
        return False
    return not claim.regions or _same_place(claim.regions, {question.region}, definitions)


def _same_place(claimed: Collection[str], true: Collection[str], definitions: Definitions) -> bool:
    """Returns whether a claimed region equals a reference region, is in one or contains one."""
    return any(
        one == two
        or one in definitions.region_ancestors(two)
        or two in definitions.region_ancestors(one)
        for one in claimed
        for two in true
    )


def _statement_category(
    name: str, claimed: set[str], denied: set[str], definitions: Definitions
) -> str:
    if name in claimed:
        return "found"
    if denied & {name, *definitions.finding_ancestors(name)}:
        return "contradicted"
    return "missed"


def _sides(
    question: CxrQbaQuestion, claims: Sequence[Claim], definitions: Definitions
) -> SideTally:
    pairs = []
    for claim in claims:
        true = _borne_out_by(question, claim.name, definitions)
        side = joined_side(finding.side for finding in true)
        if claim.side and side:
            pairs.append({claim.side, side})
    swapped = sum(pair == set(SIDES) for pair in pairs)
    return SideTally(
        len(pairs), swapped, sum(len(pair) > 1 and "bilateral" in pair for pair in pairs)
    )


# A question that the answer need not repeat: "Where is the effusion?" "In the left lung."
_PRESUPPOSES = re.compile(r"^[A-Z]\d\d_(?:where_is|how_severe_is)_")
_MAYBE = re.compile(r"^\W*(?:possibl[ey]|perhaps|maybe|probably|likely)\b", re.IGNORECASE)
# What a question that names no finding asks about.
_ABOUT = {"device": "device", "artifact": "artifact"}


@dataclass(frozen=True)
class PredictedAnswer:
    """A prediction, read."""

    text: str
    boxes: Float[np.ndarray, "n 4"]  # float64 [n, 4], fractions
    # What it says of findings; the one asked about too, where only a yes, a no or a place speaks
    # for it.
    said: tuple[Assertion, ...]
    yes: bool | None  # what it answers to a yes-or-no question; None where it says neither
    parse: str | None  # `ok`, a failure category, or None where there is no prediction
    problems: tuple[str, ...]
    # Confidence of each box, NaN where it has none.
    box_scores: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    off_topic: bool = False  # all that it states is about something else than what is asked

    @property
    def says_nothing(self) -> bool:
        """Returns whether there is neither a finding nor a decision nor a box in it."""
        return not self.said and self.yes is None and not len(self.boxes)


class AnswerReader:
    """Reads predictions beside their questions."""

    def __init__(self, codec: Codec | None, source: str) -> None:
        self.definitions = load_definitions()
        self._codec = codec
        self._source = source

    def read(self, question: CxrQbaQuestion, prediction: Prediction | None) -> PredictedAnswer:
        """The answer; an empty one where there is no prediction.

        Raises:
            UserError: the prediction has no boxes and there is no codec.
        """
        if prediction is None:
            nothing = np.zeros((0, 4))
            return PredictedAnswer("", nothing, (), None, None, ())
        read = read_boxes(prediction, self._codec, question.height, question.width, self._source)
        plain = _without_boxes(prediction.text, read)
        said = _said(question, plain)
        problems = read.problems
        if not plain.strip() and not len(read.boxes):
            problems = (*problems, "blank_answer")
        yes = self._yes(question, plain, said) if question.asks_yes_no else None
        off_topic = question.asks_yes_no and is_about_another(plain, *_subject(question))
        given = (read.parse, problems, read.scores, off_topic)
        return PredictedAnswer(plain, read.boxes, said, yes, *given)

    def stated(self, question: CxrQbaQuestion) -> tuple[Assertion, ...]:
        """Reads what the sentences of the reference's main answers say of findings."""
        return _said(question, question.text)

    def judge(self, question: CxrQbaQuestion, answer: PredictedAnswer) -> Verdict:
        """Compares the answer's claims with the reference."""
        return judge(question, answer.said, self.definitions)

    def _yes(self, question: CxrQbaQuestion, plain: str, said: Sequence[Assertion]) -> bool | None:
        kind = str(question.attributes["question_type"])
        opened = _opened(question, plain)
        if opened is not None:
            return opened
        about = next((category for word, category in _ABOUT.items() if word in kind), "abnormality")
        concerned = [
            one
            for one in said
            if (
                one.finding == question.asked
                if question.asked
                else getattr(self.definitions.findings.get(one.finding), "category", "") == about
            )
        ]
        if not concerned or is_about_another(plain, *_subject(question)):
            return True if _MAYBE.match(plain) else None
        there = any(not one.denies for one in concerned)
        return not there if "_is_normal" in kind else there


def _said(question: CxrQbaQuestion, plain: str) -> tuple[Assertion, ...]:
    said, asked = said_of(plain, "en"), question.asked
    if asked is None or not plain.strip() or any(one.finding == asked for one in said):
        return said
    kind = str(question.attributes["question_type"])
    opened = _opened(question, plain)
    if question.asks_yes_no:
        if opened is not None:
            return (*said, Assertion(asked, "present" if opened else "absent"))
        if _MAYBE.match(plain):
            return (*said, Assertion(asked, "uncertain", "possible"))
    elif not said and _PRESUPPOSES.match(kind):
        if opened is False:
            return (Assertion(asked, "absent"),)
        # The finding is presupposed; only a place or a severity of it says something.
        told = said_now(f"{asked} {plain}")
        detailed = any(
            one.side or {*one.regions} - {"thorax"} or one.severity or one.distances for one in told
        )
        return told if detailed else said
    return said


def _subject(question: CxrQbaQuestion) -> tuple[tuple[str, ...], str]:
    """Findings that a question asks about, and the words for what it asks about."""
    named = (question.asked,) if question.asked else ()
    return named, question.about


def _opened(question: CxrQbaQuestion, plain: str) -> bool | None:
    """The yes or no that an answer opens with, if it does not speak of something else."""
    kind = str(question.attributes["question_type"])
    if is_about_another(plain, *_subject(question)):
        return None
    return yes_or_no(plain, asked_for(kind, question.asked))


def _without_boxes(written: str, read: ReadBoxes) -> str:
    """The words of an answer: box notation taken out where it was read, and what looks like it."""
    return re.sub(r"[ \t]+", " ", without_notation(written, read.places or ())).strip()


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """Returns what came of one question, for the page.

    Right: the yes or no is, where one is asked for; else every claim is borne out with all that is
    said of it, and every statement found. Not decidable where there is neither a claim nor a
    statement.
    """
    question = read_question(record, "references")
    if question is None:
        return Outcome(None, None, "not mentioned in the reference")
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
