"""Masks of single structures in CXAS' manner: COCO JSON, one file per image.

Names are CXAS's (Seibold et al., BMVC 2022) for the structures that the phantom draws. Of its 159
classes those are left out that the renderer has no shape for: lobes, single vertebrae, liver.
"""

from typing import Any

import numpy as np
from pycocotools import mask as coco

from cxrjax.phantoms import anatomy, regions, skeleton
from cxrjax.phantoms.anatomy import LEFT, SIDES, Patient
from cxrjax.phantoms.canvas import Canvas, ellipse
from cxrjax.phantoms.regions import Shapes

_FROM_REGIONS = {
    "right lung": "right lung",
    "left lung": "left lung",
    "right apical zone lung": "right apical zone",
    "left apical zone lung": "left apical zone",
    "right upper zone lung": "right upper lung zone",
    "left upper zone lung": "left upper lung zone",
    "right mid zone lung": "right mid lung zone",
    "left mid zone lung": "left mid lung zone",
    "right lung base": "right lower lung zone",
    "left lung base": "left lower lung zone",
    "heart": "cardiac silhouette",
    "heart atrium right": "right atrium",
    "aortic arch": "aortic arch",
    "trachea": "trachea",
    "tracheal bifurcation": "carina",
    "cardiomediastinum": "mediastinum",
    "upper mediastinum": "upper mediastinum",
    "clavicle right": "right clavicle",
    "clavicle left": "left clavicle",
    "right hemidiaphragm": "right hemidiaphragm",
    "left hemidiaphragm": "left hemidiaphragm",
}
_POSTERIOR, _ANTERIOR = 10, 7  # pairs of ribs as `skeleton.ribs` draws them
_ORDINALS = ("1st", "2nd", "3rd", *(f"{k}th" for k in range(4, 13)))
_RIBS = tuple(
    (part, k, side)
    for part, count in (("posterior", _POSTERIOR), ("anterior", _ANTERIOR))
    for side in ("right", "left")
    for k in range(count)
)
STRUCTURES = (
    *_FROM_REGIONS,
    *(f"{part} {_ORDINALS[k]} rib {side}" for part, k, side in _RIBS),
    *("scapula right", "scapula left", "humerus right", "humerus left"),
    *("thoracic spine", "stomach", "breast right", "breast left"),
)


def structure_shapes(patient: Patient) -> dict[str, Shapes]:
    """Structure -> its outlines in body coordinates, for all that this patient has."""
    regional = regions.region_shapes(patient)
    found = {name: regional[region] for name, region in _FROM_REGIONS.items()}
    posterior, anterior = skeleton.ribs(patient)
    for part, k, side in _RIBS:
        bands, count = (posterior, _POSTERIOR) if part == "posterior" else (anterior, _ANTERIOR)
        band, _ = bands[k + (count if side == "left" else 0)]
        found[f"{part} {_ORDINALS[k]} rib {side}"] = [(band, 1)]
    shoulder = [shape for shape, _ in skeleton.shoulder_bones(patient)]
    for at, side in ((0, "right"), (len(shoulder) // 2, "left")):
        blade, spine, shaft, head = shoulder[at : at + 4]
        found[f"scapula {side}"] = [(blade, 1), (spine, 1)]
        found[f"humerus {side}"] = [(shaft, 1), (head, 1)]
    column, _ = skeleton.vertebrae(patient)[0]
    height = patient.lung_height
    found["thoracic spine"] = [(regions.cut(column, 1, -0.05 * height, 1.08 * height), 1)]
    x, rx, ry = patient.stomach
    found["stomach"] = [(ellipse(x, patient.dome_level(LEFT, x) + 0.07 + ry, rx, ry), 1)]
    if patient.female:
        for sign, name in SIDES.items():
            found[f"breast {name}"] = [(anatomy.breast(patient, sign), 1)]
    return {name: found[name] for name in STRUCTURES if name in found}


def coco_masks(patient: Patient, canvas: Canvas, file_name: str) -> dict[str, Any]:
    """The file's content. Structures outside the picture have no annotation."""
    annotations: list[dict[str, Any]] = []
    drawn = structure_shapes(patient)
    for category, name in enumerate(STRUCTURES):
        shapes = drawn.get(name)
        if shapes is None:
            continue
        mask = regions.hard_mask(canvas, shapes)
        if not mask.any():
            continue
        lengths = coco.encode(np.asfortranarray(mask, dtype=np.uint8))
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": 1,
                "category_id": category,
                "segmentation": {
                    "size": [canvas.height, canvas.width],
                    "counts": lengths["counts"].decode(),
                },
                "area": int(mask.sum()),
                "bbox": coco.toBbox(lengths).tolist(),
                "iscrowd": 0,
            }
        )
    image = {"id": 1, "file_name": file_name, "height": canvas.height, "width": canvas.width}
    return {
        "info": {"description": "phantom: synthetic, from geometry"},
        "licenses": [],
        "images": [image],
        "categories": [
            {"supercategory": name, "id": category, "name": name}
            for category, name in enumerate(STRUCTURES)
        ],
        "annotations": annotations,
    }
