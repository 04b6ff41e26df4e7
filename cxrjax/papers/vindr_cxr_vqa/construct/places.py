"""Locates boxes on the patient, from what is known of the image.

Sides are the patient's: the patient's right is on the image's left. Zones are thirds of the lungs'
height. Where the image's size is known, the midline is its middle, and the lungs reach from 10 % to
82 % of its height (medians of 47 public frontal radiographs with lung boxes). Where it isn't, the
boxes of heart and aorta on the same image stand in: what lies beside the heart's box is on that
side, the aortic arch stands at the border of upper and mid zone, and the heart's lower edge near
the base. What neither tells has no place here.
"""

import dataclasses
from collections.abc import Collection, Sequence

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.lesions import find_lesions
from cxrjax.radiology_text.english import join
from cxrjax.records_io.quality import PixelBox

HEART, AORTA = "Cardiomegaly", "Aortic enlargement"
ZONES = ("upper", "mid", "lower")

_LUNG_TOP, _LUNG_BOTTOM = 0.10, 0.82  # of the image's height
LUNGS_HEIGHT = _LUNG_BOTTOM - _LUNG_TOP
# Of the way from the aortic arch to the heart's lower edge: where mid and lower zone meet.
_MID_TO_LOWER = 0.67
# Of the image's width: nearer to the midline is on neither side.
_CENTRAL = 0.05
# A box belongs to a side or zone that holds this share of it.
_SHARE = 0.3
# Of the image's width: a box that is to be on both sides is so wide, half of it on either.
_WIDE = 0.2
# Of the image's width: a heart that reaches less beyond the midline is not said to cross it.
_BARELY = 0.1
# Of the lungs' height at either end: apex and base.
_END = 0.16
# Of the image's width from the midline: hila, what the heart covers, the lateral chest wall.
_HILUM, _BEHIND_HEART, _LATERAL = (0.06, 0.16), (0.05, 0.18), 0.25


@dataclasses.dataclass(frozen=True)
class ChestFrame:
    """The known part of where an image's chest is, pixels of the original."""

    image_hw: tuple[int, int] | None
    heart: PixelBox | None
    aorta: PixelBox | None

    @property
    def borders(self) -> tuple[float | None, float | None]:
        """Borders between upper and mid, and mid and lower zone: y, as far as known."""
        if self.image_hw:
            span = _LUNG_BOTTOM - _LUNG_TOP
            height = self.image_hw[0]
            return height * (_LUNG_TOP + span / 3), height * (_LUNG_TOP + 2 * span / 3)
        arch = None if self.aorta is None else (self.aorta[1] + self.aorta[3]) / 2
        if self.heart is None or (arch is not None and arch >= self.heart[1]):
            return arch, None
        if arch is None:
            return None, self.heart[1]
        return arch, arch + _MID_TO_LOWER * (self.heart[3] - arch)


def frame_of(image: ImageAnnotation) -> ChestFrame:
    """Returns the frame of an image, of its size or of its landmarks."""
    heart, aorta = (
        lesions[0].box if (lesions := find_lesions(image, label)) else None
        for label in (HEART, AORTA)
    )
    return ChestFrame(image.image_hw, heart, aorta)


@dataclasses.dataclass(frozen=True)
class LesionPlace:
    """The place of a box."""

    # "right", "left" or "both" of the patient's, "middle" on the midline; None: not known.
    side: str | None
    zones: tuple[str, ...]  # of `ZONES`, from the top; empty: not known
    detail: str = ""  # "apex", "base", "hilum", "heart" (behind it), "angle" (costophrenic) or ""

    @property
    def known(self) -> bool:
        """True where any of it is known."""
        return self.side in ("right", "left", "both") or bool(self.zones)


def locate(box: PixelBox, label: str, frame: ChestFrame) -> LesionPlace:
    """Returns the place of a box of a class."""
    side, zones = _side(box, label, frame), _zones(box, frame)
    return LesionPlace(side, zones, _detail(box, label, side, zones, frame))


