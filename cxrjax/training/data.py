"""Opens the data that a configuration names, as the input pipeline wants it.

`data.feature_cache`: what a radiograph looks like to a tower that does not learn is the same at
every step. Computed once, it makes an epoch cost the decoder alone. Needs room on the disk: an
image has as many features as image tokens (of MedGemma 0.6 MB in bfloat16, of PaliGemma at 448
pixels 2.4 MB).
"""

import dataclasses
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from cxrjax.codecs import get_codec
from cxrjax.codecs.frames import InputPixels
from cxrjax.codecs.medgemma import Qwen25VlInput
from cxrjax.distributed import hosts
from cxrjax.distributed.meshes import fetch_whole
from cxrjax.errors import UserError
from cxrjax.files import file_sha256
from cxrjax.images.files import ImageError
from cxrjax.input_pipeline.caches import FeatureCache, ImageCache, made_by
from cxrjax.input_pipeline.examples import ExampleConfig, load_image
from cxrjax.input_pipeline.mixture import Mixture, MixtureSource
from cxrjax.input_pipeline.prompts import PROMPTS, PromptFormat
from cxrjax.input_pipeline.sharded_source import ShardedSource
from cxrjax.input_pipeline.sources import RecordSource, StoredQuestions, open_tfds
from cxrjax.input_pipeline.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from cxrjax.input_pipeline.usable_records import RecordCheck, check_records
from cxrjax.input_pipeline.wording import WordingVariation, things_but
from cxrjax.models import VLM, partition
from cxrjax.models.partition import path_of
from cxrjax.paths import CACHE, in_path, on_hub, to_path
from cxrjax.progress import progress_bar, waiting
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.shard_layout import is_sharded
from cxrjax.training.base_model import model_grids, model_sizes
from cxrjax.training.config import ExperimentConfig, flatten
from cxrjax.training.objectives import paired_questions
from cxrjax.training.step import cast_params
from cxrjax.training.workdir import storage_errors


class NoneWantedError(UserError):
    """All records of a file are left out as unwanted."""


class OpenedRecords(NamedTuple):
    """The usable records of a file, and what was set aside."""

    source: StoredQuestions
    quality: QualityLog


# Given records, where the features of their images are; None: nobody wants features.
Features = Callable[[StoredQuestions], FeatureCache | None]


def open_training(config: ExperimentConfig) -> tuple[dict[str, StoredQuestions], QualityLog]:
    """The records of each source of the configured mixture; without one, data.train's, named "".

    Raises:
        UserError: as `open_records`.
    """
    if not config.mixture.sources:
        source, quality = open_records(config, "train")
        return {"": source}, quality
    sources, quality = {}, QualityLog()
    for name in config.mixture.sources:
        where = f"mixture.sources.{name}.train"
        try:
            opened = open_records(config.of_source(name), "train", where)
        except NoneWantedError as error:
            if config.rl.pairs is None:
                raise
            print(f"warning: mixture.sources.{name} is left out: {error}", file=sys.stderr)
            continue
        sources[name] = opened.source
        quality.entries.extend(opened.quality.entries)
        quality.examined.update(opened.quality.examined)
        quality.warnings.update(opened.quality.warnings)
    if not sources:
        raise UserError(f"rl.pairs={config.rl.pairs}: no source's question has a pair")
    return sources, quality


def check_overlap(
    config: ExperimentConfig, training: Mapping[str, StoredQuestions], validation: StoredQuestions
) -> None:
    """Refuses validation questions, images or patients that are trained on.

    Two splits of one folder of shards are taken to share none: `build` has seen to it, and reading
    tens of millions of questions takes long.

    Raises:
        UserError: there are some, and `data.allow_overlap` is not set; counts them.
    """
    others = [s.identities() for s in training.values() if not _are_splits_of_one(s, validation)]
    shared = validation.identities().shared_with(others) if others else {}
    if not shared:
        return
    counts = ", ".join(f"{count:,} {name}{'s'[: count - 1]}" for name, count in shared.items())
    told = f"data.validation={config.data.validation}: {counts} of it are in training too"
    if config.data.allow_overlap:
        if hosts.is_first():
            print(f"{told}; allowed by data.allow_overlap")
        return
    raise UserError(
        f"{told}, and figures on them do not tell learning from remembering; take them out of one "
        "of the two, or allow it with --config.data.allow_overlap=True"
    )


def _are_splits_of_one(first: StoredQuestions, second: StoredQuestions) -> bool:
    if not (isinstance(first, ShardedSource) and isinstance(second, ShardedSource)):
        return False
    same = first.directory.resolve() == second.directory.resolve()
    return same and first.split != second.split


