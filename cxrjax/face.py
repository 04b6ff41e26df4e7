"""The Python face: load a model, ask it, read records, score answers, train.

    model = cxrjax.load("runs/demo/train")
    reply = model.ask("chest.png", "Where is the effusion?")
    replies = model.ask("chest.png", ["Is there an effusion?", "Where is it?"])
    table = cxrjax.score("data/records/validation.jsonl", {"tuned": model.predict(questions)})
    for figures in cxrjax.train("configs/records_lora.py", "runs/own/train"): ...

What the commands do, in one process; docs/python.md has examples that are tested.
"""

import base64
import dataclasses
import difflib
import io
import json
import math
import queue
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float, UInt8

from cxrjax.border.foreign_files import raw_lines
from cxrjax.border.json_text import parse_object
from cxrjax.errors import UserError
from cxrjax.files import reading, shipped
from cxrjax.images.files import AnyFile
from cxrjax.records import QARecord, write_records
from cxrjax.records import read_records as _read_records

if TYPE_CHECKING:
    from cxrjax.input_pipeline.sources import ImageQuestions
    from cxrjax.runners.own_model import OwnModel
    from cxrjax.training.config import ExperimentConfig

_MOST_TOGETHER = 32  # questions of an image in one program
_COMMON_PREFIX = 64  # tokens of a question, for which there is one compiled program
_SHOWN_SIDE = 640
_COLOUR = "#ffd60a"
Figures = dict[str, float | None]
# What `ask` takes: a file, its bytes, pixels, or a picture of Pillow.
Picture = Any


@dataclasses.dataclass(frozen=True)
class _HeldImage:
    """An image in memory, for whoever reads files."""

    content: bytes = dataclasses.field(repr=False)
    name: str = "image"

    def __str__(self) -> str:
        return self.name

    def open(self) -> io.BytesIO:
        return io.BytesIO(self.content)


def _as_file(image: Picture) -> AnyFile:
    """An image as readers of files take it.

    Raises:
        UserError: it is none of those that `Model.ask` names.
    """
    if isinstance(image, str | Path):
        return Path(image)
    if isinstance(image, bytes | bytearray | memoryview):
        return _HeldImage(bytes(image))
    from PIL import Image

    if not isinstance(image, Image.Image):
        pixels = np.asarray(image)
        grey = pixels.ndim == 2 and pixels.dtype in (np.uint8, np.uint16)
        colour = pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8
        if not grey and not colour:
            raise UserError(
                f"an image of {pixels.dtype} and shape {list(pixels.shape)}: expected a file, its "
                "bytes, a picture of Pillow, or pixels of uint8 (grey or RGB) or uint16 (grey)"
            )
        image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return _HeldImage(buffer.getvalue())


@dataclasses.dataclass(frozen=True)
class ModelBox:
    """A box of a reply.

    Attributes:
        fractions: x_min, y_min, x_max, y_max as fractions of the image.
        pixels: the same in pixels of the image.
        confidence: the IoU that the model expects of it, 0 to 1.
        label: the finding that was asked about; None where the question names none.
    """

    fractions: tuple[float, float, float, float]
    pixels: tuple[float, float, float, float]
    confidence: float
    label: str | None = None

    def __str__(self) -> str:
        pixels = ", ".join(f"{value:.0f}" for value in self.pixels)
        return f"{self.label or 'box'}: {pixels} pixels, confidence {self.confidence:.2f}"


@dataclasses.dataclass(frozen=True)
class ModelAnswer:
    """A model's answer to one question. Notebooks show it as a picture with numbered boxes.

    Attributes:
        question: as it was asked.
        text: as generated, boxes in the model's notation.
        words: the same with the number of a box, "(1)", in place of its notation.
        confidence: probability of what the answer decides (yes or no, the findings it names), 0 to
            1; None where it decides nothing.
        probability: of the whole answer; None where there is none.
        parse: "ok", or why no box, or no answer, could be had.
        line: all of it as `predict` writes it.
    """

    question: str
    text: str
    words: str
    boxes: tuple[ModelBox, ...]
    confidence: float | None
    probability: float | None
    parse: str
    line: dict[str, Any] = dataclasses.field(repr=False)
    image: AnyFile = dataclasses.field(repr=False, compare=False)

    @property
    def picture(self) -> "UInt8[np.ndarray, 'h w 3']":
        """The image with the boxes drawn on it."""
        from cxrjax.images.decode import read_image
        from cxrjax.scoring.overlays import overlay

        return overlay(read_image(self.image), {_COLOUR: self.box_array})

    @property
    def box_array(self) -> "Float[np.ndarray, 'n 4']":
        """The boxes as fractions, [n, 4], x_min, y_min, x_max, y_max."""
        return np.array([box.fractions for box in self.boxes], np.float32).reshape(-1, 4)

    def __str__(self) -> str:
        return self.words

    def _repr_png_(self) -> bytes:
        from PIL import Image

        picture = Image.fromarray(self.picture)
        picture.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE))
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        address = base64.b64encode(self._repr_png_()).decode()
        sure = "" if self.confidence is None else f" <small>({self.confidence:.0%} sure)</small>"
        boxes = "".join(f"<li>{escape(str(box))}</li>" for box in self.boxes)
        return (
            f'<figure><img alt="{escape(self.question)}" src="data:image/png;base64,{address}">'
            f"<figcaption><b>{escape(self.question)}</b><br>{escape(self.words)}{sure}"
            f"<ol>{boxes}</ol></figcaption></figure>"
        )


