"""Signs of each class inside the anatomy of a real radiograph, before they get any strength."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from cxrjax.simulation import canvas
from cxrjax.simulation.anatomy import LEFT, RIGHT
from cxrjax.simulation.canvas import Field, Window, ridges, shape_of
from cxrjax.simulation.chest import Chest, blur
from cxrjax.simulation.findings import CLASSES
from cxrjax.simulation.signs import Sign, extent, soft_step

Said = dict[str, Any]
SIGNS: dict[str, Said] = {
    label: said["in_radiographs"] for label, said in CLASSES.items() if "in_radiographs" in said
}
_SUPERSAMPLE = 4
_CANDIDATES = 10
_FADE = 0.014  # of the lung's height


class Places:
    """Places for lesions inside free lung, away from the lesions that are there already."""

    def __init__(self, chest: Chest, rng: np.random.Generator) -> None:
        self.chest = chest
        self.rng = rng
        self._taken = np.zeros(chest.grey.shape, np.float32)
        self.depth = ndimage.distance_transform_edt(chest.free > 0.5).astype(np.float32)
        # Fades towards the border of the free lung, so that no lesion is cut off there.
        self.free = soft_step(self.depth - _FADE * chest.size, _FADE * chest.size)

    def take(self, window: Window) -> None:
        """Marks a window as occupied."""
        self._taken[window] += 1

    def cover(self, window: Window, weight: Field) -> None:
        """Marks as occupied what a sign covers of its window."""
        if box := extent(weight > 0.3, window):
            self.take((slice(box[1], box[3]), slice(box[0], box[2])))

    def free_side(self, v: float) -> int:
        """Chooses a side at random; the other one where it is occupied at this height."""
        side = self.side()
        return side if self._room(side, v) >= self._room(-side, v) else -side

    def side(self, right: float = 0.5) -> int:
        """Chooses a side at random."""
        return RIGHT if self.rng.random() < right else LEFT

    def _room(self, side: int, v: float) -> float:
        """Returns minus the occupied share of a lung about this height."""
        y, reach = round(self.chest.height_at(side, v)), round(0.1 * self.chest.size)
        rows = slice(max(0, y - reach), y + reach)
        return -float((self._taken > 0)[rows][self.chest.lungs[side][rows]].mean())

    def find(self, rx: float, ry: float, zone: tuple[float, float], inside: float) -> tuple:
        """Returns (side, x, y) in pixels of the best of some centres in a zone, and occupies it.

        Args:
            rx, ry: half the lesion's width and height in pixels.
            zone: heights in the lung, 0 to 1.
            inside: distance of the centre from the lung's border, of the smaller radius.
        """
        chest = self.chest
        side = self.side()
        low, high = (round(chest.height_at(side, v)) for v in zone)
        depth = np.where(chest.lungs[side], self.depth, 0)[low : high + 1]
        least = min(inside * min(rx, ry), 0.8 * float(depth.max(initial=0)))
        ys, xs = np.nonzero(depth > least)
        if len(ys) == 0:
            ys, xs = np.unravel_index([int(depth.argmax())], depth.shape)
        best, fewest = (side, 0.0, 0.0), math.inf
        for k in self.rng.integers(len(ys), size=_CANDIDATES):
            x, y = float(xs[k]), float(ys[k] + low)
            overlap = float(self._taken[self.around(x, y, rx, ry)].mean())
            if overlap < fewest:
                best, fewest = (side, x, y), overlap
        self.take(self.around(best[1], best[2], rx, ry))
        return best

    def around(self, x: float, y: float, rx: float, ry: float) -> Window:
        """Returns the window of a rectangle, cut at the image's border."""
        height, width = self.chest.grey.shape
        return (
            slice(max(0, math.floor(y - ry)), min(height, math.ceil(y + ry) + 1)),
            slice(max(0, math.floor(x - rx)), min(width, math.ceil(x + rx) + 1)),
        )

    def whole_lung(self, side: int) -> Window:
        """Returns the window of one lung."""
        columns = self.columns(side)
        return slice(*self.chest.span(side)), slice(int(columns[0]), int(columns[-1]) + 1)

    def columns(self, side: int) -> np.ndarray:
        """Returns the columns of one lung."""
        return np.flatnonzero(self.chest.lungs[side].any(axis=0))

    def length(self, span: tuple[float, float]) -> float:
        """Samples a length in pixels from a range of shares of the lung's height."""
        return float(self.rng.uniform(span[0], span[1])) * self.chest.size

    def noise(self, window: Window, cell: float, amount: float = 1.0) -> Field:
        """Returns smooth noise whose cells are a share `cell` of the lung's height."""
        shape = shape_of(window)
        cells = (max(2, round(n / (cell * self.chest.size))) for n in shape)
        return np.float32(amount) * canvas.smooth_noise(self.rng, shape, *cells)

    def patch(
        self, x: float, y: float, rx: float, ry: float, angle: float, reach: float = 1.5
    ) -> tuple[Window, Field, Field]:
        """Returns the surroundings of an ellipse.

        Returns:
            A window that holds an ellipse `reach` times as large; the distance from its centre as
            of `radius`; and a field that falls to 0 before the window ends, however uneven a
            lesion is.
        """
        cos, sin = math.cos(angle), math.sin(angle)
        half = math.hypot(rx * cos, ry * sin), math.hypot(rx * sin, ry * cos)
        window = self.around(x, y, reach * half[0], reach * half[1])
        r = radius(window, x, y, rx, ry, angle)
        return window, r, soft_step(np.float32(reach - 0.12) - r, 0.1)


