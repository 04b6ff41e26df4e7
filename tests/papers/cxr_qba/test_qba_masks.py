"""Masks at the size that boxes need, against pycocotools' own decoding."""

import numpy as np
import pytest
from pycocotools import mask as coco
from scipy import ndimage

from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.construct.masks import decode_small, run_ends, sampled
from cxrjax.papers.cxr_qba.construct.regions import _over_3x3, localize
from cxrjax.radiology_text.definitions import load_definitions


def encoded(mask):
    lengths = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": lengths["size"], "counts": lengths["counts"].decode()}


@pytest.mark.parametrize("size", [(300, 200), (1111, 1300), (37, 5), (1, 1)])
@pytest.mark.parametrize("share", [0, 0.001, 0.5, 1])
@pytest.mark.parametrize("long_side", [1, 50, 512, 4000])
def test_as_pycocotools_decodes(size, share, long_side):
    rng = np.random.default_rng(len(str((size, share))))
    mask = rng.random(size) < share
    mask[size[0] // 3 : size[0] // 2, size[1] // 4 : size[1] // 2] = True
    step = -(-max(size) // long_side)
    rows, columns = (sampled(side, step) for side in size)
    expected = coco.decode(encoded(mask))[np.ix_(rows, columns)].astype(bool)
    np.testing.assert_array_equal(decode_small(encoded(mask), long_side), expected)


@pytest.mark.parametrize("counts", ["", "zz!", "P", "oooooooooo0", "é", "01O"])
def test_counts_that_are_none(counts):
    with pytest.raises(ValueError):
        run_ends(counts)
        decode_small({"size": [10**6, 10**6], "counts": counts})


def test_boxes_of_small_masks_are_in_pixels_of_the_image():
    mask = np.zeros((2544, 3056), bool)
    mask[600:1800, 1700:2600] = True
    small = decode_small(encoded(mask))
    assert max(small.shape) <= 512
    image = StudyImage("i", mask.shape, "PA", masks={"left lung": small})
    ((x0, y0, x1, y1),) = localize(image, load_definitions())["left lung"].boxes
    np.testing.assert_allclose([x0, y0, x1, y1], [1700, 600, 2600, 1800], atol=7)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_opening_and_closing_as_scipy(share):
    block = np.random.default_rng(3).random((40, 50)) < share
    square = np.ones((3, 3), bool)
    eroded, dilated = (_over_3x3(block, join) for join in (np.logical_and, np.logical_or))
    np.testing.assert_array_equal(eroded, ndimage.binary_erosion(block, square))
    np.testing.assert_array_equal(dilated, ndimage.binary_dilation(block, square))
