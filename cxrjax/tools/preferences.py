"""Makes pairs of answers for preference tuning: the better of two, by IoU or by who is right.

    python -m cxrjax.tools.preferences --records=FILE --predictions=FILE [--predictions=FILE2 ...] \
        --out=PAIRS.jsonl [--better=record] [--codec=paligemma] [--letterbox=448x448] \
        [--least=0.1]
    python -m cxrjax.tools.preferences --records=FILE --predictions=FILE --predictions=FILE2 \
        --best=RECORDS.jsonl

Of each question's predictions the one with the largest reward (matched IoU, what it says, its form:
cxrjax/training/rl/rewards.py) is preferred to the one with the smallest, where they differ by
--least or more. --better=record prefers the record's own answer, such as a reviewer's correction,
to the worst prediction. Written are lines of {"question_id", "better", "worse", "difference"} for
`rl.pairs`; what makes no pair is counted.

--best writes records instead, for supervised training on the best of n (`data.train`): each
question with the prediction of the largest reward as its answer, the first of several, of those
whose boxes can be read. `predict --temperature=1 --seeds=0,1,2,3` gives the predictions.

--codec is how the model that is to learn writes boxes: it must be that of the predictions.
--letterbox is its input, or inputs, where images are padded to it (`data.geometry='letterbox'`);
without it they are stretched.
"""

import argparse
import json
from collections.abc import Sequence

from cxrjax import choices, cli
from cxrjax.cli import command_parser, input_sizes
from cxrjax.errors import UserError
from cxrjax.files import replacing
from cxrjax.paths import in_path, out_path


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("tools.preferences", __doc__)
    parser.add_argument("--records", required=True, type=in_path, metavar="FILE")
    parser.add_argument(
        "--predictions", required=True, type=in_path, metavar="FILE", action="append"
    )
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--out", type=out_path, metavar="FILE")
    wanted.add_argument("--best", type=in_path, metavar="FILE", help="records instead of pairs")
    parser.add_argument("--better", choices=("predictions", "record"), default="predictions")
    parser.add_argument("--codec", choices=choices.CODECS, default="paligemma")
    parser.add_argument("--letterbox", type=input_sizes, default=(), metavar="HxW[,HxW...]")
    parser.add_argument("--least", type=float, default=0.1, metavar="SHARE")
    flags = parser.parse_args(argv)
    if flags.better == "predictions" and len(flags.predictions) < 2:
        parser.error("one file of predictions makes no pairs: give two, or --better=record")
    if flags.best is not None and flags.better == "record":
        parser.error("--best is of predictions: leave out --better=record, or give --out")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    flags = parse_arguments(argv)
    from cxrjax.evaluation.answer_pairs import best_records, make_pairs
    from cxrjax.evaluation.predictions import read_predictions
    from cxrjax.records import read_records, write_records

    records = {record.question_id: record for record in read_records(flags.records)}
    predictions = [read_predictions(file) for file in flags.predictions]
    if flags.best is not None:
        found, without = best_records(records, predictions, flags.codec, flags.letterbox)
        if not found:
            raise UserError(f"{flags.records}: no answer ({dict(without)})")
        write_records(flags.best, found)
        print(f"{flags.best}: the best answers to {len(found):,} of {len(records):,} questions")
    else:
        lines, without = make_pairs(
            records,
            predictions,
            flags.codec,
            flags.least,
            flags.better == "record",
            flags.letterbox,
        )
        if not lines:
            raise UserError(f"{flags.records}: no pair ({dict(without)})")
        with replacing(flags.out) as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(f"{flags.out}: {len(lines):,} pairs of {len(records):,} questions")
    for reason, count in without.items():
        print(f"  {count:,} without: {reason}")


if __name__ == "__main__":
    cli.run(main)
