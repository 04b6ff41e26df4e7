"""Choosing test images so that diseases have the shares of Figure 7 (sections 3.2 and 7.4).

The paper's test set was cleaned by hand from some 2,331 images to 300, with few healthy ones. Its
shares are of 529 labels (each is a whole number of 529ths), so an image may have several.
"""

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cxrjax.papers.gemex.construct.pool import pool_of, words_of
from cxrjax.papers.sources.report import RefinedSentence

HEALTHY = "Healthy"
TEST_IMAGES = 300
# Figure 7, percent of labels.
TARGET_MIX = {
    "Atelectasis": 18.71,
    "Cardiomegaly": 16.82,
    "Pleural Effusion": 16.82,
    HEALTHY: 12.48,
    "Edema": 7.94,
    "Device": 6.43,
    "Opacification": 6.24,
    "Pneumonia": 3.78,
    "Hyperinflation": 2.08,
    "Low Volume": 2.08,
    "Consolidation": 1.89,
    "Spine Issue": 1.7,
    "Nodule": 1.51,
    "Pneumothorax": 0.95,
    "Mass": 0.57,
}


def classes_of(sentences: Iterable[RefinedSentence]) -> list[str]:
    """Classes of Figure 7 that sentences state for certain; `Healthy` where nothing is found.

    An image with findings of other classes alone, or with doubtful ones, has none.
    """
    pool = pool_of(sentences)
    found = {words_of(name).class_name for name in pool.present}
    named = [name for name in TARGET_MIX if name in found]
    return named or ([HEALTHY] if not pool.present and not pool.doubtful else [])


def curate(
    labels: Mapping[str, Sequence[str]],
    seed: int,
    count: int = TEST_IMAGES,
    target: Mapping[str, float] = TARGET_MIX,
) -> list[str]:
    """Image ids whose labels come nearest to a mix, one taken at a time.

    Args:
        labels: image id -> its classes; images without any are passed over.
        seed: decides among images that serve equally well.
        count: how many to choose; all, where there are no more.
        target: class -> share of all labels, any unit.

    Returns:
        The ids in their own order.
    """
    names = list(target)
    share = np.array([target[name] for name in names], np.float64)
    share /= share.sum()
    candidates = sorted(image_id for image_id, found in labels.items() if found)
    if len(candidates) <= count:
        return candidates
    random.Random(f"{seed}/curation").shuffle(candidates)
    rows = np.array([[name in labels[image_id] for name in names] for image_id in candidates], int)
    left = np.ones(len(candidates), bool)
    total = np.zeros(len(names), int)
    for _ in range(count):
        sums = total + rows
        # Squared distance between shares, in units of each class's own share.
        distance = ((sums / sums.sum(1, keepdims=True) - share) ** 2 / share).sum(1)
        best = int(np.argmin(np.where(left, distance, np.inf)))
        left[best] = False
        total += rows[best]
    return sorted(image_id for k, image_id in enumerate(candidates) if not left[k])
