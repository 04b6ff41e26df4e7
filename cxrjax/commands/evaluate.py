"""Predicts and scores in one go, and logs the figures at the checkpoint's step.

    python -m cxrjax.evaluate --workdir=runs/vindr --benchmark=NAME
    python -m cxrjax.evaluate --checkpoint=data/demo_base --benchmark=NAME \\
        --references=DIR/records/validation.jsonl --out=runs/base

Writes predictions.jsonl and what `score` writes to --out (default: the workdir's evaluation/). The
figures and some overlays also go to event files: a training run's, else of --out, at --step or 0.
With --image=blind (or shuffled, noise, blurred, masked) the system is called so, --out is
evaluation_blind/, and event files are left alone.
"""

import argparse
from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.distributed import hosts
from cxrjax.evaluation.flags import add_benchmark_flags
from cxrjax.evaluation.systems.model_flags import add_model_flags
from cxrjax.paper import benchmark_places, load_benchmark
from cxrjax.paths import in_path, out_path


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the flags; leaves with code 2 where they are unusable."""
    parser = command_parser("evaluate", __doc__)
    add_model_flags(parser)
    add_benchmark_flags(parser, benchmark_places())
    add = parser.add_argument
    add("--references", type=in_path, metavar="FILE", help="records with answers (default: run's)")
    add("--report", action="store_true", help="write the page, too: index.html in --out")
    add("--out", type=out_path, metavar="DIR", help="folder to write to")
    hosts.add_flags(parser)
    flags = parser.parse_args(argv)
    if flags.checkpoint and not (flags.references and flags.out):
        parser.error("--checkpoint needs --references and --out")
    if flags.resamples < 0:
        parser.error("--resamples must not be negative")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluates, writes and prints the tables."""
    flags = parse_arguments(argv)
    from cxrjax.apps.results.collect import ReportFiles, write_report
    from cxrjax.evaluation.evaluation_run import evaluate, model_name

    place, text = evaluate(flags, load_benchmark(flags.benchmark))
    if text:
        print(text)
    if flags.report and hosts.is_first():
        log = flags.workdir / "metrics.jsonl" if flags.workdir else None
        files = ReportFiles(
            place.out,
            references=place.references,
            predictions=[place.out / "predictions.jsonl"],
            names=[model_name(flags)],
            image_root=place.image_root,
            training_log=log if log is not None and log.is_file() else None,
        )
        print(write_report(files, place.out, title=flags.title))
