"""The answer of the training image that looks most alike, by grey values on a coarse grid."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import Float

from cxrjax.evaluation.baselines import Said, answer_each, box_fractions
from cxrjax.evaluation.flags import PredictFlags
from cxrjax.evaluation.systems.base import Answer, Line
from cxrjax.images.decode import read_image
from cxrjax.images.geometry import resize
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord

_SIDE = 24


def start_nearest(flags: PredictFlags) -> Answer:
    """Answers as the nearest image's record to a question of the same type and finding."""
    source = RecordSource(cast(Path, flags.train), flags.image_root)
    known = [record for _, record in source.records() if record.answers]
    seen, kinds = _features(source, known), np.array([_kind(record) for record in known])

    def nearest(record: QARecord, look: Float[np.ndarray, " d"]) -> Said:
        best = known[int(np.argmax(seen @ look + 2 * (kinds == _kind(record))))]
        return Said(best.answer_text, box_fractions(best))

    def answer(questions: RecordSource) -> Iterator[Line]:
        asked = [record for _, record in questions.records()]
        looks = {
            r.question_id: one for r, one in zip(asked, _features(questions, asked), strict=True)
        }
        return iter(
            answer_each(lambda record: nearest(record, looks[record.question_id]))(questions)
        )

    return answer


def _kind(record: QARecord) -> str:
    return f"{record.question_type}: {record.finding}"


def _features(source: RecordSource, records: Sequence[QARecord]) -> Float[np.ndarray, "n d"]:
    """Returns each image's grey values, of mean 0 and length 1."""
    small = [resize(read_image(source.image_of(one)), _SIDE, _SIDE)[0] for one in records]
    flat = np.stack(small).astype(np.float64).mean(axis=-1).reshape(len(small), -1)
    flat -= flat.mean(axis=1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)
