"""A study's pictures, and where findings and regions are on them."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8

from cxrjax.simulation.phantoms import regions, render
from cxrjax.simulation.phantoms.anatomy import LEFT, RIGHT, SIDES, Patient
from cxrjax.simulation.phantoms.canvas import Canvas
from cxrjax.simulation.phantoms.findings import CLASSES
from cxrjax.simulation.phantoms.lateral import SideLesion, render_lateral
from cxrjax.simulation.phantoms.signs import lesion_box
from cxrjax.simulation.phantoms.studies.plan import PhantomStudy, View

# A lesion is in a zone that holds this share of it.
_SHARE = 0.2
_ORGANS = {
    "Cardiomegaly": ("cardiac silhouette",),
    "Aortic enlargement": ("aortic arch", "mediastinum"),
}


@dataclasses.dataclass(frozen=True)
class DrawnLesion:
    """A finding as drawn.

    Attributes:
        number: the same in all views of the study.
        label, kind: VinDr-CXR's class, and the form it takes.
        side: RIGHT, LEFT or 0 for the midline.
        regions: of the 29 names, lung zones and angles that hold it; organs for heart and aorta.
        height: top and bottom in body coordinates.
        box: fractions of the picture.
    """

    number: int
    label: str
    kind: str
    side: int
    regions: tuple[str, ...]
    height: tuple[float, float]
    box: Float[np.ndarray, "4"]


@dataclasses.dataclass(frozen=True)
class DrawnView:
    """A view as rendered; a lateral one has neither canvas nor lesions."""

    view: View
    image: UInt8[np.ndarray, "h w"]
    canvas: Canvas | None
    lesions: list[DrawnLesion]


def render_study(study: PhantomStudy, long_side: int) -> list[DrawnView]:
    """All views; lesions carry the regions that the first frontal view shows them in."""
    pictures: list[DrawnView] = []
    for view in study.views:
        if view.position == "LATERAL":
            first = pictures[0].lesions
            sides = [SideLesion(one.label, one.side, *one.height) for one in first]
            image = render_lateral(view.film, sides, study.series, view.grain, long_side)
            pictures.append(DrawnView(view, image, None, []))
            continue
        known = pictures[0].lesions if pictures else None
        pictures.append(_frontal(study, view, long_side, known))
    return pictures


def _frontal(
    study: PhantomStudy, view: View, long_side: int, known: list[DrawnLesion] | None
) -> DrawnView:
    height, width = render.picture_size(view.film, long_side)
    painted = render.picture_size(view.film, min(long_side, render.PAINTED_AT_MOST))
    painting = render.paint(view.film, study.presences, study.series, study.index, *painted)
    image = render.develop(painting, painting.density(), height, width, study.series, view.grain)
    lesions = []
    for number, sign in enumerate(painting.signs):
        box = lesion_box(sign.stamp.weight, sign.stamp.window, *painted)
        if box is None:
            continue
        if known is None:
            lesions.append(_locate(painting, number, sign, box))
        else:
            same = [one for one in known if one.number == number]
            lesions += [dataclasses.replace(one, box=box) for one in same]
    return DrawnView(view, image, view.film.canvas(height, width), lesions)


def _locate(
    painting: render.Painting, number: int, sign: render.Sign, box: Float[np.ndarray, "4"]
) -> DrawnLesion:
    """The lesion with its side and regions, by the share of it that each region's mask holds."""
    patient, canvas = painting.patient, painting.canvas
    window = sign.stamp.window
    weight = np.where(sign.stamp.weight > 0.3, sign.stamp.weight, 0)
    gx, gy = canvas.grid(window)
    rows = gy[weight > 0]
    total = float(weight.sum())
    centre = float((weight * gx).sum()) / total
    side = RIGHT if centre < patient.midline else LEFT
    top, bottom = float(rows.min()), float(rows.max())
    number_and_name = number, sign.label, sign.stamp.kind
    if sign.label in _ORGANS:
        found = _ORGANS[sign.label]
        return DrawnLesion(*number_and_name, 0, found, (top, bottom), box)
    if sign.stamp.kind == "hiatal hernia":
        found = ("mediastinum",)
        return DrawnLesion(*number_and_name, 0, found, (top, bottom), box)
    name = "right" if side == RIGHT else "left"
    zones = tuple(f"{name} {zone}" for zone in regions.ZONES)
    shapes = regions.region_shapes(patient)
    shares = {
        zone: float((weight * canvas.mask(shapes[zone], window=window)).sum()) / total
        for zone in zones
    }
    found = tuple(zone for zone in zones if shares[zone] >= _SHARE)
    if sign.label == "Pleural effusion":
        # Fluid starts in the angle, wherever most of it lies.
        found = (*found, f"{name} costophrenic angle")
    if not found:
        found = (max(shares, key=lambda zone: shares[zone]),)
    return DrawnLesion(*number_and_name, side, found, (top, bottom), box)


