"""Elements of a source to a batch: questions in tokens, images in pixels, at their places."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from cxrjax.images.files import AnyFile, ImageError
from cxrjax.input_pipeline.batch import Batch, BatchProblem, LoadedBatch, empty_batch
from cxrjax.input_pipeline.examples import (
    EncodedQuestion,
    ExampleConfig,
    QuestionEncoder,
    TooLongError,
    bucket,
    load_input,
)
from cxrjax.input_pipeline.mixture import Mixture
from cxrjax.input_pipeline.tokenizer import Tokenizer

# Questions kept in tokens by each process, some 40 MB. From the second epoch on, reading and
# tokenizing text again would cost more than decoding a small image.
_CACHED_QUESTIONS = 2**16
NO_ELEMENT = -1


@dataclasses.dataclass(frozen=True)
class _Question:
    slot: int
    index: int
    question_id: str
    tokens: EncodedQuestion


@dataclasses.dataclass(frozen=True)
class _Element:
    """One image with its questions in tokens, its pixels not yet read."""

    image_path: AnyFile | None
    questions: list[_Question]
    problems: list[BatchProblem]


class BatchBuilder:
    """The numbers of a global batch's elements -> this host's rows of it.

    Lengths are chosen from all questions of the global batch, so that every host picks the same
    buckets; pixels are read for this host's rows alone. Can be pickled.
    """

    def __init__(
        self,
        mixture: Mixture,
        tokenizer: Tokenizer,
        with_answers: bool,
        rows: Sequence[int],
    ) -> None:
        self.mixture = mixture
        self.encoders = [QuestionEncoder(tokenizer, s.config) for s in mixture.sources]
        self.config = mixture.config
        self.with_answers = with_answers
        self.rows = rows
        # Asked for now, so that a tokenizer that does not fit is told before the first batch.
        # All sources have the same tokens for digits, if any; the longest numbers need the room.
        self._digits = max(e.digit_shape for e in self.encoders) if with_answers else (0, ())
        self._cache: dict[int, _Element] = {}

    def __call__(self, elements: np.ndarray) -> LoadedBatch:
        mine = self.rows
        config = self.config
        one_shape = len(config.prefix_buckets) == len(config.answer_buckets) == 1
        one_shape = one_shape and not config.packed_buckets
        rows = mine if one_shape else range(len(elements))
        encoded = {row: self._encode(int(elements[row])) for row in rows}
        tokens = [question.tokens for row in encoded.values() for question in row.questions]
        loaded = LoadedBatch(
            batch=empty_batch(
                images=len(mine),
                image=config.empty_input(),
                questions=self.mixture.questions_per_image,
                prefix_slots=_slots([len(t.prefix) for t in tokens], config.prefix_buckets),
                answer_slots=_slots([len(t.answer) for t in tokens], config.answer_buckets),
                boxes=config.max_boxes,
                packed_length=_packed_length(list(encoded.values()), config),
                max_digits=self._digits[0],
                digit_ids=self._digits[1],
            ),
            question_ids=[[None] * self.mixture.questions_per_image for _ in mine],
            problems=[],
        )
        for local_row, row in enumerate(mine):
            self._fill(loaded, local_row, encoded[row])
        return loaded

    def _encode(self, element: int) -> _Element:
        if element == NO_ELEMENT:
            return _Element(None, [], [])
        if element in self._cache:
            return self._cache[element]
        image_path, indices, records = self.mixture[element]
        encoder = self.encoders[self.mixture.source_of(element)]
        encoded = _Element(image_path, [], [])
        for slot, (index, record) in enumerate(zip(indices, records, strict=True)):
            try:
                tokens = encoder.encode(record, self.with_answers)
            except TooLongError as error:
                if self.config.too_long == "error":
                    raise
                problem = BatchProblem(index, record.question_id, error.reason, str(error))
                encoded.problems.append(problem)
            else:
                encoded.questions.append(_Question(slot, index, record.question_id, tokens))
        if len(self._cache) * self.mixture.questions_per_image < _CACHED_QUESTIONS:
            self._cache[element] = encoded
        return encoded

    def _fill(self, loaded: LoadedBatch, row: int, element: _Element) -> None:
        """Writes one image with its questions into row `row`."""
        loaded.problems.extend(element.problems)
        if element.image_path is None or not element.questions:
            return
        batch = loaded.batch
        try:
            batch.images[row] = load_input(element.image_path, self.config)
        except ImageError as error:
            loaded.problems.extend(
                BatchProblem(question.index, question.question_id, "unreadable_image", str(error))
                for question in element.questions
            )
            return
        for question in element.questions:
            _fill_question(batch, row, question.slot, question.tokens)
            batch.question_index[row, question.slot] = question.index
            loaded.question_ids[row][question.slot] = question.question_id

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}


def _fill_question(batch: Batch, row: int, slot: int, question: EncodedQuestion) -> None:
    prefix_start = batch.prefix_tokens.shape[-1] - len(question.prefix)
    batch.prefix_tokens[row, slot, prefix_start:] = question.prefix
    batch.prefix_mask[row, slot, prefix_start:] = True
    batch.answer_tokens[row, slot, : len(question.answer)] = question.answer
    batch.answer_mask[row, slot, : len(question.answer)] = True
    num_boxes = len(question.boxes)
    batch.coordinate_positions[row, slot, :num_boxes] = question.coordinate_positions
    batch.target_boxes[row, slot, :num_boxes] = question.boxes
    batch.box_mask[row, slot, :num_boxes] = True
    if batch.digits is not None and question.digits is not None:
        for name in ("positions", "place_weights"):
            values = getattr(question.digits, name)
            getattr(batch.digits, name)[row, slot, :num_boxes, :, : values.shape[-1]] = values
        batch.digits.scale[row, slot] = question.digits.scale
        batch.digits.offset[row, slot] = question.digits.offset


def _slots(lengths: list[int], buckets: tuple[int, ...]) -> int:
    return bucket(max(lengths, default=0), buckets)


def _packed_length(elements: list[_Element], config: ExampleConfig) -> int | None:
    """The smallest bucket that holds all tokens of each image, None where there is none."""
    longest = max(
        sum(len(question.tokens.prefix) + len(question.tokens.answer) for question in e.questions)
        for e in elements
    )
    return next((length for length in config.packed_buckets if length >= longest), None)
