"""Tables of image sizes, for images that are not here or are here smaller than they were."""

from pathlib import Path

from cxrjax.datasets.csv_table import read_table
from cxrjax.datasets.quality import QualityLog, Unusable
from cxrjax.errors import UserError

ImageSizes = dict[str, tuple[int, int]]

# NumPy's order of axes, as the Kaggle mirrors' train_meta.csv has it.
_SPELLINGS = {"dim0": "height", "dim1": "width"}


def read_size_table(path: Path, quality: QualityLog) -> ImageSizes:
    """Image id -> (height, width) in pixels of the original.

    Args:
        path: csv or csv.gz with the columns image_id and height, width (or dim0, dim1).
        quality: where broken rows are noted. An image with two rows of different sizes is set
            aside whole; one with the same row twice is not.

    Raises:
        UserError: the file cannot be read, a column is missing, or no row can be used.
    """
    sizes: ImageSizes = {}
    ambiguous: set[str] = set()
    for row in read_table(path, ("image_id", "height", "width"), _SPELLINGS):
        quality.examined["rows of sizes"] += 1
        image_id = row.cells["image_id"]
        try:
            if row.fault:
                raise row.fault
            size = parse_size(row.cells["height"], row.cells["width"])
            if sizes.setdefault(image_id, size) != size:
                ambiguous.add(image_id)
                found = f"height, width {list(size)}, and {list(sizes[image_id])} further up"
                raise Unusable("duplicate_id", found)
        except Unusable as fault:
            quality.set_aside(fault.reason, image_id, row.where, fault.found)
    usable = {image_id: size for image_id, size in sizes.items() if image_id not in ambiguous}
    if not usable:
        raise UserError(f"{path}: no usable size in it; expected image_id, height, width")
    return usable


def parse_size(height: str, width: str) -> tuple[int, int]:
    """(height, width) of two cells.

    Raises:
        Unusable: not two whole numbers above zero.
    """
    try:
        size = float(height), float(width)
    except ValueError:
        size = (0.0, 0.0)
    if not all(1 <= value < 2**31 and value == int(value) for value in size):
        found = f"height={height!r}, width={width!r}; expected whole pixels"
        raise Unusable("bad_size", found)
    return int(size[0]), int(size[1])


def size_of(sizes: ImageSizes, image_id: str) -> tuple[int, int]:
    """The size that the table gives for an image.

    Raises:
        Unusable: none.
    """
    if image_id not in sizes:
        raise Unusable("unknown_size", "an image that the size table does not have")
    return sizes[image_id]
