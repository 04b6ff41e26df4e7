"""Asks several models of ours one question about one image, with everything a page shows.

Asked as `predict` asks it, so that the page says what a predictions file would say.
"""

import dataclasses
import io
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from cxrjax.border.foreign_files import open_foreign
from cxrjax.boxes import canonical
from cxrjax.decoding.predictor import TokenAnswer, answer_questions, prediction
from cxrjax.errors import UserError
from cxrjax.images.decode import image_size
from cxrjax.images.files import AnyFile
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.sources import ImageQuestions
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.input_pipeline.wording import says_unknown
from cxrjax.records import QARecord
from cxrjax.runners.own_model import OwnModel, open_model

# Tokens of a question, for which there is one compiled program; longer ones compile their own.
_COMMON_PREFIX = 64
LONGEST_QUESTION = 500  # characters
_BLANK_SIDE = 64


@dataclasses.dataclass(frozen=True)
class NamedFile:
    """A file that messages call by the name that its owner knows it by."""

    path: Path
    name: str

    def __str__(self) -> str:
        return self.name

    def open(self) -> io.BufferedReader:
        return open_foreign(self.path)


@dataclasses.dataclass(frozen=True)
class _Blank:
    """A black picture, to compile a model with."""

    def open(self) -> io.BytesIO:
        buffer = io.BytesIO()
        Image.new("L", (_BLANK_SIDE, _BLANK_SIDE)).save(buffer, "PNG")
        buffer.seek(0)
        return buffer


class Token(NamedTuple):
    """A token of an answer.

    Attributes:
        piece: as the tokenizer has it, a space as `▁`.
        probability: that the model gave it, 0 to 1, before the grammar ruled any out.
        kind: `location` of a coordinate, `end` of what ends the answer.
    """

    piece: str
    probability: float
    kind: Literal["word", "location", "end"]


class AnswerBox(NamedTuple):
    """A box of an answer.

    Attributes:
        pixels: x_min, y_min, x_max, y_max in the original image, rounded.
        fractions: the same, as fractions of the image.
        confidence: `cxrjax.decoding.confidence.box_confidences`, 0 to 1.
    """

    pixels: tuple[int, int, int, int]
    fractions: tuple[float, float, float, float]
    confidence: float


@dataclasses.dataclass(frozen=True)
class Answered:
    """A model's answer.

    Attributes:
        text: as generated, boxes in the model's notation.
        reason: what a format that gives reasons has after the answer.
        probability: of the whole answer, the product of its tokens'.
        token_probability: their geometric mean.
        parse: `ok`, or why a box could not be read (a failure category of cxrjax/codecs/base.py).
    """

    text: str
    reason: str
    boxes: tuple[AnswerBox, ...]
    tokens: tuple[Token, ...]
    probability: float
    token_probability: float
    parse: str

    @property
    def words_probability(self) -> float:
        """The product of the probabilities of all tokens but coordinates, which share theirs with
        their neighbours."""
        return math.prod(one.probability for one in self.tokens if one.kind != "location")

    @property
    def is_unknown(self) -> bool:
        """True where the model says that it was not taught what is asked about."""
        return says_unknown(self.text)

    @property
    def ended(self) -> bool:
        """False where the model was cut off."""
        return bool(self.tokens) and self.tokens[-1].kind == "end"


@dataclasses.dataclass
class _OneQuestion:
    """A source of one record, as loaders read a file of them."""

    image: AnyFile
    asked: QARecord
    questions_per_image: int = 1
    fingerprint: str = ""
    num_records: int = 1
    num_questions: int = 1

    def __len__(self) -> int:
        return 1

    def __getitem__(self, element: int) -> ImageQuestions:
        return ImageQuestions(self.image, (0,), (self.asked,))

    def record(self, index: int) -> QARecord:
        return self.asked

    def records(self) -> Iterator[tuple[int, QARecord]]:
        yield 0, self.asked


class Models:
    """Models by name, asked the same question one after the other.

    Args:
        opened: at least one.
    """

    def __init__(self, opened: Mapping[str, OwnModel]) -> None:
        self._opened = {name: _with_common_prefix(model) for name, model in opened.items()}
        self._ready = threading.Event()
        self._compiled = 0
        self._failure: BaseException | None = None

    def compile(self) -> None:
        """Has every model answer once, which compiles it; to be called in a thread of its own."""
        try:
            for model in self._opened.values():
                _ask(model, _Blank(), "Where is it?")
                self._compiled += 1
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._ready.set()

    @property
    def progress(self) -> str:
        """The names of what is being compiled; empty when nothing is any more."""
        if self._ready.is_set():
            return ""
        name = list(self._opened)[self._compiled]
        return f"{name}, model {self._compiled + 1} of {len(self._opened)}"

    def wait(self, seconds: float) -> bool:
        """Waits for `compile`; True once it has ended.

        Raises:
            UserError: it failed.
        """
        ended = self._ready.wait(seconds)
        if self._failure is not None:
            raise UserError(f"a model could not be compiled: {self._failure}")
        return ended

    def ask(self, image: AnyFile, question: str) -> dict[str, Answered]:
        """Each model's answer.

        Args:
            image: PNG, JPEG or DICOM.

        Raises:
            UserError: the image cannot be read, there is no question, or it is too long.
        """
        question = " ".join(question.split())
        if not question:
            raise UserError("no question: write one, such as 'Where is the Cardiomegaly?'")
        if len(question) > LONGEST_QUESTION:
            raise UserError(
                f"a question of {len(question)} characters: expected at most {LONGEST_QUESTION}"
            )
        return {name: _ask(model, image, question) for name, model in self._opened.items()}


