"""Inputs of `review` beside records: the table of readers' boxes, and the release's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.vindr_cxr_vqa import reader_ceiling
from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import read_box_table
from cxrjax.papers.vindr_cxr_vqa.construct import verify
from cxrjax.papers.vindr_cxr_vqa.construct.plan import reader_boxes
from cxrjax.papers.vindr_cxr_vqa.native import read_native
from cxrjax.records import QARecord
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.readers import Readers

read_release = read_native


def check_source(
    by_file: Mapping[Path, Sequence[QARecord]], table: Path, log: QualityLog
) -> dict[str, int]:
    """Logs findings and boxes that the box table does not have.

    Returns:
        Counts of the table's images with findings: all, and those with questions.
    """
    images = {image.image_id: image for image in _table(table)}
    for file, records in by_file.items():
        verify.verify_source(records, images, log, file.name)
    everything = [record for records in by_file.values() for record in records]
    return verify.coverage(everything, images.values())


def read_readers(table: Path) -> dict[str, Readers]:
    """Reads each reader's marks by image."""
    return {image.image_id: reader_boxes(image) for image in _table(table)}


def compare_readers(readers: Mapping[str, Readers], bootstrap: Bootstrap) -> tuple[Any, str]:
    """Scores every reader against the others; returns JSON and Markdown."""
    ceiling = reader_ceiling.reader_ceiling(readers, bootstrap)
    return ceiling.to_json(), reader_ceiling.markdown(ceiling)


def _table(path: Path) -> list[ImageAnnotation]:
    """Reads the box table's images; prints a count of its unusable rows."""
    log = QualityLog()
    images = read_box_table(path, log)
    if log.entries:
        counts = {reason: count for reason, count in log.counts().items() if count}
        print(f"{path.name}: {len(log.entries):,} rows set aside: {counts}")
    return images
