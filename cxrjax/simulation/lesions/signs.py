"""Shapes of the signs of each class within the anatomy, before any strength is given to them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from cxrjax.files import read_packaged
from cxrjax.simulation.lesions.anatomy import Chest, blur
from cxrjax.simulation.phantoms.anatomy import LEFT, RIGHT
from cxrjax.simulation.phantoms.canvas import Field, ridges, smooth_noise
from cxrjax.simulation.phantoms.signs import soft_step

SIGNS: dict[str, dict[str, Any]] = read_packaged("cxrjax.simulation.lesions", "signs.toml")
_SUPERSAMPLE = 4
_TRIES = 10
_FADE = 0.014  # of the lung's height

Window = tuple[slice, slice]


@dataclasses.dataclass(frozen=True)
class GraftSign:
    """A sign on a window of the picture.

    Attributes:
        weight: 0 to 1, how much of the sign is there; nothing changes where it is 0.
        profile: attenuation at strength 1, relative; at most about 1.
        veil: share of the lung's markings that vanish, 0 to 1.
        kind: which form of the class it is, "" where there is one.
        tissue: the grey that it fills up to; None: that of the heart.
    """

    window: Window
    weight: Field
    profile: Field
    veil: Field
    kind: str = ""
    tissue: float | None = None


class Places:
    """Finds places for lesions inside free lung, away from those that are there."""

    def __init__(self, chest: Chest, rng: np.random.Generator) -> None:
        self._chest = chest
        self._rng = rng
        self._taken = np.zeros(chest.grey.shape, np.float32)
        self.depth = ndimage.distance_transform_edt(chest.free > 0.5).astype(np.float32)
        # Fades towards the border of the free lung, so that no lesion is cut off there.
        self.free = soft_step(self.depth - _FADE * chest.size, _FADE * chest.size)

    def take(self, window: Window) -> None:
        """Marks a window as occupied."""
        self._taken[window] += 1

    def room(self, side: int, v: float) -> float:
        """Minus the share of a lung that is taken about this height."""
        y = round(self._chest.height_at(side, v))
        rows = slice(max(0, y - round(0.1 * self._chest.size)), y + round(0.1 * self._chest.size))
        return -float((self._taken > 0)[rows][self._chest.lungs[side][rows]].mean())

    def find(self, rx: float, ry: float, zone: tuple[float, float], inside: float) -> tuple:
        """(side, x, y) in pixels of the best of some centres in a zone of either lung, now taken.

        Args:
            rx, ry: half the lesion's width and height in pixels.
            zone: heights in the lung, 0 to 1.
            inside: the share of the smaller radius that the centre keeps from the lung's border.
        """
        chest, rng = self._chest, self._rng
        side = RIGHT if rng.random() < 0.5 else LEFT
        low, high = (round(chest.height_at(side, v)) for v in zone)
        depth = np.where(chest.lungs[side], self.depth, 0)[low : high + 1]
        least = min(inside * min(rx, ry), 0.8 * float(depth.max(initial=0)))
        ys, xs = np.nonzero(depth > least)
        if len(ys) == 0:
            ys, xs = np.unravel_index([int(depth.argmax())], depth.shape)
        best, fewest = (side, 0.0, 0.0), math.inf
        for k in rng.integers(len(ys), size=_TRIES):
            x, y = float(xs[k]), float(ys[k] + low)
            here = around(chest, x, y, rx, ry)
            overlap = float(self._taken[here].mean())
            if overlap < fewest:
                best, fewest = (side, x, y), overlap
        self.take(around(chest, best[1], best[2], rx, ry))
        return best


def around(chest: Chest, x: float, y: float, rx: float, ry: float) -> Window:
    """The window of a rectangle, cut at the picture's border."""
    height, width = chest.grey.shape
    return (
        slice(max(0, math.floor(y - ry)), min(height, math.ceil(y + ry) + 1)),
        slice(max(0, math.floor(x - rx)), min(width, math.ceil(x + rx) + 1)),
    )


def grid(window: Window) -> tuple[Field, Field]:
    """x and y of the pixels of a window, as they broadcast."""
    rows, columns = window
    y = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None]
    return np.arange(columns.start, columns.stop, dtype=np.float32)[None], y


