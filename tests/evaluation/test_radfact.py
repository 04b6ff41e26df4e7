"""RadFact's arithmetic: the values of its repository's tests and examples, figures alone.

github.com/microsoft/RadFact (MIT), tests/metric and examples/test_examples.json, as of August 2024.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.evaluation.text_scores.radfact import Statement, boxes_entailed, entailed_shares

NO_BOX = np.zeros((0, 4))
_OTHER = Statement(NO_BOX, ())


def box(*corners):
    return np.array([corners], np.float64)


def shares(counted):
    return [part / whole for part, whole in counted.values()]


def test_counts_each_way_and_the_published_range():
    """Of five statements three are entailed; three have boxes, of which one lies right."""
    a, b = box(0.1, 0.1, 0.2, 0.2), box(0.3, 0.3, 0.4, 0.4)
    told = [(NO_BOX, (0,)), (a, (1,)), (b, (1,)), (NO_BOX, ()), (a, ())]
    statements = [Statement(*one) for one in told]
    others = [Statement(NO_BOX, ()), Statement(a, ())]
    assert shares(entailed_shares(statements, others)) == pytest.approx([3 / 5, 1 / 2, 1 / 3])
    # The repository's grounded example: four statements on each side, some with boxes
    first, second, third = (box(x, x, x + 0.1, x + 0.1) for x in (0.1, 0.3, 0.5))
    told = [(first, (0,)), (np.concatenate([second, third]), (1,)), (NO_BOX, (2,)), (NO_BOX, ())]
    predicted = [Statement(*one) for one in told]
    told = [(first, (0,)), (second, (1,)), (third, (2,)), (NO_BOX, ())]
    true = [Statement(*one) for one in told]
    assert shares(entailed_shares(predicted, true)) == pytest.approx([0.75, 0.5, 0.5])
    assert shares(entailed_shares(true, predicted)) == pytest.approx([0.75, 2 / 3, 2 / 3])

    # The labels of its 34 examples; a language model's range is printed for the same
    def share(entailed, every):
        """Of one text, so many of whose statements are entailed."""
        statements = [Statement(NO_BOX, (0,) if n < entailed else ()) for n in range(every)]
        part, whole = entailed_shares(statements, [_OTHER])["logical"]
        return part / whole

    found = [
        np.mean([share(int(e), int(a)) for e, a in zip(*digits, strict=True)])
        for digits in _PUBLISHED
    ]
    assert found == pytest.approx([0.29902, 0.29363], abs=1e-5)
    for value, (low, high) in zip(found, [(0.2745, 0.4327), (0.2328, 0.4093)], strict=True):
        assert low < value < high


def _mask(boxes):
    mask = np.zeros((224, 224), bool)
    for x0, y0, x1, y1 in (boxes * 224).astype(int):
        mask[x0:x1, y0:y1] = True
    return mask


_CORNER = st.integers(0, 14).map(lambda n: n / 14)
_BOXES = st.lists(st.tuples(*[_CORNER] * 4), max_size=3).map(
    lambda boxes: np.array(
        [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in boxes], np.float64
    ).reshape(-1, 4)
)


@given(boxes=_BOXES, evidence=_BOXES)
def test_boxes_are_entailed_as_on_a_mask_of_pixels(boxes, evidence):
    """On edges that are pixels' the areas are RadFact's counts, so that the answer is its own."""
    inside, known = _mask(boxes), _mask(evidence)
    there = inside.sum()
    expected = bool(there) and (inside & known).sum() / there > 0.5
    assert boxes_entailed(boxes, evidence) == expected


# A digit for each example: entailed statements and all, of the first text and of the second.
_PUBLISHED = [
    ("0120122200221111013110021121112000", "3434433444443433334334444334334334"),
    ("0220122201221110022110020110122111", "5243643524664444444333344334443434"),
]
