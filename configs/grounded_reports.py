"""Grounded reports: LoRA on PadChest-GR or CXR-QBA's scene graphs; `:demo` with what ships.

    python -m cxrjax.build --dataset=grounded_reports --source=RELEASE --out=data/grounded
    python -m cxrjax.train --config=configs/grounded_reports.py --workdir=runs/grounded/train

The values are ours: no paper has trained this model on these data. `:demo` starts from
data/real_base, on simulated lesions in the radiographs that ship:

    python -m cxrjax.build --dataset=grafts --source=data/radiographs --variants=4 \\
        --held_out_variants=2 --contrast=1.5 --normal_percent=12 --image_format=jpg \\
        --long_side=256 --findings "Pleural effusion" "Lung Opacity" "Other lesion" \\
        "Pulmonary fibrosis" ILD Nodule/Mass --out=runs/grounded_demo/lesions
    python -m cxrjax.build --dataset=grounded_reports --source=runs/grounded_demo/lesions \\
        --out=runs/grounded_demo/data
    python -m cxrjax.train --config=configs/grounded_reports.py:demo \\
        --workdir=runs/grounded_demo/train

Two CPU cores: 5 minutes of building, some 9 of training (0.45 s of processor time a step), 1.4 GB.
Measured: grounded F1 (IoU > 0.5, right finding and side) 0.697 (0.661 to 0.730) on 422 images of
212 held-out patients; the best baseline (the references' frequent sentences with median boxes) has
0.116, the report of the nearest training image 0.092 (docs/recipes/grounded_reports.md).

`:longitudinal` continues from there with an earlier image and its report: 15 to 25 minutes, 1.6 GB.
It does not learn to compare: grounded F1 0.378, and 0.194 of the changes called by the right word,
where always "unchanged" has 0.262 (the same page, with what is known of why).
"""

from ml_collections import ConfigDict

from cxrjax.training.config import default_config

HELP = "Build the reports first: python -m cxrjax.build --dataset=grounded_reports."


def get_config(variant: str = "") -> ConfigDict:
    if variant not in ("", "demo", "longitudinal"):
        raise ValueError(f"variant {variant!r} is unknown: expected demo, longitudinal or none")
    config = default_config()
    config.missing_data_help = HELP
    config.benchmark = "grounded_reports"
    config.model.preset = "paligemma2_3b_448"
    config.model.init_from = "data/paligemma2_3b_448"
    config.model.share = "tower"
    config.model.dtype = "bfloat16"
    config.model.frozen_dtype = "bfloat16"
    config.model.remat = "full"
    config.lora.rank = 16
    config.lora.alpha = 32.0
    config.lora.targets = (r"decoder/layers/attn/(q|k|v|o)_proj",)

    config.data.train = "data/grounded/records/train.jsonl"
    config.data.feature_cache = "data/features"  # the tower is frozen
    config.data.validation = "data/grounded/records/validation.jsonl"
    config.data.prompt = "vqa"
    config.data.codec = config.data.record_codec = "paligemma"
    config.data.too_long = "set_aside"
    config.data.max_boxes = 16
    config.data.questions_per_image = 1
    config.data.prefix_buckets = (64, 256)
    config.data.answer_buckets = (128, 384)

    config.optimizer.learning_rate = 2e-5
    config.training.batch_images = 16
    config.training.epochs = 5.0
    config.training.best_metric = "grounded/f1@0.5"
    config.decoding.max_answer_tokens = 384
    config.decoding.grammar = "boxes"
    if variant:
        demo(config)
    if variant == "longitudinal":
        longitudinal(config)
    return config


def demo(config: ConfigDict) -> None:
    """Applies the changes of `:demo` (see the module's docstring)."""
    config.model.preset = "tiny_192"
    config.model.init_from = "data/real_base"
    config.model.share = "image"
    config.model.unroll = True
    config.model.remat = "none"
    config.model.dtype = config.model.frozen_dtype = "float32"
    # The shipped base has never written sentences: adapters alone do not learn them.
    config.lora.rank = 0
    config.trainable = (".*",)
    config.data.feature_cache = None
    config.data.train = "runs/grounded_demo/data/records/train.jsonl"
    config.data.validation = "runs/grounded_demo/data/records/validation.jsonl"
    config.data.max_boxes = 8
    config.data.prefix_buckets = (16,)
    config.data.answer_buckets = (112,)
    config.data.workers = 1
    config.data.augment.zoom = 0.3
    config.data.augment.stretch = 0.2
    config.data.augment.shift = 0.1
    config.data.augment.gamma = 0.5
    config.data.augment.noise = 0.02
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.weight_decay = 0.05
    config.training.batch_images = 8
    config.training.epochs = None
    config.training.steps = 1200
    config.training.checkpoint_every = 500
    config.training.lambda_box = 0.0
    config.training.coordinate_width = 2.0
    config.decoding.max_answer_tokens = 112
    config.decoding.boxes = "median"


def longitudinal(config: ConfigDict) -> None:
    """Applies the changes of `:longitudinal` to `:demo`: an earlier image and its report."""
    config.model.init_from = "runs/grounded_demo/train"
    config.data.earlier_images = True
    config.data.train = "runs/grounded_demo/follow_up/records/train.jsonl"
    config.data.validation = "runs/grounded_demo/follow_up/records/validation.jsonl"
    config.data.prefix_buckets = (128,)
    config.data.answer_buckets = (128,)
    config.decoding.max_answer_tokens = 128
    config.optimizer.learning_rate = 5e-4
    config.training.steps = 900
