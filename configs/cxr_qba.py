"""Grounded answers in full sentences: LoRA on CXR-QBA; `:tiny` with what ships.

    python -m cxrjax.train --config=configs/cxr_qba.py --workdir=runs/cxr_qba/train
    python -m cxrjax.train --config=configs/cxr_qba.py:tiny --workdir=runs/cxr_qba_tiny/train

CXR-QBA publishes questions and no training recipe for them; the values here are ours. Each part
of an answer is followed by its boxes on the image (prompt format `grounded`), in location tokens.

The large run: PaliGemma 2 3B at 448 pixels on the questions of fine-tuning grade (7.5 M, A and
better). Presets that fit the same recipe: `paligemma_3b_448`, `paligemma2_10b_448`; for
`medgemma_4b` choose the prompt `grounded_chat` and the codec `medgemma_json` or `vindr_px`. Build
from the release (data/cxr_qba/README.md), with data.image_root where MIMIC-CXR-JPG's files/ lies:

    python -m cxrjax.build --dataset=cxr_qba --source=RELEASE --least_grade=A --lean \\
        --out=data/qba_built
    python -m cxrjax.convert --checkpoint=PATH/TO/paligemma2-3b-pt-448 --out=data/paligemma2_3b_448

Not run here: neither the release nor the weights can be had. `plan` says what fits where.

`:tiny` is the shipped base on phantom studies in float32, decoder and projector trained whole:

    python -m cxrjax.build --dataset=phantom_studies --studies=200 --out=runs/cxr_qba_tiny/studies
    python -m cxrjax.build --dataset=cxr_qba --source=runs/cxr_qba_tiny/studies \\
        --rate_with=surrogate --least_grade=A --out=runs/cxr_qba_tiny/data

150 steps of 32 questions: 98 s of processor time, 5.5 minutes beside other work on two CPU cores,
1.9 GB. Token accuracy while learning went from 0.16 to 0.47, the IoU of expected boxes from 0.26 to
0.53. Of 120 validation questions every answer parsed; they are sentences with boxes, most of them
not yet the right ones (mean IoU of a reference box with the best predicted one: 0.20). LoRA of rank
16 instead had a token accuracy of 0.34 by then, and wrote no sentences. So this shows that the way
is whole, and no more. Figures of phantoms.
"""

from ml_collections import ConfigDict

from cxrjax.training.config import default_config

HELP = (
    "Build the questions first: python -m cxrjax.build --dataset=cxr_qba (data/cxr_qba/README.md)."
)


def get_config(variant: str = "") -> ConfigDict:
    config = large()
    if variant == "tiny":
        tiny(config)
    elif variant:
        raise ValueError(f"variant {variant!r} is unknown: expected tiny or none")
    config.missing_data_help = HELP
    return config


def large() -> ConfigDict:
    """PaliGemma 2 3B."""
    config = default_config()
    config.model.preset = "paligemma2_3b_448"
    config.model.init_from = "data/paligemma2_3b_448"
    config.model.share = "tower"
    config.model.dtype = "bfloat16"
    config.model.frozen_dtype = "bfloat16"
    config.model.remat = "full"

    config.lora.rank = 16
    config.lora.alpha = 32.0
    config.lora.targets = (r"decoder/layers/attn/(q|k|v|o)_proj",)

    config.data.train = "data/qba_built/records/train.jsonl"
    config.data.feature_cache = "data/features"  # the tower is frozen
    # An evaluation answers every question of its file, and the release's split has 246,233: to
    # evaluate while training, give a sample of its lines as data.validation.
    config.data.validation = None
    config.benchmark = "cxr_qba"
    config.data.prompt = "grounded"
    config.data.codec = "paligemma"
    # Complete descriptions have more parts than any other answer; what doesn't fit is counted.
    config.data.too_long = "set_aside"
    config.data.max_boxes = 16
    config.data.questions_per_image = 8
    config.data.prefix_buckets = (32, 64)
    config.data.answer_buckets = (64, 256)

    config.optimizer.learning_rate = 2e-5
    config.training.batch_images = 8
    config.training.epochs = 1.0
    config.training.best_metric = "findings/f1"
    config.decoding.max_answer_tokens = 256
    config.decoding.grammar = "boxes"
    return config


def tiny(config: ConfigDict) -> None:
    """Applies the changes of `:tiny` (see the module's docstring)."""
    config.model.preset = "tiny"
    config.model.init_from = "data/demo_base"
    config.model.share = "image"
    config.model.unroll = True
    config.model.remat = "none"
    config.model.dtype = config.model.frozen_dtype = "float32"
    # The shipped base has never read most words: adapters alone do not learn sentences.
    config.lora.rank = 0
    config.trainable = ("^projector", "^decoder/")
    config.data.feature_cache = None
    config.data.train = "runs/cxr_qba_tiny/data/records/train.jsonl"
    config.data.image_root = "runs/cxr_qba_tiny/studies"
    config.data.prefix_buckets = (96,)
    config.data.answer_buckets = (96,)
    config.data.packed_buckets = (256, 384, 640)
    config.data.questions_per_image = 4
    config.data.max_boxes = 8
    config.data.workers = 1
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 10
    config.training.epochs = None
    config.training.steps = 150
    config.training.checkpoint_every = 150
    config.decoding.max_answer_tokens = 96
