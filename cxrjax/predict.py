"""Answers questions with a model of ours, or another runner: a line of predictions for each.

    python -m cxrjax.predict --workdir=runs/vindr --questions=DIR/questions/validation.jsonl \\
        --out=predictions.jsonl
    python -m cxrjax.predict --checkpoint=data/demo_base --prompt=detect --questions=... --out=...
    python -m cxrjax.predict --runner=prior_box --train=DIR/records/train.jsonl --questions=... \\
        --out=...
    python -m cxrjax.predict --runner=openai --base_url=http://127.0.0.1:8000/v1 --model=NAME \\
        --system=qwen2.5_vl --questions=... --out=...
    python -m cxrjax.predict --runner=hf --folder=PATH/TO/medgemma-1.5-4b-it \\
        --system=medgemma_1.5 --wording=locate --questions=... --out=...

The questions file carries no answers (`build` writes it; a records file works too: its answers are
not looked at, and a warning says that they are there). Where a question continues another one of
the file and that one's answer is null in its history, the other goes first and its prediction
becomes the history; what was asked then is left in OUT.turns.jsonl.

A line of predictions has `question_id`, `text`, `boxes` (xyxy, fractions of the original image),
`labels`, `box_scores`, `answer_logprob` and `parse`: `ok`, or why no box could be read. Of other
people's models `parse` can also be `http_error`, `timeout`, `connection`, `unreadable_image` or
`not_asked`, where there is no answer, and `written` is all that was written, where the answer is a
part of it. OUT.run.json says how they were made: hashes, versions and settings.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import command_parser, run
from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.papers.benchmarks import CLOSED_CLASSES
from cxrjax.runners import add_runner_flags, answer_all, estimate_run, start_runner, start_sampler
from cxrjax.runners.base import answer_seeds, describe_spread
from cxrjax.runners.systems import describe_systems
from cxrjax.scoring.run_record import write_prediction_record


class _ListSystems(argparse.Action):
    """Prints the systems and ends, as `--help` does, whatever else is missing."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(describe_systems())
        parser.exit()


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("predict", __doc__)
    add = parser.add_argument
    add_runner_flags(parser)
    add("--list_systems", action=_ListSystems, help="list what --system knows, and end")
    add("--questions", required=True, type=Path, metavar="FILE", help="questions (JSON Lines)")
    add("--out", required=True, type=Path, metavar="FILE", help="predictions to write")
    hosts.add_flags(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Predicts what the flags ask for and says where it is."""
    flags = parse_arguments(argv)
    hosts.initialize(flags)
    if not (hosts.alone() or flags.workdir or flags.checkpoint):
        raise UserError("several processes: only our own models (--workdir, --checkpoint) use them")
    questions = RecordSource(flags.questions, flags.image_root)
    if flags.dry_run:
        print(estimate_run(flags, questions))
        return
    if flags.seeds:
        files = answer_seeds(
            questions, start_sampler(flags, CLOSED_CLASSES), flags.out, flags.seeds
        )
        if hosts.is_first():
            for file in files:
                write_prediction_record(file, flags.questions, flags)
            print(describe_spread(files))
            print(f"{', '.join(map(str, files))}: give all of them to score")
        return
    found = answer_all(questions, start_runner(flags, CLOSED_CLASSES), flags.out)
    if not hosts.is_first():
        return
    write_prediction_record(flags.out, flags.questions, flags)
    faults = ", ".join(f"{n:,} {name}" for name, n in found.most_common() if name != "ok")
    print(f"{flags.out}: {found.total():,} predictions" + f" ({faults})" * bool(faults))


if __name__ == "__main__":
    run(main)
