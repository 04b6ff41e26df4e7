"""Simulated lesions in real normal radiographs: synthetic lesion, real radiograph.

A radiograph and the mask of its lungs give the anatomy (`chest`). Signs of the VinDr-CXR classes
are shaped inside it (`lesion_signs`), heart and aortic arch are enlarged by local warps (`warps`),
and all of it is composed in attenuation, at a requested contrast-to-noise ratio, under the
radiograph's own noise. Everything is a function of the image and a seed.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import UInt8
from scipy import ndimage

from cxrjax.simulation import findings, warps
from cxrjax.simulation.canvas import Field
from cxrjax.simulation.chest import Chest, Mask, blur, read_chest
from cxrjax.simulation.findings import Presence
from cxrjax.simulation.lesion_signs import SHAPES, SIGNS, Places
from cxrjax.simulation.signs import Sign, SimulatedImage, extent

LEVELS = 255
_STREAMS = ("findings", "lesions", "readers", "normal", "courses")
# A change by less than this share of a lesion's strongest change is cut away, and so is one by less
# than a grey level: a box then bounds all that is different.
_FAINT = 0.08
# Lung markings: finer than this share of the lung's height.
_MARKINGS = 0.022
_GRAIN = 0.005
# Finer structures keep their contrast under a lesion, as if they lay before it.
_SMOOTH = 0.022
_RIBS = 0.05  # as wide as a rib, of the lung's height
_STRONGEST = 1.6  # attenuation
_ROUNDS = 4
# Lesions at the wall grow along it only, from this share of their height; others from their middle.
_GROW_FROM = {"Pleural effusion": 1.0, "Pneumothorax": 0.0, "Pleural thickening": 0.5}
# Probabilities of absent, small and of full size at the next study; by what a lesion was before.
_COURSE = ((0.35, 0.325, 0.325), (0.25, 0.35, 0.4), (0.25, 0.4, 0.35))
_SMALL = (0.5, 0.65)
# Of two lesions of a class at most this share of the smaller one's box lies in the other's.
_OVERLAP = 0.4
_TRIES = 10


@dataclasses.dataclass(frozen=True)
class Lesion:
    """One simulated lesion."""

    label: str
    kind: str  # form of the class, "" where there is only one
    box: tuple[int, int, int, int]  # pixels, (x_min, y_min, x_max, y_max)
    # Mean change of its core over the texture there; None of a warped organ.
    contrast_to_noise: float | None


@dataclasses.dataclass(frozen=True)
class LesionImage(SimulatedImage):
    """A real radiograph with simulated lesions."""

    lesions: list[Lesion]


def generator(seed: int, key: str, stream: str) -> np.random.Generator:
    """Returns a random stream for one purpose; depends on seed and key only."""
    digest = hashlib.sha256(key.encode()).digest()
    return np.random.default_rng((seed, int.from_bytes(digest[:8], "big"), _STREAMS.index(stream)))


def simulate_lesions(
    image: UInt8[np.ndarray, "h w"],
    mask: Mask,
    seed: int,
    key: str,
    presences: list[Presence] | None = None,
    contrast: float = 1.0,
    sizes: Sequence[float] | None = None,
) -> LesionImage:
    """Simulates lesions into a radiograph.

    Args:
        image: the radiograph, pixels square.
        mask: its lungs.
        seed, key: decide everything; the key is the image's name.
        presences: findings to simulate; None samples them by VinDr-CXR's table. Empty: the image is
            returned unchanged.
        contrast: multiplies every lesion's contrast-to-noise ratio.
        sizes: a factor for each lesion's size, 0 to 1; 0 leaves it out. None: all are 1.

    Raises:
        Unusable: `one_lung`.
    """
    if presences is None:
        presences = findings.draw_presences(generator(seed, key, "findings"))
    lesions: list[Lesion] = []
    if presences:
        chest = read_chest(image.astype(np.float32) / LEVELS, mask)
        rng = generator(seed, key, "lesions")
        grey, lesions = _compose(chest, presences, rng, contrast, sizes)
        image = np.clip(np.rint(grey * LEVELS), 0, LEVELS).astype(np.uint8)
    labels = [lesion.label for lesion in lesions]
    height, width = image.shape
    pixels = np.array([lesion.box for lesion in lesions], np.float32).reshape(-1, 4)
    boxes = pixels / np.array([width, height, width, height], np.float32)
    there = [presence for presence in presences if presence.label in labels]
    readers = findings.read(generator(seed, key, "readers"), there, labels, boxes)
    return LesionImage(image, labels, boxes, readers, lesions)


def draw_courses(
    rng: np.random.Generator, presences: Sequence[Presence], studies: int
) -> list[list[float]]:
    """Samples the sizes of all lesions (heart and aorta are none) at each of several studies."""
    lesions = sum(len(one.strengths) for one in presences if one.label in SHAPES)
    courses = []
    for _ in range(lesions):
        sizes, state = (0.0, float(rng.uniform(*_SMALL)), 1.0), int(rng.integers(3))
        courses.append([sizes[state]])
        for _ in range(studies - 1):
            state = int(rng.choice(3, p=_COURSE[state]))
            courses[-1].append(sizes[state])
    return [[course[study] for course in courses] for study in range(studies)]


def _compose(
    chest: Chest,
    presences: list[Presence],
    rng: np.random.Generator,
    contrast: float,
    sizes: Sequence[float] | None,
) -> tuple[Field, list[Lesion]]:
    strengths = {presence.label: presence.strengths for presence in presences}
    size_of = iter(sizes) if sizes is not None else itertools.repeat(1.0)
    lesions = []
    for label, enlarge in warps.ORGANS.items():
        if label in strengths:
            chest, edges = enlarge(chest, rng, strengths[label][0] * contrast)
            (height, width), (x0, y0, x1, y1) = chest.grey.shape, (round(float(e)) for e in edges)
            inside = max(x0, 0), max(y0, 0), min(x1, width), min(y1, height)
            lesions.append(Lesion(label, "", inside, None))
    places = Places(chest, rng)
    grey = chest.grey.copy()
    # Grain stays as it is under every lesion; markings may vanish.
    low = blur(grey, max(chest.sharpness, _GRAIN * chest.size))
    markings = low - blur(low, _MARKINGS * chest.size)
    smooth = blur(grey, _SMOOTH * chest.size)
    tissue = _tissue(chest)
    for label, shape in SHAPES.items():
        said = SIGNS[label]
        alike: list[Sign] = []
        for strength in strengths.get(label, ()):
            sign = _draw_apart(functools.partial(shape, places, said), alike)
            alike.append(sign)
            window = sign.window
            wanted = said["contrast_to_noise"] * strength * contrast
            parts = smooth[window], markings[window], chest, tissue
            change, reached = _change(sign, *parts, wanted, said["fill"])
            change = _resized(change, next(size_of), _GROW_FROM.get(label))
            if box := extent(change != 0, window):
                grey[window] += change
                smooth[window] += change
                lesions.append(Lesion(label, sign.kind, box, reached))
    return grey, lesions


def _draw_apart(draw: Callable[[], Sign], others: Iterable[Sign]) -> Sign:
    """Draws a sign away from others of its class, with which a reader would see a single one.

    The last of some tries stays where there is no room.
    """
    boxes = [box for one in others if (box := extent(one.weight > 0.3, one.window))]
    for _ in range(_TRIES):
        sign = draw()
        here = extent(sign.weight > 0.3, sign.window)
        if here is None or all(_overlap(here, box) <= _OVERLAP for box in boxes):
            break
    return sign


def _overlap(one: Sequence[int], other: Sequence[int]) -> float:
    """Returns the share of the smaller of two boxes that lies in the other."""
    areas = [float(np.prod(np.subtract(box[2:], box[:2]))) for box in (one, other)]
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    return float(np.prod(np.clip(high - low, 0, None))) / min(areas)


def _resized(change: Field, size: float, grow_from: float | None) -> Field:
    """Returns a change in smaller size; `grow_from` as in `_GROW_FROM`."""
    box = extent(change != 0, (slice(0, None), slice(0, None)))
    if size in (0, 1) or box is None:
        return change * np.float32(size)
    x0, y0, x1, y1 = box
    fixed = np.array([y0 + (y1 - y0) * (0.5 if grow_from is None else grow_from), (x0 + x1) / 2])
    by = np.array([1 / size, 1 / size if grow_from is None else 1.0])
    return np.asarray(ndimage.affine_transform(change, by, fixed * (1 - by), order=1))


def _tissue(chest: Chest) -> float:
    """Returns the grey value of soft tissue: of heart and mediastinum."""
    rows = chest.heart_rows()
    columns = np.arange(chest.grey.shape[1])
    right, left = sorted(chest.hearts)
    inside = (columns > chest.hearts[right][:, None]) & (columns < chest.hearts[left][:, None])
    return float(np.median(chest.grey[rows][inside[rows]]))


def _change(
    sign: Sign,
    smooth: Field,
    markings: Field,
    chest: Chest,
    tissue: float,
    wanted: float,
    fill: float,
) -> tuple[Field, float]:
    """Returns what a sign adds to the grey values, and the contrast-to-noise ratio it reaches.

    A grey value is one minus the share of the light (film) or the signal that comes through:
    attenuation multiplies that share, so that bright parts gain less than dark ones.
    """
    core = sign.weight > 0.5
    if not core.any():
        return np.zeros_like(smooth), 0.0
    assert sign.veil is not None
    noise = float(chest.texture[sign.window][core].mean())
    profile = blur(sign.added, 1.3 * chest.sharpness)
    through = 1 - smooth
    most = np.full_like(smooth, _STRONGEST)
    veil = sign.veil
    if fill:
        ribs = _RIBS * chest.size
        free = chest.free[sign.window]
        border = np.clip(2 - 2 * blur(free, ribs), 0, 1)
        lack = _lack(through, free, border, sign.tissue or tissue, ribs)
        # The sharp edge of heart and diaphragm is no marking of the lung: it vanishes with it.
        veil = veil + fill * border * border * (sign.weight - veil)
        profile = profile * ((1 - fill) + fill * lack / max(float(lack[core].mean()), 0.05))
        most = lack * sign.weight + np.float32(0.5 * (1 - fill))
    amount, reached, change = math.copysign(0.1, wanted), 0.0, np.zeros_like(smooth)
    for _ in range(_ROUNDS):
        added = np.minimum(amount * profile, most)
        change = _cut(through * (1 - np.exp(-added)) - veil * markings, core)
        reached = float(np.abs(change[core]).mean()) / noise
        amount = float(np.clip(amount * abs(wanted) / max(reached, 1e-6), -4, 4))
    return change, reached


def _lack(through: Field, free: Field, border: Field, tissue: float, ribs: float) -> Field:
    """Returns the attenuation that is missing to soft tissue, where a filling sign ends.

    Half of it is smooth, so that ribs still show; smoothed within free lung only, and less and less
    towards its border, where a dark seam would stay beside heart and diaphragm.
    """
    nearby = blur(through * free, ribs) / np.maximum(blur(free, ribs), np.float32(1e-3))
    share = through + (1 - border) * (nearby - through) / 2
    # Rounding makes the share of black pixels negative.
    return np.clip(np.log(np.maximum(share, np.float32(1e-6)) / np.float32(1 - tissue)), 0, None)


def _cut(change: Field, core: np.ndarray) -> Field:
    """Removes the faint border of a change, so that it ends somewhere."""
    peak = float(np.percentile(np.abs(change[core]), 95))
    kept = np.clip(np.abs(change) - np.float32(_FAINT * peak), 0, None) / np.float32(1 - _FAINT)
    return np.where(kept < 1 / LEVELS, 0, np.copysign(kept, change)).astype(np.float32)
