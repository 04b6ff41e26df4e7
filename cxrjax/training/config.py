"""Every key of an experiment and what it may be, in one place.

A file in `configs/` returns the ConfigDict of `default_config()` with some of its keys changed, the
command line changes single ones (`--config.optimizer.learning_rate=1e-3`), and config_file.py turns
what results into the frozen dataclasses below, once. Past the entry points nothing else is passed
on, so that a misspelt attribute fails the type check. The groups `mesh`,
`decoding` and `data.augment` are with the code they are for: cxrjax/distributed/meshes.py,
cxrjax/decoding/strategy.py and cxrjax/input_pipeline/augment.py.

What is annotated with a tuple is one of its items; with "> 0", ">= 0" or "0 to 1", a number in that
range.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

from cxrjax.decoding.strategy import DecodingConfig
from cxrjax.distributed.meshes import MeshConfig
from cxrjax.errors import UserError
from cxrjax.input_pipeline.augment import AugmentConfig, NotNegativeFloat, Share
from cxrjax.input_pipeline.coordinates import BOX_ROUTES, BoxRoute, resolve_box_route
from cxrjax.models.layers import REMAT
from cxrjax.models.quantize import QUANTIZED_DTYPES
from cxrjax.models.splash import ATTENTION

if TYPE_CHECKING:
    from ml_collections import ConfigDict  # a step runs without ml_collections

# `model.preset` of a base whose sizes are no preset's: it carries them itself.
FROM_BASE = "from_base"

Positive = Annotated[int, "> 0"]
PositiveFloat = Annotated[float, "> 0"]
NotNegative = Annotated[int, ">= 0"]


@dataclasses.dataclass(frozen=True)
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
    # attention; 'full': the layer's input alone, the rest is computed again.
    remat: Annotated[str, REMAT] = "none"
    # 'dense'; 'splash': TPU kernels that keep no scores; 'cudnn': an NVIDIA GPU's, not in float32;
    # 'auto': splash on a TPU, cudnn on Hopper in 16 bits, else dense.
    attention: Annotated[str, ATTENTION] = "auto"
    unroll: bool = False  # write the loop over layers out: faster on CPUs, slower to compile
    # Of the activations and matrix products.
    dtype: Literal["float32", "bfloat16"] = "float32"
    # Storage of parameters that are not trained. int8 and nf4 quantise the kernels of linear maps;
    # norms, biases and embeddings are then in bfloat16.
    frozen_dtype: Annotated[str, ("float32", "bfloat16", *QUANTIZED_DTYPES)] = "float32"


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """The group `lora`."""

    rank: NotNegative = 0  # 0: no adapters
    alpha: NotNegativeFloat = 0.0  # the update is scaled by alpha / rank; with adapters above 0
    use_rslora: bool = False  # by alpha / sqrt(rank) instead
    use_dora: bool = False  # a trained magnitude for every output feature
    dropout: NotNegativeFloat = 0.0  # on the adapter's input, in training alone
    # Regexes over paths of linear maps.
    targets: tuple[str, ...] = ("decoder/layers/attn/(q|k|v|o)_proj",)
    # Other ranks for some targets, "regex=rank": ("vision/.*=8",).
    rank_pattern: tuple[str, ...] = ()
    alpha_pattern: tuple[str, ...] = ()  # the same for alpha; of several that fit, the first counts
    init_from: str | None = None  # PEFT adapter of this very shape to start from; null: anew
    loc_rows: bool = False  # a trainable difference on the embedding rows of the <loc> tokens
    # An output layer apart from the embedding, which it starts as; train them by a rule such as
    # "embedder/(table|head)$", as PEFT's modules_to_save does.
    untied: bool = False


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The group `data`."""

    train: str | None = None  # records file (JSON Lines) to train on
    validation: str | None = None  # records file that evaluations during training use
    # Evaluate on questions, images or patients that are trained on: figures then tell nothing of
    # what was learned.
    allow_overlap: bool = False
    image_root: str | None = None  # what image_path is relative to; null: see data/README.md
    codec: str = "paligemma"  # a name in cxrjax.codecs.CODECS: how the model writes boxes
    record_codec: str = "vindr_px"  # the same table: how the records' answers have them written
    # Train on questions about these findings alone; empty: on all questions.
    findings: tuple[str, ...] = ()
    # Of a folder of shards, the questions whose table says so: ("grade=A++|A+|A", "view=PA|AP").
    select: tuple[str, ...] = ()
    prompt: str = "vqa"  # a name in cxrjax.input_pipeline.prompts.PROMPTS
    # 'resize' (aspect ratio is lost) or 'letterbox'.
    geometry: Literal["resize", "letterbox"] = "resize"
    # JPEGs are decoded at 1/2, 1/4 or 1/8 of their size where that leaves 'twice' the input on each
    # side, or 'once', which is faster; pixels are then off by 0.8 of 256 levels in the mean.
    jpeg_decoding: Literal["twice", "once"] = "twice"
    questions_per_image: Positive = 1  # question slots of an image in one sequence
    # Question lengths that batches are padded up to, in tokens.
    prefix_buckets: tuple[int, ...] = (64,)
    answer_buckets: tuple[int, ...] = (64,)  # answer lengths, the same
    # With share='image', compute on so many text tokens an image instead of on padded slots: the
    # smallest that holds a batch's longest image is taken, else the padded slots. Empty: never.
    packed_buckets: tuple[int, ...] = ()
    # Show two images where a question compares with an earlier one: each sequence then has room for
    # two. False: such questions are left out and counted.
    earlier_images: bool = False
    max_boxes: Positive = 8  # boxes of one answer that the box loss can hold
    # A question that fits no bucket: 'error', or 'set_aside' and counted.
    too_long: Literal["error", "set_aside"] = "error"
    # Directory for what a frozen vision tower makes of each image, computed once before training
    # and then read in the place of pixels; null: the tower runs at every step.
    feature_cache: str | None = None
    # Directory for images as the model takes them, decoded and resized once for all epochs and
    # runs (0.2 MB a grey image of 448 pixels, 0.8 MB of 896); null: their files at every visit.
    image_cache: str | None = None
    workers: NotNegative = 0  # processes that decode images; 0: the training process itself
    # Share of training questions that are put in other words, others at every visit: case, names,
    # forms, marks, typing errors (cxrjax/input_pipeline/wording.toml). Answers stay.
    vary_wording: Share = 0.0
    # Share of training questions about one finding that ask about an unknown thing instead, and are
    # answered 'Unknown.'
    unknown_share: Share = 0.0
    # Changes of training images, others at every visit.
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """A group `mixture.sources.NAME`: null means what `data` says."""

    train: str | None = None  # records file; each source has its own
    weight: float | None = None  # share relative to the others'; null in all: by size
    image_root: str | None = None
    prompt: str | None = None
    codec: str | None = None
    record_codec: str | None = None
    findings: tuple[str, ...] | None = None
    questions_per_image: Positive | None = None


