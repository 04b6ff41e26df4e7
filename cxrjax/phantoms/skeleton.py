"""Bones as painted shapes: ribs, collar bones, shoulders, spine.

Shapes that do not depend on the patient are computed once; only their place varies.
"""

import numpy as np

from cxrjax.phantoms.anatomy import LATERAL_BORDER, LEFT, RIGHT, Patient
from cxrjax.phantoms.canvas import Points, ellipse, ribbon, spline

# How far each rib falls from spine to front (v), and the angles of its back and front part.
_RIB_FALL = np.array([0.20, 0.25, 0.285, 0.31, 0.33, 0.345, 0.36, 0.375, 0.39, 0.40])
_RIB_BACK = np.linspace(0.06, 1.62, 13)
_RIB_FRONT = np.linspace(1.52, 2.40, 8)

_CLAVICLE = spline(
    np.array([(0.09, 0.125), (0.22, 0.105), (0.42, 0.06), (0.68, 0.0), (1.08, -0.045)]), samples=4
)
_CLAVICLE_WIDTH = np.interp(
    np.linspace(0, 1, len(_CLAVICLE)), [0, 0.15, 0.5, 1], [0.1, 0.07, 0.055, 0.075]
)
# Shoulder blade, its spine, shaft and head of the upper arm, each with its density.
_BLADE = spline(
    np.array([(0.80, 0.01), (1.1, -0.02), (1.17, 0.10), (1.08, 0.27), (0.98, 0.42), (0.88, 0.28)]),
    closed=True,
    samples=4,
)
_SHOULDER = (
    (_BLADE, 0.32),
    (ribbon(np.array([(0.82, 0.09), (1.0, 0.03), (1.2, -0.06)]), 0.03), 0.6),
    (ribbon(np.array([(1.34, 0.03), (1.46, 0.27), (1.56, 0.65)]), 0.15), 0.55),
    (ellipse(1.30, 0.0, 0.15, 0.085), 0.65),
)
# End plate of a vertebra (x over half its width, v from its top) and its spinous process.
_PLATE = np.array([(-1, 0.004), (1, 0.004), (1, 0.014), (-1, 0.014)])
_PROCESS = np.array([(0, 0.03), (0.018, 0.05), (0, 0.07), (-0.018, 0.05)])
_VERTEBRA_TOPS = np.arange(-0.42, 1.7, 0.078)[:, None]


def _bones(
    lines: np.ndarray, width: np.ndarray, rim: float, inside: float
) -> list[tuple[Points, float]]:
    """Bands with dense rims (the cortex) and a paler inside (the marrow), rims first."""
    rims, insides = ribbon(lines, width), ribbon(lines, np.maximum(width - 0.028, 0.005))
    return [*((band, rim) for band in rims), *((band, inside) for band in insides)]


def ribs(patient: Patient) -> tuple[list[tuple[Points, float]], list[tuple[Points, float]]]:
    """Posterior and anterior parts of the ribs as bands.

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
    """The two collar bones."""
    lines = []
    for side in (RIGHT, LEFT):
        level = patient.clavicle_level + side * patient.turn * 0.03
        line = (_CLAVICLE + np.array((0, level))) * (side, 1) + (patient.midline, 0)
        lines.append(patient.place(line))
    return _bones(np.stack(lines), _CLAVICLE_WIDTH, 1.0, 0.75)


def shoulder_bones(patient: Patient) -> list[tuple[Points, float]]:
    """Shoulder blades, heads and shafts of the upper arms."""
    return [
        (patient.place(shape) * (side, 1), value)
        for side in (RIGHT, LEFT)
        for shape, value in _SHOULDER
    ]


def vertebrae(patient: Patient) -> list[tuple[Points, float]]:
    """The column of vertebral bodies from neck to abdomen, with end plates and processes."""
    tops = _VERTEBRA_TOPS
    half = 0.085 + 0.02 * np.maximum(tops, 0)
    x = half * _PLATE[:, 0] + patient.midline * 0.6
    plates = patient.place(np.stack([x, tops + _PLATE[:, 1]], axis=-1))
    x = 0 * tops + _PROCESS[:, 0] + patient.midline * 0.9
    processes = patient.place(np.stack([x, tops + _PROCESS[:, 1]], axis=-1))
    column = np.concatenate([plates[:, 0], plates[::-1, 1]])
    return [
        (column, 0.35),
        *((plate, 0.55) for plate in plates),
        *((process, 0.55) for process in processes),
    ]
