"""The tables beside MIMIC-CXR-JPG's images: which split an image is in, its size and view.

mimic-cxr-2.0.0-split.csv.gz       dicom_id, study_id, subject_id, split (train, validate, test)
mimic-cxr-2.0.0-metadata.csv.gz    dicom_id, subject_id, study_id, ViewPosition, Rows, Columns
"""

import csv
import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path

from cxrjax.errors import UserError

SPLIT_PATTERN = "mimic-cxr-*-split.csv*"
METADATA_PATTERN = "mimic-cxr-*-metadata.csv*"
SPLIT_NAMES = {"train": "train", "validate": "validation", "test": "test"}


def read_splits(path: Path) -> dict[str, str]:
    """dicom_id -> `train`, `validation` or `test`.

    Raises:
        UserError: the table cannot be read, or has another split.
    """
    splits = {}
    for number, row in read_rows(path, ("dicom_id", "split")):
        if row["split"] not in SPLIT_NAMES:
            raise UserError(
                f"{path}:{number}: split {row['split']!r}; expected one of {list(SPLIT_NAMES)}"
            )
        splits[row["dicom_id"]] = SPLIT_NAMES[row["split"]]
    return splits


def read_sizes(path: Path) -> dict[str, tuple[int, int]]:
    """dicom_id -> (height, width) in pixels, of the images whose size the table tells."""
    rows = read_rows(path, ("dicom_id", "Rows", "Columns"))
    found = ((row["dicom_id"], size_of(row, f"{path}:{number}")) for number, row in rows)
    return {image_id: size for image_id, size in found if size}


def size_of(row: Mapping[str, str], where: str) -> tuple[int, int] | None:
    """(height, width) in pixels out of a row of the metadata; None where both cells are empty.

    Raises:
        UserError: they hold something else than whole numbers.
    """
    try:
        return int(row["Rows"]), int(row["Columns"])
    except ValueError:
        if row["Rows"] or row["Columns"]:
            raise UserError(
                f"{where}: Rows {row['Rows']!r}, Columns {row['Columns']!r}; expected whole numbers"
            ) from None
    return None


def read_rows(path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a table, which may be compressed.

    Raises:
        UserError: the table cannot be read, or lacks one of the columns `wanted`.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in wanted if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(
                    f"{path}:1: no column {missing[0]}; found {list(reader.fieldnames or ())}"
                )
            for row in reader:
                if any(row[name] is None for name in wanted):
                    raise UserError(f"{path}:{reader.line_num}: a short row; fetch the table again")
                yield reader.line_num, row
    except (OSError, EOFError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; expected a table") from None
