"""A box bounds what its lesion changed in the picture, no more and no less."""

import dataclasses

import numpy as np
import pytest

from cxrjax.simulation import anatomy, findings
from cxrjax.simulation.phantom_signs import lesion_box
from cxrjax.simulation.render import _generator, develop, image_size, paint

# Field of a patient, and two sizes of the organ.
ORGANS = {
    "Cardiomegaly": ("heart_ratio", 0.02, 0.6),
    "Aortic enlargement": ("arch_radius", 0.005, 0.18),
}
SIDE = 224


def painted(label: str, index: int):
    """A picture with two lesions of one class (where it can have two) and nothing else."""
    patient = anatomy.draw_patient(_generator(3, index, "patient"))
    count = min(2, findings.CLASSES[label]["most"])
    presences = [findings.Presence(label, 2, (1.0,) * count)]
    size = image_size(patient, SIDE)
    return paint(patient, presences, 3, index, *size), size


def difference(one, other, size, index: int) -> np.ndarray:
    """How much each grey value changes between two (painting, density), 0 to 255."""
    pictures = (develop(p.patient, d, *size, 3, index).astype("f4") for p, d in (one, other))
    return np.abs(np.subtract(*pictures))


def bounds(sign, size):
    return lesion_box(sign.weight, sign.window, *size)


@pytest.mark.parametrize("label", [name for name in findings.CLASSES if name not in ORGANS])
def test_box_bounds_the_change(label):
    for index in range(6):
        painting, size = painted(label, index)
        assert painting.signs
        for k, sign in enumerate(painting.signs):
            assert sign.label == label
            box = bounds(sign, size)
            assert box is not None
            without = painting, painting.density(without=k)
            changed = difference((painting, painting.density()), without, size, index)
            assert changed.max() > 20, "a sign nobody can see"
            x0, y0, x1, y1 = np.round(box * [size[1], size[0], size[1], size[0]]).astype(int)
            inside = changed[max(y0 - 2, 0) : y1 + 2, max(x0 - 2, 0) : x1 + 2]
            assert inside.sum() > 0.93 * changed.sum(), (index, k)
            # Each side of the box is touched: within an eighth of the box (and three pixels at
            # least) of it the picture has changed clearly.
            w, h = max(3, (x1 - x0) // 8), max(3, (y1 - y0) // 8)
            clear = changed[y0:y1, x0:x1] > 0.12 * changed.max()
            rims = clear[:, :w], clear[:, -w:], clear[:h], clear[-h:]
            assert all(rim.any() for rim in rims), (index, k, [bool(rim.any()) for rim in rims])


@pytest.mark.parametrize("label", ORGANS)
def test_box_of_an_enlarged_organ_bounds_the_organ(label):
    field, *ends = ORGANS[label]
    for index in range(5):
        patient = anatomy.draw_patient(_generator(3, index, "patient"))
        size = image_size(patient, SIDE)
        presence = findings.Presence(label, 3, (1.0,))
        small, large = (dataclasses.replace(patient, **{field: end}) for end in ends)
        painting = paint(large, [presence], 3, index, *size)
        box = bounds(painting.signs[0], size)
        bare = paint(small, [], 3, index, *size)
        pairs = ((p, p.density()) for p in (painting, bare))
        changed = difference(*pairs, size, index)
        clear = changed > 0.3 * np.percentile(changed, 99.5)
        columns, rows = np.flatnonzero(clear.any(axis=0)), np.flatnonzero(clear.any(axis=1))
        x0, y0, x1, y1 = box * [size[1], size[0], size[1], size[0]]
        # The borders that stand against the lung.
        assert abs(columns[-1] + 1 - x1) <= 4
        assert abs(rows[0] - y0) <= 0.12 * (y1 - y0) + 3
        if label == "Cardiomegaly":
            assert abs(columns[0] - x0) <= 4
        inside = changed[int(y0) - 2 : int(y1) + 3, int(x0) - 2 : int(x1) + 3].sum()
        assert inside > 0.9 * changed.sum()


def test_bounds_are_pixel_edges_if_there_are_any():
    weight = np.zeros((4, 5), np.float32)
    weight[1, 2] = 1
    box = lesion_box(weight, (slice(2, 6), slice(3, 8)), 10, 20)
    np.testing.assert_allclose(box, [5 / 20, 3 / 10, 6 / 20, 4 / 10], rtol=1e-6)
    assert lesion_box(np.zeros((4, 5), np.float32), (slice(2, 6), slice(3, 8)), 10, 10) is None
