"""The pieces that a build is made of: tables, the release's file, image files, the official test.

VinDr-CXR's official test images, from which the paper's 300 are thought to come, carry the
consensus of five readers. They are a split of their own, never part of the validation split, which
comes from the training part with its three readers an image.
"""

import collections
import dataclasses
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.images.geometry import is_resize
from cxrjax.papers.vindr_cxr_vqa.annotation import CONSENSUS, FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import check_image_labels, read_box_table
from cxrjax.papers.vindr_cxr_vqa.construct.plan import reader_boxes
from cxrjax.papers.vindr_cxr_vqa.construct.verify import contradiction
from cxrjax.papers.vindr_cxr_vqa.native import FILE_NAME, FILE_NAMES, pixel_boxes, unpack_rows
from cxrjax.paths import relative
from cxrjax.records import QARecord
from cxrjax.records_io.csv_table import ImageSizes, columns_of, size_of
from cxrjax.records_io.image_check import ImageCheck, check_images
from cxrjax.records_io.quality import QualityLog, Unusable, check_box
from cxrjax.records_io.row_files import ROWS, find_shards

_TABLES = ("train.csv", "train.csv.gz", "torchxrayvision-*.whl")
_PHYSIONET_TABLE = "annotations_train.csv"


@dataclasses.dataclass(frozen=True)
class Source:
    """The pieces that were found; at least a table or a release file."""

    table: Path | None
    release: Path | None
    images: tuple[Path, ...]  # folders of image files; empty where there is none
    labels: Path | None = None  # PhysioNet's image labels of the table's images
    sizes: Path | None = None  # table of image sizes
    # The official test part (PhysioNet), one consensus of readers an image: a table without a
    # reader's column, labels, images.
    test: "Source | None" = None


def find_source(path: Path, sizes: Path | None = None) -> Source:
    """The pieces at a path.

    Args:
        path: a file, or a folder.
        sizes: table of image sizes that lies elsewhere, in the place of the folder's.

    Raises:
        UserError: there is nothing there that can be read.
    """
    if path.is_file():
        if path.suffix == ".json":
            return Source(None, path, (), sizes=sizes)
        if path.suffix == ".csv" and "question" in columns_of(path):
            return Source(None, path, (), sizes=sizes)
        if path.name.endswith((".csv", ".csv.gz", ".whl")):
            return Source(path, None, (), sizes=sizes)
        raise UserError(f"{path}: expected a box table (.csv, .csv.gz, .whl), {FILE_NAME} or both")
    table = next((file for pattern in _TABLES for file in sorted(path.glob(pattern))), None)
    physionet = _physionet(path, _PHYSIONET_TABLE)
    release = _first(path, *FILE_NAMES)
    if not table and not physionet and not release:
        names = ", ".join((*_TABLES, f"annotations/{_PHYSIONET_TABLE}", *FILE_NAMES))
        raise UserError(f"{path}: found none of {names}, *.parquet there")
    test = _physionet(path, "annotations_test.csv")
    test_labels = _physionet(path, "image_labels_test.csv")
    return Source(
        table=table or physionet,
        release=release,
        images=_folders(path, "images", "train"),
        labels=_physionet(path, "image_labels_train.csv") if not table else None,
        sizes=sizes or _first(path, "train_meta.csv", "train_meta.csv.gz"),
        test=Source(test, None, _folders(path, "test"), test_labels) if test else None,
    )


def find_or_unpack(path: Path, sizes: Path | None, out: Path, quality: QualityLog) -> Source:
    """The pieces at a path; rows of Parquet or JSON as the hub has them are unpacked into `out`.

    Raises:
        UserError: as `find_source`, or the rows cannot be read.
    """
    try:
        return find_source(path, sizes)
    except UserError:
        if not (shards := find_shards(path, ROWS)):
            raise
    unpack_rows(shards, out, quality)
    found = find_source(out, sizes)
    beside = _folders(path, "images", "train") if path.is_dir() else ()
    return dataclasses.replace(found, images=(*found.images, *beside))


def _physionet(path: Path, name: str) -> Path | None:
    return _first(path, f"annotations/{name}", name)


def _first(path: Path, *names: str) -> Path | None:
    return next((path / name for name in names if (path / name).is_file()), None)


def _folders(path: Path, *names: str) -> tuple[Path, ...]:
    return tuple(path / name for name in names if (path / name).is_dir())


SPLIT = "test300"
_SAMPLE = 300


def read_official_test(test: Source, quality: QualityLog) -> list[ImageAnnotation]:
    """All official test images, normal ones too, with one reader: the consensus.

    Raises:
        UserError: a table cannot be read, or lacks a column.
    """
    assert test.table is not None
    images = read_box_table(test.table, quality, reader=CONSENSUS)
    if test.labels:
        check_image_labels(test.labels, images, quality, reader=CONSENSUS)
    return images


def sample_test300(
    images: Sequence[ImageAnnotation], seed: int, count: int = _SAMPLE
) -> list[ImageAnnotation]:
    """A seeded sample, the same whatever the order of `images`; all of them where they are fewer.

    Args:
        images: what may be drawn; with findings alone where only they are asked about.
        seed: decides the sample.
        count: how many; section 2.3 of the paper has 300.
    """
    by_id = {image.image_id: image for image in images}
    names = sorted(by_id)
    chosen = random.Random(f"{seed}/{SPLIT}").sample(names, min(count, len(names)))
    return [by_id[name] for name in sorted(chosen)]


def join_table(
    records: Iterable[QARecord],
    images: Sequence[ImageAnnotation],
    where: str,
    quality: QualityLog,
) -> list[QARecord]:
    """Release records with their image's readers; sets aside what the table contradicts.

    Section 2.2 of the paper reports that labels and boxes agree with the source without exception;
    a question whose finding or box is not one of its image's rows is set aside.
    """
    by_id = {image.image_id: image for image in images}
    joined = []
    for record in records:
        image = by_id.get(record.image_id)
        found = contradiction(record, image)
        if found or image is None:
            quality.set_aside("source_mismatch", record.question_id, where, found)
            continue
        joined.append(
            record.model_copy(update={"readers": reader_boxes(image), "image_hw": image.image_hw})
        )
    return joined


_SUFFIXES = (".dicom", ".dcm", ".png", ".jpg", ".jpeg")


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """Sources of images and their sizes."""

    folders: Sequence[Path]  # of image files; without any, `sizes` alone tells how large images are
    out: Path  # folder of the build, which image paths are relative to
    # Sizes of the originals; None: the files' own (or those in the table of boxes).
    sizes: ImageSizes | None = None
    processes: int = 1  # that decode images

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
        with quality.rejecting(image.image_id, where):
            stated = _stated_size(image, files.sizes)
            if files.folders:
                path = _only(image.image_id, paths)
                image_hw = _original_size(checks[path], stated)
                image = dataclasses.replace(image, image_path=relative(path, files.out))
            else:
                assert stated is not None  # there is a size table, or there is nothing to do
                image_hw = stated
            for finding in image.findings:
                check_box(finding.box, image_hw, finding.label)
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
    placed = {
        image.image_id: {"image_path": image.image_path, "image_hw": image.image_hw}
        for image in annotate_sizes(images, files, quality)
    }
    return [r.model_copy(update=placed[r.image_id]) for r in records if r.image_id in placed]


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