class ModelAnswers(list[ModelAnswer]):
    """Answers to several questions about one image, in their order."""

    def _repr_html_(self) -> str:
        return "".join(reply._repr_html_() for reply in self)


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
            image: a PNG, JPEG or DICOM file or its bytes, pixels [h, w] or [h, w, 3], or a picture
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
        file = _as_file(image)
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
                file = Path(folder) / "questions.jsonl"
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
    folder: str | Path, *, step: int | None = None, prompt: str | None = None, **decoding: Any
) -> Model:
    """Loads a model: the workdir of a training run, or a base (`convert` makes them).

    Args:
        step: of the checkpoint (default: the best, or the last).
        prompt: another prompt format than its own.
        decoding: keys of `decoding.*` in place of its own, such as max_answer_tokens=96.

    Raises:
        UserError: there is no such model.
    """
    from cxrjax.runners.own_model import open_model

    path = shipped(folder)
    if not path.is_dir():
        raise UserError(
            f"{folder}: no such folder; expected a training run's workdir or a base, such as "
            "data/demo_base"
        )
    return Model(path, open_model(path, step, prompt=prompt, decoding=decoding))


def read_records(source: str | Path, split: str = "train") -> list[QARecord]:
    """The records of a file, or of one split of a build's folder.

    Raises:
        UserError: it cannot be read, or has a line that is no record.
    """
    path = Path(source)
    return list(_read_records(path / "records" / f"{split}.jsonl" if path.is_dir() else path))