def strokes(window: Window, lines: list[tuple[np.ndarray, float, float]]) -> Field:
    """Open lines as (points [n, 2] in pixels, width in pixels, value), painted in order."""
    rows, columns = window
    factor = _SUPERSAMPLE
    shape = (columns.stop - columns.start) * factor, (rows.stop - rows.start) * factor
    paper = Image.new("L", shape)
    draw = ImageDraw.Draw(paper)
    for points, width, value in lines:
        at = ((points - (columns.start, rows.start) + 0.5) * factor).ravel().tolist()
        wide = max(1, round(width * factor))
        draw.line(at, fill=round(255 * value), width=wide, joint="curve")
    return np.asarray(paper.reduce(factor)) * np.float32(1 / 255)


def _uniform(rng: np.random.Generator, chest: Chest, span: tuple[float, float]) -> float:
    return float(rng.uniform(span[0], span[1])) * chest.size


def _noise(rng: np.random.Generator, chest: Chest, window: Window, cell: float) -> Field:
    """Smooth noise of unit variance whose grain is a share `cell` of the lung's height."""
    shape = tuple(s.stop - s.start for s in window)
    return smooth_noise(rng, shape, *(max(2, round(n / (cell * chest.size))) for n in shape))


def _ellipse(window: Window, x: float, y: float, rx: float, ry: float, angle: float = 0.0) -> Field:
    """Distance from the centre of an ellipse, as a multiple of its radius in that direction."""
    gx, gy = grid(window)
    cos, sin = math.cos(angle), math.sin(angle)
    dx, dy = gx - np.float32(x), gy - np.float32(y)
    return np.hypot((dx * cos + dy * sin) / rx, (dy * cos - dx * sin) / ry).astype(np.float32)


def _patch(
    chest: Chest, x: float, y: float, rx: float, ry: float, angle: float, reach: float = 1.5
) -> tuple[Window, Field, Field]:
    """A window that holds an ellipse `reach` times as large, the distance from its centre as of
    `_ellipse`, and what fades to 0 before the window ends, however uneven a lesion is."""
    cos, sin = math.cos(angle), math.sin(angle)
    half = math.hypot(rx * cos, ry * sin), math.hypot(rx * sin, ry * cos)
    window = around(chest, x, y, reach * half[0], reach * half[1])
    r = _ellipse(window, x, y, rx, ry, angle)
    return window, r, soft_step(np.float32(reach - 0.12) - r, 0.1)


def _plain(
    window: Window, weight: Field, profile: Field | float, said: dict, kind: str = ""
) -> GraftSign:
    return GraftSign(window, weight, weight * profile, np.float32(said["veil"]) * weight, kind)


