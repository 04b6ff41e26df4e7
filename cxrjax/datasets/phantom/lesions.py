"""The radiographic sign of each class: where it sits, and how it changes the picture's density.

Densities are in the units of `render`: 0 is air, an aerated lung lies 0.40 below the soft tissue
around it. A sign is a `Stamp`: what it adds to the density, and its `weight` (0 to 1), the share of
the sign present at a pixel. The box of a lesion bounds the pixels whose weight exceeds
`BOX_THRESHOLD`.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from cxrjax.datasets.phantom.anatomy import LEFT, RIGHT, Patient
from cxrjax.datasets.phantom.canvas import Canvas, Points, Window, ellipse, ribbon, spline
from cxrjax.datasets.phantom.texture import ridges, smooth_noise

Field = Float[np.ndarray, "h w"]

BOX_THRESHOLD = 0.3

_STREAKS = 17  # of one patch of fibrosis


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a sign needs to know about the picture that it is drawn on.

    Attributes:
        lung: soft mask of both lung fields, parts behind heart and vessels included.
        free: 1 where aerated lung shows, 0 behind heart, mediastinum and diaphragm.
    """

    canvas: Canvas
    patient: Patient
    lung: Field
    free: Field

    def side_of_lung(self, side: int, window: "Window") -> Field:
        """The mask of one lung on a window."""
        gx, _ = self.canvas.grid(window)
        return self.lung[window.index] * (gx * side > 0)


@dataclasses.dataclass(frozen=True)
class Stamp:
    """A sign on a window of the picture.

    Attributes:
        delta: what it adds to the density.
        weight: 0 to 1, how much of the sign is there.
        bare: where lung markings vanish (pneumothorax), 0 to 1; None: nowhere.
    """

    window: Window
    delta: Field
    weight: Field
    bare: Field | None = None


def _soft_step(x: np.ndarray, width: float) -> np.ndarray:
    """0 below -width, 1 above +width, smooth between."""
    t = np.clip(x / np.float32(2 * width) + np.float32(0.5), 0, 1)
    return t * t * (3 - 2 * t)


def _radius(
    scene: Scene, window: Window, x: float, y: float, rx: float, ry: float, angle: float = 0.0
) -> Field:
    """Distance from the centre of an ellipse as a multiple of its radius in that direction."""
    gx, gy = scene.canvas.grid(window)
    dx, dy = gx - np.float32(x), gy - np.float32(y)
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    along, across = (dx * cos + dy * sin) / np.float32(rx), (dy * cos - dx * sin) / np.float32(ry)
    return np.sqrt(along * along + across * across)


def _around(scene: Scene, x: float, y: float, rx: float, ry: float, margin: float = 0.0) -> Window:
    corners = np.array([(x - rx, y - ry), (x + rx, y - ry), (x - rx, y + ry), (x + rx, y + ry)])
    return scene.canvas.window(corners, margin)


