"""Rendered patients: what varies from person to person, and the outlines that follow from it.

Shapes are written as (x, v): x in body units, v the fraction of the lung's height (0 apex, 1
costophrenic angle); `Patient.place` turns them into body coordinates.
"""

import dataclasses
import functools

import numpy as np

from cxrjax.files import read_packaged
from cxrjax.simulation.canvas import Canvas, Points, ellipse, ribbon, spline

# The patient's sides as signs of x: the patient's left is the image's right.
RIGHT, LEFT = -1, 1
SIDES = {RIGHT: "right", LEFT: "left"}

# A heart of the given width over the thorax' width is called enlarged above 0.5 (the radiologist's
# rule); the gap between the two ranges keeps the sign decidable.
NORMAL_HEART = (0.37, 0.465)
ENLARGED_HEART = (0.53, 0.68)
# The radius of the aortic arch's shadow, body units.
NORMAL_ARCH = (0.070, 0.098)
ENLARGED_ARCH = (0.145, 0.210)

OUTLINES = {
    name: np.array(points)
    for name, points in read_packaged("cxrjax.simulation", "outlines.toml").items()
}
LATERAL_BORDER, _DOME, _HEART = (OUTLINES[n] for n in ("lung_lateral", "lung_dome", "heart"))


@dataclasses.dataclass(frozen=True)
class Patient:
    """One person in front of the detector; fractions and body units.

    Attributes:
        lung_height: apex to costophrenic angle over half the thorax' width.
        habitus: 0 slender to 1 heavy.
        dome: height of the right diaphragm's dome over that of the reference outline.
        dome_drop: distance of the left dome below the right, fraction of the lung's height.
        turn: rotation about the long axis; moves midline structures to one side.
        heart_ratio: the heart's width over the thorax' width.
        heart_share: the part of the heart's width to the right of the midline.
        heart_top, arch_level: heights of the heart's upper end and the arch, v.
        arch_radius: radius of the aortic arch's shadow.
        stomach: |x|, half width and half height of the stomach's gas.
        exposure, contrast: of the film's curve; 0 and 1 are the middle.
        bone: density of the skeleton; 1 is the middle.
        marker: side whose lead letter is on the film, 0 for none.
        collimation: widths of the black left and upper borders, below 0 for none.
    """

    aspect: float
    zoom: float
    shift: tuple[float, float]
    tilt: float
    lung_height: float
    habitus: float
    female: bool
    dome: float
    dome_drop: float
    turn: float
    apex_width: float
    heart_ratio: float
    heart_share: float
    heart_top: float
    arch_radius: float
    arch_level: float
    rib_phase: float
    rib_pitch: float
    clavicle_level: float
    stomach: tuple[float, float, float]
    exposure: float
    contrast: float
    bone: float
    marker: int
    collimation: tuple[float, float]

    def canvas(self, height: int, width: int) -> Canvas:
        """Returns the canvas for this patient, at any size of this patient's aspect."""
        scale = self.zoom * min(0.435 * width, 0.80 * height / self.lung_height)
        free = height - self.lung_height * scale
        return Canvas(
            height=height,
            width=width,
            scale=scale,
            origin_x=width * (0.5 + self.shift[0]),
            origin_y=free * (0.42 + self.shift[1]),
            tilt=self.tilt,
        )

    def place(self, points: Points) -> Points:
        """Converts (x, v) to body coordinates."""
        return np.asarray(points, dtype=np.float64) * (1.0, self.lung_height)

    @property
    def midline(self) -> float:
        """Returns the mediastinum's centre, x."""
        return 0.16 * self.turn

    def with_heart(self, ratio: float) -> "Patient":
        """Returns the same person with an enlarged heart of a cardiothoracic ratio."""
        return dataclasses.replace(self, heart_ratio=ratio, heart_top=self.heart_top - 0.04)

    def dome_scale(self, side: int) -> float:
        """Returns the height of one dome over that of the reference outline."""
        return self.dome - (self.dome_drop / 0.2 if side == LEFT else 0.0)

    @functools.cached_property
    def lung_outlines(self) -> dict[int, Points]:
        """Returns side -> the lung's closed outline, body coordinates."""
        outlines = {}
        for side in (RIGHT, LEFT):
            lateral = LATERAL_BORDER.copy()
            high = np.clip(1 - lateral[:, 1] / 0.4, 0, 1)
            lateral[:, 0] *= 1 + (self.apex_width - 1) * high
            dome = _DOME.copy()
            dome[:, 1] = 1 - (1 - dome[:, 1]) * self.dome_scale(side)
            medial = OUTLINES["lung_medial"].copy()
            medial[0, 1] = 1 - (1 - medial[0, 1]) * self.dome_scale(side)
            medial[:, 0] += side * self.midline * 0.5
            lower = spline(np.concatenate([dome, medial]))
            points = np.concatenate([spline(lateral), lower])
            outlines[side] = self.place(points) * (side, 1)
        return outlines

    @functools.cached_property
    def heart_box(self) -> tuple[float, float, float, float]:
        """Returns the heart's bounds, body coordinates."""
        width = 2 * self.heart_ratio
        x0 = self.midline - self.heart_share * width
        bottom = (1 - 0.2 * self.dome_scale(LEFT) * 0.52) * self.lung_height
        return x0, self.heart_top * self.lung_height, x0 + width, bottom

    @functools.cached_property
    def heart(self) -> Points:
        """Returns the heart's outline, body coordinates."""
        x0, y0, x1, y1 = self.heart_box
        return spline(_HEART * (x1 - x0, y1 - y0) + (x0, y0), closed=True)

    @functools.cached_property
    def arch(self) -> Points:
        """Returns the shadow of the aortic arch: a knob on the left, a flat bulge on the right."""
        return spline(OUTLINES["aortic_arch"] * self.arch_radius + self.arch_centre, closed=True)

    @property
    def arch_centre(self) -> tuple[float, float]:
        """Returns the centre of the knob; its left border moves outwards as it widens."""
        x = self.midline + 0.10 + 0.45 * self.arch_radius
        return x, self.arch_level * self.lung_height

    @functools.cached_property
    def _spans(self) -> dict[int, list[tuple[float, float]]]:
        x0, y0, x1, y1 = self.heart_box
        v = np.linspace(0, 1, 51)
        outer = np.interp(v, LATERAL_BORDER[1:, 1], LATERAL_BORDER[1:, 0])
        spans = {}
        for side, border in ((RIGHT, _HEART[1:6]), (LEFT, _HEART[9:16])):
            inner = 0.22 + 0.2 * np.clip(1 - v / 0.1, 0, 1)
            edge = border * (x1 - x0, y1 - y0) + (x0, y0)
            edge = edge[np.argsort(edge[:, 1])]
            heart = np.interp(v * self.lung_height, edge[:, 1], edge[:, 0] * side, left=0)
            inner = np.maximum(inner, heart + 0.02)
            spans[side] = list(zip(inner.tolist(), outer.tolist(), strict=True))
        return spans

    def free_span(self, side: int, v: float) -> tuple[float, float]:
        """Returns |x| of the free lung's borders, medial (or of the heart) and lateral, at v."""
        return self._spans[side][round(50 * min(max(v, 0.0), 1.0))]

    @functools.cached_property
    def _domes(self) -> list[float]:
        order = np.argsort(_DOME[:, 0])
        return np.interp(np.linspace(0, 1, 51), _DOME[order, 0], _DOME[order, 1]).tolist()

    def dome_level(self, side: int, x: float) -> float:
        """Returns y of the diaphragm at |x|, body coordinates."""
        v = self._domes[round(50 * min(abs(x), 1.0))]
        return (1 - (1 - v) * self.dome_scale(side)) * self.lung_height


