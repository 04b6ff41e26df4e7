"""The release's own file, data_v1.json: a list of images, each with its questions.

    [{"image_id": "...", "num_questions": 4,
      "vqa": [{"question", "answer", "reason", "type", "difficulty", "gt_finding", "gt_location"}]}]

Seven fields a question (Table 2 of the paper). Reading and writing back gives the same content, but
for what was set aside; fields beyond the seven are kept as they are. Of an answer with several
boxes that was made here, those but the first of `gt_location` are in `other_locations`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from cxrjax.codecs import CODECS
from cxrjax.files import reading, write_json
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, NO_FINDING
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES
from cxrjax.paths import to_path
from cxrjax.records import Answer, Provenance, QARecord
from cxrjax.records_io.csv_table import read_table
from cxrjax.records_io.quality import QualityLog, Unusable, usable_name, usable_record
from cxrjax.records_io.row_files import RowFolder, Shard, read_rows
from cxrjax.untrusted.json_stream import read_items

FILE_NAME = "data_v1.json"
SPLIT_FILE = "splits.json"
# Its names in a folder; a table has a row a question, with the image's id.
FILE_NAMES = (FILE_NAME, "vqa.json", "data_v1.csv", "vqa.csv")
# Table 2: field of the release -> attribute of a record.
_ATTRIBUTES = {
    "question": "question",
    "answer": "answer_text",
    "reason": "reason",
    "type": "question_type",
    "difficulty": "difficulty",
    "gt_finding": "gt_finding",
    "gt_location": "gt_location",
}
FIELDS = tuple(_ATTRIBUTES)
# Ours: the boxes of an answer with several, but the one of gt_location.
OTHER_BOXES = "other_locations"
_BOX = re.compile(r"<loc[^>]*>")
_MAY_BE_NULL = ("gt_finding", "gt_location")
_IMAGE_FIELDS = ("image_id", "num_questions", "vqa")
# Fields that a file has beyond the known ones, kept where no model can see them.
EXTRA_FIELDS = "native_fields"
EXTRA_IMAGE_FIELDS = "native_image_fields"
# The table has no image sizes and the codec wants one. No radiograph is larger, and a power of two
# keeps whole pixels exact in float32.
_ANY_SIZE = 1 << 16


def read_native(
    path: str | Path, quality: QualityLog, source: Provenance | None = None
) -> list[QARecord]:
    """Records of a release file (JSON, or the same as a table), split "" and image size unknown.

    What cannot be used is set aside in `quality`: an image with a broken structure whole, a
    question with a missing field, an unknown class, or boxes that don't parse by itself.

    Raises:
        UserError: the file cannot be read, is not a JSON list of images, or lacks a column.
    """
    path = to_path(path)
    records: list[QARecord] = []
    seen: set[str] = set()
    with reading(path):
        for where, entry in _images(path, quality):
            quality.examined["images"] += 1
            item = str(entry.get("image_id", ""))[:200] if isinstance(entry, dict) else ""
            with quality.rejecting(item, where):
                _check_image(entry, seen)
                seen.add(entry["image_id"])
                records.extend(_image_records(entry, where, quality, source))
    return records


def _images(path: Path, quality: QualityLog) -> Iterator[tuple[str, Any]]:
    """(where it stands, an image with its questions); rows of a question each are put together."""
    images: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    for where, entry in _entries(path, quality):
        if not isinstance(entry, dict) or "vqa" in entry or "question" not in entry:
            yield where, entry
            continue
        image_id = str(entry.pop("image_id", ""))
        entry.pop("num_questions", None)
        entry |= {name: entry.get(name) or None for name in _MAY_BE_NULL}
        images.setdefault(image_id, (where, []))[1].append(entry)
    for image_id, (where, vqa) in images.items():
        yield where, {"image_id": image_id, "num_questions": len(vqa), "vqa": vqa}


def _entries(path: Path, quality: QualityLog) -> Iterator[tuple[str, Any]]:
    """(where it stands, an object of a list in JSON, or a row of a table)."""
    if path.suffix != ".csv":
        for number, entry in enumerate(read_items(path)):
            yield f"{path.name}[{number}]", entry
        return
    for row in read_table(path, ("image_id", *FIELDS)):
        if row.fault:
            quality.set_aside(row.fault.reason, row.cells["image_id"], row.where, row.fault.found)
        else:
            yield row.where, dict(row.cells)


def unpack_rows(shards: Sequence[Shard], folder: Path, quality: QualityLog) -> None:
    """Writes rows of Parquet or JSON as a release: data_v1.json, images/, splits.json of several.

    Raises:
        UserError: a file cannot be read, or the folder not be written.
    """
    splits: dict[str, dict[str, None]] = {}
    with RowFolder(folder) as out:
        for row in read_rows(shards, quality):
            name = row.cells.get("image_id") or PurePosixPath(row.image_name).stem
            with quality.rejecting(str(name)[:200], row.where):
                image_id, cells = usable_name(name), {**row.cells}
                if row.image:
                    out.image(f"images/{image_id}", row.image)
                if isinstance(of := cells.get("vqa"), dict):  # lists of each field
                    pairs = zip(*of.values(), strict=False)
                    cells["vqa"] = [dict(zip(of, pair, strict=True)) for pair in pairs]
                if isinstance(of := cells.get("vqa"), list):
                    cells.setdefault("num_questions", len(of))
                out.add(FILE_NAME, {**cells, "image_id": image_id})
                splits.setdefault(row.split or "train", {})[image_id] = None
    if len(splits) > 1:
        write_json(folder / SPLIT_FILE, {split: list(ids) for split, ids in splits.items()})


def write_native(path: str | Path, records: Iterable[QARecord]) -> None:
    """Writes records as a release file: images in order of first appearance, questions in order."""
    text = json.dumps(to_native(records), indent=2, ensure_ascii=False)
    to_path(path).write_text(text + "\n", encoding="utf-8")


def _other_boxes(record: QARecord) -> dict[str, str]:
    """Returns the field of boxes that `gt_location`, which has one box, leaves out."""
    if record.generator is None or not record.gt_location:
        return {}
    first, *others = _BOX.findall(record.gt_location)
    others += [box for box in _BOX.findall(record.answer_text) if box not in (first, *others)]
    return {"gt_location": first, **({OTHER_BOXES: " ".join(others)} if others else {})}


def to_native(records: Iterable[QARecord]) -> list[dict[str, Any]]:
    """Records in the release's form."""
    images: dict[str, dict[str, Any]] = {}
    for record in records:
        entry = images.setdefault(
            record.image_id,
            {
                "image_id": record.image_id,
                "num_questions": 0,
                "vqa": [],
                **record.quality.get(EXTRA_IMAGE_FIELDS, {}),
            },
        )
        entry["num_questions"] += 1
        entry["vqa"].append(
            {
                **{name: getattr(record, attribute) for name, attribute in _ATTRIBUTES.items()},
                **_other_boxes(record),
                **record.quality.get(EXTRA_FIELDS, {}),
            }
        )
    return list(images.values())