@dataclasses.dataclass(frozen=True)
class MixtureConfig:
    """The group `mixture`: several files in one run, in the place of data.train."""

    sources: Mapping[str, SourceConfig] = dataclasses.field(default_factory=dict)  # `add_source`
    # Of sources without weights: shares in proportion to images^(1/temperature). With them: 1.
    temperature: PositiveFloat = 1.0


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The group `optimizer`."""

    name: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 1e-4  # after the warm-up
    warmup_steps: NotNegative = 0  # linear
    # The same as a share of all steps, rounded up; one of the two.
    warmup_ratio: NotNegativeFloat = 0.0
    # Learning rate of its first step; 0: learning_rate / warmup_steps.
    warmup_from: NotNegativeFloat = 0.0
    # 'cosine' (down to end_value at the last step) or 'constant'.
    schedule: Literal["cosine", "constant"] = "cosine"
    end_value: NotNegativeFloat = 0.0
    # Decoupled; biases, norms and position embeddings are spared.
    weight_decay: NotNegativeFloat = 0.01
    clip_norm: NotNegativeFloat = 1.0  # global norm of the gradients; 0: no clipping
    b1: float = 0.9
    b2: float = 0.999


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The group `training`."""

    # The batch of one optimiser step, all devices and micro-batches together: one of the two.
    batch_images: Positive | None = None
    batch_questions: Positive | None = None  # question slots: images x questions_per_image
    accumulation_steps: Positive = 1  # micro-batches that a batch is cut into
    steps: Positive | None = None  # one of the two: optimiser steps, or
    epochs: PositiveFloat | None = None  # passes over the training records
    seed: NotNegative = 0  # initialisation, data order and dropout
    lambda_box: NotNegativeFloat = 0.5  # weight of the box loss
    # How it reaches boxes: 'loc', 'digits' or 'none' (input_pipeline/coordinates.py); 'auto': by
    # the codec, <loc> tokens or digits.
    box_route: Annotated[str, BOX_ROUTES] = "auto"
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


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """The group `rl`: reinforcement learning and preference tuning, from the start's parameters."""

    # How an answer's worth becomes its advantage, or a preference over another
    # (cxrjax/training/rewards.py); 'none': supervised.
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
    # Parts of the reward, and how boxes are rewarded (cxrjax/training/rewards.py).
    reward_boxes: Literal["mean_iou", "f1"] = "mean_iou"
    weight_boxes: NotNegativeFloat = 1.0
    weight_answer: NotNegativeFloat = 0.5
    weight_format: NotNegativeFloat = 0.1
    # Of questions whose reference has no box, beside the others. F1 is no mean over questions: it
    # is largest for who says yes from a probability of half of it on, so below 1 where it counts.
    weight_absent: NotNegativeFloat = 1.0