def draw_patient(rng: np.random.Generator) -> Patient:
    """Samples a person from the phantoms' population, heart and aorta of normal size."""
    habitus = float(rng.beta(2, 3))
    return Patient(
        aspect=float(rng.uniform(0.8, 1.15)),
        zoom=float(rng.uniform(0.88, 1.03)),
        shift=(float(rng.normal(0, 0.012)), float(rng.uniform(-0.12, 0.12))),
        tilt=float(np.clip(rng.normal(0, 0.025), -0.07, 0.07)),
        lung_height=float(1.90 - 0.35 * habitus + rng.normal(0, 0.07)),
        habitus=habitus,
        female=bool(rng.random() < 0.5),
        dome=float(rng.uniform(0.85, 1.25)),
        dome_drop=float(rng.uniform(0.008, 0.035)),
        turn=float(np.clip(rng.normal(0, 0.25), -0.6, 0.6)),
        apex_width=float(rng.uniform(0.92, 1.06)),
        heart_ratio=float(rng.uniform(*NORMAL_HEART)),
        heart_share=float(rng.uniform(0.27, 0.36)),
        heart_top=float(rng.uniform(0.40, 0.46)),
        arch_radius=float(rng.uniform(*NORMAL_ARCH)),
        arch_level=float(rng.uniform(0.26, 0.31)),
        rib_phase=float(rng.uniform(-0.03, 0.03)),
        rib_pitch=float(rng.uniform(0.092, 0.104)),
        clavicle_level=float(rng.uniform(-0.03, 0.04)),
        stomach=(
            float(rng.uniform(0.30, 0.62)),
            float(rng.uniform(0.08, 0.24)),
            float(rng.uniform(0.04, 0.12)),
        ),
        exposure=float(rng.normal(0, 0.035)),
        contrast=float(rng.uniform(0.75, 1.2)),
        bone=float(rng.uniform(0.7, 1.25)),
        marker=int(rng.choice((0, 0, LEFT, LEFT, RIGHT))),
        collimation=(float(rng.uniform(-0.05, 0.02)), float(rng.uniform(-0.05, 0.02))),
    )


