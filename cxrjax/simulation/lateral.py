"""Left lateral view of a rendered patient, sternum on the image's left.

Its signs are those that a reader looks for: dark retrosternal and retrocardiac spaces, a spine that
darkens downwards, two domes of which the heart hides the left one's front, the arch and descending
aorta, the trachea with the dark ring of a bronchus at its end, ribs of both sides.

x runs from the sternum (-) to the back (+) in units of half the thorax' *frontal* width; y as in
the frontal view, so that a lesion keeps its height.
"""

import dataclasses

import numpy as np
from jaxtyping import UInt8

from cxrjax.simulation.anatomy import LEFT, OUTLINES, RIGHT, Patient
from cxrjax.simulation.canvas import Canvas, Field, Points, ellipse, fractal_noise, ribbon, spline
from cxrjax.simulation.render import develop

_ASPECT = 0.82  # width over height of the image
# The organs show by their size; the others are hard to see from the side, on real films too.
_UNSEEN = ("Cardiomegaly", "Aortic enlargement", "Pneumothorax", "Pleural thickening")

_SIDE = {
    name.removeprefix("side_"): points
    for name, points in OUTLINES.items()
    if name.startswith("side_")
}
_BACK = _SIDE["back"]


# A frontal finding: VinDr-CXR's class, top and bottom in body coordinates.
SideLesion = tuple[str, float, float]


def lateral_size(long_side: int) -> tuple[int, int]:
    """Returns (height, width) of a lateral image."""
    return long_side, max(1, round(_ASPECT * long_side))


def render_lateral(
    patient: Patient, lesions: list[SideLesion], seed: int, index: int, long_side: int
) -> UInt8[np.ndarray, "h w"]:
    """Renders the image, bone bright.

    Args:
        patient: as in the frontal view.
        lesions: what to show, at the frontal view's heights; their depth is random.
        seed, index: of the texture and grain.
    """
    height, width = lateral_size(long_side)
    scale = patient.zoom * min(0.50 * width, 0.78 * height / patient.lung_height)
    canvas = Canvas(
        height=height,
        width=width,
        scale=scale,
        origin_x=width * (0.5 + patient.shift[0]),
        origin_y=(height - patient.lung_height * scale) * 0.5,
        tilt=0.5 * patient.tilt,
    )
    rng = np.random.default_rng((seed, index, 100))
    density = _body(patient, canvas)
    lung = canvas.mask([(_lung(patient), 1.0)], 0.014)
    density = density - np.float32(0.40 - 0.05 * patient.habitus) * lung
    density += _left_dome(patient, canvas, lung)
    density += _mediastinum(patient, canvas, lung)
    density += _vessels(patient, canvas, lung, rng)
    density += _bones(patient, canvas, lung)
    density += np.float32(0.016) * fractal_noise(rng, (height, width), (32, 84), 0.8) * lung
    for lesion in lesions:
        density += _lesion(patient, canvas, lung, lesion, rng)
    film = dataclasses.replace(patient, marker=LEFT, contrast=0.95 * patient.contrast)
    return develop(film, density, height, width, seed, index)


def _lung(patient: Patient) -> Points:
    """Returns both lungs as they overlap; their floor is the right dome."""
    dome = _SIDE["dome"].copy()
    dome[:, 1] = 1 - (1 - dome[:, 1]) * (0.55 + 0.45 * patient.dome_scale(RIGHT))
    outline = [spline(_SIDE["front"]), spline(np.concatenate([dome, _BACK]))]
    return patient.place(np.concatenate(outline))


def _body(patient: Patient, canvas: Canvas) -> Field:
    """Paints soft tissue without lungs: thick at the shoulders and in the abdomen."""
    fat = 0.10 + 0.14 * patient.habitus
    front, back = (
        np.stack([x + by_fat * fat, v], axis=1)
        for x, v, by_fat in (_SIDE["belly"].T, _SIDE["loin"].T)
    )
    if patient.female:
        front[4:6, 0] -= 0.11
    outline = patient.place(np.concatenate([spline(front), spline(back)]))
    small, enlarge = canvas.coarse(120)
    body = small.mask([(outline, 1.0)], 0.03)
    # The raised arms leave the image upwards.
    arms = patient.place(_SIDE["arms"])
    gx, gy = small.grid(small.whole)
    v = gy / np.float32(patient.lung_height)
    tissue = np.float32(0.60 + 0.05 * patient.habitus) - np.float32(0.10) * np.square(gx)
    tissue += np.float32(0.34) * np.clip(v - np.float32(0.78), 0, 0.3)
    tissue += np.float32(0.55) * np.clip(np.float32(0.20) - v, 0, 0.3)
    # Less tissue lies over the lower spine than over the shoulders.
    tissue -= np.float32(0.10) * np.clip(v - np.float32(0.3), 0, 0.5)
    outside = small.mask([(arms, 1.0)], 0.04) * (1 - body)
    return enlarge(tissue * body + np.float32(0.5) * outside)


