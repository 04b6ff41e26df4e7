"""Balances questions answered no with those answered yes, for each class and each kind."""

import collections
import heapq
from collections.abc import Sequence

from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.asking import stream
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion

Asked = list[tuple[ImageAnnotation, str, str | None]]  # image, kind, class


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
    normal = sorted(normal, key=lambda i: stream(seed, i.image_id, "mix").random())[:wanted]
    if len(normal) < wanted:
        raise UserError(
            f"{split}: {len(normal)} images without findings for {wanted} questions that want one "
            "each, too few for --mix=balanced; use --mix=released"
        )
    asked: Asked = [(image, "What", None) for image in normal]
    abnormal = list({plan.image.image_id: plan.image for plan in positives}.values())
    pools = [_Pool(abnormal, seed, "abnormal", 0), _Pool(normal, seed, "normal", 1)]
    # The classes with the fewest images without them choose first.
    for label, kinds in sorted(by_class.items(), key=lambda one: (-len(one[1]), one[0])):
        stream(seed, f"{split}/{label}", "balance").shuffle(kinds)
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
        self._heap = [
            (asked, stream(seed, image.image_id, purpose).random(), number)
            for number, image in enumerate(images)
        ]
        heapq.heapify(self._heap)
        self._images = images
        self._taken = [set(image.present) for image in images]

    def take(self, label: str) -> ImageAnnotation | None:
        """Returns an image without the class that was not asked about it; None where there is
        none."""
        passed = []
        found = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            count, tie, number = entry
            if label in self._taken[number]:
                passed.append(entry)
                continue
            found = self._images[number]
            self._taken[number].add(label)
            passed.append((count + 1, tie, number))
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found


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
