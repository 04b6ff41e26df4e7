"""Writes reasons of 150 to 250 words (Table 2) from the facts of the image.

First what the image shows: where, how large, beside what. Then, as general knowledge, how the
finding shows, what would tell it from what looks like it, and what follows for the patient. Then
the answer that this leads to. Nobody's reading is spoken of: an image shows no votes.
"""

import dataclasses
from collections.abc import Container, Sequence
from random import Random

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation, related
from cxrjax.papers.vindr_cxr_vqa.construct import image_facts, places
from cxrjax.papers.vindr_cxr_vqa.construct.lesions import ORGANS, area, find_lesions
from cxrjax.papers.vindr_cxr_vqa.construct.plan import REASON_WORDS, PlannedQuestion, are
from cxrjax.papers.vindr_cxr_vqa.construct.templates import (
    ClassWords,
    VindrTemplates,
    class_words,
    vocabulary,
)
from cxrjax.radiology_text.english import capital, join
from cxrjax.records_io.quality import PixelBox

_CALLED = {places.HEART: "the enlarged heart", places.AORTA: "the widened aorta"}
_MOST_LISTED = 6  # classes with their places, in one sentence


@dataclasses.dataclass
class _Parts:
    """Sentences in the order of the text; of the optional ones, as many as the length needs."""

    facts: list[str]
    remarks: list[str]
    end: str
    more_facts: list[str]
    more_remarks: list[str]

    def text(self, rng: Random) -> str:
        """Returns the sentences, with as many optional ones as a random length needs."""
        words = len(" ".join([*self.facts, *self.remarks, self.end]).split())
        fewest, most = REASON_WORDS
        target = rng.randint(fewest + 5, most - 35)
        chosen: set[str] = set()
        # Facts first: they are what the reason is for.
        for sentences in (self.more_facts, self.more_remarks):
            for sentence in rng.sample(sentences, len(sentences)):
                longer = words + len(sentence.split())
                if words < target and longer <= most:
                    chosen.add(sentence)
                    words = longer
        facts = [*self.facts, *(s for s in self.more_facts if s in chosen)]
        remarks = [*self.remarks, *(s for s in self.more_remarks if s in chosen)]
        return " ".join([*facts, *remarks, self.end])


def write_reason(plan: PlannedQuestion, templates: VindrTemplates, rng: Random) -> str:
    """Returns the reason for a plan's answer, of as many words as Table 2 says."""
    texts = _Texts(plan.image, templates, rng)
    if plan.style == "list_all":
        return _listed(plan, texts).text(rng)
    return (_denied if plan.negative_kind else _shown)(plan, texts).text(rng)


