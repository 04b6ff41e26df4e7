"""The findings of a study as its report names them: one item per finding and side, placed."""

import dataclasses
from collections.abc import Sequence

from cxrjax.phantoms.anatomy import SIDES, Patient
from cxrjax.phantoms.studies.views import DrawnLesion

# (VinDr-CXR's class, form) -> the report's term, a key of the grammar's findings.
TERMS = {
    ("Aortic enlargement", ""): "tortuous aorta",
    ("Atelectasis", "plate"): "atelectasis",
    ("Atelectasis", "lobar"): "lobar collapse",
    ("Calcification", ""): "calcified nodule",
    ("Cardiomegaly", ""): "enlarged cardiac silhouette",
    ("Consolidation", ""): "consolidation",
    ("ILD", ""): "interstitial markings",
    ("Infiltration", ""): "airspace opacity",
    ("Lung Opacity", ""): "lung opacity",
    ("Nodule/Mass", "nodule"): "nodule",
    ("Nodule/Mass", "mass"): "mass",
    ("Other lesion", "cavity"): "cavitary lesion",
    ("Other lesion", "device"): "cardiac device",
    ("Other lesion", "hiatal hernia"): "hiatal hernia",
    ("Pleural effusion", ""): "pleural effusion",
    ("Pleural thickening", "apical"): "pleural thickening",
    ("Pleural thickening", "lateral"): "pleural thickening",
    ("Pneumothorax", ""): "pneumothorax",
    ("Pulmonary fibrosis", ""): "fibrotic scarring",
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


def change(item: Item, before: Sequence[Item]) -> str:
    """What became of it since the study before: new, no change, improved or worsened."""
    for other in before:
        if (other.term, other.side) == (item.term, item.side):
            if item.area > _CHANGED * other.area:
                return "worsened"
            return "improved" if other.area > _CHANGED * item.area else "no change"
    return "new"
