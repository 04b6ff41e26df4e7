"""The released rows of GEMeX, of training (one JSON array) and test (JSON Lines per type).

    sub_training_data.json         [{"conversations": [{"from": "human", "value": "<image>\\n..."},
                                     {"from": "gpt", "value": "<answer> ... <location> [[...]]"}],
                                     "row_id", "q_type", "type_prompt", "image"}]
    test/open_ended_question.jsonl {"question", "type", "answer", "reason", "visual_regions",
                                    "visual_locations", "image_path", "ori_report", "q_id",
                                    "row_id"}

`row_id` is an image's: all its questions share it. `q_id` counts the questions of a test file.

A file's boxes are [x_min, y_min, x_max, y_max], as the released values show, or
[x, y, width, height], as the data set's author says: each file is judged by its own boxes, on the
frame of 224 pixels. In records, boxes stand in the answer's text on that frame, which needs no
image; `locate` adds them in pixels once the image's size is known. What a record has
no field for, or says in other words than the row, is kept as it was: record to native gives the row
again, up to the order of keys. `ori_report` is a credentialed text: it is dropped unless asked for.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np

from cxrjax.codecs import CODECS
from cxrjax.codecs.prose import SIDE
from cxrjax.errors import ForeignError, UserError
from cxrjax.papers.gemex import dialogue
from cxrjax.papers.sources.regions import load_regions
from cxrjax.records import Answer, Provenance, QARecord
from cxrjax.records_io.quality import Unusable, usable_name, usable_path
from cxrjax.untrusted.json_text import parse_json

BoxFormat = Literal["xyxy", "xywh"]


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Counts of a file's boxes by the ways in which they can be read."""

    either: int = 0  # as both; xyxy, xywh: in this way alone; neither: in none
    xyxy: int = 0
    xywh: int = 0
    neither: int = 0


_STRAY = 0.2  # of the boxes that decide: so many may be mistakes


def weigh(boxes: Iterable[Any]) -> Evidence:
    """The evidence of a file's boxes."""
    counts = collections.Counter(
        (_is_box(box) and _fits_corners(box), _is_box(box) and _fits_size(box)) for box in boxes
    )
    return Evidence(
        either=counts[True, True],
        xyxy=counts[True, False],
        xywh=counts[False, True],
        neither=counts[False, False],
    )


def decide(evidence: Evidence, where: str) -> BoxFormat:
    """The convention that a file keeps to; xyxy where its boxes could be both.

    Raises:
        UserError: of the boxes that can be read in one way alone, more than one in five is of the
            rarer way: no stray ones, which are set aside with their rows.
    """
    stray, rest = sorted((evidence.xyxy, evidence.xywh))
    if stray > _STRAY * (stray + rest):
        raise UserError(
            f"{where}: {evidence.xyxy} boxes can only be [x_min, y_min, x_max, y_max] and "
            f"{evidence.xywh} only [x, y, width, height] on {SIDE} pixels; name one by "
            "--coord_format=xyxy or xywh, and the others are set aside"
        )
    return "xywh" if evidence.xywh > evidence.xyxy else "xyxy"


def to_corners(box: Any, box_format: BoxFormat) -> tuple[float, float, float, float]:
    """A native box as xyxy on the frame of 224.

    Raises:
        Unusable: `bad_box`, four numbers are missing; `wrong_frame`, they are no box of the frame.
    """
    if not _is_box(box):
        raise Unusable("bad_box", f"{box!r}; expected four numbers")
    if not (_fits_corners(box) if box_format == "xyxy" else _fits_size(box)):
        raise Unusable("wrong_frame", f"{list(box)} is no {box_format} box within {SIDE} pixels")
    x, y, a, b = box
    return (x, y, a, b) if box_format == "xyxy" else (x, y, x + a, y + b)


def _is_box(box: Any) -> bool:
    return (
        isinstance(box, Sequence)
        and len(box) == 4
        and all(type(value) in (int, float) for value in box)
    )


