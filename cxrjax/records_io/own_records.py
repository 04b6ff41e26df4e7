"""People's own images and records: checked field by field, sizes filled in, divided by patient.

FOLDER/records.jsonl     records as data/README.md documents them; image_hw and split may miss
FOLDER/...               the images, where image_path says (relative to FOLDER, or absolute)

A record is rejected for the first of its problems; `python -m cxrjax.check_records` shows all.
"""

import collections
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.codecs import CODECS
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.images.geometry import is_resize
from cxrjax.paper import closed_classes
from cxrjax.paths import relative
from cxrjax.progress import progress_bar
from cxrjax.records import FIELDS_HELP, QARecord, read_record
from cxrjax.records_io.builder import Builder, SourceOptions, describe_file
from cxrjax.records_io.image_check import ImageCheck, check_images
from cxrjax.records_io.quality import Unusable, check_box
from cxrjax.records_io.split import group_of, hold_out
from cxrjax.untrusted.foreign_files import read_lines
from cxrjax.untrusted.json_text import parse_object

FILE_NAME = "records.jsonl"
# Boxes in text are whole pixels; those in boxes_by_image may be finer.
_ROUNDING = 0.5 + 1e-3


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    reason: str  # a key of `quality.REASONS`
    item: str  # the question id; empty where there is none
    where: str  # file and line
    field: str  # of the record, dotted
    found: str  # what was there, and what was expected


@dataclasses.dataclass(frozen=True)
class RecordLine:
    """A record with the file and line it was read from, and its image's file.

    A record without a split has "". `earlier` is the file of the earlier image, where it names one.
    """

    record: QARecord
    where: str
    image: Path
    earlier: Path | None = None

    def problem(self, reason: str, field: str, found: str) -> Problem:
        """One of this record's."""
        return Problem(reason, self.record.question_id, self.where, field, found)


def _earlier_problem(line: RecordLine, checks: Mapping[Path, ImageCheck]) -> Problem | None:
    """Returns why the earlier image is unusable, or None if it is usable or there is none."""
    if line.earlier is None:
        return None
    try:
        checks[line.earlier].size()
    except Unusable as verdict:
        return line.problem(verdict.reason, "earlier.image_path", verdict.found)
    return None


def records_file(source: Path) -> Path:
    """The records of a folder of one's own, or the file itself."""
    return source / FILE_NAME if source.is_dir() else source


def read_own_records(file: Path, image_root: Path, problems: list[Problem]) -> Iterator[RecordLine]:
    """Records with unique ids; what is none goes to `problems`.

    Raises:
        UserError: the file cannot be read.
    """
    seen: dict[str, str] = {}
    with reading(file, "records"):
        for number, text in read_lines(file):
            where = f"{file.name}:{number}"
            record = read_record(_with_split(text))
            if not isinstance(record, QARecord):
                problems += [Problem("invalid_record", "", where, *one) for one in record]
                continue
            before = image_root / record.earlier.image_path if record.earlier else None
            line = RecordLine(record, where, image_root / record.image_path, before)
            if record.question_id in seen:
                found = (
                    f"{record.question_id!r} is a question_id that stood earlier in the file, "
                    f"in {seen[record.question_id]}"
                )
                problems.append(line.problem("duplicate_id", "question_id", found))
                continue
            seen[record.question_id] = where
            yield line


def _with_split(line: bytes) -> bytes:
    """The line with a split where it is missing or null."""
    try:
        fields = parse_object(line)
    except ForeignError:
        return line
    return line if fields.get("split") is not None else json.dumps(fields | {"split": ""}).encode()


def original_size(record: QARecord, image_hw: tuple[int, int]) -> tuple[int, int]:
    """The size that boxes refer to: the stated one, which the file may be a smaller copy of.

    Args:
        image_hw: of the file as displayed.

    Raises:
        Unusable: the file is no resize of the stated size.
    """
    if record.image_hw is None:
        return image_hw
    if not is_resize(image_hw, record.image_hw):
        found = f"image_hw {list(record.image_hw)}, but the file has {list(image_hw)} as displayed"
        raise Unusable("size_mismatch", f"{found}, which is no resize of it")
    return record.image_hw


