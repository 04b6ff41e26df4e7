"""Facts of an image that reasons are made of: size, shape, sides and neighbours of its lesions."""

from collections.abc import Sequence

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.lesions import ORGANS, area, find_lesions, shared_area
from cxrjax.papers.vindr_cxr_vqa.construct.places import LUNGS_HEIGHT, ChestFrame, locate
from cxrjax.records_io.quality import PixelBox

# Two boxes are in the same region where they share this much of the smaller one.
_SAME_REGION = 0.5
_ELONGATED, _EVEN = 2.0, 1.25
_NEAREST = 5  # percent
_AS_WIDE = (
    (0.12, "less than an eighth"),
    (0.29, "about a quarter"),
    (0.41, "about a third"),
    (0.62, "about half"),
    (0.85, "about three quarters"),
    (1.2, "about"),
)


def extent(box: PixelBox, image_hw: tuple[int, int]) -> tuple[int, int]:
    """Returns percent of the image's width and of the lungs' height, as `places` has it; to the
    nearest five, at least that and at most all."""
    height, width = image_hw[0] * LUNGS_HEIGHT, image_hw[1]
    shares = ((box[2] - box[0]) / width, (box[3] - box[1]) / height)
    across, down = (min(max(round(100 * share / _NEAREST), 1) * _NEAREST, 100) for share in shares)
    return across, down


def against_heart(label: str, box: PixelBox, frame: ChestFrame) -> str | None:
    """Returns how wide a box is beside the heart's; None without a heart to measure with."""
    if frame.heart is None or label in ORGANS:
        return None
    ratio = (box[2] - box[0]) / (frame.heart[2] - frame.heart[0])
    return next((words for most, words in _AS_WIDE if ratio < most), None)


def shape(box: PixelBox) -> str:
    """ "tall" (at least twice as high as wide), "higher", "even", "wider" or "wide"."""
    ratio = (box[3] - box[1]) / (box[2] - box[0])
    if 1 / _EVEN < ratio < _EVEN:
        return "even"
    if ratio > 1:
        return "tall" if ratio >= _ELONGATED else "higher"
    return "wide" if ratio <= 1 / _ELONGATED else "wider"


def sides_of(label: str, boxes: Sequence[PixelBox], frame: ChestFrame) -> set[str]:
    """Returns the sides that boxes are on, "right" and "left"; empty where one is not known or is
    on the midline, and of organs, which are there."""
    of_side = {"right": {"right"}, "left": {"left"}, "both": {"right", "left"}}
    sides = [of_side.get(locate(box, label, frame).side or "", set()) for box in boxes]
    return set().union(*sides) if all(sides) and label not in ORGANS else set()


def zones_of(label: str, boxes: Sequence[PixelBox], frame: ChestFrame) -> set[str]:
    """Returns the zones that boxes are in; empty where one is not known."""
    zones = [locate(box, label, frame).zones for box in boxes]
    return set().union(*zones) if all(zones) else set()


def in_same_region(image: ImageAnnotation, label: str, boxes: Sequence[PixelBox]) -> list[str]:
    """Returns other classes of which a lesion lies upon one of the boxes."""
    return [
        name
        for name in image.present
        if name != label
        and any(
            shared_area(box, lesion.box) >= _SAME_REGION * min(area(box), area(lesion.box))
            for box in boxes
            for lesion in find_lesions(image, name)
        )
    ]