@dataclasses.dataclass(frozen=True)
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
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)
    # Whose figures evaluations during training compute: a name of `score --benchmark`.
    benchmark: str = "vindr_cxr_vqa"
    # Said, on one line, when the data or the weights named above are absent.
    missing_data_help: str = ""

    @property
    def batch_images(self) -> int:
        """Images in the batch of one optimiser step, all devices and micro-batches together.

        Raises:
            UserError: the batch is not given, or in questions that are no whole number of images.
        """
        if self.training.batch_images is not None:
            return self.training.batch_images
        if self.training.batch_questions is None:
            raise UserError("set either training.batch_images or training.batch_questions")
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

        Raises:
            UserError: the run has no length.
        """
        if self.training.steps is not None:
            return self.training.steps
        if self.training.epochs is None:
            raise UserError("set either training.steps or training.epochs")
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


class Key(NamedTuple):
    """A key of a group.

    Attributes:
        kind: its type; a dataclass is a group, dict holds groups by name.
        items: the type of a tuple's items, or of the groups by name; else `kind`.
        may_be_empty: may be None.
        rule: its values, or "> 0", ">= 0" or "0 to 1"; None: any.
    """

    kind: type
    items: type
    may_be_empty: bool
    default: Any
    rule: Any


@functools.cache
def keys_of(group: type) -> dict[str, Key]:
    """The keys of a group's dataclass by name."""
    found = {}
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        hint, rule = hints[field.name], None
        may_be_empty = type(None) in get_args(hint)
        if may_be_empty:
            (hint,) = (each for each in get_args(hint) if each is not type(None))
        if get_origin(hint) is Annotated:
            hint, rule = get_args(hint)
        elif get_origin(hint) is Literal:
            hint, rule = str, get_args(hint)
        kind, items = get_origin(hint) or hint, get_args(hint)
        if kind is Mapping:
            kind, items = dict, items[1:]
        found[field.name] = Key(kind, (*items, kind)[0], may_be_empty, field.default, rule)
    return found


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
    return _config_dict(ExperimentConfig).lock()


def add_source(config: "ConfigDict", name: str, train: str, **keys: Any) -> None:
    """Puts records into the mixture that a run trains on.

    Args:
        name: for figures and messages, such as `vindr`.
        train: records file, or a TFDS data set with the split `train`.
        keys: others of `SourceConfig`.
    """
    source = _config_dict(SourceConfig).lock()
    source.update({"train": train, **keys})
    with config.mixture.sources.unlocked():
        config.mixture.sources[name] = source


def _config_dict(group: type) -> "ConfigDict":
    """A group's defaults; keys that may be empty keep their type."""
    from ml_collections import ConfigDict
    from ml_collections.config_dict import placeholder

    config = ConfigDict()
    for name, key in keys_of(group).items():
        if key.kind is dict:
            config[name] = ConfigDict()
        elif dataclasses.is_dataclass(key.kind):
            config[name] = _config_dict(key.kind)
        else:
            config[name] = placeholder(key.kind) if key.may_be_empty else key.default
    return config
