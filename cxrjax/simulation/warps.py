"""Smooth local warps that enlarge heart and aortic arch by moving their borders outwards."""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy import ndimage

from cxrjax.simulation.anatomy import LEFT, RIGHT, SIDES
from cxrjax.simulation.chest import Chest, Row, blur, free_lung
from cxrjax.simulation.signs import smooth

# Bounds of the enlarged organ in pixels, x0, y0, x1, y1.
Edges = tuple[float, float, float, float]
# Cardiothoracic ratio that an enlarged heart of strength 1 has at least, and how much it gains.
_RATIO, _GAIN, _WIDEST = 0.6, 0.09, 0.74
# Of the gain in width the left border takes this share: the left ventricle grows most.
_OF_LEFT = 0.72
# A border stays within this share of the way to the chest wall.
_REACH = 0.9
# Closer to the midline than this share of the border's distance nothing moves: the spine is there.
_STILL = 0.15
# The arch: its centre in the left lung, half its height, bulge; shares of a lung's height.
_ARCH, _ARCH_HALF, _ARCH_BULGE = (0.17, 0.25), (0.07, 0.095), (0.055, 0.085)


def enlarge_heart(chest: Chest, rng: np.random.Generator, strength: float) -> tuple[Chest, Edges]:
    """Widens the heart to a cardiothoracic ratio above 0.5, and above what it was."""
    own = chest.cardiothoracic_ratio()
    jitter = rng.uniform(-0.01, 0.01)
    wanted = min(max(0.5 + (_RATIO - 0.5) * strength, own + _GAIN * strength) + jitter, _WIDEST)
    columns = np.flatnonzero(chest.lung.any(axis=0))
    rows = chest.heart_rows()
    more = max(wanted - own, 0.03) * (columns[-1] + 1 - columns[0])
    height = rows.stop - rows.start
    y = np.arange(chest.grey.shape[0], dtype=np.float32)
    # From the base of the heart down to its full width, and out again below the diaphragm.
    rising = np.clip((y - rows.start + 0.12 * height) / (0.6 * height), 0, 1)
    falling = np.clip((rows.stop + 0.3 * height - y) / (0.3 * height), 0, 1)
    window = smooth(rising) * smooth(falling)
    moves = {}
    for side, share in ((LEFT, _OF_LEFT), (RIGHT, 1 - _OF_LEFT)):
        room = _room(chest, side, _REACH)
        room = ndimage.gaussian_filter1d(room, 0.04 * chest.size, mode="nearest")
        moves[side] = np.minimum(share * more * window, room).astype(np.float32)
    warped = _warp(chest, moves)
    top, bottom = _heart_ends(warped, rows)
    here = slice(top, bottom)
    return warped, (warped.hearts[RIGHT][here].min(), top, warped.hearts[LEFT][here].max(), bottom)


def enlarge_arch(chest: Chest, rng: np.random.Generator, strength: float) -> tuple[Chest, Edges]:
    """Makes the aortic knob bulge to the left, and slightly the ascending aorta to the right."""
    centre = chest.height_at(LEFT, rng.uniform(*_ARCH))
    half = rng.uniform(*_ARCH_HALF) * chest.size
    bulge = rng.uniform(*_ARCH_BULGE) * chest.size * strength
    y = np.arange(chest.grey.shape[0], dtype=np.float32)
    knob = smooth(np.clip(1 - np.abs(y - centre) / (1.5 * half), 0, 1))
    below = smooth(np.clip(1 - np.abs(y - centre - half) / (2 * half), 0, 1))
    moves = {
        LEFT: (bulge * knob).astype(np.float32),
        RIGHT: (rng.uniform(0.1, 0.35) * bulge * below).astype(np.float32),
    }
    moves = {side: np.minimum(move, _room(chest, side)) for side, move in moves.items()}
    warped = _warp(chest, moves, reach=4 * bulge)
    here = slice(round(centre - 1.1 * half), round(centre + 1.1 * half) + 1)
    # The arch begins at the trachea's right wall, which is near the midline.
    to_right = np.abs(warped.hearts[RIGHT] - warped.middle)[here].mean()
    left = warped.middle[here].mean() - 0.25 * to_right
    return warped, (left, here.start, warped.hearts[LEFT][here].max(), here.stop)


ORGANS: dict[str, Callable[[Chest, np.random.Generator, float], tuple[Chest, Edges]]] = {
    "Cardiomegaly": enlarge_heart,
    "Aortic enlargement": enlarge_arch,
}


def _room(chest: Chest, side: int, share: float = 1) -> Row:
    """Returns the distance from the heart's border to a share of the way to the chest wall."""
    return np.clip(
        share * _to_wall(chest, side) - (chest.hearts[side] - chest.middle) * side, 0, None
    )


def _to_wall(chest: Chest, side: int) -> Row:
    """Returns the distance from the midline to the chest wall in each row."""
    lung = chest.lungs[side]
    away = np.where(lung, (np.arange(lung.shape[1]) - chest.middle[:, None]) * side, 0)
    wall = away.max(axis=1).astype(np.float32)
    rows = np.flatnonzero(wall)
    return np.interp(np.arange(len(wall)), rows, wall[rows]).astype(np.float32)


def _heart_ends(chest: Chest, rows: slice) -> tuple[int, int]:
    """Returns the first row of the heart, and the row after its apex, at the diaphragm."""
    ends = []
    for side in SIDES:
        lung, border = chest.lungs[side], chest.hearts[side]
        columns = np.clip(np.round(border + side * 0.02 * chest.size), 0, lung.shape[1] - 1)
        beside = lung[np.arange(len(border)), columns.astype(int)]
        ends.append(int(np.flatnonzero(beside).max(initial=rows.start)))
    return rows.start, min(max(ends) + 1, chest.grey.shape[0])


def _warp(chest: Chest, moves: dict[int, np.ndarray], reach: float | None = None) -> Chest:
    """Moves each side's border outwards by these pixels a row; lung beside it is squeezed."""
    height, width = chest.grey.shape
    columns = np.arange(width, dtype=np.float32)
    away = columns - chest.middle[:, None]
    back = np.zeros((height, width), np.float32)
    hearts = {}
    for side in SIDES:
        old = np.maximum((chest.hearts[side] - chest.middle) * side, 2.0)[:, None]
        new = old + moves[side][:, None]
        wall = np.maximum(_to_wall(chest, side)[:, None], new + 2)
        if reach is not None:
            wall = np.minimum(wall, new + reach)
        distance = away * side
        still = _STILL * old
        within = still + (distance - still) * (old - still) / (new - still)
        outside = old + (distance - new) * (wall - old) / (wall - new)
        source = np.where(distance < new, within, outside)
        moved = (distance > still) & (distance < wall)
        back += np.where(moved, side * (distance - source), 0)
        hearts[side] = (chest.middle + side * new[:, 0]).astype(np.float32)
    back = blur(back, 0.012 * chest.size)
    rows = np.flatnonzero(np.abs(back).max(axis=1) > 0.05)
    here = slice(max(0, rows[0] - 4), rows[-1] + 5) if len(rows) else slice(0, 0)
    grid_y, grid_x = np.mgrid[: back[here].shape[0], :width].astype(np.float32)
    grey = chest.grey.copy()
    grey[here] = ndimage.map_coordinates(
        grey[here], [grid_y, grid_x - back[here]], order=3, mode="nearest"
    )
    free = free_lung(chest.lungs, hearts, chest.size)
    return dataclasses.replace(chest, grey=grey, hearts=hearts, free=free)
