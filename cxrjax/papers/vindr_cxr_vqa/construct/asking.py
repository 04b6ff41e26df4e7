"""Plans the questions about an image: kinds, classes and boxes, decided without words."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.lesions import ORGANS, count_range, find_lesions
from cxrjax.papers.vindr_cxr_vqa.construct.places import describe, frame_of
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES

QUESTIONS_PER_IMAGE = 4  # Table 3: 17,597 questions on 4,394 images
MAX_BOXES = 6  # in one answer
CLASS_QUESTION_TYPES = tuple(name for name in QUESTION_TYPES if name != "What")


def stream(seed: int, key: str, purpose: str) -> random.Random:
    """Returns a generator for one purpose; a text seed gives the same on every platform."""
    return random.Random(f"{seed}/{key}/{purpose}")


def plan_lesions(
    images: Sequence[ImageAnnotation], seed: int, left_out: Counter[str] | None = None
) -> Iterator[PlannedQuestion]:
    """Plans four questions about each image with findings; images without are skipped.

    Findings rotate over the image's classes, so a class is asked about twice only when all others
    had their turn; a class of more than `MAX_BOXES` lesions, only where there is no other. The
    first kind is dealt over the images, so that all six come equally often; an image that has
    nothing to answer a kind with (`able_labels`) is dealt a first kind without it in the window, as
    far as there are some.

    Args:
        left_out: receives how often a kind was replaced by another.
    """
    images = [image for image in images if image.findings]
    classes = {image.image_id: _Classes(image) for image in images}
    kinds = _deal_kinds(classes, seed)
    left_out = Counter() if left_out is None else left_out
    for image in images:
        rng = stream(seed, image.image_id, "vqa")
        known = classes[image.image_id]
        labels = rng.sample(known.askable, len(known.askable))
        asked = _able_kinds(kinds[image.image_id], known, left_out)
        for number, (kind, label) in enumerate(_dealt_labels(asked, labels, known)):
            boxes = tuple(lesion.box for lesion in known.lesions[label])
            yield PlannedQuestion(
                image,
                f"{image.image_id}-{number}",
                kind,
                "lesions",
                (label,),
                {label: boxes},
                len(boxes),
                count_range(image, label),
                known.places[label],
                tuple(name for name in image.present if name != label) if kind == "What" else (),
            )


class _Classes:
    """Lists what can be asked about the classes of one image.

    Attributes:
        askable: classes of few enough lesions; all, where there are none.
    """

    def __init__(self, image: ImageAnnotation) -> None:
        self.lesions = {label: find_lesions(image, label) for label in image.present}
        frame = frame_of(image)
        self.places = {
            label: describe(label, [lesion.box for lesion in lesions], frame)
            for label, lesions in self.lesions.items()
        }
        few = [label for label, lesions in self.lesions.items() if len(lesions) <= MAX_BOXES]
        self.askable = few or list(self.lesions)

    def able_labels(self, kind: str) -> list[str]:
        """Classes of which a kind can be asked: "Which" wants a known place, and "How many" what
        may be there more than once."""
        if kind == "Which":
            return [label for label in self.askable if self.places[label]]
        if kind == "How_many":
            return [label for label in self.askable if label not in ORGANS]
        return self.askable


def _window(start: int) -> list[str]:
    """The kinds of an image's questions, from the one to begin with."""
    return [QUESTION_TYPES[(start + n) % len(QUESTION_TYPES)] for n in range(QUESTIONS_PER_IMAGE)]


def _deal_kinds(classes: Mapping[str, _Classes], seed: int) -> dict[str, list[str]]:
    """Deals each image four kinds in rotation, every first one equally often; the images with the
    least choice choose first."""
    ids = sorted(classes)
    rng = random.Random(f"{seed}/kinds")
    rng.shuffle(ids)
    first = rng.randrange(len(QUESTION_TYPES))
    left = Counter(n % len(QUESTION_TYPES) for n in range(first, first + len(ids)))
    fit = {
        image_id: [
            start
            for start in range(len(QUESTION_TYPES))
            if all(known.able_labels(kind) for kind in _window(start))
        ]
        for image_id, known in classes.items()
    }
    dealt = {}
    for image_id in sorted(ids, key=lambda image_id: len(fit[image_id])):
        able = [start for start in fit[image_id] if left[start]]
        start = max(able or left, key=lambda start: (left[start], start))
        left[start] -= 1
        dealt[image_id] = _window(start)
    return dealt


def _able_kinds(kinds: Sequence[str], known: _Classes, left_out: Counter[str]) -> list[str]:
    """Replaces kinds that the image cannot answer by others."""
    others = [kind for kind in QUESTION_TYPES if kind not in kinds and known.able_labels(kind)]
    able = []
    for kind in kinds:
        if not known.able_labels(kind) and others:
            left_out[kind] += 1
            kind = others.pop(0)
        able.append(kind)
    return able


def _dealt_labels(
    kinds: Sequence[str], labels: Sequence[str], known: _Classes
) -> list[tuple[str, str]]:
    """Pairs kinds with classes of an image, in rotation, where the kind can be asked of it."""
    turns = [labels[number % len(labels)] for number in range(len(kinds))]
    dealt: dict[str, str] = {}
    # The kinds with the least choice choose first.
    for kind in sorted(kinds, key=lambda kind: len(known.able_labels(kind))):
        able = known.able_labels(kind) or known.askable
        label = next((label for label in turns if label in able), None)
        if label is None:
            label = next(label for label in labels if label in able)
            turns.pop()
        else:
            turns.remove(label)
        dealt[kind] = label
    return [(kind, dealt[kind]) for kind in kinds]


def plan_list_all(image: ImageAnnotation, question_id: str) -> PlannedQuestion:
    """Plans the question for every finding of an image, with all boxes of all readers.

    Classes in alphabetical order, boxes in reading order; a box that two readers drew alike is
    listed once.
    """
    boxes = {label: tuple(dict.fromkeys(image.boxes_of(label))) for label in image.present}
    count = sum(map(len, boxes.values()))
    return PlannedQuestion(
        image, question_id, "What", "list_all", tuple(image.present), boxes, count
    )


def plan_denied(
    image: ImageAnnotation, question_id: str, kind: str, label: str | None
) -> PlannedQuestion:
    """Plans a question whose answer is no: about a class that is absent, or, without a label,
    "What" on an image without findings."""
    labels = (label,) if label else ()
    denied = negative_kind(image)
    return PlannedQuestion(image, question_id, kind, "lesions", labels, {}, 0, negative_kind=denied)


def negative_kind(image: ImageAnnotation) -> Literal["no_finding_image", "absent_class"]:
    """Distinguishes an image without findings from one with other classes."""
    return "absent_class" if image.findings else "no_finding_image"
