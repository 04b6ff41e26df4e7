"""Signs of each class in a phantom: nodules, opacities, fibrosis, effusions, in a fixed order."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from cxrjax.simulation import canvas
from cxrjax.simulation.anatomy import LEFT, RIGHT, Patient
from cxrjax.simulation.canvas import Canvas, Field, Points, Window, ellipse, ribbon, spline
from cxrjax.simulation.signs import Sign, extent, soft_step

BOX_THRESHOLD = 0.3
_STREAKS = 17  # of one patch of fibrosis
_CANDIDATES = 14


@dataclasses.dataclass
class Scene:
    """Phantom on which signs are placed.

    Places are chosen from outlines, never from pixels: the same at every size of the image.
    """

    canvas: Canvas
    patient: Patient
    lung: Field  # soft mask of both lung fields, parts behind heart and vessels included
    free: Field  # 1 where aerated lung shows, 0 behind heart, mediastinum and diaphragm
    rng: np.random.Generator
    # Rectangles of the signs so far, (x0, y0, x1, y1) in body coordinates.
    taken: list[tuple[float, float, float, float]] = dataclasses.field(default_factory=list)

    def half(self, mask: Field, side: int, window: Window) -> Field:
        """Returns the part of a mask that belongs to one lung, on a window."""
        gx, _ = self.canvas.grid(window)
        return mask[window] * (gx * side > 0)

    def around(self, x: float, y: float, rx: float, ry: float, margin: float = 0.0) -> Window:
        """Returns the window of a rectangle given by its centre, in body units."""
        return self.canvas.window(
            np.array([(x - rx, y - ry), (x + rx, y - ry), (x - rx, y + ry), (x + rx, y + ry)]),
            margin,
        )

    def radius(
        self, window: Window, x: float, y: float, rx: float, ry: float, angle: float = 0.0
    ) -> Field:
        """Returns the distance from an ellipse's centre, as a multiple of its radius there."""
        gx, gy = self.canvas.grid(window)
        dx, dy = gx - np.float32(x), gy - np.float32(y)
        cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
        along = (dx * cos + dy * sin) / np.float32(rx)
        across = (dy * cos - dx * sin) / np.float32(ry)
        return np.sqrt(along * along + across * across)

    def noise(self, window: Window, *cells: int) -> Field:
        """Returns smooth noise on a window, with the given numbers of cells (y, x)."""
        return canvas.smooth_noise(self.rng, canvas.shape_of(window), *cells)

    def take(self, x: float, y: float, rx: float, ry: float) -> None:
        """Marks a rectangle as occupied, body coordinates."""
        self.taken.append((x - rx, y - ry, x + rx, y + ry))

    def _overlap(self, x: float, y: float, rx: float, ry: float) -> float:
        """Returns the largest share that a candidate has in common with a neighbour."""
        worst = 0.0
        for x0, y0, x1, y1 in self.taken:
            w = min(x1, x + rx) - max(x0, x - rx)
            h = min(y1, y + ry) - max(y0, y - ry)
            if w > 0 and h > 0:
                smaller = min((x1 - x0) * (y1 - y0), 4 * rx * ry)
                worst = max(worst, w * h / smaller)
        return worst

    def _hidden(self, side: int, x: float, y: float, rx: float, ry: float) -> float:
        """Estimates the share of a candidate that is not in front of free lung."""
        shown = 0.0
        for part in (-0.6, 0.0, 0.6):
            v = (y + part * ry) / self.patient.lung_height
            inner, outer = self.patient.free_span(side, v)
            low, high = max(abs(x) - rx, inner), min(abs(x) + rx, outer)
            if y + part * ry < self.patient.dome_level(side, x):
                shown += max(0.0, high - low) / (2 * rx)
        return 1 - shown / 3

    def find(
        self, rx: float, ry: float, v: tuple[float, float], s: tuple[float, float] = (0.0, 1.0)
    ) -> tuple[int, float, float]:
        """Returns the best of some candidates in a zone of either lung, and marks it as occupied.

        Args:
            rx, ry: half the lesion's width and height, body units.
            v, s: the zone, from apex to base and from medial to lateral, each within 0 to 1.

        Returns:
            (side, x, y) of the centre, body coordinates.
        """
        best, lowest = (RIGHT, 0.0, 0.0), math.inf
        for _ in range(_CANDIDATES):
            side = RIGHT if self.rng.random() < 0.5 else LEFT
            height = float(self.rng.uniform(*v))
            inner, outer = self.patient.free_span(side, height)
            # Ill-defined lesions may run a little under the border of the lung.
            room = max(0.0, outer - inner - 1.7 * rx)
            across = inner + 0.85 * rx + float(self.rng.uniform(*s)) * room
            x, y = side * across, height * self.patient.lung_height
            cost = self._overlap(x, y, rx, ry) + 1.5 * self._hidden(side, x, y, rx, ry)
            if cost < lowest:
                best, lowest = (side, x, y), cost
            if cost < 0.2:
                break
        self.take(best[1], best[2], rx, ry)
        return best


