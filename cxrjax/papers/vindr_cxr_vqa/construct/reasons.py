"""Reasons of 150 to 250 words (Table 2) that follow from the annotation and only from it.

First what the readers marked: who, how many agree, where and how large the box is, what else is on
the image. Then, introduced as such, general knowledge about the class. Then how that leads to the
answer.
"""

import dataclasses
from collections.abc import Sequence
from random import Random

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.plan import REASON_WORDS, PlannedQuestion
from cxrjax.papers.vindr_cxr_vqa.construct.templates import (
    VindrTemplates,
    class_words,
    format_box,
    reading_remarks,
)
from cxrjax.radiology_text.english import join
from cxrjax.records_io.quality import PixelBox

_NAMED_READERS = 6  # more are summed up


@dataclasses.dataclass
class _Parts:
    """Sentences in the order of the text; of the optional ones, as many as the length asks for.

    Attributes:
        facts: of the annotation.
        remarks: of general knowledge.
        more_facts, more_remarks: optional ones, which follow theirs.
    """

    facts: list[str]
    remarks: list[str]
    end: str
    more_facts: list[str]
    more_remarks: list[str]

    def text(self, rng: Random) -> str:
        """The sentences, with as many optional ones as a drawn length asks for."""
        required = [*self.facts, *self.remarks, self.end]
        words = sum(map(_words, required))
        fewest, most = REASON_WORDS
        target = rng.randint(fewest + 10, most - 35)
        chosen: set[str] = set()
        # Facts first: they are what the reason is for.
        for sentences in (self.more_facts, self.more_remarks):
            for sentence in rng.sample(sentences, len(sentences)):
                if words < target and words + _words(sentence) <= most:
                    chosen.add(sentence)
                    words += _words(sentence)
        facts = [*self.facts, *(s for s in self.more_facts if s in chosen)]
        remarks = [*self.remarks, *(s for s in self.more_remarks if s in chosen)]
        return " ".join([*facts, *remarks, self.end])


def _words(text: str) -> int:
    return len(text.split())


def write_reason(plan: PlannedQuestion, templates: VindrTemplates, rng: Random) -> str:
    """The reason for a plan's answer, of as many words as Table 2 says."""
    texts = _Texts(plan.image, templates, rng)
    if plan.style == "list_all":
        parts = _listed(plan, texts)
    elif plan.negative_kind is None:
        parts = _shown(plan, texts)
    else:
        parts = _denied(plan, texts)
    return parts.text(rng)


class _Texts:
    """Sentences about one image."""

    def __init__(self, image: ImageAnnotation, templates: VindrTemplates, rng: Random) -> None:
        self.image = image
        self.rng = rng
        self._templates = templates
        readers = len(image.readers)
        self._common = {
            "readers": number(readers),
            "all_readers": "both readers" if readers == 2 else f"all {number(readers)} readers",
            "no_readers": (
                "neither of the two readers"
                if readers == 2
                else f"none of the {number(readers)} readers"
            ),
            "names": self.names(list(image.readers)),
        }

    def __call__(self, name: str, **values: str) -> str:
        """The sentence of this name, filled."""
        return self._templates.reason(name, self.rng, **{**self._common, **values})

    def names(self, readers: Sequence[str]) -> str:
        if len(readers) <= _NAMED_READERS:
            return join(readers)
        rest = counted(len(readers) - _NAMED_READERS, "other", "others")
        return join([*readers[:_NAMED_READERS], rest])

    def agreement(self, label: str, rad_id: str) -> str:
        """Says how many readers marked the class, and who."""
        readers = self.image.readers
        names = [key for key, marked in readers.items() if any(f.label == label for f in marked)]
        values = {"finding": label, "votes": number(len(names)), "names": self.names(names)}
        if len(readers) == 1:
            return self("agreement_single", rad_id=rad_id)
        if len(names) == 1:
            return self("agreement_alone", rad_id=rad_id, **values)
        return self("agreement_all" if len(names) == len(readers) else "agreement_some", **values)

    def others(self, label: str) -> str:
        """Names the other classes that are marked."""
        others = [name for name in self.image.present if name != label]
        kind = "none" if not others else "one" if len(others) == 1 else "many"
        return self(f"others_{kind}", others=join(others))

    def not_marked(self, besides: Sequence[str]) -> list[str]:
        """A sentence that names some absent classes; none where every class is present."""
        absent = [c for c in CLASSES if c not in self.image.present and c not in besides]
        if not absent:
            return []
        some = sorted(self.rng.sample(absent, min(len(absent), self.rng.randint(2, 4))))
        return [self("not_marked", absent=join(some, "or"))]

    def remarks(self, label: str) -> tuple[list[str], list[str]]:
        """General knowledge about a class: (what has to be said, what may be added)."""
        words = class_words()[label]
        definition = self.rng.sample(words.definition, len(words.definition))
        sign = self.rng.sample(words.sign, len(words.sign))
        lead = self("general")
        reading = self.rng.sample(reading_remarks(), 3)
        return [lead, definition[0], sign[0]], [sign[1], *words.care, *reading]


