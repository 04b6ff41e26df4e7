"""A cheap look at every record before a run: what cannot be learned from is set aside and counted.

Reads image headers, never pixels; a file that breaks only on decoding shows up at run time as a
`batch.Problem`.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cxrjax.codecs import get_codec
from cxrjax.images import ImageError, image_size
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord

# What decoding a text without any box says about it: nothing is wrong with that here.
_NO_BOX = ("no_box", "refusal")

REASONS = (
    "image_missing",
    "image_unreadable",
    "image_hw_null",
    "image_hw_differs",
    "box_outside_image",
    "box_degenerate",
    "answer_boxes_unparsed",
    "unknown_class",
)


@dataclasses.dataclass(frozen=True)
class SetAside:
    """One record left out.

    Attributes:
        index: its position in the file.
        question_id: its id.
        detail: what was found and what was expected.
    """

    index: int
    question_id: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Quality:
    """What a check found.

    Attributes:
        records: how many were looked at.
        set_aside: by reason (`REASONS`); a record stands under the first that applies.
    """

    records: int
    set_aside: dict[str, list[SetAside]]

    @property
    def indices(self) -> frozenset[int]:
        """Positions of the records to leave out: `source.without(quality.indices)`."""
        return frozenset(entry.index for entries in self.set_aside.values() for entry in entries)

    def to_json(self) -> dict[str, Any]:
        """The content of a `quality.json`."""
        return {
            "records": self.records,
            "kept": self.records - len(self.indices),
            "set_aside": {
                reason: {
                    "count": len(entries),
                    "records": [
                        {"question_id": entry.question_id, "detail": entry.detail}
                        for entry in entries
                    ],
                }
                for reason, entries in self.set_aside.items()
            },
        }


def check_records(
    source: RecordSource,
    record_codec: str = "vindr_px",
    classes: Mapping[str, Collection[str]] | None = None,
) -> Quality:
    """Looks at every record of a source.

    Args:
        source: the records.
        record_codec: how answers write boxes, a key of `cxrjax.codecs.CODECS`.
        classes: dataset name -> the findings that its records may name; datasets not in it may
            name any.

    Returns:
        What to set aside, by reason; reasons that never applied are absent.
    """
    set_aside: dict[str, list[SetAside]] = {}
    sizes: dict[Path, tuple[int, int] | _NoSize] = {}
    count = 0
    for index, record in source.records():
        count += 1
        path = source.image_root / record.image_path
        if path not in sizes:
            sizes[path] = _image_size(path)
        found = next(_findings(record, sizes[path], record_codec, classes or {}), None)
        if found is not None:
            reason, detail = found
            entry = SetAside(index, record.question_id, detail)
            set_aside.setdefault(reason, []).append(entry)
    return Quality(count, set_aside)


class _NoSize(NamedTuple):
    reason: str
    detail: str


def _image_size(path: Path) -> tuple[int, int] | _NoSize:
    """(height, width) from the image's header, or why there is none."""
    if not path.is_file():
        return _NoSize("image_missing", f"{path}: no such file")
    try:
        return image_size(path)
    except ImageError as error:
        return _NoSize("image_unreadable", str(error))


def _findings(
    record: QARecord,
    size: tuple[int, int] | _NoSize,
    record_codec: str,
    classes: Mapping[str, Collection[str]],
) -> Iterator[tuple[str, str]]:
    """(reason, detail) of everything that is wrong, most basic first."""
    if isinstance(size, _NoSize):
        yield size
        return
    if record.image_hw is None:
        yield "image_hw_null", f"image_hw is null, the image is {list(size)}"
        return
    height, width = record.image_hw
    if (height, width) != size:
        yield (
            "image_hw_differs",
            f"image_hw is {[height, width]}, the image is {list(size)} (height, width)",
        )
    yield from _box_findings(record.boxes, height, width)
    codec = get_codec(record_codec)
    for failure in codec.decode(record.answer_text, height, width, strict=True).failures:
        if failure.category not in _NO_BOX:
            yield (
                "answer_boxes_unparsed",
                f"{failure.text!r} is {failure.category}, expected the notation of {record_codec}",
            )
    if record.dataset in classes:
        for name in _named_findings(record):
            if name not in classes[record.dataset]:
                yield "unknown_class", f"{name!r} is not a class of {record.dataset}"


def _box_findings(boxes: list[list[float]], height: int, width: int) -> Iterator[tuple[str, str]]:
    for box in boxes:
        x_min, y_min, x_max, y_max = box
        if not (x_min < x_max and y_min < y_max):
            yield "box_degenerate", f"box {box} is empty, expected x_min < x_max and y_min < y_max"
        elif min(x_min, y_min) < 0 or x_max > width or y_max > height:
            yield "box_outside_image", f"box {box} leaves the image of {width} x {height} pixels"


def _named_findings(record: QARecord) -> Iterator[str]:
    """Every finding the record names as such."""
    for answer in record.answers:
        yield from answer.labels
    if record.gt_finding is not None:
        yield record.gt_finding
    finding = (record.variables or {}).get("finding")
    if finding is not None:
        yield str(finding)
