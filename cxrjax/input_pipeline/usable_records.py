"""A cheap check of every record before a run: what cannot be learned from is rejected and counted.

Reads image headers, never pixels; a file that breaks only on decoding shows up at run time as a
`batch.BatchProblem`. Builders check their records too (`cxrjax.records_io.builder`): this is for
files that were written elsewhere, or whose images have gone since.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from cxrjax.errors import UserError
from cxrjax.files import read_json_object, replace_text
from cxrjax.images.decode import image_size
from cxrjax.images.files import ImageError
from cxrjax.images.geometry import is_resize
from cxrjax.input_pipeline.record_index import Fault, cache_folder, find_fault
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.stored_images import StoredImage
from cxrjax.paths import is_file
from cxrjax.records_io.quality import QualityLog, Unusable


class RecordCheck(NamedTuple):
    """The findings of a check."""

    # Every record set aside, with the first reason that applies; `to_json()` is the content of a
    # quality.json.
    quality: QualityLog
    indices: frozenset[int]  # their positions in the file, for `source.without(indices)`


def check_records(source: RecordSource, record_codec: str = "vindr_px") -> RecordCheck:
    """Checks every record of a source.

    Set aside are records whose image (or earlier image) is missing or has no readable header, whose
    `image_hw` is null or not the image's (which may be a resized copy, in proportion), with a box
    that is empty or leaves the image, with an answer whose boxes don't parse, or that name a
    finding their dataset doesn't have.

    Args:
        record_codec: how answers write boxes, a key of `cxrjax.codecs.CODECS`; that of a source
            which was opened with one.
    """
    quality, indices = QualityLog(), set()
    index, faults = source.columns(), source.columns().faults
    if faults is None:
        found = ((at, find_fault(record, record_codec)) for at, record in source.records())
        faults = {at: fault for at, fault in found if fault is not None}
    sizes = _ImageSizes(source)
    of_images: dict[int, tuple[tuple[int, int] | Unusable, Unusable | None]] = {}
    images, stated_sizes = index.images.tolist(), index.sizes.tolist()
    for at in source.positions():
        image = images[at]
        if image not in of_images:
            image_id, path, *earlier = index.shown[image]
            before = sizes.of(index.earlier_ids[image] or "", earlier[0]) if earlier else None
            broken = before if isinstance(before, Unusable) else None
            of_images[image] = sizes.of(image_id, path), broken
        size, broken = of_images[image]
        wrong = _wrong_size(size, stated_sizes[at]) or faults.get(at) or broken
        if wrong is not None:
            indices.add(at)
            name = wrong.question_id if isinstance(wrong, Fault) else source.record(at).question_id
            quality.set_aside(wrong.reason, name, source.where(at), wrong.found)
    quality.examined.update(questions=source.num_questions, images=len(sizes.found))
    sizes.save()
    return RecordCheck(quality, frozenset(indices))


class _ImageSizes:
    """Sizes of a source's images, cached for files that have not changed since."""

    def __init__(self, source: RecordSource) -> None:
        self.found: dict[Path | StoredImage, tuple[int, int] | Unusable] = {}
        self._source, self._file = source, None
        self._stamps: dict[str, list[int]] = {}  # path -> size of the file, time, height, width
        if source.columns().faults is not None and source.images is None:
            key = f"{source.sha256} {source.image_root.resolve()}"
            name = f"images-{hashlib.sha256(key.encode()).hexdigest()}.json"
            self._file = cache_folder() / name
        self._cached = {} if self._file is None else _read_stamps(self._file)

    def of(self, image_id: str, path: str) -> tuple[int, int] | Unusable:
        file = self._source.file_of(image_id, path)
        if file not in self.found:
            self.found[file] = self._size(file)
        return self.found[file]

    def _size(self, file: Path | StoredImage) -> tuple[int, int] | Unusable:
        if self._file is None or isinstance(file, StoredImage):
            return _image_size(file)
        try:
            status = file.stat()
        except (OSError, ValueError):
            return _image_size(file)
        stamp = [status.st_size, status.st_mtime_ns]
        entry = self._cached.get(str(file))
        if entry is None or entry[:2] != stamp:
            size = _image_size(file)
            if isinstance(size, Unusable):
                return size
            entry = [*stamp, *size]
        self._stamps[str(file)] = entry
        return entry[2], entry[3]

    def save(self) -> None:
        """Caches what was found, where that is possible."""
        if self._file is not None and self._stamps != self._cached:
            with contextlib.suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                replace_text(self._file, json.dumps(self._stamps))


def _read_stamps(file: Path) -> dict[str, list[int]]:
    """Entries of an earlier check; none where there are none, or damaged ones."""
    try:
        return {path: each for path, each in read_json_object(file).items() if _is_stamp(each)}
    except UserError:
        return {}


def _is_stamp(entry: object) -> bool:
    return isinstance(entry, list) and [type(n) for n in entry] == [int] * 4


def _image_size(path: Path | StoredImage) -> tuple[int, int] | Unusable:
    """(height, width) from the image's header, or why there is none."""
    if isinstance(path, StoredImage):
        return path.image_hw
    if not is_file(path):  # False also where a folder may not be looked into
        return Unusable("missing_image", f"{path} is missing")
    try:
        return image_size(path)
    except ImageError as error:
        return Unusable("unreadable_image", str(error))


def _wrong_size(size: tuple[int, int] | Unusable, stated: list[int]) -> Unusable | None:
    """Compares an image's size with a record's `image_hw` (zeros: null)."""
    if isinstance(size, Unusable):
        return size
    if all(stated) and is_resize(size, (stated[0], stated[1])):
        return None
    told = stated if all(stated) else "null"
    return Unusable(
        "size_mismatch", f"image_hw is {told}, the file has {list(size)}, no resize of it"
    )
