"""Signs between lung and chest wall: fluid, thickening, air."""

import numpy as np

from cxrjax.datasets.phantom.anatomy import LEFT, RIGHT
from cxrjax.datasets.phantom.canvas import ribbon
from cxrjax.datasets.phantom.signs import Placement, Scene, Stamp, around, soft_step


def pleural_effusion(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float, side: int
) -> Stamp:
    """Fluid at the base: the angle is blunted, the upper border climbs towards the chest wall."""
    patient = scene.patient
    size = rng.uniform(0.15, 0.24) if rng.random() < 0.6 else rng.uniform(0.25, 0.50)
    size *= 0.8 + 0.2 * strength
    height = patient.lung_height
    top = (1 - size) * height
    wall = patient.free_span(side, 1 - size)[1]
    window = around(scene, side * 0.55, (top + height) / 2, 0.5, (height - top) / 2 + 0.02, 0.06)
    gx, gy = scene.canvas.grid(window)
    lateral = np.clip(gx * np.float32(side) / np.float32(wall), 0, 1)
    # Level at the wall, sinking medially as the meniscus does.
    level = np.float32(top) + np.float32(0.62 * (height - top)) * (1 - lateral) ** np.float32(0.6)
    weight = soft_step(gy - level, 0.022) * scene.side_of_lung(side, window)
    weight = weight * np.minimum(1, scene.free[window.index] * 1.5)
    place.take(side * 0.7, (top + height) / 2, 0.3, (height - top) / 2)
    return Stamp(window, np.float32(0.365 * min(strength, 1.05)) * weight, weight)


def pleural_thickening(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float, site: int
) -> Stamp:
    """A cap over the apex, or a band along the chest wall; site 0 to 3: apices, then walls."""
    patient = scene.patient
    side = RIGHT if site % 2 == 0 else LEFT
    outline = patient.lung_outlines[side]
    thick = rng.uniform(0.10, 0.15)
    lateral = outline[: len(outline) // 2]
    v = lateral[:, 1] / patient.lung_height
    if site < 2:
        line = np.concatenate([outline[-2:], lateral[v < rng.uniform(0.10, 0.17)]])
    else:
        start = rng.uniform(0.3, 0.58)
        y = np.linspace(start, start + rng.uniform(0.16, 0.28), 10)
        x = np.interp(y[:10], v[6:], np.abs(lateral[6:, 0]))
        line = patient.place(np.stack([side * x, y], axis=1))
    t = np.linspace(-1, 1, len(line))
    # The band is drawn around the pleura; its outer half lies in the chest wall, out of the lung.
    width = 2 * thick * np.sqrt(np.clip(1.08 - np.abs(t) ** 3, 0.05, 1))
    band = ribbon(line, width)
    window = scene.canvas.window(band, 0.04)
    weight = scene.canvas.mask([(band, 1.0)], 0.010, window) * scene.side_of_lung(side, window)
    weight = weight * scene.free[window.index]
    x, y = line.mean(axis=0)
    place.take(x, y, float(np.ptp(line[:, 0])) / 2 + 0.05, float(np.ptp(line[:, 1])) / 2 + 0.05)
    kind = "apical" if site < 2 else "lateral"
    return Stamp(window, np.float32(0.30 * strength) * weight, weight, kind=kind)


def pneumothorax(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float, side: int
) -> Stamp:
    """Air around a lung that has drawn back: black, without markings, bounded by a thin line."""
    patient = scene.patient
    outline = patient.lung_outlines[side]
    shrink = rng.uniform(0.66, 0.85)
    height = patient.lung_height
    anchor = np.array((side * 0.12, rng.uniform(0.62, 0.85) * height))
    collapsed = (outline - anchor) * (shrink, shrink) + anchor
    reach = patient.free_span(side, 0.6)[1]
    window = around(scene, side * reach / 2, anchor[1] / 2, reach / 2 + 0.08, anchor[1] / 2 + 0.05)
    inside = scene.canvas.mask([(collapsed, 1.0)], 0.005, window)
    _, gy = scene.canvas.grid(window)
    above = soft_step(np.float32(anchor[1] - 0.05) - gy, 0.06)
    air = scene.side_of_lung(side, window) * (1 - inside) * above
    air = air * np.minimum(1, scene.free[window.index] * 1.3)
    line = scene.canvas.strokes(
        [(np.concatenate([collapsed, collapsed[:1]]), 0.016, 1.0)], 0.003, window
    )
    line = line * above * scene.free[window.index]
    delta = np.float32(-0.13 * strength) * air + np.float32(0.20 * strength) * line
    place.take(side * reach * 0.7, 0.25 * height, 0.3, 0.25 * height)
    return Stamp(window, delta, air, bare=air)
