"""The work of `evaluate`: a model's answers to records, scored, logged at its step."""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.evaluation import run_record
from cxrjax.evaluation.benchmark import Benchmark, write_scores
from cxrjax.evaluation.flags import EvaluateFlags, ModelFlags
from cxrjax.evaluation.scores import ScoreOptions, Scores
from cxrjax.evaluation.systems.base import answer_all
from cxrjax.evaluation.systems.own_model import model_settings, start_model
from cxrjax.evaluation.validation import draw_predictions
from cxrjax.files import read_json_lines
from cxrjax.input_pipeline.sources import RecordSource, default_image_root
from cxrjax.lock import folder_lock
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.paper import load_benchmark
from cxrjax.paths import to_path
from cxrjax.progress import waiting
from cxrjax.records import read_records, strip_answers, write_records
from cxrjax.training.checkpoint import best_step, read_config
from cxrjax.training.metric_log import RunWriter

_WRITTEN = (
    "predictions.jsonl, metrics.json, tables.md, tables.tex, tables.csv, score.json, run.json"
)


class EvaluationPlace(NamedTuple):
    """Records that a model is evaluated on, the folders of images and results, and its step."""

    references: Path
    image_root: Path
    out: Path
    step: int


def model_name(flags: ModelFlags) -> str:
    """Returns the model's name in tables: its folder, or what it is shown instead of the image."""
    if flags.image != "shown":
        return flags.image
    return flags.named.resolve().name


def evaluate(flags: EvaluateFlags) -> tuple[EvaluationPlace, str]:
    """Evaluates a model and writes the files.

    Returns:
        The place of the files, and the text to print, empty in all processes but the first.

    Raises:
        UserError: no records, a model or files that cannot be used.
    """
    hosts.initialize(flags)
    benchmark = load_benchmark(flags.benchmark)
    place = _place(flags)
    run_record.check_folder(place.out)
    run_record.check_split(place.references, flags.manifest)
    with hosts.held_by_first(folder_lock(place.out)):
        predictions = _predict(flags, place)
        text = ""
        if hosts.is_first():
            text = _score(flags, benchmark, place, predictions)
        hosts.wait_for_all("scored")  # JAX's own farewell waits for five minutes only
    return place, text


def _place(flags: EvaluateFlags) -> EvaluationPlace:
    references, image_root = flags.references, flags.image_root
    if flags.workdir:
        data = read_config(flags.workdir).data
        references = references or (to_path(data.validation) if data.validation else None)
        image_root = image_root or (to_path(data.image_root) if data.image_root else None)
    if references is None:
        raise UserError(f"{flags.workdir}: the run names no validation records; give --references")
    kind = "" if flags.image == "shown" else f"_{flags.image}"
    out = flags.out or flags.named / f"evaluation{kind}"
    step = best_step(flags.workdir) if flags.workdir and flags.step is None else flags.step
    return EvaluationPlace(references, image_root or default_image_root(references), out, step or 0)


def _predict(flags: EvaluateFlags, place: EvaluationPlace) -> Path:
    """Writes predictions of the questions, which are all that the model is given."""
    questions, predictions = place.out / "questions.jsonl", place.out / "predictions.jsonl"
    with waiting(f"reading {place.references}"):
        if hosts.is_first():
            write_records(questions, map(strip_answers, read_records(place.references)))
        hosts.wait_for_all("questions written")
        asked = RecordSource(questions, place.image_root)
    answer_all(asked, start_model(flags), predictions)
    if hosts.is_first():
        settings = model_settings(flags)
        run_record.write_prediction_record(predictions, questions, flags, settings)
    return predictions


def _score(
    flags: EvaluateFlags, benchmark: Benchmark[Any], place: EvaluationPlace, predictions: Path
) -> str:
    systems = {model_name(flags): predictions}
    options = ScoreOptions(
        gt_mode=flags.gt_mode or benchmark.gt_modes[0],
        bootstrap=Bootstrap(resamples=flags.resamples, seed=0),
        title=flags.title,
    )
    with waiting("scoring, and computing intervals"):
        scores = benchmark.score_files(place.references, systems, options)
    markdown = write_scores(place.out, benchmark, scores)
    run_record.write_score_record(place.out, place.references, systems, scores)
    if flags.image == "shown":
        _log(flags, benchmark, place, predictions, scores)
    return f"{markdown}\n{place.out}: {_WRITTEN}"


def _log(
    flags: EvaluateFlags,
    benchmark: Benchmark[Any],
    place: EvaluationPlace,
    predictions: Path,
    scores: Scores,
) -> None:
    """Writes the figures and some overlays to event files."""
    figures = {
        f"evaluation/{protocol}/{metric}": value
        for protocol, metric, value in benchmark.layout.logged_figures(
            scores.figures[model_name(flags)]
        )
    }
    lines = (line for _, line in read_json_lines(predictions, "predictions", "predict again"))
    overlays = draw_predictions(RecordSource(place.references, place.image_root, 64), lines, 4)
    with contextlib.closing(RunWriter(flags.workdir or place.out)) as writer:
        writer.write_scalars(place.step, figures)
        if overlays is not None:
            writer.write_images(place.step, {"evaluation/overlays": overlays})
