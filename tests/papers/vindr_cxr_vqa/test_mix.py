"""Training mixes: the paper's numbers exactly, in proportion from less, nothing said twice."""

import collections
import random

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct import mix
from cxrjax.papers.vindr_cxr_vqa.construct.asking import plan_lesions
from cxrjax.papers.vindr_cxr_vqa.construct.mix import (
    balance,
    lookup_score,
    mix_training,
    plan_splits,
)
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES


def images(abnormal: int, normal: int) -> tuple[list, list]:
    rng = random.Random(3)
    ill = []
    for i in range(abnormal):
        labels = rng.sample(CLASSES, rng.randint(1, 8))
        marked = [FindingBox(label, (1.0, 2.0, 3.0 + k, 9.0)) for k, label in enumerate(labels)]
        ill.append(ImageAnnotation(f"ill-{i:04d}", "x", (20, 40), marked, {"A": marked, "B": []}))
    readers: dict = {"A": [], "B": []}
    return ill, [ImageAnnotation(f"well-{i}", "x", None, [], readers) for i in range(normal)]


def counts(plans):
    return collections.Counter((plan.kind, plan.negative_kind) for plan in plans)


@pytest.fixture(scope="module")
def paper_mix():
    ill, well = images(3735, 2400)
    return mix_training(list(plan_lesions(ill, 0)), well, 0)


def test_the_papers_numbers_keep_a_positive_question_of_every_image(paper_mix):
    plans, scale = paper_mix
    assert scale == 1 and len(plans) == 20_880
    by_kind = counts(plans)
    for kind in QUESTION_TYPES:
        of_kind = {why: n for (name, why), n in by_kind.items() if name == kind}
        assert sum(of_kind.values()) == 3480 and of_kind[None] == 1450
    assert sum(n for (_, why), n in by_kind.items() if why is None) == 8700
    assert sum(n for (_, why), n in by_kind.items() if why == "no_finding_image") == 6090
    assert sum(n for (_, why), n in by_kind.items() if why == "absent_class") == 6090
    positive = {plan.image.image_id for plan in paper_mix[0] if plan.negative_kind is None}
    assert len(positive) == 3735


def test_questions_are_told_apart_and_their_numbers_tell_nothing(paper_mix):
    ids = [plan.question_id for plan in paper_mix[0]]
    assert len(set(ids)) == len(ids)
    asked = collections.Counter(
        (plan.image.image_id, plan.labels[0])
        for plan in paper_mix[0]
        if plan.negative_kind and plan.labels
    )
    assert set(asked.values()) == {1}  # no absence is asked about twice
    first = [plan for plan in paper_mix[0] if plan.question_id == f"{plan.image.image_id}-0"]
    of_ill = [plan for plan in first if plan.image.findings]
    share = sum(plan.negative_kind is None for plan in of_ill) / len(of_ill)
    # 8,700 positive questions and 6,090 negative ones on these images, in mixed order.
    assert abs(share - 8700 / 14790) < 0.03


def test_denied_questions_are_about_what_is_not_there(paper_mix):
    for plan in paper_mix[0]:
        if plan.negative_kind:
            assert not plan.boxes and plan.count == 0
            assert not set(plan.labels) & set(plan.image.present)
            assert (plan.negative_kind == "absent_class") == bool(plan.image.findings)
            assert bool(plan.labels) == (plan.kind != "What")
        else:
            assert plan.boxes


def test_smaller_sources_are_mixed_in_proportion_and_held_out_ones_kept():
    ill, well = images(300, 60)
    plans, scale = mix_training(list(plan_lesions(ill, 0)), well, 0)
    assert scale == pytest.approx(60 / 2030)
    by_polarity = collections.Counter(plan.negative_kind is None for plan in plans)
    assert by_polarity[True] / by_polarity[False] == pytest.approx(5 / 7, rel=0.05)
    with pytest.raises(UserError, match="--mix=released"):
        mix_training(list(plan_lesions(ill, 0)), [], 0)
    positives = list(plan_lesions(images(60, 0)[0], 0))
    plans = mix.mix_held_out(positives, 0)
    by_kind = counts(plans)
    assert sum(n for (_, why), n in by_kind.items() if why is None) == len(positives) == 240
    assert sum(n for (_, why), n in by_kind.items() if why == "absent_class") == 336
    assert {plan.image.image_id for plan in plans} == {p.image.image_id for p in positives}


def test_splits_with_mix_and_questions_for_everything():
    ill, well = images(300, 500)
    splits = {"train": ill[:250], "validation": ill[250:]}
    normal = {"train": mix.pick_normal(well, mix.NORMAL_IMAGES, 0)}
    planned, notes = plan_splits(splits, normal, "paper", True, 0)
    assert notes["list_all"] and 0 < notes["mix_scale"] < 1
    for split, plans in planned.items():
        everything = [plan for plan in plans if plan.style == "list_all"]
        asked = {plan.image.image_id for plan in plans if plan.image.findings}
        assert len(everything) == len(asked)
        assert len({plan.question_id for plan in plans}) == len(plans)
        kinds = {plan.negative_kind for plan in plans}
        assert ("no_finding_image" in kinds) == (split == "train")
    released, _ = plan_splits(splits, {}, "released", False, 0)
    assert [len(plans) for plans in released.values()] == [1000, 200]


def test_the_balanced_mix_denies_each_class_as_often_as_it_affirms_it():
    ill, well = images(300, 400)
    splits = {"train": ill[:250], "validation": ill[250:]}
    normal = {"train": well[:330], "validation": well[330:]}
    planned, notes = plan_splits(splits, normal, "balanced", False, 0)
    assert notes["lookup_score"] == {"train": 0.5, "validation": 0.5}
    for plans in planned.values():
        tally = collections.Counter(
            (plan.kind, plan.labels[:1] if plan.kind != "What" else (), plan.negative_kind is None)
            for plan in plans
        )
        for kind, label, _ in tally:
            assert tally[kind, label, True] == tally[kind, label, False]
        kinds = counts(plans)
        assert {"absent_class", "no_finding_image"} < {why for _, why in kinds}
        asked = [(p.image.image_id, p.labels) for p in plans if p.negative_kind]
        assert len(asked) == len(set(asked))
    paper, _ = plan_splits(splits, normal, "paper", False, 0)
    assert lookup_score(paper["train"]) > 0.6
    with pytest.raises(UserError, match="--mix=released"):
        balance(planned["train"], [], 0, "train")