def nodule(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """A ball of tissue: thickest in its middle, its edge soft and a little uneven."""
    kind = "mass" if rng.random() < said["masses"] else "nodule"
    radius = _uniform(rng, chest, said[kind])
    _, x, y = places.find(radius, radius, said["zone"], 1.0)
    flat, angle = radius * rng.uniform(0.8, 1.0), rng.uniform(0, math.pi)
    window, r, ends = _patch(chest, x, y, radius, flat, angle, 1.9)
    r += np.float32(0.07) * _noise(rng, chest, window, 0.045)
    weight = soft_step(1.15 - r, 0.55) * ends * places.free[window]
    return _plain(window, weight, np.sqrt(np.clip(1.5 - r * r, 0.2, None)), said, kind)


def calcification(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """A few crisp grains of chalk close together."""
    radius = _uniform(rng, chest, said["radius"])
    _, x, y = places.find(radius, radius, said["zone"], 1.0)
    window = around(chest, x, y, 1.5 * radius, 1.5 * radius)
    weight = np.zeros(np.broadcast_shapes(*(g.shape for g in grid(window))), np.float32)
    turn = rng.uniform(0, 2 * math.pi)
    for k in range(int(rng.integers(said["grains"][0], said["grains"][1] + 1))):
        grain = max(_uniform(rng, chest, said["grain"]), 1.0)
        away = (radius - grain) * math.sqrt(rng.random())
        angle = turn + 2.4 * k
        r = _ellipse(
            window,
            x + away * math.cos(angle),
            y + away * math.sin(angle),
            grain,
            grain * rng.uniform(0.6, 1.0),
            rng.uniform(0, math.pi),
        )
        # At least a pixel of transition, so that no grain is a square.
        weight = np.maximum(weight, soft_step(1 - r, max(0.2, 0.6 / grain)) * rng.uniform(0.7, 1))
    return _plain(window, weight, 1.0, said)


def consolidation(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """Filled airspaces: blurred, lobulated borders; bronchi that still hold air run through it."""
    rx, ry = _uniform(rng, chest, said["width"]), _uniform(rng, chest, said["height"])
    side, x, y = places.find(rx, ry, said["zone"], 0.5)
    window, r, ends = _patch(chest, x, y, rx, ry, rng.uniform(-0.5, 0.5))
    r += np.float32(0.2) * _noise(rng, chest, window, 0.14)
    r += np.float32(0.13) * _noise(rng, chest, window, 0.05)
    # Up to heart and wall, whose borders vanish behind it.
    weight = soft_step(1 - r, 0.45) * ends * chest.free[window]
    lines = []
    hilum = _hilum(chest, side)
    towards = math.atan2(y - hilum[1], x - hilum[0])
    start = np.array((x, y)) - 0.9 * min(rx, ry) * np.array((math.cos(towards), math.sin(towards)))
    for turn in np.linspace(-0.6, 0.6, int(rng.integers(2, 5))) + rng.normal(0, 0.15):
        reach = rng.uniform(1.0, 1.7) * min(rx, ry)
        steps = np.linspace(0, 1, 6)[:, None]
        bend = rng.normal(0, 0.25)
        angles = towards + turn + bend * steps
        line = start + steps * reach * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        lines.append((line, 0.016 * chest.size, rng.uniform(0.5, 0.9)))
    bronchi = blur(strokes(window, lines), 0.006 * chest.size)
    mottle = 1 + np.float32(0.1) * _noise(rng, chest, window, 0.07)
    return _plain(window, weight, mottle - np.float32(0.4) * bronchi, said)


def lung_opacity(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """A veil without form: vessels still shine through it."""
    rx, ry = _uniform(rng, chest, said["width"]), _uniform(rng, chest, said["height"])
    _, x, y = places.find(rx, ry, said["zone"], 0.5)
    window, r, ends = _patch(chest, x, y, rx, ry, rng.uniform(-0.6, 0.6))
    r += np.float32(0.14) * _noise(rng, chest, window, 0.16)
    weight = soft_step(1 - r, 0.35) * ends * chest.free[window]
    return _plain(window, weight, 1 + np.float32(0.07) * _noise(rng, chest, window, 0.08), said)


def infiltration(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """Small ill-defined patches, some of them merging."""
    rx, ry = _uniform(rng, chest, said["width"]), _uniform(rng, chest, said["height"])
    _, x, y = places.find(rx, ry, said["zone"], 0.5)
    window = around(chest, x, y, 1.5 * rx, 1.5 * ry)
    gx, gy = grid(window)
    clear = np.ones(np.broadcast_shapes(gx.shape, gy.shape), np.float32)
    count = int(rng.integers(said["patches"][0], said["patches"][1] + 1))
    for k in range(count):
        size = rng.uniform(0.028, 0.055) * chest.size
        away = math.sqrt((k + 0.5) / count)
        angle = 2.4 * k + rng.uniform(-0.4, 0.4)
        dx = gx - np.float32(x + (rx - size) * away * math.cos(angle))
        dy = gy - np.float32(y + (ry - size) * away * math.sin(angle))
        patch = np.exp((dx * dx + dy * dy) * np.float32(-0.7 / size**2))
        clear *= 1 - patch * np.float32(rng.uniform(0.5, 0.95))
    uneven = 1 + np.float32(0.2) * _noise(rng, chest, window, 0.04)
    ends = soft_step(np.float32(1.38) - _ellipse(window, x, y, rx, ry), 0.1)
    weight = np.clip((1 - clear) * uneven, 0, 1) * ends * chest.free[window]
    return _plain(window, weight, 1.0, said)


def atelectasis(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """A plate across the lower lung, or a collapsed lobe behind a straight fissure."""
    if rng.random() < said["plate"]:
        half, thick = _uniform(rng, chest, said["half"]), _uniform(rng, chest, said["thick"])
        side, x, y = places.find(half, 0.3 * half, said["zone"], 0.3)
        window = around(chest, x, y, 1.15 * half, 0.75 * half)
        angle = side * rng.uniform(-0.15, 0.5)
        gx, gy = grid(window)
        dx, dy = gx - np.float32(x), gy - np.float32(y)
        along = (dx * math.cos(angle) + dy * math.sin(angle)) / np.float32(half)
        bend = rng.uniform(-0.12, 0.12) * half
        across = dy * math.cos(angle) - dx * math.sin(angle) - bend * along * along
        width = thick * (1.15 - 0.6 * along * along)
        weight = soft_step(1 - np.abs(across) / width, 0.5) * soft_step(1 - np.abs(along), 0.12)
        return _plain(window, weight * places.free[window], 1.0, said, "plate")
    side = RIGHT if rng.random() < 0.6 else LEFT
    lung = chest.lungs[side]
    top, bottom = chest.span(side)
    columns = np.flatnonzero(lung.any(axis=0))
    window = (slice(top, bottom), slice(int(columns[0]), int(columns[-1]) + 1))
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
    mottle = 1 + np.float32(0.06) * _noise(rng, chest, window, 0.08)
    weight = weight * (lung * chest.free)[window]
    places.take(_bounds(window, weight))
    return _plain(window, weight, mottle, said, "lobar")


def effusion(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """Fluid in the costophrenic angle under a meniscus that climbs at the chest wall."""
    side = _free_side(rng, places, chest, 0.9)
    lung = chest.lungs[side]
    bottom = chest.span(side)[1]
    height = _uniform(rng, chest, said["level"])
    columns = np.flatnonzero(lung.any(axis=0))
    window = around(
        chest,
        (columns[0] + columns[-1]) / 2,
        bottom - 0.5 * height,
        0.6 * len(columns),
        0.5 * height + 0.1 * chest.size,
    )
    gx, gy = grid(window)
    inner = chest.hearts[side][window[0], None]
    outer = columns[-1] if side == LEFT else columns[0]
    u = np.clip((gx - inner) / (outer - inner), 0, 1)
    rise = rng.uniform(0.35, 0.5)
    surface = bottom - height * ((1 - rise) + rise * u**4 + 0.1 * (1 - u) ** 3)
    surface = surface + np.float32(0.006 * chest.size) * _noise(rng, chest, window, 0.2)
    # Its upper end thins out; at the wall it is a film seen edge on.
    weight = soft_step(gy - surface, 0.03 * chest.size)
    # The lung's mask ends a little above what is dark; the chest wall stays as it is.
    grown = soft_step(0.03 * chest.size - _outside(lung, window), 0.03 * chest.size)
    grown = grown * blur((np.cumsum(lung, axis=0) > 0)[window].astype(np.float32), 1.0)
    # Over the heart's border, which vanishes behind it: nothing is added to what is as dense.
    beyond = soft_step((gx - inner) * side + 0.03 * chest.size, 0.03 * chest.size)
    weight = weight * grown * beyond
    depth = np.clip((gy - surface) / height, 0, 1)
    places.take(_bounds(window, weight))
    sign = _plain(window, weight, np.float32(0.75) + np.float32(0.25) * depth, said)
    # It goes over into the diaphragm without a border.
    return dataclasses.replace(sign, tissue=_below(chest, side))


def pneumothorax(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """Air between chest wall and a thin pleural line; no markings beyond the line."""
    side = _free_side(rng, places, chest, 0.1)
    lung, wall = chest.lungs[side], chest.lateral(side)
    top, bottom = chest.span(side)
    columns = np.flatnonzero(lung.any(axis=0))
    window = (slice(top, bottom), slice(int(columns[0]), int(columns[-1]) + 1))
    _, gy = grid(window)
    v = (gy - top) / (bottom - top)
    depth, end = _uniform(rng, chest, said["depth"]), rng.uniform(*said["end"])
    line = depth * (1 - np.clip(v / end, 0, 1) ** 1.6) * (1 + 0.35 * np.exp(-((v / 0.12) ** 2)))
    line = line + np.float32(0.006 * chest.size) * _noise(rng, chest, window, 0.25) - 1.5
    distance = wall[window]
    inside = (lung * chest.free)[window]
    air = soft_step(line - distance, 0.8) * inside
    edge = np.exp(-np.square((distance - line - 1.0) / max(0.0065 * chest.size, 0.9)))
    edge = edge * inside * soft_step(line - 2, 1) * np.clip(3 * (1 - v / end), 0, 1)
    # The lung that gave way holds less air close to its edge.
    shrunk = np.exp(-np.clip(distance - line, 0, None) / (0.08 * chest.size)) * (1 - air)
    shrunk = shrunk * inside * (line > 2) * np.float32(0.15)
    weight = np.maximum(air, edge)
    # A line of a pixel or two: blurred with the rest, less than half of it is left.
    profile = air * (1 - edge) - np.float32(2.6) * edge - shrunk * (distance > line)
    places.take(_bounds(window, air))
    return GraftSign(window, weight, profile, np.float32(said["veil"]) * air)


def pleural_thickening(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """A band along the lateral chest wall, or a cap of the apex."""
    side = RIGHT if rng.random() < 0.5 else LEFT
    lung, wall = chest.lungs[side], chest.lateral(side)
    top, bottom = chest.span(side)
    columns = np.flatnonzero(lung.any(axis=0))
    thick = max(_uniform(rng, chest, said["thick"]), 3.0)
    apical = rng.random() < said["apical"]
    if apical:
        window = around(chest, columns.mean(), top, len(columns) / 2, 0.2 * chest.size)
        gx, gy = grid(window)
        apex = np.flatnonzero(lung[top : top + 3].any(axis=0)).mean()
        t = (gx - apex) / (rng.uniform(0.15, 0.24) * chest.size)
        limit = thick * np.clip(1 - t * t, 0, 1) * (gy < top + 0.16 * chest.size)
    else:
        half = rng.uniform(*said["length"])
        centre = rng.uniform(0.25 + half / 2, 0.9 - half / 2)
        middle = chest.height_at(side, centre)
        window = around(chest, columns.mean(), middle, len(columns) / 2 + 3, half * (bottom - top))
        gx, gy = grid(window)
        t = (gy - middle) / (half * (bottom - top))
        # Of the outer half alone: mediastinum and diaphragm are no chest wall.
        outer = columns[-1] if side == LEFT else columns[0]
        half_way = (chest.hearts[side][window[0], None] + outer) / 2
        lateral = (gx - half_way) * side > 0
        limit = thick * np.clip(1 - t * t, 0, 1) * lateral
    limit = limit * (1 + np.float32(0.12) * _noise(rng, chest, window, 0.07))
    # Outside of the lung as far from the wall as the nearest of its pixels is: not at all at the
    # wall itself, but far beside mediastinum and diaphragm, which are no wall.
    away, (rows, inward) = ndimage.distance_transform_edt(~lung[window], return_indices=True)
    near = blur(wall[window][rows, inward], 1.0)
    grown = soft_step(1.5 - blur(away.astype(np.float32), 1.0), 1.5)
    weight = soft_step(limit - near - 1, 1.2) * grown * soft_step(limit - 1, 0.5)
    kind = "apical" if apical else "lateral"
    places.take(_bounds(window, weight))
    return _plain(window, weight, 1.0, said, kind)


def interstitial_disease(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """A net of thickened septa with tiny nodes, over much of one lung."""
    side = _free_side(rng, places, chest, 0.6)
    lung = chest.lungs[side]
    centre, half = rng.uniform(*said["zone"]), rng.uniform(*said["half"])
    top, bottom = (round(chest.height_at(side, v)) for v in (centre - half, centre + half))
    columns = np.flatnonzero(lung.any(axis=0))
    window = around(
        chest,
        (columns[0] + columns[-1]) / 2,
        (top + bottom) / 2,
        len(columns) / 2,
        (bottom - top) / 2,
    )
    _, gy = grid(window)
    fade = 0.09 * chest.size
    uneven = np.float32(0.3 * fade) * _noise(rng, chest, window, 0.2)
    weight = soft_step(gy - top - fade + uneven, fade) * soft_step(
        bottom - fade - gy + uneven, fade
    )
    weight = weight * (lung * places.free)[window]
    net = np.maximum(
        ridges(_noise(rng, chest, window, said["cell"]), 0.3),
        np.float32(0.8) * ridges(_noise(rng, chest, window, 1.6 * said["cell"]), 0.25),
    )
    nodes = np.clip(_noise(rng, chest, window, said["cell"]) - 0.9, 0, 1)
    net = np.float32(0.3) + np.float32(0.7) * net + np.float32(0.6) * nodes
    places.take(_bounds(window, weight))
    return _plain(window, weight, net, said)


def pulmonary_fibrosis(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """Coarse streaks drawn towards the hilum, with a net between them."""
    rx, ry = _uniform(rng, chest, said["width"]), _uniform(rng, chest, said["height"])
    zone = said["zone"] if rng.random() < 0.7 else (0.6, 0.85)
    side, x, y = places.find(rx, ry, zone, 0.5)
    window = around(chest, x, y, 1.3 * rx, 1.3 * ry)
    hilum = _hilum(chest, side)
    towards = math.atan2(hilum[1] - y, hilum[0] - x)
    lines = []
    for k in range(said["streaks"]):
        away, spin = math.sqrt((k + 0.5) / said["streaks"]), 2.4 * k + rng.uniform(-0.3, 0.3)
        centre = np.array(
            (x + 0.85 * away * rx * math.cos(spin), y + 0.85 * away * ry * math.sin(spin))
        )
        angle = towards + rng.normal(0, 0.6)
        half = rng.uniform(0.3, 0.8) * min(rx, ry) * (1.1 - 0.5 * away)
        step = np.array((math.cos(angle), math.sin(angle))) * half
        bow = np.array((-step[1], step[0])) * rng.normal(0, 0.25)
        steps = np.linspace(-1, 1, 5)[:, None]
        line = centre + steps * step + (1 - steps * steps) * bow
        lines.append((line, rng.uniform(0.006, 0.013) * chest.size, rng.uniform(0.3, 1)))
    streaks = strokes(window, lines)
    net = ridges(_noise(rng, chest, window, 0.04), 0.35)
    r = _ellipse(window, x, y, rx, ry)
    ends = soft_step(np.float32(1.18) - r, 0.1)
    r = r + np.float32(0.12) * _noise(rng, chest, window, 0.1)
    weight = soft_step(1 - r, 0.3) * ends * places.free[window]
    profile = np.float32(0.3) + streaks + np.float32(0.35) * net
    return _plain(window, weight, profile, said)


def cavity(
    chest: Chest, rng: np.random.Generator, places: Places, said: dict[str, Any]
) -> GraftSign:
    """A cavity: an uneven wall around air."""
    radius, wall = _uniform(rng, chest, said["radius"]), _uniform(rng, chest, said["wall"])
    _, x, y = places.find(radius, radius, said["zone"], 1.0)
    flat, angle = radius * rng.uniform(0.8, 1.0), rng.uniform(0, math.pi)
    window, r, ends = _patch(chest, x, y, radius, flat, angle, 1.5)
    r += np.float32(0.05) * _noise(rng, chest, window, 0.05)
    weight = soft_step(1.05 - r, 0.4) * ends * places.free[window]
    uneven = 1 + np.float32(0.35) * _noise(rng, chest, window, 0.06)
    hole = soft_step(1 - wall / radius * uneven - r, 0.3)
    return _plain(window, weight, uneven * (1 - np.float32(1.05) * hole), said, "cavity")


def _hilum(chest: Chest, side: int) -> tuple[float, float]:
    y = chest.height_at(side, 0.45)
    return float(chest.hearts[side][round(y)]), y


def _below(chest: Chest, side: int) -> float:
    """The grey of what lies closely under the diaphragm."""
    lung = chest.lungs[side]
    under = np.roll(lung, round(0.08 * chest.size), axis=0) & ~lung
    under &= np.cumsum(lung, axis=0) > 0.2 * chest.size
    return float(np.median(chest.grey[under])) if under.any() else float(np.median(chest.grey))


def _free_side(rng: np.random.Generator, places: Places, chest: Chest, v: float) -> int:
    """A side drawn by lot; the other one where it is taken at this height."""
    side = RIGHT if rng.random() < 0.5 else LEFT
    return side if places.room(side, v) >= places.room(-side, v) else -side


def _outside(lung: np.ndarray, window: Window) -> Field:
    """Distance to the lung, 0 inside."""
    rows, columns = window
    return ndimage.distance_transform_edt(~lung[rows, columns]).astype(np.float32)


def _bounds(window: Window, weight: Field) -> Window:
    rows = np.flatnonzero((weight > 0.3).any(axis=1))
    columns = np.flatnonzero((weight > 0.3).any(axis=0))
    if len(rows) == 0:
        return slice(0, 0), slice(0, 0)
    y, x = window[0].start, window[1].start
    return slice(y + rows[0], y + rows[-1] + 1), slice(x + columns[0], x + columns[-1] + 1)


DRAW: dict[str, Callable[[Chest, np.random.Generator, Places, dict[str, Any]], GraftSign]] = {
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
