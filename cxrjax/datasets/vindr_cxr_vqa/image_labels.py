"""PhysioNet's image labels: one row per image and reader, 0 or 1 for every class.

They say again, without boxes, what the table of boxes says. Where the two differ nobody can tell
which is right: the boxes are kept, and the difference is counted.
"""

from collections.abc import Iterable
from pathlib import Path

from cxrjax.datasets.csv_table import TableRow, read_table
from cxrjax.datasets.quality import QualityLog, Unusable
from cxrjax.datasets.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.box_table import SPELLINGS
from cxrjax.datasets.vindr_cxr_vqa.classes import CLASSES, NO_FINDING

# What a cell may say; blank counts as absent.
_VALUES = {"": False, "0": False, "0.0": False, "1": True, "1.0": True}


def check_image_labels(
    path: Path,
    images: Iterable[ImageAnnotation],
    quality: QualityLog,
    reader: str | None = None,
) -> None:
    """Counts, as warnings, where labels and boxes of a reader differ.

    Compared are the 14 selected classes, and "No finding" against having any box. (The global
    labels have no boxes, so that a reader without boxes may still have seen something.)

    Args:
        images: as the table of boxes has them.
        quality: takes the warnings; rows that cannot be used are set aside.
        reader: who labelled everything, for a file without readers.

    Raises:
        UserError: the file cannot be read, or a column is missing.
    """
    marked = {
        (image.image_id, rad_id): {finding.label for finding in findings}
        for image in images
        for rad_id, findings in image.readers.items()
    }
    required = ["image_id", *CLASSES, NO_FINDING] + ([] if reader else ["rad_id"])
    seen: set[tuple[str, str]] = set()
    for row in read_table(path, required, SPELLINGS):
        quality.examined["rows of image labels"] += 1
        key = (row.cells["image_id"], reader or row.cells["rad_id"])
        try:
            labelled = _labelled(row)
            if key in seen:
                raise Unusable("duplicate_row", f"reader {key[1]} labelled this image further up")
        except Unusable as fault:
            quality.set_aside(fault.reason, key[0], row.where, fault.found)
            continue
        seen.add(key)
        if key not in marked:
            quality.warnings["image labels of an image and reader without rows of boxes"] += 1
            continue
        for label in sorted(labelled & set(CLASSES) - marked[key]):
            quality.warnings[f"image labels: {label} labelled, without a box"] += 1
        for label in sorted(marked[key] - labelled):
            quality.warnings[f"image labels: {label} boxed, and not labelled"] += 1
        if NO_FINDING in labelled and marked[key]:
            quality.warnings[f"image labels: {NO_FINDING}, with boxes"] += 1
    missing = len(marked.keys() - seen)
    if missing:
        quality.warnings["rows of boxes of an image and reader without image labels"] += missing


def _labelled(row: TableRow) -> set[str]:
    """Classes of the row that are 1; raises `Unusable` where a cell is neither 0 nor 1."""
    if row.fault:
        raise row.fault
    labelled = set()
    for name in (*CLASSES, NO_FINDING):
        cell = row.cells[name]
        if cell not in _VALUES:
            raise Unusable("malformed_row", f"{name} is {cell!r}; expected 0 or 1")
        if _VALUES[cell]:
            labelled.add(name)
    return labelled