def _left_dome(patient: Patient, canvas: Canvas, lung: Field) -> Field:
    """Paints the second dome, through the lung behind the heart, and the stomach's gas below."""
    left = patient.place(_SIDE["left_dome"])
    left[:, 1] += (0.03 - 0.2 * (patient.dome - 1) * 0.6) * patient.lung_height
    base = patient.place(np.array([(0.62, 1.04), (-0.30, 1.04)]))
    below = canvas.mask([(np.concatenate([spline(left), base]), 1.0)], 0.012)
    gas = ellipse(-0.02, left[1, 1] + 0.13, 0.20, 0.07)
    bubble = canvas.mask([(gas, 1.0)], 0.025)
    return np.float32(0.10) * below * lung - np.float32(0.13) * bubble * (1 - lung)


def _heart(patient: Patient) -> Points:
    """Returns the heart, which leans on the lower sternum and on the front of the dome."""
    size, height = patient.heart_ratio / 0.42, patient.lung_height
    x, v = np.array((-0.335, 0.675)) + (0.10 * (size - 1), -0.04 * (size - 1))
    return ellipse(x, v * height, 0.41 * size**0.9, 0.145 * height * size**0.9, 0.55)


def _mediastinum(patient: Patient, canvas: Canvas, lung: Field) -> Field:
    """Paints heart, aorta and airway."""
    heart = canvas.mask([(_heart(patient), 1.0)], 0.025)
    # The great vessels leave the heart upwards; in front of them stays lung.
    trunk = patient.place(spline(_SIDE["trunk"], closed=True))
    root = canvas.mask([(trunk, 1.0)], 0.05)
    wide = 1.5 * patient.arch_radius + 0.06
    arch = spline(_SIDE["aorta"] + (0, patient.arch_level))
    aorta = canvas.mask([(ribbon(patient.place(arch), wide), 1.0)], 0.02)
    added = np.maximum(np.float32(0.27) * heart, np.float32(0.11) * root)
    added = np.maximum(added, np.float32(0.10) * aorta)
    added *= lung
    windpipe = patient.place(spline(_SIDE["windpipe"]))
    dark = canvas.mask([(ribbon(windpipe, 0.11), 1.0)], 0.014)
    bronchi = [ellipse(0.14, v * patient.lung_height, 0.042, 0.042) for v in (0.355, 0.425)]
    dark += canvas.mask([(bronchus, 1.0) for bronchus in bronchi], 0.008)
    return added - np.float32(0.12) * np.clip(dark, 0, 1)


def _vessels(patient: Patient, canvas: Canvas, lung: Field, rng: np.random.Generator) -> Field:
    """Paints the hila in projection, and vessels that spread from them."""
    hilum = patient.place(np.array([(0.06, 0.41)]))[0]
    blobs = [
        (ellipse(hilum[0] - 0.04, hilum[1], 0.13, 0.12), 0.7),
        (ellipse(hilum[0] + 0.10, hilum[1] + 0.10, 0.10, 0.14, 0.5), 0.8),
    ]
    shade = canvas.mask(blobs, 0.04)
    lines: list[tuple[Points, float, float]] = []
    for angle in np.linspace(0, 2 * np.pi, 22, endpoint=False) + rng.normal(0, 0.1, 22):
        length = rng.uniform(0.35, 0.75)
        bend = np.cumsum(rng.normal(0, 0.13, 6)) + angle
        step = np.stack([np.cos(bend), np.sin(bend)], axis=1) * length / 6
        path = hilum + np.concatenate([np.zeros((1, 2)), np.cumsum(step, axis=0)])
        lines.append((path[:4], 0.030, 0.7))
        lines.append((path[3:], 0.018, 0.6))
        fork = bend[3] + rng.choice((-1, 1)) * rng.uniform(0.35, 0.7)
        t = np.linspace(0, length * 0.5, 4)[:, None]
        lines.append((path[3] + t * np.array((np.cos(fork), np.sin(fork))), 0.015, 0.5))
    return (np.float32(0.10) * shade + np.float32(0.07) * canvas.strokes(lines, 0.006)) * lung


