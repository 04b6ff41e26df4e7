"""Questions about images with boxes, in the words of their classes; as many no as yes.

Each class that an image shows is asked for: where it is, and, of a class that has several boxes
somewhere, how many there are. If it is there is asked of as many images that show it as of others:
where one kind is rarer, it decides, and of a class that every image shows nothing of the sort is
asked, since "yes" would need no look at the image.
"""

import collections
import dataclasses
import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.apps.annotations.annotation import ANY, Annotation
from cxrjax.codecs import get_codec
from cxrjax.files import read_packaged
from cxrjax.radiology_text.nouns import forms
from cxrjax.records import Answer, Provenance, QARecord, class_in_words
from cxrjax.records_io.quality import PixelBox

# What boxes are counted of, beyond which one answer may not list them.
MOST_BOXES = 20


@dataclasses.dataclass(frozen=True)
class BoxedImage:
    """An image that is asked about.

    Attributes:
        path: relative to the build.
        image_hw: what boxes refer to.
        boxes: class -> boxes in pixels.
        where: file and line.
        unlocated: classes that it shows somewhere, which are not asked about.
        file: of the image.
        odd: what is doubtful about it.
        entries: of the source that are used of it.
    """

    image_id: str
    path: str
    image_hw: tuple[int, int]
    patient: str
    boxes: Mapping[str, Sequence[PixelBox]]
    where: str
    unlocated: frozenset[str] = frozenset()
    file: Path = Path()
    odd: tuple[str, ...] = ()
    entries: tuple[Annotation, ...] = ()


def choose_balanced(
    images: Sequence[BoxedImage], classes: Iterable[str], seed: int
) -> dict[str, set[str]]:
    """Image id -> classes of which it is asked if they are there.

    Of each class as many images that show it as others, the rarest class first. Of those that do
    not show it, an image that is asked for few absent classes so far goes before others.
    """
    having = {label: [one.image_id for one in images if label in one.boxes] for label in classes}
    asked: dict[str, set[str]] = collections.defaultdict(set)
    denied: collections.Counter[str] = collections.Counter()
    for label in sorted(having, key=lambda label: (len(having[label]), label)):
        draw = random.Random(f"{seed}/{label}/asked")
        shown = set(having[label])
        without = [
            one.image_id
            for one in images
            if one.image_id not in shown and not {label, ANY} & one.unlocated
        ]
        order = {one.image_id: draw.random() for one in images}
        without.sort(key=lambda image_id: (denied[image_id], order[image_id]))
        count = min(len(shown), len(without))
        denied.update(without[:count])
        for image_id in [*sorted(shown, key=order.__getitem__)[:count], *without[:count]]:
            asked[image_id].add(label)
    return asked


def ask(
    images: Sequence[BoxedImage],
    split: str,
    if_there: Mapping[str, set[str]],
    counted: Iterable[str],
    seed: int,
) -> Iterator[QARecord]:
    """The questions of a split, image by image.

    Args:
        if_there: as `choose_balanced` gives it.
        counted: classes of which it is asked how many there are.
    """
    told = read_packaged(str(__package__), "questions.toml")
    counted = set(counted)
    for image in images:
        asked = if_there.get(image.image_id, set())
        for label in sorted({*image.boxes} | asked):
            boxes = image.boxes.get(label, ())
            kinds = ["is_there"] * (label in asked) + ["where"] * bool(boxes)
            kinds += ["how_many"] * (label in counted and bool(boxes))
            for kind in kinds:
                yield _record(image, label, boxes, kind, told[kind], split, seed)


def identifier(label: str) -> str:
    """A class as part of an id: other classes have other ids, whatever letters they are in."""
    slug = re.sub(r"[^0-9a-z]+", "_", label.lower())
    if slug == re.sub(r"[ _]", "_", label.lower()):
        return slug
    return f"{slug.strip('_')}_{hashlib.sha256(label.encode()).hexdigest()[:8]}".lstrip("_")


def _record(
    image: BoxedImage,
    label: str,
    boxes: Sequence[PixelBox],
    kind: str,
    told: Mapping[str, Any],
    split: str,
    seed: int,
) -> QARecord:
    words = class_in_words(label)
    question_id = f"{image.image_id}-{identifier(label)}-{kind}"
    draw = random.Random(f"{seed}/{question_id}")
    wording = draw.choice(told["ask"]) if split == "train" else told["ask"][0]
    fields = forms(words, len(boxes))
    form = told["yes"] if boxes else told["no"]
    text = form.format(boxes=_written(boxes, image.image_hw), **fields)
    answer = Answer(
        text=text,
        labels=[label],
        polarity="pos" if boxes else "neg",
        boxes_by_image={image.image_id: [list(box) for box in boxes]} if boxes else {},
    )
    return QARecord(
        dataset="custom",
        split=split,
        patient_id=image.patient,
        image_id=image.image_id,
        image_path=image.path,
        image_hw=image.image_hw,
        question_id=question_id,
        question=wording.format(**fields),
        question_type=told["type"],
        template_id=f"boxes/{kind}",
        variables={"finding": label},
        answers=[answer],
        negative_kind=None if boxes else "absent_class" if image.boxes else "no_finding_image",
        provenance=Provenance(source_file=image.where),
    )


def _written(boxes: Sequence[PixelBox], image_hw: tuple[int, int]) -> str:
    height, width = image_hw
    codec = get_codec("vindr_px")
    fractions = np.array(boxes, np.float64).reshape(-1, 4) / [width, height, width, height]
    return " and ".join(codec.encode(one[None], height, width) for one in fractions)
