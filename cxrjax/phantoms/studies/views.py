"""A study's pictures, and where findings and regions are on them."""

import dataclasses

import numpy as np
from jaxtyping import Float, UInt8

from cxrjax.phantoms import regions
from cxrjax.phantoms.anatomy import LEFT, RIGHT
from cxrjax.phantoms.canvas import Canvas
from cxrjax.phantoms.lateral import SideLesion, render_lateral
from cxrjax.phantoms.render import PAINTED_AT_MOST, Painting, Sign, develop, paint, picture_size
from cxrjax.phantoms.signs import lesion_box
from cxrjax.phantoms.studies.plan import PhantomStudy, View

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
    height, width = picture_size(view.film, long_side)
    painted = picture_size(view.film, min(long_side, PAINTED_AT_MOST))
    painting = paint(view.film, study.presences, study.series, study.index, *painted)
    image = develop(painting, painting.density(), height, width, study.series, view.grain)
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
    painting: Painting, number: int, sign: Sign, box: Float[np.ndarray, "4"]
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
