"""Training mixes: which questions of what kind, and how many.

The release has positive questions only, 17,597 in all; the paper trains on 20,880 (section 3.1), of
which 41.7 % are positive and 58.3 % negative (abstract). 20,880 is six kinds times 3,480, and
8,700 to 12,180 is 5 to 7 exactly: a mix with questions about normal images and absent classes.
There absent classes are drawn evenly, so that the name of a class tells much about its answer
(`lookup_score`); the balanced mix, our own, denies each class as often as it affirms it.
"""

import bisect
import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct import asking
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES

Asked = list[tuple[ImageAnnotation, str, str | None]]  # image, kind, class
# Released: positive questions only.
MixName = Literal["released", "paper", "balanced"]
# Training questions of the paper's mix, of each kind alike.
POSITIVE, NEGATIVE = 8700, 12180
# Negatives on images without findings (`no_finding_image`); the others ask for absent classes on
# images with findings (`absent_class`). All negative "What" questions are among the former, one an
# image: on an image with findings their answer is not no.
NO_FINDING = 6090
NORMAL_IMAGES = NEGATIVE // len(QUESTION_TYPES)
_CLASS_KINDS = asking.CLASS_QUESTION_TYPES


def normal_images(mix: MixName, abnormal: int) -> int:
    """Returns how many images without findings a split can use, by its images with findings."""
    if mix == "paper":
        return NORMAL_IMAGES
    # Each is asked "What" once, as two of three images with findings are.
    share = asking.QUESTIONS_PER_IMAGE / len(QUESTION_TYPES)
    return math.ceil(abnormal * share) + len(QUESTION_TYPES) if mix == "balanced" else 0


def mix_training(
    positives: Sequence[PlannedQuestion], normal: Sequence[ImageAnnotation], seed: int
) -> tuple[list[PlannedQuestion], float]:
    """Returns the training questions of the paper's mix, and its scale: 1, or less for lack of
    questions, in every part alike.

    Args:
        positives: the questions about images with findings to choose from. Of every image at least
            one is taken while there is room.
        normal: images without findings.

    Raises:
        UserError: the source is too small for any mix in these proportions.
    """
    by_kind = collections.defaultdict(list)
    for plan in _one_of_each_image_first(positives, seed):
        by_kind[plan.kind].append(plan)
    abnormal = _images_of(positives)
    room = sum(len(image.deniable) for image in abnormal)
    n_positive, n_absent = POSITIVE // len(QUESTION_TYPES), NEGATIVE - NO_FINDING
    scale = min(
        1.0,
        min(len(by_kind[kind]) for kind in QUESTION_TYPES) / n_positive,
        len(normal) / NORMAL_IMAGES,
        room / n_absent,
    )
    positive, what, no_finding, absent = (
        int(scale * count)
        for count in (
            n_positive,
            NORMAL_IMAGES,
            (NO_FINDING - NORMAL_IMAGES) // len(_CLASS_KINDS),
            n_absent // len(_CLASS_KINDS),
        )
    )
    if not positive or not what:
        raise UserError(
            f"--mix: {len(positives)} questions about findings and {len(normal)} images without "
            f"are too few to mix {POSITIVE} to {NEGATIVE} over six kinds: use --mix=released or a "
            "larger source"
        )
    chosen = [plan for kind in QUESTION_TYPES for plan in by_kind[kind][:positive]]
    normal = _shuffled(normal, seed)[:what]
    asked: Asked = [(image, "What", None) for image in normal]
    asked += _about_absent(normal, no_finding * len(_CLASS_KINDS), seed, "normal")
    abnormal = _shuffled(abnormal, seed)
    asked += _about_absent(abnormal, absent * len(_CLASS_KINDS), seed, "abnormal")
    return _number([*chosen, *_denied(asked)], seed), scale


def mix_held_out(positives: Sequence[PlannedQuestion], seed: int) -> list[PlannedQuestion]:
    """Returns all positive questions, and absent classes of the same images in the mix's share.

    The images stay those of the released questions, so that figures per image compare.
    """
    count = round(len(positives) * NEGATIVE / POSITIVE)
    asked = _about_absent(_shuffled(_images_of(positives), seed), count, seed, "held out")
    return _number([*positives, *_denied(asked)], seed)