def lesion_box(
    weight: Field, window: Window, height: int, width: int
) -> Float[np.ndarray, "4"] | None:
    """Returns the bounds of weight > BOX_THRESHOLD as fractions; None where nothing shows."""
    box = extent(weight > BOX_THRESHOLD, window)
    return None if box is None else (np.array(box) / (width, height, width, height)).astype("f4")


def nodule_or_mass(on: Scene, strength: float) -> Sign:
    """Renders a round shadow with a sharp rim, thickest in the middle; sometimes a large mass."""
    rng = on.rng
    radius = rng.uniform(0.075, 0.115) if rng.random() < 0.75 else rng.uniform(0.13, 0.22)
    _, x, y = on.find(radius, radius, v=(0.12, 0.80))
    ratio, angle = rng.uniform(0.88, 1.0), rng.uniform(0, math.pi)
    window = on.around(x, y, radius, radius, 0.03)
    r = on.radius(window, x, y, radius, radius * ratio, angle)
    if radius > 0.13:
        r = r * (1 + np.float32(0.05) * on.noise(window, 5, 5))
    weight = soft_step(1 - r, 0.10)
    thick = np.sqrt(np.clip(1.15 - r * r, 0, None))
    kind = "mass" if radius > 0.13 else "nodule"
    return Sign.of(window, weight, 0.25 * strength, 0.55 + 0.5 * thick, kind)


def calcification(on: Scene, strength: float) -> Sign:
    """Renders a small group of chalk-white grains, denser than bone, with crisp edges."""
    rng = on.rng
    radius = rng.uniform(0.065, 0.105)
    _, x, y = on.find(radius, radius, v=(0.10, 0.78), s=(0.0, 0.9))
    window = on.around(x, y, radius, radius, 0.03)
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
    weight = on.canvas.mask(shapes, 0.006, window)
    return Sign.of(window, weight, 0.42 * max(strength, 0.8))


def consolidation(on: Scene, strength: float) -> Sign:
    """Renders dense airspace filling with fuzzy edges and air-filled bronchi running through it."""
    rng = on.rng
    rx, ry = rng.uniform(0.22, 0.34), rng.uniform(0.24, 0.42)
    side, x, y = on.find(rx, ry, v=(0.20, 0.74))
    window = on.around(x, y, rx, ry, 0.12)
    wobble = np.float32(0.17) * on.noise(window, 5, 5)
    r = on.radius(window, x, y, rx, ry) + wobble
    weight = soft_step(1.0 - r, 0.25) * on.free[window]
    lines = []
    stem = np.array((x - side * rx * 0.95, y - ry * rng.uniform(-0.2, 0.5)))
    t = np.linspace(0, 1, 5)[:, None]
    for angle in np.linspace(-0.75, 0.75, 4) + rng.normal(0, 0.12, 4):
        reach = rng.uniform(1.1, 1.5) * rx
        direction = np.array((side * math.cos(angle), math.sin(angle)))
        bend = np.array((0, rng.normal(0, 0.08) * reach))
        line = stem + t * direction * reach + t * t * bend
        branch = np.array((side * math.cos(angle + 0.7), math.sin(angle + 0.7)))
        lines += [(line, 0.026, 0.85), (line[2] + t * reach * 0.4 * branch, 0.018, 0.7)]
    bronchi = on.canvas.strokes(lines, 0.004, window)
    mottle = 1 + np.float32(0.06) * on.noise(window, 9, 9)
    return Sign.of(window, weight, 0.30 * strength, mottle - np.float32(0.6) * bronchi)


