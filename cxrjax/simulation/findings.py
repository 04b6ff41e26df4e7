"""Findings of an abnormal image, and three simulated readers who see them and disagree.

The frequencies are those of the public box table of VinDr-CXR's training set (4,394 abnormal
images, three readers each). A class' number of votes decides how conspicuous its lesions are:
those that one reader of three marked are faint.
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.files import read_packaged

ABNORMAL_IMAGES = 4394
NORMAL_IMAGES = 10606

# The tables of signs.toml, in the order of VinDr-CXR's class ids.
CLASSES: dict[str, dict[str, Any]] = read_packaged("cxrjax.simulation", "signs.toml")

# A reader who sees a class marks each of its lesions with this probability, at least one.
MARK_PROBABILITY = 0.9
# A reader marks a lesion twice, in two slightly different boxes, with this probability.
DUPLICATE_PROBABILITY = 0.01

# No reader leaves an abnormal image empty, and look-alikes add to the rarer classes: together they
# bring this much more than the table's frequencies, so less is sampled.
_ADDED_BY_READING = 1.025

# How strong a lesion is, by the number of readers who will see it.
_STRENGTH = {1: (0.68, 0.95), 2: (0.8, 1.08), 3: (0.92, 1.2)}


@dataclasses.dataclass(frozen=True)
class Presence:
    """One class on one image."""

    label: str
    votes: int  # number of the three readers who see it
    strengths: tuple[float, ...]  # conspicuity of each lesion, about 1


@functools.cache
def lesion_count_law(label: str) -> Float[np.ndarray, " most"]:
    """Returns the probabilities of 1, 2, ... lesions of a class where it is present.

    A geometric law, cut off at the class' `most`, whose ratio is found by bisection such that a
    reader who sees the class marks as many boxes as in the table, on average.
    """
    said = CLASSES[label]
    counts = np.arange(1, said["most"] + 1)
    # All are missed with probability (1 - p)^n; then one is marked after all.
    marked = MARK_PROBABILITY * counts + (1 - MARK_PROBABILITY) ** counts
    one, two, three = said["votes"]
    wanted = said["boxes"] / (one + 2 * two + 3 * three) / (1 + DUPLICATE_PROBABILITY)
    low, high = 0.0, 16.0
    for _ in range(60):
        ratio = (low + high) / 2
        law = ratio ** (counts - 1)
        law = law / law.sum()
        low, high = (ratio, high) if (law * marked).sum() < wanted else (low, ratio)
    return law


_IMAGES = np.array([sum(said["votes"]) for said in CLASSES.values()])
_PRESENT = _IMAGES / ABNORMAL_IMAGES / _ADDED_BY_READING


def draw_presences(
    rng: np.random.Generator, conspicuity: float = 1.0, only: Collection[str] = CLASSES
) -> list[Presence]:
    """Samples the classes of an abnormal image, at least one, in the order of the class ids.

    Args:
        conspicuity: multiplies every lesion's strength; no other random number depends on it.
        only: classes that may occur.
    """
    likely = _PRESENT * [label in only for label in CLASSES]
    present = rng.random(len(CLASSES)) < likely
    while not present.any():
        present = rng.random(len(CLASSES)) < likely
    presences = []
    for label in (name for name, here in zip(CLASSES, present, strict=True) if here):
        votes = CLASSES[label]["votes"]
        seen = 1 + int(np.searchsorted(np.cumsum(votes) / sum(votes), rng.random(), side="right"))
        law = np.cumsum(lesion_count_law(label))
        count = 1 + min(int(np.searchsorted(law, rng.random(), side="right")), len(law) - 1)
        strengths = rng.uniform(*_STRENGTH[seen], size=count)
        presences.append(Presence(label, seen, tuple(float(s) * conspicuity for s in strengths)))
    return presences


READERS = ("P1", "P2", "P3")

ReaderFinding = tuple[str, Float[np.ndarray, "4"]]

CONFUSION_PROBABILITY = 0.025

# Standard deviation of each edge, fraction of the box's side; ill-defined findings vary more.
_JITTER = 0.045
_JITTER_ILL_DEFINED = 0.075
_ILL_DEFINED = ("ILD", "Infiltration", "Lung Opacity", "Pulmonary fibrosis", "Consolidation")


def jitter_box(
    rng: np.random.Generator, box: Float[np.ndarray, "4"], label: str
) -> Float[np.ndarray, "4"]:
    """Varies a lesion's box as between readers: clipped to the image, never degenerate."""
    spread = _JITTER_ILL_DEFINED if label in _ILL_DEFINED else _JITTER
    size = box[2:] - box[:2]
    # Half of the variation moves the box, half changes its size.
    edges = rng.normal(0, spread, 4).clip(-2.5 * spread, 2.5 * spread)
    moved = box + np.concatenate([size, size]) * edges
    return np.clip(moved, 0, 1).astype(np.float32)


def _assign(rng: np.random.Generator, presences: list[Presence]) -> list[set[int]]:
    """Assigns readers to each class; one without any finding yet is served first."""
    seen: list[set[int]] = [set() for _ in presences]
    load = np.zeros(len(READERS))
    for k in rng.permutation(len(presences)):
        order = np.lexsort((rng.random(len(READERS)), load > 0))
        chosen = order[: presences[k].votes]
        seen[k] = {int(r) for r in chosen}
        load[chosen] += 1
    # None calls an abnormal image normal: a reader without a finding sees what most others saw.
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
    """Marks an image as three readers who disagree.

    Modelled: how many readers see a class (from the table), lesions missed, boxes that differ a
    little, a finding confused with its look-alike, a lesion marked twice. As in the real table, the
    three agree on whether an image is normal.

    Args:
        rng: the readers' own stream.
        presences: the classes of the image with their votes; empty for a normal image.
        labels, boxes: the lesions that were rendered.

    Returns:
        Reader id -> (label, box as fractions of the image) in order of marking.
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
                names = CLASSES[label]["look_alikes"]
                if names and rng.random() < CONFUSION_PROBABILITY:
                    weights = 1 / np.arange(1, len(names) + 1)
                    label = names[int(rng.choice(len(names), p=weights / weights.sum()))]
                repeats = 1 + int(rng.random() < DUPLICATE_PROBABILITY)
                for _ in range(repeats):
                    box = jitter_box(rng, boxes[i], presence.label)
                    marks[READERS[reader]].append((label, box))
    return marks
