"""Reads the truth of each question and each image from VinDr-CXR-VQA's references.

Ground-truth modes, which decide what boxes an image has (the same predictions score very
differently against one lesion's box and against three readers' boxes of it):

* `by_protocol`, the default: of VinDr-CXR's images `raw` under `paper`, as the paper counts (5,471
  boxes on 659 images), and `wbf` under `strict`; of images whose readers are not known, and of
  others than VinDr-CXR's, `exact` under both.
* `exact`: the boxes of the reference answers to all of the image's questions. On phantoms these are
  the lesions' exact extents; on the released data, the one box that each question is about.
* `raw`: all readers' boxes, unmerged, as the paper appears to count (8.3 per image).
* `per_reader`: each reader is a truth of their own, and counts are summed over (image, reader).
* `reader:ID`: this reader alone, on the images that they read; others have no truth of boxes.
* `majority`, `unanimous`, `lesion_majority`, `wbf`, `nms`, `components`: the readers' boxes merged,
  as `cxrjax.records_io.readers` says.
"""

import functools
import itertools
import sys
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import References
from cxrjax.evaluation.figures import boxes_band, image_attributes
from cxrjax.evaluation.predictions import one_of_equal
from cxrjax.metrics.detection import NO_CLASS, ImageBoxes
from cxrjax.radiology_text.answer_details import SaidPlace, count_said, place_said
from cxrjax.radiology_text.mentions import VINDR_CLASSES, MentionReader
from cxrjax.records import PixelBox, QARecord, ReaderBox
from cxrjax.records_io.readers import MODES, MergeMode, merge_readers, parse_mode

# Boxes of the source lie within the image; this much (pixels) is rounding.
_BORDER = 1.0

# Why a class that a question asks about is absent: the image has other findings, or none.
NEGATIVE_KINDS = ("absent_class", "no_finding_image")

# The default first.
GT_MODES = ("by_protocol", "exact", "per_reader", *MODES)
# What `by_protocol` stands for where readers are known.
_PAPERS_MODE, _STRICT_MODE = "raw", "wbf"


Labelled = tuple[int, tuple[float, ...]]  # class number, box xyxy


class _Said(NamedTuple):
    """Input from one answer of a record."""

    labels: tuple[str, ...]
    polarity: str
    # float64 [n, 4] on the record's own image, in pixels, as bytes: half as much as a small array.
    boxes: bytes
    has_boxes: bool  # on any image


class _Asked(NamedTuple):
    """Input from a record, which takes several times as much memory."""

    question_id: str
    dataset: str
    image_hw: tuple[int, int] | None
    patient_id: str | None
    question: str
    question_type: str
    difficulty: str | None
    negative_kind: str | None
    finding: str | None
    gt_finding: str | None
    readers: dict[str, list[ReaderBox]] | None
    answer_text: str
    attributes: tuple[tuple[str, str | None], ...]
    answers: tuple[_Said, ...]

    @classmethod
    def of(cls, record: QARecord) -> "_Asked":
        """Returns what is read of a record; values that many records have are one object."""
        fields = {name: getattr(record, name) for name in cls._fields[:-2]}
        for name in ("dataset", "question_type", "difficulty", "finding", "gt_finding"):
            fields[name] = fields[name] and sys.intern(fields[name])
        fields["image_hw"] = one_of_equal(record.image_hw)
        if record.finding is not None:
            fields["question"] = ""  # only read for what it asks about
        by_text = record.question_type in ("How_many", "Which")
        if not by_text and any(answer.labels for answer in record.answers):
            fields["answer_text"] = ""
        answers = []
        for answer in record.answers:
            boxes = np.array(answer.boxes_by_image.get(record.image_id, ()), np.float64).tobytes()
            labels, is_there = tuple(map(sys.intern, answer.labels)), bool(answer.boxes_by_image)
            polarity = sys.intern(answer.polarity)
            answers.append(_Said(one_of_equal(labels), polarity, boxes, is_there))
        attributes = one_of_equal(tuple(image_attributes(record).items()))
        return cls(**fields, attributes=attributes, answers=tuple(answers))


