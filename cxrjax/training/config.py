"""Keys of an experiment and the values that they take.

A file in `configs/` returns the ConfigDict of `default_config()` with some of its keys changed, the
command line changes single ones (`--config.optimizer.learning_rate=1e-3`), and config_file.py turns
the result into the frozen dataclasses below, once. Pydantic checks types, names and ranges, and
key_rules.toml has what keys must have in common. Groups that are beside their code: `data` and
`mixture` (cxrjax/input_pipeline/data_config.py), `data.augment` (augment.py beside it), `lora`
(cxrjax/models/lora.py), `mesh` (cxrjax/distributed/meshes.py), `decoding` (cxrjax/decoding/
strategy.py), `optimizer` (cxrjax/training/optimizer.py), `rl` (cxrjax/training/policy_config.py).
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic.dataclasses import dataclass

from cxrjax.codecs import get_codec
from cxrjax.decoding.strategy import DecodingConfig
from cxrjax.distributed.meshes import MeshConfig
from cxrjax.errors import UserError
from cxrjax.input_pipeline.coordinates import BOX_ROUTES, BoxRoute, resolve_box_route
from cxrjax.input_pipeline.data_config import DataConfig, MixtureConfig, SourceConfig
from cxrjax.models.layers import REMAT
from cxrjax.models.lora import AdapterConfig
from cxrjax.models.quantize import QUANTIZED_DTYPES
from cxrjax.models.splash import ATTENTION
from cxrjax.settings import (
    STRICT,
    NotNegative,
    NotNegativeFloat,
    Positive,
    PositiveFloat,
    Share,
    one_of,
)
from cxrjax.training.key_names import broken_rules
from cxrjax.training.optimizer import BOX_ADAPTER, OptimizerConfig
from cxrjax.training.policy_config import PolicyConfig

if TYPE_CHECKING:
    from ml_collections import ConfigDict  # what runs made is read without ml_collections


@dataclass(frozen=True, config=STRICT)
class ModelConfig:
    """The group `model`."""

    # The sizes of everything: a name in cxrjax.models.PRESETS, or 'from_base': the base's own. Of
    # Qwen-VL, Gemma 4 and InternVL '@HEIGHTxWIDTH' behind it has images of other pixels, and of
    # several each image has the nearest: 'qwen3_vl_4b@512x512,576x448' (docs/weights.md).
    preset: str = "tiny"
    # 'checkpoint': from `init_from`; 'random': from training.seed.
    init: Literal["checkpoint", "random"] = "checkpoint"
    init_from: str | None = None  # directory of the base model (null with init='random')
    # Workdir of a run on the same base: begin with what it has trained, its best checkpoint's.
    start_from: str | None = None
    # With init='random': a base or run whose vision tower is taken, as PaliGemma took SigLIP's.
    tower_from: str | None = None
    tokenizer: str | None = None  # SentencePiece file; null: the one beside the base model
    # What an image's questions share: the 'tower', or its 'image' tokens too.
    share: Literal["image", "tower"] = "tower"
    # What of every layer is kept for the backward pass: 'none': all (no recomputation);
    # 'products': what leaves matrix products and attention; 'attention': what leaves the
    # attention; 'full': the layer's input alone, the rest is computed again; 'auto': what
    # `plan --sweep` has found for the devices, else by formula, micro-batches too.
    remat: Annotated[str, one_of((*REMAT, "auto"))] = "none"
    # 'dense'; 'splash': TPU kernels that keep no scores; 'cudnn': an NVIDIA GPU's, not in float32;
    # 'auto': splash on a TPU, cudnn on Hopper in 16 bits, else dense.
    attention: Annotated[str, one_of(ATTENTION)] = "auto"
    # Write the loop over layers out: faster, slower to compile; null: on a GPU, where the loop's
    # copies of weights and of what is kept are launches of their own.
    unroll: bool | None = None
    # Of the activations and matrix products.
    dtype: Literal["float32", "bfloat16"] = "float32"
    # Storage of parameters that are not trained. int8 and nf4 quantise the kernels of linear maps;
    # norms, biases and embeddings are then in bfloat16.
    frozen_dtype: Annotated[str, one_of(("float32", "bfloat16", *QUANTIZED_DTYPES))] = "float32"


@dataclass(frozen=True, config=STRICT)
class TrainingConfig:
    """The group `training`."""

    # The batch of one optimiser step, all devices and micro-batches together: one of the two.
    batch_images: Positive | None = None
    batch_questions: Positive | None = None  # question slots: images x questions_per_image
    # Micro-batches that a batch is cut into; fewer where a device's share is not as many images.
    accumulation_steps: Positive = 1
    steps: Positive | None = None  # one of the two: optimiser steps, or
    epochs: PositiveFloat | None = None  # passes over the training records
    seed: NotNegative = 0  # initialisation, data order and dropout
    lambda_box: NotNegativeFloat = 0.5  # weight of the box loss
    # What the box loss is divided by: 'questions' that have boxes, as the paper has it; 'tokens',
    # as the cross-entropy, so that a lambda means the same in every batch and data set
    # (cxrjax/training/loss.py has the conversion).
    box_mean: Literal["questions", "tokens"] = "questions"
    # Half the width, as a share of the frame, of the window about the target's mode that the box
    # loss sees, each box weighed by its probability there; 0: whole distributions, all boxes alike.
    box_window: Share = 0.0
    # How it reaches boxes: 'loc', 'digits' or 'none' (input_pipeline/coordinates.py); 'auto': by
    # the codec, <loc> tokens or digits.
    box_route: Annotated[str, one_of(BOX_ROUTES)] = "auto"
    # Standard deviation in pixels of the model's input of the Gaussian about a location token's bin
    # that is its target (cxrjax/training/coordinate_targets.py); 0: the bin alone.
    coordinate_width: NotNegativeFloat = 0.0
    coordinate_weight: NotNegativeFloat = 1.0  # of a location token beside another token
    logit_chunk: Positive = 512  # answer tokens whose logits exist at a time, on each device
    log_every: Positive = 50  # steps
    eval_every: NotNegative = 0  # steps; 0: after the last one alone
    # Steps; every evaluation and the last step are saved as well.
    checkpoint_every: NotNegative = 500
    # Checkpoints kept besides the best one; a resume takes the one before if the last is damaged.
    keep_last: Positive = 2
    # Local directory for the state, saved every so many steps between checkpoints; a restart takes
    # it where it is newer than the workdir's. For workdirs in buckets.
    local_checkpoints: str | None = None
    local_every: Positive = 100
    best_metric: str = "vqa/f1"  # of the evaluation's figures, the one that picks the best
    # examples/ in the workdir: which questions every step has read, and a hash of their images.
    log_examples: bool = False
    # Without progress for so long, the run leaves and names the process it waits for, with the exit
    # code that means 'resume me'; longer than the longest compilation. 0: it waits for ever.
    stall_seconds: NotNegativeFloat = 1800.0
    # Steps in a row whose loss or gradients are not finite that are left out, without an update and
    # counted; one more stops the run. 0: the first one does.
    skip_nonfinite: NotNegative = 0
    max_in_flight: Positive = 2  # steps dispatched ahead of the one whose metrics were read
    # First and last step of a trace in WORKDIR/profile; empty: none.
    profile_steps: tuple[int, ...] = ()
    # Operations per second of one device, for MFU; null: its maker's figure for bfloat16, and no
    # MFU where none is known, as of CPUs.
    peak_flops: PositiveFloat | None = None


@dataclass(frozen=True, config=STRICT)
class ExperimentConfig:
    """A whole configuration."""

    model: ModelConfig = ModelConfig()
    lora: AdapterConfig = AdapterConfig()
    # Regexes searched for in '/'-joined parameter paths; what none of them finds stays frozen.
    trainable: tuple[str, ...] = ("/lora/",)
    data: DataConfig = DataConfig()
    mixture: MixtureConfig = MixtureConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    rl: PolicyConfig = PolicyConfig()
    mesh: MeshConfig = MeshConfig()
    decoding: DecodingConfig = DecodingConfig()
    # Whose figures evaluations during training compute: a name of `score --benchmark`.
    benchmark: str = "vindr_cxr_vqa"
    # Said, on one line, when the data or the weights named above are absent.
    missing_data_help: str = ""

    def mistakes(self) -> Iterator[str]:
        """Messages about keys that do not go together (key_rules.toml, and what is computed)."""
        yield from broken_rules(self)
        steps = self.training.profile_steps
        if steps and not (len(steps) == 2 and 1 <= steps[0] <= steps[1]):
            yield f"training.profile_steps={steps}: expected first and last step, as (10, 15)"
        adapter = f"{BOX_ADAPTER}a"
        if self.lora.box_rank and not any(re.search(rule, adapter) for rule in self.trainable):
            yield f"trainable: no rule matches {adapter!r}, as lora.box_rank needs; add '/lora/'"
        resolve_box_route(self.training.box_route, self.data.codec)
        if self.batch_images % self.training.accumulation_steps:
            yield (
                f"training.accumulation_steps={self.training.accumulation_steps} does not divide "
                f"the batch of {self.batch_images} images"
            )

    @property
    def writes_digits(self) -> bool:
        """True if the model writes boxes in digits; rules of key_rules.toml read it."""
        return get_codec(self.data.codec).coordinate_order is None

    @property
    def batch_images(self) -> int:
        """Images in the batch of one optimiser step, all devices and micro-batches together.

        Raises:
            UserError: the batch is in questions that are no whole number of images.
        """
        if self.training.batch_images is not None:
            return self.training.batch_images
        assert self.training.batch_questions is not None  # `mistakes`
        images, rest = divmod(self.training.batch_questions, self.data.questions_per_image)
        if rest:
            raise UserError(
                f"training.batch_questions={self.training.batch_questions} is not a multiple of "
                f"data.questions_per_image={self.data.questions_per_image}"
            )
        return images

    def total_steps(self, images_per_epoch: int) -> int:
        """Optimiser steps of the run.

        Args:
            images_per_epoch: rows of the loader (an image with its questions) in one pass.
        """
        if self.training.steps is not None:
            return self.training.steps
        assert self.training.epochs is not None  # `mistakes`
        return max(1, round(self.training.epochs * images_per_epoch / self.batch_images))

    @property
    def box_route(self) -> BoxRoute:
        """The loss's way to boxes, 'auto' resolved."""
        return resolve_box_route(self.training.box_route, self.data.codec)

    @property
    def train_files(self) -> list[str]:
        """Files that a run trains on: data.train, or those of the mixture's sources."""
        files = [source.train for source in self.mixture.sources.values()] or [self.data.train]
        return [file for file in files if file]

    def of_source(self, name: str) -> "ExperimentConfig":
        """Returns the configuration with the `data` of one source of its mixture.

        Raises:
            UserError: no such source.
        """
        if name not in self.mixture.sources:
            known = ", ".join(self.mixture.sources) or "none"
            raise UserError(f"{name!r} is no source of the run's mixture: expected one of {known}")
        own = {k: v for k, v in vars(self.mixture.sources[name]).items() if v is not None}
        own.pop("weight", None)
        return dataclasses.replace(self, data=dataclasses.replace(self.data, **own))

    def to_json(self) -> dict[str, Any]:
        """Nested dicts with sorted keys, as `config.json` holds them."""
        return _sorted(dataclasses.asdict(self))


