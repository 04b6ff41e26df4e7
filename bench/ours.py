"""The worker of our side. Speaks JSON lines, see `worker.py`."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from bench import worker
from bench.cases import (
    BEGIN_IMAGE_ID,
    BOS_ID,
    END_IMAGE_ID,
    LORA_ALPHA,
    LORA_PARTS,
    LORA_RANK,
    Case,
)
from bench.process import processor
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed import meshes
from cxrjax.input_pipeline.batch import Batch
from cxrjax.models import LoRAConfig, apply_lora, partition
from cxrjax.models.hf_config import read_config
from cxrjax.models.hf_import import make_model, open_checkpoint, read_parameters
from cxrjax.models.hf_layout import vlm_config
from cxrjax.models.presets import IMAGE
from cxrjax.training.config import ExperimentConfig, TrainingConfig
from cxrjax.training.optimizer import OptimizerConfig, make_optimizer
from cxrjax.training.step import compile_train_step, init_state, make_train_step


class Ours:
    """One loaded model; each call does one timed piece of work, compiled before."""

    def __init__(self, shape: str, directory: str, share: str) -> None:
        context = (BOS_ID, BEGIN_IMAGE_ID, IMAGE, END_IMAGE_ID) if shape == "gemma3" else (IMAGE,)
        start = time.perf_counter()
        config = vlm_config(read_config(Path(directory)), directory, -1, context)
        arrays = read_parameters(open_checkpoint(directory), config, "float32")
        self.load_seconds = time.perf_counter() - start
        self.shape = shape
        model = make_model(config, arrays, share=share, unroll=True)
        settings = ExperimentConfig(
            training=TrainingConfig(lambda_box=0.0), optimizer=OptimizerConfig(clip_norm=0.0)
        )
        lora = LoRAConfig(
            LORA_RANK, LORA_ALPHA, targets=(f"decoder/layers/attn/({'|'.join(LORA_PARTS)})",)
        )
        apply_lora(model, lora, nnx.Rngs(0))
        self.graphdef, trainable, frozen = partition(model, ("/lora/",))
        state = init_state(trainable, make_optimizer(settings.optimizer, 1000))
        self.mesh = meshes.make_mesh(settings.mesh)
        self.state, self.frozen = (
            jax.device_put(tree, meshes.tree_shardings(self.mesh, tree)) for tree in (state, frozen)
        )
        self.step = compile_train_step(
            make_train_step(self.graphdef, settings, 1000, self.mesh), self.mesh, state, frozen
        )

    @property
    def instructions(self) -> str:
        """The instruction set that XLA compiles for."""
        limit = re.search(r"--xla_cpu_max_isa=(\w+)", os.environ.get("XLA_FLAGS", ""))
        return f"{limit[1]} by XLA_FLAGS" if limit else processor()[1]

    def train(self, case: Case) -> dict[str, Any]:
        data = worker.examples(self.shape, case)
        rows, questions, width = data["prompts"].shape
        batch = Batch(
            images=data["images"],
            prefix_tokens=data["prompts"],
            prefix_mask=np.ones((rows, questions, width), bool),
            answer_tokens=data["answers"],
            answer_mask=np.ones(data["answers"].shape, bool),
            question_index=np.arange(rows * questions, dtype=np.int32).reshape(rows, questions),
            coordinate_positions=np.zeros((rows, questions, 1, 4), np.int32),
            target_boxes=np.zeros((rows, questions, 1, 4), np.float32),
            box_mask=np.zeros((rows, questions, 1), bool),
        )
        start = time.perf_counter()
        batch = meshes.put_batch(batch, self.mesh)
        self.state, metrics = self.step(self.state, self.frozen, batch)
        loss = float(jax.block_until_ready(metrics.loss))
        jax.block_until_ready(self.state)
        return {"loss": loss, "seconds": time.perf_counter() - start}

    def generate(self, case: Case) -> dict[str, Any]:
        data = worker.examples(self.shape, case)
        # The step was given the adapters that the model began with, and has overwritten them.
        model = nnx.merge(self.graphdef, self.state.trainable, self.frozen)
        generator = Generator(model, Strategy(max_answer_tokens=case.answer_tokens))
        mask = np.ones(data["prompts"].shape, bool)
        start = time.perf_counter()
        tokens = generator(data["images"], data["prompts"], mask).tokens
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "ids": np.reshape(tokens, (-1, case.answer_tokens)).tolist()}


if __name__ == "__main__":
    worker.serve(Ours(sys.argv[1], sys.argv[2], share=sys.argv[3]))