# (VinDr-CXR's class, form) -> the report's term, a key of the grammar's findings.
TERMS = {
    (name, form): term for name, said in CLASSES.items() for form, term in said["terms"].items()
}
# Zones that have a name together; any other combination is called the whole lung.
_TOGETHER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("apical zone",): ("{} apical zone", "{} lung apex"),
    ("upper lung zone",): ("{} upper lung zone", "{} upper lung"),
    ("mid lung zone",): ("{} mid lung zone", "{} mid lung"),
    ("lower lung zone",): ("{} lower lung zone", "{} lung base", "{} lower lung"),
    ("apical zone", "upper lung zone"): ("{} apex and upper lung zone",),
    ("upper lung zone", "mid lung zone"): ("{} mid-to-upper lung zone", "{} upper and mid lung"),
    ("mid lung zone", "lower lung zone"): ("{} mid-to-lower lung zone", "{} mid and lower lung"),
}
# A box that grew or shrank by this factor between two studies has changed.
_CHANGED = 1.3


@dataclasses.dataclass(frozen=True)
class Item:
    """Lesions of one term on one side, said in one sentence.

    Attributes:
        side: "right", "left" or "" for the midline.
        regions: of Chest ImaGenome's names, where the words say that it is.
        places: wordings of the place, each meaning `regions`.
        severity: None where the term has no degrees.
        area: share of the picture in the lesions' boxes.
        lesions: their numbers.
    """

    term: str
    side: str
    regions: tuple[str, ...]
    places: tuple[str, ...]
    severity: str | None
    area: float
    lesions: tuple[int, ...]


def items(lesions: Sequence[DrawnLesion], body: Patient) -> list[Item]:
    """The lesions of a study grouped by term and side, in order of drawing."""
    groups: dict[tuple[str, str], list[DrawnLesion]] = {}
    for lesion in lesions:
        term = TERMS[lesion.label, lesion.kind]
        groups.setdefault((term, SIDES.get(lesion.side, "")), []).append(lesion)
    return [_item(term, side, group, body) for (term, side), group in groups.items()]


def _item(term: str, side: str, group: list[DrawnLesion], body: Patient) -> Item:
    regions, places = _where(side, group)
    severity = None
    if term == "pneumothorax":
        regions = (f"{side} lung",)  # no wording says more than the side
    elif term == "enlarged cardiac silhouette":
        ratio = body.heart_ratio
        severity = "mild" if ratio < 0.58 else "moderate" if ratio < 0.63 else "severe"
    elif term == "pleural effusion":
        # Small ones stay in the lower zone (GEMeX's rule 4 places them there, too).
        severity = "moderate" if any("mid" in region for region in regions) else "small"
    area = sum(float((one.box[2:] - one.box[:2]).prod()) for one in group)
    numbers = tuple(one.number for one in group)
    return Item(term, side, regions, places, severity, area, numbers)


def _where(side: str, group: list[DrawnLesion]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Regions of some lesions of one side, and wordings that mean just these."""
    if not side:
        return group[0].regions, ("",)
    order = ("apical zone", *(f"{part} lung zone" for part in ("upper", "mid", "lower")))
    held = {region.removeprefix(f"{side} ") for lesion in group for region in lesion.regions}
    zones = tuple(zone for zone in order if zone in held)
    extra = tuple(f"{side} {name}" for name in ("costophrenic angle",) if name in held)
    if zones in _TOGETHER:
        names = tuple(f"{side} {zone}" for zone in zones)
        return (*names, *extra), tuple(place.format(side) for place in _TOGETHER[zones])
    return (f"{side} lung", *extra), (f"{side} lung",)


def change_since(item: Item, before: Sequence[Item]) -> str:
    """The change since the study before: new, no change, improved or worsened."""
    for other in before:
        if (other.term, other.side) == (item.term, item.side):
            if item.area > _CHANGED * other.area:
                return "worsened"
            return "improved" if other.area > _CHANGED * item.area else "no change"
    return "new"
