"""A loaded model, and how it is asked."""

import dataclasses
import difflib
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
import pydantic

from cxrjax.api.answers import ModelAnswer, ModelAnswers
from cxrjax.api.builds import records_of
from cxrjax.api.pictures import Picture, as_file
from cxrjax.api.tables import Table
from cxrjax.choices import AnswerForm, BoxReading, Prompt
from cxrjax.errors import UserError
from cxrjax.images.files import AnyFile
from cxrjax.paths import AnyPath, to_path
from cxrjax.records import QARecord, write_records

if TYPE_CHECKING:
    from jaxtyping import Int32

    from cxrjax.evaluation.systems.own_model import OwnModel
    from cxrjax.input_pipeline.batch import BatchProblem
    from cxrjax.input_pipeline.sources import ImageQuestions

_MOST_TOGETHER = 32  # questions of an image in one program
_COMMON_PREFIX = 64  # tokens of a question, for which there is one compiled program


@dataclasses.dataclass
class _OneImage:
    """A source of one image and some questions, as loaders read a file of them."""

    image: AnyFile
    asked: Sequence[QARecord]
    questions_per_image: int
    fingerprint: str = ""

    @property
    def num_records(self) -> int:
        return len(self.asked)

    @property
    def num_questions(self) -> int:
        return len(self.asked)

    @property
    def num_images(self) -> int:
        return 1

    def __len__(self) -> int:
        return -(-len(self.asked) // self.questions_per_image)

    def __getitem__(self, element: int) -> "ImageQuestions":
        from cxrjax.input_pipeline.sources import ImageQuestions

        start = element * self.questions_per_image
        stop = min(start + self.questions_per_image, len(self.asked))
        return ImageQuestions(self.image, tuple(range(start, stop)), tuple(self.asked[start:stop]))

    def record(self, index: int) -> QARecord:
        return self.asked[index]

    def records(self) -> Iterator[tuple[int, QARecord]]:
        yield from enumerate(self.asked)

    def image_sizes(self) -> "Int32[np.ndarray, 'elements 2']":
        of_image = self.asked[0].image_hw or (0, 0)
        return np.full((len(self), 2), of_image, np.int32)


class Model:
    """A model of ours that answers questions about images; `load` makes one.

    Attributes:
        folder: where it was loaded from.
        config: of its run or base.
    """

    def __init__(self, folder: Path, opened: "OwnModel") -> None:
        self.folder = folder
        self.config = opened.config
        buckets = opened.examples.prefix_buckets
        longer = tuple(size for size in buckets if size >= _COMMON_PREFIX) or buckets[-1:]
        self._examples = dataclasses.replace(
            opened.examples, prefix_buckets=longer, packed_buckets=(), too_long="set_aside"
        )
        self._opened = opened

    def __repr__(self) -> str:
        data = self.config.data
        return f"<cxrjax model {self.folder}: prompt {data.prompt}, boxes as {data.codec}>"

    @overload  # a text is a sequence of texts, too
    def ask(self, image: Picture, question: str | QARecord) -> ModelAnswer: ...  # type: ignore[overload-overlap]

    @overload
    def ask(self, image: Picture, question: Sequence[str | QARecord]) -> ModelAnswers: ...

    def ask(
        self, image: Picture, question: "str | QARecord | Sequence[str | QARecord]"
    ) -> ModelAnswer | ModelAnswers:
        """Asks one question, or several that share the image: it is looked at once for up to 32.

        The first call compiles, which takes a minute or so; so does one with many more questions.

        Args:
            image: a PNG, JPEG or DICOM file or its bytes, pixels [h, w] or [h, w, 3], or an image
                of Pillow.
            question: in words (of models with the prompt format `detect` a finding's name), or a
                record.

        Raises:
            UserError: the image cannot be read, there is no question, or one is too long.
        """
        from cxrjax.decoding.predictor import predict_questions

        alone = isinstance(question, str | QARecord) or not isinstance(question, Sequence)
        questions: list[Any] = [question] if alone else list(question)
        if not questions:
            raise UserError("no question: give at least one, such as 'Where is the effusion?'")
        file, records = self._questions(image, questions)
        together = min(_MOST_TOGETHER, 1 << (len(records) - 1).bit_length())
        source = _OneImage(file, records, together)
        lines = {
            line["question_id"]: line
            for line in predict_questions(
                self._opened.generator,
                source,
                self._opened.tokenizer,
                self._examples,
                images_per_batch=1,
            )
        }
        replies = ModelAnswers(
            self._reply(file, record, lines[str(number)]) for number, record in enumerate(records)
        )
        return replies[0] if alone else replies

    def stream(self, image: Picture, question: str | QARecord) -> Iterator[str]:
        """Yields the text of an answer as it is written, boxes in the model's own format.

        The pieces together are `ask(image, question).raw`.

        Args:
            image, question: as of `ask`.

        Raises:
            UserError: as `ask`; or the model was loaded with beams or best_of above 1.
        """
        from cxrjax.decoding.stream import stream_answer

        file, records = self._questions(image, [question])
        pieces = stream_answer(
            self._opened.generator,
            _OneImage(file, records, 1),
            self._opened.tokenizer,
            self._examples,
        )
        return self._told(pieces, records[0])

    def _told(self, pieces: "Iterator[str | BatchProblem]", record: QARecord) -> Iterator[str]:
        for piece in pieces:
            if not isinstance(piece, str):
                raise self._refusal(record, piece.reason)
            yield piece

    def predict(
        self,
        questions: AnyPath | Iterable[QARecord],
        *,
        split: str = "validation",
        image_root: AnyPath | None = None,
        images_per_batch: int = 8,
    ) -> Table:
        """Answers a set of questions, as `cxrjax predict` does. No answer in it is looked at.

        Args:
            questions: a file of questions or records, a build, or records.
            split: of a build.
            image_root: what their image_path is relative to (default: as of the file; of records
                the working folder).
            images_per_batch: images at a time.

        Returns:
            A row a question, as `predict` writes lines: question_id, text, boxes (fractions of the
            image), labels, box_scores, answer_logprob, parse. `score` and `export` take it.

        Raises:
            UserError: the questions cannot be read.
        """
        from cxrjax.decoding.predictor import predict_questions
        from cxrjax.input_pipeline.prompts import PROMPTS
        from cxrjax.input_pipeline.sources import RecordSource

        opened = self._opened
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(questions, str | os.PathLike):
                file = records_of(questions, split)
            else:
                file = to_path(folder) / "questions.jsonl"
                write_records(file, questions)
                image_root = image_root or Path.cwd()
            source = RecordSource(file, None if image_root is None else to_path(image_root))
            needs = PROMPTS[self.config.data.prompt].needs_finding
            unasked = {i for i, record in source.records() if needs and not record.finding}
            grouped = source.regrouped(self.config.data.questions_per_image, unasked)
            return Table(
                predict_questions(
                    opened.generator,
                    grouped,
                    opened.tokenizer,
                    opened.examples,
                    images_per_batch=opened.generator.whole_batch(images_per_batch),
                )
            )

    def _questions(
        self, image: Picture, questions: Sequence[str | QARecord]
    ) -> tuple[AnyFile, list[QARecord]]:
        from cxrjax.images.decode import image_size

        file = as_file(image)
        size = image_size(file)
        return file, [self._record(one, number, size) for number, one in enumerate(questions)]

    def _record(self, question: str | QARecord, number: int, image_hw: tuple[int, int]) -> QARecord:
        """A question as a record; its number is its id, since records may come twice."""
        from cxrjax.input_pipeline.prompts import PROMPTS

        if isinstance(question, QARecord):
            return question.model_copy(update={"question_id": str(number), "image_hw": image_hw})
        if not isinstance(question, str):
            raise UserError(f"a question of type {type(question).__name__}: expected words")
        words = " ".join(question.split())
        if not words:
            raise UserError("an empty question: write one, such as 'Where is the effusion?'")
        needs = PROMPTS[self.config.data.prompt].needs_finding
        return QARecord(
            dataset="custom",
            split="asked",
            image_id="image",
            image_path="image",
            image_hw=image_hw,
            question_id=str(number),
            question=words,
            question_type="free",
            variables={"finding": words} if needs else None,
        )

    def _refusal(self, record: QARecord, reason: str) -> UserError:
        longest = self._examples.prefix_buckets[-1]
        told = {"prefix_too_long": f"it is longer than {longest} tokens: shorten it"}
        why = told.get(reason, reason)
        return UserError(f"{record.question[:100]!r} could not be asked: {why}")

    def _reply(self, file: AnyFile, record: QARecord, line: dict[str, Any]) -> ModelAnswer:
        if line["answer_logprob"] is None:
            raise self._refusal(record, line["parse"])
        assert record.image_hw is not None
        image_hw = record.image_hw
        height, width = image_hw
        boxes = np.array([_sorted(box) for box in line["boxes"]], np.float32).reshape(-1, 4)
        decided = line["decision_logprob"]
        return ModelAnswer(
            question=record.question,
            text=self._words(line["text"], image_hw),
            raw=line["text"],
            boxes=boxes,
            pixel_boxes=boxes * np.array([width, height, width, height], np.float32),
            labels=tuple(line["labels"]),
            scores=np.array(line["box_scores"], np.float32),
            confidence=None if decided is None else math.exp(decided),
            probability=math.exp(line["answer_logprob"]),
            parse=line["parse"],
            line=line,
            image=file,
        )

    def _words(self, text: str, image_hw: tuple[int, int]) -> str:
        """The text with numbers in place of boxes."""
        from cxrjax.codecs import get_codec
        from cxrjax.input_pipeline.examples import image_geometry

        geometry = image_geometry(*image_hw, self._examples)
        read = get_codec(self._examples.codec).read_as_written(text, *image_hw, geometry)
        parts, end = [], 0
        for number, span in enumerate(read.spans, start=1):
            parts += [text[end : span.start], f" ({number}) "]
            end = span.end
        words = " ".join("".join([*parts, text[end:]]).split())
        return words.replace(" .", ".").replace(" ,", ",")


def _sorted(box: Sequence[float]) -> tuple[float, float, float, float]:
    """The corners in order; a line has them as the model wrote them."""
    x0, y0, x1, y1 = box
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


class Decoding(TypedDict, total=False):
    """Options of `load`: how answers are written, in place of the model's own `decoding.*`.

    Attributes:
        max_answer_tokens: length of an answer, the token that ends it included.
        grammar: what answers may be.
        names: of the findings, for the grammars that list them.
        boxes: how coordinates are read from location tokens.
        beams: hypotheses of beam search; 1: none.
        length_penalty: of beam search; 1: by mean log-probability.
        temperature: of sampling; 0: the likeliest token at each step.
        top_k: sample from the k likeliest tokens; 0: from all.
        top_p: sample from the likeliest tokens up to this probability, above 0 to 1.
        best_of: sample so many answers and return the likeliest.
        seed: of sampling.
    """

    max_answer_tokens: int
    grammar: AnswerForm | str
    names: Sequence[str]
    boxes: BoxReading | str
    beams: int
    length_penalty: float
    temperature: float
    top_k: int
    top_p: float
    best_of: int
    seed: int


def load(
    source: AnyPath,
    *,
    base: AnyPath | None = None,
    step: int | None = None,
    prompt: Prompt | str | None = None,
    **decoding: Unpack[Decoding],
) -> Model:
    """Loads a model.

    Args:
        source: a training run, a base, a Hugging Face folder, a GGUF file, a PEFT adapter or
            `hf://OWNER/NAME`. A foreign format is converted once, into a cache.
        base: of a PEFT adapter (default: the one that it names).
        step: of the checkpoint (default: the best, or the last).
        prompt: another prompt format than its own.
        decoding: how answers are written; see `Decoding`.

    Raises:
        UserError: there is no such model, option, prompt or value; names the nearest.
    """
    from cxrjax.evaluation.systems.own_model import open_model
    from cxrjax.training.resolver import resolve

    path = resolve(os.fspath(source), None if base is None else os.fspath(base))
    asked = None if prompt is None else Prompt(prompt).value
    return Model(path, open_model(path, step, prompt=asked, decoding=_checked(decoding)))


def _checked(decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding options as a configuration has them.

    Raises:
        UserError: no such option, or a value of another type.
    """
    known = Decoding.__annotations__
    for name in decoding.keys() - known.keys():
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
        raise UserError(
            f"{name!r}: no such decoding option; the nearest is {near!r}; expected one of "
            f"{', '.join(known)}"
        )
    values = dict(decoding)
    for name, kind in (("grammar", AnswerForm), ("boxes", BoxReading)):
        if name in values:
            values[name] = kind(values[name]).value
    if "names" in values:
        values["names"] = tuple(values["names"])
    from cxrjax.decoding.strategy import DecodingConfig

    try:
        DecodingConfig(**values)
    except pydantic.ValidationError as error:
        found = error.errors()[0]
        raise UserError(
            f"{found['loc'][0]}={found['input']!r}: {found['msg'][0].lower()}{found['msg'][1:]}"
        ) from None
    return values


def ask(source: "Model | AnyPath", image: Picture, question: str) -> ModelAnswer:
    """Answers one question about one image.

    Args:
        source: a model, or what `load` takes, which is loaded for this one answer.
        image: as of `Model.ask`.
        question: in words.

    Raises:
        UserError: the model cannot be loaded, or the image cannot be read.
    """
    return as_model(source).ask(image, question)


def predict(
    source: "Model | AnyPath",
    questions: AnyPath | Iterable[QARecord],
    *,
    split: str = "validation",
    image_root: AnyPath | None = None,
    images_per_batch: int = 8,
) -> Table:
    """Answers a set of questions: `Model.predict` of a model, or of what `load` takes."""
    return as_model(source).predict(
        questions, split=split, image_root=image_root, images_per_batch=images_per_batch
    )


def as_model(source: "Model | AnyPath") -> Model:
    """Returns the model, loaded if a path was passed."""
    return source if isinstance(source, Model) else load(source)
