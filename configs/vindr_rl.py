"""Reinforcement learning on IoU, from where configs/vindr_lora.py has come to.

    python -m cxrjax.train --config=configs/vindr_lora.py:paligemma --config.data.prompt=vqa \
        --workdir=runs/vindr
    python -m cxrjax.train --config=configs/vindr_rl.py --workdir=runs/vindr_rl

    make demo
    python -m cxrjax.train --config=configs/vindr_rl.py:demo --workdir=runs/demo/rl

Nobody published such a run: the values are ours. It goes on with the adapters of the first run
(model.start_from), on the same questions. Each is answered eight times, the answers are rewarded by
the boxes they give, what they say and their form (cxrjax/training/rl/rewards.py), and those
worth more than their group become likelier (policy_loss.py beside it). An answer without a box is
right where the finding is absent, so that boxes are no reward in themselves. Answers have none of
the reasons that VinDr's have: nothing rewards those, and they take up to 512 tokens each.

`:demo` is the demo's model on the demo's radiographs, two CPU cores; what it brings is in
docs/log/boxes.md. `:best_of_n` and `:demo_best_of_n` are the baseline that it must beat: supervised
training on the best of the eight. `:dpo` and `:demo_dpo` tune to preferences: of two answers the
better one, or those of a file (`--config.rl.pairs=FILE`, python -m cxrjax.tools.preferences), for
which images and questions stay as they are.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

SUPERVISED = Path(__file__).with_name("vindr_lora.py")


def get_config(variant: str = "") -> ConfigDict:
    if variant not in ("", "best_of_n", "dpo", "demo", "demo_best_of_n", "demo_dpo"):
        raise ValueError(
            f"variant {variant!r} is unknown: expected best_of_n, dpo, demo, demo_best_of_n, "
            "demo_dpo or none"
        )
    demo = variant.startswith("demo")
    supervised = runpy.run_path(str(SUPERVISED))["get_config"]
    config: ConfigDict = supervised("demo" if demo else "paligemma")
    config.model.start_from = "runs/demo/train" if demo else "runs/vindr"
    config.missing_data_help = (
        "Run make demo first." if demo else "Train configs/vindr_lora.py:paligemma first."
    )
    config.data.prompt = "vqa"
    config.data.answer_buckets = (48,)
    config.decoding.max_answer_tokens = 48
    config.data.too_long = "set_aside"  # answers of more than six boxes
    config.lora.dropout = 0.0  # what draws answers has none
    config.data.questions_per_image = 4
    config.data.vary_wording = 0.0
    config.rl.kind = "best_of_n" if variant.endswith("best_of_n") else "rloo"
    config.rl.group_size = 8
    config.rl.weight_absent = 0.35
    if variant.endswith("dpo"):
        config.rl.kind = "dpo"
        config.rl.group_size = 2
        config.data.unknown_share = 0.0
        for name in ("zoom", "stretch", "shift", "rotate", "erase"):
            config.data.augment[name] = 0.0
    config.optimizer.learning_rate = 3e-4 if demo else 5e-6
    config.optimizer.warmup_steps = 10
    config.optimizer.schedule = "constant"
    config.training.batch_questions = None
    config.training.batch_images = 8
    config.training.accumulation_steps = 1
    config.training.epochs = None
    config.training.steps = 300 if demo else 1000
    config.training.checkpoint_every = 100
    config.training.eval_every = 0
    return config
