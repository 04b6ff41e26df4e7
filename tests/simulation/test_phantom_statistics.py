"""What readers mark on many pictures, against the public table of VinDr-CXR."""

import collections
import tomllib
from pathlib import Path

import numpy as np
import pytest

from cxrjax.simulation import findings

TABLE = tomllib.loads(Path(__file__).with_name("vindr_table.toml").read_text())
IMAGES = 3000


@pytest.fixture(scope="module")
def drawn():
    """class -> number of lesions in each of many pictures that have the class."""
    rng = np.random.default_rng(1)
    counts = collections.defaultdict(list)
    for _ in range(IMAGES):
        for presence in findings.draw_presences(rng):
            counts[presence.label].append(len(presence.strengths))
    return counts


@pytest.fixture(scope="module")
def marks():
    """Boxes and votes by class over many abnormal pictures; reading needs no pixels."""
    rng = np.random.default_rng(0)
    boxes, votes, empty = collections.Counter(), collections.defaultdict(lambda: [0, 0, 0]), 0
    for _ in range(IMAGES):
        presences = findings.draw_presences(rng)
        labels = [p.label for p in presences for _ in p.strengths]
        somewhere = np.tile(np.array([0.2, 0.3, 0.4, 0.5], np.float32), (len(labels), 1))
        read = findings.read(rng, presences, labels, somewhere)
        seen = collections.Counter()
        for found in read.values():
            empty += not found
            boxes.update(label for label, _ in found)
            seen.update({label for label, _ in found})
        for label, count in seen.items():
            votes[label][count - 1] += 1
    return boxes, votes, empty


def test_the_module_holds_the_table():
    assert list(findings.CLASSES) == list(TABLE)
    for label, (boxes, images, votes) in TABLE.items():
        said = findings.CLASSES[label]
        assert (said["boxes"], sum(said["votes"]), said["votes"]) == (boxes, images, votes)
    assert sum(said["boxes"] for said in findings.CLASSES.values()) == 36096


def test_boxes_per_image(marks):
    boxes, _, _ = marks
    assert sum(boxes.values()) / IMAGES == pytest.approx(36096 / 4394, rel=0.03)


@pytest.mark.parametrize("label", TABLE)
def test_class_frequencies(marks, label):
    boxes, votes, _ = marks
    table_boxes, table_images, table_votes = TABLE[label]
    # A tenth (look-alikes) and three standard errors of the count.
    expected = table_images / 4394 * IMAGES
    assert sum(votes[label]) == pytest.approx(expected, abs=0.12 * expected + 3 * expected**0.5)
    share = table_boxes / 36096 * sum(boxes.values())
    assert boxes[label] == pytest.approx(share, abs=0.12 * share + 4 * share**0.5)
    shape = np.array(votes[label]) / sum(votes[label])
    tolerance = 0.06 + 1.5 / sum(votes[label]) ** 0.5
    np.testing.assert_allclose(shape, np.array(table_votes) / table_images, atol=tolerance)


def test_readers_agree_on_what_is_abnormal(marks):
    assert marks[2] == 0


@pytest.mark.parametrize("label", TABLE)
def test_number_of_lesions(label):
    law = findings.lesion_count_law(label)
    assert len(law) == findings.CLASSES[label]["most"]
    assert law.sum() == pytest.approx(1)
    assert (np.diff(law) < 0).all() or label == "ILD"  # ILD is bilateral more often than not
    counts = np.arange(1, len(law) + 1)
    # A reader marks nine of ten, and one at least.
    marks = (law * (0.9 * counts + 0.1**counts)).sum() * 1.01
    boxes, _, (one, two, three) = TABLE[label]
    assert marks == pytest.approx(max(boxes / (one + 2 * two + 3 * three), 1.01), abs=0.005)


def test_lesions_are_drawn_by_that_law(drawn):
    for label in ("Nodule/Mass", "ILD", "Pleural thickening"):
        law = findings.lesion_count_law(label)
        share = np.bincount(drawn[label], minlength=len(law) + 1)[1:] / len(drawn[label])
        np.testing.assert_allclose(share, law, atol=0.08)