def grid(window: Window) -> tuple[Field, Field]:
    """Returns x and y of the pixels of a window, as they broadcast."""
    rows, columns = window
    y = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None]
    return np.arange(columns.start, columns.stop, dtype=np.float32)[None], y


def strokes(window: Window, lines: list[tuple[np.ndarray, float, float]]) -> Field:
    """Paints open lines, (points [n, 2] in pixels, width in pixels, value), in order."""
    height, width = shape_of(window)
    paper = Image.new("L", (width * _SUPERSAMPLE, height * _SUPERSAMPLE))
    draw = ImageDraw.Draw(paper)
    for points, wide, value in lines:
        at = (points - (window[1].start, window[0].start) + 0.5) * _SUPERSAMPLE
        pixels = max(1, round(wide * _SUPERSAMPLE))
        draw.line(at.ravel().tolist(), fill=round(255 * value), width=pixels, joint="curve")
    return np.asarray(paper.reduce(_SUPERSAMPLE)) * np.float32(1 / 255)


def radius(window: Window, x: float, y: float, rx: float, ry: float, angle: float = 0.0) -> Field:
    """Returns the distance from an ellipse's centre, as a multiple of its radius there."""
    gx, gy = grid(window)
    cos, sin = math.cos(angle), math.sin(angle)
    dx, dy = gx - np.float32(x), gy - np.float32(y)
    return np.hypot((dx * cos + dy * sin) / rx, (dy * cos - dx * sin) / ry).astype(np.float32)


def _sign(
    window: Window, weight: Field, profile: Field | float, said: Said, kind: str = ""
) -> Sign:
    return Sign(window, weight, weight * profile, kind, np.float32(said["veil"]) * weight)


def nodule(on: Places, said: Said) -> Sign:
    """Shapes a ball of tissue: thickest in its middle, its edge soft and a little uneven."""
    kind = "mass" if on.rng.random() < said["masses"] else "nodule"
    size = on.length(said[kind])
    _, x, y = on.find(size, size, said["zone"], 1.0)
    flat, angle = size * on.rng.uniform(0.8, 1.0), on.rng.uniform(0, math.pi)
    window, r, ends = on.patch(x, y, size, flat, angle, 1.9)
    r += on.noise(window, 0.045, 0.07)
    weight = soft_step(1.15 - r, 0.55) * ends * on.free[window]
    return _sign(window, weight, np.sqrt(np.clip(1.5 - r * r, 0.2, None)), said, kind)


def calcification(on: Places, said: Said) -> Sign:
    """Shapes a few crisp grains of chalk close together."""
    rng, size = on.rng, on.length(said["radius"])
    _, x, y = on.find(size, size, said["zone"], 1.0)
    window = on.around(x, y, 1.5 * size, 1.5 * size)
    weight = np.zeros(shape_of(window), np.float32)
    turn = rng.uniform(0, 2 * math.pi)
    for k in range(int(rng.integers(said["grains"][0], said["grains"][1] + 1))):
        grain = max(on.length(said["grain"]), 1.0)
        away = (size - grain) * math.sqrt(rng.random())
        angle = turn + 2.4 * k
        centre = x + away * math.cos(angle), y + away * math.sin(angle)
        flat = grain * rng.uniform(0.6, 1.0)
        r = radius(window, *centre, grain, flat, rng.uniform(0, math.pi))
        # At least a pixel of transition, so that no grain is a square.
        weight = np.maximum(weight, soft_step(1 - r, max(0.2, 0.6 / grain)) * rng.uniform(0.7, 1))
    return _sign(window, weight, 1.0, said)