class LabelledBoxes(NamedTuple):
    """Boxes as float64 [n, 4] fractions of the original image, and the class number of each."""

    boxes: Float[np.ndarray, "n 4"]
    classes: Int[np.ndarray, " n"]


def union(lists: Iterable[Iterable[Labelled]]) -> list[Labelled]:
    """Boxes of several answers about one image as one list.

    A box given in several answers (the same class, the same four numbers) is one box. Copies within
    one answer stay copies: whoever repeats a box in one breath has predicted it that often.
    """
    counts: dict[Labelled, int] = {}
    for items in lists:
        here: dict[Labelled, int] = {}
        for item in items:
            here[item] = here.get(item, 0) + 1
        for item, count in here.items():
            counts[item] = max(count, counts.get(item, 0))
    return [item for item, count in counts.items() for _ in range(count)]


def stack(items: Iterable[Labelled], height: int = 1, width: int = 1) -> LabelledBoxes:
    """(class, box) pairs as arrays, divided by the image's size."""
    pairs = list(items)
    boxes = np.array([box for _, box in pairs], np.float64).reshape(-1, 4)
    return LabelledBoxes(
        boxes / np.array([width, height, width, height], np.float64),
        np.array([number for number, _ in pairs], np.int16),
    )


NO_BOXES = stack(())


_BOX_SETS = ("question_boxes", "truth", "paper_truth", "answered")  # of `VindrReferences`


class _BoxSets:
    """Sets of boxes one after another, each of (class, box) pairs in pixels of one image."""

    def __init__(self) -> None:
        self._boxes, self._classes = array("d"), array("h")
        self._counts, self._sizes = array("i"), array("d")

    def add(self, pairs: Sequence[Labelled], height: int, width: int) -> None:
        self._boxes.extend(itertools.chain.from_iterable(box for _, box in pairs))
        self._classes.extend(number for number, _ in pairs)
        self._counts.append(len(pairs))
        self._sizes.extend((width, height))

    def joined(self) -> ImageBoxes:
        """Returns them as fractions of their images; a set is an image there."""
        count = len(self._counts)
        image = np.repeat(np.arange(count, dtype=np.int32), self._counts)
        corners = np.asarray(self._boxes).reshape(-1, 2, 2)
        corners /= np.asarray(self._sizes).reshape(-1, 2)[image, None]
        return ImageBoxes(corners.reshape(-1, 4), np.asarray(self._classes), image, count)


def join_lists(lists: Iterable[Sequence[Labelled]]) -> ImageBoxes:
    """`join_images` of lists of (class, box) pairs."""
    lists = list(lists)
    pairs = [pair for one in lists for pair in one]
    return ImageBoxes(
        np.array([box for _, box in pairs], np.float64).reshape(-1, 4),
        np.array([number for number, _ in pairs], np.int16),
        np.repeat(np.arange(len(lists), dtype=np.int32), [len(one) for one in lists]),
        len(lists),
    )


@dataclass(frozen=True, slots=True)
class VindrQuestion:
    """One question with its truth."""

    question_id: str
    image: int  # index into `VindrReferences.images`
    cluster: tuple[str, str]  # the patient, or the image itself where no patient is known
    kind: str  # its `question_type`
    difficulty: str | None  # as its record says; None where it does not
    asked: str | None  # the class it asks about; None for open questions ("What")
    # Why the class asked about is absent: the image has no finding at all, or others. None where it
    # is there or none is asked about.
    negative_kind: str | None
    present: frozenset[str]  # classes that its reference answer says are there
    has_boxes: bool  # whether its reference answer has some
    # Of How_many: how many the reference answer says, the fewest and the most that it or some
    # reader gives.
    count: tuple[int, int, int] | None = None
    # Of Which: the sides and regions that the reference answer names, or its boxes' sides.
    place: SaidPlace | None = None


