"""Readers scored against readers, on panels whose figures can be worked out by hand."""

import math

import pytest

from cxrjax.errors import UserError
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.vindr_cxr_vqa.reader_ceiling import TRUTHS, markdown, reader_ceiling
from cxrjax.records import ReaderBox

HEART, FLUID = "Cardiomegaly", "Pleural effusion"
HERE, THERE = (100, 100, 300, 300), (600, 600, 800, 900)
NONE = Bootstrap(resamples=0)


def _marks(*marks):
    return [ReaderBox(label=label, box=list(box)) for label, box in marks]


def _value(ceiling, truth, metric, protocol="strict"):
    return ceiling.figures[truth][protocol][f"detection/{metric}@0.3"].value


def test_readers_who_agree_reach_everything_that_can_be_reached():
    same = _marks((HEART, HERE), (FLUID, THERE))
    ceiling = reader_ceiling({"i0": {"R1": same, "R2": same, "R3": same}}, NONE)
    for truth in TRUTHS:
        assert _value(ceiling, truth, "precision") == 1
        assert _value(ceiling, truth, "miou_tp") == pytest.approx(1)
        # Two boxes of one lesion, and one box each: half of the unmerged ones must stay unfound.
        expected = 0.5 if truth in ("raw", "majority") else 1
        assert _value(ceiling, truth, "recall") == expected
        assert _value(ceiling, truth, "recall", "paper") == 1
    assert ceiling.boxes["raw"][HEART] == 3
    assert {ceiling.boxes[m][HEART] for m in ("wbf", "nms", "components", "lesion_majority")} == {1}


def test_figures_of_a_panel_by_hand():
    """R1 and R2 mark the heart, R3 fluid in the same place; R4's image has no finding."""
    heart, fluid = _marks((HEART, HERE)), _marks((FLUID, HERE))
    images = {"i0": {"R1": heart, "R2": heart, "R3": fluid}, "i1": {"R1": [], "R2": [], "R4": []}}
    ceiling = reader_ceiling(images, NONE)
    assert (ceiling.images, ceiling.images_read) == (1, 2)
    # Six ordered pairs, of which R1-R2 and R2-R1 agree on the class.
    assert _value(ceiling, "per_reader", "precision") == pytest.approx(1 / 3)
    agnostic = ceiling.figures["per_reader"]["strict"]["detection_agnostic/precision@0.3"]
    assert agnostic.value == 1
    assert _value(ceiling, "per_reader", "precision", "paper") == 1
    assert _value(ceiling, "raw", "precision") == pytest.approx(2 / 3)
    assert _value(ceiling, "raw", "recall") == pytest.approx(2 / 6)
    # Of two others, both must agree to be a majority: only R3 has such a pair against it.
    assert _value(ceiling, "lesion_majority", "precision") == 0
    assert ceiling.by_class["per_reader"][HEART].value == pytest.approx(2 * 2 / (2 * 2 + 2 + 2))
    assert ceiling.by_class["per_reader"][HEART].n == 1
    assert ceiling.by_class["raw"]["ILD"].value is None
    # The heart: votes 2 of 3 and 0 of 3. Fleiss by hand: (2/3 - 5/9) / (1 - 5/9).
    heart = ceiling.presence[HEART]
    assert heart["images"] == 1
    assert heart["fleiss_kappa"] == pytest.approx((2 / 3 - 5 / 9) / (4 / 9))
    assert ceiling.presence["ILD"]["fleiss_kappa"] is None
    text = markdown(ceiling)
    assert "| Cardiomegaly | 2 | 2 | 1 | 1 | 1 | 1 |" in text and "nan" not in text


def test_intervals_hold_the_value_and_panels_must_be_comparable():
    images = {
        f"i{n}": {"R1": _marks((HEART, HERE)), "R2": _marks((HEART, HERE if n % 2 else THERE))}
        for n in range(40)
    }
    figure = reader_ceiling(images).figures["per_reader"]["strict"]["detection/f1@0.3"]
    assert figure.value == 0.5 and figure.n == 40
    # A share of one half over 40 images.
    half = 1.96 * math.sqrt(0.25 / 40)
    assert figure.ci_low == pytest.approx(0.5 - half, abs=0.04)
    assert figure.ci_high == pytest.approx(0.5 + half, abs=0.04)
    with pytest.raises(UserError, match="nothing to compare"):
        reader_ceiling({"i0": {"R1": _marks((HEART, HERE))}, "i1": {"R1": [], "R2": []}})
    with pytest.raises(UserError, match="image i0: a reader's class 'Fracture'"):
        reader_ceiling({"i0": {"R1": _marks(("Fracture", HERE)), "R2": []}})