def consolidation(on: Places, said: Said) -> Sign:
    """Shapes filled airspaces: blurred, lobulated borders; bronchi that still hold air in them."""
    rng, chest = on.rng, on.chest
    rx, ry = on.length(said["width"]), on.length(said["height"])
    side, x, y = on.find(rx, ry, said["zone"], 0.5)
    window, r, ends = on.patch(x, y, rx, ry, rng.uniform(-0.5, 0.5))
    r += on.noise(window, 0.14, 0.2)
    r += on.noise(window, 0.05, 0.13)
    # Up to heart and wall, whose borders vanish behind it.
    weight = soft_step(1 - r, 0.45) * ends * chest.free[window]
    lines = []
    hilum = _hilum(chest, side)
    towards = math.atan2(y - hilum[1], x - hilum[0])
    start = np.array((x, y)) - 0.9 * min(rx, ry) * np.array((math.cos(towards), math.sin(towards)))
    for turn in np.linspace(-0.6, 0.6, int(rng.integers(2, 5))) + rng.normal(0, 0.15):
        reach = rng.uniform(1.0, 1.7) * min(rx, ry)
        steps = np.linspace(0, 1, 6)[:, None]
        angles = towards + turn + rng.normal(0, 0.25) * steps
        line = start + steps * reach * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        lines.append((line, 0.016 * chest.size, rng.uniform(0.5, 0.9)))
    bronchi = blur(strokes(window, lines), 0.006 * chest.size)
    mottle = 1 + on.noise(window, 0.07, 0.1)
    return _sign(window, weight, mottle - np.float32(0.4) * bronchi, said)


def lung_opacity(on: Places, said: Said) -> Sign:
    """Shapes a veil without form: vessels still shine through it."""
    rx, ry = on.length(said["width"]), on.length(said["height"])
    _, x, y = on.find(rx, ry, said["zone"], 0.5)
    window, r, ends = on.patch(x, y, rx, ry, on.rng.uniform(-0.6, 0.6))
    r += on.noise(window, 0.16, 0.14)
    weight = soft_step(1 - r, 0.35) * ends * on.chest.free[window]
    return _sign(window, weight, 1 + on.noise(window, 0.08, 0.07), said)


def infiltration(on: Places, said: Said) -> Sign:
    """Shapes small ill-defined patches, some of them merging."""
    rng = on.rng
    rx, ry = on.length(said["width"]), on.length(said["height"])
    _, x, y = on.find(rx, ry, said["zone"], 0.5)
    window = on.around(x, y, 1.5 * rx, 1.5 * ry)
    gx, gy = grid(window)
    clear = np.ones(shape_of(window), np.float32)
    count = int(rng.integers(said["patches"][0], said["patches"][1] + 1))
    for k in range(count):
        size = rng.uniform(0.028, 0.055) * on.chest.size
        away = math.sqrt((k + 0.5) / count)
        angle = 2.4 * k + rng.uniform(-0.4, 0.4)
        dx = gx - np.float32(x + (rx - size) * away * math.cos(angle))
        dy = gy - np.float32(y + (ry - size) * away * math.sin(angle))
        patch = np.exp((dx * dx + dy * dy) * np.float32(-0.7 / size**2))
        clear *= 1 - patch * np.float32(rng.uniform(0.5, 0.95))
    uneven = 1 + on.noise(window, 0.04, 0.2)
    ends = soft_step(np.float32(1.38) - radius(window, x, y, rx, ry), 0.1)
    weight = np.clip((1 - clear) * uneven, 0, 1) * ends * on.chest.free[window]
    return _sign(window, weight, 1.0, said)


def atelectasis(on: Places, said: Said) -> Sign:
    """Shapes a plate across the lower lung, or a collapsed lobe behind a straight fissure."""
    return (_plate if on.rng.random() < said["plate"] else _collapsed_lobe)(on, said)


