"""Supervised fine-tuning on GEMeX: projector and language model, as the paper did it.

    python -m cxrjax.train --config=configs/gemex_sft.py --workdir=runs/gemex
    python -m cxrjax.train --config=configs/gemex_sft.py:tiny --workdir=runs/gemex_tiny

Paper: arXiv 2411.16778, section 4.1, and its released script. It trained the projection and the
language model of LLaVA-Med-v1-7B, of which only differences to LLaMA were published: MedGemma 4B
stands in for it, also a decoder tuned on medical text and images behind a projector, with a larger
image (896 instead of 224 pixels) and 4 instead of 7 billion parameters. `:llava_med` starts from
LLaVA-Med v1.5, its successor (Mistral 7B, 336 pixels), in transformers' form (model_type llava):
the image is padded to a square, and asked about in Mistral's turns. Build the data
(data/gemex/README.md) into data/gemex and convert the base:

    python -m cxrjax.build --dataset=gemex --source=PATH/TO/FILES --out=data/gemex
    python -m cxrjax.convert --checkpoint=PATH/TO/medgemma-4b-it --out=data/medgemma_4b
    python -m cxrjax.convert --checkpoint=PATH/TO/llava-med-v1.5-mistral-7b-hf --out=data/llava_med

A copy of the parameters lies on 8 devices (fewer where there are fewer: the paper's four H100), and
a batch is one micro-batch, since what the devices exchange is paid for each. With 8 images a chip a
step takes at least 1.38 s on v5e-16 and 1.39 s on v5e-256, by the planner (docs/planning.md);
slices that have more chips than a batch has images need a larger one, such as
--config.training.batch_questions=2048.

54 hours on four H100 with 80 GB, it says; nobody has timed ours. A question is asked behind its
type's instruction, and the answer is `<answer> ... <reason> ... <location>[[...]]`, all of it
learnt; boxes are whole numbers on a frame of 224 pixels.

Warm-up: the paper's text says 0.03 epochs, its script a ratio of 0.03 of all steps, three times as
long. The script is followed, whatever the data's size: 74,483 steps of 64 are three epochs of
1,588,975 questions, and 3 % of them 2,235.

`:tiny` goes the same way on phantoms, with what ships:

    python -m cxrjax.build --dataset=phantom_studies --studies=200 --out=runs/studies
    python -m cxrjax.build --dataset=gemex --source=runs/studies --out=runs/gemex_tiny/data

Its base is `tiny`, which writes boxes as location tokens; the learning rate is 3e-3, as in
configs/vindr_lora.py:phantom, and 200 steps of 32 questions are all: 464 s of processor time on two
cores (40 minutes beside much other work), 1.85 GB. Token accuracy while learning went from 0.30
(step 50) to 0.76, the IoU of expected boxes from 0.27 to 0.54. Of 60 validation questions every
answer had the form asked for; what they say is not learnt by then (12 closed, 17 single-choice and
15 multi-choice answers: 4, 3 and 1 right, which is chance or less), and the mean IoU of a reference
box with the best predicted one is 0.19. Figures of phantoms.

    python -m cxrjax.evaluate --workdir=runs/gemex_tiny --benchmark=gemex

`:llava_med_tiny` is the same from LLaVA's architecture, small and of random parameters, all of
which it trains: it shows that the way is whole; what it says after 200 steps is nothing.
"""

from ml_collections import ConfigDict

from cxrjax.training.config import default_config

HELP = (
    "Build the dataset (data/gemex/README.md) and convert the base model into {base}, or try "
    "configs/gemex_sft.py:tiny, which needs neither patients' data nor a download."
)


def get_config(variant: str = "") -> ConfigDict:
    config = paper()
    if variant in ("llava_med", "llava_med_tiny"):
        llava_med(config)
    if variant in ("tiny", "llava_med_tiny"):
        tiny(config)
    if variant == "llava_med_tiny":
        tiny_llava(config)
    elif variant not in ("", "tiny", "llava_med"):
        raise ValueError(
            f"variant {variant!r} is unknown: expected tiny, llava_med, llava_med_tiny or none"
        )
    config.missing_data_help = HELP.format(base=config.model.init_from)
    return config


