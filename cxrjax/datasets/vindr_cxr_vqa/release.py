"""From what one can get of VinDr-CXR-VQA (table, release file, images) to a data set on disk.

`source.py` says what a source is made of. Without the release file, questions are constructed from
the table.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cxrjax.datasets import output
from cxrjax.datasets.quality import QualityLog
from cxrjax.datasets.size_table import read_size_table
from cxrjax.datasets.split import stratified_validation
from cxrjax.datasets.statistics import Published, RecordStatistics, compare
from cxrjax.datasets.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.box_table import read_box_table
from cxrjax.datasets.vindr_cxr_vqa.construct import Construction, construct_vqa, reader_boxes
from cxrjax.datasets.vindr_cxr_vqa.image_files import (
    ImageFiles,
    annotate_sizes,
    join_image_files,
)
from cxrjax.datasets.vindr_cxr_vqa.image_labels import check_image_labels
from cxrjax.datasets.vindr_cxr_vqa.native import (
    FILE_NAME,
    pixel_boxes,
    read_native,
    write_native,
)
from cxrjax.datasets.vindr_cxr_vqa.source import Source, find_source
from cxrjax.datasets.vindr_cxr_vqa.statistics import (
    PAPER,
    SOURCE_TABLE,
    annotation_values,
    table_values,
)
from cxrjax.errors import UserError
from cxrjax.records import Provenance, QARecord

SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class VinDrBuild:
    """What to build, from what."""

    source: Path
    out: Path
    seed: int = 0
    processes: int = 1
    sizes: Path | None = None


def build_vindr(build: VinDrBuild) -> None:
    """Writes records, questions, the release's form of them, statistics and quality.

    Raises:
        UserError: the source cannot be read, nothing usable is in it, or the folder cannot be
            written.
    """
    source = find_source(build.source, build.sizes)
    output.prepare(build.out, SPLITS)
    quality = QualityLog()
    values: dict[str, float | None] = {}
    published: dict[str, Published] = dict(PAPER)
    images: list[ImageAnnotation] | None = None
    sizes = read_size_table(source.sizes, quality) if source.sizes else None
    files = ImageFiles(source.images, build.out, sizes, build.processes)
    if source.table:
        table = read_box_table(source.table, quality)
        if source.labels:
            check_image_labels(source.labels, table, quality)
        values |= table_values(table)
        published |= SOURCE_TABLE
        # A release may ask about normal images; construction has nothing to ask there.
        images = table if source.release else [image for image in table if image.findings]
    if source.release:
        records = read_native(source.release, quality, _provenance(source.release))
        if images is not None:
            records = join_table(records, images, source.release.name, quality)
        if files:
            records = join_image_files(records, files, quality)
    else:
        assert source.table and images is not None  # find_source saw to it
        if files:
            images = annotate_sizes(images, files, quality)
        construction = Construction(build.seed, "vindr_cxr_vqa", _provenance(source.table))
        records = list(construct_vqa(images, "", construction))
    if not records:
        counts = {reason: n for reason, n in quality.counts().items() if n}
        raise UserError(f"{build.source}: no question left to write; set aside: {counts or 'none'}")
    _write(build, source, records, images, values, published, quality)


def _write(
    build: VinDrBuild,
    source: Source,
    records: list[QARecord],
    images: list[ImageAnnotation] | None,
    values: dict[str, float | None],
    published: dict[str, Published],
    quality: QualityLog,
) -> None:
    by_id = {image.image_id: image for image in images or []}
    labels: dict[str, set[str]] = collections.defaultdict(set)
    for record in records:
        labels[record.image_id].update(record.answers[0].labels)
    # The table knows all classes of an image; the release, those that it asks about.
    label_sets = {key: by_id[key].present if key in by_id else labels[key] for key in labels}
    validation = stratified_validation(label_sets, build.seed)
    statistics = RecordStatistics()
    splits: dict[str, Any] = {}
    annotations: dict[str, list[ImageAnnotation]] = {}
    for split in SPLITS:
        chosen = [
            record.model_copy(update={"split": split})
            for record in records
            if (record.image_id in validation) == (split == "validation")
        ]
        splits[split] = output.write_split(build.out, split, chosen, statistics)
        kept = dict.fromkeys(record.image_id for record in chosen)
        annotations[split] = [by_id[image_id] for image_id in kept if image_id in by_id]
    with output.writing(build.out):
        write_native(build.out / FILE_NAME, records)
    values |= statistics.values()
    if images is not None:
        values |= annotation_values(annotations)
    pieces = {
        "table": source.table,
        "release": source.release,
        "sizes": source.sizes,
    }
    output.finish(
        build.out,
        quality,
        compare(values, published),
        {
            "dataset": "vindr_cxr_vqa",
            "seed": build.seed,
            "generator": records[0].generator.model_dump() if records[0].generator else None,
            "source": {
                name: {"path": path.name, "sha256": output.hash_file(path)}
                for name, path in pieces.items()
                if path
            },
            "splits": splits,
        },
    )


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
        found = _contradiction(record, image)
        if found or image is None:
            quality.set_aside("source_mismatch", record.question_id, where, found)
            continue
        joined.append(
            record.model_copy(update={"readers": reader_boxes(image), "image_hw": image.image_hw})
        )
    return joined


def _contradiction(record: QARecord, image: ImageAnnotation | None) -> str:
    """What of the record's ground truth the table does not have; "" where it agrees."""
    if image is None:
        return "an image that the table does not have"
    for label in record.answers[0].labels:
        boxes = [list(box) for box in image.boxes_of(label)]
        if not boxes:
            return f"gt_finding {label}, which no reader marked on this image"
        for box in pixel_boxes(record.gt_location or ""):
            if box not in boxes:
                return f"gt_location {record.gt_location}, which is no reader's box of {label}"
    return ""


def _provenance(path: Path) -> Provenance:
    return Provenance(source_file=path.name, source_sha256=output.hash_file(path))
