"""Splits: exact size, proportional labels, deterministic, nobody on both sides."""

import collections
import random

import pytest

from cxrjax.datasets.split import stratified_validation, validation_groups


def _label_sets(count: int) -> dict[str, list[str]]:
    rng = random.Random(1)
    odds = {"common": 0.6, "middling": 0.3, "rare": 0.05, "rarest": 0.02}
    return {
        f"image-{i}": [label for label, share in odds.items() if rng.random() < share]
        for i in range(count)
    }


def test_size_is_the_papers():
    assert len(stratified_validation({str(i): ["a"] for i in range(4394)}, seed=0)) == 659


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_label_keeps_its_share(seed):
    label_sets = _label_sets(2000)
    validation = stratified_validation(label_sets, seed)
    total = collections.Counter(x for labels in label_sets.values() for x in labels)
    held = collections.Counter(x for i in validation for x in label_sets[i])
    for label, count in total.items():
        # A plain random draw strays by about 12 images of "common".
        assert abs(held[label] - 0.15 * count) <= 2, label


def test_order_of_the_images_does_not_matter_but_the_seed_does():
    label_sets = _label_sets(300)
    backwards = dict(reversed(label_sets.items()))
    chosen = stratified_validation(label_sets, 0)
    assert chosen == stratified_validation(backwards, 0)
    assert chosen != stratified_validation(label_sets, 1)


def test_small_sets():
    assert stratified_validation({}, 0) == set()
    assert stratified_validation({"a": []}, 0) == set()
    assert len(stratified_validation({"a": [], "b": ["x"]}, 0)) == 1


def test_groups():
    groups = [f"patient-{i}" for i in range(48)] * 2
    chosen = validation_groups(groups, 0)
    assert len(chosen) == 7 and chosen < set(groups)
    assert chosen == validation_groups(reversed(groups), 0)
    assert chosen != validation_groups(groups, 1)
    assert len(validation_groups(["a", "b"], 0)) == 1
    assert validation_groups(["a"], 0) == set()
