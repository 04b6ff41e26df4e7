"""Builds a dataset: records per split, the same without answers, hashes, quality, statistics.

    python -m cxrjax.build --dataset=phantom --images=3000 --validation_images=300 --out=DIR
    python -m cxrjax.build --dataset=phantom_studies --studies=200 --out=DIR
    python -m cxrjax.build --dataset=vindr_cxr_vqa --source=train.csv.gz --out=DIR
    python -m cxrjax.build --dataset=gemex --source=FOLDER --out=DIR
    python -m cxrjax.build --dataset=records --source=FOLDER --out=DIR
    python -m cxrjax.build --dataset=sizes --source=BUILD --sizes=train_meta.csv --out=DIR
    python -m cxrjax.build --dataset=tfds --source=BUILD --out=DIR
    python -m cxrjax.build --dataset=vix_ray --source=FOLDER --out=DIR
    python -m cxrjax.build --dataset=vix_ray_synthetic --images=3000 --out=DIR

data/README.md and data/<dataset>/README.md say what the sources look like.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.json_file import read_json_object
from cxrjax.language_model.flags import add_flags


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
        choices=("templates", "language_model"),
        help="what words constructed questions (default templates)",
    )
    phantom = parser.add_argument_group("phantom")
    add = phantom.add_argument
    add("--images", type=int, default=3000, help="training images (default 3000)")
    add("--validation_images", type=int, default=300, help="held-out images (default 300)")
    add("--long_side", type=int, help="longer side in pixels (default: each image its own)")
    add("--normal_percent", type=int, default=10, help="share without findings (default 10)")
    add("--conspicuity", type=float, default=1.0, help="contrast of lesions (default 1)")
    add("--image_format", default="png", choices=("png", "jpg"), help="default png")
    gemex = parser.add_argument_group("gemex")
    add = gemex.add_argument
    add("--coord_format", default="auto", choices=("auto", "xyxy", "xywh"), help="released boxes")
    add("--keep_reports", action="store_true", help="keep ori_report, which is credentialed text")
    add("--test_images", type=int, default=300, help="most test images (default 300)")
    add_flags(parser)
    vix_ray = parser.add_argument_group("vix_ray, vix_ray_synthetic")
    add = vix_ray.add_argument
    add("--segmenter", default="pyvi", help="for statistics: pyvi (default), syllables, vncorenlp")
    studies = parser.add_argument_group("phantom_studies (takes --long_side too, default 512)")
    studies.add_argument("--studies", type=int, default=200, help="examinations (default 200)")
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


def _build_phantom_studies(flags: argparse.Namespace) -> str:
    from cxrjax.datasets.phantom_studies.build import (
        LONG_SIDE,
        StudyBuild,
        build_phantom_studies,
    )

    long_side = LONG_SIDE if flags.long_side is None else flags.long_side
    build_phantom_studies(
        StudyBuild(flags.out, flags.studies, flags.seed, long_side, flags.processes)
    )
    return f"{flags.out}: files/, chest_imagenome/, cxas/, truth/, statistics.json, manifest.json"


def _build_vindr(flags: argparse.Namespace) -> str | None:
    from cxrjax.datasets.vindr_cxr_vqa.release import VinDrBuild, build_vindr, plan_vindr

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
    if flags.generator == "templates":
        print(build_vindr(build))
        return None
    from cxrjax.datasets.quality import QualityLog
    from cxrjax.datasets.vindr_cxr_vqa.language_model_writer import make_writer

    quality = QualityLog()
    writer = make_writer(flags, quality, image_root=flags.out)
    if flags.dry_run:
        return str(writer.estimate(plan_vindr(build)))
    print(build_vindr(build, writer, quality))
    print(json.dumps({writer.name: writer.client.account.to_json()}))
    return None


def _build_vix_ray(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.vix_ray.build import ViXRayBuild, build_vix_ray

    build_vix_ray(
        ViXRayBuild(flags.source, flags.out, flags.processes, flags.segmenter, flags.split_manifest)
    )


def _build_vix_ray_synthetic(flags: argparse.Namespace) -> None:
    """The release's layout in OUT/native, and from there what `vix_ray` makes of it."""
    from cxrjax.datasets.vix_ray.synthetic import SyntheticViXRay, write_synthetic

    flags.source = flags.out / "native"
    write_synthetic(
        SyntheticViXRay(
            flags.source,
            images=flags.images,
            validation_images=flags.validation_images,
            seed=flags.seed,
            long_side=flags.long_side,
            conspicuity=flags.conspicuity,
            normal_percent=flags.normal_percent,
            processes=flags.processes,
        )
    )
    _build_vix_ray(flags)


def _build_gemex(flags: argparse.Namespace) -> str | None:
    from cxrjax.datasets.gemex.release import GemexBuild, build_gemex, plan_gemex

    build = GemexBuild(
        source=flags.source,
        out=flags.out,
        seed=flags.seed,
        processes=flags.processes,
        coord_format=flags.coord_format,
        keep_reports=flags.keep_reports,
        test_images=flags.test_images,
    )
    if flags.generator == "templates":
        build_gemex(build)
        return None
    from cxrjax.datasets.gemex.language_model import make_stages
    from cxrjax.datasets.quality import QualityLog

    quality = QualityLog()
    refiner, generator = make_stages(flags, quality)
    if flags.dry_run:
        refined = plan_gemex(build)
        first = refiner.estimate(one.report for one in refined)
        return f"refining: {first}\nquestions: {generator.estimate(refined)}"
    build_gemex(build, refiner, generator, quality)
    for name, stage in (("refining", refiner), ("questions", generator)):
        print(json.dumps({name: stage.client.account.to_json()}))
    return None


def _build_own_records(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.own_records import OwnBuild, build_own_records

    build_own_records(OwnBuild(flags.source, flags.out, flags.seed, flags.processes))


def _build_sizes(flags: argparse.Namespace) -> None:
    from cxrjax.datasets.join_sizes import join_sizes

    if flags.sizes is None:
        raise UserError("--dataset=sizes needs --sizes=FILE")
    join_sizes(flags.source, flags.sizes, flags.out)


def _build_tfds(flags: argparse.Namespace) -> str:
    from cxrjax.datasets.tfds_builders import write_tfds

    folder = write_tfds(flags.source, flags.out)
    return f"{folder}: for config.data.train and tfds.builder_from_directory"


# Imported when chosen: a builder loads the libraries it needs, and worker processes load this file.
BUILDERS: dict[str, Callable[[argparse.Namespace], str | None]] = {
    "gemex": _build_gemex,
    "phantom": _build_phantom,
    "phantom_studies": _build_phantom_studies,
    "records": _build_own_records,
    "sizes": _build_sizes,
    "tfds": _build_tfds,
    "vindr_cxr_vqa": _build_vindr,
    "vix_ray": _build_vix_ray,
    "vix_ray_synthetic": _build_vix_ray_synthetic,
}
_WITHOUT_SOURCE = ("phantom", "phantom_studies", "vix_ray_synthetic")


def main(argv: Sequence[str] | None = None) -> None:
    """Builds what the flags ask for and prints where it is."""
    flags = parse_arguments(argv)
    if flags.dataset not in _WITHOUT_SOURCE and flags.source is None:
        raise UserError(f"--dataset={flags.dataset} needs --source=PATH")
    made = BUILDERS[flags.dataset](flags)
    if flags.strict and flags.dataset != "tfds":  # which stops at any defect by itself
        _refuse_defects(flags.out / "quality.json")
    print(
        made or f"{flags.out}: records/, questions/, statistics.json, quality.json, manifest.json"
    )


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
