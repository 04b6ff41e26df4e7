"""Checks of finished questions (section 2.2 of the paper): form, source, length of reasons.

Nothing is dropped here: what is wrong is listed by its question, with a reason of quality.json.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, NO_FINDING, ImageAnnotation, related
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES
from cxrjax.papers.vindr_cxr_vqa.native import pixel_boxes
from cxrjax.records import QARecord
from cxrjax.records_io.quality import QualityLog, Unusable, check_box

DIFFICULTIES = ("Easy", "Medium")  # Table 3
# Half a pixel: texts hold whole numbers.
_ROUNDING = 0.5


def verify_structure(records: Iterable[QARecord], log: QualityLog, where: str) -> None:
    """Checks the seven fields of Table 2 and what they say about each other.

    Question, answer and reason have words; type and difficulty are of the closed lists; the finding
    is one of the 14 classes and the one that the answer is about; boxes parse, have an area within
    the image, and are those of the record; `gt_location` is among the answer's boxes. Finding and
    location may be null where the answer denies, or where it names several findings.

    Args:
        log: receives a line for each fault.
        where: the file, for the log.
    """
    seen: set[str] = set()
    for record in records:
        log.examined["questions"] += 1
        if record.question_id in seen:
            log.set_aside("duplicate_id", record.question_id, where, "a question_id used before")
        seen.add(record.question_id)
        for fault in _faults(record):
            log.set_aside(fault.reason, record.question_id, where, fault.found)


def _faults(record: QARecord) -> Iterator[Unusable]:
    for name, text in (
        ("question", record.question),
        ("answer", record.answer_text),
        ("reason", record.reason),
    ):
        if not (text or "").strip():
            yield Unusable("invalid_record", f"{name} is {text!r}; expected text")
    if record.question_type not in QUESTION_TYPES:
        found = f"type {record.question_type!r}; expected one of {list(QUESTION_TYPES)}"
        yield Unusable("invalid_record", found)
    if record.difficulty not in DIFFICULTIES:
        found = f"difficulty {record.difficulty!r}; expected one of {list(DIFFICULTIES)}"
        yield Unusable("invalid_record", found)
    yield from _finding_faults(record)
    yield from _box_faults(record)


def _labels(record: QARecord) -> list[str]:
    return [label for answer in record.answers for label in answer.labels]


def _denies(record: QARecord) -> bool:
    return record.negative_kind is not None or any(a.polarity == "neg" for a in record.answers)


def _finding_faults(record: QARecord) -> Iterator[Unusable]:
    labels = _labels(record)
    for label in dict.fromkeys([*labels, *([record.gt_finding] if record.gt_finding else [])]):
        if label not in (*CLASSES, NO_FINDING):
            yield Unusable("unknown_class", f"{label!r}; expected one of {list(CLASSES)}")
    if _denies(record):
        return
    if record.gt_finding is None:
        if len(set(labels)) == 1 and record.boxes:
            yield Unusable("invalid_record", f"gt_finding is null, the answer is about {labels[0]}")
    elif labels and record.gt_finding not in labels:
        found = f"gt_finding {record.gt_finding!r}, but the answer is about {labels}"
        yield Unusable("invalid_record", found)
    if record.gt_finding and not record.gt_location:
        yield Unusable("invalid_record", f"gt_finding {record.gt_finding!r} without gt_location")


def _box_faults(record: QARecord) -> Iterator[Unusable]:
    try:
        written = pixel_boxes(record.answer_text)
        located = pixel_boxes(record.gt_location or "")
    except Unusable as fault:
        yield fault
        return
    for x_min, y_min, x_max, y_max in record.boxes:
        try:
            check_box((x_min, y_min, x_max, y_max), record.image_hw)
        except Unusable as fault:
            yield fault
    if len(written) != len(record.boxes) or not all(_among(box, record.boxes) for box in written):
        yield Unusable(
            "box_mismatch",
            f"the answer's text has {written}, boxes_by_image {record.boxes}; expected the same",
        )
    if record.gt_location and not located:
        yield Unusable("box_text", f"gt_location {record.gt_location!r} holds no box")
    for box in located:
        if not _among(box, written):
            yield Unusable(
                "box_mismatch", f"gt_location {box} is not among the answer's boxes {written}"
            )


def _among(box: list[float], others: Iterable[list[float]]) -> bool:
    return any(max(abs(a - b) for a, b in zip(box, o, strict=True)) <= _ROUNDING for o in others)


def verify_source(
    records: Iterable[QARecord],
    images: Mapping[str, ImageAnnotation],
    log: QualityLog,
    where: str,
) -> None:
    """Compares every finding and box with the rows of the source table.

    A finding must be one that a reader marked on the image, each box one that a reader drew of it,
    to the pixel; what an answer denies must be marked by nobody.

    Args:
        images: image id -> its rows, images without findings too.
        log: receives a line for each record that disagrees.
    """
    for record in records:
        try:
            found = contradiction(record, images.get(record.image_id))
        except Unusable as fault:  # a location that does not parse has nothing to compare
            found = fault.found
        log.examined["questions compared with the table"] += 1
        if found:
            log.set_aside("source_mismatch", record.question_id, where, found)


def contradiction(record: QARecord, image: ImageAnnotation | None) -> str:
    """Names what of a record the table does not have; "" where it agrees.

    Raises:
        Unusable: its location does not parse.
    """
    if image is None:
        return f"image {record.image_id}, which the table does not have"
    if record.negative_kind == "no_finding_image" and not image.normal:
        marked = ", ".join(image.present) or "something beyond the 14 classes"
        return f"negative_kind no_finding_image, but readers marked {marked}"
    labels = [*_labels(record), *([record.gt_finding] if record.gt_finding else [])]
    labels = [label for label in dict.fromkeys(labels) if label != NO_FINDING]
    if _denies(record):
        for label in labels:
            near = [name for name in (label, *related(label)) if name in image.present]
            if near:
                what = "it" if near[0] == label else near[0]
                return f"{label} is denied, but a reader marked {what}"
        return ""
    for label in labels:
        if label not in image.present:
            return f"finding {label}, which no reader marked on this image"
    drawn = [list(box) for label in labels for box in image.boxes_of(label)]
    for box in [*record.boxes, *pixel_boxes(record.gt_location or "")]:
        if not _among(box, drawn):
            return f"box {box}, which is no reader's box of {' or '.join(labels)}"
    return ""


def coverage(records: Iterable[QARecord], images: Iterable[ImageAnnotation]) -> dict[str, int]:
    """Counts the table's images with findings that are asked about."""
    asked = collections.Counter(record.image_id for record in records)
    abnormal = [image.image_id for image in images if image.findings]
    return {
        "images_with_findings": len(abnormal),
        "asked_about": sum(image_id in asked for image_id in abnormal),
        "not_asked_about": sum(image_id not in asked for image_id in abnormal),
    }
