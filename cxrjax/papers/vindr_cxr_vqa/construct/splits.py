"""Plans the questions of each split of a build."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.mix import (
    Mix,
    mix_held_out,
    mix_training,
    needed_normal_images,
)
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion
from cxrjax.papers.vindr_cxr_vqa.construct.questions import plan_list_all, plan_one_box, stream

TRAINING = "train"


@dataclasses.dataclass(frozen=True)
class Images:
    """What may be asked about.

    Attributes:
        splits: split -> its images with findings.
        normal: images on which nobody marked anything, which only training asks about.
    """

    splits: Mapping[str, Sequence[ImageAnnotation]]
    normal: Sequence[ImageAnnotation]


@dataclasses.dataclass(frozen=True)
class Questions:
    """What to ask.

    Attributes:
        mix: None: positive questions only, as in the release.
        list_all: whether each image with findings is also asked for all of them.
    """

    mix: Mix | None = None
    list_all: bool = False


@dataclasses.dataclass(frozen=True)
class PlannedSplits:
    """Split -> its questions, and what to say about them in manifest.json."""

    plans: dict[str, list[PlannedQuestion]]
    notes: dict[str, Any]


def plan_splits(images: Images, questions: Questions, seed: int) -> PlannedSplits:
    """Plans every split.

    Raises:
        UserError: the source is too small for the mix.
    """
    every = [image for split in images.splits.values() for image in split]
    split_of = {image.image_id: name for name, split in images.splits.items() for image in split}
    plans: dict[str, list[PlannedQuestion]] = {split: [] for split in images.splits}
    for plan in plan_one_box(every, seed):
        plans[split_of[plan.image.image_id]].append(plan)
    notes: dict[str, Any] = {}
    if questions.mix:
        for split, positives in plans.items():
            if split == TRAINING:
                mixed = mix_training(positives, images.normal, questions.mix, seed)
                plans[split] = mixed.plans
                notes["mix_scale"] = round(mixed.scale, 6)
            else:
                plans[split] = mix_held_out(positives, questions.mix, seed)
    if questions.list_all:
        notes["list_all"] = True
        plans = {split: _with_list_all(split_plans) for split, split_plans in plans.items()}
    return PlannedSplits(plans, notes)


def pick_normal(
    images: Sequence[ImageAnnotation], mix: Mix | None, seed: int
) -> list[ImageAnnotation]:
    """As many normal images as the mix needs, and some to spare for unusable files."""
    normal = sorted(
        (image for image in images if image.normal),
        key=lambda image: stream(seed, image.image_id, "normal").random(),
    )
    return normal[: needed_normal_images(mix)]


def _with_list_all(plans: Sequence[PlannedQuestion]) -> list[PlannedQuestion]:
    """The questions of each image, and behind them that for everything on it."""
    by_image: dict[str, list[PlannedQuestion]] = {}
    for plan in plans:
        by_image.setdefault(plan.image.image_id, []).append(plan)
    for image_id, group in by_image.items():
        if group[0].image.findings:
            group.append(plan_list_all(group[0].image, f"{image_id}-{len(group)}"))
    return [plan for group in by_image.values() for plan in group]
