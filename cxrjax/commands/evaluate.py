"""Predicts and scores in one go, and logs the figures at the checkpoint's step.

    python -m cxrjax.evaluate --workdir=runs/vindr --benchmark=vindr_cxr_vqa
    python -m cxrjax.evaluate --checkpoint=data/demo_base --benchmark=vindr_cxr_vqa \\
        --references=DIR/records/validation.jsonl --out=runs/base

Writes predictions.jsonl and what `score` writes to --out (default: the workdir's evaluation/). The
figures and some overlays also go to event files: a training run's, else of --out, at --step or 0.
With --image=blind (or shuffled, noise, blurred, masked) the system is called so, --out is
evaluation_blind/, and event files are left alone.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import command_parser
from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.evaluation import run_record
from cxrjax.evaluation.scores import GT_MODE_HELP, ScoreOptions
from cxrjax.evaluation.systems.base import answer_all
from cxrjax.evaluation.systems.model_flags import add_model_flags
from cxrjax.files import read_json_lines
from cxrjax.input_pipeline.sources import RecordSource, default_image_root
from cxrjax.lock import folder_lock
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.benchmarks import BENCHMARKS
from cxrjax.progress import waiting
from cxrjax.records import read_records, strip_answers, write_records


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("evaluate", __doc__)
    add_model_flags(parser)
    add = parser.add_argument
    add("--benchmark", required=True, choices=sorted(BENCHMARKS), help="whose tables")
    add("--references", type=Path, metavar="FILE", help="records with answers (default: the run's)")
    add("--gt_mode", metavar="MODE", help=GT_MODE_HELP)
    add("--title", help="of tables and page (default: the benchmark's)")
    add("--report", action="store_true", help="write the page, too: index.html in --out")
    add("--resamples", type=int, default=1000, help="bootstrap resamples (default 1000)")
    add("--split_sha256", metavar="HASH", help="refuse references whose image ids hash otherwise")
    add("--manifest", type=Path, metavar="FILE", help="a build's manifest.json, to check that hash")
    add("--out", type=Path, metavar="DIR", help="folder to write to")
    hosts.add_flags(parser)
    flags = parser.parse_args(argv)
    if flags.checkpoint and not (flags.references and flags.out):
        parser.error("--checkpoint needs --references and --out")
    if flags.resamples < 0:
        parser.error("--resamples must not be negative")
    return flags


def system_name(flags: argparse.Namespace) -> str:
    """The model's name in tables: its folder, or what it is shown in place of the image."""
    if flags.image != "shown":
        return flags.image
    return (flags.workdir or flags.checkpoint).resolve().name


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluates, writes and prints the tables."""
    flags = parse_arguments(argv)
    # After the flags: --help stays quick.
    from cxrjax.training.checkpoint import read_config

    hosts.initialize(flags)
    references, image_root = flags.references, flags.image_root
    if flags.workdir:
        data = read_config(flags.workdir).data
        references = references or (Path(data.validation) if data.validation else None)
        image_root = image_root or (Path(data.image_root) if data.image_root else None)
    if references is None:
        raise UserError(f"{flags.workdir}: the run names no validation records; give --references")
    kind = "" if flags.image == "shown" else f"_{flags.image}"
    out = flags.out or flags.workdir / f"evaluation{kind}"
    image_root = image_root or default_image_root(references)
    run_record.check_folder(out)
    run_record.check_split(references, flags.split_sha256, flags.manifest)
    with hosts.held_by_first(folder_lock(out)):
        _evaluate(flags, references, image_root, out)
    if flags.report and hosts.is_first():
        write_page(flags, references, image_root, out)


def write_page(flags: argparse.Namespace, references: Path, image_root: Path, out: Path) -> None:
    """Writes the page of the figures and every answer."""
    from cxrjax.commands import report

    log = None if flags.workdir is None else flags.workdir / "metrics.jsonl"
    report.main(
        [
            *(("--training_log", str(log)) if log is not None and log.is_file() else ()),
            *("--workdir", str(out), "--out", str(out), "--references", str(references)),
            *("--predictions", str(out / "predictions.jsonl"), "--name", system_name(flags)),
            *("--image_root", str(image_root), *(("--title", flags.title) if flags.title else ())),
        ]
    )


def _evaluate(flags: argparse.Namespace, references: Path, image_root: Path, out: Path) -> None:
    from cxrjax.evaluation.benchmark import write_scores
    from cxrjax.evaluation.systems.own_model import model_settings, start_model
    from cxrjax.evaluation.validation import draw_predictions
    from cxrjax.training.checkpoint import best_step
    from cxrjax.training.metric_log import write_figures

    # The model is given the questions alone: answers cannot leak into its prompt.
    questions = out / "questions.jsonl"
    with waiting(f"reading {references}"):
        if hosts.is_first():
            write_records(questions, map(strip_answers, read_records(references)))
        hosts.wait_for_all("questions written")
        asked = RecordSource(questions, image_root)
    predictions = out / "predictions.jsonl"
    answer_all(asked, start_model(flags), predictions)
    step = flags.step
    if flags.workdir and step is None:
        step = best_step(flags.workdir)
    if not hosts.is_first():
        hosts.wait_for_all("scored")  # JAX's own farewell waits for five minutes alone
        return
    run_record.write_prediction_record(predictions, questions, flags, model_settings(flags))
    benchmark = BENCHMARKS[flags.benchmark]()
    name = system_name(flags)
    with waiting("scoring, and drawing intervals"):
        scores = benchmark.score_files(
            references,
            {name: predictions},
            ScoreOptions(
                gt_mode=flags.gt_mode or benchmark.gt_modes[0],
                bootstrap=Bootstrap(resamples=flags.resamples, seed=0),
                title=flags.title,
            ),
        )
    markdown = write_scores(out, benchmark, scores)
    run_record.write_score_record(out, references, {name: predictions}, scores)
    if flags.image == "shown":
        figures = {
            f"evaluation/{protocol}/{metric}": value
            for protocol, metric, value in benchmark.logged_figures(scores.figures[name])
        }
        lines = (line for _, line in read_json_lines(predictions, "predictions", "predict again"))
        drawn = draw_predictions(RecordSource(references, image_root, 64), lines, count=4)
        pictures = {"evaluation/overlays": drawn} if drawn is not None else {}
        write_figures(flags.workdir or out, step or 0, figures, pictures)
    print(markdown)
    written = (
        "predictions.jsonl, metrics.json, tables.md, tables.tex, tables.csv, score.json, run.json"
    )
    print(f"{out}: {written}")
    hosts.wait_for_all("scored")