def wording_variation(
    config: ExperimentConfig, sources: Mapping[str, StoredQuestions]
) -> WordingVariation:
    """The configured variation of questions; no finding of the sources is an unknown thing."""
    data = config.data
    unknown = data.unknown_share
    taught = {finding for each in sources.values() if unknown for finding in each.findings}
    return WordingVariation(data.vary_wording, unknown, things_but(taught))


def make_mixture(
    config: ExperimentConfig, sources: Mapping[str, StoredQuestions], features: Features
) -> Mixture:
    """The sources of `open_training`, each with its own examples and share."""
    own = {name: config.of_source(name) if name else config for name in sources}
    settings = config.mixture.sources
    parts = [
        MixtureSource(
            name,
            records,
            training_examples(own[name], features(records)),
            settings[name].weight if name else None,
        )
        for name, records in sources.items()
    ]
    return Mixture(parts, config.mixture.temperature, config.data.like_lengths)


def open_records(config: ExperimentConfig, key: str, where: str | None = None) -> OpenedRecords:
    """The records that `data.<key>` names: a file, or a folder of shards or of a TFDS data set, of
    which `key` is the split.

    Args:
        key: `train` or `validation`.
        where: the configuration key, for messages.

    Raises:
        UserError: not configured or not there (says what to put where), or without a usable
            record.
    """
    data = config.data
    path = data.train if key == "train" else data.validation
    if path is None or not to_path(path).exists():
        found = "is not set" if path is None else f"names {path}, which is not there"
        raise UserError(
            f"{where or f'data.{key}'} {found}: expected a records file (data/README.md). "
            f"{config.missing_data_help}"
        )
    if is_sharded(to_path(path)):
        if key == "train" and config.rl.pairs is not None:
            raise UserError(
                f"rl.pairs={config.rl.pairs}: questions without a pair are left out of records "
                f"files alone, and {where or 'data.train'}={path} is a folder of shards"
            )
        return _open_shards(config, path, key)
    if data.select:
        raise UserError(f"data.select is for folders of shards, and data.{key}={path} is none")
    per, codec = data.questions_per_image, data.record_codec
    if to_path(path).is_dir():
        source = open_tfds(to_path(path), key, per, codec)
    else:
        source = RecordSource(path, data.image_root, per, record_codec=codec)
    with waiting(f"checking {path}"):
        check = check_records(source, codec)
    pairs_file = config.rl.pairs if key == "train" else None
    findings = data.findings if key == "train" else ()
    left_out = check.indices | _unwanted(source, findings, pairs_file)
    if len(left_out) == source.num_records:
        asked = [f"asks about data.findings={tuple(findings)}"] if findings else []
        asked += [] if pairs_file is None else [f"has a pair in rl.pairs={pairs_file}"]
        kind = UserError if check.quality.entries else NoneWantedError
        raise kind(f"{path}: no record left to read: {_why_none(check, asked)}")
    source = source.without(left_out) if left_out else source
    if pairs_file is not None:
        # So that a run does not go on with other pairs.
        both = f"{source.fingerprint}/{file_sha256(to_path(pairs_file))}"
        source.fingerprint = hashlib.sha256(both.encode()).hexdigest()
    return OpenedRecords(source, check.quality)


def _unwanted(
    source: RecordSource, findings: Sequence[str], pairs_file: str | None
) -> frozenset[int]:
    """Positions of the records that a run does not request, whether they are usable or not."""
    unwanted: set[int] = set()
    if findings:
        columns = source.columns()
        asked = np.array([name in findings for name in (*columns.finding_names, None)])
        unwanted.update(np.flatnonzero(~asked[columns.findings]).tolist())
    if pairs_file is not None:
        paired = paired_questions(pairs_file)
        unwanted.update(at for at, each in source.records() if each.question_id not in paired)
    return frozenset(unwanted)


def _why_none(check: RecordCheck, asked: Sequence[str]) -> str:
    """Explains why no record is usable; `asked` are the required properties of a question."""
    if not check.quality.entries:
        return f"none {' and '.join(asked)}"
    first = check.quality.entries[0]
    rest = f"; of the others none {' and '.join(asked)}" if asked else ""
    return (
        f"{len(check.quality.entries)} set aside, the first for {first.reason} ({first.where}: "
        f"{first.found}){rest}"
    )


def _open_shards(config: ExperimentConfig, path: str, key: str) -> OpenedRecords:
    """Chosen by the shards' tables: millions of records are not read to look at them."""
    data = config.data
    select = tuple(data.select)
    if key == "train" and data.findings:
        select += (f"finding={'|'.join(data.findings)}",)
    source = ShardedSource(path, key, data.image_root, data.questions_per_image, select)
    quality = QualityLog()
    quality.examined.update(questions=source.num_questions + source.without_size)
    quality.warnings["questions whose image has no known size, left out"] = source.without_size
    return OpenedRecords(source, quality)


