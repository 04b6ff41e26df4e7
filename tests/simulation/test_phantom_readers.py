"""Three readers: alike enough to be reading one picture, different enough to be three."""

import numpy as np

from cxrjax import boxes as box_arithmetic
from cxrjax.simulation import findings
from cxrjax.simulation.render import render_phantom

BOX = np.array([0.3, 0.4, 0.5, 0.55], np.float32)


def read_once(rng, label="Nodule/Mass", votes=3):
    presence = findings.Presence(label, votes, (1.0,))
    return findings.read(rng, [presence], [label], BOX[None])


def test_votes_are_kept():
    rng = np.random.default_rng(0)
    # Another class keeps the idle readers busy.
    filler = findings.Presence("Cardiomegaly", 3, (1.0,))
    for votes in (1, 2, 3):
        for _ in range(20):
            presence = findings.Presence("Aortic enlargement", votes, (1.0,))
            found = findings.read(
                rng, [filler, presence], ["Cardiomegaly", "Aortic enlargement"], np.stack([BOX] * 2)
            )
            who = [any(label == "Aortic enlargement" for label, _ in m) for m in found.values()]
            assert sum(who) == votes


def test_abnormal_pictures_are_never_normal_and_look_alikes_happen():
    found = read_once(np.random.default_rng(3), votes=1)
    assert all(found.values())
    rng = np.random.default_rng(0)
    edge = np.array([0.0, 0.0, 0.05, 1.0], np.float32)
    for _ in range(200):
        box = findings.jitter_box(rng, edge, "Infiltration")
        assert (box >= 0).all() and (box <= 1).all() and (box[2:] > box[:2]).all()
    rng = np.random.default_rng(0)
    marks = [found for _ in range(2000) for found in read_once(rng, "ILD").values()]
    labels = [label for found in marks for label, _ in found]
    assert set(labels) == {"ILD", "Pulmonary fibrosis"}
    assert 0.01 < labels.count("Pulmonary fibrosis") / len(labels) < 0.05
    assert 0.003 < sum(len(found) > 1 for found in marks) / len(marks) < 0.025
    hearts = [m for _ in range(300) for m in read_once(rng, "Cardiomegaly").values()]
    assert {label for found in hearts for label, _ in found} == {"Cardiomegaly"}


def test_readers_mark_what_is_in_the_picture_and_draw_other_boxes():
    for index in range(15):
        phantom = render_phantom(6, index, 96, False)
        assert list(phantom.readers) == ["P1", "P2", "P3"]
        for found in phantom.readers.values():
            for _, box in found:
                assert box_arithmetic.pairwise_iou(box[None], phantom.boxes).max() > 0.5
    rng = np.random.default_rng(0)
    overlaps = []
    for _ in range(300):
        drawn = [box for found in read_once(rng).values() for _, box in found]
        assert len({box.tobytes() for box in drawn}) == len(drawn)
        overlaps += [float(box_arithmetic.iou(box, BOX)) for box in drawn]
    assert min(overlaps) > 0.5
    assert 0.75 < np.mean(overlaps) < 0.95
