"""Regions derived from boxes and masks, decoded small and kept from one build to the next."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco
from scipy import ndimage

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct import region_cache, regions
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.construct.masks import check_lengths, run_ends, sample_runs, sampled
from cxrjax.papers.cxr_qba.construct.region_cache import RegionCache
from cxrjax.papers.cxr_qba.construct.regions import _over_3x3, clean_mask, localize
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import CUT, QualityLog
from tests.papers.cases import cases

DEFINITIONS = load_definitions()


def test_all_regions_of_imagenome_give_most_others(studies):
    image = studies[0].images[0]
    found = localize(image)
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
    found = localize(StudyImage("i", (1000, 1000), boxes=boxes))
    assert found["lungs"].boxes == ((500, 100, 900, 800), (100, 100, 450, 800))
    assert found["left pleural space"].boxes == ((500, 100, 900, 850),)  # around both
    assert found["retrocardiac region"].boxes == ((500, 400, 700, 850),)  # of heart and left chest
    assert found["left lateral lung"].boxes == ((700, 100, 900, 800),)  # outer half
    assert "right pleural space" not in found  # its angle is missing
    assert "pericardium" not in found  # never has a box


def localized(**given):
    return localize(StudyImage("i", (200, 200), **given))


def test_masks_are_cleaned_and_combined():
    left, right, tiny = (np.zeros((200, 200), bool) for _ in range(3))
    left[20:150, 110:180] = True
    left[60, 140] = False  # a hole
    left[5, 5] = True  # a speck
    right[20:150, 20:90] = True
    found = localized(masks={"left lung": left, "right lung": right})
    assert found["left lung"].boxes == ((110, 20, 180, 150),)
    assert found["left lung"].mask.sum() == 130 * 70
    assert found["lungs"].mask.sum() == 2 * 130 * 70
    tiny[10:12, 10:12] = True
    assert localized(masks={"trachea": tiny}) == {}


def test_masks_intersect_and_a_box_around_masks_has_none():
    heart, zone, lung, angle = (np.zeros((200, 200), bool) for _ in range(4))
    zone[100:150, 110:180] = lung[20:150, 110:180] = True
    heart[80:170, 70:140] = True
    heart[140:170, 125:] = False  # a corner, so that a box around is not the mask
    angle[140:160, 150:180] = True
    masks = {"left lower lung zone": zone, "cardiac silhouette": heart, "left lung": lung}
    masks |= {"left costophrenic angle": angle}
    found = localized(masks=masks)
    shared = found["left cardiophrenic angle"]
    np.testing.assert_array_equal(shared.mask, heart & zone)
    assert shared.boxes == ((110, 100, 140, 150),) and shared.mask.sum() < 30 * 50
    assert found["left pleural space"].boxes == ((110, 20, 180, 160),)
    assert found["left pleural space"].mask is None
    # An operand without a mask: of boxes then.
    del masks["cardiac silhouette"]
    boxes = {"cardiac silhouette": ((70.0, 80.0, 140.0, 170.0),)}
    mixed = localized(boxes=boxes, masks=masks)
    assert mixed["left cardiophrenic angle"].boxes == ((110, 100, 140, 150),)
    assert mixed["left cardiophrenic angle"].mask is None


def test_masks_are_cleaned_and_small_ones_in_pixels_of_the_image():
    whole = np.zeros((60, 60), bool)
    whole[10:50, 10:50] = True
    dirty = whole.copy()
    dirty[30, 30] = dirty[20:24, 20:24] = False  # holes, of which one is no single pixel
    dirty[30, 50:58] = True  # a thread
    dirty[2:6, 2:6] = True  # a speck, large enough to be left by opening
    np.testing.assert_array_equal(clean_mask(dirty), whole)
    assert not clean_mask(np.zeros((5, 5), bool)).any()
    mask = np.zeros((2544, 3056), bool)
    mask[600:1800, 1700:2600] = True
    small = decoded(encoded(mask))
    assert max(small.shape) <= 512
    image = StudyImage("i", mask.shape, "PA", masks={"left lung": small})
    ((x0, y0, x1, y1),) = localize(image)["left lung"].boxes
    np.testing.assert_allclose([x0, y0, x1, y1], [1700, 600, 2600, 1800], atol=7)


def test_boxes_are_cut_and_called_by_names_of_other_sources():
    boxes = {"right hilar structures": ((1, 2, 30, 40),), "no such thing": ((1, 2, 30, 40),)}
    found = localized(boxes=boxes)
    assert found["right hilum"].boxes == ((1, 2, 30, 40),)
    assert "no such thing" not in found
    quality = QualityLog()
    image = StudyImage("i", (100, 100), boxes={"trachea": ((-3, 10, 50, 100.5),)})
    assert localize(image, quality)["trachea"].boxes == ((0, 10, 50, 100),)
    assert not quality.entries and quality.warnings == {CUT: 1}
    # No box is used of an image on whose frame most do not lie.
    boxes = {"trachea": ((0.4, 0.1, 0.6, 0.3),), "left lung": ((0.5, 0.1, 0.9, 0.8),)}
    image = StudyImage("i", (100, 100), boxes={**boxes, "right lung": ((5, 5, 40, 90),)})
    quality = QualityLog()
    assert localize(image, quality) == {}
    assert [(e.reason, e.item) for e in quality.entries] == [("wrong_frame", "i")]


@cases("box, reason")
def test_unusable_boxes_are_set_aside(box, reason):
    quality = QualityLog()
    image = StudyImage("i", (100, 100), boxes={"trachea": (box,)})
    assert localize(image, quality) == {}
    assert quality.counts()[reason] == 1


def test_regions_that_cannot_be_used_are_counted():
    quality = QualityLog()
    speck = np.zeros((200, 200), bool)
    speck[3, 3] = True
    boxes = {"left lung": ((5, 5, 7, 90),), "halo": ((1, 1, 90, 90),)}
    image = StudyImage("i", (200, 200), boxes=boxes, masks={"trachea": speck})
    assert localize(image, quality) == {}
    assert quality.warnings == {
        "given regions too small to be pointed at": 2,
        "given regions that have no definition": 1,
    }


def test_duplicates_are_fused_by_sound_data():
    same = [(10, 10, 50, 50), (10, 10, 50, 50), (100, 10, 150, 50)]
    assert regions.fuse_duplicates(same) == ((10, 10, 50, 50), (100, 10, 150, 50))
    (fused,) = regions.fuse_duplicates([(0, 0, 100, 100), (0, 0, 100, 102)])
    assert fused == (0, 0, 100, 101)
    for name, region in DEFINITIONS.regions.items():
        assert name not in DEFINITIONS.region_ancestors(name)
        for other in (region.derive or {"of": ()})["of"]:
            assert other in DEFINITIONS.regions, (name, other)
        for other in (region.parent, region.group):
            assert other is None or other in DEFINITIONS.regions, (name, other)
    for finding in DEFINITIONS.findings.values():
        assert set(finding.regions) <= set(DEFINITIONS.regions), finding.name


@settings(max_examples=50)
@given(st.lists(st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(1, 23)] * 2), max_size=6))
def test_boxes_hold_their_mask(rectangles):
    mask = np.zeros((64, 64), bool)
    for x, y, width, height in rectangles:
        mask[y : y + height, x : x + width] = True
    cleaned = clean_mask(mask)
    again = np.zeros_like(mask)
    for x0, y0, x1, y1 in regions.mask_boxes(cleaned):
        again[int(y0) : int(y1), int(x0) : int(x1)] = True
    assert not (cleaned & ~again).any()
    # Opening takes away, closing and filling keep within the outer rectangle.
    if cleaned.any():
        rows, columns = np.nonzero(mask)
        inside = np.zeros_like(mask)
        inside[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
        assert not (cleaned & ~inside).any()


@cases("names, side, regions, unknown")
def test_sides_go_to_regions_without_one(names, side, regions, unknown):
    assert DEFINITIONS.resolve_regions(names, side) == (regions, unknown)


def decoded(lengths, *long_side):
    return sample_runs(check_lengths(lengths), *lengths["size"], *long_side)


def encoded(mask):
    lengths = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": lengths["size"], "counts": lengths["counts"].decode()}


def test_as_pycocotools_decodes(subtests):
    sizes = [(300, 200), (1111, 1300), (37, 5), (1, 1)]
    for size, share in itertools.product(sizes, [0, 0.001, 0.5, 1]):
        mask = np.random.default_rng(len(str((size, share)))).random(size) < share
        mask[size[0] // 3 : size[0] // 2, size[1] // 4 : size[1] // 2] = True
        packed = encoded(mask)
        whole = coco.decode(packed).astype(bool)
        for long_side in (1, 50, 512, 4000):
            step = -(-max(size) // long_side)
            kept = np.ix_(*(sampled(side, step) for side in size))
            with subtests.test(size=size, share=share, long_side=long_side):
                np.testing.assert_array_equal(decoded(packed, long_side), whole[kept])


@pytest.mark.parametrize("counts", ["", "zz!", "P", "oooooooooo0", "é", "01O"])
def test_counts_that_are_none(counts):
    with pytest.raises(ValueError):
        run_ends(counts)
        check_lengths({"size": [10**6, 10**6], "counts": counts})


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_opening_and_closing_as_scipy(share):
    block = np.random.default_rng(3).random((40, 50)) < share
    square = np.ones((3, 3), bool)
    eroded, dilated = (_over_3x3(block, join) for join in (np.logical_and, np.logical_or))
    np.testing.assert_array_equal(eroded, ndimage.binary_erosion(block, square))
    np.testing.assert_array_equal(dilated, ndimage.binary_dilation(block, square))


MASK = np.zeros((100, 100), bool)
MASK[20:80, 50:90] = True
BOXES = {"trachea": ((40.0, 5.0, 60.0, 40.0),), "carina": ((9.0, 9.0, 9.0, 9.0),)}
IMAGE = StudyImage("i", (200, 200), "PA", boxes=BOXES, masks={"left lung": MASK}, regions_key="k1")


def test_the_second_time_nothing_is_computed_unless_the_file_is_no_cache(tmp_path, monkeypatch):
    first, second = QualityLog(), QualityLog()
    with RegionCache(tmp_path / "a" / "regions.sqlite") as cache:
        found = cache.localize(IMAGE, first)
    assert found["left lung"].boxes == ((100, 40, 180, 160),)
    assert found["left lung"].has_mask and not found["trachea"].has_mask
    monkeypatch.setattr(region_cache, "localize", None)
    with RegionCache(tmp_path / "a" / "regions.sqlite") as cache:
        assert cache.localize(IMAGE, second) == found
        changed = dataclasses.replace(IMAGE, regions_key="k2")
        with pytest.raises(TypeError):
            cache.localize(changed, second)
    assert first.entries and first.to_json() == second.to_json()
    (tmp_path / "regions.sqlite").write_text("no database, and long enough to be looked at")
    with pytest.raises(UserError, match="cannot be used as a cache"):
        RegionCache(tmp_path / "regions.sqlite")


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8bnothing", None, "text"])
def test_a_damaged_row_is_named(tmp_path, damage):
    path = tmp_path / "regions.sqlite"
    with RegionCache(path) as cache:
        cache.localize(IMAGE, QualityLog())
        cache._file.execute("update regions set of = ?", (damage,))
        with pytest.raises(UserError, match=r"regions\.sqlite: .* delete it"):
            cache.localize(IMAGE, QualityLog())
