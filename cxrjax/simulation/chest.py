"""Chest as a radiograph and its lung mask show it: sides, borders, noise, sharpness."""

import dataclasses
import math

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage

from cxrjax.records_io.quality import Unusable
from cxrjax.simulation.anatomy import LEFT, RIGHT, SIDES
from cxrjax.simulation.canvas import Field

Mask = Bool[np.ndarray, "h w"]
Row = Float[np.ndarray, " h"]

# A lung is at least this share of the image, and of the other lung.
_SMALLEST_LUNG, _SMALLEST_OF_OTHER = 0.02, 0.25
# A step in the heart's border costs this much of the steepest gradient, per pixel and row.
_BEND = 0.12
_LARGEST_STEP = 2


@dataclasses.dataclass(frozen=True)
class Chest:
    """One frontal radiograph with its anatomy; all in pixels of the image."""

    grey: Field  # 0 black to 1 white, float32 [h, w]
    # Side (RIGHT and LEFT of the patient) -> mask, the part behind the heart included.
    lungs: dict[int, Mask]
    middle: Row  # x of the midline in each row
    hearts: dict[int, Row]  # side -> x of the border of heart and mediastinum in each row
    free: Field  # soft mask of lung without overlying structures, 0 to 1
    size: float  # height of a lung; lengths of lesions are fractions of it
    texture: Field  # local standard deviation of the grey levels about their local mean
    sharpness: float  # standard deviation of a Gaussian that blurs white noise to this film's grain

    @property
    def lung(self) -> Mask:
        """Returns the mask of both lungs."""
        return self.lungs[RIGHT] | self.lungs[LEFT]

    def span(self, side: int) -> tuple[int, int]:
        """Returns the first row of a lung, and the row after its last."""
        rows = np.flatnonzero(self.lungs[side].any(axis=1))
        return int(rows[0]), int(rows[-1]) + 1

    def height_at(self, side: int, v: float) -> float:
        """Returns the row at a height of a lung, 0 its apex, 1 its base."""
        top, bottom = self.span(side)
        return top + v * (bottom - top)

    def lateral(self, side: int) -> Field:
        """Returns the distance from chest wall and apex inwards; 0 outside the lung."""
        lung = self.lungs[side]
        columns = np.arange(lung.shape[1])
        # Mediastinum and diaphragm are no wall: they are filled before distances are taken.
        beyond = (columns - self.middle[:, None]) * side < 0
        below = np.cumsum(lung, axis=0) > 0
        inner = np.where(lung, columns * side, np.inf).min(axis=1)
        medial = (columns * side < inner[:, None]) & np.isfinite(inner)[:, None]
        # The image's border is no wall.
        inside = lung | beyond | below | medial
        return ndimage.distance_transform_edt(inside).astype(np.float32) * lung

    def cardiothoracic_ratio(self) -> float:
        """Returns the widest heart over the widest chest, of the rows where lungs are."""
        rows = self.heart_rows()
        width = [max((self.hearts[s] - self.middle)[rows] * s) for s in SIDES]
        columns = np.flatnonzero(self.lung.any(axis=0))
        return float(sum(width) / (columns[-1] + 1 - columns[0]))

    def heart_rows(self) -> slice:
        """Returns the rows from the upper end of the heart to its lower."""
        top, bottom = self.span(LEFT)
        dome = self.span(RIGHT)[1]
        return slice(round(top + 0.42 * (bottom - top)), min(bottom, dome))


def blur(field: Field, spread: float | tuple[float, float]) -> Field:
    """Blurs by a Gaussian of a standard deviation in pixels."""
    return ndimage.gaussian_filter(field, spread, mode="nearest", truncate=3.0)


def split_lungs(mask: Mask) -> dict[int, Mask]:
    """Separates the two lungs of a mask; RIGHT is on the image's left.

    Raises:
        Unusable: `one_lung`.
    """
    labels, _ = ndimage.label(mask)
    areas = np.bincount(labels.ravel())[1:]
    order = np.argsort(areas)[::-1]
    smallest = max(_SMALLEST_LUNG * mask.size, _SMALLEST_OF_OTHER * areas.max(initial=0))
    lungs = [int(k) for k in order if areas[k] >= smallest]
    if len(lungs) != 2:
        raise Unusable("one_lung", f"{len(lungs)} lungs in the mask, expected 2")
    parts = [ndimage.binary_fill_holes(labels == k + 1) for k in lungs]
    parts.sort(key=lambda part: np.flatnonzero(part.any(axis=0)).mean())
    return {RIGHT: parts[0], LEFT: parts[1]}


def read_chest(grey: Field, mask: Mask) -> Chest:
    """Finds midline, border of heart and mediastinum, free lung, texture and sharpness.

    Args:
        grey: 0 to 1, pixels square.
        mask: both lungs.

    Raises:
        Unusable: `one_lung`.
    """
    lungs = split_lungs(mask)
    size = float(np.mean([np.ptp(np.flatnonzero(m.any(axis=1))) + 1 for m in lungs.values()]))
    middle = _midline(lungs)
    smooth = blur(grey, 0.012 * size)
    hearts = {side: _heart_border(smooth, lungs[side], middle, side, size) for side in SIDES}
    free = free_lung(lungs, hearts, size)
    local = grey - blur(grey, 0.05 * size)
    texture = np.sqrt(blur(local * local, 0.06 * size))
    return Chest(grey, lungs, middle, hearts, free, size, texture, _sharpness(grey, mask))


