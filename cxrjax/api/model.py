"""A loaded model, and how it is asked."""

import dataclasses
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from cxrjax.api.answers import ModelAnswer, ModelAnswers, ModelBox
from cxrjax.api.pictures import Picture, as_file
from cxrjax.errors import UserError
from cxrjax.images.files import AnyFile
from cxrjax.paths import to_path
from cxrjax.records import QARecord, write_records

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int32

    from cxrjax.evaluation.systems.own_model import OwnModel
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
        import numpy as np

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

    @overload
    def ask(self, image: Picture, question: str | QARecord) -> ModelAnswer: ...

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
        from cxrjax.images.decode import image_size

        alone = isinstance(question, str | QARecord)
        questions: list[Any] = [question] if alone else list(question)
        if not questions:
            raise UserError("no question: give at least one, such as 'Where is the effusion?'")
        file = as_file(image)
        size = image_size(file)
        records = [self._record(one, number, size) for number, one in enumerate(questions)]
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
            self._reply(file, record, lines[str(number)], size)
            for number, record in enumerate(records)
        )
        return replies[0] if alone else replies

    def predict(
        self,
        questions: str | Path | Iterable[QARecord],
        *,
        image_root: str | Path | None = None,
        images_per_batch: int = 8,
    ) -> list[dict[str, Any]]:
        """Answers questions as `python -m cxrjax.predict` does: a line for each, for `score`.

        Args:
            questions: a file of questions or records, or records.
            image_root: what their image_path is relative to (default: as of the file; of records
                the working folder).

        Raises:
            UserError: the file cannot be read.
        """
        from cxrjax.decoding.predictor import predict_questions
        from cxrjax.input_pipeline.prompts import PROMPTS
        from cxrjax.input_pipeline.sources import RecordSource

        opened = self._opened
        with tempfile.TemporaryDirectory() as folder:
            if not isinstance(questions, str | Path):
                file = to_path(folder) / "questions.jsonl"
                write_records(file, questions)
                questions, image_root = file, image_root or Path.cwd()
            source = RecordSource(questions, image_root)
            needs = PROMPTS[self.config.data.prompt].needs_finding
            unasked = {i for i, record in source.records() if needs and not record.finding}
            grouped = source.regrouped(self.config.data.questions_per_image, unasked)
            return list(
                predict_questions(
                    opened.generator,
                    grouped,
                    opened.tokenizer,
                    opened.examples,
                    images_per_batch=opened.generator.whole_batch(images_per_batch),
                )
            )

    def _record(self, question: str | QARecord, number: int, image_hw: tuple[int, int]) -> QARecord:
        """A question as a record; its number is its id, since records may come twice."""
        from cxrjax.input_pipeline.prompts import PROMPTS

        if isinstance(question, QARecord):
            return question.model_copy(update={"question_id": str(number), "image_hw": image_hw})
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

    def _reply(
        self, file: AnyFile, record: QARecord, line: dict[str, Any], image_hw: tuple[int, int]
    ) -> ModelAnswer:
        if line["answer_logprob"] is None:
            longest = self._examples.prefix_buckets[-1]
            told = {"prefix_too_long": f"it is longer than {longest} tokens: shorten it"}
            why = told.get(line["parse"], line["parse"])
            raise UserError(f"{record.question[:100]!r} could not be asked: {why}")
        height, width = image_hw
        boxes = tuple(
            ModelBox(
                (x0, y0, x1, y1),
                (
                    round(x0 * width, 1),
                    round(y0 * height, 1),
                    round(x1 * width, 1),
                    round(y1 * height, 1),
                ),
                score,
                label,
            )
            for (x0, y0, x1, y1), score, label in zip(
                (_sorted(box) for box in line["boxes"]),
                line["box_scores"],
                line["labels"],
                strict=True,
            )
        )
        decided = line["decision_logprob"]
        return ModelAnswer(
            question=record.question,
            text=line["text"],
            words=self._words(line["text"], image_hw),
            boxes=boxes,
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


def load(
    source: str | Path,
    *,
    base: str | Path | None = None,
    step: int | None = None,
    prompt: str | None = None,
    **decoding: Any,
) -> Model:
    """Loads a model.

    Args:
        source: a training run's workdir, a base, a Hugging Face folder, a GGUF file, a PEFT adapter
            or `hf://OWNER/NAME`. What is not ours is converted once, into a cache.
        base: of a PEFT adapter (default: the one that it names).
        step: of the checkpoint (default: the best, or the last).
        prompt: another prompt format than its own.
        decoding: keys of `decoding.*` in place of its own, such as max_answer_tokens=96.

    Raises:
        UserError: there is no such model.
    """
    from cxrjax.evaluation.systems.own_model import open_model
    from cxrjax.training.resolver import resolve

    path = resolve(source, base)
    return Model(path, open_model(path, step, prompt=prompt, decoding=decoding))