def lung_opacity(on: Scene, strength: float) -> Sign:
    """Renders a homogeneous veil: vessels still shine through it."""
    rng = on.rng
    rx, ry = rng.uniform(0.16, 0.32), rng.uniform(0.16, 0.38)
    _, x, y = on.find(rx, ry, v=(0.14, 0.80))
    angle = rng.uniform(-0.4, 0.4)
    window = on.around(x, y, rx, ry, 0.12)
    weight = soft_step(1.0 - on.radius(window, x, y, rx, ry, angle), 0.16) * on.free[window]
    return Sign.of(window, weight, 0.20 * strength)


def infiltration(on: Scene, strength: float) -> Sign:
    """Renders several small ill-defined patches, some of them merging."""
    rng = on.rng
    rx, ry = rng.uniform(0.20, 0.30), rng.uniform(0.22, 0.40)
    _, x, y = on.find(rx, ry, v=(0.20, 0.74))
    window = on.around(x, y, rx, ry, 0.1)
    gx, gy = on.canvas.grid(window)
    weight = np.zeros(canvas.shape_of(window), np.float32)
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
    return Sign.of(window, weight * on.free[window], 0.27 * strength)


def atelectasis(on: Scene, strength: float) -> Sign:
    """Renders a plate (band across the lower lung) or a collapsed lobe (a wedge, sharp-edged)."""
    rng, patient = on.rng, on.patient
    if rng.random() < 0.6:
        half, thick = rng.uniform(0.18, 0.28), rng.uniform(0.065, 0.09)
        side, x, y = on.find(half, half * 0.35, v=(0.46, 0.78))
        angle = rng.uniform(0.25, 0.55) * (1 if rng.random() < 0.7 else -1) * -side
        t = np.linspace(-1, 1, 9)
        line = np.stack([t * half, 0.05 * half * (1 - t * t)], axis=1)
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        outline = ribbon(line @ turn + (x, y), thick * (1 - 0.45 * np.abs(t) ** 2))
        kind = "plate"
    else:
        side = RIGHT if rng.random() < 0.6 else LEFT
        low = rng.uniform(0.24, 0.31)
        inner = patient.free_span(side, low)[0] - 0.06
        wall = patient.free_span(side, low * 0.6)[1]
        middle = (inner + wall) / 2
        edge = np.array([(inner, low), (middle, low * 0.82), (wall, low * 0.45)])
        top = np.array([(0.75, 0.0), (0.42, -0.05), (inner, 0.02)])
        outline = patient.place(np.concatenate([spline(edge, samples=5), top])) * (side, 1)
        on.take(side * middle, low * patient.lung_height / 2, (wall - inner) / 2, low / 2)
        kind = "lobar"
    window = on.canvas.window(outline, 0.06)
    weight = on.canvas.mask([(outline, 1.0)], 0.008, window) * on.free[window]
    return Sign.of(window, weight, 0.30 * strength, kind=kind)