@dataclass(frozen=True, slots=True)
class VindrImage:
    """One image with its truth."""

    image_id: str
    cluster: tuple[str, str]
    height: int
    width: int
    # How many ground-truth sets it is scored against: one, one per reader, or none where the mode's
    # reader did not read the image.
    truths: int
    box_questions: int  # how many questions have boxes in their reference answer
    # Class -> how many readers marked it, or 1 for what reference answers say is there.
    votes: Mapping[str, int]
    # Of `breakdowns.image_attributes`, and `true_boxes`: how many there are.
    attributes: Mapping[str, str | None]


@dataclass(frozen=True, eq=False)
class VindrReferences(References[VindrQuestion]):
    """All questions and images of a references file, under one ground-truth mode.

    Attributes:
        question_boxes: those of each question's reference answer.
        truth, paper_truth: the ground-truth sets of each image, one after another, and those under
            the protocol `paper`.
        answered: boxes of all reference answers about the image, once for each of its sets.
    """

    gt_mode: str
    classes: tuple[str, ...]
    images: tuple[VindrImage, ...]
    reader: MentionReader
    question_boxes: ImageBoxes
    truth: ImageBoxes
    paper_truth: ImageBoxes
    answered: ImageBoxes

    def asked(self, question_id: str) -> str | None:
        """Returns the class that a question asks about, as its words have it."""
        return self.questions[question_id].asked

    @functools.cached_property
    def images_with_truth(self) -> int:
        """The number of images that boxes are scored on."""
        return sum(bool(image.truths) for image in self.images)

    @functools.cached_property
    def image_of_truth(self) -> Int[np.ndarray, " sets"]:
        """The image of each ground-truth set."""
        return np.repeat(np.arange(len(self.images)), [image.truths for image in self.images])

    @functools.cached_property
    def images_by_class(self) -> Counter[str]:
        """Class -> the number of images that have it."""
        count = len(self.classes)
        found = self.image_of_truth[self.truth.image] * count + self.truth.classes
        return Counter(self.classes[pair % count] for pair in np.unique(found).tolist())

    @functools.cached_property
    def first_questions(self) -> Int[np.ndarray, " images+1"]:
        """The place of each image's first question, and the number of questions."""
        images = [question.image for question in self.questions.values()]
        return np.searchsorted(images, np.arange(len(self.images) + 1))


def read_references(
    records: Iterable[QARecord], gt_mode: str, source: str, own_classes: bool = False
) -> VindrReferences:
    """Questions and images of the records.

    Args:
        records: of one split; answers included.
        gt_mode: one of `GT_MODES`, with its argument.
        source: names the file, for error messages.
        own_classes: whether the classes are those that the records name, and no others.

    Raises:
        UserError: no records, a repeated question, a record without answers, of a class that
            VinDr-CXR-VQA does not have (records of dataset `custom` bring their own), with a box
            outside its image, without image size, or without readers where the mode needs them; an
            unknown mode, or a reader who read none of the images.
    """
    if gt_mode.partition(":")[0] not in GT_MODES:
        raise UserError(f"no ground-truth mode {gt_mode!r}: expected one of {', '.join(GT_MODES)}")
    by_image: dict[str, list[_Asked]] = {}
    seen: set[str] = set()
    readers: set[str] = set()
    datasets, splits = set(), set()
    for record in records:
        if record.question_id in seen:
            raise UserError(f"{source}: question_id {record.question_id!r} stands there twice")
        seen.add(record.question_id)
        readers.update(record.readers or ())
        datasets.add(record.dataset)
        splits.add(record.split)
        group = by_image.setdefault(record.image_id, [])
        asked = _Asked.of(record)
        if group and group[0].readers == asked.readers:
            asked = asked._replace(readers=group[0].readers)
        group.append(asked)
    if not by_image:
        raise UserError(f"{source}: holds no records: nothing to score against")
    paper_mode = None
    if gt_mode == "by_protocol":
        known = datasets == {"vindr_cxr_vqa"} and all(
            any(record.readers is not None for record in group) for group in by_image.values()
        )
        gt_mode, paper_mode = (_STRICT_MODE, parse_mode(_PAPERS_MODE)) if known else ("exact", None)
    mode = None if gt_mode in ("exact", "per_reader") else parse_mode(gt_mode)
    vocabulary = _vocabulary(
        (record for group in by_image.values() for record in group), own_classes
    )
    if not vocabulary:
        raise UserError(
            f"{source}: its records name no class: expected `labels` in answers, or "
            '"variables": {"finding": ...}'
        )
    builder = _Builder(
        source, gt_mode, mode, tuple(vocabulary), _reader_of(tuple(vocabulary)), paper_mode
    )
    images = [
        # They go one by one, so that not all are there twice.
        builder.add_image(number, image_id, by_image.pop(image_id))
        for number, image_id in enumerate(list(by_image))
    ]
    if not any(image.truths for image in images):
        raise UserError(
            f"{source}: no image was read by the reader of gt_mode {gt_mode!r}: expected one of "
            f"{', '.join(sorted(readers))}"
        )
    boxes = builder.joined()
    return VindrReferences(
        questions=builder.questions,
        image_ids=tuple(image.image_id for image in images),
        datasets=tuple(sorted(datasets)),
        splits=tuple(sorted(splits)),
        gt_mode=f"{_PAPERS_MODE} (paper), {gt_mode} (strict)" if paper_mode else gt_mode,
        classes=builder.classes,
        images=tuple(images),
        reader=builder.reader,
        **boxes,
    )


