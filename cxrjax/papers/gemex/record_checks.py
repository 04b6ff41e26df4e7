"""Checks of GEMeX's records by rules of their own: none knows how the words were written.

Boxes against regions (number, side, level), places in words against regions, the key against the
options, the reason against answer, options and itself, sentences against simple grammar.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cxrjax.codecs.prose import SIDE
from cxrjax.files import read_patterns
from cxrjax.papers.gemex.dialogue import LETTERS, parse_answer
from cxrjax.radiology_text.reader import ReportReader
from cxrjax.radiology_text.sentence_faults import phrase_faults, sentence_faults
from cxrjax.records import QARecord

Box = Sequence[float]

# Of the image's width: a side's box may have its middle so far over the image's.
_OVER = 0.06
# A level's word -> shares of the image's height between which its boxes' middles lie.
_LEVELS = {"upper": (0.0, 0.5), "mid": (0.15, 0.8), "lower": (0.4, 1.0)}
_RE = read_patterns(str(__package__), "record_checks.toml")


class Claims(NamedTuple):
    """Findings that a text says are there, and that it denies by name; whether it says normal."""

    present: frozenset[str]
    absent: frozenset[str]
    normal: bool


def check_record(record: QARecord) -> list[str]:
    """Lists what in a record's words contradicts its boxes, its key, or other words of it."""
    answer = record.answers[0]
    regions = list(answer.regions)
    faults = [*_box_faults(record, regions), *_place_faults(record, regions)]
    if record.generator is not None:  # released rows name no regions, and have their own words
        faults += _key_faults(record)
        faults += _reason_faults(record)
    for name, text in (("question", record.question), ("reason", record.reason or "")):
        faults += [f"{name}: {fault}" for fault in sentence_faults(text)]
    for option in _options(record):
        faults += [f"option: {fault}" for fault in phrase_faults(option)]
    return faults


def _options(record: QARecord) -> list[str]:
    return [choice.partition(":")[2].strip() for choice in record.choices or ()]


def _box_faults(record: QARecord, regions: Sequence[str]) -> Iterator[str]:
    boxes = record.boxes
    if record.image_hw is None or not boxes:
        return
    height, width = record.image_hw
    text = parse_answer(record.answer_text, record.question_type, record.choices).location
    sizes = (width, height, width, height)
    framed = [
        [value * SIDE / size for value, size in zip(box, sizes, strict=True)] for box in boxes
    ]
    written = [[float(n) for n in row] for row in re.findall(_RE["row"], text)]
    if len(written) != len(boxes):
        yield f"boxes: {len(written)} in the answer's text, {len(boxes)} in the record"
    elif boxes and np.abs(np.subtract(written, framed)).max() > 1:
        yield f"boxes: {written} in the answer's text are not {framed}"
    if not regions:
        return
    if len(boxes) != len(regions):
        yield f"boxes: {len(boxes)} for {len(regions)} regions"
        return
    for region, (x_min, y_min, x_max, y_max) in zip(regions, boxes, strict=True):
        if not (0 <= x_min < x_max <= width and 0 <= y_min < y_max <= height):
            yield f"boxes: the {region}'s is not within the image"
        middle, level = (x_min + x_max) / 2 / width, (y_min + y_max) / 2 / height
        side = region.split()[0]
        # The patient's left is on the right of the image.
        if (side == "left" and middle < 0.5 - _OVER) or (side == "right" and middle > 0.5 + _OVER):
            yield f"boxes: the {region}'s is on the other side"
        if side == "bilateral" and not x_min < width / 2 < x_max:
            yield f"boxes: the {region}'s is on one side"
        spans = [_LEVELS[word] for word in _levels(region)]
        if spans and not min(low for low, _ in spans) <= level <= max(high for _, high in spans):
            yield f"boxes: the {region}'s is at another level"


def _levels(text: str) -> set[str]:
    return {first or second for first, second in _RE["level_words"].findall(text)}


def _sides(text: str) -> set[str]:
    named = {word.lower() for word in _RE["side_words"].findall(text)}
    return {"left", "right"} if named & {"both", "bilateral"} else named


def _place_faults(record: QARecord, regions: Sequence[str]) -> Iterator[str]:
    """Places that reason, question and answer name, and the regions do not have."""
    if not regions:
        return
    sides, levels = _sides(" ".join(regions)), _levels(" ".join(regions))
    texts = [("reason", _RE["general"].sub(" ", record.reason or ""))]
    if record.question_type == "open_ended":
        texts.append(("question", record.question))
    if record.question_type == "open_ended" and record.content_type == "location":
        texts.append(("answer", str(record.answer_key)))
    for name, text in texts:
        if extra := _sides(text) - sides:
            yield f"{name}: names the {' and the '.join(sorted(extra))} side, not of {regions}"
        if extra := _levels(text) - levels:
            yield f"{name}: names {' and '.join(sorted(extra))} zones, not of {regions}"
    if record.content_type == "location" and record.question_type == "closed_ended":
        same = _sides(record.question) == sides and _levels(record.question) == levels
        if same != (_yes(record) is True):
            yield f"answer: {record.answer_key} to {record.question!r}, regions {regions}"


def _yes(record: QARecord) -> bool | None:
    return {"yes": True, "no": False}.get(str(record.answer_key).rstrip(".").lower())


def _key_faults(record: QARecord) -> Iterator[str]:
    """Letters that no option has, and answers of another form than their question's."""
    key, options = record.answer_key, _options(record)
    letters = [key] if isinstance(key, str) else list(key or ())
    if record.question_type == "closed_ended" and _yes(record) is None:
        yield f"key: {key!r} is neither yes nor no"
    if record.question_type.endswith("_choice"):
        if not letters or set(letters) - set(LETTERS[: len(options)]):
            yield f"key: {key!r} of {len(options)} options"
        if record.question_type == "single_choice" and len(letters) != 1:
            yield f"key: {len(letters)} letters of a {record.question_type} question"
        if len({option.lower() for option in options}) < len(options):
            yield "options: one twice"
    written = parse_answer(record.answer_text, record.question_type, record.choices)
    if options and sorted(written.key or ()) != sorted(letters):
        yield f"key: {key!r}, and {written.answer!r} in the answer's text"


