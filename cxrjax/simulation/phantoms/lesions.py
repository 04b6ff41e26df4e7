"""Signs of each class: nodules, opacities, fibrosis, effusions; drawn in a fixed order."""

import math
from collections.abc import Callable

import numpy as np

from cxrjax.simulation.phantoms.anatomy import LEFT, RIGHT
from cxrjax.simulation.phantoms.canvas import Points, ellipse, ribbon, ridges, smooth_noise, spline
from cxrjax.simulation.phantoms.signs import (
    Placement,
    Scene,
    Stamp,
    around,
    elliptic_radius,
    soft_step,
)

Sign = Callable[[Scene, np.random.Generator, Placement, float], Stamp]
SignAtSite = Callable[[Scene, np.random.Generator, Placement, float, int], Stamp]


_STREAKS = 17  # of one patch of fibrosis


def nodule_or_mass(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """A round shadow with a sharp rim, thickest in the middle; now and then a large mass."""
    radius = rng.uniform(0.075, 0.115) if rng.random() < 0.75 else rng.uniform(0.13, 0.22)
    _, x, y = place.find(radius, radius, v=(0.12, 0.80))
    ratio, angle = rng.uniform(0.88, 1.0), rng.uniform(0, math.pi)
    window = around(scene, x, y, radius, radius, 0.03)
    r = elliptic_radius(scene, window, x, y, radius, radius * ratio, angle)
    if radius > 0.13:
        r = r * (1 + np.float32(0.05) * smooth_noise(rng, window.shape, 5, 5))
    weight = soft_step(1 - r, 0.10)
    thick = np.sqrt(np.clip(1.15 - r * r, 0, None))
    delta = np.float32(0.25 * strength) * weight * (0.55 + 0.5 * thick)
    return Stamp(window, delta, weight, kind="mass" if radius > 0.13 else "nodule")


def calcification(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """A small group of chalk-white grains, denser than bone, with crisp edges."""
    radius = rng.uniform(0.065, 0.105)
    _, x, y = place.find(radius, radius, v=(0.10, 0.78), s=(0.0, 0.9))
    window = around(scene, x, y, radius, radius, 0.03)
    shapes = []
    count = int(rng.integers(4, 8))
    turn = rng.uniform(0, 2 * math.pi)
    for i in range(count):
        grain = radius * rng.uniform(0.24, 0.5)
        away = (radius - grain) * (1.0 if i < 4 else rng.uniform(0, 0.7))
        angle = turn + i * 2 * math.pi / min(count, 4) + rng.uniform(-0.5, 0.5)
        gx, gy = x + away * math.cos(angle), y + away * math.sin(angle)
        stretch = rng.uniform(0.75, 1.0)
        shapes.append((ellipse(gx, gy, grain, grain * stretch, rng.uniform(0, 3)), 1.0))
    weight = scene.canvas.mask(shapes, 0.006, window)
    return Stamp(window, np.float32(0.42 * max(strength, 0.8)) * weight, weight)


def consolidation(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """Dense airspace filling with fuzzy edges and air-filled bronchi running through it."""
    rx, ry = rng.uniform(0.22, 0.34), rng.uniform(0.24, 0.42)
    side, x, y = place.find(rx, ry, v=(0.20, 0.74))
    window = around(scene, x, y, rx, ry, 0.12)
    wobble = np.float32(0.17) * smooth_noise(rng, window.shape, 5, 5)
    r = elliptic_radius(scene, window, x, y, rx, ry) + wobble
    weight = soft_step(1.0 - r, 0.25) * scene.free[window.index]
    lines = []
    stem = np.array((x - side * rx * 0.95, y - ry * rng.uniform(-0.2, 0.5)))
    for angle in np.linspace(-0.75, 0.75, 4) + rng.normal(0, 0.12, 4):
        reach = rng.uniform(1.1, 1.5) * rx
        t = np.linspace(0, 1, 5)[:, None]
        direction = np.array((side * math.cos(angle), math.sin(angle)))
        bend = np.array((0, rng.normal(0, 0.08) * reach))
        line = stem + t * direction * reach + t * t * bend
        lines.append((line, 0.026, 0.85))
        fork = line[2] + t * reach * 0.4 * np.array(
            (side * math.cos(angle + 0.7), math.sin(angle + 0.7))
        )
        lines.append((fork, 0.018, 0.7))
    bronchi = scene.canvas.strokes(lines, 0.004, window)
    mottle = 1 + np.float32(0.06) * smooth_noise(rng, window.shape, 9, 9)
    delta = np.float32(0.30 * strength) * weight * (mottle - np.float32(0.6) * bronchi)
    return Stamp(window, delta, weight)


def lung_opacity(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """A homogeneous veil: vessels still shine through it."""
    rx, ry = rng.uniform(0.16, 0.32), rng.uniform(0.16, 0.38)
    _, x, y = place.find(rx, ry, v=(0.14, 0.80))
    angle = rng.uniform(-0.4, 0.4)
    window = around(scene, x, y, rx, ry, 0.12)
    r = elliptic_radius(scene, window, x, y, rx, ry, angle)
    weight = soft_step(1.0 - r, 0.16) * scene.free[window.index]
    return Stamp(window, np.float32(0.20 * strength) * weight, weight)


def infiltration(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """Several small ill-defined patches, some of them merging."""
    rx, ry = rng.uniform(0.20, 0.30), rng.uniform(0.22, 0.40)
    _, x, y = place.find(rx, ry, v=(0.20, 0.74))
    window = around(scene, x, y, rx, ry, 0.1)
    gx, gy = scene.canvas.grid(window)
    weight = np.zeros(window.shape, np.float32)
    count = int(rng.integers(7, 12))
    turn = rng.uniform(0, 2 * math.pi)
    for i in range(count):
        size = rng.uniform(0.05, 0.085)
        # The first ones lie on the rim, so that the group fills its ellipse.
        away = 1.0 if i < 5 else math.sqrt(rng.uniform(0, 0.7))
        angle = turn + i * 2 * math.pi / 5 + rng.uniform(-0.25, 0.25)
        px = x + (rx - size) * away * math.cos(angle)
        py = y + (ry - size) * away * math.sin(angle)
        d2 = np.square(gx - np.float32(px)) + np.square(gy - np.float32(py))
        patch = np.exp(d2 * np.float32(-1.1 / size**2))
        weight = np.maximum(weight, patch * np.float32(rng.uniform(0.75, 1.0)))
    weight = weight * scene.free[window.index]
    return Stamp(window, np.float32(0.27 * strength) * weight, weight)


def atelectasis(scene: Scene, rng: np.random.Generator, place: Placement, strength: float) -> Stamp:
    """A plate (band across the lower lung) or a collapsed lobe (wedge with a sharp edge)."""
    patient = scene.patient
    if rng.random() < 0.6:
        half, thick = rng.uniform(0.18, 0.28), rng.uniform(0.065, 0.09)
        side, x, y = place.find(half, half * 0.35, v=(0.46, 0.78))
        angle = rng.uniform(0.25, 0.55) * (1 if rng.random() < 0.7 else -1) * -side
        t = np.linspace(-1, 1, 9)
        line = np.stack([t * half, 0.05 * half * (1 - t * t)], axis=1)
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        width = thick * (1 - 0.45 * np.abs(t) ** 2)
        outline = ribbon(line @ turn + (x, y), width)
        kind = "plate"
    else:
        side = RIGHT if rng.random() < 0.6 else LEFT
        low = rng.uniform(0.24, 0.31)
        inner = patient.free_span(side, low)[0] - 0.06
        wall = patient.free_span(side, low * 0.6)[1]
        edge = spline(
            np.array([(inner, low), ((inner + wall) / 2, low * 0.82), (wall, low * 0.45)]),
            samples=5,
        )
        top = np.array([(0.75, 0.0), (0.42, -0.05), (inner, 0.02)])
        outline = patient.place(np.concatenate([edge, top])) * (side, 1)
        place.take(
            side * (inner + wall) / 2, low * patient.lung_height / 2, (wall - inner) / 2, low / 2
        )
        kind = "lobar"
    window = scene.canvas.window(outline, 0.06)
    weight = scene.canvas.mask([(outline, 1.0)], 0.008, window) * scene.free[window.index]
    return Stamp(window, np.float32(0.30 * strength) * weight, weight, kind=kind)


def interstitial_disease(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float, side: int
) -> Stamp:
    """A net over most of one lung, with tiny nodes in its meshes."""
    patient = scene.patient
    top, bottom = rng.uniform(0.10, 0.28), rng.uniform(0.72, 0.96)
    y0, y1 = top * patient.lung_height, bottom * patient.lung_height
    window = around(scene, side * 0.55, (y0 + y1) / 2, 0.5, (y1 - y0) / 2, 0.08)
    _, gy = scene.canvas.grid(window)
    weight = soft_step(gy - np.float32(y0), 0.05) * soft_step(np.float32(y1) - gy, 0.05)
    weight = weight * scene.side_of_free(side, window)
    # About 0.085 body units a cell: the mesh is two to four pixels wide on a picture of 112.
    cells = round((y1 - y0 + 0.16) / 0.085), round(1.16 / 0.085)
    net = ridges(smooth_noise(rng, window.shape, *cells), 0.38)
    nodes = np.clip(smooth_noise(rng, window.shape, *cells) - 0.9, 0, 1)
    delta = np.float32(0.18 * strength) * weight * (net + np.float32(0.8) * nodes)
    return Stamp(window, delta, weight)


def pulmonary_fibrosis(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """Coarse streaks drawn towards the hilum, with thick-walled small cysts between them."""
    rx, ry = rng.uniform(0.15, 0.26), rng.uniform(0.16, 0.30)
    zone = (0.10, 0.42) if rng.random() < 0.7 else (0.58, 0.80)
    side, x, y = place.find(rx, ry, v=zone, s=(0.1, 0.9))
    hilum = np.array((side * 0.22, 0.43 * scene.patient.lung_height))
    window = around(scene, x, y, rx, ry, 0.05)
    towards = math.atan2(hilum[1] - y, hilum[0] - x)
    lines: list[tuple[Points, float, float]] = []
    for i in range(_STREAKS):
        # A sunflower's pattern: the whole ellipse is filled, whatever the chance.
        away = math.sqrt((i + 0.5) / _STREAKS)
        spin = i * 2.4 + rng.uniform(-0.3, 0.3)
        centre = np.array((x, y)) + 0.84 * away * np.array(
            (rx * math.cos(spin), ry * math.sin(spin))
        )
        angle = towards + rng.normal(0, 0.38)
        half = rng.uniform(0.4, 0.8) * min(rx, ry) * (1.1 - 0.5 * away)
        step = np.array((math.cos(angle), math.sin(angle))) * half
        bend = np.array((-step[1], step[0])) * rng.normal(0, 0.2)
        line = np.stack([centre - step, centre + bend, centre + step])
        lines.append((spline(line, samples=3), rng.uniform(0.016, 0.034), rng.uniform(0.7, 1)))
    for _ in range(3):
        cx, cy = x + rx * rng.uniform(-0.6, 0.6), y + ry * rng.uniform(-0.6, 0.6)
        ring = ellipse(cx, cy, rng.uniform(0.03, 0.05), rng.uniform(0.03, 0.045))
        lines.append((np.concatenate([ring, ring[:1]]), 0.016, 0.8))
    streaks = scene.canvas.strokes(lines, 0.007, window) * scene.free[window.index]
    r = elliptic_radius(scene, window, x, y, rx, ry)
    veil = soft_step(1.0 - r, 0.15) * scene.free[window.index]
    delta = np.float32(0.30 * strength) * streaks + np.float32(0.05 * strength) * veil
    return Stamp(window, delta, np.maximum(streaks, veil * np.float32(0.5)))


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


def other_lesion(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """A cavity, a hiatal hernia or an implanted device, which have no class of their own."""
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
    "Atelectasis": atelectasis,
    "Calcification": calcification,
    "Consolidation": consolidation,
    "Infiltration": infiltration,
    "Lung Opacity": lung_opacity,
    "Nodule/Mass": nodule_or_mass,
    "Other lesion": other_lesion,
    "Pulmonary fibrosis": pulmonary_fibrosis,
}
# Signs with a few fixed sites; several lesions of one class take different ones.
_AT_SITES: dict[str, tuple[SignAtSite, tuple[int, ...]]] = {
    "ILD": (interstitial_disease, (RIGHT, LEFT)),
    "Pleural effusion": (pleural_effusion, (RIGHT, LEFT)),
    "Pleural thickening": (pleural_thickening, (0, 1, 2, 3)),
    "Pneumothorax": (pneumothorax, (RIGHT, LEFT)),
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
