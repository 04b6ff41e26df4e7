"""The 29 regions lie where the picture shows them."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.simulation import regions, render
from cxrjax.simulation.regions import REGIONS, ZONES

SIDE = 320


@functools.cache
def drawn(index: int):
    patient, presences = render.plan(11, index, normal=True)
    size = render.image_size(patient, SIDE)
    painting = render.paint(patient, presences, 11, index, *size)
    shapes = regions.region_shapes(patient)
    masks = {name: regions.hard_mask(painting.canvas, shapes[name]) for name in shapes}
    return painting, size, regions.region_boxes(patient, painting.canvas), masks


@pytest.mark.parametrize("index", range(4))
def test_boxes_bound_the_masks_on_their_sides_and_zones_divide_the_lung(index):
    _, (height, width), boxes, masks = drawn(index)
    assert tuple(masks) == REGIONS and len(set(REGIONS)) == 29
    assert len(boxes) >= 27
    for name, box in boxes.items():
        rows, columns = np.nonzero(masks[name])
        found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        if name == "abdomen":  # the lungs that dip into it are taken out of the mask
            found[1] = box[1] * height
        # A tip thinner than a pixel is in the outline and not in the mask.
        np.testing.assert_allclose(box * [width, height, width, height], found, atol=4)
    _, _, boxes, _ = drawn(index)
    for name in REGIONS:
        if name.startswith("right ") and name != "right atrium":
            other = name.replace("right", "left", 1)
            if name in boxes and other in boxes:
                # The patient's right is on the picture's left.
                assert boxes[name][[0, 2]].mean() < boxes[other][[0, 2]].mean()
    for side in ("right", "left"):
        tops = [boxes[f"{side} {zone}"][1] for zone in ZONES]
        assert tops == sorted(tops)
    assert boxes["carina"][3] > boxes["trachea"][1]
    assert boxes["aortic arch"][3] < boxes["cardiac silhouette"][3]
    *_, masks = drawn(index)
    for side in ("right", "left"):
        together = sum(masks[f"{side} {zone}"].astype(int) for zone in ZONES)
        # Pixels on a cut may be in both parts or in neither.
        assert (together != masks[f"{side} lung"]).mean() < 0.004


def test_regions_show_in_the_picture():
    for index in range(4):
        painting, size, _, masks = drawn(index)
        image = render.develop(painting.patient, painting.density(), *size, 11, index)
        free = (masks["right lung"] | masks["left lung"]) & ~masks["mediastinum"]
        dark = image[free].mean()
        for name in ("cardiac silhouette", "abdomen", "aortic arch", "spine"):
            assert image[masks[name]].mean() > dark + 30, name
        inner = masks["trachea"] & masks["upper mediastinum"]
        beside = masks["upper mediastinum"] & ~masks["trachea"] & ~masks["spine"]
        assert image[inner].mean() < image[beside].mean() + 30


def _area(polygon: np.ndarray) -> float:
    if len(polygon) < 3:
        return 0.0
    x, y = polygon.T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


@given(
    st.lists(st.floats(0, 2 * np.pi), min_size=3, max_size=12),
    st.floats(-1.2, 1.2),
    st.sampled_from((0, 1)),
)
def test_cut_divides_the_area(angles, bound, axis):
    polygon = np.array([(np.cos(a), np.sin(a)) for a in sorted(angles)])  # convex
    low = regions.cut(polygon, axis, high=bound)
    high = regions.cut(polygon, axis, low=bound)
    assert _area(low) + _area(high) == pytest.approx(_area(polygon), abs=1e-9)
    assert len(low) == 0 or low[:, axis].max() <= bound + 1e-9
    assert len(high) == 0 or high[:, axis].min() >= bound - 1e-9
