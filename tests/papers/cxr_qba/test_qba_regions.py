"""Regions derived from boxes and masks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.construct.regions import (
    clean_mask,
    fuse_duplicates,
    localize,
    mask_boxes,
)
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import CUT, QualityLog

DEFINITIONS = load_definitions()


def test_all_regions_of_imagenome_give_most_others(studies):
    image = studies[0].images[0]
    found = localize(image, DEFINITIONS)
    localized = [name for name, region in DEFINITIONS.regions.items() if region.localized]
    assert len(image.boxes) == 29
    # Of arms, shoulder blades and breasts it has no boxes: those need masks.
    by_masks = ("humer", "scapula", "breast")
    assert {name for name in localized if not any(part in name for part in by_masks)} <= {*found}
    for region in found.values():
        boxes = np.array(region.boxes)
        assert (boxes[:, :2] < boxes[:, 2:]).all() and (boxes >= 0).all()
        assert (boxes <= [1000, 1200, 1000, 1200]).all()


def test_operations_on_boxes():
    boxes = {
        "left lung": ((500, 100, 900, 800),),
        "right lung": ((100, 100, 450, 800),),
        "cardiac silhouette": ((350, 400, 700, 850),),
        "left costophrenic angle": ((800, 750, 900, 850),),
    }
    found = localize(StudyImage("i", (1000, 1000), boxes=boxes), DEFINITIONS)
    assert found["lungs"].boxes == ((500, 100, 900, 800), (100, 100, 450, 800))
    assert found["left pleural space"].boxes == ((500, 100, 900, 850),)  # around both
    assert found["retrocardiac region"].boxes == ((500, 400, 700, 850),)  # of heart and left chest
    assert found["left lateral lung"].boxes == ((700, 100, 900, 800),)  # outer half
    assert "right pleural space" not in found  # its angle is missing
    assert "pericardium" not in found  # never has a box


def test_masks_are_cleaned_and_combined():
    left, right = np.zeros((200, 200), bool), np.zeros((200, 200), bool)
    left[20:150, 110:180] = True
    left[60, 140] = False  # a hole
    left[5, 5] = True  # a speck
    right[20:150, 20:90] = True
    found = localize(
        StudyImage("i", (200, 200), masks={"left lung": left, "right lung": right}), DEFINITIONS
    )
    assert found["left lung"].boxes == ((110, 20, 180, 150),)
    assert found["left lung"].mask.sum() == 130 * 70
    assert found["lungs"].mask.sum() == 2 * 130 * 70
    tiny = np.zeros((200, 200), bool)
    tiny[10:12, 10:12] = True
    assert localize(StudyImage("i", (200, 200), masks={"trachea": tiny}), DEFINITIONS) == {}


def test_masks_intersect_and_a_box_around_masks_has_none():
    heart, zone, lung, angle = (np.zeros((200, 200), bool) for _ in range(4))
    zone[100:150, 110:180] = lung[20:150, 110:180] = True
    heart[80:170, 70:140] = True
    heart[140:170, 125:] = False  # a corner, so that a box around is not the mask
    angle[140:160, 150:180] = True
    masks = {"left lower lung zone": zone, "cardiac silhouette": heart, "left lung": lung}
    masks |= {"left costophrenic angle": angle}
    found = localize(StudyImage("i", (200, 200), masks=masks), DEFINITIONS)
    shared = found["left cardiophrenic angle"]
    np.testing.assert_array_equal(shared.mask, heart & zone)
    assert shared.boxes == ((110, 100, 140, 150),) and shared.mask.sum() < 30 * 50
    assert found["left pleural space"].boxes == ((110, 20, 180, 160),)
    assert found["left pleural space"].mask is None
    # An operand without a mask: of boxes then.
    del masks["cardiac silhouette"]
    boxes = {"cardiac silhouette": ((70.0, 80.0, 140.0, 170.0),)}
    mixed = localize(StudyImage("i", (200, 200), boxes=boxes, masks=masks), DEFINITIONS)
    assert mixed["left cardiophrenic angle"].boxes == ((110, 100, 140, 150),)
    assert mixed["left cardiophrenic angle"].mask is None


def test_cleaning_a_mask_opens_closes_fills_and_takes_specks_away():
    whole = np.zeros((60, 60), bool)
    whole[10:50, 10:50] = True
    dirty = whole.copy()
    dirty[30, 30] = dirty[20:24, 20:24] = False  # holes, of which one is no single pixel
    dirty[30, 50:58] = True  # a thread
    dirty[2:6, 2:6] = True  # a speck, large enough to be left by opening
    np.testing.assert_array_equal(clean_mask(dirty), whole)
    assert not clean_mask(np.zeros((5, 5), bool)).any()


def test_names_of_other_sources():
    boxes = {"right hilar structures": ((1, 2, 30, 40),), "no such thing": ((1, 2, 30, 40),)}
    found = localize(StudyImage("i", (100, 100), boxes=boxes), DEFINITIONS)
    assert found["right hilum"].boxes == ((1, 2, 30, 40),)
    assert "no such thing" not in found


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((10, 10, 5, 50), "bad_box"),
        ((10, 110, 50, 500), "box_outside_image"),
        ((0.1, 0.1, 0.5, 0.5), "wrong_frame"),
    ],
)
def test_unusable_boxes_are_set_aside(box, reason):
    quality = QualityLog()
    image = StudyImage("i", (100, 100), boxes={"trachea": (box,)})
    assert localize(image, DEFINITIONS, quality) == {}
    assert quality.counts()[reason] == 1


def test_a_box_that_reaches_beyond_the_image_is_cut():
    quality = QualityLog()
    image = StudyImage("i", (100, 100), boxes={"trachea": ((-3, 10, 50, 100.5),)})
    assert localize(image, DEFINITIONS, quality)["trachea"].boxes == ((0, 10, 50, 100),)
    assert not quality.entries and quality.warnings == {CUT: 1}


def test_no_box_is_used_of_an_image_on_whose_frame_most_do_not_lie():
    boxes = {"trachea": ((0.4, 0.1, 0.6, 0.3),), "left lung": ((0.5, 0.1, 0.9, 0.8),)}
    image = StudyImage("i", (100, 100), boxes={**boxes, "right lung": ((5, 5, 40, 90),)})
    quality = QualityLog()
    assert localize(image, DEFINITIONS, quality) == {}
    assert [(e.reason, e.item) for e in quality.entries] == [("wrong_frame", "i")]


def test_regions_that_cannot_be_used_are_counted():
    quality = QualityLog()
    speck = np.zeros((200, 200), bool)
    speck[3, 3] = True
    boxes = {"left lung": ((5, 5, 7, 90),), "halo": ((1, 1, 90, 90),)}
    image = StudyImage("i", (200, 200), boxes=boxes, masks={"trachea": speck})
    assert localize(image, DEFINITIONS, quality) == {}
    assert quality.warnings == {
        "given regions too small to be pointed at": 2,
        "given regions that have no definition": 1,
    }


def test_duplicates_are_fused():
    same = [(10, 10, 50, 50), (10, 10, 50, 50), (100, 10, 150, 50)]
    assert fuse_duplicates(same) == ((10, 10, 50, 50), (100, 10, 150, 50))
    (fused,) = fuse_duplicates([(0, 0, 100, 100), (0, 0, 100, 102)])
    assert fused == (0, 0, 100, 101)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(1, 23)] * 2),
        max_size=6,
    )
)
def test_boxes_hold_their_mask(rectangles):
    mask = np.zeros((64, 64), bool)
    for x, y, width, height in rectangles:
        mask[y : y + height, x : x + width] = True
    cleaned = clean_mask(mask)
    again = np.zeros_like(mask)
    for x0, y0, x1, y1 in mask_boxes(cleaned):
        again[int(y0) : int(y1), int(x0) : int(x1)] = True
    assert not (cleaned & ~again).any()
    # Opening takes away, closing and filling keep within the outer rectangle.
    if cleaned.any():
        rows, columns = np.nonzero(mask)
        inside = np.zeros_like(mask)
        inside[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
        assert not (cleaned & ~inside).any()


def test_the_data_file_is_sound():
    for name, region in DEFINITIONS.regions.items():
        assert name not in DEFINITIONS.region_ancestors(name)
        for other in (region.derive or {"of": ()})["of"]:
            assert other in DEFINITIONS.regions, (name, other)
        for other in (region.parent, region.group):
            assert other is None or other in DEFINITIONS.regions, (name, other)
    for finding in DEFINITIONS.findings.values():
        assert set(finding.regions) <= set(DEFINITIONS.regions), finding.name


def test_sides_go_to_regions_without_one():
    assert DEFINITIONS.resolve_regions(["lower lobe"], "left") == (["left lower lobe"], [])
    assert DEFINITIONS.resolve_regions(["lung bases"], "both")[0] == [
        "left lung base",
        "right lung base",
    ]
    # The more special one says it all.
    assert DEFINITIONS.resolve_regions(["lungs", "lingula"], "") == (["lingula"], [])
    assert DEFINITIONS.resolve_regions(["spleenic notch"], "") == ([], ["spleenic notch"])
