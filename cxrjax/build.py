"""Builds a dataset: records per split, the same without answers, hashes, quality, statistics.

    python -m cxrjax.build --dataset=phantom --images=3000 --validation_images=300 --out=DIR
    python -m cxrjax.build --dataset=vindr_cxr_vqa --source=train.csv.gz --out=DIR
    python -m cxrjax.build --dataset=records --source=FOLDER --out=DIR
    python -m cxrjax.build --dataset=sizes --source=BUILD --sizes=train_meta.csv --out=DIR

data/README.md and data/<dataset>/README.md say what the sources look like.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.json_file import read_json_object

if TYPE_CHECKING:
    from cxrjax.datasets.vindr_cxr_vqa.plan import Writer


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
    add("--source", type=Path, help="file or folder to read; phantoms need none")
    add("--seed", type=int, default=0, help="decides wordings, splits and phantoms (default 0)")
    add("--processes", type=int, default=os.cpu_count() or 1, help="workers (default: all cores)")
    add("--sizes", type=Path, help="table of image sizes (vindr_cxr_vqa, sizes)")
    add("--strict", action="store_true", help="end with code 2 if anything was set aside")
    vindr = parser.add_argument_group("vindr_cxr_vqa")
    add = vindr.add_argument
    add(
        "--mix",
        default="released",
        choices=("released", "paper"),
        help="released: positive questions, four an image (default); paper: with negative ones, "
        "20,880 training questions (8,700 to 12,180)",
    )
    add(
        "--questions",
        default="one_box",
        choices=("one_box", "dense"),
        help="dense: also ask for every finding of an image with all of its boxes",
    )
    add(
        "--generator",
        default="templates",
        choices=sorted(WRITERS),
        help="who words constructed questions (default templates)",
    )
    add("--split_manifest", type=Path, help="JSON {split: [image ids]} (default: stratified)")
    phantom = parser.add_argument_group("phantom")
    add = phantom.add_argument
    add("--images", type=int, default=3000, help="training images (default 3000)")
    add("--validation_images", type=int, default=300, help="held-out images (default 300)")
    add("--long_side", type=int, help="longer side in pixels (default: each image its own)")
    add("--normal_percent", type=int, default=10, help="share without findings (default 10)")
    add("--conspicuity", type=float, default=1.0, help="contrast of lesions (default 1)")
    add("--image_format", default="png", choices=("png", "jpg"), help="default png")
    return parser.parse_args(argv)


def _build_phantom(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.phantom_vqa import PhantomBuild, build_phantom_dataset

    build_phantom_dataset(
        PhantomBuild(
            out=flags.out,
            images=flags.images,
            validation_images=flags.validation_images,
            seed=flags.seed,
            long_side=flags.long_side,
            image_format=flags.image_format,
            processes=flags.processes,
            normal_percent=flags.normal_percent,
            conspicuity=flags.conspicuity,
        )
    )


def _build_vindr(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.vindr_cxr_vqa.release import VinDrBuild, build_vindr

    build = VinDrBuild(
        source=flags.source,
        out=flags.out,
        seed=flags.seed,
        processes=flags.processes,
        sizes=flags.sizes,
        mix=flags.mix,
        list_all=flags.questions == "dense",
        split_manifest=flags.split_manifest,
    )
    print(build_vindr(build, WRITERS[flags.generator](flags)))


def _template_writer(flags: argparse.Namespace) -> "Writer":
    from cxrjax.datasets.vindr_cxr_vqa.template_writer import TemplateWriter

    return TemplateWriter(flags.seed)


def _build_own_records(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.own_records import OwnBuild, build_own_records

    build_own_records(OwnBuild(flags.source, flags.out, flags.seed, flags.processes))


def _build_sizes(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.join_sizes import join_sizes

    if flags.sizes is None:
        raise UserError("--dataset=sizes needs --sizes=FILE")
    join_sizes(flags.source, flags.sizes, flags.out)


# Who words constructed questions; each reads the flags that it knows.
WRITERS = {"templates": _template_writer}
# Imported when chosen: a builder loads the libraries it needs, and worker processes load this file.
BUILDERS = {
    "phantom": _build_phantom,
    "records": _build_own_records,
    "sizes": _build_sizes,
    "vindr_cxr_vqa": _build_vindr,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Builds what the flags ask for and prints where it is."""
    flags = parse_arguments(argv)
    if flags.dataset != "phantom" and flags.source is None:
        raise UserError(f"--dataset={flags.dataset} needs --source=PATH")
    BUILDERS[flags.dataset](flags)
    if flags.strict:
        _refuse_defects(flags.out / "quality.json")
    print(f"{flags.out}: records/, questions/, statistics.json, quality.json, manifest.json")


def _refuse_defects(quality: Path) -> None:
    """Raises `UserError` where a finished build set something aside that is a defect."""
    from cxrjax.datasets.quality import BY_RULE

    counts = read_json_object(quality)["counts"]
    defects = {reason: n for reason, n in counts.items() if n and reason not in BY_RULE}
    if defects:
        raise UserError(
            f"{quality}: --strict, and {sum(defects.values()):,} things were set aside: {defects}; "
            "mend the source, or build without --strict"
        )


if __name__ == "__main__":
    run(main)