def read_question(record: QARecord, source: str) -> tuple[VindrQuestion, MentionReader]:
    """One record by itself, and what reads answers to it.

    Raises:
        UserError: as `read_references`.
    """
    asked = _Asked.of(record)
    names = tuple(_vocabulary([asked]))
    builder = _Builder(source, "exact", None, names, _reader_of(names))
    builder.add_image(0, record.image_id, [asked])
    return builder.questions[record.question_id], builder.reader


@functools.lru_cache(maxsize=64)
def _reader_of(names: tuple[str, ...]) -> MentionReader:
    return MentionReader(names)


def _vocabulary(records: Iterable[_Asked], own_classes: bool = False) -> list[str]:
    """The 14 classes, and those that custom records name; or all that any records name."""
    vocabulary = [] if own_classes else list(VINDR_CLASSES)
    known = {name.lower() for name in vocabulary}
    for record in records:
        if own_classes or record.dataset == "custom":
            named = [label for answer in record.answers for label in answer.labels]
            named += [mark.label for marks in (record.readers or {}).values() for mark in marks]
            named += filter(None, (record.finding, record.gt_finding))
            for label in map(str.strip, named):
                if label.lower() not in known:
                    known.add(label.lower())
                    vocabulary.append(label)
    return vocabulary


def _denies(record: _Asked, answer: _Said) -> bool:
    return answer.polarity == "neg" or (
        answer.polarity == "unk" and record.negative_kind is not None
    )


