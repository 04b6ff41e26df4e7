"""Export of a review for training: corrected records, and preference pairs of answers.

DIR/records.jsonl  reviewed records that are correct now, and a question for each missed finding
DIR/pairs.jsonl    for `rl.pairs`: the corrected answer, and the one before the correction
DIR/export.json    what was exported, and what was left out, by reason
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
_WHERE = read_packaged("cxrjax.apps.annotations", "questions.toml")["where"]
_NAMED_AND_JOINED = re.compile(r"(?:\s*(?:,|\band))*\s*\[box \d{1,3}\]")
_FLIPPED = {"yes": "no", "no": "yes", "Yes": "No", "No": "Yes", "YES": "NO", "NO": "YES"}


class LeftOutError(ValueError):
    """A question that cannot be taken over; the message says why, the same for all of a kind."""


@dataclasses.dataclass
class Export:
    """Content of an export: reviewed records, `rl.pairs`, and reason -> question ids left out."""

    records: list[QARecord] = dataclasses.field(default_factory=list)
    pairs: list[dict[str, str]] = dataclasses.field(default_factory=list)
    corrected: int = 0
    missed: int = 0
    left_out: dict[str, list[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )

    def to_json(self) -> dict[str, Any]:
        """The content of export.json."""
        return {
            "records": len(self.records),
            "corrected": self.corrected,
            "missed_findings": self.missed,
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
) -> Export:
    """Takes over what was reviewed.

    Args:
        sample: the questions of the review.
        reviews: of whoever's word counts.
        image_root: what the sample's image paths are relative to.
        out: the folder that the records will lie in.
        codec: how the model that is to learn writes boxes, a key of `cxrjax.codecs.CODECS`.
        grids: (height, width) of its inputs, to which images are padded; empty: stretched.

    Raises:
        UserError: there is no such codec.
    """
    get_codec(codec)  # a name that is none is no fault of the first record
    export = Export()
    missed: dict[tuple[str, str], tuple[QARecord, list[list[float]]]] = {}
    for record, row in zip(sample, sheet_rows(sample), strict=True):
        own = [reviews[reader].get(record.question_id, {}) for reader in reviews]
        try:
            here = _beside(record, image_root, out)
            correctable = Correctable(
                here.image_hw,
                len(record.boxes),
                closed_classes(record.dataset),
                chosen_options(here),
            )
            correction = _settled(own, row, correctable)
            if correction is None:
                export.records.append(here)
                continue
            changed = corrected_record(here, correction)
        except (LeftOutError, CorrectionRefusedError, UserError) as error:
            export.left_out[str(error)].append(record.question_id)
            continue
        export.records.append(changed)
        for one in correction.boxes:
            if one.kind == "missed":
                key = record.image_id, one.label
                missed.setdefault(key, (here, []))[1].append(one.box)
        if changed is not here:
            export.corrected += 1
            export.pairs += _pair(here, changed, codec, grids)
    for record in [one for one in export.records if _denies(one, missed)]:
        export.records.remove(record)
        export.left_out["denies a finding that a reader saw"].append(record.question_id)
    for (_, label), (record, boxes) in missed.items():
        export.records.append(_missed_finding(record, label, boxes))
    export.missed = len(missed)
    return export


def _denies(record: QARecord, missed: Container[tuple[str, str]]) -> bool:
    """Returns whether an uncorrected answer denies a finding that a reader reported as missed."""
    return not record.boxes and (record.image_id, finding_of(record)) in missed


def _beside(record: QARecord, image_root: Path, out: Path) -> QARecord:
    """The record as it is from `out`, its image's size filled in.

    Raises:
        LeftOutError: there is no image.
    """
    path = image_root / record.image_path
    update: dict[str, Any] = {"image_path": _relative(path, out)}
    if record.earlier is not None:
        earlier = image_root / record.earlier.image_path
        told = {"image_path": _relative(earlier, out)}
        update["earlier"] = record.earlier.model_copy(update=told)
    if record.image_hw is None:
        try:
            update["image_hw"] = image_size(path)
        except (ImageError, OSError):
            raise LeftOutError("its image is missing") from None
    return record.model_copy(update=update)


def _relative(path: Path, out: Path) -> str:
    return relative(path.resolve(), out.resolve())


def _settled(
    reviews: Sequence[Mapping[str, str]], row: Mapping[str, str], correctable: Correctable
) -> Correction | None:
    """Returns a question's correction; None if no reader rated it as wrong.

    Raises:
        LeftOutError: not reviewed, wrong without a correction, or corrected in two ways.
        CorrectionRefusedError: the correction is invalid.
    """
    said = {one["correction"] for one in reviews if one.get("correction")}
    if len(said) > 1:
        raise LeftOutError("corrected by both readers, and differently: choose one by --reader")
    if said:
        return correctable.read(said.pop())
    asked = [name for name in DIMENSIONS if row[name] != NOT_APPLICABLE]
    if not any(all(one.get(name) for name in asked) for one in reviews):
        raise LeftOutError("not rated yet")
    if any(one.get(name) == LEVELS[-1] for one in reviews for name in asked):
        raise LeftOutError(f"rated {LEVELS[-1]} and not corrected")
    return None


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
