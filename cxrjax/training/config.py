"""Every key of an experiment and what it may be, in one place.

`configs/*.py` start from `default_config()` and change what they mean to change; the command line
changes single keys (`--config.optimizer.learning_rate=1e-3`). A key that is not listed here is an
error wherever it comes from (config_check.py), be it a file or an override (config_file.py).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cxrjax.decoding.answer_forms import ANSWER_FORMS
from cxrjax.errors import UserError
from cxrjax.input_pipeline.coordinates import BOX_ROUTES
from cxrjax.models.layers import REMAT
from cxrjax.models.quantize import QUANTIZED_DTYPES
from cxrjax.models.splash import ATTENTION

# `model.preset` of a base whose sizes are no preset's: it carries them itself.
FROM_BASE = "from_base"


def default_config() -> ConfigDict:
    """The configuration every experiment starts from, locked: unknown keys raise."""
    config = ConfigDict()

    model = config.model = ConfigDict()
    # The sizes of everything: a name in cxrjax.models.PRESETS, or 'from_base': the base's own.
    model.preset = "tiny"
    model.init = "checkpoint"  # 'checkpoint': from `init_from`; 'random': from training.seed
    model.init_from = placeholder(str)  # directory of the base model (null with init='random')
    # With init='random': a base or run whose vision tower is taken, as PaliGemma took SigLIP's.
    model.tower_from = placeholder(str)
    model.tokenizer = placeholder(str)  # SentencePiece file; null: the one beside the base model
    model.share = "tower"  # what an image's questions share: the 'tower', or its 'image' tokens too
    # What of every layer is kept for the backward pass: 'none': all (no recomputation);
    # 'products': what leaves matrix products and attention; 'attention': what leaves the
    # attention; 'full': the layer's input alone, the rest is computed again.
    model.remat = "none"
    # 'dense'; 'splash': TPU kernels that keep no scores; 'auto': splash on a TPU, else dense.
    model.attention = "auto"
    model.unroll = False  # write the loop over layers out: faster on CPUs, slower to compile
    model.box_head = False  # an auxiliary head that regresses boxes, for box_route='head'
    model.dtype = "float32"  # of the activations and matrix products
    # Storage of parameters that are not trained. int8 and nf4 quantise the kernels of linear maps;
    # norms, biases and embeddings are then in bfloat16.
    model.frozen_dtype = "float32"

    lora = config.lora = ConfigDict()
    lora.rank = 0  # 0: no adapters
    lora.alpha = 0.0  # the update is scaled by alpha / rank; with adapters above 0
    lora.use_rslora = False  # by alpha / sqrt(rank) instead
    lora.use_dora = False  # a trained magnitude for every output feature
    lora.dropout = 0.0  # on the adapter's input, in training alone
    lora.targets = ("decoder/layers/attn/(q|k|v|o)_proj",)  # regexes over paths of linear maps
    lora.rank_pattern = ()  # other ranks for some targets, "regex=rank": ("vision/.*=8",)
    lora.alpha_pattern = ()  # the same for alpha; of several that fit, the first counts
    lora.init_from = placeholder(str)  # PEFT adapter of this very shape to start from; null: anew
    lora.loc_rows = False  # a trainable difference on the embedding rows of the <loc> tokens

    # Regexes searched for in '/'-joined parameter paths; what none of them finds stays frozen.
    config.trainable = ("/lora/",)

    data = config.data = ConfigDict()
    data.train = placeholder(str)  # records file (JSON Lines) to train on
    data.validation = placeholder(str)  # records file that evaluations during training use
    data.image_root = placeholder(str)  # what image_path is relative to; null: see data/README.md
    data.codec = "paligemma"  # a name in cxrjax.codecs.CODECS: how the model writes boxes
    data.record_codec = "vindr_px"  # the same table: how the records' answers have them written
    data.findings = ()  # train on questions about these findings alone; empty: on all questions
    # Of a folder of shards, the questions whose table says so: ("grade=A++|A+|A", "view=PA|AP").
    data.select = ()
    data.prompt = "vqa"  # a name in cxrjax.input_pipeline.prompts.PROMPTS
    data.geometry = "resize"  # 'resize' (aspect ratio is lost) or 'letterbox'
    data.questions_per_image = 1  # question slots of an image in one sequence
    data.prefix_buckets = (64,)  # question lengths that batches are padded up to, in tokens
    data.answer_buckets = (64,)  # answer lengths, the same
    # With share='image', compute on so many text tokens an image instead of on padded slots: the
    # smallest that holds a batch's longest image is taken, else the padded slots. Empty: never.
    data.packed_buckets = ()
    data.max_boxes = 8  # boxes of one answer that the box loss can hold
    data.too_long = "error"  # a question that fits no bucket: 'error', or 'set_aside' and counted
    # Directory for what a frozen vision tower makes of each image, computed once before training
    # and then read in the place of pixels; null: the tower runs at every step.
    data.feature_cache = placeholder(str)
    # Directory for images as the model takes them, decoded and resized once for all epochs and
    # runs (0.2 MB a grey image of 448 pixels, 0.8 MB of 896); null: their files at every visit.
    data.image_cache = placeholder(str)
    data.workers = 0  # processes that decode images; 0: the training process itself

    # Several files in one run, in the place of data.train: `add_source` puts each here.
    mixture = config.mixture = ConfigDict()
    mixture.sources = ConfigDict()
    # Of sources without weights: shares in proportion to images^(1/temperature). With them: 1.
    mixture.temperature = 1.0

    optimizer = config.optimizer = ConfigDict()
    optimizer.name = "adamw"
    optimizer.learning_rate = 1e-4  # after the warm-up
    optimizer.warmup_steps = 0  # linear
    optimizer.warmup_ratio = 0.0  # the same as a share of all steps, rounded up; one of the two
    optimizer.warmup_from = 0.0  # learning rate of its first step; 0: learning_rate / warmup_steps
    optimizer.schedule = "cosine"  # 'cosine' (down to end_value at the last step) or 'constant'
    optimizer.end_value = 0.0
    optimizer.weight_decay = 0.01  # decoupled; biases, norms and position embeddings are spared
    optimizer.clip_norm = 1.0  # global norm of the gradients; 0: no clipping
    optimizer.b1 = 0.9
    optimizer.b2 = 0.999

    training = config.training = ConfigDict()
    # The batch of one optimiser step, all devices and micro-batches together: one of the two.
    training.batch_images = placeholder(int)
    training.batch_questions = placeholder(int)  # question slots: images x questions_per_image
    training.accumulation_steps = 1  # micro-batches that a batch is cut into
    training.steps = placeholder(int)  # one of the two: optimiser steps, or
    training.epochs = placeholder(float)  # passes over the training records
    training.seed = 0  # initialisation, data order and dropout
    training.lambda_box = 0.5  # weight of the box loss
    # How it reaches boxes: 'loc', 'digits', 'head' or 'none' (input_pipeline/coordinates.py);
    # 'auto': by the codec, <loc> tokens or digits.
    training.box_route = "auto"
    training.logit_chunk = 512  # answer tokens whose logits exist at a time, on each device
    training.log_every = 50  # steps
    training.eval_every = 0  # steps; 0: after the last one alone
    training.checkpoint_every = 500  # steps; every evaluation and the last step are saved as well
    # Checkpoints kept besides the best one; a resume takes the one before if the last is damaged.
    training.keep_last = 2
    training.best_metric = "vqa/f1"  # of the evaluation's figures, the one that picks the best
    # examples/ in the workdir: which questions every step has read, and a hash of their images.
    training.log_examples = False
    # Without progress for so long, the run leaves and names the process it waits for, with the exit
    # code that means 'resume me'; longer than the longest compilation. 0: it waits for ever.
    training.stall_seconds = 1800.0
    # Steps in a row whose loss or gradients are not finite that are left out, without an update and
    # counted; one more stops the run. 0: the first one does.
    training.skip_nonfinite = 0
    training.max_in_flight = 2  # steps dispatched ahead of the one whose metrics were read
    training.profile_steps = ()  # first and last step of a trace in WORKDIR/profile; empty: none
    # Operations per second of one device, for MFU; null: its maker's figure for bfloat16, and no
    # MFU where none is known, as of CPUs.
    training.peak_flops = placeholder(float)

    mesh = config.mesh = ConfigDict()
    # Devices along each axis; what the axes mean is told in cxrjax/distributed/meshes.py.
    mesh.replica = 1  # slices of a pod: a multiple of their number
    mesh.data = -1  # -1: all devices that the others leave
    mesh.fsdp = 1
    mesh.tensor = 1
    # 'jit': XLA spreads the step over the mesh. 'pmap': every device runs the step on its part of
    # the batch, with all parameters; the data axis alone.
    mesh.strategy = "jit"

    decoding = config.decoding = ConfigDict()
    decoding.max_answer_tokens = 64
    decoding.grammar = "boxes"  # what answers may be, see cxrjax/decoding/answer_forms.py
    decoding.names = ()  # of the findings, for the grammars that list them
    decoding.stop_tokens = ()  # that end an answer besides the tokenizer's own (<eos>)
    # How tokens are chosen; the meaning of each key is told in cxrjax/decoding/strategy.py.
    decoding.beams = 1
    decoding.length_penalty = 1.0
    decoding.early_stopping = False
    decoding.temperature = 0.0  # 0: the likeliest token; above: drawn
    decoding.top_k = 0
    decoding.top_p = 1.0
    decoding.best_of = 1
    decoding.length_normalised = False
    decoding.seed = 0

    # Whose figures evaluations during training compute: a name in `BENCHMARKS`.
    config.benchmark = "vindr_cxr_vqa"
    # Said, on one line, when the data or the weights named above are absent.
    config.missing_data_help = ""
    return config.lock()


CHOICES: dict[str, tuple[str, ...]] = {
    "model.init": ("checkpoint", "random"),
    "model.share": ("image", "tower"),
    "model.dtype": ("float32", "bfloat16"),
    "model.remat": REMAT,
    "model.attention": ATTENTION,
    "model.frozen_dtype": ("float32", "bfloat16", *QUANTIZED_DTYPES),
    "data.geometry": ("resize", "letterbox"),
    "data.too_long": ("error", "set_aside"),
    "mesh.strategy": ("jit", "pmap"),
    "optimizer.name": ("adamw",),
    "optimizer.schedule": ("cosine", "constant"),
    "training.box_route": BOX_ROUTES,
    "decoding.grammar": ANSWER_FORMS,
}
# What tuples hold that are empty by default.
EMPTY_TUPLES: dict[str, type] = {
    "lora.rank_pattern": str,
    "lora.alpha_pattern": str,
    "data.findings": str,
    "data.select": str,
    "data.packed_buckets": int,
    "decoding.names": str,
    "decoding.stop_tokens": str,
    "training.profile_steps": int,
}
POSITIVE = (
    "data.questions_per_image",
    "data.max_boxes",
    "mixture.temperature",
    "optimizer.learning_rate",
    "training.batch_images",
    "training.batch_questions",
    "training.accumulation_steps",
    "training.steps",
    "training.epochs",
    "training.logit_chunk",
    "training.log_every",
    "training.keep_last",
    "training.max_in_flight",
    "mesh.replica",
    "training.peak_flops",
    "mesh.fsdp",
    "mesh.tensor",
    "decoding.max_answer_tokens",
)
NOT_NEGATIVE = (
    "lora.rank",
    "lora.alpha",
    "lora.dropout",
    "data.workers",
    "optimizer.warmup_steps",
    "optimizer.warmup_ratio",
    "optimizer.warmup_from",
    "optimizer.end_value",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "training.seed",
    "training.lambda_box",
    "training.eval_every",
    "training.checkpoint_every",
    "training.stall_seconds",
    "training.skip_nonfinite",
)


def flatten(config: Mapping[str, Any] | ConfigDict) -> dict[str, Any]:
    """`{"model.preset": value, ...}`: every key of a nested configuration, dotted."""

    def walk(node: Any, path: str) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            if isinstance(value, Mapping | ConfigDict):
                yield from walk(value, f"{path}{key}.")
            else:
                yield f"{path}{key}", value

    return dict(walk(config, ""))


def batch_images(config: ConfigDict) -> int:
    """Images in the batch of one optimiser step, all devices and micro-batches together."""
    if config.training.batch_images is not None:
        return config.training.batch_images
    images, rest = divmod(config.training.batch_questions, config.data.questions_per_image)
    if rest:
        raise UserError(
            f"training.batch_questions={config.training.batch_questions} is not a multiple of "
            f"data.questions_per_image={config.data.questions_per_image}"
        )
    return images


def total_steps(config: ConfigDict, images_per_epoch: int) -> int:
    """Optimiser steps of the run.

    Args:
        images_per_epoch: rows of the loader (an image with its questions) in one pass.
    """
    if config.training.steps is not None:
        return config.training.steps
    return max(1, round(config.training.epochs * images_per_epoch / batch_images(config)))