def _plate(on: Places, said: Said) -> Sign:
    half, thick = on.length(said["half"]), on.length(said["thick"])
    side, x, y = on.find(half, 0.3 * half, said["zone"], 0.3)
    window = on.around(x, y, 1.15 * half, 0.75 * half)
    angle = side * on.rng.uniform(-0.15, 0.5)
    gx, gy = grid(window)
    dx, dy = gx - np.float32(x), gy - np.float32(y)
    along = (dx * math.cos(angle) + dy * math.sin(angle)) / np.float32(half)
    bend = on.rng.uniform(-0.12, 0.12) * half
    across = dy * math.cos(angle) - dx * math.sin(angle) - bend * along * along
    width = thick * (1.15 - 0.6 * along * along)
    weight = soft_step(1 - np.abs(across) / width, 0.5) * soft_step(1 - np.abs(along), 0.12)
    return _sign(window, weight * on.free[window], 1.0, said, "plate")


def _collapsed_lobe(on: Places, said: Said) -> Sign:
    rng, chest = on.rng, on.chest
    side = on.side(right=0.6)
    window = on.whole_lung(side)
    top, bottom = chest.span(side)
    gx, gy = grid(window)
    inner = chest.hearts[side][window[0], None]
    u = (gx - inner) * side / chest.size  # from the mediastinum outwards
    v = (gy - top) / (bottom - top)
    if rng.random() < 0.5:
        # The upper lobe: its fissure rises from the hilum outwards, hollow below.
        low, rise = rng.uniform(0.3, 0.4), rng.uniform(0.5, 0.9)
        edge = low - rise * u + rng.uniform(0.2, 0.5) * u * u
        weight = soft_step((edge - v) * chest.size, 0.012 * chest.size)
    else:
        # The lower lobe: a triangle beside heart and diaphragm with its tip at the hilum.
        tip, slope = rng.uniform(0.42, 0.55), rng.uniform(0.35, 0.6)
        weight = soft_step((slope * (v - tip) - u) * chest.size, 0.015 * chest.size)
        weight = weight * soft_step(v - np.float32(tip), 0.08)
    mottle = 1 + on.noise(window, 0.08, 0.06)
    weight = weight * (chest.lungs[side] * chest.free)[window]
    on.cover(window, weight)
    return _sign(window, weight, mottle, said, "lobar")


def effusion(on: Places, said: Said) -> Sign:
    """Shapes fluid in the costophrenic angle under a meniscus that climbs at the chest wall."""
    chest = on.chest
    side = on.free_side(0.9)
    lung, bottom = chest.lungs[side], chest.span(side)[1]
    height = on.length(said["level"])
    columns = on.columns(side)
    middle = (columns[0] + columns[-1]) / 2, bottom - 0.5 * height
    window = on.around(*middle, 0.6 * len(columns), 0.5 * height + 0.1 * chest.size)
    gx, gy = grid(window)
    inner = chest.hearts[side][window[0], None]
    outer = columns[-1] if side == LEFT else columns[0]
    u = np.clip((gx - inner) / (outer - inner), 0, 1)
    rise = on.rng.uniform(0.35, 0.5)
    surface = bottom - height * ((1 - rise) + rise * u**4 + 0.1 * (1 - u) ** 3)
    surface = surface + on.noise(window, 0.2, 0.006 * chest.size)
    # Its upper end thins out; at the wall it is a film seen edge on.
    weight = soft_step(gy - surface, 0.03 * chest.size)
    # The lung's mask ends a little above what is dark; the chest wall stays as it is.
    outside = ndimage.distance_transform_edt(~lung[window]).astype(np.float32)
    grown = soft_step(0.03 * chest.size - outside, 0.03 * chest.size)
    grown = grown * blur((np.cumsum(lung, axis=0) > 0)[window].astype(np.float32), 1.0)
    # Over the heart's border, which vanishes behind it: nothing is added to what is as dense.
    beyond = soft_step((gx - inner) * side + 0.03 * chest.size, 0.03 * chest.size)
    weight = weight * grown * beyond
    depth = np.clip((gy - surface) / height, 0, 1)
    on.cover(window, weight)
    sign = _sign(window, weight, np.float32(0.75) + np.float32(0.25) * depth, said)
    # It merges into the diaphragm without a border.
    return dataclasses.replace(sign, tissue=_below(chest, side))


