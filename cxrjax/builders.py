"""The datasets that `python -m cxrjax.build` can build: their flags, and what those call."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.language_model.flags import add_client_flags, client_from_flags


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags that belong to one dataset or a few, a group for each."""
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
        help="what words constructed questions (default templates); of cxr_qba, whose words are "
        "always templates', what reads the reports (default rules)",
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
    add(
        "--drop_longitudinal",
        action="store_true",
        help="set released questions aside that compare with an earlier examination",
    )
    add("--test_images", type=int, default=300, help="most test images (default 300)")
    add_client_flags(parser)
    tfds = parser.add_argument_group("tfds")
    tfds.add_argument(
        "--image_root",
        type=Path,
        help="folder of the images (default: the build; of one in shards: without images)",
    )
    shards = parser.add_argument_group("shards")
    shards.add_argument("--num_shards", type=int, default=16, help="of each split (default 16)")
    vix_ray = parser.add_argument_group("vix_ray, vix_ray_synthetic")
    add = vix_ray.add_argument
    add("--segmenter", default="pyvi", help="for statistics: pyvi (default), syllables, vncorenlp")
    studies = parser.add_argument_group("phantom_studies (takes --long_side too, default 512)")
    studies.add_argument("--studies", type=int, default=200, help="examinations (default 200)")
    qba = parser.add_argument_group("cxr_qba")
    add = qba.add_argument
    add(
        "--rate_with",
        default="none",
        choices=("none", "surrogate", "language_model"),
        help="what rates constructed questions; surrogate: rules, under that name (default none)",
    )
    add(
        "--least_grade",
        default="",
        choices=("", "A++", "A+", "A", "B"),
        help="B, A: export filters",
    )
    add(
        "--entity_model",
        type=Path,
        help="map names of findings by this sentence-transformers model (a folder; default: by "
        "wording)",
    )
    add(
        "--lean",
        action="store_true",
        help="of the release: records without what only the way back to its files needs (a third "
        "of the size)",
    )


def _build_phantom(flags: argparse.Namespace) -> None:
    from cxrjax.phantoms.vqa import PhantomBuild, build_phantom_dataset

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
    from cxrjax.phantoms.studies.build import LONG_SIDE, StudyBuild, build_phantom_studies

    long_side = LONG_SIDE if flags.long_side is None else flags.long_side
    build_phantom_studies(
        StudyBuild(flags.out, flags.studies, flags.seed, long_side, flags.processes)
    )
    return f"{flags.out}: files/, chest_imagenome/, cxas/, truth/, statistics.json, manifest.json"


def _build_vindr(flags: argparse.Namespace) -> str | None:
    from cxrjax.papers.vindr_cxr_vqa.build import VinDrBuild, build_vindr, plan_vindr

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
    from cxrjax.papers.vindr_cxr_vqa.construct.language_model_writer import make_writer
    from cxrjax.records_io.quality import QualityLog

    quality = QualityLog()
    writer = make_writer(flags, quality, image_root=flags.out)
    if flags.dry_run:
        return str(writer.estimate(plan_vindr(build)))
    print(build_vindr(build, writer, quality))
    print(json.dumps({writer.name: writer.client.account.to_json()}))
    return None


def _build_vix_ray(flags: argparse.Namespace) -> None:
    from cxrjax.papers.vix_ray.build import ViXRayBuild, build_vix_ray

    build_vix_ray(
        ViXRayBuild(flags.source, flags.out, flags.processes, flags.segmenter, flags.split_manifest)
    )


def _build_vix_ray_synthetic(flags: argparse.Namespace) -> None:
    """The release's layout in OUT/native, and from there what `vix_ray` makes of it."""
    from cxrjax.phantoms.vix_ray import SyntheticViXRay, write_synthetic

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
    from cxrjax.papers.gemex.build import GemexBuild, build_gemex, plan_gemex

    build = GemexBuild(
        source=flags.source,
        out=flags.out,
        seed=flags.seed,
        processes=flags.processes,
        coord_format=flags.coord_format,
        keep_reports=flags.keep_reports,
        drop_longitudinal=flags.drop_longitudinal,
        test_images=flags.test_images,
    )
    if flags.generator == "templates":
        build_gemex(build)
        return None
    from cxrjax.papers.gemex.construct.language_model import make_stages
    from cxrjax.records_io.quality import QualityLog

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