class _Texts:
    """Sentences about one image."""

    def __init__(self, image: ImageAnnotation, templates: VindrTemplates, rng: Random) -> None:
        self.image = image
        self.rng = rng
        self.frame: places.ChestFrame = places.frame_of(image)
        self._templates = templates

    def __call__(self, name: str, **values: str) -> str:
        """Returns the sentence of this name, filled."""
        return self._templates.reason(name, self.rng, **values)

    def mimics(self, words: ClassWords) -> dict[str, str]:
        """Returns class -> the sentence that sets this class, which looks alike, apart."""
        return {
            other.name: self(
                f"mimic_{'present' if other.name in self.image.present else 'absent'}",
                mimic=other.prose,
                a_mimic=other.prose_with_article,
                A_mimic=capital(other.prose_with_article),
                would=other.would,
            )
            for other in map(class_words().__getitem__, words.looks_like)
            # Of what a marked class is a more general or more special word for, nothing is denied.
            if other.name in {*self.image.present, *self.image.deniable}
        }

    def general(self, words: ClassWords) -> tuple[list[str], list[str]]:
        """Returns general knowledge about a class: what is needed, and what may be added."""
        definition = self.rng.sample(words.definition, len(words.definition))
        sign = self.rng.sample(words.sign, len(words.sign))
        follows = self.rng.choice(words.follows)
        reading = self.rng.sample(vocabulary("reading"), 4)
        return [definition[0], sign[0], follows], [definition[1], sign[1], *words.care, *reading]

    def other(self, label: str, boxes: Sequence[Sequence[float]], it: str) -> list[str]:
        """Returns sentences on a further finding of the image: its place, also beside the boxes."""
        prose = {"other": class_words()[label].prose}
        sentences = []
        if place := self.place(label):
            sentences.append(self("other_placed", **prose, place=place))
        own = [lesion.box for lesion in find_lesions(self.image, label)]
        if boxes and own and label not in ORGANS:
            if max(box[3] for box in own) <= min(box[1] for box in boxes):
                sentences.append(self("other_higher", **prose, it=it))
            elif min(box[1] for box in own) >= max(box[3] for box in boxes):
                sentences.append(self("other_lower", **prose, it=it))
        return sentences

    def absent(self, spoken_of: Container[str] = ()) -> list[str]:
        """Returns what else the image does not show, a sentence for each part of the chest."""
        known = {*self.image.deniable}
        sentences = []
        for together in vocabulary("together"):
            named = [name for name in together if name in known and name not in spoken_of]
            if named:
                prose = [one for name in named for one in class_words()[name].prose.split(" or ")]
                sentences.append(self("none_of", names=join(prose, "or")))
        return sentences

    def named(self, labels: Sequence[str]) -> dict[str, str]:
        """Returns the slots of several classes in a sentence."""
        names = join([class_words()[label].prose_with_article for label in labels])
        return {"others": names, "Others": capital(names), "are": are(labels)}

    def place(self, label: str) -> str | None:
        """Returns the place of a class on this image, in words."""
        boxes = [lesion.box for lesion in find_lesions(self.image, label)]
        return places.describe(label, boxes, self.frame)


def _shown(plan: PlannedQuestion, texts: _Texts) -> _Parts:
    """Returns the parts about a finding and its lesions."""
    image, (label,) = plan.image, plan.labels
    words, boxes = class_words()[label], plan.boxes[label]
    slots = {**_slots(words), "count": number(plan.count), "place": plan.place or ""}
    many = "one" if plan.count == 1 else "many"
    if not plan.place:
        many = f"{'organ' if label in ORGANS else many}_unplaced"
    facts = [texts(f"seen_{many}", **slots), *_fit(label, boxes, texts, words)]
    near = image_facts.in_same_region(image, label, boxes)
    others = [name for name in image.present if name != label and name not in near]
    if near:
        facts.append(texts("same_region", **texts.named(near)))
    if others:
        facts.append(texts("elsewhere" if near else "also", **texts.named(others)))
    elif not near:
        facts.append(texts("alone"))
    more = _extent(label, boxes, texts)
    it = _CALLED.get(label, "all of these areas" if len(boxes) > 1 else "this area")
    for name in texts.rng.sample(others, min(len(others), 2)):
        more += texts.other(name, boxes, it)
    apart = texts.mimics(words)
    facts += [*apart.values()][:1]
    more += texts.absent([*apart][:1])
    remarks, more_remarks = texts.general(words)
    return _Parts(facts, remarks, _conclusion(plan, slots, texts), more, more_remarks)


def _fit(label: str, boxes: Sequence[PixelBox], texts: _Texts, words: ClassWords) -> list[str]:
    """Returns the sentence on what the place of the finding speaks for, if there is one."""
    zones = image_facts.zones_of(label, boxes, texts.frame)
    where = next(iter(zones)) if len(zones) == 1 else ""
    if "both" in words.fits and image_facts.sides_of(label, boxes, texts.frame) == {
        "right",
        "left",
    }:
        where = "both"
    return [words.fits[where]] if where in words.fits else []


