"""One radiologist as a system: their boxes as predictions, to be scored against another's.

    python -m cxrjax.predict --runner=reader --reader=R8 --readers=RECORDS \\
        --questions=... --out=R8.jsonl
    python -m cxrjax.score --gt_mode=reader:R9 --predictions=R8.jsonl ...

What such a system reaches is what a model's figures are to be read against. All readers against all
others at once: `python -m cxrjax.review --readers=TABLE`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord, ReaderBox, read_records
from cxrjax.runners.base import Answer, Line
from cxrjax.runners.baselines import prediction_line, yes_or_no

_NOTHING = np.zeros((0, 4))


def start_reader(records: Path, rad_id: str) -> Answer:
    """The reader, as the records of the same images have them.

    Args:
        records: with `readers`, of the images that are asked about.
        rad_id: whose boxes.

    Raises:
        UserError: the records cannot be read, or this reader read none of their images.
    """
    marks = reader_marks(read_records(records), rad_id, str(records))

    def answer(questions: RecordSource) -> Iterator[Line]:
        for _, record in questions.records():
            yield reader_line(record, marks.get(record.image_id))

    return answer


def reader_marks(
    records: Iterable[QARecord], rad_id: str, source: str
) -> dict[str, list[tuple[str, np.ndarray]]]:
    """Image id -> (class, box as fractions [4]) of what this reader marked there.

    Raises:
        UserError: no record has such a reader, or one has no image size.
    """
    marks: dict[str, list[tuple[str, np.ndarray]]] = {}
    others: set[str] = set()
    for record in records:
        readers: Mapping[str, list[ReaderBox]] = record.readers or {}
        others.update(readers)
        if rad_id not in readers or record.image_id in marks:
            continue
        if record.image_hw is None:
            raise UserError(f"question {record.question_id}: image_hw is null; join the sizes")
        height, width = record.image_hw
        marks[record.image_id] = [
            (mark.label, np.asarray(mark.box) / [width, height, width, height])
            for mark in readers[rad_id]
        ]
    if not marks:
        raise UserError(
            f"{source}: no image was read by {rad_id!r}; expected one of {sorted(others)}"
            if others
            else f"{source}: its records have no readers; expected some with `readers`"
        )
    return marks


def reader_line(record: QARecord, marks: list[tuple[str, np.ndarray]] | None) -> Line:
    """What the reader says to a question; `marks` is None where they did not read the image.

    Of a question that names a finding, whether they marked it and where; of any other, all that
    they marked.
    """
    if marks is None:
        return prediction_line(record, "", _NOTHING, parse="not_read")
    finding = record.finding
    shown = [(label, box) for label, box in marks if finding in (None, label)]
    labels: list[str | None] = [label for label, _ in shown]
    if finding is not None:
        text = yes_or_no(bool(shown), finding)
    elif shown:
        text = f"There is {', '.join(dict.fromkeys(label for label, _ in shown))}."
    else:
        text = "There is no finding."
    boxes = np.array([box for _, box in shown]).reshape(-1, 4)
    return prediction_line(record, text, boxes, labels)
