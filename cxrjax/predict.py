"""Answers questions with a model of ours, or another runner: a line of predictions for each.

    python -m cxrjax.predict --workdir=runs/vindr --questions=DIR/questions/validation.jsonl \\
        --out=predictions.jsonl
    python -m cxrjax.predict --checkpoint=data/demo_base --prompt=detect --questions=... --out=...
    python -m cxrjax.predict --runner=prior_box --train=DIR/records/train.jsonl --questions=... \\
        --out=...

The questions file carries no answers (`build` writes it; a records file works too: its answers are
not looked at, and a warning says that they are there). Where a question continues another one of
the file and that one's answer is null in its history, the other goes first and its prediction
becomes the history; what was asked then is
left in OUT.turns.jsonl. A line has `question_id`, `text`, `boxes` (xyxy, fractions of the original
image), `labels`, `box_scores`, `answer_logprob` and `parse` (`ok`, or why no box could be read).
OUT.run.json says how they were made: hashes, versions and settings.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cxrjax.benchmarks.run_record import write_prediction_record
from cxrjax.cli import run
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.runners import add_runner_flags, answer_all, start_runner


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = argparse.ArgumentParser(
        prog="python -m cxrjax.predict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add_runner_flags(parser)
    add("--questions", required=True, type=Path, metavar="FILE", help="questions (JSON Lines)")
    add("--out", required=True, type=Path, metavar="FILE", help="predictions to write")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Predicts what the flags ask for and says where it is."""
    flags = parse_arguments(argv)
    questions = RecordSource(flags.questions, flags.image_root)
    count = answer_all(questions, start_runner(flags), flags.out)
    write_prediction_record(flags.out, flags.questions, flags)
    print(f"{flags.out}: {count:,} predictions")


if __name__ == "__main__":
    run(main)