def training_examples(
    config: ExperimentConfig, features: FeatureCache | None = None
) -> ExampleConfig:
    """`example_config` of a training run, which may keep the images that it has prepared.

    Args:
        features: read these in the place of pixels.
    """
    examples = dataclasses.replace(example_config(config), features=features)
    directory = config.data.image_cache
    if directory is None:
        return examples
    how = (examples.image_size, examples.geometry, examples.image_width, examples.jpeg_times)
    cache = ImageCache(to_path(directory), *how)
    return dataclasses.replace(examples, image_cache=cache)


def example_config(config: ExperimentConfig) -> ExampleConfig:
    """Settings that make examples of records for the configured model.

    Raises:
        UserError: the model takes no images.
    """
    data, vision = config.data, model_sizes(config).vision
    if vision is None:
        raise UserError(
            f"model.preset={config.model.preset!r} is a model of text alone, and the questions are "
            "about images; use a model with a vision tower"
        )
    frame = get_codec(data.codec).frame
    grids = model_grids(config) or (vision.image_hw,)
    if isinstance(frame, InputPixels) and set(frame.grids) != set(grids):
        raise UserError(
            f"data.codec={data.codec!r} counts pixels of an input of {_sizes_text(frame.grids)}, "
            f"and the model's has {_sizes_text(grids)}; set "
            f"{Qwen25VlInput(*grids).name!r}, or a codec that counts otherwise, such as 'qwen3_vl'"
        )
    same = (
        "codec",
        "record_codec",
        "prompt",
        "geometry",
        "max_boxes",
        "too_long",
        "earlier_images",
    )
    buckets = ("prefix_buckets", "answer_buckets", "packed_buckets")
    lengths: dict[str, Any] = {name: tuple(getattr(data, name)) for name in buckets}
    return ExampleConfig(
        grids=grids if len(grids) > 1 else (),
        image_size=vision.image_size,
        image_width=vision.image_width,
        box_route=config.training.box_route,
        jpeg_times=2 if data.jpeg_decoding == "twice" else 1,
        **{name: getattr(data, name) for name in same},
        **lengths,
    )


def _sizes_text(grids: Sequence[tuple[int, int]]) -> str:
    return " or ".join(f"{height} x {width}" for height, width in grids)


def check_addresses(config: ExperimentConfig) -> None:
    """Shows that every bucket of a configuration can be reached, before anything is read.

    Also sets where copies of what is read from buckets are kept (data.cache).

    Raises:
        UserError: one cannot.
    """
    if config.data.cache is not None:
        os.environ[CACHE] = config.data.cache
    for value in flatten(config.to_json()).values():
        if isinstance(value, str) and on_hub(value):
            build = f"python -m cxrjax.build --dataset=NAME --source={value} --out=DIR"
            raise UserError(f"{value}: a run reads records, which are built from it first: {build}")
        if isinstance(value, str) and value.startswith(("gs://", "s3://")):
            in_path(value)


def open_tokenizer(path: Path, config: ExperimentConfig) -> Tokenizer:
    """A tokenizer that fits the configured model.

    Raises:
        UserError: it cannot be read, is of another vocabulary than the model's, or has its `<loc>`
            tokens elsewhere.
    """
    tokenizer, sizes = load_tokenizer(path), model_sizes(config)
    check_vocabulary(tokenizer, sizes.decoder.vocab_size)
    if tokenizer.loc_token_start != sizes.loc_token_start:
        raise UserError(
            f"{path}: <loc0000> is id {tokenizer.loc_token_start}, preset {config.model.preset} "
            f"expects {sizes.loc_token_start}; use the tokenizer that the base was made with"
        )
    _check_prompt(tokenizer, path, config.data.prompt)
    if sizes.loc_token_start < 0 and get_codec(config.data.codec).coordinate_order is not None:
        raise UserError(
            f"data.codec={config.data.codec!r} writes boxes in location tokens, and this model's "
            "vocabulary has none; set one that writes digits, such as 'llava'"
        )
    return tokenizer


def _check_prompt(tokenizer: Tokenizer, path: Path, name: str) -> None:
    """Refuses a conversation whose marks the tokenizer would spell letter by letter."""

    def fits(prompt: PromptFormat) -> bool:
        return prompt.end is None or tokenizer.has_piece(prompt.end)

    prompt = PROMPTS.get(name)
    if prompt is None or fits(prompt):
        return
    others = [each for each, form in PROMPTS.items() if form.end is not None and fits(form)]
    instead = f"set it to one of {', '.join(others)}" if others else "set it to 'vqa'"
    raise UserError(
        f"data.prompt={name!r} ends turns with {prompt.end}, which {path} has no piece for: it is "
        f"the conversation of another family; {instead}, and data.codec to what the model writes"
    )