def _sorted(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _sorted(v) if isinstance(v, Mapping) else v for k, v in sorted(nested.items())}


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """`{"model.preset": value, ...}`: every key of a nested mapping, dotted."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        inner = flatten(value) if isinstance(value, Mapping) else None
        found |= {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items()}
    return found


def default_config() -> "ConfigDict":
    """The ConfigDict that configuration files start from, locked: unknown keys raise."""
    return _config_dict(ExperimentConfig()).lock()


def add_source(config: "ConfigDict", name: str, train: str, **keys: Any) -> None:
    """Puts records into the mixture that a run trains on.

    Args:
        name: for figures and messages, such as `vindr`.
        train: records file, or a TFDS data set with the split `train`.
        keys: others of `SourceConfig`.
    """
    source = _config_dict(SourceConfig()).lock()
    source.update({"train": train, **keys})
    with config.mixture.sources.unlocked():
        config.mixture.sources[name] = source


def _config_dict(group: Any) -> "ConfigDict":
    """A group's values; keys that may be empty have a type all the same."""
    from ml_collections import ConfigDict
    from ml_collections.config_dict import placeholder

    config = ConfigDict()
    for name, hint in get_type_hints(type(group)).items():
        value = getattr(group, name)
        if value is None:
            (kind,) = (each for each in get_args(hint) if each is not type(None))
            value = placeholder(get_origin(kind) or kind)
        elif isinstance(value, Mapping):
            value = ConfigDict()
        elif dataclasses.is_dataclass(value):
            value = _config_dict(value)
        config[name] = value
    return config