def record_problems(
    line: RecordLine,
    check: ImageCheck,
    record_codec: str = "vindr_px",
) -> Iterator[Problem]:
    """Contradictions of a record with itself or its image, most basic first.

    Args:
        check: of the record's image.
        record_codec: how its answers write boxes, a key of `cxrjax.codecs.CODECS`.
    """
    record = line.record
    try:
        file_hw = check.size()
    except Unusable as verdict:
        yield line.problem(verdict.reason, "image_path", verdict.found)
        return
    try:
        image_hw = original_size(record, file_hw)
    except Unusable as verdict:
        yield line.problem(verdict.reason, "image_hw", verdict.found)
        return  # what its boxes are in is not known
    classes = closed_classes(record.dataset)
    for number, answer in enumerate(record.answers):
        for label in answer.labels:
            if classes and label not in classes:
                found = f"label {label!r}; expected one of {list(classes)}"
                yield line.problem("unknown_class", f"answers.{number}.labels", found)
    for number, answer in enumerate(record.answers):
        for place, box in enumerate(answer.boxes_by_image.get(record.image_id, [])):
            field = f"answers.{number}.boxes_by_image.{record.image_id}.{place}"
            try:
                check_box((box[0], box[1], box[2], box[3]), image_hw)
                _check_pixels(box, image_hw)
            except Unusable as verdict:
                yield line.problem(verdict.reason, field, verdict.found)
    yield from _text_problems(line, *image_hw, record_codec)


def _check_pixels(box: Sequence[float], image_hw: tuple[int, int]) -> None:
    """Refuses a box in fractions, which would lie within the image's first pixel.

    Raises:
        Unusable: `wrong_frame`; says what it would be in pixels.
    """
    height, width = image_hw
    if max(box) <= 1 < min(height, width):
        pixels = [
            round(value * side, 1)
            for value, side in zip(box, (width, height, width, height), strict=True)
        ]
        found = f"{list(box)} looks like fractions; in pixels of this image it is {pixels}"
        raise Unusable("wrong_frame", found)


def _text_problems(
    line: RecordLine, height: int, width: int, record_codec: str
) -> Iterator[Problem]:
    """Boxes written in the answer that don't parse or aren't the record's."""
    record = line.record
    decoded = CODECS[record_codec].decode(record.answer_text, height, width, strict=True)
    failures = [f for f in decoded.failures if f.category not in ("no_box", "refusal")]
    notation = "<loc_x0_y0_x1_y1>" if record_codec == "vindr_px" else f"that of {record_codec}"
    for failure in failures:
        found = f"{failure.text!r} is {failure.category}; expected {notation}"
        yield line.problem("box_text", "answers.text", found)
    written = decoded.boxes * np.array([width, height, width, height])
    boxes = np.array(record.boxes, np.float64).reshape(-1, 4)
    same = len(boxes) == len(written) and _same_boxes(written, boxes)
    if len(written) and not failures and not same:
        yield line.problem("box_mismatch", "answers", _mismatch(written, boxes, record.image_id))


def _mismatch(written: np.ndarray, boxes: np.ndarray, image_id: str) -> str:
    """Describes the difference between boxes of the text and of the record, both [n, 4]."""
    counts = (
        f"{len(written)} boxes in the text, {len(boxes)} in boxes_by_image for {image_id}; "
        "expected the same"
    )
    lone = [box for box in written if not len(boxes) or _apart(box, boxes) > _ROUNDING]
    if not lone or not len(boxes):
        return counts
    nearest = boxes[np.abs(boxes - lone[0]).max(axis=1).argmin()]
    told = [[round(float(value), 1) for value in one] for one in (lone[0], nearest)]
    return f"{counts}: the text's {told[0]} is not in boxes_by_image, the nearest is {told[1]}"


def _apart(box: np.ndarray, boxes: np.ndarray) -> float:
    """Pixels between a box [4] and the nearest of [n, 4], of the edge that differs most."""
    return float(np.abs(boxes - box).max(axis=1).min())


