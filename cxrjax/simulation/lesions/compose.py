"""From a radiograph and a seed to the radiograph with lesions, exact boxes and three readers."""

import dataclasses
import hashlib

import numpy as np
from jaxtyping import Float, UInt8

from cxrjax.simulation.lesions import signs, warps
from cxrjax.simulation.lesions.anatomy import Chest, Mask, blur, read_chest
from cxrjax.simulation.lesions.signs import SIGNS, GraftSign, Places
from cxrjax.simulation.phantoms import findings
from cxrjax.simulation.phantoms.canvas import Field
from cxrjax.simulation.phantoms.findings import Presence

LEVELS = 255
_STREAMS = ("findings", "lesions", "readers", "normal")
# What changes by less than this share of a lesion's strongest change is cut away, and so is what
# changes by less than a grey level: a box then bounds all that is different.
_FAINT = 0.08
# Lung markings: finer than this share of the lung's height.
_MARKINGS = 0.022
_GRAIN = 0.005
# What is finer keeps its contrast under a lesion, as if it lay before it.
_SMOOTH = 0.022
_RIBS = 0.05  # as wide as a rib, of the lung's height
_STRONGEST = 1.6  # attenuation
_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Lesion:
    """One simulated lesion.

    Attributes:
        kind: which form of the class it is, "" where there is one.
        box: pixels, (x_min, y_min, x_max, y_max).
        contrast_to_noise: mean change of its core over the texture there; None of a warped organ.
    """

    label: str
    kind: str
    box: tuple[int, int, int, int]
    contrast_to_noise: float | None


@dataclasses.dataclass(frozen=True)
class Graft:
    """A real radiograph with simulated lesions.

    Attributes:
        image: grey values, uint8 [h, w].
        readers: reader id -> (label, box as fractions of the picture).
    """

    image: UInt8[np.ndarray, "h w"]
    lesions: list[Lesion]
    readers: dict[str, list[findings.ReaderFinding]]

    @property
    def labels(self) -> list[str]:
        """The class of each lesion."""
        return [lesion.label for lesion in self.lesions]

    @property
    def boxes(self) -> Float[np.ndarray, "n 4"]:
        """Boxes as fractions of the picture."""
        height, width = self.image.shape
        boxes = np.array([lesion.box for lesion in self.lesions], np.float32).reshape(-1, 4)
        return boxes / np.array([width, height, width, height], np.float32)


def generator(seed: int, key: str, stream: str) -> np.random.Generator:
    """A stream of its own for each purpose; depends on seed and key alone."""
    digest = hashlib.sha256(key.encode()).digest()
    return np.random.default_rng((seed, int.from_bytes(digest[:8], "big"), _STREAMS.index(stream)))


def to_levels(grey: Field) -> UInt8[np.ndarray, "h w"]:
    """0 to 1 as grey levels."""
    return np.clip(np.rint(grey * LEVELS), 0, LEVELS).astype(np.uint8)


def render_graft(
    image: UInt8[np.ndarray, "h w"],
    mask: Mask,
    seed: int,
    key: str,
    presences: list[Presence] | None = None,
    contrast: float = 1.0,
) -> Graft:
    """The radiograph with lesions drawn by lot.

    Args:
        image: the radiograph, pixels square.
        mask: its lungs.
        seed, key: decide everything; the key is the picture's name.
        presences: what is to be there; None draws it as VinDr-CXR's table has it. Empty: the
            picture comes back as it is.
        contrast: multiplies every lesion's contrast-to-noise ratio.

    Raises:
        Unusable: `one_lung`.
    """
    if presences is None:
        presences = findings.draw_presences(generator(seed, key, "findings"))
    if not presences:
        return Graft(image, [], {reader: [] for reader in findings.READERS})
    chest = read_chest(image.astype(np.float32) / LEVELS, mask)
    chest, lesions = _compose(chest, presences, generator(seed, key, "lesions"), contrast)
    graft = Graft(to_levels(chest.grey), lesions, {})
    there = [p for p in presences if p.label in graft.labels]
    rng = generator(seed, key, "readers")
    return dataclasses.replace(graft, readers=findings.read(rng, there, graft.labels, graft.boxes))


