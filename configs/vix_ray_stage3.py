"""ViX-Ray, stage 3: a dialogue of findings and then the impression.

    python -m cxrjax.build --dataset=vix_ray --source=FOLDER --out=data/vix_ray_built
    python -m cxrjax.train --config=configs/vix_ray_stage3.py --workdir=runs/vix_ray/stage3
    python -m cxrjax.predict --workdir=runs/vix_ray/stage3 \
        --questions=data/vix_ray_built/questions/test_stage3.jsonl --out=runs/vix_ray/stage3.jsonl
    python -m cxrjax.score --benchmark=vix_ray --references=data/vix_ray_built/records/test.jsonl \
        --predictions=runs/vix_ray/stage3.jsonl --out=runs/vix_ray/scores

Paper: arXiv 2603.15513, section 4.3. It fine-tuned 1B models on 2 RTX 3090 and larger ones on 7 RTX
5090 (appendix B). Its table of hyper-parameters (Table 8) is not available, so that all of them are
ours and marked `unspecified_in_paper`. The base is Qwen2.5-VL-7B, the paper's best, with LoRA;
configs/vix_ray_stage1.py has what the stages share, how the base is converted, and what `:medgemma`
and `:qwen_tiny` are. Nobody has run this configuration: expect nothing of it yet.

Both turns are trained, the loss is on the answers alone; the second turn has the true findings as
its history. In predicting there are two histories (the paper writes of generated findings, but its
figures look as if the true ones were given), to be told apart by --name in `score`:

    questions/test_stage3.jsonl        self: predict answers the first turn, then the second on it
    questions/test_stage3_gold.jsonl   gold: the second turn alone, on the radiologist's findings

`:tiny` goes the same way through the same code on two CPU cores, on the synthetic set:

    python -m cxrjax.build --dataset=vix_ray_synthetic --images=3000 --validation_images=200 \
        --long_side=144 --conspicuity=1.6 --out=runs/vix_ray_tiny/data
    python -m cxrjax.train --config=configs/vix_ray_stage3.py:tiny \
        --workdir=runs/vix_ray_tiny/stage3

from random parameters, the vision tower apart, which is the demo's (data/demo_base; it has learnt
on phantoms), with the tokenizer in data/vix_ray. It has been run for 20 steps (loss 7.3 to 5.5)
and in a test; what it reaches is not known yet.

Evaluated on the validation split during training, the second turn on the true findings; `:tiny`
apart, which is to be quick. The best checkpoint is that of the impression's highest ROUGE-L.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

_SHARED = runpy.run_path(str(Path(__file__).with_name("vix_ray_stage1.py")))


def get_config(variant: str = "") -> ConfigDict:
    config = _SHARED["recipe"](3, variant)
    config.data.questions_per_image = 2
    config.data.prefix_buckets = (64, 512)
    config.training.best_metric = "stage3/impression/rouge_l"
    if variant in ("tiny", "qwen_tiny"):
        config.data.prefix_buckets = (40, 256)
    elif variant != "medgemma":
        # Qwen's tokenizer cuts Vietnamese into more pieces than Gemma's.
        config.data.prefix_buckets = (128, 768)
    return config
