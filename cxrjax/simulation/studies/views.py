"""Images of a study, with the places of its findings."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8

from cxrjax.simulation import regions, render
from cxrjax.simulation.anatomy import LEFT, RIGHT, SIDES, Patient
from cxrjax.simulation.canvas import Canvas
from cxrjax.simulation.findings import CLASSES
from cxrjax.simulation.lateral import render_lateral
from cxrjax.simulation.studies.plan import PhantomStudy, View

# A lesion is in a zone that holds this share of it.
_SHARE = 0.2
_ORGANS = {
    "Cardiomegaly": ("cardiac silhouette",),
    "Aortic enlargement": ("aortic arch", "mediastinum"),
    "hiatal hernia": ("mediastinum",),
}


@dataclasses.dataclass(frozen=True)
class RenderedLesion:
    """A finding as rendered.

    Attributes:
        number: the same in all views of the study.
        label, kind: VinDr-CXR's class, and the form it takes.
        side: RIGHT, LEFT or 0 for the midline.
        regions: of the 29 names, lung zones and angles that hold it; organs for heart and aorta.
        height: top and bottom in body coordinates.
        box: fractions of the image.
    """

    number: int
    label: str
    kind: str
    side: int
    regions: tuple[str, ...]
    height: tuple[float, float]
    box: Float[np.ndarray, "4"]


@dataclasses.dataclass(frozen=True)
class RenderedView:
    """A view as rendered; a lateral one has neither canvas nor lesions."""

    view: View
    image: UInt8[np.ndarray, "h w"]
    canvas: Canvas | None
    lesions: list[RenderedLesion]


def render_study(study: PhantomStudy, long_side: int) -> list[RenderedView]:
    """Renders all views; lesions have the regions in which the first frontal view shows them."""
    rendered: list[RenderedView] = []
    for view in study.views:
        known = rendered[0].lesions if rendered else None
        if view.position == "LATERAL":
            sides = [(one.label, *one.height) for one in known or ()]
            image = render_lateral(view.film, sides, study.series, view.grain, long_side)
            rendered.append(RenderedView(view, image, None, []))
        else:
            rendered.append(_frontal(study, view, long_side, known))
    return rendered


def _frontal(
    study: PhantomStudy, view: View, long_side: int, known: list[RenderedLesion] | None
) -> RenderedView:
    stream = study.series, study.index
    painting, image, boxes = render.render_frontal(
        view.film, study.presences, *stream, long_side, view.grain
    )
    if known is None:
        lesions = [_locate(painting, number, box) for number, box in boxes.items()]
    else:
        lesions = [
            dataclasses.replace(one, box=boxes[one.number]) for one in known if one.number in boxes
        ]
    return RenderedView(view, image, view.film.canvas(*image.shape), lesions)


def _locate(painting: render.Painting, number: int, box: Float[np.ndarray, "4"]) -> RenderedLesion:
    """Finds a lesion's side and regions, by the share of it that each region's mask holds."""
    patient, canvas, sign = painting.patient, painting.canvas, painting.signs[number]
    window = sign.window
    weight = np.where(sign.weight > 0.3, sign.weight, 0)
    gx, gy = canvas.grid(window)
    rows = gy[weight > 0]
    total = float(weight.sum())
    centre = float((weight * gx).sum()) / total
    side = RIGHT if centre < patient.midline else LEFT
    top, bottom = float(rows.min()), float(rows.max())
    if organ := _ORGANS.get(sign.kind or sign.label):
        return RenderedLesion(number, sign.label, sign.kind, 0, organ, (top, bottom), box)
    name = SIDES[side]
    shapes = regions.region_shapes(patient)
    shares = {
        zone: float((weight * canvas.mask(shapes[zone], window=window)).sum()) / total
        for zone in (f"{name} {zone}" for zone in regions.ZONES)
    }
    found = tuple(zone for zone, share in shares.items() if share >= _SHARE)
    if sign.label == "Pleural effusion":
        # Fluid starts in the angle, wherever most of it lies.
        found = (*found, f"{name} costophrenic angle")
    if not found:
        found = (max(shares, key=lambda zone: shares[zone]),)
    return RenderedLesion(number, sign.label, sign.kind, side, found, (top, bottom), box)


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
    """Lesions of one term on one side, which share a sentence."""

    term: str
    side: str  # "right", "left" or "" for the midline
    regions: tuple[str, ...]  # Chest ImaGenome's names of the place in the sentence
    places: tuple[str, ...]  # wordings of the place, each meaning `regions`
    severity: str | None  # None where the term has no degrees
    area: float  # share of the image in the lesions' boxes
    lesions: tuple[int, ...]  # their numbers


def items(lesions: Sequence[RenderedLesion], body: Patient) -> list[Item]:
    """Groups the lesions of a study by term and side, in order of rendering."""
    groups: dict[tuple[str, str], list[RenderedLesion]] = {}
    for lesion in lesions:
        term = TERMS[lesion.label, lesion.kind]
        groups.setdefault((term, SIDES.get(lesion.side, "")), []).append(lesion)
    return [_item(term, side, group, body) for (term, side), group in groups.items()]


def _item(term: str, side: str, group: list[RenderedLesion], body: Patient) -> Item:
    named, places = _where(side, group)
    severity = None
    if term == "pneumothorax":
        named = (f"{side} lung",)  # no wording says more than the side
    elif term == "enlarged cardiac silhouette":
        ratio = body.heart_ratio
        severity = "mild" if ratio < 0.58 else "moderate" if ratio < 0.63 else "severe"
    elif term == "pleural effusion":
        # Small ones stay in the lower zone (GEMeX's rule 4 places them there, too).
        severity = "moderate" if any("mid" in region for region in named) else "small"
    area = sum(float((one.box[2:] - one.box[:2]).prod()) for one in group)
    numbers = tuple(one.number for one in group)
    return Item(term, side, named, places, severity, area, numbers)


def _where(side: str, group: list[RenderedLesion]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns regions of some lesions of one side, and wordings that mean exactly these."""
    if not side:
        return group[0].regions, ("",)
    held = {region.removeprefix(f"{side} ") for lesion in group for region in lesion.regions}
    zones = tuple(zone for zone in regions.ZONES if zone in held)
    extra = tuple(f"{side} {name}" for name in ("costophrenic angle",) if name in held)
    if zones in _TOGETHER:
        names = tuple(f"{side} {zone}" for zone in zones)
        return (*names, *extra), tuple(place.format(side) for place in _TOGETHER[zones])
    return (f"{side} lung", *extra), (f"{side} lung",)


def change_since(item: Item, before: Sequence[Item]) -> str:
    """Returns the change since the study before: new, no change, improved or worsened."""
    for other in before:
        if (other.term, other.side) == (item.term, item.side):
            if item.area > _CHANGED * other.area:
                return "worsened"
            return "improved" if other.area > _CHANGED * item.area else "no change"
    return "new"