def paper() -> ConfigDict:
    """The paper's values, each with its place in it; what it does not state is ours and says so."""
    config = default_config()
    config.model.preset = "medgemma_4b"  # in the place of LLaVA-Med-v1-7B (section 4.1)
    config.model.init_from = "data/medgemma_4b"
    config.model.share = "image"  # exact where attention is causal
    config.model.dtype = "bfloat16"  # section 4.1
    config.model.frozen_dtype = "bfloat16"
    config.model.remat = "full"  # section 4.1: gradient checkpointing
    config.trainable = ("^projector", "^decoder/")  # section 4.1

    config.data.train = "data/gemex/records/train.jsonl"
    config.data.validation = "data/gemex/records/validation.jsonl"
    config.benchmark = "gemex"
    config.data.feature_cache = "data/features"  # the tower is frozen
    config.data.prompt = "gemex_chat"  # section 4.1, Table 4
    config.data.codec = config.data.record_codec = "gemex"  # Tables 10 to 13
    config.data.questions_per_image = 1
    config.data.prefix_buckets = (64, 128, 256)  # ours
    config.data.answer_buckets = (64, 128, 256)  # ours
    config.data.too_long = "set_aside"  # the script cuts at 2,048 tokens

    config.optimizer.learning_rate = 2e-5  # section 4.1
    config.optimizer.warmup_from = 3e-7  # section 4.1
    config.optimizer.warmup_ratio = 0.03  # the script; the text says 0.03 epochs
    config.optimizer.schedule = "cosine"  # section 4.1
    config.optimizer.weight_decay = 0.0  # the script
    config.training.batch_questions = 64  # section 4.1; the script: 2 a device, 4 devices
    # The script has eight micro-batches, which come to the same.
    config.training.accumulation_steps = 1
    config.training.epochs = 3.0  # section 4.1
    config.training.lambda_box = 0.0  # the paper's loss is of words alone
    config.training.checkpoint_every = 1000
    config.training.best_metric = "a_score"
    config.mesh.fsdp = 8  # section 4.1: FSDP on four H100
    config.decoding.max_answer_tokens = 256
    config.decoding.grammar = "none"
    return config


def llava_med(config: ConfigDict) -> None:
    """LLaVA-Med v1.5 in the place of MedGemma."""
    config.model.preset = "llava_med15_7b"
    config.model.init_from = "data/llava_med"
    config.data.prompt = "gemex_llava_med"
    config.data.geometry = "letterbox"  # as LLaVA-Med was tuned: image_aspect_ratio pad


def tiny_llava(config: ConfigDict) -> None:
    """LLaVA's architecture behind what `tiny` changes."""
    config.model.preset = "tiny_llava"
    config.model.init_from = None
    config.model.init = "random"
    config.model.tokenizer = "data/demo_base/tokenizer.model"
    config.data.geometry = "resize"
    config.trainable = (".*",)


def tiny(config: ConfigDict) -> None:
    """Applies the changes of `:tiny` (see the module's docstring)."""
    config.model.preset = "tiny"
    config.model.init_from = "data/demo_base"
    config.model.unroll = True
    config.model.remat = "none"
    config.model.dtype = config.model.frozen_dtype = "float32"

    config.data.feature_cache = None
    config.data.train = "runs/gemex_tiny/data/records/train.jsonl"
    config.data.validation = "runs/gemex_tiny/data/records/validation.jsonl"
    config.data.prompt = "gemex"
    config.data.codec = "paligemma"
    config.data.questions_per_image = 4
    config.data.prefix_buckets = (192,)
    config.data.answer_buckets = (192,)
    # Of the padding nothing is computed: questions with options are much longer than others.
    config.data.packed_buckets = (384, 640, 1024)

    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_from = 0.0
    config.optimizer.warmup_ratio = 0.0
    config.optimizer.warmup_steps = 10
    config.training.batch_questions = 32
    config.training.accumulation_steps = 1
    config.training.epochs = None
    config.training.steps = 200
    config.training.checkpoint_every = 200
    config.mesh.fsdp = 1
    config.decoding.max_answer_tokens = 192
