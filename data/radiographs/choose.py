"""Chooses the radiographs that ship with the repository from a folder laid out as `lungs` reads it.

    python data/radiographs/choose.py --source=FOLDER --out=data/radiographs

All normal ones with a mask, in which lesions can be simulated, and as many of the others as fill
1,004 training images, and 76 to be held out. Splits are those that `--dataset=lungs --seed=0` draws
by patient, its validation and test being held out here together: data/real_base was trained on
none of them.
"""

import argparse
import csv
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import run
from cxrjax.papers.lungs.build import SPLIT_PERCENTS
from cxrjax.papers.lungs.native import IMAGES, MASKS, TABLE
from cxrjax.records_io.split import split_by_hash

TRAIN, OTHERS_HELD_OUT = 1004, 76


def choose(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows that ship, each with its split."""
    rows = [row for row in rows if row["v7_mask"] and row["right_lung"]]
    for row in rows:
        of_hash = split_by_hash(row["patient"], 0, SPLIT_PERCENTS)
        row["split"] = "train" if of_hash == "train" else "validation"
    chosen = [row for row in rows if row["finding"] == "normal"]
    others = [row for row in rows if row["finding"] != "normal"]
    random.Random(0).shuffle(others)
    in_train = sum(row["split"] == "train" for row in chosen)
    for split, wanted in (("train", TRAIN - in_train), ("validation", OTHERS_HELD_OUT)):
        chosen += [row for row in others if row["split"] == split][:wanted]
    return sorted(chosen, key=lambda row: row["file"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="images/, masks/, lungs.csv")
    parser.add_argument("--out", type=Path, required=True, help="gets the same three")
    flags = parser.parse_args(argv)
    with open(flags.source / TABLE, newline="", encoding="utf-8") as file:
        chosen = choose(list(csv.DictReader(file)))
    for folder in (IMAGES, MASKS):
        (flags.out / folder).mkdir(parents=True, exist_ok=True)
    for row in chosen:
        shutil.copyfile(flags.source / IMAGES / row["file"], flags.out / IMAGES / row["file"])
        mask = Path(row["file"]).with_suffix(".png").name
        shutil.copyfile(flags.source / MASKS / mask, flags.out / MASKS / mask)
    with open(flags.out / TABLE, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(chosen[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(chosen)
    print(f"{flags.out}: {len(chosen)} radiographs")


if __name__ == "__main__":
    run(main)
