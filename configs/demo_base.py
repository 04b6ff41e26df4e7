"""The demo's base: a tiny PaliGemma trained from nothing to find 11 of the 14 findings.

    python -m cxrjax.build --dataset=phantom --seed=1000 --images=24000 --validation_images=300 \
        --long_side=144 --conspicuity=1.6 --image_format=jpg --out=runs/demo_base/data
    python -m cxrjax.train --config=configs/demo_base.py --workdir=runs/demo_base/train
    python -m cxrjax.convert --checkpoint=runs/demo_base/train --out=runs/demo_base/first
    python -m cxrjax.train --config=configs/demo_base.py:second --workdir=runs/demo_base/second
    python -m cxrjax.convert --checkpoint=runs/demo_base/second --out=data/demo_base

Hardware: two CPU cores, 2.2 GB, 65 and 18 minutes beside other work. The result ships in
data/demo_base, so nobody needs to run this. It is in two parts because the first, with eight
findings and one wording, could not carry what it knew over to questions in other words; `:second`
goes on from it with three findings and six wordings more.

What it stands for: a published checkpoint that can localise, on other data and asked in another
way. It saw phantoms of another seed than the demo's, prompts of PaliGemma's own kind ("detect
Nodule/Mass", answered by its name and boxes, or by "none") and others that are not the
benchmark's, and questions about `FINDINGS` and `MORE_FINDINGS` alone; Atelectasis, Cardiomegaly and
Pneumothorax are in its images but nobody asked about them. What it reaches is in docs/log.md.
"""

from ml_collections import ConfigDict

from cxrjax.training.config import default_config

FINDINGS = (
    "Calcification",
    "Infiltration",
    "Lung Opacity",
    "Nodule/Mass",
    "Other lesion",
    "Pleural effusion",
    "Pleural thickening",
    "Pulmonary fibrosis",
)
MORE_FINDINGS = ("Aortic enlargement", "Consolidation", "ILD")


def get_config(variant: str = "") -> ConfigDict:
    if variant not in ("", "second"):
        raise ValueError(f"variant {variant!r} is unknown: expected second or none")
    config = default_config()
    config.model.preset = "tiny"
    config.model.init = "random"
    config.model.tokenizer = "data/demo_base/tokenizer.model"
    config.model.share = "image"
    config.model.unroll = True
    config.trainable = (".*",)

    config.data.train = "runs/demo_base/data/records/train.jsonl"
    config.data.findings = FINDINGS
    config.data.prompt = "detect"
    config.data.questions_per_image = 8
    config.data.prefix_buckets = (8,)
    config.data.answer_buckets = (48,)
    config.data.packed_buckets = (112, 144)
    config.data.workers = 1

    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 400
    config.optimizer.weight_decay = 0.05
    config.training.batch_images = 8
    config.training.steps = 13000
    config.training.logit_chunk = 512
    config.training.checkpoint_every = 1000
    config.decoding.max_answer_tokens = 48
    if variant == "second":
        config.model.init = "checkpoint"
        config.model.init_from = "runs/demo_base/first"
        config.data.findings = FINDINGS + MORE_FINDINGS
        config.data.prompt = "grounding"
        config.data.questions_per_image = 11
        config.data.prefix_buckets = (16,)
        config.data.answer_buckets = (48,)
        config.data.packed_buckets = (128, 176)
        config.training.seed = 1
        config.training.steps = 4500
    return config
