"""Training mixes: which questions of what kind, and how many.

The release has positive questions only, 17,597 in all; the paper trains on 20,880 (section 3.1), of
which 41.7 % are positive and 58.3 % negative (abstract). 20,880 is six kinds times 3,480, and
8,700 to 12,180 is 5 to 7 exactly: a mix with questions about normal images and absent classes.
There absent classes are drawn evenly, so that the name of a class tells much about its answer
(`lookup_score`); the balanced mix, our own, denies each class as often as it affirms it.
"""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct import asking
from cxrjax.papers.vindr_cxr_vqa.construct.balance import Asked, balance, lookup_score
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES


@dataclasses.dataclass(frozen=True)
class Mix:
    """Numbers of training questions.

    Attributes:
        n_positive, n_negative: of each polarity.
        per_type: of each of the six kinds, positive and negative together.
        n_no_finding: negatives on images without findings (`no_finding_image`); the others ask for
            absent classes on images with findings (`absent_class`). All negative "What" questions
            are among them: on an image with findings their answer isn't no.
    """

    n_positive: int = 8700
    n_negative: int = 12180
    per_type: int = 3480
    n_no_finding: int = 6090

    def __post_init__(self) -> None:
        kinds = len(QUESTION_TYPES)
        total = self.n_positive + self.n_negative
        if self.per_type * kinds != total or self.n_positive % kinds:
            raise ValueError(
                f"{self.n_positive} positive and {self.n_negative} negative questions do not make "
                f"{kinds} kinds of {self.per_type} each"
            )
        if not self.negative_per_type <= self.n_no_finding <= self.n_negative:
            raise ValueError(
                f"n_no_finding={self.n_no_finding}: expected {self.negative_per_type} (the "
                f"negative What questions) to {self.n_negative}"
            )

    @property
    def positive_per_type(self) -> int:
        return self.n_positive // len(QUESTION_TYPES)

    @property
    def negative_per_type(self) -> int:
        return self.per_type - self.positive_per_type

    @property
    def normal_images(self) -> int:
        """Images without findings that it needs: each is asked "What" once."""
        return self.negative_per_type


BALANCED: Literal["balanced"] = "balanced"
MIXES: dict[str, Mix | Literal["balanced"] | None] = {
    "released": None,
    "paper": Mix(),
    BALANCED: BALANCED,
}


def normal_images(mix: Mix | Literal["balanced"] | None, abnormal: int) -> int:
    """Counts the images without findings that a split of so many images with findings can use."""
    if isinstance(mix, Mix):
        return mix.normal_images
    # Each is asked "What" once, as two of three images with findings are.
    share = asking.QUESTIONS_PER_IMAGE / len(QUESTION_TYPES)
    return math.ceil(abnormal * share) + len(QUESTION_TYPES) if mix else 0


def mix_training(
    positives: Sequence[PlannedQuestion],
    normal: Sequence[ImageAnnotation],
    mix: Mix,
    seed: int,
) -> tuple[list[PlannedQuestion], float]:
    """The training questions of a mix.

    Args:
        positives: the questions about images with findings to choose from. Of every image at least
            one is taken while there is room.
        normal: images without findings.

    Returns:
        The questions; and 1, or by how much the mix was made smaller, in every part alike, for
        lack of questions.

    Raises:
        UserError: the source is too small for any mix in these proportions.
    """
    by_kind = collections.defaultdict(list)
    for plan in _one_of_each_image_first(positives, seed):
        by_kind[plan.kind].append(plan)
    abnormal = list({plan.image.image_id: plan.image for plan in positives}.values())
    room = sum(len(CLASSES) - len(image.present) for image in abnormal)
    n_absent = mix.n_negative - mix.n_no_finding
    scale = min(
        1.0,
        min(len(by_kind[kind]) for kind in QUESTION_TYPES) / mix.positive_per_type,
        len(normal) / mix.normal_images,
        room / n_absent if n_absent else 1.0,
    )
    per_type = [
        int(scale * count)
        for count in (
            mix.positive_per_type,
            mix.normal_images,
            (mix.n_no_finding - mix.normal_images) // len(asking.CLASS_QUESTION_TYPES),
            n_absent // len(asking.CLASS_QUESTION_TYPES),
        )
    ]
    if not per_type[0] or not per_type[1]:
        raise UserError(
            f"--mix: {len(positives)} questions about findings and {len(normal)} images without "
            f"are too few to mix {mix.n_positive} to {mix.n_negative} over six kinds: use "
            "--mix=released or a larger source"
        )
    positive, what, no_finding, absent = per_type
    chosen = [plan for kind in QUESTION_TYPES for plan in by_kind[kind][:positive]]
    normal = _shuffled(normal, seed)[:what]
    asked: Asked = [(image, "What", None) for image in normal]
    asked += _about_absent(normal, no_finding * len(asking.CLASS_QUESTION_TYPES), seed, "normal")
    asked += _about_absent(
        _shuffled(abnormal, seed), absent * len(asking.CLASS_QUESTION_TYPES), seed, "abnormal"
    )
    return _number([*chosen, *_denied(asked)], seed), scale


def mix_held_out(
    positives: Sequence[PlannedQuestion], mix: Mix, seed: int
) -> list[PlannedQuestion]:
    """All positive questions, and absent classes of the same images in the mix's proportion.

    The images stay those of the released questions, so that figures per image compare.
    """
    abnormal = list({plan.image.image_id: plan.image for plan in positives}.values())
    count = round(len(positives) * mix.n_negative / mix.n_positive)
    asked = _about_absent(_shuffled(abnormal, seed), count, seed, "held out")
    return _number([*positives, *_denied(asked)], seed)