def _same_boxes(first: np.ndarray, second: np.ndarray) -> bool:
    """Returns whether the rows of both [n, 4] agree to rounding, in any order."""
    left = list(second)
    for box in first:
        match = next((k for k, o in enumerate(left) if np.abs(o - box).max() <= _ROUNDING), None)
        if match is None:
            return False
        del left[match]
    return True


def split_problems(lines: Sequence[RecordLine]) -> Iterator[tuple[RecordLine, str]]:
    """Lines whose split cannot be, and why: missing in some, or one patient in two."""
    given = collections.Counter(bool(line.record.split) for line in lines)
    first: dict[str, RecordLine] = {}
    for line in lines:
        split = line.record.split
        if not split:
            if given[True]:
                yield (
                    line,
                    "no split, though other records have one; give all records a split, or none",
                )
            continue
        group = group_of(line.record)
        other = first.setdefault(group, line)
        if other.record.split != split:
            yield (
                line,
                f"{group} is in split {split!r} and, in {other.where}, in "
                f"{other.record.split!r}; a patient may be in one only",
            )


@dataclasses.dataclass(frozen=True)
class OwnRecordsOptions(SourceOptions):
    """Flags of records of one's own: `source` is a folder with records.jsonl, or such a file."""


class OwnRecordsBuilder(Builder[OwnRecordsOptions]):
    """Writes the usable records by split."""

    dataset = "records"
    options_class = OwnRecordsOptions

    @property
    def file(self) -> Path:
        """The records file."""
        return records_file(self.options.source)

    def read(self) -> dict[str, list[QARecord]]:
        problems: list[Problem] = []
        records = read_own_records(self.file, self.file.parent, problems)
        lines = list(progress_bar(records, unit="record", desc="reading"))
        # The lines that were read, and of the others each once.
        others = len({problem.where for problem in problems})
        self.quality.examined["questions"] = len(lines) + others
        images = [file for line in lines for file in (line.image, line.earlier) if file]
        out = self.options.out
        checks = check_images(images, self.quality, out, self.options.processes)
        kept = []
        for line in progress_bar(lines, "records beside images", unit="record"):
            found = next(record_problems(line, checks[line.image]), None)
            found = found or _earlier_problem(line, checks)
            if found:
                problems.append(found)
                continue
            record = line.record
            update: dict[str, Any] = {
                "image_hw": original_size(record, checks[line.image].size()),
                "image_path": relative(line.image, out),
            }
            if line.earlier and record.earlier:
                size = record.earlier.image_hw or checks[line.earlier].size()
                told = {"image_hw": size, "image_path": relative(line.earlier, out)}
                update["earlier"] = record.earlier.model_copy(update=told)
            kept.append(dataclasses.replace(line, record=line.record.model_copy(update=update)))
        self._set_aside(problems)
        if not kept:
            raise self.nothing_left("record")
        return self._by_split(kept)

    def _set_aside(self, problems: Iterable[Problem]) -> None:
        """Each record under the first of its problems."""
        seen = set()
        for problem in problems:
            if problem.where in seen:
                continue
            seen.add(problem.where)
            found = problem.found
            if problem.reason == "invalid_record":
                found = f"{problem.field}: {found} ({FIELDS_HELP})"
            self.quality.set_aside(problem.reason, problem.item, problem.where, found)

    def _by_split(self, lines: Sequence[RecordLine]) -> dict[str, list[QARecord]]:
        """Records by split: as they say, or 85 % and 15 % of the patients where none says."""
        for line, found in split_problems(lines):
            raise UserError(f"{line.where}: {found}")
        records = [line.record for line in lines]
        if not records[0].split:
            remedy = "give every record a split"
            return hold_out(records, self.options.seed, lines[0].where, remedy)
        splits: dict[str, list[QARecord]] = collections.defaultdict(list)
        for record in records:
            splits[record.split].append(record)
        return dict(sorted(splits.items()))

    def describe(self) -> dict[str, Any]:
        return {"seed": self.options.seed, "source": describe_file(self.file)}