def balance(
    positives: Sequence[PlannedQuestion], normal: Sequence[ImageAnnotation], seed: int, split: str
) -> Asked:
    """Returns for each positive question one to be denied, of its kind and class.

    So neither the name of a class nor the kind of the question tells the answer. Absent classes are
    asked about in turns on images with findings and on images without any, at most once an image;
    those with the fewest questions so far go first. "What" is denied on images without findings.

    Raises:
        UserError: there are too few images.
    """
    by_class: dict[str, list[str]] = collections.defaultdict(list)
    for plan in positives:
        by_class["" if plan.kind == "What" else plan.labels[0]].append(plan.kind)
    wanted = len(by_class.pop("", ()))
    normal = _shuffled(normal, seed)[:wanted]
    if len(normal) < wanted:
        raise UserError(
            f"{split}: {len(normal)} images without findings for {wanted} questions that want one "
            "each, too few for --mix=balanced; use --mix=released"
        )
    asked: Asked = [(image, "What", None) for image in normal]
    pools = [_Pool(_images_of(positives), seed, "abnormal", 0), _Pool(normal, seed, "normal", 1)]
    # The classes with the fewest images without them choose first.
    for label, kinds in sorted(by_class.items(), key=lambda one: (-len(one[1]), one[0])):
        asking.stream(seed, f"{split}/{label}", "balance").shuffle(kinds)
        for number, kind in enumerate(kinds):
            first, second = pools[number % 2], pools[1 - number % 2]
            image = first.take(label) or second.take(label)
            if image is None:
                raise UserError(
                    f"{split}: no image left without {label} for --mix=balanced; use --mix=released"
                )
            asked.append((image, kind, label))
    return asked


class _Pool:
    """Images to ask about absent classes, those with the fewest questions first."""

    def __init__(
        self, images: Sequence[ImageAnnotation], seed: int, purpose: str, asked: int
    ) -> None:
        self._images = images
        self._taken = [{*CLASSES} - {*image.deniable} for image in images]
        self._order = sorted(
            (asked, asking.stream(seed, image.image_id, purpose).random(), number)
            for number, image in enumerate(images)
        )

    def take(self, label: str) -> ImageAnnotation | None:
        """Takes an image without the class that was not asked about it; None without one."""
        for place, (count, tie, number) in enumerate(self._order):
            if label not in self._taken[number]:
                self._taken[number].add(label)
                del self._order[place]
                bisect.insort(self._order, (count + 1, tie, number))
                return self._images[number]
        return None


def lookup_score(plans: Sequence[PlannedQuestion]) -> float:
    """Returns the share of the questions about classes that the class's name and the kind alone
    answer: the more frequent of yes and no, for each class and kind."""
    about = [
        (plan.labels[0], plan.kind, plan.negative_kind is None)
        for plan in plans
        if plan.kind != "What"
    ]
    counts = collections.Counter(about)
    kinds = {(label, kind) for label, kind, _ in about}
    right = sum(max(counts[*one, True], counts[*one, False]) for one in kinds)
    return right / len(about) if about else 0.0


def _images_of(plans: Iterable[PlannedQuestion]) -> list[ImageAnnotation]:
    return list({plan.image.image_id: plan.image for plan in plans}.values())


def _about_absent(images: Sequence[ImageAnnotation], count: int, seed: int, purpose: str) -> Asked:
    """Returns `count` questions about absent classes, evenly over kinds and images; fewer where
    every absent class is taken."""
    absent = []
    for image in images:
        labels = image.deniable
        absent.append(asking.stream(seed, image.image_id, "absent").sample(labels, len(labels)))
    kinds = [_CLASS_KINDS[number % len(_CLASS_KINDS)] for number in range(count)]
    asking.stream(seed, purpose, "kinds").shuffle(kinds)
    slots = (
        (image, labels[turn])
        for turn in range(len(CLASSES))
        for image, labels in zip(images, absent, strict=True)
        if turn < len(labels)
    )
    # The shorter decides.
    return [(image, kind, label) for kind, (image, label) in zip(kinds, slots, strict=False)]


def _denied(asked: Asked) -> Iterator[PlannedQuestion]:
    for number, (image, kind, label) in enumerate(asked):
        yield asking.plan_denied(image, f"{image.image_id}-denied{number}", kind, label)


