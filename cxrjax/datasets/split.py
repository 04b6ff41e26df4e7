"""Dividing images or patients into training and validation."""

import collections
import random
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

VALIDATION_PERCENT = 15  # VinDr-CXR-VQA, Table 3: 659 of 4,394 images


def stratified_validation(label_sets: Mapping[str, Collection[str]], seed: int) -> set[str]:
    """Image ids for validation, with every label set and every label at about its own share.

    Images are put in an order in which like label sets stand together, the rarest label deciding
    first, and every image that completes another 15 % is taken. Within a label set the seed
    shuffles. Rare labels so come out within one image of their share, common ones close to it.

    Args:
        label_sets: image id -> its labels.
        seed: decides within label sets, and where counting starts.

    Returns:
        15 % of the ids, rounded.
    """
    frequency = collections.Counter(label for labels in label_sets.values() for label in labels)

    def rarest_first(image_id: str) -> tuple[list[tuple[int, str]], float]:
        labels = sorted((frequency[label], label) for label in label_sets[image_id])
        return labels, random.Random(f"{seed}/{image_id}/split").random()

    ordered = sorted(sorted(label_sets), key=rarest_first)
    return set(_every_share(ordered, random.Random(f"{seed}/split").random()))


def validation_groups(groups: Collection[Key], seed: int) -> set[Key]:
    """Groups (patients) for validation: 15 % of them, rounded, at least one where there are two."""
    ordered = sorted(set(groups), key=str)
    random.Random(f"{seed}/groups").shuffle(ordered)
    wanted = round(len(ordered) * VALIDATION_PERCENT / 100)
    return set(ordered[: max(wanted, int(len(ordered) > 1))])


def _every_share(ordered: Sequence[str], start: float) -> list[str]:
    """Systematic sample: round(share x n) entries at even distances, the first place by `start`."""
    wanted = round(len(ordered) * VALIDATION_PERCENT / 100)
    step = len(ordered) / wanted if wanted else 0
    return [ordered[int((number + start) * step)] for number in range(wanted)]