class ScoreTable(list[dict[str, Any]]):
    """Figures, a row each: system, protocol, metric, value, ci_low, ci_high, n.

    `pandas.DataFrame(table)` takes it as it is.
    """

    def value(self, metric: str, system: str | None = None, protocol: str = "strict") -> Any:
        """One figure, None where it is undefined.

        Args:
            system: None: the only one, or the first.

        Raises:
            UserError: there is no such figure.
        """
        for row in self:
            if (row["metric"], row["protocol"]) == (metric, protocol) and system in (
                None,
                row["system"],
            ):
                return row["value"]
        known = sorted({row["metric"] for row in self if row["protocol"] == protocol})
        near = difflib.get_close_matches(metric, known, n=3, cutoff=0)
        raise UserError(f"no figure {metric!r} under {protocol!r}; the nearest: {', '.join(near)}")

    def only(self, *metrics: str, protocol: str = "strict") -> "ScoreTable":
        """The rows of these metrics."""
        return ScoreTable(
            row for row in self if row["metric"] in metrics and row["protocol"] == protocol
        )

    def to_pandas(self) -> Any:
        """A DataFrame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("no pandas here: pip install pandas, or take the rows") from None
        return pandas.DataFrame(self)

    def _repr_html_(self) -> str:
        columns = ("system", "protocol", "metric", "value", "ci_low", "ci_high", "n")
        head = "".join(f"<th>{name}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(row[name]))}</td>" for name in columns) + "</tr>"
            for row in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


Predictions = str | Path | Iterable[Mapping[str, Any]]


def score(
    references: str | Path | Iterable[QARecord],
    predictions: Predictions | Mapping[str, Predictions],
    *,
    benchmark: str = "own",
    resamples: int = 1000,
    seed: int = 0,
    floors: bool = False,
) -> ScoreTable:
    """Scores predictions as `python -m cxrjax.score` does.

    Args:
        references: a records file, or records.
        predictions: a file or lines of predictions (of `Model.predict`), or several by their
            systems' names.
        benchmark: whose figures, as --benchmark has it.
        resamples: of the intervals; 0: none.
        floors: also of systems that look at no image, named "floor: ...".

    Raises:
        UserError: something cannot be read, or no such benchmark.
    """
    from cxrjax.metrics.bootstrap import Bootstrap
    from cxrjax.papers.benchmarks import BENCHMARKS
    from cxrjax.scoring.scores import ScoreOptions

    if benchmark not in BENCHMARKS:
        raise UserError(f"benchmark={benchmark!r}: expected one of {', '.join(BENCHMARKS)}")
    chosen = BENCHMARKS[benchmark]()
    systems = predictions if isinstance(predictions, Mapping) else {"model": predictions}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not isinstance(references, str | Path):
            write_records(folder / "references.jsonl", references)
            references = folder / "references.jsonl"
        files = {
            system: _predictions_file(folder / f"{number}.jsonl", given)
            for number, (system, given) in enumerate(systems.items())
        }
        options = ScoreOptions(
            gt_mode=chosen.gt_modes[0],
            bootstrap=Bootstrap(resamples=resamples, seed=seed),
            floors=floors,
        )
        scores = chosen.score_files(Path(references), files, options)
    return ScoreTable(
        {"system": system, "protocol": protocol, "metric": metric, **_interval(figure.to_json())}
        for system, named in (scores.rows if floors else scores.figures).items()
        for protocol, metrics in named.items()
        for metric, figure in metrics.items()
    )


def _interval(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cell.get(name) for name in ("value", "ci_low", "ci_high", "n")}


def _predictions_file(path: Path, given: Predictions) -> Path:
    if isinstance(given, str | Path):
        return Path(given)
    path.write_text("".join(json.dumps(dict(line)) + "\n" for line in given), encoding="utf-8")
    return path


def train(
    config: "str | Path | ExperimentConfig" = "configs/records_lora.py",
    workdir: str | Path = "runs/own/train",
    overrides: Mapping[str, Any] | None = None,
) -> Iterator[Figures]:
    """Trains as `python -m cxrjax.train` does, and yields figures while it goes.

    Training goes on beside the loop, from where a run in the workdir stopped, and leaves there all
    that the command leaves. Whoever leaves the loop has it save after the step in work and stop.

    Args:
        config: FILE.py[:VARIANT], or a configuration.
        overrides: key -> value, such as {"data.train": path, "training.steps": 100}.

    Returns:
        The values of each step that is logged from here on, "step" among them, as metrics.jsonl has
        them.

    Raises:
        UserError: the configuration cannot be used; of data that cannot be used it is raised in
            the loop.
    """
    from cxrjax import cli
    from cxrjax.training.config_file import load_config

    cli.keep_compiled_programs()
    recipe = None
    if isinstance(config, str | Path):
        recipe = str(config)
        words = [f"--config.{key}={value}" for key, value in (overrides or {}).items()]
        config = load_config(str(config), words)
    elif overrides:
        raise UserError("overrides are for a configuration's file; change the object itself")
    return _trained(config, Path(workdir), recipe)


def _trained(config: "ExperimentConfig", workdir: Path, recipe: str | None) -> Iterator[Figures]:
    """Trains in a thread and yields what it logs."""
    from cxrjax.training.metric_log import FILE_NAME

    ended: queue.Queue[BaseException | None] = queue.Queue()
    stop = _stop_by_hand()
    log = workdir / FILE_NAME
    last = max((_step(one) for one in _logged(log)), default=-1)

    def work() -> None:
        from cxrjax.train import train as run_training

        try:
            run_training(config, workdir, stop, recipe=recipe)
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    thread = threading.Thread(target=work, name="cxrjax training")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOKED_EVERY)
            for figures in _logged(log):
                if _step(figures) > last:
                    last = _step(figures)
                    yield figures
        yield from (figures for figures in _logged(log) if _step(figures) > last)
    finally:
        stop.ask()
        thread.join()
    error = ended.get()
    if error is not None:
        raise error


_LOOKED_EVERY = 0.2  # seconds


def _logged(log: Path) -> Iterator[Figures]:
    """Whole lines of a run's log; the last may be in work."""
    if log.is_file():
        with reading(log, "figures", "train again"):
            for _, line in raw_lines(log):
                if line.endswith(b"\n"):
                    yield parse_object(line)


def _step(figures: Figures) -> float:
    return figures.get("step") or 0.0


def _stop_by_hand() -> Any:
    """A `Preemption` that somebody asks for instead of a signal."""
    from cxrjax.training.preemption import Preemption

    class ByHand(Preemption):
        """Threads cannot hear signals."""

        _asked = False

        def ask(self) -> None:
            """Has the run stop after the step in work."""
            self._asked = True

        @property
        def requested(self) -> bool:
            return self._asked

        @property
        def reason(self) -> str:
            return "the loop was left"

    return ByHand()
