"""Splits: exact size, proportional labels, deterministic, nobody on both sides."""

import collections
import json
import random

import pytest

from cxrjax.errors import UserError
from cxrjax.records_io import split
from cxrjax.records_io.quality import QualityLog


def _label_sets(count: int) -> dict[str, list[str]]:
    rng = random.Random(1)
    odds = {"common": 0.6, "middling": 0.3, "rare": 0.05, "rarest": 0.02}
    return {
        f"image-{i}": [label for label, share in odds.items() if rng.random() < share]
        for i in range(count)
    }


def test_size_is_the_papers():
    assert len(split.stratified_validation({str(i): ["a"] for i in range(4394)}, seed=0)) == 659


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_label_keeps_its_share(seed):
    label_sets = _label_sets(2000)
    validation = split.stratified_validation(label_sets, seed)
    total = collections.Counter(x for labels in label_sets.values() for x in labels)
    held = collections.Counter(x for i in validation for x in label_sets[i])
    for label, count in total.items():
        # A plain random draw strays by about 12 images of "common".
        assert abs(held[label] - 0.15 * count) <= 2, label


def test_order_of_the_images_does_not_matter_but_the_seed_does():
    label_sets = _label_sets(300)
    backwards = dict(reversed(label_sets.items()))
    chosen = split.stratified_validation(label_sets, 0)
    assert chosen == split.stratified_validation(backwards, 0)
    assert chosen != split.stratified_validation(label_sets, 1)


def test_order_of_the_labels_does_not_matter():
    rng = random.Random(2)
    for seed in range(4):
        drawn = {str(i): rng.sample("abcdefgh", rng.randint(2, 6)) for i in range(1500)}
        turned = {image: labels[::-1] for image, labels in drawn.items()}
        chosen = split.stratified_validation(drawn, seed)
        assert chosen == split.stratified_validation(turned, seed)


def test_small_sets():
    assert split.stratified_validation({}, 0) == set()
    assert split.stratified_validation({"a": []}, 0) == set()
    assert len(split.stratified_validation({"a": [], "b": ["x"]}, 0)) == 1


def test_groups():
    groups = [f"patient-{i}" for i in range(48)] * 2
    chosen = split.validation_groups(groups, 0)
    assert len(chosen) == 7 and chosen < set(groups)
    assert chosen == split.validation_groups(reversed(groups), 0)
    assert chosen != split.validation_groups(groups, 1)
    assert len(split.validation_groups(["a", "b"], 0)) == 1
    assert split.validation_groups(["a"], 0) == set()


def test_split_manifest(tmp_path):
    path = tmp_path / "splits.json"
    path.write_text(json.dumps({"train": ["a", "b"], "validation": ["c"], "test300": ["t"]}))
    manifest = split.read_split_manifest(path)
    assert manifest == {"a": "train", "b": "train", "c": "validation", "t": "test300"}
    quality = QualityLog()
    followed = split.follow_manifest(manifest, ["c", "a", "x"], ["t"], "splits.json", quality)
    assert followed == {"c": "validation", "a": "train"}
    assert [(entry.reason, entry.item) for entry in quality.entries] == [
        ("not_in_source", "b"),
        ("not_in_split", "x"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"validation": ["a"]}, "expected at least 'train'"),
        ({"train": ["a"], "validation": ["a"]}, "'a' stands in train and again in validation"),
        ({"train": ["a", "a"]}, "again in train"),
        ({"train": [1]}, "train: expected a list of image ids"),
        ({"train": "a"}, "train: expected a list of image ids"),
        ({"train": [], "../x": []}, "split '../x': expected lower-case"),
        ([], "expected a JSON object"),
    ],
)
def test_unusable_split_manifests(tmp_path, content, message):
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as error:
        split.read_split_manifest(path)
    assert str(path) in str(error.value)
