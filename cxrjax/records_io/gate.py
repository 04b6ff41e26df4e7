"""The gate of every build: rejects records whose answer is no statement on the image.

An answer must not speak of a report, an annotation or a reader; lie on another side than it or its
question says; deny a class that is marked on the image, or one above or below it; or be a part of
its question. A record that fails is rejected with the first of these reasons.
"""

import collections
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from cxrjax.files import read_packaged
from cxrjax.paper import find_paper
from cxrjax.records import Answer, QARecord
from cxrjax.records_io.quality import QualityLog, Unusable

_WORDS = read_packaged(str(__package__), "gate.toml")
_OF_TEXTS = re.compile("|".join(_WORDS["of_texts"]), re.IGNORECASE)
_NO_SIDE = re.compile("|".join(_WORDS["no_side"]), re.IGNORECASE)
_BOTH = re.compile("|".join(_WORDS["both"]), re.IGNORECASE)
_SIDES = {side: re.compile(one, re.IGNORECASE) for side, one in _WORDS["sides"].items()}
_CLOSED = re.compile("|".join(_WORDS["closed"]), re.IGNORECASE)
_EMPTY = frozenset(_WORDS["empty"])
_PART = re.compile(_WORDS["part"], re.IGNORECASE)
_ASKS_PLACE = re.compile(_WORDS["asks_place"], re.IGNORECASE)
_NO = re.compile(r"no\b|không\b|[不没]", re.IGNORECASE)
_NOTATION = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_SENTENCE = re.compile(r"(?<=[.;]) ")
_WORD = re.compile(r"\w+")
# Of the image's width: a side's box may have its middle this far over the image's, where a patient
# is turned.
_OVER = 0.12

Marked = Mapping[tuple[str, str], Set[str]]  # (data set, image) -> classes


def admit(records: Iterable[QARecord], log: QualityLog, where: str) -> Iterator[QARecord]:
    """Yields the records that pass; `log` receives the others.

    Args:
        records: of one split. What is marked on an image is known from all of a sequence; of other
            iterables, from the records of a study or an image that follow one another.
        where: names the records in `log`.
    """
    groups: Iterable[Iterable[QARecord]] = [records]
    if not isinstance(records, Sequence):
        groups = (list(own) for _, own in itertools.groupby(records, _study))
    for group in groups:
        marked = _marked(group)
        for record in group:
            try:
                check(record, marked[record.dataset, record.image_id])
            except Unusable as fault:
                log.set_aside(fault.reason, record.question_id, where, fault.found)
            else:
                yield record


def _study(record: QARecord) -> tuple[str, str]:
    return record.dataset, record.study_id or record.image_id


def _marked(records: Iterable[QARecord]) -> Marked:
    """Classes that answers affirm for certain, or readers marked, on each image."""
    found: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for record in records:
        here = found[record.dataset, record.image_id]
        here |= {mark.label for marks in (record.readers or {}).values() for mark in marks}
        for answer in record.answers:
            if answer.polarity == "pos" and answer.certainty in (None, "certain"):
                here.update(answer.labels)
    return found


def check(record: QARecord, marked: Set[str] = frozenset()) -> None:
    """Checks a record.

    Args:
        marked: classes that are marked on its image.

    Raises:
        Unusable: `speaks_of_text`, `box_other_side`, `denied_class`, `answer_in_question`.
    """
    every = list(_walk(record.answers))
    # What is not mentioned is exported by request alone, and says so.
    texts = [answer.text for answer in every if answer.certainty != "not_mentioned"]
    if record.generator is not None and record.reason:  # published ones are as they were published
        texts.append(record.reason)
    for text in texts:
        if spoken := speaks_of(text):
            raise Unusable("speaks_of_text", f"{spoken!r} in {text[:200]!r}; no image shows it")
    _check_sides(record, every)
    _check_denials(record, marked)
    text = record.answer_text
    if not record.choices and not record.boxes and _within(text, record.question):
        raise Unusable("answer_in_question", f"{text!r} to {record.question!r}")


def _walk(answers: Iterable[Answer]) -> Iterator[Answer]:
    for answer in answers:
        yield answer
        yield from _walk(answer.sub_answers)


