"""Export of a review for training: the whole set, corrected, and preference pairs of answers.

DIR/records.jsonl    every record that has an answer: corrected where a reader did, else unchanged,
                     and a question for each missed finding; records/SPLIT.jsonl of several splits
DIR/questions.jsonl  those that still have none, to be predicted and reviewed next
DIR/pairs.jsonl      for `rl.pairs`: the corrected answer, and the one before the correction
DIR/export.json      what was exported, and what was left out, by reason
"""

import collections
import dataclasses
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.apps.review.correction import (
    NAMED,
    Correctable,
    CorrectedBox,
    Correction,
    CorrectionRefusedError,
)
from cxrjax.apps.review.options import chosen_options
from cxrjax.apps.review.sheet import DIMENSIONS, LEVELS, NOT_APPLICABLE, finding_of, sheet_rows
from cxrjax.apps.review.wording import in_words, writes_boxes
from cxrjax.codecs import get_codec, transcode
from cxrjax.codecs.resize_rules import padded_to
from cxrjax.errors import UserError
from cxrjax.files import read_packaged
from cxrjax.images.decode import image_size
from cxrjax.images.files import ImageError
from cxrjax.paper import closed_classes
from cxrjax.paths import relative
from cxrjax.radiology_text.nouns import forms
from cxrjax.records import Answer, GeneratorInfo, QARecord, class_in_words

# Reader -> question id -> field (a dimension, "comment", "correction") -> value.
Reviews = Mapping[str, Mapping[str, Mapping[str, str]]]
_QUESTIONS = read_packaged("cxrjax.apps.annotations", "questions.toml")
_WHERE = _QUESTIONS["where"]
_NAMED_AND_JOINED = re.compile(r"(?:\s*(?:,|\band))*\s*\[box \d{1,3}\]")
_FLIPPED = {"yes": "no", "no": "yes", "Yes": "No", "No": "Yes", "YES": "NO", "NO": "YES"}


class LeftOutError(ValueError):
    """A question that cannot be taken over; the message says why, the same for all of a kind."""


