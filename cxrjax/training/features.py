"""Runs a frozen vision tower once over all images, for `data.feature_cache`.

What a radiograph looks like to a tower that does not learn is the same at every step. Computed
once, it makes an epoch cost the decoder alone. Needs room on the disk: an image has as many
features as image tokens (of MedGemma 0.6 MB in bfloat16, of PaliGemma at 448 pixels 2.4 MB).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tqdm
from flax import nnx
from jax.sharding import Mesh

from cxrjax.distributed import hosts
from cxrjax.distributed.meshes import fetch_whole
from cxrjax.errors import UserError
from cxrjax.images.files import ImageError
from cxrjax.input_pipeline.caches import FeatureCache, made_by
from cxrjax.input_pipeline.examples import load_image
from cxrjax.input_pipeline.sources import QuestionSource
from cxrjax.models import VLM, partition
from cxrjax.models.partition import path_of
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.data import Features, training_examples
from cxrjax.training.step import cast_params
from cxrjax.training.workdir import storage_errors


def make_features(
    config: ExperimentConfig, model: VLM, base: Mapping[str, Any], mesh: Mesh
) -> Features:
    """Fills the configured cache for the records it is called with.

    Args:
        model, base: from `checkpoint.build_model`.
        mesh: that the model is on.

    Raises:
        UserError: the tower trains, or the model has none.
    """
    if config.data.feature_cache is None:
        return lambda source: None
    vision = model.config.vision
    if vision is None:
        raise UserError("data.feature_cache: the model has no vision tower")
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
    key = made_by(
        vision, base["sha256"], settings.frozen_dtype, settings.dtype, config.data.geometry
    )
    cache = FeatureCache(
        Path(config.data.feature_cache) / key, vision.num_tokens, vision.width, settings.dtype
    )

    def fill(source: QuestionSource) -> FeatureCache:
        _fill(cache, model, config, source, mesh)
        return cache

    return fill


def _fill(
    cache: FeatureCache, model: VLM, config: ExperimentConfig, source: QuestionSource, mesh: Mesh
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

    paths = list(dict.fromkeys(source[element].image_path for element in range(len(source))))
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

    for path in tqdm.tqdm(mine, desc="features of images", unit="image", disable=None):
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
