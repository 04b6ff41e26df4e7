"""VinDr-CXR's official test images, from which the paper's 300 test images are thought to come.

Their labels are the consensus of five readers. They are a split of their own, never part of the
validation split, which comes from the training part with its three readers an image.
"""

import random
from collections.abc import Sequence

from cxrjax.datasets.quality import QualityLog
from cxrjax.datasets.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.box_table import read_box_table
from cxrjax.datasets.vindr_cxr_vqa.image_labels import check_image_labels
from cxrjax.datasets.vindr_cxr_vqa.source import OfficialTest

SPLIT = "test300"
CONSENSUS = "consensus"
_SAMPLE = 300


def read_official_test(test: OfficialTest, quality: QualityLog) -> list[ImageAnnotation]:
    """All official test images, normal ones too, with one reader: the consensus.

    Raises:
        UserError: a table cannot be read, or lacks a column.
    """
    images = read_box_table(test.table, quality, reader=CONSENSUS)
    if test.labels:
        check_image_labels(test.labels, images, quality, reader=CONSENSUS)
    return images


def sample_test300(
    images: Sequence[ImageAnnotation], seed: int, count: int = _SAMPLE
) -> list[ImageAnnotation]:
    """A seeded sample, the same whatever the order of `images`; all of them where they are fewer.

    Args:
        images: what may be drawn; with findings alone where only they are asked about.
        seed: decides the sample.
        count: how many; section 2.3 of the paper has 300.
    """
    by_id = {image.image_id: image for image in images}
    names = sorted(by_id)
    chosen = random.Random(f"{seed}/{SPLIT}").sample(names, min(count, len(names)))
    return [by_id[name] for name in sorted(chosen)]
