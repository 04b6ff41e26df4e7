"""Reads the tables beside MIMIC-CXR-JPG's images: an image's split, size and view.

mimic-cxr-2.0.0-split.csv.gz       dicom_id, study_id, subject_id, split (train, validate, test)
mimic-cxr-2.0.0-metadata.csv.gz    dicom_id, subject_id, study_id, ViewPosition, Rows, Columns
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.paths import to_path, walk
from cxrjax.records import LARGEST_SIDE
from cxrjax.records_io.csv_table import read_table
from cxrjax.untrusted.names import shown

SPLIT_PATTERN = "mimic-cxr-*-split.csv*"
METADATA_PATTERN = "mimic-cxr-*-metadata.csv*"
_PATIENTS = re.compile(r"p1\d")  # ten folders with 65,379 patients and 377,110 images
SPLIT_NAMES = {"train": "train", "validate": "validation", "test": "test"}


def files_beside_images(folder: Path) -> Iterator[Path]:
    """Files at a folder and below, without the folders of images, which take minutes to list."""
    for place, inside, names in walk(folder):
        inside[:] = [name for name in inside if not _PATIENTS.fullmatch(name)]
        yield from (to_path(place) / name for name in names)


def find_table(folder: Path, pattern: str) -> Path | None:
    """The first table of a name at a folder or below it; None where there is none."""
    files = (file for file in files_beside_images(folder) if fnmatch.fnmatch(file.name, pattern))
    return min(files, default=None)


def read_splits(path: Path) -> dict[str, str]:
    """dicom_id -> `train`, `validation` or `test`.

    Raises:
        UserError: the table cannot be read, or has another split.
    """
    splits = {}
    for where, row in read_rows(path, ("dicom_id", "split")):
        if row["split"] not in SPLIT_NAMES:
            raise UserError(f"{where}: split {row['split']!r}; expected one of {list(SPLIT_NAMES)}")
        splits[row["dicom_id"]] = SPLIT_NAMES[row["split"]]
    return splits


def read_sizes(path: Path) -> dict[str, tuple[int, int]]:
    """dicom_id -> (height, width) in pixels, of the images whose size the table tells."""
    rows = read_rows(path, ("dicom_id", "Rows", "Columns"))
    found = ((row["dicom_id"], size_of(row, where)) for where, row in rows)
    return {image_id: size for image_id, size in found if size}


def size_of(row: Mapping[str, str], where: str) -> tuple[int, int] | None:
    """(height, width) in pixels out of a row of the metadata; None where both cells are empty.

    Raises:
        UserError: they hold something else than whole numbers.
    """
    if not row["Rows"] and not row["Columns"]:
        return None
    try:
        size = int(row["Rows"]), int(row["Columns"])
    except ValueError:
        size = 0, 0
    if not all(1 <= side <= LARGEST_SIDE for side in size):
        found = f"Rows {shown(row['Rows'])}, Columns {shown(row['Columns'])}"
        raise UserError(f"{where}: {found}; expected whole numbers of pixels")
    return size


def first_rows(
    folders: Iterable[Path], pattern: str, wanted: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields (file and line, row) of the first table of this name in the folders, if any."""
    files = (file for folder in folders for file in sorted(folder.glob(pattern)))
    if (first := next(files, None)) is not None:
        yield from read_rows(first, wanted)


def read_rows(path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(file and line, row) of a table, which may be compressed.

    Raises:
        UserError: the table or a row cannot be read, or a column of `wanted` is missing.
    """
    folder = str(path).removesuffix(path.name)
    for row in read_table(path, wanted):
        where = folder + row.where
        if row.fault is not None:
            raise UserError(f"{where}: {row.fault.found}; fetch the table again")
        yield where, row.cells
