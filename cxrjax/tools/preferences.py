"""Makes pairs of answers for preference tuning: the better of two, by IoU or by who is right.

    python -m cxrjax.tools.preferences --records=FILE --predictions=FILE [--predictions=FILE2 ...] \
        --out=PAIRS.jsonl [--better=record] [--codec=paligemma] [--least=0.1]

Of each question's predictions the one with the largest reward (matched IoU, what it says, its form:
cxrjax/training/rewards.py) is preferred to the one with the smallest, where they differ by --least
or more. --better=record prefers the record's own answer, such as a reviewer's correction, to the
worst prediction. Written are lines of {"question_id", "better", "worse", "difference"} for
`rl.pairs`; what makes no pair is counted.

--codec is how the model that is to learn writes boxes: it must be that of the predictions.
"""

import argparse
import collections
import json
from collections.abc import Sequence
from pathlib import Path

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.codecs import CODECS, get_codec, transcode
from cxrjax.errors import UserError
from cxrjax.files import replacing
from cxrjax.records import RECORD_CODECS, QARecord, read_records
from cxrjax.scoring.predictions import Prediction, read_predictions
from cxrjax.training.rewards import Rewarder, RewardWeights

# Of boxes, of what is said, of the form; those of `rl` by default.
WEIGHTS = RewardWeights(1.0, 0.5, 0.1, "mean_iou")
UNSIZED = "the image's size is unknown"


def make_pairs(
    records: dict[str, QARecord],
    predictions: Sequence[Sequence[Prediction]],
    codec: str,
    least: float,
    prefers_record: bool,
) -> tuple[list[dict[str, str | float]], collections.Counter[str]]:
    """The lines of --out, and how many questions make none, by reason."""
    answers: dict[str, list[str]] = {}
    for one in (each for file in predictions for each in file):
        if one.question_id not in records:
            raise UserError(f"{one.where}: question {one.question_id} is none of the records'")
        answers.setdefault(one.question_id, []).append(one.text)
    rewarder = Rewarder(get_codec(codec), WEIGHTS)
    lines: list[dict[str, str | float]] = []
    without: collections.Counter[str] = collections.Counter()
    for name, record in records.items():
        if name not in answers:
            without["no prediction"] += 1
            continue
        if record.image_hw is None:
            without[UNSIZED] += 1
            continue
        truth = transcode(
            record.answer_text, RECORD_CODECS[record.dataset], codec, *record.image_hw
        )
        said = [*answers[name], *([truth] if prefers_record else [])]
        worth = [rewarder(record.question, truth, text, ended=True).total for text in said]
        best = len(said) - 1 if prefers_record else worth.index(max(worth))
        worst = worth.index(min(worth))
        difference = worth[best] - worth[worst]
        if difference < least or said[best] == said[worst]:
            without[f"they differ by less than {least:g}"] += 1
            continue
        lines.append(
            {
                "question_id": name,
                "better": said[best],
                "worse": said[worst],
                "difference": round(difference, 4),
            }
        )
    return lines, without


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("tools.preferences", __doc__)
    parser.add_argument("--records", required=True, type=Path, metavar="FILE")
    parser.add_argument("--predictions", required=True, type=Path, metavar="FILE", action="append")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    parser.add_argument("--better", choices=("predictions", "record"), default="predictions")
    parser.add_argument("--codec", choices=sorted(CODECS), default="paligemma")
    parser.add_argument("--least", type=float, default=0.1, metavar="SHARE")
    flags = parser.parse_args(argv)
    if flags.better == "predictions" and len(flags.predictions) < 2:
        parser.error("one file of predictions makes no pairs: give two, or --better=record")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    flags = parse_arguments(argv)
    records = {record.question_id: record for record in read_records(flags.records)}
    lines, without = make_pairs(
        records,
        [read_predictions(file) for file in flags.predictions],
        flags.codec,
        flags.least,
        flags.better == "record",
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