class Placement:
    """Free places for lesions: remembers what is taken, body coordinates."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, float, float]] = []

    def take(self, x: float, y: float, rx: float, ry: float) -> None:
        self._taken.append((x - rx, y - ry, x + rx, y + ry))

    def overlap(self, x: float, y: float, rx: float, ry: float) -> float:
        """The largest share of the candidate or of a neighbour that they have in common."""
        worst = 0.0
        for x0, y0, x1, y1 in self._taken:
            w = min(x1, x + rx) - max(x0, x - rx)
            h = min(y1, y + ry) - max(y0, y - ry)
            if w > 0 and h > 0:
                smaller = min((x1 - x0) * (y1 - y0), 4 * rx * ry)
                worst = max(worst, w * h / smaller)
        return worst

    def find(
        self, candidate: Callable[[], tuple[int, float, float]], rx: float, ry: float
    ) -> tuple[int, float, float]:
        """The least crowded of some candidates (side, x, y), now taken."""
        best, best_overlap = candidate(), math.inf
        for attempt in range(10):
            place = best if attempt == 0 else candidate()
            overlap = self.overlap(place[1], place[2], rx, ry)
            if overlap < best_overlap:
                best, best_overlap = place, overlap
            if overlap < 0.1:
                break
        self.take(best[1], best[2], rx, ry)
        return best


def _in_lung(
    patient: Patient,
    rng: np.random.Generator,
    s: tuple[float, float],
    v: tuple[float, float],
) -> Callable[[], tuple[int, float, float]]:
    """Candidates in a zone of either lung: s medial to lateral, v apex to base."""

    def candidate() -> tuple[int, float, float]:
        side = RIGHT if rng.random() < 0.5 else LEFT
        return side, *patient.lung_point(side, rng.uniform(*s), rng.uniform(*v))

    return candidate


def nodule_or_mass(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """A round shadow with a sharp rim, thickest in the middle; now and then a large mass."""
    radius = rng.uniform(0.075, 0.115) if rng.random() < 0.75 else rng.uniform(0.13, 0.22)
    _, x, y = place.find(_in_lung(scene.patient, rng, (0.2, 0.8), (0.15, 0.78)), radius, radius)
    ratio, angle = rng.uniform(0.88, 1.0), rng.uniform(0, math.pi)
    window = _around(scene, x, y, radius, radius, 0.03)
    r = _radius(scene, window, x, y, radius, radius * ratio, angle)
    if radius > 0.13:
        r = r * (1 + np.float32(0.05) * smooth_noise(rng, window.shape, 5, 5))
    weight = _soft_step(1 - r, 0.10)
    thick = np.sqrt(np.clip(1.15 - r * r, 0, None))
    return Stamp(window, np.float32(0.21 * strength) * weight * (0.55 + 0.5 * thick), weight)


def calcification(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """A small group of chalk-white grains, denser than bone, with crisp edges."""
    radius = rng.uniform(0.065, 0.105)
    _, x, y = place.find(_in_lung(scene.patient, rng, (0.12, 0.8), (0.10, 0.75)), radius, radius)
    window = _around(scene, x, y, radius, radius, 0.03)
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
    rx, ry = rng.uniform(0.20, 0.32), rng.uniform(0.22, 0.38)
    side, x, y = place.find(_in_lung(scene.patient, rng, (0.35, 0.65), (0.22, 0.72)), rx, ry)
    window = _around(scene, x, y, rx, ry, 0.12)
    wobble = np.float32(0.13) * smooth_noise(rng, window.shape, 6, 6)
    r = _radius(scene, window, x, y, rx, ry) + wobble
    weight = _soft_step(1.0 - r, 0.22) * scene.free[window.index]
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
    _, x, y = place.find(_in_lung(scene.patient, rng, (0.25, 0.75), (0.16, 0.78)), rx, ry)
    angle = rng.uniform(-0.4, 0.4)
    window = _around(scene, x, y, rx, ry, 0.12)
    r = _radius(scene, window, x, y, rx, ry, angle)
    weight = _soft_step(1.0 - r, 0.16) * scene.free[window.index]
    return Stamp(window, np.float32(0.20 * strength) * weight, weight)


def infiltration(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """Several small ill-defined patches, some of them merging."""
    rx, ry = rng.uniform(0.20, 0.30), rng.uniform(0.22, 0.40)
    _, x, y = place.find(_in_lung(scene.patient, rng, (0.35, 0.65), (0.22, 0.72)), rx, ry)
    window = _around(scene, x, y, rx, ry, 0.1)
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
        half, thick = rng.uniform(0.18, 0.28), rng.uniform(0.05, 0.07)
        side, x, y = place.find(
            _in_lung(patient, rng, (0.45, 0.6), (0.48, 0.76)), half, half * 0.35
        )
        angle = rng.uniform(0.12, 0.4) * (1 if rng.random() < 0.7 else -1) * -side
        t = np.linspace(-1, 1, 9)
        line = np.stack([t * half, 0.05 * half * (1 - t * t)], axis=1)
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        width = thick * (1 - 0.45 * np.abs(t) ** 2)
        outline = ribbon(line @ turn + (x, y), width)
        amount = 0.30
    else:
        side = RIGHT if rng.random() < 0.6 else LEFT
        grid, medial = patient.medial_borders[side]
        low = rng.uniform(0.24, 0.31)
        inner = float(np.interp(low, grid, medial)) - 0.06
        wall = patient.wall(low * 0.6)
        edge = spline(
            np.array([(inner, low), ((inner + wall) / 2, low * 0.82), (wall, low * 0.45)]),
            samples=5,
        )
        top = np.array([(0.75, 0.0), (0.42, -0.05), (inner, 0.02)])
        outline = patient.place(np.concatenate([edge, top])) * (side, 1)
        place.take(
            side * (inner + wall) / 2, low * patient.lung_height / 2, (wall - inner) / 2, low / 2
        )
        amount = 0.30
    window = scene.canvas.window(outline, 0.06)
    weight = scene.canvas.mask([(outline, 1.0)], 0.008, window) * scene.free[window.index]
    return Stamp(window, np.float32(amount * strength) * weight, weight)


def interstitial_disease(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float, side: int
) -> Stamp:
    """A fine net over most of one lung, with tiny nodes."""
    patient = scene.patient
    v = rng.uniform(0.42, 0.58)
    x, y = patient.lung_point(side, 0.5, v)
    grid, medial = patient.medial_borders[side]
    rx = (patient.wall(v) - float(np.interp(v, grid, medial))) * rng.uniform(0.46, 0.54)
    ry = rng.uniform(0.28, 0.40) * patient.lung_height
    window = _around(scene, x, y, rx, ry, 0.08)
    r = _radius(scene, window, x, y, rx, ry)
    weight = _soft_step(1.0 - r, 0.12) * scene.free[window.index]
    # About 0.085 body units a cell: the mesh is two to four pixels wide on a picture of 112.
    h, w = (n / scene.canvas.scale for n in window.shape)
    cells = round(h / 0.085), round(w / 0.085)
    net = ridges(smooth_noise(rng, window.shape, *cells), 0.38)
    nodes = np.clip(smooth_noise(rng, window.shape, *cells) - 0.9, 0, 1)
    delta = np.float32(0.20 * strength) * weight * (net + np.float32(0.8) * nodes)
    return Stamp(window, delta, weight)


def pulmonary_fibrosis(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float
) -> Stamp:
    """Coarse streaks drawn towards the hilum, with thick-walled small cysts between them."""
    rx, ry = rng.uniform(0.15, 0.26), rng.uniform(0.16, 0.30)
    zone = (0.10, 0.36) if rng.random() < 0.7 else (0.60, 0.78)
    side, x, y = place.find(_in_lung(scene.patient, rng, (0.3, 0.65), zone), rx, ry)
    hilum = np.array((side * 0.22, 0.43 * scene.patient.lung_height))
    window = _around(scene, x, y, rx, ry, 0.05)
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
    r = _radius(scene, window, x, y, rx, ry)
    veil = _soft_step(1.0 - r, 0.15) * scene.free[window.index]
    delta = np.float32(0.30 * strength) * streaks + np.float32(0.05 * strength) * veil
    return Stamp(window, delta, np.maximum(streaks, veil * np.float32(0.5)))


def pleural_effusion(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float, side: int
) -> Stamp:
    """Fluid at the base: the angle is blunted, the upper border climbs towards the chest wall."""
    patient = scene.patient
    size = rng.uniform(0.10, 0.22) if rng.random() < 0.65 else rng.uniform(0.25, 0.50)
    size *= 0.8 + 0.2 * strength
    height = patient.lung_height
    top = (1 - size) * height
    wall = patient.wall(1 - size)
    window = _around(scene, side * 0.55, (top + height) / 2, 0.5, (height - top) / 2 + 0.02, 0.06)
    gx, gy = scene.canvas.grid(window)
    lateral = np.clip(gx * np.float32(side) / np.float32(wall), 0, 1)
    # Level at the wall, sinking medially as the meniscus does.
    level = np.float32(top) + np.float32(0.62 * (height - top)) * (1 - lateral) ** np.float32(0.6)
    weight = _soft_step(gy - level, 0.022) * scene.side_of_lung(side, window)
    weight = weight * np.minimum(1, scene.free[window.index] * 1.5)
    place.take(side * 0.7, (top + height) / 2, 0.3, (height - top) / 2)
    return Stamp(window, np.float32(0.385 * min(strength, 1.05)) * weight, weight)


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
    return Stamp(window, np.float32(0.30 * strength) * weight, weight)


def pneumothorax(
    scene: Scene, rng: np.random.Generator, place: Placement, strength: float, side: int
) -> Stamp:
    """Air around a lung that has drawn back: black, without markings, bounded by a thin line."""
    patient = scene.patient
    outline = patient.lung_outlines[side]
    shrink = rng.uniform(0.66, 0.82)
    height = patient.lung_height
    anchor = np.array((side * 0.12, rng.uniform(0.62, 0.85) * height))
    collapsed = (outline - anchor) * (shrink, shrink) + anchor
    reach = patient.wall(0.6)
    window = _around(scene, side * reach / 2, anchor[1] / 2, reach / 2 + 0.08, anchor[1] / 2 + 0.05)
    inside = scene.canvas.mask([(collapsed, 1.0)], 0.005, window)
    _, gy = scene.canvas.grid(window)
    above = _soft_step(np.float32(anchor[1] - 0.05) - gy, 0.06)
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
    """What has no name of its own: a cavity, a hiatal hernia, an implanted device."""
    patient = scene.patient
    kind = rng.choice(3, p=(0.45, 0.25, 0.30))
    if kind == 0:
        radius = rng.uniform(0.12, 0.19)
        _, x, y = place.find(_in_lung(patient, rng, (0.3, 0.7), (0.16, 0.7)), radius, radius)
        window = _around(scene, x, y, radius, radius, 0.04)
        r = _radius(scene, window, x, y, radius, radius * rng.uniform(0.85, 1.0), rng.uniform(0, 3))
        weight = _soft_step(1.0 - r, 0.10)
        hollow = _soft_step(0.62 - r, 0.10)
        return Stamp(window, np.float32(strength) * (0.27 * weight - 0.33 * hollow), weight)
    if kind == 1:
        radius = rng.uniform(0.17, 0.24)
        x = patient.midline + rng.uniform(0.05, 0.16)
        y = rng.uniform(0.74, 0.80) * patient.lung_height
        window = _around(scene, x, y, radius, radius, 0.04)
        r = _radius(scene, window, x, y, radius, radius * 0.9)
        weight = _soft_step(1.0 - r, 0.07)
        _, gy = scene.canvas.grid(window)
        gas = _soft_step(0.84 - r, 0.08) * _soft_step(np.float32(y - 0.06) - gy, 0.012)
        return Stamp(window, np.float32(strength) * (0.13 * weight - 0.26 * gas), weight)
    side = LEFT if rng.random() < 0.8 else RIGHT
    rx, ry = rng.uniform(0.13, 0.17), rng.uniform(0.11, 0.14)
    x = side * rng.uniform(0.55, 0.75)
    y = rng.uniform(0.14, 0.24) * patient.lung_height
    place.take(x, y, rx, ry)
    window = _around(scene, x, y, rx, ry, 0.05)
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
    return Stamp(window, np.float32(0.34) * weight + np.float32(0.16) * inner, weight)


def lesion_box(
    weight: Field, window: Window, height: int, width: int
) -> Float[np.ndarray, "4"] | None:
    """Bounds of weight > BOX_THRESHOLD as fractions of the picture; None where nothing shows."""
    shown = weight > BOX_THRESHOLD
    rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
    if len(rows) == 0:
        return None
    pixels = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    offset = (window.x0, window.y0, window.x0, window.y0)
    size = (width, height, width, height)
    return ((np.array(pixels) + offset) / size).astype(np.float32)


_ANYWHERE = {
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
_AT_SITES = {
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


__all__ = ["BOX_THRESHOLD", "DRAWING_ORDER", "Placement", "Scene", "Stamp", "draw_lesions"]
