"""Three simulated readers who look at the same picture and disagree.

Modelled: how many readers see a class (from the table in `findings`), lesions missed, boxes drawn
a little differently, a finding called by the name of its look-alike, a lesion marked twice. As in
the real table, the three agree on whether a picture is normal.
"""

import numpy as np
from jaxtyping import Float

from cxrjax.phantoms.findings import DUPLICATE_PROBABILITY, MARK_PROBABILITY, Presence

READERS = ("P1", "P2", "P3")

ReaderFinding = tuple[str, Float[np.ndarray, "4"]]

# What a finding is taken for; the first are likelier. Heart and aorta have no look-alike.
LOOK_ALIKES = {
    "Atelectasis": ("Lung Opacity", "Consolidation"),
    "Calcification": ("Nodule/Mass",),
    "Consolidation": ("Lung Opacity", "Infiltration"),
    "ILD": ("Pulmonary fibrosis",),
    "Infiltration": ("Lung Opacity", "Consolidation"),
    "Lung Opacity": ("Infiltration", "Consolidation", "Atelectasis"),
    "Nodule/Mass": ("Other lesion", "Calcification"),
    "Other lesion": ("Nodule/Mass", "Lung Opacity"),
    "Pleural effusion": ("Pleural thickening",),
    "Pleural thickening": ("Pleural effusion", "Pulmonary fibrosis"),
    "Pulmonary fibrosis": ("ILD", "Infiltration", "Pleural thickening"),
}
CONFUSION_PROBABILITY = 0.025

# Standard deviation of each edge, fraction of the box's side; ill-defined findings vary more.
_JITTER = 0.045
_JITTER_ILL_DEFINED = 0.075
_ILL_DEFINED = {"ILD", "Infiltration", "Lung Opacity", "Pulmonary fibrosis", "Consolidation"}


def jitter_box(
    rng: np.random.Generator, box: Float[np.ndarray, "4"], label: str
) -> Float[np.ndarray, "4"]:
    """The same lesion as another hand draws it: clipped to the picture, never degenerate."""
    spread = _JITTER_ILL_DEFINED if label in _ILL_DEFINED else _JITTER
    size = box[2:] - box[:2]
    # Half of the variation moves the box, half changes its size.
    edges = rng.normal(0, spread, 4).clip(-2.5 * spread, 2.5 * spread)
    moved = box + np.concatenate([size, size]) * edges
    return np.clip(moved, 0, 1).astype(np.float32)


def _assign(rng: np.random.Generator, presences: list[Presence]) -> list[set[int]]:
    """Which readers see each class; a reader without any finding yet is served first."""
    seen: list[set[int]] = [set() for _ in presences]
    load = np.zeros(len(READERS))
    for k in rng.permutation(len(presences)):
        order = np.lexsort((rng.random(len(READERS)), load > 0))
        chosen = order[: presences[k].votes]
        seen[k] = {int(r) for r in chosen}
        load[chosen] += 1
    # None calls an abnormal picture normal: whoever saw nothing sees what most others saw.
    clearest = max(range(len(presences)), key=lambda k: presences[k].votes, default=None)
    for reader in np.flatnonzero(load == 0):
        if clearest is not None:
            seen[clearest].add(int(reader))
    return seen


def read(
    rng: np.random.Generator,
    presences: list[Presence],
    labels: list[str],
    boxes: Float[np.ndarray, "n 4"],
) -> dict[str, list[ReaderFinding]]:
    """What each reader marks.

    Args:
        rng: the readers' own stream.
        presences: the classes of the picture with their votes; empty for a normal picture.
        labels, boxes: the lesions that were drawn.

    Returns:
        Reader id -> (label, box as fractions of the picture) in order of marking.
    """
    marks: dict[str, list[ReaderFinding]] = {reader: [] for reader in READERS}
    for presence, who in zip(presences, _assign(rng, presences), strict=True):
        lesions = [i for i, label in enumerate(labels) if label == presence.label]
        for reader in sorted(who):
            marked = [i for i in lesions if rng.random() < MARK_PROBABILITY]
            if not marked:
                marked = [lesions[int(rng.integers(len(lesions)))]]
            for i in marked:
                label = presence.label
                if label in LOOK_ALIKES and rng.random() < CONFUSION_PROBABILITY:
                    names = LOOK_ALIKES[label]
                    weights = 1 / np.arange(1, len(names) + 1)
                    label = names[int(rng.choice(len(names), p=weights / weights.sum()))]
                repeats = 1 + int(rng.random() < DUPLICATE_PROBABILITY)
                for _ in range(repeats):
                    box = jitter_box(rng, boxes[i], presence.label)
                    marks[READERS[reader]].append((label, box))
    return marks
