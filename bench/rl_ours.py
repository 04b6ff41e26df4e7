"""Our side of the benchmark of reinforcement learning.

    rl_ours.py CHECKPOINT {tower,tower_recomputed,image} IMAGES QUESTIONS

Speaks JSON lines (process.py): after the first reply, a step for each line that it reads.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from bench import rl_cases as cases
from bench.process import reply
from cxrjax.codecs import get_codec
from cxrjax.distributed import meshes
from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.models import LoRAConfig, apply_lora, partition
from cxrjax.models.hf_config import read_config
from cxrjax.models.hf_import import make_model, open_checkpoint, read_parameters
from cxrjax.models.hf_layout import vlm_config
from cxrjax.training.config import (
    DecodingConfig,
    ExperimentConfig,
    ModelConfig,
    TrainingConfig,
)
from cxrjax.training.optimizer import OptimizerConfig, make_optimizer
from cxrjax.training.policy_config import PolicyConfig
from cxrjax.training.rl.policy_loss import answer_logprobs
from cxrjax.training.rl.rewards import Rewarder, RewardWeights
from cxrjax.training.rl.rollouts import DrawnAnswers, Rollouts
from cxrjax.training.step import init_state, make_parallel_step

STEPS = 1000
WEIGHTS = RewardWeights(1.0, 0.0, 0.0, "mean_iou")


class Words:
    """The benchmark's tokens as text; nothing ends an answer, so that all are as long as theirs."""

    stop_ids: tuple[int, ...] = ()

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(cases.token_text, ids)).replace("> <", "><")


class TimedRollouts(Rollouts):
    """Rollouts that say how long the last drawing of answers took."""

    draw = np.zeros(2)

    def _draw(self, *arguments: Any) -> DrawnAnswers:
        start = cases.clock()
        found = super()._draw(*arguments)  # on the host
        self.draw = cases.clock() - start
        return found


def make_batch(questions: cases.Questions) -> LoadedBatch:
    """Questions as the loader gives them; their answers are the true boxes."""
    asked = questions.words.shape[:2]
    ends = np.broadcast_to([cases.BOS_ID, cases.NEWLINE_ID], (*asked, 2))
    prefix = np.concatenate([ends[..., :1], questions.words, ends[..., 1:]], axis=-1)
    answers = np.zeros((*asked, cases.ANSWER_TOKENS), np.int32)
    answers[..., :4] = cases.LOC_START + questions.bins
    index = np.arange(np.prod(asked), dtype=np.int32).reshape(asked)
    batch = Batch(
        images=questions.images,
        prefix_tokens=prefix.astype(np.int32),
        prefix_mask=np.ones(prefix.shape, bool),
        answer_tokens=answers,
        answer_mask=np.broadcast_to(np.arange(cases.ANSWER_TOKENS) < 4, answers.shape),
        question_index=index,
        coordinate_positions=np.zeros((*asked, 1, 4), np.int32),
        target_boxes=np.zeros((*asked, 1, 4), np.float32),
        box_mask=np.zeros((*asked, 1), bool),
    )
    return LoadedBatch(batch, [[f"q{i}" for i in row] for row in index], [])


class Ours:
    """A model that is trained as `train` does it, without files."""

    def __init__(self, directory: str, variant: str, images: int, questions: int) -> None:
        share, _, recomputed = variant.partition("_")
        remat = "full" if recomputed else "none"
        config = vlm_config(read_config(Path(directory)), directory, cases.LOC_START)
        arrays = read_parameters(open_checkpoint(directory), config, "float32")
        model = make_model(config, arrays, share=share, unroll=True, remat=remat)
        parts = "|".join(cases.LORA_PARTS)
        adapters = LoRAConfig(
            cases.LORA_RANK, cases.LORA_ALPHA, targets=(f"decoder/layers/attn/({parts})",)
        )
        apply_lora(model, adapters, nnx.Rngs(0))
        low, high = cases.EPSILONS
        settings = ExperimentConfig(
            model=ModelConfig(share="image" if share == "image" else "tower"),
            training=TrainingConfig(),
            decoding=DecodingConfig(max_answer_tokens=cases.ANSWER_TOKENS),
            optimizer=OptimizerConfig(
                learning_rate=cases.LEARNING_RATE, schedule="constant", weight_decay=0.0
            ),
            rl=PolicyConfig(
                kind="grpo",
                group_size=cases.GROUP,
                kl_weight=cases.KL_WEIGHT,
                epsilon_low=low,
                epsilon_high=high,
                weight_answer=WEIGHTS.answer,
                weight_format=WEIGHTS.format,
            ),
        )
        graphdef, trainable, frozen = partition(model, ("/lora/",))
        state = init_state(trainable, make_optimizer(settings.optimizer, STEPS))
        mesh = meshes.make_mesh(settings.mesh)
        self.state, self.frozen = (
            jax.device_put(tree, meshes.tree_shardings(mesh, tree)) for tree in (state, frozen)
        )
        self.graphdef = graphdef
        self.rollouts = TimedRollouts(
            settings, graphdef, self.state.trainable, self.frozen, mesh, Words()
        )
        self.step = make_parallel_step(graphdef, settings, STEPS, mesh, self.state, self.frozen)
        self.questions = cases.make_questions(images, questions)
        self.batch = make_batch(self.questions)

    def checks(self) -> dict[str, Any]:
        """Returns values that both sides must agree on: log-probabilities and rewards."""
        batch = self.batch.batch
        answers = batch.replace(
            answer_tokens=self.questions.answers.astype(np.int32),
            answer_mask=np.ones(self.questions.answers.shape, bool),
        )
        model = nnx.merge(self.graphdef, self.state.trainable, self.frozen)
        found = answer_logprobs(model, answers, 1.0, 512)
        rewarder = Rewarder(get_codec("paligemma"), WEIGHTS)
        decode = Words().decode
        rewards = [
            rewarder("", decode([cases.LOC_START + b for b in bins]), decode(ids), ended=True).total
            for ids, bins in cases.example_answers()
        ]
        return {"logprobs": np.asarray(found).reshape(-1).tolist(), "rewards": rewards}

    def __call__(self, number: int) -> dict[str, Any]:
        start = cases.clock()
        experience = jax.block_until_ready(self.rollouts(number, self.state, self.batch))
        made = cases.clock()
        self.state, metrics = self.step(self.state, self.frozen, experience)
        jax.block_until_ready((self.state, metrics))
        end = cases.clock()
        total, count = metrics.figures["rl/reward"]
        return {
            "draw": self.rollouts.draw.tolist(),
            "experience": (made - start).tolist(),
            "update": (end - made).tolist(),
            "step": (end - start).tolist(),
            "reward": float(total) / float(count),
        }


def main() -> None:
    side = Ours(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    reply({"loaded_gb": cases.peak_gb(), **side.checks()})
    for number, _ in enumerate(sys.stdin, 1):
        cases.reset_peak()
        reply(side(number) | {"peak_gb": cases.peak_gb()})


if __name__ == "__main__":
    main()