def interstitial_disease(on: Scene, strength: float, side: int) -> Sign:
    """Renders a net over most of one lung, with tiny nodes in its meshes."""
    top, bottom = on.rng.uniform(0.10, 0.28), on.rng.uniform(0.72, 0.96)
    y0, y1 = top * on.patient.lung_height, bottom * on.patient.lung_height
    window = on.around(side * 0.55, (y0 + y1) / 2, 0.5, (y1 - y0) / 2, 0.08)
    _, gy = on.canvas.grid(window)
    weight = soft_step(gy - np.float32(y0), 0.05) * soft_step(np.float32(y1) - gy, 0.05)
    weight = weight * on.half(on.free, side, window)
    # About 0.085 body units a cell: the mesh is two to four pixels wide on an image of 112.
    cells = round((y1 - y0 + 0.16) / 0.085), round(1.16 / 0.085)
    net = canvas.ridges(on.noise(window, *cells), 0.38)
    nodes = np.clip(on.noise(window, *cells) - 0.9, 0, 1)
    return Sign.of(window, weight, 0.18 * strength, net + np.float32(0.8) * nodes)


def pulmonary_fibrosis(on: Scene, strength: float) -> Sign:
    """Renders coarse streaks towards the hilum, with thick-walled small cysts between them."""
    rng = on.rng
    rx, ry = rng.uniform(0.15, 0.26), rng.uniform(0.16, 0.30)
    zone = (0.10, 0.42) if rng.random() < 0.7 else (0.58, 0.80)
    side, x, y = on.find(rx, ry, v=zone, s=(0.1, 0.9))
    hilum = np.array((side * 0.22, 0.43 * on.patient.lung_height))
    window = on.around(x, y, rx, ry, 0.05)
    towards = math.atan2(hilum[1] - y, hilum[0] - x)
    lines: list[tuple[Points, float, float]] = []
    for i in range(_STREAKS):
        # A sunflower's pattern: the whole ellipse is filled, whatever the chance.
        away = math.sqrt((i + 0.5) / _STREAKS)
        spin = i * 2.4 + rng.uniform(-0.3, 0.3)
        on_ellipse = np.array((rx * math.cos(spin), ry * math.sin(spin)))
        centre = np.array((x, y)) + 0.84 * away * on_ellipse
        angle = towards + rng.normal(0, 0.38)
        half = rng.uniform(0.4, 0.8) * min(rx, ry) * (1.1 - 0.5 * away)
        step = np.array((math.cos(angle), math.sin(angle))) * half
        bend = np.array((-step[1], step[0])) * rng.normal(0, 0.2)
        line = spline(np.stack([centre - step, centre + bend, centre + step]), samples=3)
        lines.append((line, rng.uniform(0.016, 0.034), rng.uniform(0.7, 1)))
    for _ in range(3):
        cx, cy = x + rx * rng.uniform(-0.6, 0.6), y + ry * rng.uniform(-0.6, 0.6)
        ring = ellipse(cx, cy, rng.uniform(0.03, 0.05), rng.uniform(0.03, 0.045))
        lines.append((np.concatenate([ring, ring[:1]]), 0.016, 0.8))
    streaks = on.canvas.strokes(lines, 0.007, window) * on.free[window]
    veil = soft_step(1.0 - on.radius(window, x, y, rx, ry), 0.15) * on.free[window]
    added = np.float32(0.30 * strength) * streaks + np.float32(0.05 * strength) * veil
    return Sign(window, np.maximum(streaks, veil * np.float32(0.5)), added)


def pleural_effusion(on: Scene, strength: float, side: int) -> Sign:
    """Renders fluid at the base: a blunted angle, an upper border that climbs towards the wall."""
    rng, height = on.rng, on.patient.lung_height
    size = rng.uniform(0.15, 0.24) if rng.random() < 0.6 else rng.uniform(0.25, 0.50)
    size *= 0.8 + 0.2 * strength
    top = (1 - size) * height
    wall = on.patient.free_span(side, 1 - size)[1]
    window = on.around(side * 0.55, (top + height) / 2, 0.5, (height - top) / 2 + 0.02, 0.06)
    gx, gy = on.canvas.grid(window)
    lateral = np.clip(gx * np.float32(side) / np.float32(wall), 0, 1)
    # Level at the wall, sinking medially as the meniscus does.
    level = np.float32(top) + np.float32(0.62 * (height - top)) * (1 - lateral) ** np.float32(0.6)
    weight = soft_step(gy - level, 0.022) * on.half(on.lung, side, window)
    weight = weight * np.minimum(1, on.free[window] * 1.5)
    on.take(side * 0.7, (top + height) / 2, 0.3, (height - top) / 2)
    return Sign.of(window, weight, 0.365 * min(strength, 1.05))