def _by_image(plans: Iterable[PlannedQuestion]) -> dict[str, list[PlannedQuestion]]:
    found: dict[str, list[PlannedQuestion]] = {}
    for plan in plans:
        found.setdefault(plan.image.image_id, []).append(plan)
    return found


def _one_of_each_image_first(
    plans: Sequence[PlannedQuestion], seed: int
) -> Iterator[PlannedQuestion]:
    """Yields a question of each image, then a second of each, and so on, each round shuffled."""
    rounds = _by_image(plans)
    for image_id, group in rounds.items():
        asking.stream(seed, image_id, "mix").shuffle(group)
    for turn in range(max(map(len, rounds.values()), default=0)):
        these = [group[turn] for group in rounds.values() if turn < len(group)]
        yield from sorted(
            these, key=lambda plan: asking.stream(seed, plan.question_id, "mix").random()
        )


def _shuffled(
    images: Iterable[ImageAnnotation], seed: int, purpose: str = "mix"
) -> list[ImageAnnotation]:
    return sorted(images, key=lambda image: asking.stream(seed, image.image_id, purpose).random())


def _number(plans: Sequence[PlannedQuestion], seed: int) -> list[PlannedQuestion]:
    """Returns questions by image, in mixed order, and numbered anew: a number tells nothing."""
    numbered = []
    for image_id, group in sorted(_by_image(plans).items()):
        asking.stream(seed, image_id, "order").shuffle(group)
        numbered += [
            dataclasses.replace(plan, question_id=f"{image_id}-{number}")
            for number, plan in enumerate(group)
        ]
    return numbered


def plan_splits(
    splits: Mapping[str, Sequence[ImageAnnotation]],
    normal: Mapping[str, Sequence[ImageAnnotation]],
    mix: MixName,
    list_all: bool,
    seed: int,
) -> tuple[dict[str, list[PlannedQuestion]], dict[str, Any]]:
    """Plans every split; returns split -> its questions, and notes on them for manifest.json.

    Args:
        splits: split -> its images with findings.
        normal: split -> images on which nobody marked anything; the paper's mix asks about those of
            training only.
        list_all: also ask for all findings of each image that has some.

    Raises:
        UserError: the source is too small for the mix.
    """
    every = [image for split in splits.values() for image in split]
    split_of = {image.image_id: name for name, split in splits.items() for image in split}
    plans: dict[str, list[PlannedQuestion]] = {split: [] for split in splits}
    left_out: collections.Counter[str] = collections.Counter()
    for plan in asking.plan_lesions(every, seed, left_out):
        plans[split_of[plan.image.image_id]].append(plan)
    notes: dict[str, Any] = {"kinds_left_out": dict(left_out)} if left_out else {}
    for split, positives in plans.items():
        if mix == "balanced":
            asked = balance(positives, normal.get(split, ()), seed, split)
            plans[split] = _number([*positives, *_denied(asked)], seed)
        elif mix == "paper" and split == "train":
            plans[split], scale = mix_training(positives, normal.get(split, ()), seed)
            notes["mix_scale"] = round(scale, 6)
        elif mix == "paper":
            plans[split] = mix_held_out(positives, seed)
    if mix != "released":
        notes["lookup_score"] = {split: round(lookup_score(of), 3) for split, of in plans.items()}
    if list_all:
        notes["list_all"] = True
        plans = {split: _with_list_all(split_plans) for split, split_plans in plans.items()}
    return plans, notes


def pick_normal(
    images: Sequence[ImageAnnotation], count: int | None, seed: int
) -> list[ImageAnnotation]:
    """Returns so many normal images, and 5 % to spare for unusable files; None: all, in random
    order."""
    normal = _shuffled((image for image in images if image.normal), seed, "normal")
    return normal if count is None else normal[: math.ceil(count * 1.05)]


def _with_list_all(plans: Sequence[PlannedQuestion]) -> list[PlannedQuestion]:
    """Returns the questions of each image, and behind them that for everything on it."""
    by_image = _by_image(plans)
    for image_id, group in by_image.items():
        if group[0].image.findings:
            group.append(asking.plan_list_all(group[0].image, f"{image_id}-{len(group)}"))
    return [plan for group in by_image.values() for plan in group]
