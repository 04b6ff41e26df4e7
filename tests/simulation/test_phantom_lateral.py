"""The lateral view: the person's own, with the signs that a reader looks for."""

import dataclasses

import numpy as np

from cxrjax.simulation import render
from cxrjax.simulation.lateral import lateral_size, render_lateral

SIDE = 256


def shot(index: int, lesions=(), **changes) -> np.ndarray:
    patient, _ = render.plan(4, index, normal=True)
    plain = {"tilt": 0.0, "shift": (0.0, 0.0), "collimation": (-1.0, -1.0)} | changes
    return render_lateral(dataclasses.replace(patient, **plain), list(lesions), 4, index, SIDE)


def test_same_arguments_same_bytes_with_heart_and_aorta_too():
    first, again = shot(0), shot(0)
    assert first.shape == lateral_size(SIDE) and first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert not np.array_equal(first, shot(1))
    seen = ("Cardiomegaly", 0.6, 1.5)
    assert np.array_equal(shot(0, [seen]), shot(0))


def test_spine_is_behind_and_the_heart_in_front():
    for index in range(5):
        image = shot(index).astype(float)
        height, width = image.shape
        small, large = shot(index, heart_ratio=0.38), shot(index, heart_ratio=0.66)
        change = np.abs(small.astype(float) - large)
        columns = (change.sum(axis=0) * np.arange(width)).sum() / change.sum()
        rows = (change.sum(axis=1) * np.arange(height)).sum() / change.sum()
        assert columns < 0.5 * width and rows > 0.4 * height
        # The neck's spine stands behind its windpipe.
        neck = image[: height // 20].mean(axis=0)
        bone, air = neck.argmax(), neck[int(0.4 * width) : int(0.6 * width)].argmin()
        assert bone > air + 0.4 * width


def test_findings_and_effusions_show_at_their_height():
    patient, _ = render.plan(4, 2, normal=True)
    top, bottom = 0.45 * patient.lung_height, 0.58 * patient.lung_height
    nodule = ("Nodule/Mass", top, bottom)
    change = np.abs(shot(2, [nodule]).astype(float) - shot(2)).sum(axis=1)
    clear = np.flatnonzero(change > 0.3 * change.max())
    scale = patient.zoom * min(0.50 * lateral_size(SIDE)[1], 0.78 * SIDE / patient.lung_height)
    start = (SIDE - patient.lung_height * scale) / 2
    assert abs(clear[0] - (start + top * scale)) < 8
    assert abs(clear[-1] - (start + bottom * scale)) < 8
    patient, _ = render.plan(4, 3, normal=True)
    height = patient.lung_height
    fluid = ("Pleural effusion", 0.75 * height, height)
    change = shot(3, [fluid]).astype(float) - shot(3)
    rows, columns = np.nonzero(np.abs(change) > 25)
    assert len(rows) > 50
    assert rows.min() > 0.4 * SIDE and np.median(columns) > 0.5 * change.shape[1]
    assert change[rows, columns].mean() > 0  # brighter