def pneumothorax(on: Places, said: Said) -> Sign:
    """Shapes air between chest wall and a thin pleural line; no markings beyond the line."""
    chest = on.chest
    side = on.free_side(0.1)
    top, bottom = chest.span(side)
    window = on.whole_lung(side)
    _, gy = grid(window)
    v = (gy - top) / (bottom - top)
    depth, end = on.length(said["depth"]), on.rng.uniform(*said["end"])
    line = depth * (1 - np.clip(v / end, 0, 1) ** 1.6) * (1 + 0.35 * np.exp(-((v / 0.12) ** 2)))
    line = line + on.noise(window, 0.25, 0.006 * chest.size) - 1.5
    distance = chest.lateral(side)[window]
    inside = (chest.lungs[side] * chest.free)[window]
    air = soft_step(line - distance, 0.8) * inside
    edge = np.exp(-np.square((distance - line - 1.0) / max(0.0065 * chest.size, 0.9)))
    edge = edge * inside * soft_step(line - 2, 1) * np.clip(3 * (1 - v / end), 0, 1)
    # The collapsed lung holds less air close to its edge.
    shrunk = np.exp(-np.clip(distance - line, 0, None) / (0.08 * chest.size)) * (1 - air)
    shrunk = shrunk * inside * (line > 2) * np.float32(0.15)
    # A line of a pixel or two: blurred with the rest, less than half of it is left.
    profile = air * (1 - edge) - np.float32(2.6) * edge - shrunk * (distance > line)
    on.cover(window, air)
    return Sign(window, np.maximum(air, edge), profile, veil=np.float32(said["veil"]) * air)


def pleural_thickening(on: Places, said: Said) -> Sign:
    """Shapes a band along the lateral chest wall, or a cap of the apex."""
    rng, chest = on.rng, on.chest
    side = on.side()
    lung, wall = chest.lungs[side], chest.lateral(side)
    top, bottom = chest.span(side)
    columns = on.columns(side)
    thick = max(on.length(said["thick"]), 3.0)
    kind = "apical" if rng.random() < said["apical"] else "lateral"
    if kind == "apical":
        window = on.around(columns.mean(), top, len(columns) / 2, 0.2 * chest.size)
        gx, gy = grid(window)
        apex = np.flatnonzero(lung[top : top + 3].any(axis=0)).mean()
        t = (gx - apex) / (rng.uniform(0.15, 0.24) * chest.size)
        limit = thick * np.clip(1 - t * t, 0, 1) * (gy < top + 0.16 * chest.size)
    else:
        half = rng.uniform(*said["length"])
        middle = chest.height_at(side, rng.uniform(0.25 + half / 2, 0.9 - half / 2))
        window = on.around(columns.mean(), middle, len(columns) / 2 + 3, half * (bottom - top))
        gx, gy = grid(window)
        t = (gy - middle) / (half * (bottom - top))
        # Only in the outer half: mediastinum and diaphragm are no chest wall.
        outer = columns[-1] if side == LEFT else columns[0]
        half_way = (chest.hearts[side][window[0], None] + outer) / 2
        limit = thick * np.clip(1 - t * t, 0, 1) * ((gx - half_way) * side > 0)
    limit = limit * (1 + on.noise(window, 0.07, 0.12))
    # Outside of the lung as far from the wall as the nearest of its pixels is: not at all at the
    # wall itself, but far beside mediastinum and diaphragm, which are no wall.
    away, (rows, inward) = ndimage.distance_transform_edt(~lung[window], return_indices=True)
    near = blur(wall[window][rows, inward], 1.0)
    grown = soft_step(1.5 - blur(away.astype(np.float32), 1.0), 1.5)
    weight = soft_step(limit - near - 1, 1.2) * grown * soft_step(limit - 1, 0.5)
    on.cover(window, weight)
    return _sign(window, weight, 1.0, said, kind)


def interstitial_disease(on: Places, said: Said) -> Sign:
    """Shapes a net of thickened septa with tiny nodes, over much of one lung."""
    rng, chest = on.rng, on.chest
    side = on.free_side(0.6)
    centre, half = rng.uniform(*said["zone"]), rng.uniform(*said["half"])
    top, bottom = (round(chest.height_at(side, v)) for v in (centre - half, centre + half))
    columns = on.columns(side)
    middle = (columns[0] + columns[-1]) / 2, (top + bottom) / 2
    window = on.around(*middle, len(columns) / 2, (bottom - top) / 2)
    _, gy = grid(window)
    fade = 0.09 * chest.size
    uneven = on.noise(window, 0.2, 0.3 * fade)
    weight = soft_step(gy - top - fade + uneven, fade)
    weight = weight * soft_step(bottom - fade - gy + uneven, fade)
    weight = weight * (chest.lungs[side] * on.free)[window]
    fine = ridges(on.noise(window, said["cell"]), 0.3)
    coarse = ridges(on.noise(window, 1.6 * said["cell"]), 0.25)
    net = np.maximum(fine, np.float32(0.8) * coarse)
    nodes = np.clip(on.noise(window, said["cell"]) - 0.9, 0, 1)
    net = np.float32(0.3) + np.float32(0.7) * net + np.float32(0.6) * nodes
    on.cover(window, weight)
    return _sign(window, weight, net, said)


