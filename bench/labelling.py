"""Boxes that a person corrects until a set is right: the least certain first, or in random order.

    python data/real_cxr/make_records.py --source=FOLDER --out=runs/labelling/records.jsonl
    python -m bench.labelling --records=runs/labelling/records.jsonl [--seeds=3] [--goal=0.90]

Questions about one box each are answered by a base (`--base`), then a person corrects boxes, here
by the records' own, in three rounds: after each, `configs/records_lora.py` is trained from the base
on what was corrected, and answers the rest anew. The set's mean IoU is that of its boxes as they
are then: 1 where corrected, else of the model's. Prints for each seed and order how many boxes
were corrected when the mean reached the goal (None: not within the rounds), and the mean IoU
before and after each round. An order's seed is that of the training too. What was made is kept
beside the records, so that an interrupted run resumes.
"""

import argparse
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cxrjax.apps.review.predicted import PredictedLine, read_lines, uncertainty
from cxrjax.boxes import iou
from cxrjax.records import QARecord, read_records, write_records

ROUNDS = 3
ORDERS = ("least certain", "random")


class Labelled(NamedTuple):
    """Outcome of one order.

    Attributes:
        needed: number of boxes corrected when the goal was reached; None if it was not.
        means: mean IoU of the set before and after each round.
    """

    needed: int | None
    means: list[tuple[float, float]]


def overlaps(
    records: Mapping[str, QARecord], lines: Mapping[str, PredictedLine]
) -> dict[str, float]:
    """Question id -> IoU of the answer's first box with the record's."""
    found = {}
    for name, record in records.items():
        line = lines.get(name)
        boxes = None if line is None else line.read.boxes
        height, width = record.image_hw or (1, 1)
        truth = np.array(record.boxes[0]) / [width, height, width, height]
        found[name] = float(iou(boxes[0], truth)) if boxes is not None and len(boxes) else 0.0
    return found


def correct(values: dict[str, float], order: Sequence[str], goal: float) -> int | None:
    """Sets the IoU of boxes to 1 in this order; returns how many it took to reach the goal."""
    needed = 0 if np.mean([*values.values()]) >= goal else None
    for count, name in enumerate(order, 1):
        values[name] = 1.0
        if needed is None and np.mean([*values.values()]) >= goal:
            needed = count
    return needed


def label(
    flags: argparse.Namespace, records: Mapping[str, QARecord], order: str, seed: int
) -> Labelled:
    """One order's rounds."""
    folder = flags.records.parent / f"{order.replace(' ', '_')}_{seed}"
    corrected: list[str] = []
    needed, means = None, []
    for number in range(ROUNDS):
        lines = read_lines(_answers(flags, records, corrected, folder, number, seed))
        values = overlaps(records, lines) | dict.fromkeys(corrected, 1.0)
        left = [name for name in records if name not in set(corrected)]
        random.Random(f"{seed}/{number}").shuffle(left)
        if order == ORDERS[0]:
            left.sort(key=lambda name: -_uncertain(records[name], lines.get(name)))
        before = float(np.mean([*values.values()]))
        took = correct(values, left[: flags.boxes], flags.goal)
        if needed is None and took is not None:
            needed = len(corrected) + took
        corrected += left[: flags.boxes]
        means.append((before, float(np.mean([*values.values()]))))
        print(
            f"{order}, seed {seed}, round {number + 1}: mean IoU {before:.3f}, then "
            f"{means[-1][1]:.3f} with {len(corrected)} corrected",
            flush=True,
        )
    return Labelled(needed, means)


def _uncertain(record: QARecord, line: PredictedLine | None) -> float:
    if line is None:
        return 1.0
    return max(uncertainty(record, [line], "paligemma").values(), default=0.0)


def _answers(
    flags: argparse.Namespace,
    records: Mapping[str, QARecord],
    corrected: Sequence[str],
    folder: Path,
    number: int,
    seed: int,
) -> Path:
    """The file of answers after training on what was corrected; of the base where nothing was."""
    out = folder / f"round{number}.jsonl" if corrected else flags.records.parent / "base.jsonl"
    if out.exists():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    asked, train = (
        flags.records.parent / "asked.jsonl",
        folder.parent / f"{folder.name}_{number}.jsonl",
    )
    write_records(asked, records.values())
    model = [f"--checkpoint={flags.base}"]
    with (folder / f"round{number}.log").open("w") as log:
        if corrected:
            write_records(train, [records[name] for name in corrected])
            model = [f"--workdir={folder / f'round{number}'}"]
            settings = f"model.init_from={flags.base} data.train={train} data.validation=None "
            settings += f"data.workers=0 training.steps={flags.steps} training.seed={seed} "
            settings += "training.best_metric=None training.eval_every=0"
            words = [f"--config.{one}" for one in settings.split()]
            _run(["cxrjax.train", "--config=configs/records_lora.py", *model, *words], log)
        words = [*model, f"--questions={asked}", f"--out={out}", "--boxes=median"]
        _run(["cxrjax.predict", *words, "--prompt=vqa" if not corrected else ""], log)
    return out


def _run(words: Sequence[str], log) -> None:
    command = [sys.executable, "-m", *filter(None, words)]
    subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)


def main() -> None:
    """Labels by each order and seed, and prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=Path, required=True, help="questions about one box each")
    parser.add_argument("--base", default="data/real_base", help="model that answers first")
    parser.add_argument("--seeds", type=int, default=3, help="orders of each kind (3)")
    parser.add_argument("--boxes", type=int, default=20, help="corrected in a round (20)")
    parser.add_argument("--steps", type=int, default=60, help="of each training (60)")
    parser.add_argument("--goal", type=float, default=0.9, help="mean IoU to reach (0.9)")
    flags = parser.parse_args()
    flags.records = flags.records.resolve()
    asked = [one for one in read_records(flags.records) if len(one.boxes) == 1]
    records = {one.question_id: one for one in asked}
    print(f"{len(records)} boxes of {len({one.image_id for one in asked})} images", flush=True)
    for seed in range(flags.seeds):
        for order in ORDERS:
            found = label(flags, records, order, seed)
            needed = found.needed if found.needed is not None else "not reached"
            print(f"| {seed} | {order} | {needed} |", flush=True)


if __name__ == "__main__":
    main()