def open_models(base: Path, tuned: Path) -> Models:
    """A base and what was made of it, both to be asked in the words that the latter was tuned on.

    Raises:
        UserError: there is no such model, or the tuned one cannot be asked in free words.
    """
    for name, folder, default in (("base", base, "data/real_base"), ("tuned", tuned, "runs/demo")):
        if not folder.is_dir():
            raise UserError(
                f"--{name}={folder}: there is no such folder; `make demo` makes {default}, or name "
                "another base directory or training workdir"
            )
    opened = open_model(tuned)
    prompt = opened.config.data.prompt
    if PROMPTS[prompt].needs_finding:
        raise UserError(
            f"--tuned={tuned}: its prompt format {prompt!r} asks about one finding by name, and "
            "the page asks in free words; expected a model that was tuned with 'vqa' or the like"
        )
    return Models({"base": open_model(base, prompt=prompt), "tuned": opened})


def _with_common_prefix(model: OwnModel) -> OwnModel:
    """One length for all but the longest questions, and none that stops the process."""
    buckets = model.examples.prefix_buckets
    longer = tuple(size for size in buckets if size >= _COMMON_PREFIX) or buckets[-1:]
    examples = dataclasses.replace(
        model.examples, prefix_buckets=longer, packed_buckets=(), too_long="set_aside"
    )
    return dataclasses.replace(model, examples=examples)


def _ask(model: OwnModel, image: AnyFile, question: str) -> Answered:
    height, width = image_size(image)
    record = QARecord(
        dataset="custom",
        split="asked",
        image_id="image",
        image_path="image",
        image_hw=(height, width),
        question_id="asked",
        question=question,
        question_type="free",
    )
    generator, tokenizer, examples = model.generator, model.tokenizer, model.examples
    source = _OneQuestion(image, record)
    (answer,) = answer_questions(generator, source, tokenizer, examples, images_per_batch=1)
    if not isinstance(answer, TokenAnswer):
        if answer.reason == "prefix_too_long":
            raise UserError(
                f"the question is longer than the {examples.prefix_buckets[-1]} tokens that the "
                "model is given: shorten it"
            )
        raise UserError(answer.detail)
    stop_ids = generator.strategy.stop_ids
    line = prediction(answer, tokenizer, examples, stop_ids)
    tokens = _tokens(answer, tokenizer, stop_ids)
    return Answered(
        text=line["text"],
        reason=line.get("reason", ""),
        boxes=tuple(
            _box(box, score, width, height)
            for box, score in zip(line["boxes"], line["box_scores"], strict=True)
        ),
        tokens=tokens,
        probability=math.exp(line["answer_logprob"]),
        token_probability=math.exp(line["answer_logprob"] / max(1, len(tokens))),
        parse=line["parse"],
    )


def _box(written: list[float], score: float, width: int, height: int) -> AnswerBox:
    """A box that a picture can show: a line has corners as the model wrote them."""
    x0, y0, x1, y1 = canonical(np.array(written)).tolist()
    pixels = (round(x0 * width), round(y0 * height), round(x1 * width), round(y1 * height))
    return AnswerBox(pixels, (x0, y0, x1, y1), score)


def _tokens(
    answer: TokenAnswer, tokenizer: Tokenizer, stop_ids: tuple[int, ...]
) -> tuple[Token, ...]:
    """Up to the one that ends the answer, that one included."""
    ends = np.flatnonzero(np.isin(answer.tokens, stop_ids))
    length = int(ends[0]) + 1 if len(ends) else len(answer.tokens)
    locations = set(tokenizer.loc_ids.tolist())
    found = []
    for token, logprob in zip(answer.tokens[:length].tolist(), answer.logprobs, strict=False):
        kind: Literal["word", "location", "end"] = "word"
        if token in locations:
            kind = "location"
        elif token in stop_ids:
            kind = "end"
        found.append(Token(tokenizer.piece_of(token), math.exp(float(logprob)), kind))
    return tuple(found)
