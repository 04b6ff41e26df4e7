"""People's own images and records: validated, sizes filled in, divided by patient.

FOLDER/records.jsonl     records as data/README.md documents them; image_hw and split may miss
FOLDER/...               the images, where image_path says (relative to FOLDER, or absolute)
"""

import collections
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.codecs import CODECS
from cxrjax.datasets import output
from cxrjax.datasets.image_check import check_images
from cxrjax.datasets.quality import QualityLog, Unusable, check_box
from cxrjax.datasets.split import validation_groups
from cxrjax.datasets.statistics import RecordStatistics, compare
from cxrjax.datasets.vindr_cxr_vqa.classes import CLASSES
from cxrjax.errors import UserError
from cxrjax.images import is_resize
from cxrjax.records import QARecord, parse_record

FILE_NAME = "records.jsonl"
# Data sets whose findings are a closed list; others name what they like.
_CLOSED_CLASSES = {"vindr_cxr_vqa": CLASSES, "synthetic": CLASSES}
# Boxes in text are whole pixels; those in boxes_by_image may be finer.
_ROUNDING = 0.5 + 1e-3


@dataclasses.dataclass(frozen=True)
class OwnBuild:
    """What to build, from what. `source` is a folder with records.jsonl, or such a file."""

    source: Path
    out: Path
    seed: int = 0
    processes: int = 1

    @property
    def file(self) -> Path:
        """The records file."""
        return self.source / FILE_NAME if self.source.is_dir() else self.source


@dataclasses.dataclass(frozen=True)
class _Line:
    """A record with the file and line it was read from, and its image's file."""

    record: QARecord
    where: str
    image: Path


def build_own_records(build: OwnBuild) -> None:
    """Writes the usable records by split, with statistics and everything set aside.

    Raises:
        UserError: the file cannot be read, no record in it can be used, some records have a split
            and others not, a patient is in two splits, or the folder cannot be written.
    """
    quality = QualityLog()
    lines = list(_read(build, quality))
    checks = check_images((line.image for line in lines), quality, build.out, build.processes)
    kept = []
    for line in lines:
        try:
            image_hw = _original_size(line.record, checks[line.image].size())
            _check_record(line.record, image_hw)
        except Unusable as verdict:
            quality.set_aside(verdict.reason, line.record.question_id, line.where, verdict.found)
            continue
        image_path = os.path.relpath(line.image, build.out)
        update = {"image_hw": image_hw, "image_path": image_path}
        kept.append(dataclasses.replace(line, record=line.record.model_copy(update=update)))
    if not kept:
        first = quality.entries[0] if quality.entries else None
        reason = f"; the first: {first.where}: {first.reason}: {first.found}" if first else ""
        raise UserError(f"{build.file}: no usable record{reason}")
    _write(build, _by_split(kept, build.seed), quality)


def _write(build: OwnBuild, splits: dict[str, list[QARecord]], quality: QualityLog) -> None:
    output.prepare(build.out, splits)
    statistics = RecordStatistics()
    entries = {
        split: output.write_split(build.out, split, records, statistics)
        for split, records in splits.items()
    }
    output.finish(
        build.out,
        quality,
        compare(statistics.values(), {}),
        {
            "dataset": "records",
            "seed": build.seed,
            "source": {"path": build.file.name, "sha256": output.hash_file(build.file)},
            "splits": entries,
        },
    )