def _side(box: PixelBox, label: str, frame: ChestFrame) -> str | None:
    if frame.image_hw:
        width = frame.image_hw[1]
        return _side_of_line(box, width / 2, _CENTRAL * width, _WIDE * width)
    heart, aorta = frame.heart, frame.aorta
    x = (box[0] + box[2]) / 2
    if label == HEART:
        return None
    if label == AORTA:
        if heart is None:
            return None
        share = (x - heart[0]) / (heart[2] - heart[0])
        return "left" if share > 0.5 else "middle" if share > 0.2 else "right"
    sides = set()
    if heart:
        if box[0] < heart[0] and box[2] > heart[2]:
            return "both"
        # About a third of the heart lies right of the midline.
        share = (x - heart[0]) / (heart[2] - heart[0])
        sides |= {"right"} if share < 0.1 else {"left"} if share > 0.7 else set()
    if aorta:
        # The arch stands left of the midline, or reaches across it.
        share = (x - aorta[0]) / (aorta[2] - aorta[0])
        sides |= {"right"} if share < -0.5 else {"left"} if share > 1 else set()
    return sides.pop() if len(sides) == 1 else None


def _side_of_line(box: PixelBox, line: float, near: float, wide: float) -> str:
    on_right = (line - box[0]) / (box[2] - box[0])
    reach = min(line - box[0], box[2] - line)
    if _SHARE <= on_right <= 1 - _SHARE and reach >= wide / 2:
        return "both"
    x = (box[0] + box[2]) / 2
    return "middle" if abs(x - line) < near else "right" if x < line else "left"


def _zones(box: PixelBox, frame: ChestFrame) -> tuple[str, ...]:
    upper, lower = frame.borders
    top, bottom = box[1], box[3]
    y = (top + bottom) / 2
    if upper is None or lower is None:
        if upper is not None and y < upper:
            return ("upper",)
        return ("lower",) if lower is not None and y >= lower else ()
    here = ZONES[(y >= upper) + (y >= lower)]
    parts = (
        min(bottom, upper) - top,
        min(bottom, lower) - max(top, upper),
        bottom - max(top, lower),
    )
    # A part of the box, or half of the zone, as where a box covers a whole lung.
    enough = min(_SHARE * (bottom - top), (lower - upper) / 2)
    held = {zone for zone, part in zip(ZONES, parts, strict=True) if part >= enough}
    return tuple(zone for zone in ZONES if zone in held | {here})


def _detail(
    box: PixelBox, label: str, side: str | None, zones: tuple[str, ...], frame: ChestFrame
) -> str:
    if not frame.image_hw or label in (HEART, AORTA) or len(zones) != 1:
        return ""
    if side not in ("right", "left"):
        return ""
    height, width = frame.image_hw
    y = (box[1] + box[3]) / 2 / height
    from_midline = abs((box[0] + box[2]) / 2 - width / 2) / width
    end = _END * (_LUNG_BOTTOM - _LUNG_TOP)
    if zones == ("upper",):
        return "apex" if y < _LUNG_TOP + end else ""
    if zones == ("mid",):
        narrow = box[2] - box[0] < _WIDE * width
        return "hilum" if narrow and _HILUM[0] <= from_midline <= _HILUM[1] else ""
    if y > _LUNG_BOTTOM - end:
        lateral = label.startswith("Pleural") and from_midline > _LATERAL
        return "angle" if lateral else "base"
    behind = side == "left" and _BEHIND_HEART[0] <= from_midline <= _BEHIND_HEART[1]
    return "heart" if behind else ""


_DETAILS = {
    "apex": "at the {side} apex",
    "base": "at the {side} lung base",
    "hilum": "in the {side} hilar region",
    "heart": "in the {side} retrocardiac region",
    "angle": "at the {side} costophrenic angle",
}
_ORDER = ("apex", "upper", "hilum", "mid", "heart", "lower", "base", "angle")
_ZONE_OF = {"apex": "upper", "hilum": "mid", "heart": "lower", "base": "lower", "angle": "lower"}
_MOST_PARTS = 4  # that are named one by one; more are summed up


