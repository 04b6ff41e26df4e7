"""The work of `score`: files of predictions in, figures, tables and comparisons out."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.cli import garbage_collector_paused
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import write_scores
from cxrjax.evaluation.flags import ScoreFlags
from cxrjax.evaluation.frame_doctor import diagnose_files
from cxrjax.evaluation.run_record import check_folder, check_split, write_score_record
from cxrjax.evaluation.scores import ScoreOptions, Scores
from cxrjax.evaluation.several_runs import seed_spread, spread_markdown
from cxrjax.evaluation.text_scores.bert_score import BertScoreSettings
from cxrjax.evaluation.text_scores.radeval import RadEvalScorer
from cxrjax.files import reading, write_json, writing
from cxrjax.language_model.judges.asked import LanguageModelJudge
from cxrjax.language_model.judges.flags import find_judge, write_judgements
from cxrjax.language_model.judges.judge import Judge
from cxrjax.lock import folder_lock
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.paper import load_benchmark
from cxrjax.progress import waiting
from cxrjax.untrusted.names import system_name


def system_names(
    predictions: Sequence[Path], names: Sequence[str] | None = None
) -> dict[str, Path]:
    """The files by their systems' names."""
    if names and len(names) != len(predictions):
        raise UserError(
            f"{len(names)} --name for {len(predictions)} --predictions: give one each, in order"
        )
    systems: dict[str, Path] = {}
    for name, path in zip(names or [path.stem for path in predictions], predictions, strict=True):
        with reading(path, hint="choose another --name"):
            system_name(name)
        if name in systems:
            raise UserError(
                f"{path}: a system called {name!r} is there already ({systems[name]}): "
                "tell them apart with --name"
            )
        systems[name] = path
    return systems


def write_summaries(folder: Path, step: int, benchmark: Any, scores: Scores) -> None:
    """Writes what a training run logs, `score/<system>/<protocol>/<metric>`, to event files."""
    from cxrjax.training.metric_log import RunWriter

    figures = {
        f"score/{system}/{protocol}/{metric}": value
        for system, named in scores.figures.items()
        for protocol, metric, value in benchmark.layout.logged_figures(named)
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(RunWriter(folder)) as writer:
            writer.write_scalars(step, figures)


def score(flags: ScoreFlags) -> Iterator[str]:
    """Scores predictions and writes the files.

    Yields:
        Texts to print.

    Raises:
        UserError: flags that do not go together, or files that cannot be used.
    """
    benchmark = load_benchmark(flags.benchmark)
    systems = system_names(flags.predictions, flags.name)
    if not systems and (flags.floors == "never" or not benchmark.layout.floors):
        raise UserError(f"{flags.benchmark}: nothing to score: give --predictions")
    check_folder(flags.out)
    check_split(flags.references, flags.manifest)
    with folder_lock(flags.out):
        judge = find_judge(flags.judge, flags.verdicts, flags, flags.out)
        options = _options(flags, benchmark, judge)
        with garbage_collector_paused(), waiting("scoring, and computing intervals"):
            scores = benchmark.score_files(flags.references, systems, options)
        if isinstance(judge, LanguageModelJudge) and flags.dry_run:
            yield "\n".join(f"{task}: {estimate}" for task, estimate in judge.planned.items())
            return
        if judge is not None:
            write_judgements(flags.out, judge)
        yield from _write(flags, benchmark, scores, systems)


def _options(flags: ScoreFlags, benchmark: Any, judge: Judge | None) -> ScoreOptions:
    bert_score = None
    if flags.bertscore_model is not None:
        bert_score = BertScoreSettings(
            flags.bertscore_model, flags.bertscore_layer, flags.bertscore_baseline
        )
    return ScoreOptions(
        codec=flags.codec,
        gt_mode=flags.gt_mode or benchmark.gt_modes[0],
        bootstrap=Bootstrap(resamples=flags.resamples, seed=flags.seed, method=flags.interval),
        judge=judge,
        segmenter=flags.segmenter,
        bert_score=bert_score,
        radeval=RadEvalScorer(flags.radeval) if flags.radeval else None,
        compare_to=flags.compare_to,
        title=flags.title,
        floors={"auto": None, "always": True, "never": False}[flags.floors],
    )


def _write(
    flags: ScoreFlags,
    benchmark: Any,
    scores: Scores,
    systems: Mapping[str, Path],
) -> Iterator[str]:
    markdown = write_scores(flags.out, benchmark, scores)
    write_score_record(flags.out, flags.references, systems, scores)
    yield markdown
    if flags.diagnose:
        codec = CODECS[flags.codec] if flags.codec else None
        found = diagnose_files(flags.references, systems, codec)
        nothing = "no other frame fits its boxes better, or they are too few to say"
        for system in systems:
            yield f"{system}: {found.get(system, nothing)}\n"
    if spread := seed_spread(scores.figures, scores.run_differences):
        write_json(flags.out / "spread.json", spread)
        yield spread_markdown(spread)
    if flags.summaries:
        write_summaries(flags.summaries, flags.step, benchmark, scores)
    written = "metrics.json, tables.md, tables.tex, tables.csv, score.json, run.json"
    yield f"{flags.out}: {written}"
