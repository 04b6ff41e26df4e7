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
`labels`, `box_scores` and `parse`: `ok`, or why no box could be read. Three natural logarithms tell
how sure the model was: `answer_logprob` of all tokens, `decision_logprob` of what the answer says
(yes or no, the findings it names), and `coordinate_logprob` of where its boxes lie, null where it
writes none (cxrjax/decoding/confidence.py). Of other people's models `parse` can also be
`http_error`, `timeout`, `connection`, `unreadable_image` or `not_asked`, where there is no answer,
and `written` is all that was written, where the answer is a part of it. OUT.run.json says how they
were made: hashes, versions, and settings as they came out of flags and the model's own.

A model of ours that samples needs --seeds: at least three, a file each.

--reword asks the same questions in other words: `score` given both files says what that costs, with
an interval. The questions, as asked, are left in OUT.questions.jsonl. --reword=unknown asks about
things that no training has asked about, and says how often the answer is that they are unknown.

--conformal=DIR makes boxes wider, so that so many true ones lie within one (--cover, 0.9 unless
given): by margins found on DIR/predictions.jsonl, which this command wrote of the same model with
the same flags, and DIR/records.jsonl, its questions with answers, of other patients. Lines then
have `margins`, how far each side was moved outwards, and a table says what margins of half of DIR's
patients cover of the other half.
"""

import argparse
from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.evaluation.flags import PredictFlags
from cxrjax.flags import parse_options


class _ListSystems(argparse.Action):
    """Prints the systems and ends, as `--help` does, whatever else is missing."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from cxrjax.evaluation.systems.systems import describe_systems

        print(describe_systems())
        parser.exit()


def parse_arguments(argv: Sequence[str] | None = None) -> PredictFlags:
    """Returns the options; leaves with code 2 where they are unusable."""
    parser = command_parser("predict", __doc__)
    text = "list what --system knows, and end"
    parser.add_argument("--list_systems", action=_ListSystems, nargs=0, help=text)
    return parse_options(parser, PredictFlags, argv, one_of=("workdir", "checkpoint", "runner"))


def main(argv: Sequence[str] | None = None) -> None:
    """Predicts what the flags request and prints where it is."""
    flags = parse_arguments(argv)
    from cxrjax.evaluation.prediction_run import predict

    if told := predict(flags):
        print(told)
