"""Predicts and scores in one go, and logs the figures at the checkpoint's step.

    python -m cxrjax.evaluate --workdir=runs/vindr --benchmark=NAME
    python -m cxrjax.evaluate --checkpoint=data/demo_base --benchmark=NAME \\
        --references=DIR/records/validation.jsonl --out=runs/base

Writes predictions.jsonl and what `score` writes to --out (default: the workdir's evaluation/). The
figures and some overlays also go to event files: a training run's, else of --out, at --step or 0.
With --image=blind (or shuffled, noise, blurred, masked) the system is called so, --out is
evaluation_blind/, and event files are left alone.
"""

from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.distributed import hosts
from cxrjax.evaluation.flags import EvaluateFlags
from cxrjax.flags import parse_options
from cxrjax.paper import benchmark_places


def parse_arguments(argv: Sequence[str] | None = None) -> EvaluateFlags:
    """Returns the options; leaves with code 2 where they are unusable."""
    return parse_options(
        command_parser("evaluate", __doc__),
        EvaluateFlags,
        argv,
        one_of=("workdir", "checkpoint"),
        choices={"benchmark": benchmark_places()},
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluates, writes and prints the tables."""
    flags = parse_arguments(argv)
    from cxrjax.apps.results.collect import write_report
    from cxrjax.apps.results.flags import ReportFlags
    from cxrjax.evaluation.evaluation_run import evaluate, model_name

    place, text = evaluate(flags)
    if text:
        print(text)
    if flags.report and hosts.is_first():
        log = flags.workdir / "metrics.jsonl" if flags.workdir else None
        page = ReportFlags(
            workdir=place.out,
            out=place.out,
            references=place.references,
            predictions=[place.out / "predictions.jsonl"],
            name=[model_name(flags)],
            image_root=place.image_root,
            training_log=log if log is not None and log.is_file() else None,
            title=flags.title,
        )
        print(write_report(page))
