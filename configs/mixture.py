"""VinDr-CXR-VQA, GEMeX, CXR-QBA and ViX-Ray in one run: LoRA, each asked in its own way.

    python -m cxrjax.train --config=configs/mixture.py --workdir=runs/mixture/train
    python -m cxrjax.train --config=configs/mixture.py:tiny --workdir=runs/mixture_tiny/train

Nobody published such a run: the values are ours, MedGemma 4B the base, and nobody has run the large
configuration (its data and weights are behind agreements). Build each data set as its own card says
(data/*/README.md) to where `large` names it, and the base as configs/vindr_lora.py does.

A row of a batch is an image with its questions, from any of the four. Shares are by size and
temperature 2 (the square root of the number of images; cxrjax/input_pipeline/mixture.py has the
formula). With temperature 1 they are in proportion to size, or follow a `weight` for every source:

    --config.mixture.temperature=1
    --config.mixture.sources.vindr.weight=2  and so for the other three, beside temperature 1

Codecs may differ, `vindr_px` here and `gemex` there, as long as all of them write digits, or all of
them location tokens: a batch has one way from the loss to boxes. `data` is what a source leaves
unsaid, and what the model is asked like where nobody says otherwise; for another source:

    python -m cxrjax.predict --workdir=runs/mixture/train --source=cxr_qba --questions=... --out=...

metrics.jsonl has train/images/NAME, the images of each source so far. An epoch is as many images
as all sources have together.

`:tiny` is the shipped base on phantoms, with location tokens, four equal weights, and the base's
tokenizer, which spells Vietnamese letters in bytes (four times the tokens of ViX-Ray's own):

    python -m cxrjax.build --dataset=phantom --seed=7 --images=1000 --validation_images=60 \\
        --long_side=144 --conspicuity=1.6 --out=runs/mixture_tiny/vindr
    python -m cxrjax.build --dataset=phantom_studies --studies=200 --out=runs/mixture_tiny/studies
    python -m cxrjax.build --dataset=gemex --source=runs/mixture_tiny/studies \\
        --out=runs/mixture_tiny/gemex
    python -m cxrjax.build --dataset=cxr_qba --source=runs/mixture_tiny/studies \\
        --rate_with=surrogate --least_grade=A --out=runs/mixture_tiny/cxr_qba
    python -m cxrjax.build --dataset=vix_ray_synthetic --images=400 --validation_images=60 \\
        --long_side=144 --conspicuity=1.6 --out=runs/mixture_tiny/vix_ray

Builds: 2 minutes. 2.3 GB; two CPU cores make about a step a second with nothing beside them. After
150 of its 300 steps (1,200 images, 300 of each) the cross-entropy of a token on validation
questions, at most 56 images a source, was 2.1 for VinDr (the base: 23.4), 2.2 for GEMeX (17.0), 3.5
for CXR-QBA (14.7) and 1.7 for ViX-Ray (14.8); the mean IoU of expected boxes was 0.43 (0.48), 0.39
(0.08) and 0.38 (0.09), where the base had learnt VinDr's boxes before. Figures of phantoms.
"""

from ml_collections import ConfigDict

from cxrjax.training.config import add_source, default_config

HELP = (
    "Build the four data sets (data/*/README.md) and convert the base into {base}, or try "
    "configs/mixture.py:tiny, which needs neither patients' data nor a download."
)


def get_config(variant: str = "") -> ConfigDict:
    if variant not in ("", "tiny"):
        raise ValueError(f"variant {variant!r} is unknown: expected tiny or none")
    config = tiny() if variant == "tiny" else large()
    config.missing_data_help = HELP.format(base=config.model.init_from)
    return config


def large() -> ConfigDict:
    """MedGemma 4B; all four in its conversation, boxes in digits."""
    config = default_config()
    config.model.preset = "medgemma_4b"
    config.model.init_from = "data/medgemma_4b"
    config.model.share = "image"
    config.model.dtype = "bfloat16"
    config.model.frozen_dtype = "bfloat16"
    config.model.remat = "full"

    config.lora.rank = 16
    config.lora.alpha = 32.0
    config.lora.dropout = 0.05

    config.data.prompt = "medgemma"
    config.data.codec = "vindr_px"
    config.data.too_long = "set_aside"
    config.data.max_boxes = 16
    config.data.prefix_buckets = (64, 128, 256)
    config.data.answer_buckets = (64, 256, 512)

    add_source(config, "vindr", "data/vindr/records/train.jsonl", prompt="medgemma_reason")
    add_source(
        config,
        "gemex",
        "data/gemex/records/train.jsonl",
        prompt="gemex_chat",
        codec="gemex",
        record_codec="gemex",
    )
    add_source(
        config,
        "cxr_qba",
        "data/qba_built/records/train.jsonl",
        prompt="grounded_chat",
        codec="medgemma_json",
        questions_per_image=4,
    )
    add_source(config, "vix_ray", "data/vix_ray_built/records/train_stage2.jsonl")
    config.mixture.temperature = 2.0

    config.optimizer.learning_rate = 2e-5
    config.optimizer.warmup_steps = 500
    config.data.feature_cache = "data/features"  # the tower is frozen
    config.training.batch_images = 32
    config.training.accumulation_steps = 8
    config.training.epochs = 1.0
    config.training.checkpoint_every = 1000
    config.decoding.max_answer_tokens = 512
    config.decoding.grammar = "none"
    return config


def tiny() -> ConfigDict:
    """The shipped base on phantoms; two CPU cores, minutes."""
    config = default_config()
    config.model.preset = "tiny"
    config.model.init_from = "data/demo_base"
    config.model.share = "image"
    config.model.unroll = True

    config.lora.rank = 16
    config.lora.alpha = 32.0
    config.lora.targets = (r"attn/(q|k|v|o|out)_proj", r"mlp/.*", "projector")
    # The shipped base has never read most words.
    config.trainable = ("/lora/", "/embedder/table$")

    config.data.too_long = "set_aside"
    config.data.questions_per_image = 4
    config.data.prefix_buckets = (192,)
    config.data.answer_buckets = (192,)
    # Of the padding nothing is computed: questions differ too much in length to share slots.
    config.data.packed_buckets = (384, 640, 1024)
    config.data.workers = 1

    data = "runs/mixture_tiny"
    add_source(config, "vindr", f"{data}/vindr/records/train.jsonl", weight=1)
    add_source(
        config,
        "gemex",
        f"{data}/gemex/records/train.jsonl",
        weight=1,
        prompt="gemex",
        record_codec="gemex",
    )
    add_source(
        config,
        "cxr_qba",
        f"{data}/cxr_qba/records/train.jsonl",
        weight=1,
        image_root=f"{data}/studies",
        prompt="grounded",
    )
    add_source(
        config,
        "vix_ray",
        f"{data}/vix_ray/records/train_stage2.jsonl",
        weight=1,
        questions_per_image=1,
    )

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 20
    config.training.batch_images = 8
    config.training.steps = 300
    config.training.log_every = 10
    config.training.checkpoint_every = 150
    config.decoding.max_answer_tokens = 192
    return config