class _Builder:
    """Turns records into `VindrQuestion`s and `VindrImage`s; knows what to call them in errors."""

    def __init__(
        self,
        source: str,
        gt_mode: str,
        mode: MergeMode | None,
        classes: tuple[str, ...],
        reader: MentionReader,
        paper_mode: MergeMode | None = None,
    ) -> None:
        self.source = source
        self.paper_mode = paper_mode
        self.gt_mode = gt_mode
        self.mode = mode
        self.classes = classes
        self.reader = reader
        self.questions: dict[str, VindrQuestion] = {}
        self._numbers = {name.lower(): number for number, name in enumerate(classes)}
        self._known: dict[Hashable, Any] = {}  # what many questions and images have alike
        self._sets = {name: _BoxSets() for name in _BOX_SETS}

    def joined(self) -> dict[str, Any]:
        """Returns the boxes of `VindrReferences`; equal ones are one array."""
        found = {name: sets.joined() for name, sets in self._sets.items()}
        truth, asked = found["truth"], found["question_boxes"]
        if np.array_equal(truth.boxes, asked.boxes) and (truth.classes == asked.classes).all():
            found["question_boxes"] = replace(asked, boxes=truth.boxes, classes=truth.classes)
        return {name: one if one.images else truth for name, one in found.items()}

    def add_image(self, number: int, image_id: str, records: list[_Asked]) -> VindrImage:
        sizes = {record.image_hw for record in records}
        if None in sizes or len(sizes) > 1:
            found = "null" if None in sizes else " and ".join(sorted(map(str, sizes)))
            raise self._error(
                records[0], f"image_hw of {image_id} is {found}: join one true [height, width]"
            )
        ((height, width),) = (size for size in sizes if size is not None)
        patients = sorted({record.patient_id for record in records if record.patient_id})
        cluster = ("patient", patients[0]) if patients else ("image", image_id)
        answers = [self._add_question(number, r, height, width, cluster) for r in records]
        answered = union(answers)
        truths = self._truths(answered, records, height, width)
        for truth in truths:
            self._sets["truth"].add(truth, height, width)
            if self.gt_mode != "exact":
                self._sets["answered"].add(answered, height, width)
        if self.paper_mode is not None:
            readers = self._readers(records, height, width)
            unfused = self._numbered(merge_readers(readers, self.paper_mode))
            self._sets["paper_truth"].add(unfused, height, width)
        most = max(map(len, truths), default=None)
        votes = self._votes(records)
        attributes = {
            **dict(records[0].attributes),
            "true_boxes": None if most is None else boxes_band(most),
        }
        return VindrImage(
            image_id=image_id,
            cluster=cluster,
            height=height,
            width=width,
            truths=len(truths),
            box_questions=sum(bool(boxes) for boxes in answers),
            votes=self._known.setdefault(("votes", *votes.items()), votes),
            attributes=self._known.setdefault(tuple(attributes.values()), attributes),
        )

    def _add_question(
        self, image: int, record: _Asked, height: int, width: int, cluster: tuple[str, str]
    ) -> list[Labelled]:
        """Notes the question and returns the boxes of its reference answer."""
        if not record.answers:
            raise self._error(
                record, "has no answers: score needs the records, not the questions without answers"
            )
        asked = self._asked(record)
        boxes: list[Labelled] = []
        present: set[str] = set()
        for answer in record.answers:
            labels = [self._class(record, label) for label in answer.labels]
            here = np.frombuffer(answer.boxes).reshape(-1, 4).tolist()
            if not _denies(record, answer):
                present |= set(labels)
            if here:
                named = labels if len(labels) == 1 else [asked] if asked else []
                if not named:
                    raise self._error(
                        record, "has boxes of several classes in one answer, none asked about"
                    )
                boxes += [self._boxed(record, named[0], box, height, width) for box in here]
        if not any(answer.labels for answer in record.answers):
            present |= self._present_by_text(record, asked)
        absent = asked is not None and asked not in present
        count = place = None
        if record.question_type == "How_many" and asked is not None:
            count = self._count(record, asked, 0 if absent else len(boxes))
        if record.question_type == "Which" and asked is not None and not absent:
            shown = np.array([box for _, box in boxes], np.float64).reshape(-1, 4)
            place = place_said(record.answer_text, shown / ([width, height] * 2), asked)
        self._sets["question_boxes"].add(boxes, height, width)
        self.questions[record.question_id] = VindrQuestion(
            question_id=record.question_id,
            image=image,
            cluster=cluster,
            kind=record.question_type,
            difficulty=record.difficulty,
            asked=asked,
            negative_kind=(record.negative_kind or "absent_class") if absent else None,
            present=self._known.setdefault(frozenset(present), frozenset(present)),
            has_boxes=bool(boxes),
            count=count,
            place=place,
        )
        return boxes

    def _count(self, record: _Asked, asked: str, boxes: int) -> tuple[int, int, int]:
        said = count_said(record.answer_text)
        exact = boxes if said is None else said
        counts = [exact]
        for marks in (record.readers or {}).values():
            counts.append(sum(mark.label.strip().lower() == asked.lower() for mark in marks))
        return exact, min(counts), max(counts)

    def _votes(self, records: list[_Asked]) -> dict[str, int]:
        """Counts votes for classes from readers' marks and from reference answers."""
        votes: Counter[str] = Counter()
        readers = next((one.readers for one in records if one.readers), {})
        for marks in readers.values():
            votes.update({self._class(records[0], mark.label) for mark in marks})
        here = (self.questions[record.question_id].present for record in records)
        return {**dict.fromkeys(frozenset[str]().union(*here), 1), **votes}

    def _present_by_text(self, record: _Asked, asked: str | None) -> frozenset[str]:
        """The classes that answers without labels affirm, by polarity, else by their words."""
        if all(_denies(record, answer) for answer in record.answers):
            return frozenset()
        if asked and any(a.polarity == "pos" or a.has_boxes for a in record.answers):
            return frozenset([asked])
        counts = record.question_type == "How_many"
        has_box = any(answer.boxes for answer in record.answers)
        return self.reader.read(record.answer_text, asked, has_box, counts).present

    def _asked(self, record: _Asked) -> str | None:
        """The class asked about: as the record says, else as its question words it."""
        if record.finding is not None:
            return self._class(record, record.finding)
        # What an open question's answer is must not help a prediction to its class.
        if record.question_type == "What":
            return None
        if (worded := self.reader.name_of(record.question.rstrip("? "))) is not None:
            return worded
        return self._class(record, record.gt_finding) if record.gt_finding else None

    def _truths(
        self, answered: list[Labelled], records: list[_Asked], height: int, width: int
    ) -> list[list[Labelled]]:
        """The sets of boxes to score against."""
        if self.gt_mode == "exact":
            return [answered]
        readers = self._readers(records, height, width)
        if self.mode is None:
            merged = [[(mark.label, tuple(mark.box)) for mark in r] for r in readers.values()]
        elif self.mode.rad_id is not None and self.mode.rad_id not in readers:
            merged = []
        else:
            merged = [list(merge_readers(readers, self.mode))]
        return [self._numbered(one) for one in merged]

    def _numbered(self, boxes: Iterable[tuple[str, tuple[float, ...]]]) -> list[Labelled]:
        return [(self._numbers[label.lower()], box) for label, box in boxes]

    def _readers(
        self, records: list[_Asked], height: int, width: int
    ) -> dict[str, list[ReaderBox]]:
        """Each reader's boxes, from the first record of the image that has them."""
        for record in records:
            if record.readers is not None:
                return {
                    rad_id: [self._marked(record, mark, height, width) for mark in marks]
                    for rad_id, marks in record.readers.items()
                }
        raise self._error(
            records[0], f"image has no readers, which gt_mode {self.gt_mode!r} needs: use 'exact'"
        )

    def _marked(self, record: _Asked, mark: ReaderBox, height: int, width: int) -> ReaderBox:
        label = self._class(record, mark.label)
        self._boxed(record, label, mark.box, height, width)
        return ReaderBox(label=label, box=mark.box)

    def _boxed(
        self, record: _Asked, label: str, box: PixelBox, height: int, width: int
    ) -> Labelled:
        x0, y0, x1, y1 = box
        # Written so that NaN fails.
        if not (-_BORDER <= x0 < x1 <= width + _BORDER and -_BORDER <= y0 < y1 <= height + _BORDER):
            raise self._error(
                record,
                f"has the box {box}: expected x0 < x1 and y0 < y1 within the image's "
                f"{width} x {height} pixels",
            )
        return self._numbers[label.lower()], (x0, y0, x1, y1)

    def _class(self, record: _Asked, label: str) -> str:
        number = self._numbers.get(label.strip().lower(), NO_CLASS)
        if number == NO_CLASS:
            raise self._error(
                record,
                f"has the class {label!r}, which VinDr-CXR-VQA does not have: map it to one of the "
                "14, or mark the record's dataset as 'custom'",
            )
        return self.classes[number]

    def _error(self, record: _Asked, what: str) -> UserError:
        return UserError(f"{self.source}: question {record.question_id!r} {what}")