def _bones(patient: Patient, canvas: Canvas, lung: Field) -> Field:
    """Paints spine, sternum, ribs of both sides."""
    line = spline(_SIDE["spine"], samples=10)
    along = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
    bodies: list[tuple[Points, float]] = []
    plates: list[tuple[Points, float]] = []
    for start in np.arange(0.0, along[-1] - 0.1, 0.088):
        at = [
            np.array([np.interp(start + d, along, line[:, k]) for k in (0, 1)])
            for d in (0.006, 0.074)
        ]
        top, bottom = (patient.place(p[None])[0] for p in at)
        axis = (bottom - top) / np.hypot(*(bottom - top))
        across = np.array((-axis[1], axis[0])) * (0.088 + 0.02 * max(at[0][1], 0))
        corners = np.array([top - across, top + across, bottom + across, bottom - across])
        waist = (corners[[1, 0]] + corners[[2, 3]]) / 2 * 0.94 + corners.mean(axis=0) * 0.06
        body = np.array([corners[0], corners[1], waist[0], corners[2], corners[3], waist[1]])
        bodies.append((body, 0.55))
        for end in (top, bottom):
            plates.append((ribbon(np.array([end - across, end + across]), 0.022), 1.0))
        arch = top - across * 1.2 + axis * 0.05
        plates.append((ribbon(np.array([arch, arch - across * 1.1 + axis * 0.14]), 0.04), 0.3))
    column = canvas.mask(bodies + plates, 0.006)
    _, gy = canvas.grid(canvas.whole)
    # The spine darkens towards the diaphragm, as less muscle and more lung lie over it.
    v = gy / np.float32(patient.lung_height)
    fade = np.clip(np.float32(1.1) - np.float32(0.55) * v, 0.45, 1.1)
    front = patient.place(spline(_SIDE["sternum"]))
    manubrium, body = front[:7], front[7:]
    plate = canvas.mask([(ribbon(manubrium, 0.075), 1.0), (ribbon(body, 0.062), 0.9)], 0.007)
    ribs = []
    for k in range(9):
        v0 = -0.02 + 0.098 * k
        for offset in (0.0, 0.022):  # the side nearer the detector, and the other, larger one
            t = np.linspace(0, 1, 14)
            start = np.interp(v0 + offset, _BACK[::-1, 1], _BACK[::-1, 0]) + 0.05
            reach = start + 0.62 - 0.25 * (v0 < 0.1)
            x = start - reach * t
            y = v0 + offset + (0.05 + 0.25 * min(v0 + 0.3, 1)) * t**1.3
            x[:2] -= 0.02
            ribs.append((ribbon(patient.place(np.stack([x, y], axis=1)), 0.05), 0.55))
    hoops = canvas.mask(ribs, 0.008) * (np.float32(0.2) + np.float32(0.8) * lung)
    bones = np.float32(0.15) * column * fade + np.float32(0.13) * plate + np.float32(0.075) * hoops
    return bones * np.float32(patient.bone)


def _lesion(
    patient: Patient, canvas: Canvas, lung: Field, lesion: SideLesion, rng: np.random.Generator
) -> Field:
    """Paints the density that a frontal finding adds; heart and aorta show by their size."""
    label, top, bottom = lesion
    gx, gy = canvas.grid(canvas.whole)
    height = patient.lung_height
    depth = float(rng.uniform(-0.25, 0.45))
    if label in _UNSEEN:
        return np.zeros_like(lung)
    if label == "Pleural effusion":
        # Fluid fills the posterior angle first; its border climbs towards the back.
        highest = np.float32(min(top + 0.10 * height, 0.93 * height))
        away = np.clip((np.float32(0.70) - gx) / np.float32(1.1), 0, 1)
        level = highest + np.float32(0.24 * height) * np.sqrt(away)
        weight = np.clip((gy - level) / np.float32(0.04) + np.float32(0.5), 0, 1)
        return np.float32(0.36) * weight * lung
    y, ry = (top + bottom) / 2, (bottom - top) / 2
    rx = ry * float(rng.uniform(0.8, 1.1)) if label != "ILD" else 0.7
    if label == "Other lesion":
        depth = 0.15
    amount, soft = (0.24, 0.15) if label in ("Nodule/Mass", "Calcification") else (0.15, 0.3)
    r = np.hypot((gx - np.float32(depth)) / np.float32(rx), (gy - np.float32(y)) / np.float32(ry))
    weight = np.clip((1 - r) / np.float32(2 * soft) + np.float32(0.5), 0, 1)
    if label in ("ILD", "Infiltration", "Pulmonary fibrosis"):
        weight = weight * (1 + np.float32(0.22) * fractal_noise(rng, weight.shape, (12, 30), 0.8))
    return np.float32(amount) * weight * lung