def _shown(plan: PlannedQuestion, texts: _Texts) -> _Parts:
    """Parts about a finding and the box that one reader drew around it."""
    image, rad_id = plan.image, plan.rad_id
    (label,) = plan.labels
    (box,) = plan.boxes[label]
    assert rad_id is not None  # a box that is shown alone is some reader's
    rank, total = order(image, label, box)
    in_order = (
        texts("order", order=ordinal(rank), total=number(total))
        if total > 1
        else texts("order_only")
    )
    facts = [
        texts("marked", rad_id=rad_id, finding=label, box=format_box(box)),
        texts.agreement(label, rad_id),
        texts(
            "count_one" if plan.count == 1 else "count_many",
            rad_id=rad_id,
            count=number(plan.count),
        ),
    ]
    more = []
    if image.image_hw:
        facts.append(texts("place", place=place(box, image.image_hw)))
        more.append(in_order)
    else:
        facts.append(in_order)
    facts.append(texts.others(label))
    if total > plan.count:
        more.append(texts("class_boxes", total=number(total)))
    boxes = [finding.box for finding in image.findings]
    if (size := size_rank(box, boxes)) is not None:
        more.append(texts("size", rank=size, total=number(len(boxes))))
    more += _overlap(image, label, rad_id, box, texts)
    more += texts.not_marked([label])
    remarks, more_remarks = texts.remarks(label)
    structure = class_words()[label].structure
    end = texts(f"end_{plan.kind}", rad_id=rad_id, structure=structure)
    return _Parts(facts, remarks, end, more, more_remarks)


def _overlap(
    image: ImageAnnotation, label: str, rad_id: str, box: PixelBox, texts: _Texts
) -> list[str]:
    """Counts the other readers' boxes that overlap the box; nothing where nobody else drew any."""
    theirs = [
        finding.box
        for reader, marked in image.readers.items()
        for finding in marked
        if reader != rad_id and finding.label == label
    ]
    if not theirs:
        return []
    count = sum(overlap(box, other) for other in theirs)
    kind = "none" if count == 0 else "one" if count == 1 else "many"
    return [texts(f"overlap_{kind}", count=number(count))]


def _denied(plan: PlannedQuestion, texts: _Texts) -> _Parts:
    """Parts about a class that nobody marked, or an image without any mark."""
    image = plan.image
    single = "_single" if len(image.readers) == 1 else ""
    rad_id = next(iter(image.readers))
    facts, more = [], []
    if not image.findings:
        facts.append(texts(f"normal{single}", rad_id=rad_id))
    if plan.labels:
        facts.append(texts(f"denied{single}", finding=plan.labels[0], rad_id=rad_id))
    if image.findings:
        present = image.present
        facts.append(
            texts(
                "present_one" if len(present) == 1 else "present_many",
                others=join(present),
                boxes=counted(len(image.findings), "box", "boxes"),
            )
        )
    more += texts.not_marked(plan.labels)
    if plan.labels:
        remarks, more_remarks = texts.remarks(plan.labels[0])
        structure = class_words()[plan.labels[0]].structure
    else:
        remarks, more_remarks = [texts("general_reading")], list(reading_remarks())
        structure = ""
    end = texts(f"end_none_{plan.kind}", structure=structure)
    return _Parts(facts, remarks, end, more, more_remarks)