def pulmonary_fibrosis(on: Places, said: Said) -> Sign:
    """Shapes coarse streaks towards the hilum, with a net between them."""
    rng, chest = on.rng, on.chest
    rx, ry = on.length(said["width"]), on.length(said["height"])
    zone = said["zone"] if rng.random() < 0.7 else (0.6, 0.85)
    side, x, y = on.find(rx, ry, zone, 0.5)
    window = on.around(x, y, 1.3 * rx, 1.3 * ry)
    hilum = _hilum(chest, side)
    towards = math.atan2(hilum[1] - y, hilum[0] - x)
    lines = []
    for k in range(said["streaks"]):
        away, spin = math.sqrt((k + 0.5) / said["streaks"]), 2.4 * k + rng.uniform(-0.3, 0.3)
        reach = 0.85 * away
        centre = np.array((x + reach * rx * math.cos(spin), y + reach * ry * math.sin(spin)))
        angle = towards + rng.normal(0, 0.6)
        half = rng.uniform(0.3, 0.8) * min(rx, ry) * (1.1 - 0.5 * away)
        step = np.array((math.cos(angle), math.sin(angle))) * half
        bow = np.array((-step[1], step[0])) * rng.normal(0, 0.25)
        steps = np.linspace(-1, 1, 5)[:, None]
        line = centre + steps * step + (1 - steps * steps) * bow
        lines.append((line, rng.uniform(0.006, 0.013) * chest.size, rng.uniform(0.3, 1)))
    streaks = strokes(window, lines)
    net = ridges(on.noise(window, 0.04), 0.35)
    r = radius(window, x, y, rx, ry)
    ends = soft_step(np.float32(1.18) - r, 0.1)
    r = r + on.noise(window, 0.1, 0.12)
    weight = soft_step(1 - r, 0.3) * ends * on.free[window]
    return _sign(window, weight, np.float32(0.3) + streaks + np.float32(0.35) * net, said)


def cavity(on: Places, said: Said) -> Sign:
    """Shapes a cavity: an uneven wall around air."""
    size, wall = on.length(said["radius"]), on.length(said["wall"])
    _, x, y = on.find(size, size, said["zone"], 1.0)
    flat, angle = size * on.rng.uniform(0.8, 1.0), on.rng.uniform(0, math.pi)
    window, r, ends = on.patch(x, y, size, flat, angle, 1.5)
    r += on.noise(window, 0.05, 0.05)
    weight = soft_step(1.05 - r, 0.4) * ends * on.free[window]
    uneven = 1 + on.noise(window, 0.06, 0.35)
    hole = soft_step(1 - wall / size * uneven - r, 0.3)
    return _sign(window, weight, uneven * (1 - np.float32(1.05) * hole), said, "cavity")


def _hilum(chest: Chest, side: int) -> tuple[float, float]:
    y = chest.height_at(side, 0.45)
    return float(chest.hearts[side][round(y)]), y


def _below(chest: Chest, side: int) -> float:
    """Returns the grey value closely under the diaphragm."""
    lung = chest.lungs[side]
    under = np.roll(lung, round(0.08 * chest.size), axis=0) & ~lung
    under &= np.cumsum(lung, axis=0) > 0.2 * chest.size
    return float(np.median(chest.grey[under])) if under.any() else float(np.median(chest.grey))


# In the order in which they are composed.
SHAPES: dict[str, Callable[[Places, Said], Sign]] = {
    "Pleural effusion": effusion,
    "Pneumothorax": pneumothorax,
    "Pleural thickening": pleural_thickening,
    "ILD": interstitial_disease,
    "Pulmonary fibrosis": pulmonary_fibrosis,
    "Consolidation": consolidation,
    "Infiltration": infiltration,
    "Lung Opacity": lung_opacity,
    "Atelectasis": atelectasis,
    "Nodule/Mass": nodule,
    "Other lesion": cavity,
    "Calcification": calcification,
}
