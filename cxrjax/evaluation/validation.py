"""A model's figures on a benchmark's records: the evaluation during training."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh

from cxrjax.boxes import canonical
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.grammar import Grammar
from cxrjax.decoding.predictor import predict_questions
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed import hosts
from cxrjax.evaluation.benchmark import Answers, Benchmark, References
from cxrjax.evaluation.overlays import overlay
from cxrjax.evaluation.predictions import parse_prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.images.geometry import letterbox
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.sources import QuestionSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.models import VLM
from cxrjax.progress import progress_bar

_PICTURE_SIDE = 448


def make_evaluate(
    source: QuestionSource,
    tokenizer: Tokenizer,
    config: ExampleConfig,
    *,
    benchmark: Benchmark[Any],
    references: References[Any],
    strategy: Strategy,
    grammar: Grammar | None,
    images_per_batch: int,
    pictures: int = 4,
    mesh: Mesh | None = None,
    each_answer: Callable[[], None] | None = None,
) -> Callable[[int, VLM], dict[str, Any]]:
    """The function that the training loop calls: (step, model) -> figures and pictures.

    Args:
        source: validation records, with answers.
        benchmark: whose figures these are.
        references: the truth of these records, as the benchmark reads it by default.
        strategy, grammar: how answers are generated.
        pictures: radiographs drawn with true and predicted boxes, uint8 [n, H, W, 3]; of several
            processes the first one draws.
        mesh: the model's.
        each_answer: called at each, and may raise to abandon the evaluation.
    """
    options = ScoreOptions(gt_mode=benchmark.gt_modes[0], bootstrap=Bootstrap(resamples=0))

    def evaluate(step: int, model: VLM) -> dict[str, Any]:
        del step
        generator = Generator(model, strategy, grammar, mesh)
        lines = []
        predicted = predict_questions(
            generator, source, tokenizer, config, images_per_batch=images_per_batch
        )
        for line in progress_bar(
            predicted,
            "validation",
            source.num_questions,
            unit="question",
            disable=not hosts.is_first(),
        ):
            lines.append(line)
            if each_answer is not None:
                each_answer()
        figures: dict[str, Any] = hosts.from_first(score(lines) if hosts.is_first() else None)
        drawn = draw_predictions(source, lines, pictures) if hosts.is_first() else None
        return {**figures, "overlays": drawn} if drawn is not None else figures

    def score(lines: list[dict[str, Any]]) -> dict[str, Any]:
        answers = Answers([parse_prediction(line, "model") for line in lines], "model")
        scores = benchmark.score(references, {"model": answers}, options)
        logged = benchmark.layout.logged_figures(scores.figures["model"])
        return {name: value for _, name, value in logged}

    return evaluate


def draw_predictions(
    source: QuestionSource, lines: Iterable[Mapping[str, Any]], count: int
) -> np.ndarray | None:
    """The first images that have true boxes, with truth in green and predictions in red.

    Images that cannot be read are passed over: their predictions say so.
    """
    predicted = {line["question_id"]: line["boxes"] for line in lines}
    drawn: list[np.ndarray] = []
    for element in range(len(source)):
        if len(drawn) == count:
            break
        image_path, _, records, _ = source[element]
        truth, found = [], []
        for record in records:
            assert record.image_hw is not None
            height, width = record.image_hw
            truth += [np.divide(box, [width, height, width, height]) for box in record.boxes]
            found += predicted.get(record.question_id, [])
        if not truth:
            continue
        try:
            image, geometry = letterbox(read_image(image_path), _PICTURE_SIDE, _PICTURE_SIDE)
        except ImageError:
            continue
        boxes = {
            colour: geometry.apply(canonical(np.asarray(sides, np.float32).reshape(-1, 4)))
            for colour, sides in (("green", truth), ("red", found))
        }
        drawn.append(overlay(image, boxes))
    return np.stack(drawn) if drawn else None