def _fits_corners(box: Sequence[float]) -> bool:
    return 0 <= box[0] < box[2] <= SIDE and 0 <= box[1] < box[3] <= SIDE


def _fits_size(box: Sequence[float]) -> bool:
    x, y, width, height = box
    return x >= 0 and y >= 0 and 0 < width <= SIDE - x and 0 < height <= SIDE - y


REPORT_FIELD = "ori_report"
# Fields of a row as they were, and fields it lacks, kept where no model can see them.
EXTRA_FIELDS = "native_fields"
ABSENT_FIELDS = "native_absent"
_TRAIN_FIELDS = ("conversations", "q_type", "image")
TEST_FIELDS = ("question", "answer", "reason", "visual_locations", "image_path")
# Where the release calls a region otherwise than the paper's Table 8.
_RELEASED_NAMES = {"cardiac silhouette": "cardiac region"}


def to_record(
    row: Any,
    split: str,
    file_type: str | None,
    chosen: BoxFormat,
    keep_reports: bool,
    source: Provenance | None,
) -> QARecord:
    """The record of a row.

    Args:
        file_type: question type of a test file, None for training rows.

    Raises:
        Unusable: a field is missing or of another type, or a box is none.
    """
    if not isinstance(row, dict):
        raise Unusable("invalid_record", f"{type(row).__name__}; expected a row's object")
    record = _test_record(row, file_type, chosen) if file_type else _train_record(row, chosen)
    record = record.model_copy(update={"split": split, "provenance": source})
    rebuilt = to_native(record)
    extra = {
        key: value
        for key, value in row.items()
        if (key not in rebuilt or rebuilt[key] != value) and (keep_reports or key != REPORT_FIELD)
    }
    absent = [key for key in rebuilt if key not in row]
    kept = {EXTRA_FIELDS: extra} if extra else {}
    return record.model_copy(
        update={"quality": {**kept, **({ABSENT_FIELDS: absent} if absent else {})}}
    )


def to_native(record: QARecord) -> dict[str, Any]:
    """The row that a record was read from, or, of one that was built here, the one it makes."""
    parsed = dialogue.parse_answer(record.answer_text, record.question_type, record.choices)
    if record.split == "test":
        row: dict[str, Any] = {
            "question": record.question,
            "type": record.content_type,
            "answer": record.answer_key if record.answer_key is not None else parsed.answer,
            "reason": record.reason,
            "visual_regions": [_RELEASED_NAMES.get(r, r) for r in record.answers[0].regions],
            "visual_locations": _frame_boxes(parsed.location),
            "image_path": _released_path(record),
            "q_id": record.question_id,
            "row_id": record.image_id,
        }
        if record.choices:
            row["choices"] = record.choices
    else:
        location = parsed.location.replace("<location>[", "<location> [")
        answer = record.answer_text.removesuffix(parsed.location) + location
        row = {
            "conversations": [
                {
                    "from": "human",
                    "value": "<image>\n" + dialogue.human_text(record.question, record.choices),
                },
                {"from": "gpt", "value": answer},
            ],
            "row_id": record.image_id,
            "q_type": dialogue.QUESTION_TYPES[record.question_type].native,
            "type_prompt": record.type_prompt,
            "image": _released_path(record),
        }
    row.update(record.quality.get(EXTRA_FIELDS, {}))
    for key in record.quality.get(ABSENT_FIELDS, ()):
        del row[key]
    return row


def locate(record: QARecord, image_hw: tuple[int, int]) -> QARecord:
    """The record with its image's size, and its boxes in pixels of that image."""
    height, width = image_hw
    text = record.answer_text
    sides = (width, height, width, height)
    # Divided last: the frame's far edge is the image's, to the last bit.
    boxes = [
        [value * side / SIDE for value, side in zip(box, sides, strict=True)]
        for box in _frame_boxes(text)
    ]
    answer = record.answers[0].model_copy(
        update={"boxes_by_image": {record.image_id: boxes} if boxes else {}}
    )
    return record.model_copy(update={"image_hw": image_hw, "answers": [answer]})