def _extent(label: str, boxes: Sequence[PixelBox], texts: _Texts) -> list[str]:
    """Returns size and shape of the largest lesion, and the sides."""
    largest = max(boxes, key=area)
    it = _CALLED.get(label, "the largest area" if len(boxes) > 1 else "the area")
    sentences = []
    if texts.frame.image_hw:
        width, height = image_facts.extent(largest, texts.frame.image_hw)
        sentences.append(texts("extent", it=it, width=str(width), height=str(height)))
    elif (fraction := image_facts.against_heart(label, largest, texts.frame)) is not None:
        sentences.append(texts("against_heart", it=it, fraction=fraction))
    sentences.append(texts(f"shape_{image_facts.shape(largest)}", it=it))
    sides = image_facts.sides_of(label, boxes, texts.frame)
    if sides == {"right", "left"}:
        sentences.append(texts("sides_both"))
    # Of what a marked class is a more general or more special word for, nothing is denied.
    elif sides and not {*texts.image.present} & {*related(label)}:
        (other,) = {"right", "left"} - sides
        sentences.append(texts("sides_one", other_side=other))
    return sentences


def _conclusion(plan: PlannedQuestion, slots: dict[str, str], texts: _Texts) -> str:
    (label,) = plan.labels
    kind = plan.kind
    if kind in ("Where", "Which") and not plan.place:
        where = "this area" if plan.count == 1 else f"these {slots['count']} areas"
        if label in ORGANS and plan.count == 1:
            where = _CALLED[label]
        return texts(f"end_{kind}_unplaced", where=where)
    if kind == "How_many":
        return texts(f"end_How_many_{'one' if plan.count == 1 else 'many'}", **slots)
    others = f", together with {texts.named(plan.others)['others']}" if plan.others else ""
    return texts(f"end_{kind}", beside=others, **slots)


def _denied(plan: PlannedQuestion, texts: _Texts) -> _Parts:
    """Returns the parts about a class that nobody marked, or an image without any mark."""
    image, present = plan.image, plan.image.present
    facts = [texts("normal")] if image.normal else []
    end = f"end_none_{plan.kind}"
    if not plan.labels:
        reading = texts.rng.sample(vocabulary("reading"), len(vocabulary("reading")))
        return _Parts([*facts, *texts.absent()], [], texts(end), [], reading)
    words = class_words()[plan.labels[0]]
    facts.append(texts("denied", **_slots(words)))
    facts.append(texts("would", would=words.would))
    more = []
    if image.findings:
        facts.append(texts("instead", **texts.named(present)))
        placed = [(name, place) for name in present if (place := texts.place(name))]
        rest = list(present)
        if placed and len(present) > 1:
            name, place = texts.rng.choice(placed)
            rest.remove(name)
            other = class_words()[name].prose_with_article
            facts.append(texts("instead_placed", other=other, Other=capital(other), place=place))
        more += [text for name, text in texts.mimics(words).items() if name in present]
        for name in texts.rng.sample(rest, min(len(rest), 2)):
            more += texts.other(name, (), "")[:1]
    more += texts.absent([words.name])
    remarks, more_remarks = texts.general(words)
    # Nothing follows from what is not there.
    return _Parts(facts, remarks[:2], texts(end, finding=words.prose), more, more_remarks)


def _slots(words: ClassWords) -> dict[str, str]:
    return {"finding": words.prose, "a_finding": words.prose_with_article}


def _listed(plan: PlannedQuestion, texts: _Texts) -> _Parts:
    """Returns the parts about everything that is marked on an image."""
    items = []
    for label in plan.labels:
        place = texts.place(label) if len(plan.labels) <= _MOST_LISTED else None
        name = class_words()[label].prose_with_article
        items.append(f"{name} {place}" if place else name)
    facts = [texts("listed", items=_separated(items))]
    # A sign says "it": it stays with the sentence that names the class.
    some = texts.rng.sample(plan.labels, min(len(plan.labels), 3))
    general = [" ".join(texts.general(class_words()[label])[0]) for label in some]
    more = [*general, *texts.rng.sample(vocabulary("reading"), 6)]
    return _Parts(facts, [], texts("end_list"), [], more)


def _separated(items: Sequence[str]) -> str:
    """Joins items that may hold "and" and commas themselves."""
    if not any(", " in item or " and " in item for item in items):
        return join(items)
    return "; and ".join(("; ".join(items[:-1]), items[-1])) if len(items) > 1 else items[0]


def number(count: int) -> str:
    """Returns a count in words up to twenty, beyond it in digits."""
    words = vocabulary("numbers")
    return str(words[count]) if count < len(words) else str(count)