def _about_absent(images: Sequence[ImageAnnotation], count: int, seed: int, purpose: str) -> Asked:
    """`count` questions about absent classes, evenly over kinds and images; fewer where every
    absent class is taken."""
    absent = []
    for image in images:
        labels = [label for label in CLASSES if label not in image.present]
        absent.append(asking.stream(seed, image.image_id, "absent").sample(labels, len(labels)))
    kinds = [
        asking.CLASS_QUESTION_TYPES[i % len(asking.CLASS_QUESTION_TYPES)] for i in range(count)
    ]
    asking.stream(seed, purpose, "kinds").shuffle(kinds)
    slots = (
        (image, labels[turn])
        for turn in range(len(CLASSES))
        for image, labels in zip(images, absent, strict=True)
        if turn < len(labels)
    )
    return [
        (image, kind, label)
        for kind, (image, label) in zip(kinds, slots, strict=False)  # the shorter decides
    ]


def _denied(asked: Asked) -> Iterator[PlannedQuestion]:
    for number, (image, kind, label) in enumerate(asked):
        yield asking.plan_denied(image, f"{image.image_id}-denied{number}", kind, label)


def _one_of_each_image_first(
    plans: Sequence[PlannedQuestion], seed: int
) -> Iterator[PlannedQuestion]:
    """First a question of each image, then a second of each, and so on, each round shuffled."""
    rounds: dict[str, list[PlannedQuestion]] = collections.defaultdict(list)
    for plan in plans:
        rounds[plan.image.image_id].append(plan)
    for image_id, group in rounds.items():
        asking.stream(seed, image_id, "mix").shuffle(group)
    for turn in range(max(map(len, rounds.values()), default=0)):
        these = [group[turn] for group in rounds.values() if turn < len(group)]
        yield from sorted(
            these, key=lambda plan: asking.stream(seed, plan.question_id, "mix").random()
        )


def _shuffled(images: Sequence[ImageAnnotation], seed: int) -> list[ImageAnnotation]:
    return sorted(images, key=lambda image: asking.stream(seed, image.image_id, "mix").random())


def _number(plans: Sequence[PlannedQuestion], seed: int) -> list[PlannedQuestion]:
    """Questions gathered by image, in mixed order, and numbered anew: a number tells nothing."""
    by_image: dict[str, list[PlannedQuestion]] = collections.defaultdict(list)
    for plan in plans:
        by_image[plan.image.image_id].append(plan)
    numbered = []
    for image_id, group in sorted(by_image.items()):
        asking.stream(seed, image_id, "order").shuffle(group)
        numbered += [
            dataclasses.replace(plan, question_id=f"{image_id}-{number}")
            for number, plan in enumerate(group)
        ]
    return numbered


def plan_splits(
    splits: Mapping[str, Sequence[ImageAnnotation]],
    normal: Mapping[str, Sequence[ImageAnnotation]],
    mix: Mix | Literal["balanced"] | None,
    list_all: bool,
    seed: int,
) -> tuple[dict[str, list[PlannedQuestion]], dict[str, Any]]:
    """Plans every split.

    Args:
        splits: split -> its images with findings.
        normal: split -> images on which nobody marked anything; the paper's mix asks about those of
            training alone.
        mix: None: positive questions only, as in the release.
        list_all: also ask for all findings of each image that has some.

    Returns:
        Split -> its questions; and what to say about them in manifest.json.

    Raises:
        UserError: the source is too small for the mix.
    """
    every = [image for split in splits.values() for image in split]
    split_of = {image.image_id: name for name, split in splits.items() for image in split}
    plans: dict[str, list[PlannedQuestion]] = {split: [] for split in splits}
    left_out: collections.Counter[str] = collections.Counter()
    for plan in asking.plan_lesions(every, seed, left_out):
        plans[split_of[plan.image.image_id]].append(plan)
    notes: dict[str, Any] = {}
    if left_out:
        notes["kinds_left_out"] = dict(left_out)
    if mix == BALANCED:
        for split, positives in plans.items():
            asked = balance(positives, normal.get(split, ()), seed, split)
            plans[split] = _number([*positives, *_denied(asked)], seed)
    elif mix:
        assert isinstance(mix, Mix)
        for split, positives in plans.items():
            if split == "train":
                plans[split], scale = mix_training(positives, normal.get(split, ()), mix, seed)
                notes["mix_scale"] = round(scale, 6)
            else:
                plans[split] = mix_held_out(positives, mix, seed)
    if mix:
        notes["lookup_score"] = {split: round(lookup_score(of), 3) for split, of in plans.items()}
    if list_all:
        notes["list_all"] = True
        plans = {split: _with_list_all(split_plans) for split, split_plans in plans.items()}
    return plans, notes


def pick_normal(
    images: Sequence[ImageAnnotation], count: int | None, seed: int, spare: float = 0.05
) -> list[ImageAnnotation]:
    """Picks `count` normal images and some spare ones; None: all. The order is random."""
    normal = sorted(
        (image for image in images if image.normal),
        key=lambda image: asking.stream(seed, image.image_id, "normal").random(),
    )
    return normal if count is None else normal[: math.ceil(count * (1 + spare))]


def _with_list_all(plans: Sequence[PlannedQuestion]) -> list[PlannedQuestion]:
    """The questions of each image, and behind them that for everything on it."""
    by_image: dict[str, list[PlannedQuestion]] = {}
    for plan in plans:
        by_image.setdefault(plan.image.image_id, []).append(plan)
    for image_id, group in by_image.items():
        if group[0].image.findings:
            group.append(asking.plan_list_all(group[0].image, f"{image_id}-{len(group)}"))
    return [plan for group in by_image.values() for plan in group]
