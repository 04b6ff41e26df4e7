"""Draws the sign of each class, in a fixed order."""

from collections.abc import Callable

import numpy as np

from cxrjax.phantoms import lung_signs
from cxrjax.phantoms.anatomy import LEFT, RIGHT
from cxrjax.phantoms.canvas import ribbon, spline
from cxrjax.phantoms.signs import Placement, Scene, Stamp, around, elliptic_radius, soft_step

Sign = Callable[[Scene, np.random.Generator, Placement, float], Stamp]
SignAtSite = Callable[[Scene, np.random.Generator, Placement, float, int], Stamp]


def other_lesion(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """What has no name of its own: a cavity, a hiatal hernia, an implanted device."""
    patient = scene.patient
    kind = rng.choice(3, p=(0.45, 0.25, 0.30))
    if kind == 0:
        radius = rng.uniform(0.12, 0.19)
        _, x, y = place.find(radius, radius, v=(0.16, 0.72))
        window = around(scene, x, y, radius, radius, 0.04)
        r = elliptic_radius(
            scene, window, x, y, radius, radius * rng.uniform(0.85, 1.0), rng.uniform(0, 3)
        )
        weight = soft_step(1.0 - r, 0.10)
        hollow = soft_step(0.62 - r, 0.10)
        delta = np.float32(strength) * (0.27 * weight - 0.33 * hollow)
        return Stamp(window, delta, weight, kind="cavity")
    if kind == 1:
        radius = rng.uniform(0.17, 0.24)
        x = patient.midline + rng.uniform(0.05, 0.16)
        y = rng.uniform(0.74, 0.80) * patient.lung_height
        window = around(scene, x, y, radius, radius, 0.04)
        r = elliptic_radius(scene, window, x, y, radius, radius * 0.9)
        weight = soft_step(1.0 - r, 0.07)
        _, gy = scene.canvas.grid(window)
        gas = soft_step(0.84 - r, 0.08) * soft_step(np.float32(y - 0.06) - gy, 0.012)
        delta = np.float32(strength) * (0.13 * weight - 0.26 * gas)
        return Stamp(window, delta, weight, kind="hiatal hernia")
    side = LEFT if rng.random() < 0.8 else RIGHT
    rx, ry = rng.uniform(0.13, 0.17), rng.uniform(0.11, 0.14)
    x = side * rng.uniform(0.55, 0.75)
    y = rng.uniform(0.14, 0.24) * patient.lung_height
    place.take(x, y, rx, ry)
    window = around(scene, x, y, rx, ry, 0.05)
    case = spline(
        np.array([(-1, -0.6), (-0.6, -1), (0.7, -0.9), (1, -0.4), (0.9, 0.7), (0, 1), (-0.9, 0.7)])
        * (rx, ry)
        + (x, y),
        closed=True,
    )
    weight = scene.canvas.mask([(case, 1.0)], 0.004, window)
    battery = ribbon(
        np.array([(x - rx * 0.6, y + ry * 0.3), (x + rx * 0.6, y + ry * 0.3)]), ry * 0.7
    )
    inner = scene.canvas.mask([(battery, 1.0)], 0.004, window)
    delta = np.float32(0.34) * weight + np.float32(0.16) * inner
    return Stamp(window, delta, weight, kind="device")


_ANYWHERE: dict[str, Sign] = {
    "Atelectasis": lung_signs.atelectasis,
    "Calcification": lung_signs.calcification,
    "Consolidation": lung_signs.consolidation,
    "Infiltration": lung_signs.infiltration,
    "Lung Opacity": lung_signs.lung_opacity,
    "Nodule/Mass": lung_signs.nodule_or_mass,
    "Other lesion": other_lesion,
    "Pulmonary fibrosis": lung_signs.pulmonary_fibrosis,
}
# Signs with a few fixed sites; several lesions of one class take different ones.
_AT_SITES: dict[str, tuple[SignAtSite, tuple[int, ...]]] = {
    "ILD": (lung_signs.interstitial_disease, (RIGHT, LEFT)),
    "Pleural effusion": (lung_signs.pleural_effusion, (RIGHT, LEFT)),
    "Pleural thickening": (lung_signs.pleural_thickening, (0, 1, 2, 3)),
    "Pneumothorax": (lung_signs.pneumothorax, (RIGHT, LEFT)),
}
# Extensive signs first, so that small ones find a place beside them.
DRAWING_ORDER = (
    "ILD",
    "Pneumothorax",
    "Pleural effusion",
    "Consolidation",
    "Lung Opacity",
    "Infiltration",
    "Atelectasis",
    "Pulmonary fibrosis",
    "Other lesion",
    "Pleural thickening",
    "Nodule/Mass",
    "Calcification",
)


def draw_lesions(
    scene: Scene,
    rng: np.random.Generator,
    place: Placement,
    label: str,
    strengths: tuple[float, ...],
) -> list[Stamp]:
    """The signs of one class, one per strength, at free places."""
    if label in _ANYWHERE:
        return [_ANYWHERE[label](scene, rng, place, strength) for strength in strengths]
    draw, sites = _AT_SITES[label]
    order = rng.permutation(len(sites))
    if label == "Pleural thickening":
        # Caps are commoner than bands.
        order = np.concatenate([rng.permutation(2), 2 + rng.permutation(2)])
        if rng.random() < 0.3:
            order = order[::-1]
    return [
        draw(scene, rng, place, strength, sites[int(order[i])])
        for i, strength in enumerate(strengths)
    ]