def free_lung(lungs: dict[int, Mask], hearts: dict[int, Row], size: float) -> Field:
    """Returns a soft mask of the lungs outside of heart and mediastinum."""
    free = np.zeros_like(lungs[RIGHT], dtype=np.float32)
    columns = np.arange(lungs[RIGHT].shape[1], dtype=np.float32)
    width = max(1, round(0.015 * size))
    for side, lung in lungs.items():
        beyond = np.clip((columns - hearts[side][:, None]) * side / (0.02 * size) + 0.5, 0, 1)
        free += ndimage.uniform_filter(lung.astype(np.float32), width) * beyond
    return np.clip(free, 0, 1)


def _midline(lungs: dict[int, Mask]) -> Row:
    """Fits a straight line half way between the lungs' inner borders."""
    columns = np.arange(lungs[RIGHT].shape[1])
    inner_right = np.where(lungs[RIGHT], columns, -1).max(axis=1)
    inner_left = np.where(lungs[LEFT], columns, columns[-1] + 1).min(axis=1)
    rows = np.flatnonzero((inner_right >= 0) & (inner_left <= columns[-1]))
    if len(rows) < 4:
        raise Unusable("one_lung", "the lungs share no row")
    rows = rows[: round(0.6 * len(rows))]  # below, a mask may follow the heart
    line = np.polyfit(rows, (inner_right + inner_left)[rows] / 2, 1)
    return np.polyval(line, np.arange(len(inner_left))).astype(np.float32)


def _heart_border(smooth: Field, lung: Mask, middle: Row, side: int, size: float) -> Row:
    """Follows the steepest fall of brightness from the midline outwards, as one smooth line.

    Dynamic programming over the rows of the lung; beyond them the line continues straight.
    """
    rows = np.flatnonzero(lung.any(axis=1))
    rows = rows[round(0.06 * len(rows)) : round(0.97 * len(rows))]
    outer = np.array([np.flatnonzero(lung[y])[-1 if side == LEFT else 0] for y in rows])
    reach = int(0.95 * np.abs(outer - middle[rows]).max())
    away = np.arange(max(2, round(0.05 * size)), reach, dtype=np.float32)
    x = middle[rows, None] + side * away
    points = np.stack([np.broadcast_to(rows[:, None], x.shape), x])
    # The diaphragm is as steep as the heart: pixels closely above it do not count.
    up = round(0.06 * size)
    above = lung & np.concatenate([lung[up:], np.zeros_like(lung[:up])])
    inside = ndimage.map_coordinates(above.astype(np.float32), points, order=0, mode="nearest")
    step = np.array([[[0]], [[side * (0.02 * size)]]])
    before, after = (
        ndimage.map_coordinates(smooth, points + sign * step, order=1) for sign in (-1, 1)
    )
    fall = before - after
    # The lung's outer part is full of ribs, and of the wall's own edge.
    ends = np.abs(outer - middle[rows])[:, None]
    gain = np.clip(fall, 0, None) * inside * np.clip(8 * (0.97 - away / ends), 0, 1)
    gain /= gain.max() + np.float32(1e-6)
    total = gain[0].copy()
    came = np.zeros(gain.shape, np.int64)
    shifts = range(-_LARGEST_STEP, _LARGEST_STEP + 1)
    padded = np.full(len(away) + 2 * _LARGEST_STEP, -np.inf)
    bends = _BEND * np.abs(shifts)[:, None]
    for k in range(1, len(rows)):
        padded[_LARGEST_STEP:-_LARGEST_STEP] = total
        choices = np.lib.stride_tricks.sliding_window_view(padded, len(away)) - bends
        best = choices.argmax(axis=0)
        came[k] = best - _LARGEST_STEP
        total = choices[best, np.arange(len(away))] + gain[k]
    at = int(total.argmax())
    chosen = np.empty(len(rows), np.int64)
    for k in range(len(rows) - 1, -1, -1):
        chosen[k] = at
        at += came[k, at]
    line = ndimage.gaussian_filter1d(away[chosen], 0.015 * size, mode="nearest")
    distance = np.interp(np.arange(len(middle)), rows, line)
    return (middle + side * distance).astype(np.float32)


def _sharpness(grey: Field, mask: Mask) -> float:
    """Estimates the grain's blur from the correlation of neighbours in the finest band."""
    fine = grey - blur(grey, 1.5)
    spreads = []
    for axis in (0, 1):
        pairs = np.moveaxis(fine, axis, 0)
        both = np.moveaxis(mask, axis, 0)
        both = both[1:] & both[:-1]
        first, second = pairs[1:][both], pairs[:-1][both]
        power = float((first * first).mean() + (second * second).mean()) / 2
        correlation = float((first * second).mean()) / max(power, 1e-9)
        spreads.append(1 / (4 * -math.log(min(max(correlation, 0.05), 0.85))))
    return math.sqrt(sum(spreads) / 2)