def body_outline(patient: Patient) -> Points:
    """Returns neck, shoulders and trunk."""
    x, v, by_habitus, by_fat = OUTLINES["body"].T
    fat = 0.10 + 0.16 * patient.habitus
    half = spline(np.stack([x + by_habitus * patient.habitus + by_fat * fat, v], 1), samples=4)
    return patient.place(np.concatenate([half, half[::-1] * (-1, 1)]))


def breast(patient: Patient, side: int) -> Points:
    """Returns the shadow of one breast."""
    return ellipse(side * 0.58, 0.74 * patient.lung_height, 0.46, 0.36)


def mediastinum_outline(patient: Patient) -> Points:
    """Returns great vessels, spine and the tissue around them, without heart and arch."""
    right, left = (spline(OUTLINES[f"mediastinum_{side}"]) for side in ("right", "left"))
    outline = np.concatenate([right * (-1, 1), left[::-1]])
    return patient.place(outline + np.array((patient.midline, 0)))


def airway(patient: Patient) -> list[tuple[Points, float]]:
    """Returns trachea and main bronchi."""
    x = patient.midline * 0.8 + 0.01
    trachea = np.array([(x, -0.5), (x, 0.1), (x - 0.01, 0.33)])
    right = np.array([(x - 0.01, 0.32), (x - 0.12, 0.385), (x - 0.2, 0.42)])
    left = np.array([(x - 0.01, 0.32), (x + 0.14, 0.39), (x + 0.26, 0.425)])
    return [
        (ribbon(patient.place(trachea), 0.105), 1.0),
        (ribbon(patient.place(right), 0.075), 0.7),
        (ribbon(patient.place(left), 0.06), 0.6),
    ]


def _hilum_centres(patient: Patient) -> Points:
    """Returns right and left, body coordinates."""
    side = np.array((RIGHT, LEFT))
    return patient.place(np.stack([side * 0.22 + patient.midline, [0.43, 0.405]], axis=1))