def pleural_thickening(on: Scene, strength: float, site: int) -> Sign:
    """Renders a cap over the apex (sites 0 and 1) or a band along the chest wall (2 and 3)."""
    rng, patient = on.rng, on.patient
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
    # The band follows the pleura; its outer half lies in the chest wall, out of the lung.
    band = ribbon(line, 2 * thick * np.sqrt(np.clip(1.08 - np.abs(t) ** 3, 0.05, 1)))
    window = on.canvas.window(band, 0.04)
    weight = on.canvas.mask([(band, 1.0)], 0.010, window) * on.half(on.lung, side, window)
    weight = weight * on.free[window]
    (x, y), (rx, ry) = line.mean(axis=0), np.ptp(line, axis=0) / 2 + 0.05
    on.take(x, y, float(rx), float(ry))
    return Sign.of(window, weight, 0.30 * strength, kind="apical" if site < 2 else "lateral")


def pneumothorax(on: Scene, strength: float, side: int) -> Sign:
    """Renders air around a collapsed lung: black, without markings, bounded by a thin line."""
    patient, height = on.patient, on.patient.lung_height
    shrink = on.rng.uniform(0.66, 0.85)
    anchor = np.array((side * 0.12, on.rng.uniform(0.62, 0.85) * height))
    collapsed = (patient.lung_outlines[side] - anchor) * (shrink, shrink) + anchor
    reach = patient.free_span(side, 0.6)[1]
    window = on.around(side * reach / 2, anchor[1] / 2, reach / 2 + 0.08, anchor[1] / 2 + 0.05)
    inside = on.canvas.mask([(collapsed, 1.0)], 0.005, window)
    _, gy = on.canvas.grid(window)
    above = soft_step(np.float32(anchor[1] - 0.05) - gy, 0.06)
    air = on.half(on.lung, side, window) * (1 - inside) * above
    air = air * np.minimum(1, on.free[window] * 1.3)
    border = np.concatenate([collapsed, collapsed[:1]])
    line = on.canvas.strokes([(border, 0.016, 1.0)], 0.003, window) * above * on.free[window]
    added = np.float32(-0.13 * strength) * air + np.float32(0.20 * strength) * line
    on.take(side * reach * 0.7, 0.25 * height, 0.3, 0.25 * height)
    return Sign(window, air, added, veil=air)


def other_lesion(on: Scene, strength: float) -> Sign:
    """Renders a cavity, a hiatal hernia or an implanted device: they have no class of their own."""
    kind = on.rng.choice(3, p=(0.45, 0.25, 0.30))
    return (_cavity, _hernia, _device)[kind](on, strength)


def _cavity(on: Scene, strength: float) -> Sign:
    radius = on.rng.uniform(0.12, 0.19)
    _, x, y = on.find(radius, radius, v=(0.16, 0.72))
    window = on.around(x, y, radius, radius, 0.04)
    flat = radius * on.rng.uniform(0.85, 1.0)
    r = on.radius(window, x, y, radius, flat, on.rng.uniform(0, 3))
    weight = soft_step(1.0 - r, 0.10)
    hollow = soft_step(0.62 - r, 0.10)
    return Sign(window, weight, np.float32(strength) * (0.27 * weight - 0.33 * hollow), "cavity")


def _hernia(on: Scene, strength: float) -> Sign:
    radius = on.rng.uniform(0.17, 0.24)
    x = on.patient.midline + on.rng.uniform(0.05, 0.16)
    y = on.rng.uniform(0.74, 0.80) * on.patient.lung_height
    window = on.around(x, y, radius, radius, 0.04)
    r = on.radius(window, x, y, radius, radius * 0.9)
    weight = soft_step(1.0 - r, 0.07)
    _, gy = on.canvas.grid(window)
    gas = soft_step(0.84 - r, 0.08) * soft_step(np.float32(y - 0.06) - gy, 0.012)
    added = np.float32(strength) * (0.13 * weight - 0.26 * gas)
    return Sign(window, weight, added, "hiatal hernia")