def pixel_boxes(text: str) -> list[list[float]]:
    """The boxes in a text, pixels of the original, in order.

    Raises:
        Unusable: something that begins like a box does not parse.
    """
    decoded = CODECS["vindr_px"].decode(text, _ANY_SIZE, _ANY_SIZE, strict=True)
    for failure in decoded.failures:
        if failure.category not in ("no_box", "refusal"):
            found = f"{failure.text!r} is {failure.category}; expected <loc_x0_y0_x1_y1>"
            raise Unusable("box_text", found)
    return [[float(value) for value in box] for box in decoded.boxes * _ANY_SIZE]


def _check_image(entry: Any, seen: set[str]) -> None:
    if not isinstance(entry, dict):
        raise Unusable("invalid_record", f"{type(entry).__name__}; expected an image's object")
    missing = [name for name in _IMAGE_FIELDS if name not in entry]
    if missing:
        raise Unusable("invalid_record", f"without {missing[0]}; found {sorted(entry)}")
    if not isinstance(entry["image_id"], str) or not isinstance(entry["vqa"], list):
        raise Unusable("invalid_record", "image_id is no text or vqa is no list")
    usable_name(entry["image_id"])
    if entry["image_id"] in seen:
        raise Unusable("duplicate_id", "an image that stood earlier in the file")
    count = len(entry["vqa"])
    if entry["num_questions"] != count or not count:
        found = f"num_questions {entry['num_questions']!r} and {count} questions"
        raise Unusable("invalid_record", f"{found}; expected equal and above zero")


def _image_records(
    entry: dict[str, Any], where: str, quality: QualityLog, source: Provenance | None
) -> Iterator[QARecord]:
    image_id = entry["image_id"]
    extra = {name: value for name, value in entry.items() if name not in _IMAGE_FIELDS}
    for number, pair in enumerate(entry["vqa"]):
        quality.examined["questions"] += 1
        question_id = f"{image_id}-{number}"
        with quality.rejecting(question_id, f"{where}.vqa[{number}]"):
            with usable_record():
                record = _record(pair, image_id, question_id, source, quality)
            if extra:
                record.quality[EXTRA_IMAGE_FIELDS] = extra
            yield record


def _record(
    pair: Any, image_id: str, question_id: str, source: Provenance | None, quality: QualityLog
) -> QARecord:
    _check_pair(pair)
    finding = pair["gt_finding"]
    present = bool(finding) and finding != NO_FINDING
    boxes = pixel_boxes(pair["answer"])
    located = pixel_boxes(pair["gt_location"] or "")
    if any(box not in boxes for box in located):
        quality.warnings["gt_location is not among the answer's boxes"] += 1
    if pair["type"] not in QUESTION_TYPES:
        quality.warnings[f"question type {pair['type']!r} is none of the paper's six"] += 1
    extra = {name: value for name, value in pair.items() if name not in FIELDS}
    return QARecord(
        dataset="vindr_cxr_vqa",
        split="",
        image_id=image_id,
        image_path=f"images/{image_id}.dicom",
        question_id=question_id,
        variables={"finding": finding} if present and pair["type"] != "What" else None,
        answers=[
            Answer(
                text=pair["answer"],
                labels=[finding] if present else [],
                polarity="pos" if present else "neg",
                boxes_by_image={image_id: boxes} if boxes else {},
            )
        ],
        **{of: pair[name] for name, of in _ATTRIBUTES.items() if name != "answer"},
        # Only of an image without findings does the file say so itself.
        negative_kind="no_finding_image" if finding == NO_FINDING else None,
        quality={EXTRA_FIELDS: extra} if extra else {},
        provenance=source,
    )


def _check_pair(pair: Any) -> None:
    """The structure that section 2.2 of the paper verifies: all seven fields, of their type."""
    if not isinstance(pair, dict):
        raise Unusable("invalid_record", f"{type(pair).__name__}; expected a question's object")
    for name in FIELDS:
        if name not in pair:
            raise Unusable("invalid_record", f"without {name}; found {sorted(pair)}")
        value = pair[name]
        if not isinstance(value, str) and not (value is None and name in _MAY_BE_NULL):
            raise Unusable("invalid_record", f"{name} is {value!r}; expected text")
    if pair["gt_finding"] and pair["gt_finding"] not in (*CLASSES, NO_FINDING):
        found = f"gt_finding {pair['gt_finding']!r}"
        raise Unusable("unknown_class", f"{found}; expected one of {list(CLASSES)}")