def hilum_shapes(patient: Patient, side: int) -> list[tuple[Points, float]]:
    """Returns the shadows of one hilum: its root, and the descending artery."""
    x, y = _hilum_centres(patient)[0 if side == RIGHT else 1]
    return [
        (ellipse(x, y, 0.11, 0.19, side * -0.25), 0.8),
        (ellipse(x + side * 0.06, y + 0.17, 0.065, 0.18, side * -0.2), 1.0),
    ]


def vessels(
    patient: Patient, rng: np.random.Generator
) -> tuple[list[tuple[Points, float, float]], list[tuple[Points, float]]]:
    """Samples the vessels that leave each hilum and fork three times, and returns the hila too.

    Returns:
        (lines with width and value, hilar shapes), body coordinates.
    """
    side = np.array((RIGHT, LEFT))
    hilum = _hilum_centres(patient)

    # Angles from straight up (0) to straight down (pi), on the lateral side; each vessel leaves
    # the hilum at its own height.
    angle = np.tile(np.linspace(0.2, 2.9, 9), 2)
    n = len(angle)
    side = np.repeat(side, 9)
    away = rng.normal(0, (0.10, 0.03, 0.03), (n, 3))
    angle = angle + away[:, 0]
    offset = np.stack([side * (0.02 + away[:, 1]), away[:, 2] - 0.13 * np.cos(angle)], axis=1)
    tip = np.repeat(hilum, 9, axis=0) + offset
    vary = rng.uniform(0.75, 1.2, (2, n))
    width = np.where(angle > 1.4, 0.040, 0.028) * vary[0]
    length = np.interp(angle, [0.2, 1.5, 2.9], [0.34, 0.26, 0.36]) * vary[1]
    lines: list[tuple[Points, float, float]] = []
    for value in (0.85, 0.8, 0.7, 0.6):
        n, steps = len(angle), 4
        chance = rng.random((4, n))
        bend = np.cumsum(rng.normal(0, 0.16, (n, steps)), axis=1) + angle[:, None]
        step = length * (0.7 + 0.6 * chance[0]) / steps
        move = np.stack([side[:, None] * np.sin(bend), -np.cos(bend)], axis=-1)
        path = np.zeros((n, steps + 1, 2))
        np.cumsum(move * step[:, None, None], axis=1, out=path[:, 1:])
        path += tip[:, None]
        values = value * (0.6 + 0.4 * chance[1])
        lines += zip(path, width.tolist(), values.tolist(), strict=True)
        # The stem continues, a side branch leaves somewhere along it.
        fork = (0.35 + 0.45 * chance[2]) * np.where(chance[3] < 0.5, 1, -1)
        branch = path[np.arange(n), 2 + (chance[2] * 997 % 3).astype(int)]
        tip = np.concatenate([path[:, -1], branch])
        angle = np.concatenate([bend[:, -1] - fork * 0.25, bend[:, -1] + fork])
        width = np.concatenate([width * 0.75, width * 0.6])
        length = np.concatenate([length * 0.72, length * 0.6])
        side = np.tile(side, 2)
    return lines, [shape for side in (RIGHT, LEFT) for shape in hilum_shapes(patient, side)]


# How far each rib falls from spine to front (v), and the angles of its back and front part.
_RIB_FALL = np.array([0.20, 0.25, 0.285, 0.31, 0.33, 0.345, 0.36, 0.375, 0.39, 0.40])
_RIB_BACK = np.linspace(0.06, 1.62, 13)
_RIB_FRONT = np.linspace(1.52, 2.40, 8)