def location_text(boxes: Iterable[Sequence[float]]) -> str:
    """Boxes on the frame of 224, whole pixels, as answers hold them."""
    rows = [[float(value) / SIDE for value in box] for box in boxes]
    return CODECS["gemex"].encode(np.asarray(rows, np.float64).reshape(-1, 4), SIDE, SIDE)


def _frame_boxes(text: str) -> list[list[int]]:
    """The boxes of a text on the frame of 224."""
    found = CODECS["gemex"].find(text, SIDE, SIDE)
    return [[round(float(value) * SIDE) for value in span.box] for span in found]


def _released_path(record: QARecord) -> str:
    """MIMIC-CXR-JPG's path of the image, which the release has; the record's may be a build's."""
    patient, study = record.patient_id, record.study_id
    if not patient or not study:
        return record.image_path
    suffix = PurePosixPath(record.image_path).suffix
    return f"{patient[:3]}/{patient}/{study}/{record.image_id}{suffix}"


def _train_record(row: dict[str, Any], chosen: BoxFormat) -> QARecord:
    for name in _TRAIN_FIELDS:
        if name not in row:
            raise Unusable("invalid_record", f"without {name}; found {sorted(row)}")
    types = {kind.native: name for name, kind in dialogue.QUESTION_TYPES.items()}
    if not isinstance(row["q_type"], str) or row["q_type"] not in types:
        raise Unusable("invalid_record", f"q_type {row['q_type']!r}; expected one of {list(types)}")
    if not isinstance(row.get("type_prompt", ""), str):
        raise Unusable("invalid_record", "type_prompt is no text")
    turns = row["conversations"]
    try:
        (human, gpt) = (turn["value"] for turn in turns)
        speakers = [turn["from"] for turn in turns]
    except (TypeError, KeyError, ValueError):
        speakers = []
    if speakers != ["human", "gpt"] or not (isinstance(human, str) and isinstance(gpt, str)):
        raise Unusable("invalid_record", "conversations are not one turn of human and one of gpt")
    question, choices = dialogue.split_choices(human.removeprefix("<image>\n"))
    kind = types[row["q_type"]]
    parsed = dialogue.parse_answer(gpt, kind, choices)
    boxes = [to_corners(box, chosen) for box in _listed(gpt)]
    answer = parsed.key if isinstance(parsed.key, list) else parsed.answer
    return _record(row["image"], row, kind, "train", question, choices).model_copy(
        update={
            "type_prompt": row.get("type_prompt", dialogue.QUESTION_TYPES[kind].instruction),
            "answers": [
                Answer(text=dialogue.assistant_text(answer, parsed.reason, location_text(boxes)))
            ],
            "answer_key": parsed.answer if kind == "closed_ended" else parsed.key,
            "reason": parsed.reason,
        }
    )


def _test_record(row: dict[str, Any], kind: str, chosen: BoxFormat) -> QARecord:
    for name in TEST_FIELDS:
        if name not in row:
            raise Unusable("invalid_record", f"without {name}; found {sorted(row)}")
    answer, choices = row["answer"], row.get("choices")
    if not (isinstance(answer, str) or _is_texts(answer)):
        raise Unusable("invalid_record", f"answer is {type(answer).__name__}; expected text")
    if choices is not None and not (
        _is_texts(choices) and all(re.match(f"[{dialogue.LETTERS}]", choice) for choice in choices)
    ):
        raise Unusable("invalid_record", "choices are no list of `A: ...`")
    if not isinstance(row.get("type", ""), str | None):
        raise Unusable("invalid_record", "type is no text")
    for name in ("question", "reason", "image_path"):
        if not isinstance(row[name], str):
            raise Unusable("invalid_record", f"{name} is no text")
    regions = row.get("visual_regions") or []
    if not isinstance(row["visual_locations"], list) or not isinstance(regions, list):
        raise Unusable("invalid_record", "visual_locations or visual_regions is no list")
    boxes = [to_corners(box, chosen) for box in row["visual_locations"]]
    text = dialogue.assistant_text(answer, row["reason"], location_text(boxes))
    names = load_regions()
    return _record(row["image_path"], row, kind, "test", row["question"], choices).model_copy(
        update={
            "content_type": row.get("type"),
            "answers": [
                Answer(
                    text=text,
                    regions=[names.name(str(one)) or str(one) for one in regions],
                )
            ],
            "answer_key": answer,
            "reason": row["reason"],
        }
    )


