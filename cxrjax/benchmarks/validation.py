"""A model's figures on records, without files in between: the evaluation during training."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from cxrjax.benchmarks.overlays import overlay
from cxrjax.benchmarks.predictions import parse_prediction
from cxrjax.benchmarks.scores import PAPER, STRICT, ScoreOptions
from cxrjax.benchmarks.vindr_cxr_vqa import score
from cxrjax.benchmarks.vindr_truth import read_references
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.grammar import Grammar
from cxrjax.decoding.predictor import predict_questions
from cxrjax.decoding.strategy import Strategy
from cxrjax.images import letterbox, read_image
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.sources import QuestionSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.models import VLM

# What a training run logs of a benchmark: the paper's figures and the strict headline.
LOGGED = {
    PAPER: ("vqa/f1", "vqa/precision", "vqa/recall"),
    STRICT: (
        "vqa/balanced_accuracy",
        "detection/f1@0.3",
        "detection/precision@0.3",
        "detection/recall@0.3",
        "detection/miou_tp@0.3",
        "detection_agnostic/f1@0.3",
        "localization/mean_iou",
        "parse_failure_rate",
    ),
}
_PICTURE_SIDE = 448


def make_evaluate(
    source: QuestionSource,
    tokenizer: Tokenizer,
    config: ExampleConfig,
    *,
    strategy: Strategy,
    grammar: Grammar | None,
    images_per_batch: int,
    pictures: int = 4,
    each_answer: Callable[[], None] | None = None,
) -> Callable[[int, VLM], dict[str, Any]]:
    """The function that the training loop calls: (step, model) -> figures and pictures.

    Args:
        source: validation records, with answers.
        strategy, grammar: how answers are generated.
        pictures: radiographs drawn with true and predicted boxes, uint8 [n, H, W, 3].
        each_answer: called at each, and may raise to abandon the evaluation.
    """
    records = [record for _, record in source.records()]
    references = read_references(records, "exact", "validation")

    def evaluate(step: int, model: VLM) -> dict[str, Any]:
        del step
        generator = Generator(model, strategy, grammar)
        lines = []
        for line in predict_questions(
            generator, source, tokenizer, config, images_per_batch=images_per_batch
        ):
            lines.append(line)
            if each_answer is not None:
                each_answer()
        predictions = [parse_prediction(line, line["question_id"]) for line in lines]
        scores = score(
            references,
            {"model": predictions},
            options=ScoreOptions(gt_mode="exact", bootstrap=Bootstrap(resamples=0)),
        )
        figures: dict[str, Any] = {}
        for protocol, names in LOGGED.items():
            for name in names:
                figures[name] = scores.figures["model"][protocol][name].value
        drawn = draw_predictions(source, lines, pictures)
        return {**figures, "overlays": drawn} if drawn is not None else figures

    return evaluate


def draw_predictions(
    source: QuestionSource, lines: Iterable[Mapping[str, Any]], count: int
) -> np.ndarray | None:
    """The first images that have true boxes, with truth in green and predictions in red."""
    predicted = {line["question_id"]: line["boxes"] for line in lines}
    drawn: list[np.ndarray] = []
    for element in range(len(source)):
        image_path, _, records = source[element]
        truth, found = [], []
        for record in records:
            assert record.image_hw is not None
            height, width = record.image_hw
            truth += [np.divide(box, [width, height, width, height]) for box in record.boxes]
            found += predicted.get(record.question_id, [])
        if not truth or len(drawn) == count:
            continue
        image, geometry = letterbox(read_image(image_path), _PICTURE_SIDE, _PICTURE_SIDE)
        boxes = {
            colour: geometry.apply(np.asarray(boxes, np.float32).reshape(-1, 4))
            for colour, boxes in (("green", truth), ("red", found))
        }
        drawn.append(overlay(image, boxes))
    return np.stack(drawn) if drawn else None