def make_features(
    config: ExperimentConfig, model: VLM, base: Mapping[str, Any], mesh: Mesh
) -> Features:
    """Fills the configured cache for the records it is called with.

    Args:
        model, base: from `checkpoint.build_model`.
        mesh: that the model is on.

    Raises:
        UserError: the tower trains, or the model has none or images of several sizes.
    """
    if config.data.feature_cache is None:
        return lambda source: None
    vision = model.config.vision
    if vision is None:
        raise UserError("data.feature_cache: the model has no vision tower")
    if len(model_grids(config)) > 1:
        raise UserError(
            f"data.feature_cache keeps features of one size of images, and model.preset="
            f"{config.model.preset!r} has several; name one, or leave data.feature_cache out"
        )
    _, trainable, _ = partition(model, config.trainable)
    trained = [path_of(path) for path, _ in nnx.to_flat_state(trainable)]
    trained = [path for path in trained if path.startswith("vision/")]
    if trained:
        raise UserError(
            f"data.feature_cache: {len(trained)} parameters of the vision tower are trained, such "
            f"as {trained[0]}, so its features change; leave data.feature_cache out, or "
            "the tower out of `trainable` and lora.targets"
        )
    settings = config.model
    parts = [vision, base["sha256"], settings.frozen_dtype, settings.dtype, config.data.geometry]
    parts += [] if config.data.jpeg_decoding == "twice" else [config.data.jpeg_decoding]
    key = made_by(*parts)
    cache = FeatureCache(
        to_path(config.data.feature_cache) / key,
        vision.num_tokens,
        vision.feature_width,
        settings.dtype,
    )

    def fill(source: StoredQuestions) -> FeatureCache:
        _fill(cache, model, config, source, mesh)
        return cache

    return fill


def _announce(cache: FeatureCache, images: int) -> None:
    """Prints how much of a disk features take.

    Raises:
        UserError: it has not as much left.
    """
    total = images * cache.bytes
    there = sum(1 for _ in cache.directory.glob("*/*.npy")) * cache.bytes
    with storage_errors(str(cache.directory)):
        cache.directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache.directory).free
    if hosts.is_first():
        print(f"features of {images:,} images: {total / 1e9:,.2f} GB in {cache.directory}")
    if total - there > free:
        raise UserError(
            f"data.feature_cache: {cache.directory} has {free / 1e9:,.1f} GB left, and features of "
            f"{images:,} images take {total / 1e9:,.1f} GB, of which {there / 1e9:,.1f} are there; "
            "name a folder with more room, or leave it out with --config.data.feature_cache=None"
        )


def _fill(
    cache: FeatureCache, model: VLM, config: ExperimentConfig, source: StoredQuestions, mesh: Mesh
) -> None:
    """Makes the features that are not there yet; each host those of its share of the images.

    For this while one device of each host has the tower whole.

    An image that does not decode gets none: the loader meets it again and sets its questions aside.

    Raises:
        UserError: the features cannot be written (a full disk).
    """
    examples, size = training_examples(config), config.batch_images
    graphdef, tower, *others = nnx.split(model, lambda path, _: path[0] == "vision", ...)
    tower = cast_params(tower, config.model.frozen_dtype)
    here = jax.local_devices()[0]
    tower = jax.tree.map(lambda leaf: jax.device_put(fetch_whole(leaf, mesh), here), tower)
    unused = jax.eval_shape(lambda rest: rest, others[0])

    @jax.jit
    def features_of(tower: Any, images: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, tower, unused).image_features(images)

    paths = source.image_files()
    _announce(cache, len(paths))
    mine = paths[jax.process_index() :: jax.process_count()]
    waiting: list[tuple[Path, np.ndarray]] = []

    def write_waiting() -> None:
        images = np.zeros((size, *examples.empty_input().shape), np.uint8)
        for row, (_, image) in enumerate(waiting):
            images[row] = image
        features = np.asarray(features_of(tower, images))
        for (file, _), made in zip(waiting, features, strict=False):
            with storage_errors(str(file)):
                cache.write(file, made)
        waiting.clear()

    for path in progress_bar(mine, desc="features of images", unit="image"):
        try:
            file = cache.file_of(path)
            if not file.is_file():
                waiting.append((file, load_image(path, examples)))
        except ImageError:
            continue
        if len(waiting) == size:
            write_waiting()
    if waiting:
        write_waiting()
    hosts.wait_for_all("feature cache")
