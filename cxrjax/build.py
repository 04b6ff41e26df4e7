"""Builds a dataset: records per split, the same without answers, hashes, quality, statistics.

    python -m cxrjax.build --dataset=phantom --images=3000 --validation_images=300 --out=DIR
    python -m cxrjax.build --dataset=vindr_cxr_vqa --source=train.csv.gz --out=DIR
    python -m cxrjax.build --dataset=cxr_qba --source=RELEASE_OR_REPORTS --out=DIR
    python -m cxrjax.build --dataset=records --source=FOLDER --out=DIR

data/README.md and data/<dataset>/README.md say what the sources look like.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import run
from cxrjax.errors import UserError


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
    phantom = parser.add_argument_group("phantom")
    add = phantom.add_argument
    add("--images", type=int, default=3000, help="training images (default 3000)")
    add("--validation_images", type=int, default=300, help="held-out images (default 300)")
    add("--long_side", type=int, help="longer side in pixels (default: each image its own)")
    add("--normal_percent", type=int, default=10, help="share without findings (default 10)")
    add("--conspicuity", type=float, default=1.0, help="contrast of lesions (default 1)")
    add("--image_format", default="png", choices=("png", "jpg"), help="default png")
    qba = parser.add_argument_group("cxr_qba")
    add = qba.add_argument
    add("--surrogate", action="store_true", help="rate constructed questions by rules")
    add(
        "--least_grade",
        default="",
        choices=("", "A++", "A+", "A", "B"),
        help="B, A: export filters",
    )
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

    build_vindr(VinDrBuild(flags.source, flags.out, flags.seed, flags.processes))


def _build_cxr_qba(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.cxr_qba.build import QBABuild, build_cxr_qba

    build_cxr_qba(QBABuild(flags.source, flags.out, flags.seed, flags.surrogate, flags.least_grade))


def _build_own_records(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.own_records import OwnBuild, build_own_records

    build_own_records(OwnBuild(flags.source, flags.out, flags.seed, flags.processes))


# Imported when chosen: a builder loads the libraries it needs, and worker processes load this file.
BUILDERS = {
    "cxr_qba": _build_cxr_qba,
    "phantom": _build_phantom,
    "records": _build_own_records,
    "vindr_cxr_vqa": _build_vindr,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Builds what the flags ask for and prints where it is."""
    flags = parse_arguments(argv)
    if flags.dataset != "phantom" and flags.source is None:
        raise UserError(f"--dataset={flags.dataset} needs --source=PATH")
    BUILDERS[flags.dataset](flags)
    print(f"{flags.out}: records/, questions/, statistics.json, quality.json, manifest.json")


if __name__ == "__main__":
    run(main)