def fit_test_row(row: dict[str, Any], file: str) -> str:
    """Returns the question type of a test row out of a table, and gives its answer that form.

    The type is the row's `q_type`, that of the file's name, or what options and answer show. A
    table has one form of answers: a list also of a single choice, or text also of several letters.
    """
    names = {kind.native: name for name, kind in dialogue.QUESTION_TYPES.items()}
    answer, choices = row.get("answer"), row.get("choices")
    listed = answer if isinstance(answer, list) else [answer]
    if choices and isinstance(answer, str) and _LETTERS.fullmatch(answer):
        listed = re.findall(r"\w", answer)
    shown = "multi_choice" if len(listed) > 1 else "single_choice"
    if not choices:
        row.pop("choices", None)
        closed = str(listed[0] if listed else "").strip(" .").lower() in ("yes", "no")
        shown = "closed_ended" if closed else "open_ended"
    named = (name for name in names.values() if name.split("_")[0] in file)
    kind = names.get(str(row.pop("q_type", ""))) or next(named, shown)
    if kind == "multi_choice" or len(listed) == 1:
        row["answer"] = listed if kind == "multi_choice" else listed[0]
    return kind


_LETTERS = re.compile(rf"[\[\]'\", {dialogue.LETTERS}]+")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _record(
    image: Any,
    row: Mapping[str, Any],
    kind: str,
    split: str,
    question: str,
    choices: list[str] | None,
) -> QARecord:
    parts = PurePosixPath(usable_path(image)).parts
    usable_name(PurePosixPath(image).stem)
    own = row.get("q_id", row.get("row_id", PurePosixPath(image).stem))
    return QARecord(
        dataset="gemex",
        split=split,
        patient_id=patient_of(image),
        study_id=next((p for p in parts if p[:1] == "s" and p[1:].isdigit()), None),
        image_id=PurePosixPath(image).stem,
        image_path=image,
        question_id=f"{split}-{kind}-{own}",
        question=question,
        question_type=kind,
        choices=choices or None,
        type_prompt=dialogue.QUESTION_TYPES[kind].instruction,
    )


def patient_of(path: str) -> str | None:
    """The patient that MIMIC-CXR's path of an image names: p10000032 of p10/p10000032/..."""
    return next((p for p in PurePosixPath(path).parts if p[:1] == "p" and len(p) > 4), None)


def native_boxes(row: Any) -> list[Any]:
    """The boxes of a row as it has them, for weighing; none of a row that is broken."""
    if not isinstance(row, dict):
        return []
    listed = row.get("visual_locations")
    if listed is None:
        turns = row.get("conversations")
        last = turns[-1] if isinstance(turns, list) and turns else None
        try:
            listed = _listed(str(last.get("value")) if isinstance(last, dict) else "")
        except Unusable:
            return []
    return listed if isinstance(listed, list) else []


def _listed(text: str) -> list[Any]:
    """The list behind `<location>`, [] where there is no tag.

    Raises:
        Unusable: it is no list.
    """
    _, tag, tail = text.rpartition("<location>")
    try:
        listed = parse_json(tail) if tag else []
    except ForeignError:
        listed = None
    if not isinstance(listed, list):
        raise Unusable("box_text", f"{tail.strip()[:40]!r} behind <location>; expected [[...]]")
    return listed