def describe(label: str, boxes: Sequence[PixelBox], frame: ChestFrame) -> str | None:
    """Returns the place of a class's boxes, `in the right lower zone`; None where not known."""
    places = [locate(box, label, frame) for box in boxes]
    if not places:
        return None
    if label == HEART:
        return _heart(boxes[0], frame)
    if label == AORTA:
        return _mediastinum(boxes[0], places[0], frame)
    # What is not known of all of them is said of none.
    if not all(place.zones for place in places):
        places = [LesionPlace(place.side, ()) for place in places]
    if not all(place.side for place in places):
        places = [LesionPlace(None, place.zones) for place in places]
    if not all(place.known for place in places):
        return None
    return _in_words(places)


def _in_words(places: Sequence[LesionPlace]) -> str:
    by_side: dict[str | None, set[str]] = {"right": set(), "left": set(), "middle": set()}
    for place in places:
        for side in ("right", "left") if place.side == "both" else (place.side,):
            parts = by_side.setdefault(side, set())
            parts |= {place.detail} if place.detail else set(place.zones)
    sided = {side: _from_the_top(parts) for side, parts in by_side.items() if parts}
    if not sided:
        sides = {place.side for place in places}
        return f"on the {sides.pop()} side" if len(sides) == 1 else "on both sides"
    if sum(map(len, sided.values())) > _MOST_PARTS:
        return _summed_up(places)
    right, left = (sided.get(side, []) for side in ("right", "left"))
    if right and right == left and set(right) <= set(ZONES) and len(sided) == 2:
        return f"in {_zone_names(right, '')} on both sides"
    phrases = [phrase for side, parts in sided.items() for phrase in _phrases(side, parts)]
    if len(phrases) == 2 and any(" and " in phrase for phrase in phrases):
        return ", as well as ".join(phrases)
    return join(phrases)


def _from_the_top(parts: Collection[str]) -> list[str]:
    """Returns parts in order, without those within a zone that is named, too."""
    return [p for p in _ORDER if p in parts and (p in ZONES or _ZONE_OF[p] not in parts)]


def _phrases(side: str | None, parts: Sequence[str]) -> list[str]:
    zones = [part for part in parts if part in ZONES]
    sided = f"{side} " if side in ("right", "left") else ""
    zoned = [f"{'centrally ' * (side == 'middle')}in {_zone_names(zones, sided)}"]
    details = [_DETAILS[part].format(side=side) for part in parts if part in _DETAILS]
    return zoned * bool(zones) + details


def _zone_names(zones: Sequence[str], side: str) -> str:
    return join([f"the {side}{zone} zone" for zone in zones])


def _summed_up(places: Sequence[LesionPlace]) -> str:
    sides = {place.side for place in places}
    where = ""
    if "both" in sides or {"right", "left"} <= sides:
        where = " on both sides"
    elif len(sides) == 1 and sides <= {"right", "left"}:
        where = f" on the {sides.pop()} side"
    zones = [zone for zone in ZONES if any(zone in place.zones for place in places)]
    if not all(place.zones for place in places):
        return f"at several places{where}"
    if len(zones) == 1:
        return f"at several places{where}, all in the {zones[0]} zone"
    return f"at several places{where}, from the {zones[0]} to the {zones[-1]} zone"


def _heart(box: PixelBox, frame: ChestFrame) -> str | None:
    if not frame.image_hw:
        return None
    middle = frame.image_hw[1] / 2
    right, left = middle - box[0], box[2] - middle
    if min(right, left) <= 0:
        return f"to the {'left' if right <= 0 else 'right'} of the midline"
    if min(right, left) < _BARELY * frame.image_hw[1]:
        return f"mostly to the {'left' if left > right else 'right'} of the midline"
    if max(right, left) < 1.3 * min(right, left):
        return "across the midline, about as far to the right as to the left"
    near, far = ("right", "left") if left > right else ("left", "right")
    return f"across the midline, farther to the {far} than to the {near}"


def _mediastinum(box: PixelBox, place: LesionPlace, frame: ChestFrame) -> str | None:
    if frame.image_hw:
        level = (
            "lower " if place.zones == ("lower",) else "upper " if "upper" in place.zones else ""
        )
    elif frame.heart and place.side:
        level = "upper " if (box[1] + box[3]) / 2 < frame.heart[1] else ""
    else:
        return None
    if place.side in ("right", "left"):
        return f"in the {place.side} {level}mediastinum"
    return f"in the {level}mediastinum, near the midline"