def _build_cxr_qba(flags: argparse.Namespace) -> str | None:
    from cxrjax.papers.cxr_qba.build import QBABuild, build_cxr_qba

    surrogate = flags.rate_with == "surrogate"
    build = QBABuild(
        flags.source,
        flags.out,
        flags.seed,
        surrogate,
        flags.least_grade,
        flags.entity_model,
        flags.lean,
    )
    if "language_model" not in (flags.generator, flags.rate_with):
        build_cxr_qba(build)
        return None
    from cxrjax.papers.cxr_qba.construct.language_model_extractor import (
        LanguageModelExtractor,
        estimate_language_model,
    )
    from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater
    from cxrjax.papers.cxr_qba.construct.prompts import CACHE_NAME

    client = client_from_flags(flags, flags.out / CACHE_NAME)
    extractor = LanguageModelExtractor(client) if flags.generator == "language_model" else None
    rater = LanguageModelRater(client) if flags.rate_with == "language_model" else None
    if flags.dry_run:
        return estimate_language_model(flags.source, flags.seed, extractor, rater)
    build_cxr_qba(build, extractor, rater)
    print(json.dumps({client.settings.model: client.account.to_json()}))
    return None


def _build_ms_cxr(flags: argparse.Namespace) -> None:
    from cxrjax.papers.ms_cxr.build import build_ms_cxr

    build_ms_cxr(flags.source, flags.out, flags.seed)


def _build_own_records(flags: argparse.Namespace) -> None:
    from cxrjax.papers.benchmarks import CLOSED_CLASSES
    from cxrjax.records_io.own_records import OwnBuild, build_own_records

    build_own_records(
        OwnBuild(flags.source, flags.out, flags.seed, flags.processes, CLOSED_CLASSES)
    )


def _build_sizes(flags: argparse.Namespace) -> None:
    from cxrjax.records_io.sizes import join_sizes

    if flags.sizes is None:
        raise UserError("--dataset=sizes needs --sizes=FILE")
    join_sizes(flags.source, flags.sizes, flags.out)


def _build_tfds(flags: argparse.Namespace) -> str:
    from cxrjax.papers.cxr_qba.construct.tfds_builder import write_qba_tfds
    from cxrjax.records_io.shards import is_sharded
    from cxrjax.records_io.tfds_builders import write_tfds

    if is_sharded(flags.source):
        folder = write_qba_tfds(flags.source, flags.out, flags.image_root)
        return f"{folder}: for tfds.builder_from_directory"
    folder = write_tfds(flags.source, flags.out, flags.image_root)
    return f"{folder}: for config.data.train and tfds.builder_from_directory"


def _build_shards(flags: argparse.Namespace) -> str:
    from cxrjax.records_io.shards import shard_build

    shard_build(flags.source, flags.out, flags.num_shards)
    return f"{flags.out}: records/, manifest.json, for config.data.train"


# Imported when chosen: a builder loads the libraries it needs, and worker processes load this file.
BUILDERS: dict[str, Callable[[argparse.Namespace], str | None]] = {
    "cxr_qba": _build_cxr_qba,
    "gemex": _build_gemex,
    "ms_cxr": _build_ms_cxr,
    "phantom": _build_phantom,
    "phantom_studies": _build_phantom_studies,
    "records": _build_own_records,
    "shards": _build_shards,
    "sizes": _build_sizes,
    "tfds": _build_tfds,
    "vindr_cxr_vqa": _build_vindr,
    "vix_ray": _build_vix_ray,
    "vix_ray_synthetic": _build_vix_ray_synthetic,
}
WITHOUT_SOURCE = ("phantom", "phantom_studies", "vix_ray_synthetic")
