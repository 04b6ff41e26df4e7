"""The image files of a build: which file is which image, and how large the original was."""

import collections
import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cxrjax.images.geometry import is_resize
from cxrjax.papers.vindr_cxr_vqa.annotation import FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.native import pixel_boxes
from cxrjax.records import QARecord
from cxrjax.records_io.image_check import ImageCheck, check_images
from cxrjax.records_io.quality import QualityLog, Unusable, check_box
from cxrjax.records_io.sizes import ImageSizes, size_of

_SUFFIXES = (".dicom", ".dcm", ".png", ".jpg", ".jpeg")


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """Where images and their sizes come from.

    Attributes:
        folders: of image files; without any, `sizes` alone tells how large images are.
        out: folder of the build, which image paths are relative to.
        sizes: sizes of the originals; None: the files' own (or those in the table of boxes).
        processes: that decode images.
    """

    folders: Sequence[Path]
    out: Path
    sizes: ImageSizes | None = None
    processes: int = 1

    def __bool__(self) -> bool:
        return bool(self.folders) or self.sizes is not None


def annotate_sizes(
    images: Iterable[ImageAnnotation], files: ImageFiles, quality: QualityLog
) -> list[ImageAnnotation]:
    """Annotations with the file and the original's size; sets aside images that cannot be used.

    The original's size is that of the size table, else of the table of boxes, else of the file. A
    file may be smaller than the original (resized copies are common), in the same proportions.
    """
    images = list(images)
    found = _found(files.folders)
    wanted = [path for image in images for path in found.get(image.image_id, ())]
    checks = check_images(wanted, quality, files.out, files.processes) if files.folders else {}
    kept = []
    for image in images:
        paths = found.get(image.image_id, ())
        where = " and ".join(map(str, paths)) or ", ".join(map(str, files.folders)) or "size table"
        try:
            stated = _stated_size(image, files.sizes)
            if files.folders:
                path = _only(image.image_id, paths)
                image_hw = _original_size(checks[path], stated)
                image = dataclasses.replace(image, image_path=os.path.relpath(path, files.out))
            else:
                assert stated is not None  # there is a size table, or there is nothing to do
                image_hw = stated
            for finding in image.findings:
                check_box(finding.box, image_hw, finding.label)
        except Unusable as verdict:
            quality.set_aside(verdict.reason, image.image_id, where, verdict.found)
            continue
        kept.append(dataclasses.replace(image, image_hw=image_hw))
    unasked = len(found.keys() - {image.image_id for image in images})
    if unasked:
        quality.warnings["image files that nothing is asked about"] += unasked
    return kept


def join_image_files(
    records: Sequence[QARecord], files: ImageFiles, quality: QualityLog
) -> list[QARecord]:
    """Records with path and size of their images; sets aside all questions of an unusable one."""
    shown: dict[str, list[FindingBox]] = collections.defaultdict(list)
    sizes: dict[str, tuple[int, int] | None] = {}
    for record in records:
        sizes[record.image_id] = record.image_hw
        for box in [*record.boxes, *pixel_boxes(record.gt_location or "")]:
            shown[record.image_id].append(
                FindingBox(record.gt_finding or "", (box[0], box[1], box[2], box[3]))
            )
    paths = {record.image_id: record.image_path for record in records}
    images = [
        ImageAnnotation(image_id, paths[image_id], image_hw, shown[image_id], {})
        for image_id, image_hw in sizes.items()
    ]
    kept = {image.image_id: image for image in annotate_sizes(images, files, quality)}
    return [
        record.model_copy(
            update={
                "image_path": kept[record.image_id].image_path,
                "image_hw": kept[record.image_id].image_hw,
            }
        )
        for record in records
        if record.image_id in kept
    ]


def _found(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """Image id -> the files of that name, in whichever folder and format."""
    files: dict[str, list[Path]] = collections.defaultdict(list)
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.suffix.lower() in _SUFFIXES:
                files[path.stem].append(path)
    return files


def _only(image_id: str, paths: Sequence[Path]) -> Path:
    if not paths:
        raise Unusable("missing_image", f"no {image_id}{_SUFFIXES[0]}, nor {_SUFFIXES[1:]}")
    if len(paths) > 1:
        raise Unusable("duplicate_id", f"{len(paths)} files of one image; keep one of them")
    return paths[0]


def _stated_size(image: ImageAnnotation, sizes: ImageSizes | None) -> tuple[int, int] | None:
    """The original's size as tables have it, None where there is no table."""
    if sizes is None:
        return image.image_hw
    size = size_of(sizes, image.image_id)
    if image.image_hw not in (None, size):
        found = f"height, width {list(size)} in the size table, {image.image_hw} in the source"
        raise Unusable("size_mismatch", found)
    return size


def _original_size(check: ImageCheck, stated: tuple[int, int] | None) -> tuple[int, int]:
    own = check.size()
    if stated is not None and not is_resize(own, stated):
        raise Unusable(
            "size_mismatch",
            f"the file has height, width {list(own)}, the tables {list(stated)}; expected the same "
            "proportions, for a file that was cropped, padded or squeezed does not fit its boxes",
        )
    return stated or own
