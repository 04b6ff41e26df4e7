"""Places of Chest ImaGenome's 29 regions on a phantom, from its geometry.

The patient's right is on the image's left. The lung's zones divide it by height: the apical zone
above the collar bone, the upper zone down to the top of the hilum, the mid zone around the hilum,
the lower zone below.
"""

import numpy as np
from jaxtyping import Bool, Float

from cxrjax.radiology_text.definitions import load_region_table
from cxrjax.simulation import anatomy
from cxrjax.simulation.anatomy import RIGHT, SIDES, Patient
from cxrjax.simulation.canvas import Canvas, Points, ellipse

# Closed outlines in body coordinates, with 1 where they are added and 0 where they are removed.
Shapes = list[tuple[Points, float]]

REGIONS = tuple(load_region_table()["chest_imagenome"])
ZONES = ("apical zone", "upper lung zone", "mid lung zone", "lower lung zone")

# Heights as v (0 apex, 1 costophrenic angle): the hilum's top and bottom, the carina, the inlet.
_HILUM_TOP, _HILUM_BOTTOM, _CARINA, _INLET = 0.335, 0.56, 0.33, -0.10
_ANGLE = (0.70, 0.84)  # the costophrenic angle: lateral of this |x|, below this v


def cut(
    polygon: Points, axis: int, low: float = -np.inf, high: float = np.inf
) -> Float[np.ndarray, "m 2"]:
    """Returns the part of a closed polygon with coordinate `axis` from low to high; may be empty.

    Sutherland and Hodgman's clipping: the parts of a polygon cut in two stay joined along the cut.
    """
    for bound, sign in ((low, 1), (high, -1)):
        if not np.isfinite(bound) or len(polygon) == 0:
            continue
        start, end = polygon, np.roll(polygon, -1, axis=0)
        depth = sign * (start[:, axis] - bound)
        after = sign * (end[:, axis] - bound)
        kept = []
        for a, b, here, there in zip(start, end, depth, after, strict=True):
            if here >= 0:
                kept.append(a)
            if (here >= 0) != (there >= 0):
                kept.append(a + (b - a) * here / (here - there))
        polygon = np.array(kept).reshape(-1, 2)
    return polygon


def zone_bounds(patient: Patient, side: int) -> dict[str, tuple[float, float]]:
    """Returns zone -> (top, bottom) as v."""
    # The collar bone's level over the middle of the lung, its half width added.
    collar = 0.10 + patient.clavicle_level + side * patient.turn * 0.03 + 0.018
    return {
        "apical zone": (-0.1, collar),
        "upper lung zone": (collar, _HILUM_TOP),
        "mid lung zone": (_HILUM_TOP, _HILUM_BOTTOM),
        "lower lung zone": (_HILUM_BOTTOM, 1.1),
    }


def _one_side(patient: Patient, side: int) -> dict[str, Shapes]:
    height = patient.lung_height
    lung = patient.lung_outlines[side]
    shapes: dict[str, Shapes] = {"lung": [(lung, 1)]}
    for zone, (top, bottom) in zone_bounds(patient, side).items():
        shapes[zone] = [(cut(lung, 1, top * height, bottom * height), 1)]
    shapes["hilar structures"] = [(p, 1) for p, _ in anatomy.hilum_shapes(patient, side)]
    corner = cut(lung * (side, 1), 0, low=_ANGLE[0]) * (side, 1)
    shapes["costophrenic angle"] = [(cut(corner, 1, low=_ANGLE[1] * height), 1)]
    # The dome down to the level of the costophrenic angle.
    x = np.linspace(0.14, 0.97, 40)
    dome = np.array([(side * a, patient.dome_level(side, a)) for a in x])
    base = np.array([(side * 0.97, height), (side * 0.14, height)])
    shapes["hemidiaphragm"] = [(np.concatenate([dome, base]), 1)]
    shapes["clavicle"] = [(anatomy.clavicles(patient)[0 if side == RIGHT else 1][0], 1)]
    return shapes


def region_shapes(patient: Patient) -> dict[str, Shapes]:
    """Returns region -> its outlines, in the order of `REGIONS`."""
    height = patient.lung_height
    found: dict[str, Shapes] = {}
    for side, name in SIDES.items():
        found |= {f"{name} {what}": shapes for what, shapes in _one_side(patient, side).items()}

    x0, y0, x1, y1 = patient.heart_box
    wide, high = x1 - x0, y1 - y0
    middle = anatomy.mediastinum_outline(patient)
    vessels = cut(middle, 1, _INLET * height, y1)
    above = cut(middle, 1, _INLET * height, _CARINA * height)
    windpipe, _ = anatomy.airway(patient)[0]
    fork = windpipe[windpipe[:, 1] > 0.9 * windpipe[:, 1].max()].mean(axis=0)
    junction = np.array((x0 + 0.13 * wide, y0 + 0.26 * high))
    left, right = patient.midline - 0.185, patient.midline - 0.05
    top, bottom = 0.12 * height, junction[1]
    vein = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    column, _ = anatomy.vertebrae(patient)[0]
    lungs = [(patient.lung_outlines[side], 0.0) for side in SIDES]
    dome = min(
        patient.dome_level(side, x) for side in SIDES for x in np.linspace(0.14, 0.97, 40).tolist()
    )
    found |= {
        "mediastinum": [(vessels, 1), (patient.heart, 1), (patient.arch, 1)],
        "upper mediastinum": [(above, 1), (patient.arch, 1)],
        "cardiac silhouette": [(patient.heart, 1)],
        "trachea": [(cut(windpipe, 1, -0.2 * height), 1)],
        "carina": [(ellipse(fork[0], fork[1] + 0.03, 0.11, 0.09), 1)],
        "aortic arch": [(patient.arch, 1)],
        "svc": [(vein, 1)],
        "cavoatrial junction": [(ellipse(junction[0], junction[1], 0.085, 0.085), 1)],
        "right atrium": [
            (cut(cut(patient.heart, 0, high=x0 + 0.36 * wide), 1, low=y0 + 0.26 * high), 1)
        ],
        "spine": [(cut(column, 1, -0.2 * height), 1)],
        "abdomen": [(cut(anatomy.body_outline(patient), 1, low=dome), 1), *lungs],
    }
    return {name: found[name] for name in REGIONS}


def region_boxes(patient: Patient, canvas: Canvas) -> dict[str, Float[np.ndarray, "4"]]:
    """Returns region -> bounds, as fractions of the image, of its part inside the image.

    Regions with less than a pixel's width inside are left out.
    """
    size = np.array([canvas.width, canvas.height])
    boxes = {}
    for name, shapes in region_shapes(patient).items():
        seen = [
            cut(cut(canvas.to_pixels(shape), 0, 0, canvas.width), 1, 0, canvas.height)
            for shape, value in shapes
            if value
        ]
        points = np.concatenate(seen)
        if len(points) and (np.ptp(points, axis=0) >= 1).all():
            corners = np.concatenate([points.min(axis=0) / size, points.max(axis=0) / size])
            boxes[name] = corners.astype(np.float32)
    return boxes


def hard_mask(canvas: Canvas, shapes: Shapes) -> Bool[np.ndarray, "h w"]:
    """Returns the pixels that lie inside, by their centres or, on small images, mostly."""
    return canvas.mask(shapes) > 0.5
