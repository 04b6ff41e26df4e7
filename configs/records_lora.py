"""LoRA on your own images and records.

    python -m cxrjax.build --dataset=records --source=FOLDER --out=runs/own/data
    python -m cxrjax.train --config=configs/records_lora.py --workdir=runs/own/train
    python -m cxrjax.evaluate --workdir=runs/own/train --benchmark=own

The same from ArrayRecord shards, by random access, where many small files are slow to read:

    python -m cxrjax.build --dataset=tfds --source=runs/own/data --out=runs/own/tfds
    python -m cxrjax.train --config=configs/records_lora.py:tfds --workdir=runs/own/train

FOLDER holds images and a records.jsonl (data/README.md). The base is data/real_base, which has seen
real radiographs; for drawings, data/demo_base with model.preset "tiny". Copy this file and change
model.preset and model.init_from for a larger one. Two CPU cores, some minutes.
On 90 real radiographs with lung boxes: docs/log/boxes.md.
"""

from ml_collections import ConfigDict

from cxrjax.training.config import default_config

HELP = "Build your records first: python -m cxrjax.build --dataset=records (data/README.md)."


def get_config(variant: str = "") -> ConfigDict:
    if variant not in ("", "tfds"):
        raise ValueError(f"variant {variant!r} is unknown; expected none or tfds")
    config = default_config()
    config.missing_data_help = HELP
    config.benchmark = "own"  # the records' own classes, and no others
    config.model.preset = "tiny_192"
    config.model.init_from = "data/real_base"
    config.model.share = "image"
    config.model.unroll = True

    config.lora.rank = 16
    config.lora.alpha = 32.0
    config.lora.targets = (r"attn/(q|k|v|o|out)_proj", r"mlp/.*", "projector")
    # The shipped base has never read most words; with a larger base leave its embeddings alone.
    config.trainable = ("/lora/", "/embedder/table$")

    config.data.train = "runs/own/data/records/train.jsonl"
    config.data.validation = "runs/own/data/records/validation.jsonl"
    if variant == "tfds":
        config.data.train = config.data.validation = "runs/own/tfds/cxr_records/1.0.0"
    config.data.questions_per_image = 4
    config.data.prefix_buckets = (24,)
    config.data.answer_buckets = (48,)

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 20
    config.training.batch_images = 8
    config.training.steps = 400
    config.training.checkpoint_every = 200
    config.training.coordinate_width = 2.0  # as the base learned boxes
    config.training.best_metric = "detection/f1@0.3"
    config.decoding.max_answer_tokens = 48
    config.decoding.boxes = "median"
    return config
