"""Checks that a language model's words for a plan say what was planned, and only that."""

import re

from cxrjax.papers.vindr_cxr_vqa.construct.plan import REASON_WORDS, PlannedQuestion, Wording
from cxrjax.papers.vindr_cxr_vqa.construct.templates import format_box
from cxrjax.papers.vindr_cxr_vqa.native import pixel_boxes
from cxrjax.records_io.quality import Unusable

_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NEGATION = re.compile(r"\b(no|not|none|neither|nor|without|absent|absence|free)\b|n't\b", re.I)
_BOX = re.compile(r"<loc[^>]*>?")


def written_boxes(plan: PlannedQuestion) -> list[str]:
    """The boxes that the answer shows, as it writes them, in order."""
    return [format_box(box) for boxes in plan.boxes.values() for box in boxes]


def faults(plan: PlannedQuestion, wording: Wording) -> list[str]:
    """What is wrong with the words, each in a sentence that a model can act on; [] if nothing.

    Boxes and labels must be the plan's (the provenance rule, section 2.1). The reason may show
    other boxes of the image's annotation, and none that isn't in it.
    """
    return [
        *_question_faults(plan, wording.question),
        *_box_faults(plan, wording),
        *(_list_faults if plan.style == "list_all" else _finding_faults)(plan, wording.answer),
        *_polarity_faults(plan, _BOX.sub(" ", wording.answer)),
        *(["The reason is empty."] if not wording.reason.strip() else []),
    ]


def reason_words(reason: str) -> int:
    """Words between white space; a box counts as one."""
    return len(reason.split())


def reason_length_fits(reason: str) -> bool:
    """Whether it has as many words as Table 2 says, and no more."""
    return REASON_WORDS[0] <= reason_words(reason) <= REASON_WORDS[1]


def _question_faults(plan: PlannedQuestion, question: str) -> list[str]:
    found = []
    if not question.strip().endswith("?") or len(question.split()) < 2:
        found.append("The question must be a sentence that ends with a question mark.")
    if _BOX.search(question):
        found.append("The question must not hold a box.")
    named = [label for label in plan.labels if label.casefold() in question.casefold()]
    if plan.kind == "What" and named:
        found.append(f"The question must not name the finding ({named[0]}): it is the answer.")
    if plan.kind != "What" and plan.style != "list_all" and len(named) < len(plan.labels):
        missing = next(label for label in plan.labels if label not in named)
        found.append(f'The question must name the finding, written "{missing}".')
    return found


def _box_faults(plan: PlannedQuestion, wording: Wording) -> list[str]:
    found = []
    wanted = written_boxes(plan)
    try:
        shown = [_written(box) for box in pixel_boxes(wording.answer)]
        if shown != wanted:
            found.append(
                f"The answer must hold these boxes in this order and no other: "
                f"{' '.join(wanted) or 'none at all'}; it held {' '.join(shown) or 'none'}."
            )
    except Unusable as fault:
        found.append(f"In the answer, {fault.found}.")
    known = {format_box(finding.box) for finding in plan.image.findings} | set(wanted)
    try:
        other = [box for box in map(_written, pixel_boxes(wording.reason)) if box not in known]
        if other:
            found.append(f"The reason shows {other[0]}, which the annotation does not have.")
    except Unusable as fault:
        found.append(f"In the reason, {fault.found}.")
    return found


def _finding_faults(plan: PlannedQuestion, answer: str) -> list[str]:
    return [
        f'The answer must name the finding, written "{label}".'
        for label in plan.labels
        if label.casefold() not in answer.casefold()
    ]


def _list_faults(plan: PlannedQuestion, answer: str) -> list[str]:
    """One sentence for each label, with its boxes at the end, so that it can be told whose they
    are."""
    sentences = re.split(r"(?<=>\.)\s+", answer.strip())
    for label, sentence in zip(plan.labels, sentences, strict=False):
        shown = " ".join(_BOX.findall(sentence))
        wanted = " ".join(map(format_box, plan.boxes.get(label, ())))
        if label.casefold() not in sentence.casefold() or shown != wanted:
            return [f'One sentence must name "{label}" and end with its boxes, {wanted}.']
    if len(sentences) != len(plan.labels) or not answer.strip().endswith(">."):
        listed = ", ".join(plan.labels)
        return [f"The answer must have one sentence ending with boxes for each of: {listed}."]
    return []


def _polarity_faults(plan: PlannedQuestion, answer: str) -> list[str]:
    """Of an answer without its boxes."""
    first = re.split(r"\W+", answer.strip().casefold(), maxsplit=1)[0]
    if plan.negative_kind is not None:
        if plan.kind in ("Is_there", "Yes_No") and first != "no":
            return ['The answer must begin with "No": it is not there.']
        if not _NEGATION.search(answer):
            return ["The answer must say that it is not there."]
        return []
    if plan.kind in ("Is_there", "Yes_No") and plan.style != "list_all" and first != "yes":
        return ['The answer must begin with "Yes": it is there.']
    denied = any(
        re.search(rf"\bno\s+(?:\w+\s+(?:of|for)\s+)?{re.escape(label)}", answer, re.I)
        for label in plan.labels
    )
    if denied or first == "no":
        return ["The answer must not deny the finding: it is there."]
    if plan.kind == "How_many" and plan.style != "list_all" and not _counts(answer, plan.count):
        return [f"The answer must give the number {plan.count}."]
    return []


def _counts(answer: str, count: int) -> bool:
    forms = [str(count), *_NUMBER_WORDS[count : count + 1]]
    return re.search(rf"\b({'|'.join(forms)})\b", answer, re.I) is not None


def _written(box: list[float]) -> str:
    return format_box((box[0], box[1], box[2], box[3]))
