"""Builds a dataset: records per split, the same without answers, hashes, quality, statistics.

    python -m cxrjax.build --dataset=phantom --images=3000 --validation_images=300 --out=DIR
    python -m cxrjax.build --dataset=phantom_studies --studies=200 --out=DIR
    python -m cxrjax.build --dataset=vindr_cxr_vqa --source=train.csv.gz --out=DIR
    python -m cxrjax.build --dataset=gemex --source=FOLDER --out=DIR
    python -m cxrjax.build --dataset=cxr_qba --source=RELEASE_OR_REPORTS --out=DIR
    python -m cxrjax.build --dataset=ms_cxr --source=FILE_OR_FOLDER --out=DIR
    python -m cxrjax.build --dataset=records --source=FOLDER --out=DIR
    python -m cxrjax.build --dataset=sizes --source=BUILD --sizes=train_meta.csv --out=DIR
    python -m cxrjax.build --dataset=tfds --source=BUILD --out=DIR
    python -m cxrjax.build --dataset=shards --source=BUILD --out=DIR
    python -m cxrjax.build --dataset=vix_ray --source=FOLDER --out=DIR
    python -m cxrjax.build --dataset=vix_ray_synthetic --images=3000 --out=DIR

data/README.md and data/<dataset>/README.md say what the sources look like.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from cxrjax.builders import BUILDERS, WITHOUT_SOURCE, add_dataset_flags
from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.files import read_json_object
from cxrjax.records_io.quality import BY_RULE


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = argparse.ArgumentParser(
        prog="python -m cxrjax.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--dataset", required=True, choices=sorted(BUILDERS), help="what to build")
    add("--out", required=True, type=Path, help="folder to write to")
    add("--source", type=Path, help="file or folder to read; synthetic sets need none")
    add("--seed", type=int, default=0, help="decides wordings, splits and phantoms (default 0)")
    add("--processes", type=int, default=os.cpu_count() or 1, help="workers (default: all cores)")
    add("--sizes", type=Path, help="table of image sizes (vindr_cxr_vqa, sizes)")
    add(
        "--split_manifest",
        type=Path,
        help="JSON {split: [image ids]} (default: vindr_cxr_vqa stratified, vix_ray the release's)",
    )
    add("--strict", action="store_true", help="end with code 2 if anything was set aside")
    add_dataset_flags(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Builds what the flags ask for and prints where it is."""
    flags = parse_arguments(argv)
    if flags.dataset not in WITHOUT_SOURCE and flags.source is None:
        raise UserError(f"--dataset={flags.dataset} needs --source=PATH")
    made = BUILDERS[flags.dataset](flags)
    if flags.strict and flags.dataset not in ("tfds", "shards"):  # which stop at any defect
        _refuse_defects(flags.out / "quality.json")
    print(
        made or f"{flags.out}: records/, questions/, statistics.json, quality.json, manifest.json"
    )


def _refuse_defects(quality: Path) -> None:
    """Raises `UserError` where a finished build set something aside that is a defect."""
    counts = read_json_object(quality)["counts"]
    defects = {reason: n for reason, n in counts.items() if n and reason not in BY_RULE}
    if defects:
        raise UserError(
            f"{quality}: --strict, and {sum(defects.values()):,} things were set aside: {defects}; "
            "mend the source, or build without --strict"
        )


if __name__ == "__main__":
    run(main)