def _reason_faults(record: QARecord) -> Iterator[str]:
    """The reason against itself, and against what is answered."""
    own = _RE["general"].sub(" ", record.reason or "")
    said = read_claims(own)
    for finding in sorted(said.present & said.absent):
        yield f"reason: there is {finding}, and there is none"
    if len({word.lower() for word in _RE["degrees"].findall(own)}) > 1 and not record.choices:
        named = len(said.present)
        if named < 2:
            yield "reason: two degrees of one finding"
    kind = record.question_type
    if kind == "closed_ended":
        yield from _closed_faults(record, said)
    elif kind == "open_ended":
        yield from _open_faults(record, own, said)
    else:
        yield from _choice_faults(record, own, said)


def _closed_faults(record: QARecord, said: Claims) -> Iterator[str]:
    yes = _yes(record)
    if _RE["asks_normal"].search(record.question):
        if yes and (said.present or not said.normal):
            yield "reason: no word of a normal part, and the answer is yes"
        if not yes and not said.present:
            yield "reason: no finding, and the answer is no"
    elif record.content_type == "location":
        if not said.present:
            yield "reason: no finding is there"
    else:
        asked = _named(record.question)
        if yes and not asked <= said.present:
            yield f"reason: not that there is {sorted(asked)}, and the answer is yes"
        if not yes and not asked <= said.absent:
            yield f"reason: not that there is no {sorted(asked)}, and the answer is no"


def _open_faults(record: QARecord, own: str, said: Claims) -> Iterator[str]:
    answer = str(record.answer_key).rstrip(".")
    if _RE["normal"].fullmatch(answer):
        if said.present or not said.normal:
            yield f"reason: not that anything is {answer.lower()}"
    elif record.content_type in ("severity", "size", "cause"):
        if answer.lower() not in own.lower():
            yield f"reason: nothing of {answer.lower()!r}, which is the answer"
        others = {word.lower() for word in _RE["degrees"].findall(own)} - {answer.lower()}
        if record.content_type != "cause" and others:
            yield f"reason: {sorted(others)}, and the answer is {answer.lower()!r}"
    elif record.content_type in ("abnormality", "disease") and not _named(answer) <= said.present:
        yield f"reason: not that there is {answer.lower()!r}, which is the answer"


def _choice_faults(record: QARecord, own: str, said: Claims) -> Iterator[str]:
    options = _options(record)
    chosen = [LETTERS[n] in (record.answer_key or ()) for n in range(len(options))]
    denied = bool(_RE["asks_absent"].search(record.question))
    for option, right in zip(options, chosen, strict=True):
        yield from _option_faults(record, option, right, denied, own, said)


def _option_faults(
    record: QARecord, option: str, right: bool, denied: bool, own: str, said: Claims
) -> Iterator[str]:
    statement = re.search(r"\b(?:is|are|looks?|shows?)\b", option)
    if record.content_type == "location":
        if right != (option.lower() in record.answers[0].regions):
            yield f"key: {option!r} {'is' if right else 'is not'} chosen, against the regions"
    elif record.content_type in ("severity", "size"):
        if right != bool(re.search(rf"\b{re.escape(option)}\b", own, re.IGNORECASE)):
            yield f"reason: {option!r}, which {'is' if right else 'is not'} chosen"
    elif option == "Normal":
        if right != (said.normal and not said.present):
            yield f"reason: normal, which {'is' if right else 'is not'} chosen"
    elif statement:
        claims = read_claims(option)
        held = claims.present <= said.present and claims.absent <= said.absent
        if right and not (held and (not claims.normal or said.normal)):
            yield f"reason: nothing of {option!r}, which is chosen"
        repeated = option.lower() in own.lower()
        if not right and (repeated or (held and claims.present | claims.absent)):
            yield f"reason: {option!r}, which is not chosen"
    else:
        asked = _named(option)
        told = said.absent if denied else said.present
        if right and not asked <= told:
            yield f"reason: nothing of {option!r}, which is chosen"
        if not right and asked and asked <= told:
            yield f"reason: {option!r}, which is not chosen"


def read_claims(text: str) -> Claims:
    """Findings that a text asserts, by name; organs that it calls normal deny none."""
    present: set[str] = set()
    absent: set[str] = set()
    for sentence in re.split(r"(?<=[.?]) ", text):
        for finding, denies in _read(sentence.strip()):
            (absent if denies else present).add(finding)
    return Claims(frozenset(present), frozenset(absent), bool(_RE["normal"].search(text)))


@functools.lru_cache(maxsize=1 << 14)  # few sentences are of one image alone
def _read(sentence: str) -> tuple[tuple[str, bool], ...]:
    return tuple((one.finding, one.denies) for one in _reader().read(sentence) if not one.organ)


def _named(text: str) -> frozenset[str]:
    """Findings that a question or an option names, whatever it says of them."""
    plain = re.sub(r"^(?:Is|Are) (.+) (present)\?$", r"\1 is \2.", text).rstrip("?")
    asked = re.search(
        r"(?:there|show|sign of|evidence of|^Can) (?:any )?(.+?)(?: be seen| in this CXR|$)", plain
    )
    claims = read_claims(f"There is {asked[1] if asked else plain}.")
    return claims.present | claims.absent


@functools.cache
def _reader() -> ReportReader:
    return ReportReader()
