"""Numbers, order, place and size of boxes in words, computed from the boxes alone."""

from collections.abc import Sequence

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.records_io.quality import PixelBox

# fmt: off
_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
    "eighteen", "nineteen", "twenty",
)


_ORDINALS = (
    "zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
    "ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth",
    "sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth",
)


# fmt: on
_THIRDS = ("upper", "middle", "lower")


def number(count: int) -> str:
    """A count in words up to twenty, beyond it in digits."""
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def ordinal(rank: int) -> str:
    """`first` to `twentieth`, then `21st`, `22nd`, ..."""
    if rank < len(_ORDINALS):
        return _ORDINALS[rank]
    suffix = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10)
    return f"{rank}{suffix or 'th'}"


def counted(count: int, one: str, many: str) -> str:
    """`one box`, `two boxes`."""
    return f"{number(count)} {one if count == 1 else many}"


def place(box: PixelBox, image_hw: tuple[int, int]) -> str:
    """Where the box's centre lies: third of the image's height, half of its width.

    Sides are those of the image as displayed: which side of the patient that is, an annotation does
    not say.
    """
    height, width = image_hw
    third = _THIRDS[min(int((box[1] + box[3]) / 2 * 3 / height), 2)]
    side = "left" if (box[0] + box[2]) / 2 < width / 2 else "right"
    return f"in the {third} third and the {side} half of the image"


def order(image: ImageAnnotation, label: str, box: PixelBox) -> tuple[int, int]:
    """(rank, of how many): where the box stands among its class's boxes, from the top."""
    boxes = image.boxes_of(label)
    return boxes.index(box) + 1, len(boxes)


def place_or_order(image: ImageAnnotation, label: str, box: PixelBox) -> str:
    """Where the box lies; without the image's size, where it stands among its class's boxes."""
    if image.image_hw:
        return place(box, image.image_hw)
    rank, total = order(image, label, box)
    if total == 1:
        return "the only box with this label"
    return f"the {ordinal(rank)} from the top of {number(total)} boxes with this label"


def size_rank(box: PixelBox, boxes: Sequence[PixelBox]) -> str | None:
    """`largest`, `second largest`, ..., `smallest` by area; None where that is not unique."""
    areas = [_area(other) for other in boxes]
    mine = _area(box)
    if len(areas) < 2 or areas.count(mine) > 1:
        return None
    larger = sum(area > mine for area in areas)
    if larger == 0:
        return "largest"
    return "smallest" if larger == len(areas) - 1 else f"{ordinal(larger + 1)} largest"


def overlap(a: PixelBox, b: PixelBox) -> bool:
    """Whether two boxes share an area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _area(box: PixelBox) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
