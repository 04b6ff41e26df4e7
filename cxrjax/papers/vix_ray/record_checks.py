"""Checks of ViX-Ray's records by rules of their own: the question against what is known of the
patient, findings against impression, stages against each other, marks and Unicode.

Vietnamese has no forms of number or article to disagree; a doubled word may be right. No box
stands in a record: sides are compared between findings and impression.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.papers.vix_ray.records import CONCLUDE, FINDINGS, GENDERS, IMPRESSION, VIEW_DEFINITIONS
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.reading import said_now
from cxrjax.records import QARecord

_SENTENCE = re.compile(r"(?<=[.?!]) ")
_STRAY = re.compile(r"[{}_]|  | [,.;:]|\.\.|,,|\N{REPLACEMENT CHARACTER}")
_AGE = re.compile(r", (\d+(?:\.\d+)?) tuổi")
_OPENS_NO_REPORT = re.compile(r"^(?:Ngoài ra|Bên cạnh đó|Đồng thời)\b")


def check_study(records: Sequence[QARecord]) -> list[str]:
    """Lists what contradicts itself in the records of one radiograph."""
    faults = [fault for record in records for fault in check_record(record)]
    texts = {kind: {r.answer_text for r in records if r.question_type == kind}
             for kind in (FINDINGS, IMPRESSION)}  # fmt: skip
    for kind, told in texts.items():
        if len(told) > 1:
            faults.append(f"{kind}: the stages have different ones")
    for record in records:
        for turn in record.history or ():
            if turn.answer not in texts[FINDINGS]:
                faults.append("history: not the findings of the other stages")
    for findings in texts[FINDINGS]:
        for impression in texts[IMPRESSION]:
            faults += _against(said_now(findings, "vi"), said_now(impression, "vi"))
    return faults


def check_record(record: QARecord) -> list[str]:
    """Lists what in one record contradicts itself, or is not written as a report is."""
    faults = [*_question_faults(record)]
    for name, text in (("question", record.question), ("answer", record.answer_text)):
        faults += [f"{name}: {fault}" for fault in _mark_faults(text)]
    if _OPENS_NO_REPORT.search(record.answer_text):
        faults.append("answer: opens with a word that goes on from another sentence")
    said = said_now(record.answer_text, "vi")
    faults += [f"answer: {fault}" for fault in _against(said, said)]
    return faults


def _question_faults(record: QARecord) -> Iterator[str]:
    if record.question == CONCLUDE:
        if not record.history:
            yield "question: asks for a conclusion from nothing"
        return
    named = [view for view in VIEW_DEFINITIONS if f"X-ray {view} (" in record.question]
    if named != ([record.view] if record.view else []):
        yield f"question: names the view {named}, of {record.view}"
    sexes = [sex for sex, word in GENDERS.items() if re.search(rf"\b{word}\b", record.question)]
    if sexes != ([record.sex] if record.sex else []):
        yield f"question: names the sex {sexes}, of {record.sex}"
    age = _AGE.search(record.question)
    if (float(age[1]) if age else None) != record.age:
        yield f"question: another age than {record.age}"


def _mark_faults(text: str) -> Iterator[str]:
    if text != unicodedata.normalize("NFC", text):
        yield "not in Unicode's form NFC"
    if found := _STRAY.search(text):
        yield f"stray marks {found[0]!r}"
    for sentence in _SENTENCE.split(text.strip()):
        if not (sentence[:1].isupper() or sentence[:1].isdigit()):
            yield f"{sentence!r} begins without a capital"
    if text.strip()[-1:] not in ".?!":
        yield "ends without a mark"


def _against(first: Iterable[Assertion], second: Iterable[Assertion]) -> Iterator[str]:
    """Findings that one of two texts asserts and the other denies, or sees elsewhere."""
    there = [one for one in first if one.status == "present" and one.certainty == "certain"]
    for one in second:
        same = [other for other in there if other.finding == one.finding]
        if one.denies and not one.organ and any(_at_one_side(one, other) for other in same):
            yield f"there is {one.finding}, and there is none"
        if one.status == "present" and one.side and same:
            sides = {other.side for other in same}
            if None not in sides and "bilateral" not in sides and one.side not in sides:
                yield f"{one.finding} on the {one.side}, and on the {sorted(map(str, sides))}"


def _at_one_side(one: Assertion, other: Assertion) -> bool:
    return one.side is None or other.side is None or one.side == other.side