_CLAVICLE = spline(OUTLINES["clavicle"], samples=4)
_CLAVICLE_WIDTH = np.interp(
    np.linspace(0, 1, len(_CLAVICLE)), [0, 0.15, 0.5, 1], [0.1, 0.07, 0.055, 0.075]
)
# Shoulder blade, its spine, shaft and head of the upper arm, each with its density.
_SHOULDER = (
    (spline(OUTLINES["blade"], closed=True, samples=4), 0.32),
    (ribbon(OUTLINES["blade_spine"], 0.03), 0.6),
    (ribbon(OUTLINES["arm"], 0.15), 0.55),
    (ellipse(1.30, 0.0, 0.15, 0.085), 0.65),
)
# End plate of a vertebra (x over half its width, v from its top) and its spinous process.
_PLATE = np.array([(-1, 0.004), (1, 0.004), (1, 0.014), (-1, 0.014)])
_PROCESS = np.array([(0, 0.03), (0.018, 0.05), (0, 0.07), (-0.018, 0.05)])
_VERTEBRA_TOPS = np.arange(-0.42, 1.7, 0.078)[:, None]


def _bones(
    lines: np.ndarray, width: np.ndarray, rim: float, inside: float
) -> list[tuple[Points, float]]:
    """Returns bands with dense rims (the cortex) and a paler inside (the marrow), rims first."""
    rims, insides = ribbon(lines, width), ribbon(lines, np.maximum(width - 0.028, 0.005))
    return [*((band, rim) for band in rims), *((band, inside) for band in insides)]


def ribs(patient: Patient) -> tuple[list[tuple[Points, float]], list[tuple[Points, float]]]:
    """Returns posterior and anterior parts of the ribs as bands.

    A rib is a hoop that falls from the spine to the front, seen from the front: half an ellipse
    from the spine outwards and down, and back inwards further down.
    """
    k = np.arange(10)[:, None]
    start = -0.055 + patient.rib_phase + k * patient.rib_pitch
    fall = np.interp(k, np.arange(10), _RIB_FALL)
    reach = np.interp(start + 0.46 * fall, LATERAL_BORDER[1:, 1], LATERAL_BORDER[1:, 0]) + 0.012
    reach[0] = 0.58
    width = np.interp(k, [0, 2, 9], [0.078, 0.070, 0.060])
    parts = []
    for angles, count, share in ((_RIB_BACK, 10, 1.0), (_RIB_FRONT, 7, 1.15)):
        x = (reach * np.abs(np.sin(angles)) ** 0.85)[:count]
        v = (start + fall * (1 - np.cos(angles)) / 2)[:count]
        both = np.concatenate([RIGHT * x, LEFT * x]) + patient.midline * 0.3
        lines = patient.place(np.stack([both, np.concatenate([v, v])], axis=-1))
        parts.append(_bones(lines, np.tile(width[:count] * share, (2, 1)), 1.0, 0.7))
    return parts[0], parts[1]


def clavicles(patient: Patient) -> list[tuple[Points, float]]:
    """Returns the two collar bones."""
    lines = []
    for side in (RIGHT, LEFT):
        level = patient.clavicle_level + side * patient.turn * 0.03
        line = (_CLAVICLE + np.array((0, level))) * (side, 1) + (patient.midline, 0)
        lines.append(patient.place(line))
    return _bones(np.stack(lines), _CLAVICLE_WIDTH, 1.0, 0.75)


def shoulder_bones(patient: Patient) -> list[tuple[Points, float]]:
    """Returns shoulder blades, heads and shafts of the upper arms."""
    return [
        (patient.place(shape) * (side, 1), value)
        for side in (RIGHT, LEFT)
        for shape, value in _SHOULDER
    ]


def vertebrae(patient: Patient) -> list[tuple[Points, float]]:
    """Returns the column of vertebral bodies, with end plates and processes."""
    tops = _VERTEBRA_TOPS
    half = 0.085 + 0.02 * np.maximum(tops, 0)
    x = half * _PLATE[:, 0] + patient.midline * 0.6
    plates = patient.place(np.stack([x, tops + _PLATE[:, 1]], axis=-1))
    x = 0 * tops + _PROCESS[:, 0] + patient.midline * 0.9
    processes = patient.place(np.stack([x, tops + _PROCESS[:, 1]], axis=-1))
    column = np.concatenate([plates[:, 0], plates[::-1, 1]])
    return [(column, 0.35), *((shape, 0.55) for shape in (*plates, *processes))]