def _device(on: Scene, strength: float) -> Sign:
    del strength  # metal is as bright as it is
    rng = on.rng
    side = LEFT if rng.random() < 0.8 else RIGHT
    rx, ry = rng.uniform(0.13, 0.17), rng.uniform(0.11, 0.14)
    x, y = side * rng.uniform(0.55, 0.75), rng.uniform(0.14, 0.24) * on.patient.lung_height
    on.take(x, y, rx, ry)
    window = on.around(x, y, rx, ry, 0.05)
    case = [(-1, -0.6), (-0.6, -1), (0.7, -0.9), (1, -0.4), (0.9, 0.7), (0, 1), (-0.9, 0.7)]
    outline = spline(np.array(case) * (rx, ry) + (x, y), closed=True)
    weight = on.canvas.mask([(outline, 1.0)], 0.004, window)
    line = np.array([(x - rx * 0.6, y + ry * 0.3), (x + rx * 0.6, y + ry * 0.3)])
    battery = on.canvas.mask([(ribbon(line, ry * 0.7), 1.0)], 0.004, window)
    return Sign(window, weight, np.float32(0.34) * weight + np.float32(0.16) * battery, "device")


# Extensive signs first, so that small ones find a place beside them. Of those with fixed sites,
# several lesions take different ones.
_BOTH = (RIGHT, LEFT)
_SIGNS: dict[str, tuple[Callable[..., Sign], tuple[int, ...]]] = {
    "ILD": (interstitial_disease, _BOTH),
    "Pneumothorax": (pneumothorax, _BOTH),
    "Pleural effusion": (pleural_effusion, _BOTH),
    "Consolidation": (consolidation, ()),
    "Lung Opacity": (lung_opacity, ()),
    "Infiltration": (infiltration, ()),
    "Atelectasis": (atelectasis, ()),
    "Pulmonary fibrosis": (pulmonary_fibrosis, ()),
    "Other lesion": (other_lesion, ()),
    "Pleural thickening": (pleural_thickening, (0, 1, 2, 3)),
    "Nodule/Mass": (nodule_or_mass, ()),
    "Calcification": (calcification, ()),
}


_ONCE = ("hiatal hernia", "device")  # whose places are fixed, too


def render_signs(on: Scene, strengths_by_label: dict[str, tuple[float, ...]]) -> list[Sign]:
    """Renders the signs of all classes at free places, one for each strength."""
    signs = []
    for label, outline in (
        ("Cardiomegaly", on.patient.heart),
        ("Aortic enlargement", on.patient.arch),
    ):
        if label in strengths_by_label:
            # The organ itself is the sign and part of the phantom already.
            window = on.canvas.window(outline, 0.05)
            weight = on.canvas.mask([(outline, 1.0)], 0.012, window)
            signs.append(Sign(window, weight, np.zeros_like(weight), label=label))
    for label, (render, sites) in _SIGNS.items():
        strengths = strengths_by_label.get(label, ())
        chosen: list[tuple[int, ...]] = [()] * len(strengths)
        if strengths and sites:
            order = on.rng.permutation(len(sites))
            if label == "Pleural thickening":
                # Caps are commoner than bands.
                order = np.concatenate([on.rng.permutation(2), 2 + on.rng.permutation(2)])
                if on.rng.random() < 0.3:
                    order = order[::-1]
            chosen = [(sites[int(k)],) for k in order]
        for strength, site in zip(strengths, chosen, strict=False):
            sign = render(on, strength, *site)
            while sign.kind in _ONCE and any(sign.kind == one.kind for one in signs):
                sign = render(on, strength, *site)
            signs.append(dataclasses.replace(sign, label=label))
    return signs