@dataclasses.dataclass
class Export:
    """Content of an export.

    Attributes:
        records, unanswered: with an answer, and without.
        pairs: lines of `rl.pairs`.
        corrected: number of records that readers corrected.
        followed: number that were corrected with another question of the same boxes.
        accepted: number of a model's answers that stand for questions without one.
        confirmed: number rated and not corrected.
        missed: number of findings that nobody had asked about.
        left_out: reason -> question ids.
    """

    records: list[QARecord] = dataclasses.field(default_factory=list)
    unanswered: list[QARecord] = dataclasses.field(default_factory=list)
    pairs: list[dict[str, str]] = dataclasses.field(default_factory=list)
    corrected: int = 0
    followed: int = 0
    accepted: int = 0
    confirmed: int = 0
    missed: int = 0
    left_out: dict[str, list[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )

    @property
    def unchanged(self) -> int:
        """Number of records that are as they were."""
        return len(self.records) - self.corrected - self.followed - self.accepted - self.missed

    @property
    def reviewed(self) -> bool:
        """Returns whether anything was rated or corrected."""
        return bool(self.corrected or self.accepted or self.confirmed or self.missed)

    def to_json(self) -> dict[str, Any]:
        """The content of export.json."""
        counts = {
            name: getattr(self, name)
            for name in ("corrected", "followed", "accepted", "confirmed", "unchanged")
        }
        return {
            "records": len(self.records),
            **counts,
            "missed_findings": self.missed,
            "unanswered": len(self.unanswered),
            "pairs": len(self.pairs),
            "left_out": dict(self.left_out),
        }


def export_reviews(
    sample: Sequence[QARecord],
    reviews: Reviews,
    image_root: Path,
    out: Path,
    codec: str,
    grids: Sequence[tuple[int, int]] = (),
    whole: Sequence[QARecord] | None = None,
) -> Export:
    """Applies a review to the set that its questions were drawn from.

    Args:
        sample: the questions of the review, with the answers that were reviewed.
        reviews: of whoever's word counts.
        image_root: what the records' image paths are relative to.
        out: the folder that the records will lie in.
        codec: how the model that is to learn writes boxes, a key of `cxrjax.codecs.CODECS`.
        grids: (height, width) of its inputs, to which images are padded; empty: stretched.
        whole: the set; None: the sample.

    Raises:
        UserError: there is no such codec.
    """
    get_codec(codec)  # a name that is none is no fault of the first record
    export = Export()
    shown = {
        record.question_id: (record, row)
        for record, row in zip(sample, sheet_rows(sample), strict=True)
    }
    missed: dict[tuple[str, str], tuple[QARecord, list[list[float]]]] = {}
    moved: dict[tuple[str, str], tuple[QARecord, QARecord]] = {}
    unrated = []
    whole = sample if whole is None else whole
    for original in whole:
        record = _beside(original, image_root, out)
        if record.question_id not in shown:
            unrated.append(record)
            continue
        asked, row = shown[record.question_id]
        own = [reviews[reader].get(record.question_id, {}) for reader in reviews]
        try:
            here, correction = _outcome(own, row, asked, image_root, out)
            if here is None:
                unrated.append(record)
                continue
            changed = here if correction is None else corrected_record(here, correction)
        except (LeftOutError, CorrectionRefusedError, UserError) as error:
            export.left_out[str(error)].append(record.question_id)
            continue
        for one in correction.boxes if correction else ():
            if one.kind == "missed":
                key = record.image_id, one.label
                missed.setdefault(key, (here, []))[1].append(one.box)
        if changed is not here:
            export.corrected += 1
            export.pairs += _pair(here, changed, codec, grids)
            moved[record.image_id, _about(record)] = record, changed
        elif not record.answers:
            export.accepted += 1
        else:
            export.confirmed += 1
            # An answer of the set's own stands where a model's beside it was not objected to.
            changed = here if here.answers == record.answers else record
        export.records.append(changed)
    _add_unrated(export, unrated, moved)
    order = {one.question_id: place for place, one in enumerate(whole)}
    export.records.sort(key=lambda one: order[one.question_id])
    if denials := [one.question_id for one in export.records if _denies(one, missed)]:
        export.records = [one for one in export.records if not _denies(one, missed)]
        export.left_out["denies a finding that a reader saw"] = denials
    for (_, label), (record, boxes) in missed.items():
        export.records.append(_missed_finding(record, label, boxes))
    export.missed = len(missed)
    return export


def _add_unrated(
    export: Export,
    unrated: Sequence[QARecord],
    moved: Mapping[tuple[str, str], tuple[QARecord, QARecord]],
) -> None:
    """Adds what nobody rated: unchanged, but for questions about boxes that were corrected."""
    for record in unrated:
        before, after = moved.get((record.image_id, _about(record)), (record, record))
        if not record.answers:
            export.unanswered.append(record)
        elif before.boxes == after.boxes or record.boxes != before.boxes or not before.answers:
            export.records.append(record)
        else:
            try:
                export.records.append(_followed(record, after))
                export.followed += 1
            except LeftOutError as error:
                export.left_out[str(error)].append(record.question_id)


def _about(record: QARecord) -> str:
    return record.finding or finding_of(record)


def _followed(record: QARecord, after: QARecord) -> QARecord:
    """The record with the boxes that were corrected in another question about them.

    Raises:
        LeftOutError: its words cannot be written for them.
    """
    boxes, label = after.boxes, _about(record)
    places = " and ".join(f"[box {number}]" for number in range(1, len(boxes) + 1))
    kind = (record.template_id or "").removeprefix("boxes/")
    said = _QUESTIONS.get(kind, {}).get("yes" if boxes else "no", "")
    if said:
        said = said.format(boxes=places, **forms(class_in_words(label), len(boxes)))
    elif len(boxes) != len(record.boxes):
        raise LeftOutError("its boxes were corrected in another question")
    had = len(record.boxes)
    now = [
        CorrectedBox(box=box, label=label, origin=place if place < had else None)
        for place, box in enumerate(boxes)
    ]
    here = record.model_copy(update={"image_hw": after.image_hw})
    return corrected_record(here, Correction(boxes=now, answer=said))


def _denies(record: QARecord, missed: Container[tuple[str, str]]) -> bool:
    """Returns whether an uncorrected answer denies a finding that a reader reported as missed."""
    return not record.boxes and (record.image_id, finding_of(record)) in missed


def _beside(record: QARecord, image_root: Path, out: Path) -> QARecord:
    """The record as it is from `out`."""
    update: dict[str, Any] = {"image_path": _relative(image_root / record.image_path, out)}
    if record.earlier is not None:
        earlier = image_root / record.earlier.image_path
        path = {"image_path": _relative(earlier, out)}
        update["earlier"] = record.earlier.model_copy(update=path)
    return record.model_copy(update=update)


def _relative(path: Path, out: Path) -> str:
    return relative(path.resolve(), out.resolve())


def _outcome(
    reviews: Sequence[Mapping[str, str]],
    row: Mapping[str, str],
    asked: QARecord,
    image_root: Path,
    out: Path,
) -> tuple[QARecord | None, Correction | None]:
    """The reviewed record as it is from `out`, and its correction; None where there is none.

    Raises:
        LeftOutError: wrong without a correction, corrected in two ways, or without an image.
        CorrectionRefusedError: the correction is invalid.
    """
    said = {one["correction"] for one in reviews if one.get("correction")}
    if len(said) > 1:
        raise LeftOutError("corrected by several readers, and differently: choose one by --reader")
    if not said:
        rated = [name for name in DIMENSIONS if row[name] != NOT_APPLICABLE]
        if not any(all(one.get(name) for name in rated) for one in reviews):
            return None, None
        if any(one.get(name) == LEVELS[-1] for one in reviews for name in rated):
            raise LeftOutError(f"rated {LEVELS[-1]} and not corrected")
    here = _beside(asked, image_root, out)
    try:
        if here.image_hw is None:
            here = here.model_copy(update={"image_hw": image_size(image_root / asked.image_path)})
    except (ImageError, OSError):
        raise LeftOutError("its image is missing") from None
    correctable = Correctable(
        here.image_hw, len(asked.boxes), closed_classes(asked.dataset), chosen_options(here)
    )
    return here, correctable.read(said.pop()) if said else None


def corrected_record(record: QARecord, correction: Correction) -> QARecord:
    """The record with boxes and words as they should be; itself where these were right.

    Raises:
        LeftOutError: its words name a box that is not there, or boxes stand in several answers.
    """
    boxes = [
        (number, one) for number, one in enumerate(correction.boxes, 1) if one.kind == "answer"
    ]
    same_boxes = [one.box for _, one in boxes] == record.boxes
    options = chosen_options(record)
    was = in_words(record.answer_text, record)
    if options is None or correction.choice is None:
        said = correction.answer.strip() or was
    else:
        said = options.text(correction.choice, correction.answer.strip() or options.words)
    if same_boxes and said == was:
        return record
    had, has = bool(record.boxes), bool(boxes)
    homes = [
        k for k, a in enumerate(record.answers) for _ in a.boxes_by_image.get(record.image_id, ())
    ]
    main = [k for k, one in enumerate(record.answers) if one.answer_type == "main"]
    first = main[0] if main else 0
    answers = [one.model_copy(deep=True) for one in record.answers] or [Answer(text="")]
    finding = finding_of(record)
    for place, answer in enumerate(answers):
        own = [
            one.box
            for _, one in boxes
            if (first if one.origin is None else homes[one.origin]) == place
        ]
        answer.boxes_by_image.pop(record.image_id, None)
        if own:
            answer.boxes_by_image[record.image_id] = own
        if had != has and (place in main or not main):
            answer.polarity = "pos" if has else "neg"
    if len(main) <= 1:
        answers[first].text = _with_boxes(said, boxes, record)
    elif any("[box " in in_words(answers[k].text, record) for k in main):
        raise LeftOutError("boxes stand in several answers: correct the record by hand")
    update: dict[str, Any] = {
        "answers": answers,
        "generator": GeneratorInfo(name="review", version="1"),
    }
    if not same_boxes:
        update["gt_location"] = None  # told of the boxes that were
    if correction.choice is not None:
        several = isinstance(record.answer_key, list)
        update["answer_key"] = correction.choice if several else correction.choice[0]
    if had != has:
        update["negative_kind"] = None if has else "absent_class"
        if isinstance(record.answer_key, str):
            update["answer_key"] = _FLIPPED.get(record.answer_key, record.answer_key)
    if has and not answers[first].labels and finding in (record.gt_finding, record.finding):
        answers[first].labels = [finding]
    return record.model_copy(update=update)


def _with_boxes(said: str, boxes: Sequence[tuple[int, CorrectedBox]], record: QARecord) -> str:
    """The words with boxes in the notation of the record's data set.

    Raises:
        LeftOutError: the words name a box that is not there.
    """
    codec = get_codec(record.codec)
    assert record.image_hw is not None
    size = height, width = record.image_hw
    scale = np.array([width, height, width, height], np.float64)
    by_number = {number: np.array([one.box], np.float64) / scale for number, one in boxes}
    named = [int(number) for number in NAMED.findall(said)]
    if not set(named) <= set(by_number) or "[another place]" in said:
        raise LeftOutError("its words name a box that is missing: correct the words")
    writes = writes_boxes(record)
    if codec.empty_list:  # one list of all boxes, behind the words
        words = _NAMED_AND_JOINED.sub("", said).rstrip()
        all_boxes = [one for one in by_number.values()] if writes else []
        if not all_boxes:
            return words + (f" {codec.empty_list}" if "<location>" in record.answer_text else "")
        return f"{words} {codec.encode(np.concatenate(all_boxes), *size)}"
    written = {number: codec.encode(one, *size) for number, one in by_number.items()}
    text = NAMED.sub(lambda found: written[int(found[1])], said)
    unnamed = [box for number, box in written.items() if number not in named and writes]
    return " ".join([text, *unnamed])


def _missed_finding(record: QARecord, label: str, boxes: list[list[float]]) -> QARecord:
    """A question about a finding that nobody had asked about."""
    words = class_in_words(label)
    slug = re.sub(r"[^0-9a-z]+", "_", label.lower())
    numbered = [(k, CorrectedBox(box=box, label=label)) for k, box in enumerate(boxes, start=1)]
    places = " and ".join(f"[box {number}]" for number, _ in numbered)
    asked = QARecord(
        **{
            name: getattr(record, name)
            for name in (
                *("dataset", "split", "patient_id", "study_id", "image_id", "image_path"),
                *("image_hw", "earlier", "view", "sex", "age"),
            )
        },
        question_id=f"{record.image_id}-{slug}-missed",
        question=_WHERE["ask"][0].format(**forms(words)),
        question_type=_WHERE["type"],
        template_id="review/missed",
        variables={"finding": label},
        generator=GeneratorInfo(name="review", version="1"),
    )
    text = _with_boxes(
        _WHERE["yes"].format(boxes=places, **forms(words, len(boxes))), numbered, asked
    )
    answer = Answer(
        text=text, labels=[label], polarity="pos", boxes_by_image={record.image_id: boxes}
    )
    return asked.model_copy(update={"answers": [answer]})


def _pair(
    before: QARecord, after: QARecord, codec: str, grids: Sequence[tuple[int, int]]
) -> Iterator[dict[str, str]]:
    """The line of a preference, where the model would say something else now.

    Raises:
        UserError: the answer that was has a box that is none.
    """
    assert before.image_hw is not None
    own, geometry = before.codec, padded_to(grids, before.image_hw)
    better, worse = (
        transcode(one.answer_text, own, codec, *before.image_hw, geometry)
        for one in (after, before)
    )
    if better != worse and worse:
        yield {"question_id": before.question_id, "better": better, "worse": worse}
