"""MS-CXR's rows, from its CSV or its COCO JSON: a box of a phrase each, as PhysioNet has them.

The columns category_name, label_text, path, x, y, w, h, image_width, image_height, dicom_id and,
since 1.1.0, split; in the JSON the same stands in annotations, images and categories.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from cxrjax.errors import UserError
from cxrjax.records_io.csv_table import read_table
from cxrjax.records_io.quality import PixelBox, Unusable
from cxrjax.untrusted.foreign_files import MIB, read_bytes
from cxrjax.untrusted.json_text import parse_object

_MOST_BYTES = 16 * MIB  # of the JSON; PhysioNet's has 2
_NOWHERE = (math.nan, math.nan, math.nan, math.nan)
_LAYOUT = "expected images, annotations and categories as MS-CXR has them"


class Mark(NamedTuple):
    """One row of the CSV, or one annotation of the JSON."""

    image_id: str
    category: str
    box: PixelBox  # pixels, xyxy; NaN where a number cannot be read
    # label_text, path, image_width, image_height and split, where the file has them.
    fields: Mapping[str, Any]
    where: str  # file and line, or file and annotation
    fault: Unusable | None  # why the row cannot be used, None where it can be read
    # The row as it stands: the CSV's cells, or {"annotation", "image", "category"}.
    native: Mapping[str, Any]


def read_marks(path: Path, required: Sequence[str] = ()) -> Iterator[Mark]:
    """All rows of a file, broken ones too.

    Args:
        required: columns that a CSV must have besides the class, the image and the box.

    Raises:
        UserError: the file cannot be read, or is not in MS-CXR's layout.
    """
    return _coco_marks(path) if path.suffix == ".json" else _csv_marks(path, required)


def to_number(value: Any) -> float:
    """The value as a finite number, else NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _csv_marks(path: Path, required: Sequence[str]) -> Iterator[Mark]:
    for row in read_table(path, ("category_name", "dicom_id", "x", "y", "w", "h", *required)):
        cells = row.cells
        box = _from_corner([cells[name] for name in "xywh"])
        image_id, category = cells["dicom_id"], cells["category_name"]
        yield Mark(image_id, category, box, cells, row.where, row.fault, cells)


def _coco_marks(path: Path) -> Iterator[Mark]:
    try:
        data = parse_object(read_bytes(path, _MOST_BYTES))
        images = {image["id"]: image for image in data["images"]}
        names = {image["id"]: _image_id(image) for image in data["images"]}
        categories = {category["id"]: category for category in data["categories"]}
        classes = {category["id"]: str(category["name"]) for category in data["categories"]}
        annotations = [dict(annotation) for annotation in data["annotations"]]
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not COCO's layout ({type(error).__name__}: {error}); {_LAYOUT}"
        ) from None
    for number, annotation in enumerate(annotations):
        image_id, category_id = annotation.get("image_id"), annotation.get("category_id")
        fault = None
        for name, key, known in (("image", image_id, names), ("category", category_id, classes)):
            if not isinstance(key, int | str) or key not in known:
                found = f"{name}_id is {key!r}; expected the id of one of the file's"
                fault = fault or Unusable("dangling_id", found)
        image = {} if fault else images[image_id]
        width_height = {"image_width": image.get("width"), "image_height": image.get("height")}
        yield Mark(
            "" if fault else names[image_id],
            "" if fault else classes[category_id],
            _from_corner(annotation.get("bbox")),
            {"path": image.get("file_name"), **image, **width_height, **annotation},
            f"{path.name}: annotation {number}",
            fault,
            {
                "annotation": annotation,
                "image": image,
                "category": {} if fault else categories[category_id],
            },
        )


def _image_id(image: Mapping[str, Any]) -> str:
    return str(image.get("dicom_id") or PurePosixPath(image["file_name"]).stem)


def _from_corner(numbers: Any) -> PixelBox:
    if not isinstance(numbers, list | tuple) or len(numbers) != 4:
        return _NOWHERE
    x, y, width, height = (to_number(value) for value in numbers)
    return x, y, x + width, y + height
