"""Every key of an experiment and what it may be, in one place.

A file in `configs/` returns the ConfigDict of `default_config()` with some of its keys changed, the
command line changes single ones (`--config.optimizer.learning_rate=1e-3`), and config_file.py turns
what results into the frozen dataclasses below, once; pydantic checks types, names and ranges, and
key_rules.toml has what keys must have in common. Past the entry points nothing else is passed
on, so that a misspelt attribute fails the type check. Groups that are with the code they are for:
`data` and `mixture` (cxrjax/input_pipeline/data_config.py), `data.augment` (augment.py beside it),
`mesh` (cxrjax/distributed/meshes.py), `decoding` (cxrjax/decoding/strategy.py) and `optimizer`
(cxrjax/training/optimizer.py).
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import Field
from pydantic.dataclasses import dataclass

from cxrjax.codecs import get_codec
from cxrjax.decoding.strategy import DecodingConfig
from cxrjax.distributed.meshes import MeshConfig
from cxrjax.errors import UserError
from cxrjax.files import read_packaged
from cxrjax.input_pipeline.coordinates import BOX_ROUTES, BoxRoute, resolve_box_route
from cxrjax.input_pipeline.data_config import DataConfig, MixtureConfig, SourceConfig
from cxrjax.models.layers import REMAT
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
from cxrjax.training.optimizer import BOX_ADAPTER, OptimizerConfig

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
class AdapterConfig:
    """The group `lora`."""

    rank: NotNegative = 0  # 0: no adapters
    alpha: NotNegativeFloat = 0.0  # the update is scaled by alpha / rank; with adapters above 0
    use_rslora: bool = False  # by alpha / sqrt(rank) instead
    use_dora: bool = False  # a trained magnitude for every output feature
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # on the adapter's input, in training alone
    # Regexes over paths of linear maps.
    targets: tuple[str, ...] = ("decoder/layers/attn/(q|k|v|o)_proj",)
    # Other ranks for some targets, "regex=rank": ("vision/.*=8",).
    rank_pattern: tuple[str, ...] = ()
    alpha_pattern: tuple[str, ...] = ()  # the same for alpha; of several that fit, the first counts
    init_from: str | None = None  # PEFT adapter of this very shape to start from; null: anew
    loc_rows: bool = False  # a trainable difference on the embedding rows of the <loc> tokens
    # Rank of a second adapter, on the <loc> tokens' logits among themselves, that the box loss
    # trains and nothing else, and that the box loss trains alone; 0: none, it trains all.
    box_rank: NotNegative = 0
    # An output layer apart from the embedding, which it starts as; train them by a rule such as
    # "embedder/(table|head)$", as PEFT's modules_to_save does.
    untied: bool = False

    @property
    def adapts(self) -> bool:
        """True if a model has adapters of any kind."""
        return self.rank > 0 or self.loc_rows or self.box_rank > 0


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
class PolicyConfig:
    """The group `rl`: reinforcement learning and preference tuning, from the start's parameters."""

    # How an answer's worth becomes its advantage, or a preference over another
    # (cxrjax/training/rl/rewards.py); 'none': supervised.
    kind: Literal["none", "grpo", "grpo_no_std", "rloo", "best_of_n", "dpo", "ipo", "hinge"] = (
        "none"
    )
    # Of preferences: pairs of answers (JSON Lines, data/README.md); null: the best and the worst of
    # those that are drawn.
    pairs: str | None = None
    beta: PositiveFloat = 0.1  # of preferences: how much a margin counts
    group_size: Positive = 8  # answers drawn to each question
    temperature: PositiveFloat = 1.0  # they are drawn at, from the model itself: without a grammar
    # Optimiser steps on each set of drawn answers; all but the first are off-policy.
    updates: Positive = 1
    epsilon_low: Share = 0.2  # bounds of the ratio of probabilities: 1 - this
    epsilon_high: NotNegativeFloat = 0.28  # and 1 + this
    kl_weight: NotNegativeFloat = 0.02  # of the divergence from the start
    # 'token': every token counts alike; 'answer': every answer does, whatever its length.
    loss_mean: Literal["answer", "token"] = "token"
    # A Python function MODULE:FUNCTION in place of the mean of the parts below
    # (docs/reinforcement_learning.md); null: that mean.
    reward: str | None = None
    # Parts of the reward, and how boxes are rewarded (cxrjax/training/rl/rewards.py).
    reward_boxes: Literal["mean_iou", "f1"] = "mean_iou"
    weight_boxes: NotNegativeFloat = 1.0
    weight_answer: NotNegativeFloat = 0.5
    weight_format: NotNegativeFloat = 0.1
    # Of questions whose reference has no box, beside the others. F1 is no mean over questions: it
    # is largest for who says yes from a probability of half of it on, so below 1 where it counts.
    weight_absent: NotNegativeFloat = 1.0


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
        for rule in read_packaged("cxrjax.training", "key_rules.toml")["rule"]:
            if all(_is(attrgetter(key)(self), wanted) for key, wanted in rule["when"].items()):
                yield rule["message"].format(**vars(self))
        steps = self.training.profile_steps
        if steps and not (len(steps) == 2 and 1 <= steps[0] <= steps[1]):
            yield (
                f"training.profile_steps={steps}: expected the first and the last step, as (10, 15)"
            )
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
        """True if the model writes boxes in digits, and not in location tokens."""
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


def _is(value: Any, wanted: bool | str | list[str]) -> bool:
    """Returns whether a key is as a rule says (key_rules.toml has the form)."""
    if isinstance(wanted, bool):
        return bool(value) is wanted
    if isinstance(wanted, list):
        return any(_is(value, each) for each in wanted)
    return fnmatchcase(str(value), wanted.removeprefix("!")) is not wanted.startswith("!")


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
