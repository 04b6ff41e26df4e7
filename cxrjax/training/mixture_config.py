"""The keys of a configuration's `mixture`: several record files in one run."""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cxrjax.errors import UserError
from cxrjax.input_pipeline.mixture import one_box_route, shares

# What the dotted keys of sources begin with.
SOURCES = "mixture.sources."


def source_defaults() -> ConfigDict:
    """What a source of a mixture may say: null means what `data` says."""
    source = ConfigDict()
    source.train = placeholder(str)  # records file; each source has its own
    source.weight = placeholder(float)  # share relative to the others'; null in all: by size
    source.image_root = placeholder(str)
    source.prompt = placeholder(str)
    source.codec = placeholder(str)
    source.record_codec = placeholder(str)
    source.findings = placeholder(tuple)
    source.questions_per_image = placeholder(int)
    return source


def add_source(config: ConfigDict, name: str, train: str, **keys: Any) -> None:
    """Puts records into the mixture that a run trains on.

    Args:
        name: for figures and messages, such as `vindr`.
        train: records file, or a TFDS data set with the split `train`.
        keys: others of `source_defaults`.
    """
    source = source_defaults().lock()
    source.update({"train": train, **keys})
    with config.mixture.sources.unlocked():
        config.mixture.sources[name] = source


def source_config(config: ConfigDict, name: str) -> ConfigDict:
    """The same configuration with `data` as a source of its mixture has it.

    Raises:
        UserError: no such source.
    """
    if name not in config.mixture.sources:
        known = ", ".join(config.mixture.sources) or "none"
        raise UserError(f"{name!r} is no source of the run's mixture: expected one of {known}")
    own = config.copy_and_resolve_references()
    for key, value in config.mixture.sources[name].items():
        if key != "weight" and value is not None:
            own.data[key] = value
    return own


def train_files(config: ConfigDict) -> list[str]:
    """What a run trains on: data.train, or what each source of the mixture has in its place."""
    sources = [source.train for source in config.mixture.sources.values()]
    return sources or ([config.data.train] if config.data.train else [])


def check_mixture(config: ConfigDict) -> None:
    """Whether the sources have what they must have, and in common what they must.

    Raises:
        UserError: names the first key that is wrong, its value and what is expected.
    """
    sources = config.mixture.sources
    if not sources:
        return
    if config.data.train is not None:
        raise UserError(f"data.train={config.data.train!r} and mixture.sources exclude each other")
    if config.training.batch_questions is not None:
        raise UserError("training.batch_questions: a mixture's batch is set by batch_images")
    for name in sources:
        source = source_config(config, name)
        if not source.data.train:
            raise UserError(f"{SOURCES}{name}.train is not set: expected a records file")
        if source.data.questions_per_image < 1:
            raise UserError(f"{SOURCES}{name}.questions_per_image: expected a number above 0")
    codecs = {name: source_config(config, name).data.codec for name in sources}
    # The step takes its route from data.codec.
    one_box_route(config.training.box_route, {"data": config.data.codec, **codecs})
    # Only the weights are looked at here: the files have not been.
    weights = {n: s.weight for n, s in sources.items()}
    shares([1] * len(sources), weights)
    if config.mixture.temperature != 1 and None not in weights.values():
        raise UserError(
            f"mixture.temperature={config.mixture.temperature} would change nothing beside a "
            "weight for every source: leave it at 1.0, or leave the weights out"
        )