@functools.lru_cache(maxsize=1 << 15)  # many records have the same few words
def speaks_of(text: str) -> str:
    """Returns the words of a text that are of no image; "" without any."""
    found = _OF_TEXTS.search(_NOTATION.sub(" ", text))
    return found[0] if found else ""


@functools.lru_cache(maxsize=1 << 15)
def said_sides(text: str) -> frozenset[str]:
    """Returns the sides of the patient that a text names: left, right; both for "bilateral"."""
    plain = _NO_SIDE.sub(" ", _NOTATION.sub(" ", text))
    if _BOTH.search(plain):
        return frozenset(_SIDES)
    return frozenset(side for side, words in _SIDES.items() if words.search(plain))


def _check_sides(record: QARecord, every: Iterable[Answer]) -> None:
    lateral = (record.view or "").upper().startswith("L")
    if record.image_hw is None or lateral:
        return
    indication = str((record.variables or {}).get("indication") or "\n")
    # A class that names a side is the word of who drew the box.
    labels = dict.fromkeys(label for answer in record.answers for label in answer.labels)
    question = _without(record.question, [indication, *labels])
    asked = said_sides(question) if _is_one(question) else frozenset()
    for answer in every:
        # "Is it in the right lung?" - "No", and a box of the left one.
        denied = answer.polarity == "neg" or _NO.match(str(record.answer_key or answer.text))
        boxes = answer.boxes_by_image.get(record.image_id)
        if not boxes:
            continue
        of_regions = [said_sides(region) for region in answer.regions] or [frozenset()]
        text = _without(answer.text, labels)
        said = said_sides(text) or frozenset.intersection(*of_regions)
        # Of a report each sentence may have its own boxes, and one that names no side any.
        told = said if _is_one(text) else frozenset()
        for sides, who in ((told, "answer"), (asked, "question")):
            if len(sides) == 1 and (who == "answer" or not denied):
                _check_boxes(boxes, record.image_hw[1], next(iter(sides)), who)


def _without(text: str, words: Iterable[str]) -> str:
    return re.sub("|".join(map(re.escape, words)) or r"\Z", " ", text, flags=re.IGNORECASE)


def _is_one(text: str) -> bool:
    """Returns whether all sentences of a text name the same side, or none."""
    return len({said_sides(one) for one in _SENTENCE.split(text.strip())}) == 1


def _check_boxes(boxes: Iterable[Sequence[float]], width: int, side: str, who: str) -> None:
    for box in boxes:
        middle = (box[0] + box[2]) / 2 / width
        # The patient's left is on the right of the image.
        if (middle < 0.5 - _OVER) if side == "left" else (middle > 0.5 + _OVER):
            found = f"the {who} names the {side} side, a box is on the other: {list(box)}"
            raise Unusable("box_other_side", f"{found}, image {width} pixels wide")


def _check_denials(record: QARecord, marked: Set[str]) -> None:
    related = find_paper(record.dataset).part("related")
    if not marked or related is None:
        return
    denied = [one for one in record.answers if one.polarity == "neg" and not one.regions]
    for label in dict.fromkeys(label for one in denied for label in one.labels):
        near = [name for name in (label, *related(label)) if name in marked]
        if near and not _places(f"{record.question} {record.answer_text}", label):
            what = "it is" if near[0] == label else f"{near[0]} is"
            raise Unusable("denied_class", f"{label} is denied, and {what} marked on the image")


def _places(text: str, label: str) -> bool:
    """Returns whether a text is about a part of the chest only."""
    plain = text.lower().replace(label.lower(), " ")
    return bool(said_sides(plain) or _PART.search(plain))


@functools.lru_cache(maxsize=1 << 15)
def _within(answer: str, question: str) -> bool:
    """Returns whether an answer to an open question says no more than the question."""
    if _CLOSED.match(question.strip()):
        return False
    words = _WORD.findall(answer.lower())
    asked = _WORD.findall(question.lower())
    if not words:
        return False
    for start in range(len(asked) - len(words) + 1):
        offered = "or" in asked[max(start - 1, 0) : start + len(words) + 1]
        if asked[start : start + len(words)] == words and not offered:
            return True
    # "Where is the opacity of the left lung?" - "The opacity is seen in the left lung."
    left = {word for word in words if word not in _EMPTY} - {*asked}
    return bool(_ASKS_PLACE.match(question)) and not left and "or" not in asked
