"""A cheap look at every record before a run: what cannot be learned from is set aside and counted.

Reads image headers, never pixels; a file that breaks only on decoding shows up at run time as a
`batch.BatchProblem`. Builders check their records too (`cxrjax.records_io.builder`): this is for
files that were written elsewhere, or whose images have gone since.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cxrjax.codecs import get_codec
from cxrjax.images.decode import image_size
from cxrjax.images.files import ImageError
from cxrjax.images.geometry import is_resize
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.stored_images import StoredImage
from cxrjax.paper import closed_classes
from cxrjax.records import QARecord
from cxrjax.records_io.quality import QualityLog, Unusable, check_box

# What decoding says about a text without any box: nothing is wrong with that here.
_NO_BOX = ("no_box", "refusal")


class RecordCheck(NamedTuple):
    """The findings of a check.

    Attributes:
        quality: every record set aside, with the first reason that applies; `to_json()` is the
            content of a quality.json.
        indices: their positions in the file, for `source.without(indices)`.
        unwanted: positions of the records that nobody wanted, whether they are usable or not.
    """

    quality: QualityLog
    indices: frozenset[int]
    unwanted: frozenset[int] = frozenset()


def check_records(
    source: RecordSource,
    record_codec: str = "vindr_px",
    wanted: Callable[[QARecord], bool] = lambda record: True,
) -> RecordCheck:
    """Looks at every record of a source.

    Set aside are records whose image (or earlier image) is missing or has no readable header, whose
    `image_hw` is null or not the image's (which may be a resized copy, in proportion), with a box
    that is empty or leaves the image, with an answer whose boxes don't parse, or that name a
    finding their dataset doesn't have.

    Args:
        record_codec: how answers write boxes, a key of `cxrjax.codecs.CODECS`.
        wanted: says of a record whether a run asks for it; all are checked.
    """
    quality = QualityLog()
    indices, unwanted = set(), set()
    sizes: dict[Path | StoredImage, tuple[int, int] | Unusable] = {}
    for index, record in source.records():
        if not wanted(record):
            unwanted.add(index)
        path, earlier = source.image_of(record), source.earlier_of(record)
        for file in (path, earlier):
            if file is not None and file not in sizes:
                sizes[file] = _image_size(file)
        try:
            _check(record, sizes[path], record_codec)
            before = None if earlier is None else sizes[earlier]
            if isinstance(before, Unusable):
                raise before
        except Unusable as verdict:
            indices.add(index)
            quality.set_aside(
                verdict.reason, record.question_id, source.where(index), verdict.found
            )
    quality.examined.update(questions=source.num_questions, images=len(sizes))
    return RecordCheck(quality, frozenset(indices), frozenset(unwanted))


def _image_size(path: Path | StoredImage) -> tuple[int, int] | Unusable:
    """(height, width) from the image's header, or why there is none."""
    if isinstance(path, StoredImage):
        return path.image_hw
    if not os.path.isfile(path):  # False also where a folder may not be looked into
        return Unusable("missing_image", f"{path} is missing")
    try:
        return image_size(path)
    except ImageError as error:
        return Unusable("unreadable_image", str(error))


def _check(
    record: QARecord,
    size: tuple[int, int] | Unusable,
    record_codec: str,
) -> None:
    """Raises `Unusable` with what is wrong, most basic first."""
    if isinstance(size, Unusable):
        raise size
    if record.image_hw is None or not is_resize(size, record.image_hw):
        stated = "null" if record.image_hw is None else list(record.image_hw)
        raise Unusable(
            "size_mismatch", f"image_hw is {stated}, the file has {list(size)}, no resize of it"
        )
    for x_min, y_min, x_max, y_max in record.boxes:
        check_box((x_min, y_min, x_max, y_max), record.image_hw)
    decoded = get_codec(record_codec).decode(record.answer_text, *record.image_hw, strict=True)
    for failure in decoded.failures:
        if failure.category not in _NO_BOX:
            raise Unusable(
                "box_text",
                f"{failure.text!r} is {failure.category}, expected the notation of {record_codec}",
            )
    classes = closed_classes(record.dataset)
    for name in _named_findings(record) if classes else ():
        if name not in classes:
            raise Unusable("unknown_class", f"{name!r} is not a class of {record.dataset}")


def _named_findings(record: QARecord) -> Iterator[str]:
    """Every finding the record names as such."""
    for answer in record.answers:
        yield from answer.labels
    if record.gt_finding is not None:
        yield record.gt_finding
    if record.finding is not None:
        yield record.finding