def _listed(plan: PlannedQuestion, texts: _Texts) -> _Parts:
    """Parts about everything that is marked on an image."""
    image = plan.image
    items = []
    for label in plan.labels:
        readers = counted(image.votes(label), "reader", "readers")
        boxes = counted(len(plan.boxes[label]), "box", "boxes")
        items.append(f"{label} ({readers}, {boxes})")
    facts = [
        texts(
            "listed",
            boxes=counted(plan.count, "box", "boxes"),
            classes=counted(len(plan.labels), "class", "classes"),
            items=join(items),
        )
    ]
    some = texts.rng.sample(plan.labels, min(len(plan.labels), 2))
    more = [text for label in some for text in (*texts.remarks(label)[0][1:],)]
    remarks = [texts("general_reading")]
    return _Parts(
        facts,
        remarks,
        texts("end_list"),
        texts.not_marked([]),
        [*more, *reading_remarks()],
    )


# fmt: off
_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
    "eighteen", "nineteen", "twenty",
)


_ORDINALS = (
    "zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
    "ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth",
    "sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth",
)


# fmt: on
_THIRDS = ("upper", "middle", "lower")


def number(count: int) -> str:
    """A count in words up to twenty, beyond it in digits."""
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def ordinal(rank: int) -> str:
    """`first` to `twentieth`, then `21st`, `22nd`, ..."""
    if rank < len(_ORDINALS):
        return _ORDINALS[rank]
    suffix = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10)
    return f"{rank}{suffix or 'th'}"


def counted(count: int, one: str, many: str) -> str:
    """`one box`, `two boxes`."""
    return f"{number(count)} {one if count == 1 else many}"


def place(box: PixelBox, image_hw: tuple[int, int]) -> str:
    """Names the place of the box's centre: third of the image's height, half of its width.

    Sides are those of the image as displayed: which side of the patient that is, an annotation does
    not say.
    """
    height, width = image_hw
    third = _THIRDS[min(int((box[1] + box[3]) / 2 * 3 / height), 2)]
    side = "left" if (box[0] + box[2]) / 2 < width / 2 else "right"
    return f"in the {third} third and the {side} half of the image"


def order(image: ImageAnnotation, label: str, box: PixelBox) -> tuple[int, int]:
    """(rank, of how many): where the box stands among its class's boxes, from the top."""
    boxes = image.boxes_of(label)
    return boxes.index(box) + 1, len(boxes)


def place_or_order(image: ImageAnnotation, label: str, box: PixelBox) -> str:
    """The box's place; without the image's size, its rank among its class's boxes."""
    if image.image_hw:
        return place(box, image.image_hw)
    rank, total = order(image, label, box)
    if total == 1:
        return "the only box with this label"
    return f"the {ordinal(rank)} from the top of {number(total)} boxes with this label"


def size_rank(box: PixelBox, boxes: Sequence[PixelBox]) -> str | None:
    """`largest`, `second largest`, ..., `smallest` by area; None where that is not unique."""
    areas = [_area(other) for other in boxes]
    mine = _area(box)
    if len(areas) < 2 or areas.count(mine) > 1:
        return None
    larger = sum(area > mine for area in areas)
    if larger == 0:
        return "largest"
    return "smallest" if larger == len(areas) - 1 else f"{ordinal(larger + 1)} largest"


def overlap(a: PixelBox, b: PixelBox) -> bool:
    """Says whether two boxes share an area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _area(box: PixelBox) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