def _compose(
    chest: Chest, presences: list[Presence], rng: np.random.Generator, contrast: float
) -> tuple[Chest, list[Lesion]]:
    by_label = {presence.label: presence for presence in presences}
    lesions = []
    organs = (
        ("Cardiomegaly", warps.enlarge_heart),
        ("Aortic enlargement", warps.enlarge_arch),
    )
    organ_boxes = []
    for label, enlarge in organs:
        if label in by_label:
            warped = enlarge(chest, rng, by_label[label].strengths[0] * contrast)
            chest = warped.chest
            organ_boxes.append(warped.box)
            lesions.append(Lesion(label, "", _whole_pixels(warped.box, chest.grey.shape), None))
    places = Places(chest, rng)
    grey = chest.grey.copy()
    # Grain is nobody's: it stays as it is under every lesion, markings may vanish.
    low = blur(grey, max(chest.sharpness, _GRAIN * chest.size))
    markings = low - blur(low, _MARKINGS * chest.size)
    smooth = blur(grey, _SMOOTH * chest.size)
    tissue = _tissue(chest)
    for label, draw in signs.DRAW.items():
        if label not in by_label:
            continue
        said = SIGNS[label]
        for strength in by_label[label].strengths:
            sign = draw(chest, rng, places, said)
            wanted = said["contrast_to_noise"] * strength * contrast
            change, reached = _change(
                sign,
                smooth[sign.window],
                markings[sign.window],
                chest,
                tissue,
                wanted,
                said["fill"],
            )
            box = _bounds(change, sign.window)
            if box is not None:
                grey[sign.window] += change
                smooth[sign.window] += change
                lesions.append(Lesion(label, sign.kind, box, reached))
    return dataclasses.replace(chest, grey=grey), lesions


def _tissue(chest: Chest) -> float:
    """The grey of soft tissue: of heart and mediastinum."""
    rows = chest.heart_rows()
    columns = np.arange(chest.grey.shape[1])
    right, left = sorted(chest.hearts)
    inside = (columns > chest.hearts[right][:, None]) & (columns < chest.hearts[left][:, None])
    return float(np.median(chest.grey[rows][inside[rows]]))


def _change(
    sign: GraftSign,
    smooth: Field,
    markings: Field,
    chest: Chest,
    tissue: float,
    wanted: float,
    fill: float,
) -> tuple[Field, float]:
    """What a sign adds to the grey values, and the contrast-to-noise ratio it reaches.

    A picture's grey is one minus the share of the light (film) or the signal that comes through:
    attenuation multiplies that share, so that bright parts gain less than dark ones.
    """
    core = sign.weight > 0.5
    if not core.any():
        return np.zeros_like(smooth), 0.0
    noise = float(chest.texture[sign.window][core].mean())
    profile = blur(sign.profile, 1.3 * chest.sharpness)
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
    amount, reached, change = math_sign(wanted) * 0.1, 0.0, np.zeros_like(smooth)
    for _ in range(_ROUNDS):
        added = np.minimum(amount * profile, most)
        change = _cut(through * (1 - np.exp(-added)) - veil * markings, core)
        reached = float(np.abs(change[core]).mean()) / noise
        amount = float(np.clip(amount * abs(wanted) / max(reached, 1e-6), -4, 4))
    return change, reached


def _lack(through: Field, free: Field, border: Field, tissue: float, ribs: float) -> Field:
    """The attenuation that is lacking to soft tissue: what fills up ends there.

    Half of it is smooth, so that ribs still show; smoothed within free lung alone, and less and
    less towards its border, where a dark seam would stay beside heart and diaphragm.
    """
    nearby = blur(through * free, ribs) / np.maximum(blur(free, ribs), np.float32(1e-3))
    share = through + (1 - border) * (nearby - through) / 2
    # Rounding leaves less than nothing of what is black.
    return np.clip(np.log(np.maximum(share, np.float32(1e-6)) / np.float32(1 - tissue)), 0, None)


def math_sign(value: float) -> float:
    return 1.0 if value > 0 else -1.0


def _cut(change: Field, core: np.ndarray) -> Field:
    """Takes the faint foot of a change away, so that it ends somewhere."""
    peak = float(np.percentile(np.abs(change[core]), 95))
    kept = np.clip(np.abs(change) - np.float32(_FAINT * peak), 0, None) / np.float32(1 - _FAINT)
    return np.where(kept < 1 / LEVELS, 0, np.copysign(kept, change)).astype(np.float32)


def _bounds(change: Field, window: tuple[slice, slice]) -> tuple[int, int, int, int] | None:
    rows, columns = (np.flatnonzero(change.any(axis=axis)) for axis in (1, 0))
    if len(rows) == 0:
        return None
    y, x = window[0].start, window[1].start
    return int(x + columns[0]), int(y + rows[0]), int(x + columns[-1] + 1), int(y + rows[-1] + 1)


def _whole_pixels(box: Float[np.ndarray, "4"], shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    height, width = shape
    x0, y0, x1, y1 = (round(float(edge)) for edge in box)
    return max(x0, 0), max(y0, 0), min(x1, width), min(y1, height)