def _read(build: OwnBuild, quality: QualityLog) -> Iterator[_Line]:
    """Records with unique ids; those without a split have ""."""
    seen: set[str] = set()
    try:
        with open(build.file, encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                where = f"{build.file.name}:{number}"
                quality.examined["questions"] += 1
                try:
                    record = _parse(text, where)
                except UserError as error:
                    found = str(error).removeprefix(f"{where}: ")
                    quality.set_aside("invalid_record", "", where, found)
                    continue
                if record.question_id in seen:
                    found = "a question_id that stood earlier in the file"
                    quality.set_aside("duplicate_id", record.question_id, where, found)
                    continue
                seen.add(record.question_id)
                yield _Line(record, where, build.file.parent / record.image_path)
    except OSError as error:
        raise UserError(f"{build.file}: cannot read records: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{build.file}: not UTF-8 text; expected JSON Lines") from None


def _parse(text: str, where: str) -> QARecord:
    """A record whose split may be missing or null."""
    try:
        fields: Any = json.loads(text)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and fields.get("split") is None:
        return parse_record(json.dumps(fields | {"split": ""}), where)
    return parse_record(text, where)


def _original_size(record: QARecord, image_hw: tuple[int, int]) -> tuple[int, int]:
    """The size that boxes refer to: the stated one, which the file may be a smaller copy of."""
    if record.image_hw is None:
        return image_hw
    if not is_resize(image_hw, record.image_hw):
        found = f"image_hw {list(record.image_hw)}, but the file has {list(image_hw)} as displayed"
        raise Unusable("size_mismatch", f"{found}, which is no resize of it")
    return record.image_hw


def _check_record(record: QARecord, image_hw: tuple[int, int]) -> None:
    """Raises `Unusable` where a record contradicts itself or its image of this size."""
    classes = _CLOSED_CLASSES.get(record.dataset)
    for answer in record.answers:
        for label in answer.labels:
            if classes and label not in classes:
                raise Unusable("unknown_class", f"label {label!r}; expected one of {list(classes)}")
    for box in record.boxes:
        check_box((box[0], box[1], box[2], box[3]), image_hw)
    _check_text(record, *image_hw)


def _check_text(record: QARecord, height: int, width: int) -> None:
    """Raises `Unusable` where boxes written in the answer don't parse or aren't the record's."""
    decoded = CODECS["vindr_px"].decode(record.answer_text, height, width, strict=True)
    for failure in decoded.failures:
        if failure.category not in ("no_box", "refusal"):
            found = f"{failure.text!r} is {failure.category}; expected <loc_x0_y0_x1_y1>"
            raise Unusable("box_text", found)
    written = decoded.boxes * np.array([width, height, width, height])
    boxes = np.array(record.boxes, np.float64).reshape(-1, 4)
    if len(written) and (len(boxes) != len(written) or not _same_boxes(written, boxes)):
        raise Unusable(
            "box_mismatch",
            f"{len(written)} boxes in the text, {len(boxes)} in boxes_by_image for "
            f"{record.image_id}; expected the same",
        )


def _same_boxes(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the rows of both [n, 4] agree to rounding, in whatever order."""
    left = list(second)
    for box in first:
        match = next((k for k, o in enumerate(left) if np.abs(o - box).max() <= _ROUNDING), None)
        if match is None:
            return False
        del left[match]
    return True


def _by_split(lines: Sequence[_Line], seed: int) -> dict[str, list[QARecord]]:
    """Records by split: as they say, or 85 % and 15 % of the patients where none says."""
    without = [line for line in lines if not line.record.split]
    if not without:
        _refuse_shared_patients(lines)
        splits: dict[str, list[QARecord]] = collections.defaultdict(list)
        for line in lines:
            splits[line.record.split].append(line.record)
        return dict(sorted(splits.items()))
    if len(without) < len(lines):
        raise UserError(
            f"{without[0].where}: no split, though other records have one; give all records a "
            "split, or none"
        )
    validation = validation_groups({_group(line.record) for line in lines}, seed)
    if not validation:
        raise UserError(
            f"{lines[0].where}: all records are of one patient ({_group(lines[0].record)}), which "
            "cannot be divided; give every record a split"
        )
    divided: dict[str, list[QARecord]] = {"train": [], "validation": []}
    for line in lines:
        split = "validation" if _group(line.record) in validation else "train"
        divided[split].append(line.record.model_copy(update={"split": split}))
    return divided


def _group(record: QARecord) -> str:
    """What must not be divided: the patient; without one, the study or the image."""
    return record.patient_id or record.study_id or record.image_id


def _refuse_shared_patients(lines: Sequence[_Line]) -> None:
    first: dict[str, _Line] = {}
    for line in lines:
        group, split = _group(line.record), line.record.split
        other = first.setdefault(group, line)
        if other.record.split != split:
            raise UserError(
                f"{line.where}: {group} is in split {split!r} and, in {other.where}, in "
                f"{other.record.split!r}; a patient may be in one only"
            )
