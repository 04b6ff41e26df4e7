"""Our side of the accelerator's benchmark.

    accelerator_ours.py SHAPE ATTENTION DEADLINE TRACES CASES

Gives a JSON line when it is ready and one after each case; ends by itself before DEADLINE (of
`time.time`). A trace of a training step goes into the folder TRACES.
"""

import concurrent.futures
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench import accelerator_cases as cases
from bench.process import reply
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed import meshes
from cxrjax.input_pipeline.batch import Batch
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, partition
from cxrjax.models.flops import BatchShape, step_flops, total
from cxrjax.models.hf_import import make_model
from cxrjax.models.partition import path_of
from cxrjax.models.presets import IMAGE, DecoderConfig, VisionConfig, VLMConfig
from cxrjax.training.config import (
    ExperimentConfig,
    TrainingConfig,
)
from cxrjax.training.optimizer import OptimizerConfig
from cxrjax.training.optimizer import make_optimizer as optimizer_of
from cxrjax.training.policy_config import PolicyConfig
from cxrjax.training.rl.policy_loss import Experience, answer_logprobs
from cxrjax.training.step import cast_params, compile_train_step, init_state, make_train_step

STEPS = 1000
TRAINS = ("/lora/",)


def sizes_of(sizes: cases.Sizes) -> VLMConfig:
    """The preset of MedGemma 4B in these sizes."""
    preset = PRESETS["medgemma_4b"]
    tower = VisionConfig(
        sizes.image_size,
        sizes.patch_size,
        sizes.vision_width,
        sizes.vision_depth,
        sizes.vision_heads,
        sizes.vision_mlp,
        sizes.pool,
    )
    decoder: DecoderConfig = dataclasses.replace(
        preset.decoder,
        vocab_size=sizes.vocab_size,
        width=sizes.width,
        depth=sizes.depth,
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        mlp_dim=sizes.mlp,
        query_scale=float(sizes.head_dim),
    )
    context = (cases.BOS_ID, cases.BEGIN_IMAGE_ID, IMAGE, cases.END_IMAGE_ID)
    return VLMConfig(tower, decoder, -1, context, projector="normed")


class Ours:
    """Random weights in bfloat16, and models that share the tower of an image, or the image."""

    def __init__(self, shape: str, attention: str) -> None:
        self.sizes = cases.SIZES[shape]
        config = sizes_of(self.sizes)

        def draw() -> Any:
            return cast_params(nnx.state(VLM(config, rngs=nnx.Rngs(0))), "bfloat16")

        state = jax.block_until_ready(jax.jit(draw)())
        self.arrays = {path_of(path): leaf[...] for path, leaf in nnx.to_flat_state(state)}
        self.parameters = sum(x.size for x in self.arrays.values())
        self.config, self.attention = config, attention
        optimizer = OptimizerConfig(
            learning_rate=cases.LEARNING_RATE, schedule="constant", clip_norm=0.0, weight_decay=0.0
        )
        low, high = cases.EPSILONS
        policy = PolicyConfig(
            kind="grpo",
            group_size=cases.GROUP,
            kl_weight=cases.KL_WEIGHT,
            epsilon_low=low,
            epsilon_high=high,
        )
        self.settings = {
            "train": ExperimentConfig(training=TrainingConfig(lambda_box=0.0), optimizer=optimizer),
            "rollout": ExperimentConfig(
                training=TrainingConfig(lambda_box=0.0), optimizer=optimizer, rl=policy
            ),
        }
        self.mesh = meshes.make_mesh(self.settings["train"].mesh, jax.devices()[:1])

    def model(self, share: str, ways: tuple[str, ...] = ()) -> VLM:
        settings = {"share": share, "dtype": "bfloat16", "attention": self.attention}
        # As on a GPU by default (`model.unroll`); a tower that is not run need not be compiled.
        settings["unroll"] = "scanned" not in ways
        settings["remat"] = "products" if "recipe" in ways else "none"
        model = make_model(self.config, self.arrays, **settings)
        targets = (f"decoder/layers/attn/({'|'.join(cases.LORA_PARTS)})",)
        dropout = cases.RECIPE_DROPOUT if {"dropout", "recipe"} & set(ways) else 0.0
        lora = LoRAConfig(cases.LORA_RANK, cases.LORA_ALPHA, dropout, targets)
        apply_lora(model, lora, nnx.Rngs(1))
        return model

    def settings_of(self, kind: str, ways: tuple[str, ...]) -> ExperimentConfig:
        """The configuration of a step."""
        settings = self.settings[kind]
        if {"dropout", "recipe"} & set(ways):
            lora = dataclasses.replace(settings.lora, dropout=cases.RECIPE_DROPOUT)
            settings = dataclasses.replace(settings, lora=lora)
        if "recipe" in ways:
            count = cases.RECIPE_MICRO_BATCHES
            training = dataclasses.replace(settings.training, accumulation_steps=count)
            settings = dataclasses.replace(settings, training=training)
        return settings

    def images(self, case: cases.Case, data: dict[str, np.ndarray]) -> np.ndarray:
        """Pixels, or features of them as a cache has them."""
        vision = self.config.vision
        if vision is None or not {"features", "recipe"} & set(case.ways):
            return data["images"]
        drawn = np.random.default_rng(2).normal(
            size=(case.images, vision.num_tokens, vision.feature_width)
        )
        return drawn.astype(jnp.bfloat16)

    def compile(self, case: cases.Case, share: str) -> None:
        """Compiles a training step into the cache, from shapes: in a thread beside others."""
        if case.kind != "train":
            return
        data = cases.make_questions(self.sizes, case)
        batch = make_batch(self.images(case, data), data["prompts"], data["answers"])
        self.lowered(case, share, batch).compile()

    def lowered(self, case: cases.Case, share: str, batch: Any) -> Any:
        model = self.model(share, case.ways)
        graphdef, trainable, frozen = partition(model, TRAINS)
        settings = self.settings_of(case.kind, case.ways)
        optimizer = optimizer_of(settings.optimizer, STEPS)
        state = jax.eval_shape(lambda t: init_state(t, optimizer), trainable)
        step = make_train_step(graphdef, settings, STEPS, self.mesh)
        return compile_train_step(step, self.mesh, state, frozen).lower(state, frozen, batch)  # type: ignore[attr-defined]

    def run(self, case: cases.Case, share: str, deadline: float, traces: Path) -> dict[str, Any]:
        data = cases.make_questions(self.sizes, case)
        if case.kind == "train":
            return self.train(case, share, data, deadline, traces)
        if case.kind == "generate":
            return self.generate(share, data, deadline)
        return self.rollout(case, share, data, deadline)

    def stepper(self, kind: str, share: str, ways: tuple[str, ...] = ()) -> Any:
        """Returns a function that makes one step on a batch and keeps the state, and its model."""
        settings, model = self.settings_of(kind, ways), self.model(share, ways)
        graphdef, trainable, frozen = partition(model, TRAINS)
        # A copy: the step writes over its state, and the model is used again.
        trainable = jax.tree.map(jnp.copy, trainable)
        state = init_state(trainable, optimizer_of(settings.optimizer, STEPS))
        state, frozen = (
            jax.device_put(tree, meshes.tree_shardings(self.mesh, tree)) for tree in (state, frozen)
        )
        step = compile_train_step(
            make_train_step(graphdef, settings, STEPS, self.mesh), self.mesh, state, frozen
        )

        def one(batch: Any) -> float:
            nonlocal state
            state, metrics = step(state, frozen, batch)
            return float(jax.block_until_ready((state, metrics))[1].loss)

        return one, model

    def train(
        self,
        case: cases.Case,
        share: str,
        data: dict[str, np.ndarray],
        deadline: float,
        traces: Path,
    ) -> dict[str, Any]:
        one, model = self.stepper("train", share, case.ways)
        batch = make_batch(self.images(case, data), data["prompts"], data["answers"])
        found = cases.timed(lambda: one(meshes.put_batch(batch, self.mesh)), deadline)
        slots = self.sizes.prompt, data["answers"].shape[-1]
        shape = BatchShape(case.images, case.questions, *slots)
        shape = dataclasses.replace(shape, from_features=batch.images.ndim == 3)
        apart = BatchShape(case.images * case.questions, 1, *slots)
        told = {
            "loss": found.pop("result"),
            "flops": total(step_flops(model, TRAINS, shape, remat=False)).model,
            "flops_apart": total(step_flops(self.model("tower"), TRAINS, apart, remat=False)).model,
        }

        def profile() -> dict[str, float]:
            with jax.profiler.trace(str(traces)):
                one(meshes.put_batch(batch, self.mesh))
            return longest_operations(traces)

        return found | told | cases.with_profile(deadline, found["seconds"], profile)

    def generate(self, share: str, data: dict[str, np.ndarray], deadline: float) -> dict[str, Any]:
        generator = Generator(self.model(share), Strategy(max_answer_tokens=self.sizes.answer))
        mask = np.ones(data["prompts"].shape, bool)
        found = cases.timed(
            lambda: generator(data["images"], data["prompts"], mask).tokens, deadline
        )
        return found | {"tokens": int(found.pop("result").size)}

    def rollout(
        self, case: cases.Case, share: str, data: dict[str, np.ndarray], deadline: float
    ) -> dict[str, Any]:
        """Answers drawn, told their probability under the base, and learned from once."""
        one, model = self.stepper("rollout", share)
        graphdef, trainable, frozen = partition(model, TRAINS)
        drawer = Generator(
            model,
            Strategy(max_answer_tokens=self.sizes.answer, temperature=1.0, samples=cases.GROUP),
        )
        logprobs = jax.jit(
            lambda trainable, frozen, batch: answer_logprobs(
                nnx.merge(graphdef, trainable, frozen), batch, 1.0, 512
            )
        )
        advantages = cases.drawn_advantages(case)
        prompts = np.repeat(data["prompts"], cases.GROUP, axis=1)
        parts: dict[str, list[float]] = {"draw": [], "reference": [], "update": []}

        def step() -> int:
            clock = [time.perf_counter()]
            mask = np.ones(data["prompts"].shape, bool)
            index = np.arange(mask[..., 0].size, dtype=np.int32).reshape(mask.shape[:2])
            tokens = np.asarray(drawer(data["images"], data["prompts"], mask, index).tokens)
            clock.append(time.perf_counter())
            batch = meshes.put_batch(make_batch(data["images"], prompts, tokens), self.mesh)
            reference = jax.block_until_ready(logprobs(trainable, frozen, batch))
            clock.append(time.perf_counter())
            weights = np.ones(advantages.shape, np.float32)
            worth = meshes.put_batch((advantages, weights), self.mesh)
            one(Experience(batch, *worth, reference, None, {}))
            clock.append(time.perf_counter())
            for name, seconds in zip(parts, np.diff(clock), strict=True):
                parts[name].append(float(seconds))
            return tokens.size

        found = cases.timed(step, deadline)
        tokens = int(found.pop("result"))
        later = {f"{name}_seconds": float(np.median(s[1:])) for name, s in parts.items()}
        return found | later | {"tokens": tokens}


def make_batch(images: np.ndarray, prompts: np.ndarray, answers: np.ndarray) -> Batch:
    """Questions without boxes, nothing padded."""
    asked = prompts.shape[:2]
    return Batch(
        images=images,
        prefix_tokens=prompts,
        prefix_mask=np.ones(prompts.shape, bool),
        answer_tokens=answers.astype(np.int32),
        answer_mask=np.ones(answers.shape, bool),
        question_index=np.arange(np.prod(asked), dtype=np.int32).reshape(asked),
        coordinate_positions=np.zeros((*asked, 1, 4), np.int32),
        target_boxes=np.zeros((*asked, 1, 4), np.float32),
        box_mask=np.zeros((*asked, 1), bool),
    )


def longest_operations(traces: Path, count: int = 12) -> dict[str, float]:
    """Milliseconds of the operations that took most of a trace: of the device, where it has one."""
    files = sorted(traces.rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    planes = list(jax.profiler.ProfileData.from_file(str(files[-1])).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    spent: dict[str, float] = {}
    for plane in devices or planes:
        for line in plane.lines:
            if devices and line.name in ("Steps", "XLA Modules"):  # the same time again
                continue
            for event in line.events:
                spent[event.name] = spent.get(event.name, 0.0) + event.duration_ns / 1e6
    longest = sorted(spent, key=lambda name: -spent[name])[:count]
    return {name[:120]: round(spent[name], 3) for name in longest}


def device_peak_gb() -> float:
    """Most that the device has held so far; of a CPU the process."""
    stats = jax.local_devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 1e9 if stats else cases.host_peak_gb()


def main() -> None:
    shape, attention, deadline, traces, names = sys.argv[1:]
    if jax.default_backend() == "cpu" and attention == "cudnn":
        attention = "cudnn_interpreted"
    cases.refuse_cpu(shape, jax.default_backend())
    started = time.perf_counter()
    side = Ours(shape, attention)
    device = jax.local_devices()[0].device_kind
    reply(
        {
            "device": device,
            "attention": attention,
            "parameters": side.parameters,
            "load_seconds": time.perf_counter() - started,
            "versions": {"jax": jax.__version__, "backend": jax.default_backend()},
        }
    )
    # With one question an image the two ways of sharing do the same work; what is ours comes first.
    chosen = cases.chosen(shape, names)
    jobs = [(case, "image" if case.questions > 1 else "tower") for case in chosen]
    jobs += [(case, "tower") for case in chosen if case.questions > 1]
    compiled_in = time.perf_counter()
    # XLA gives Python's lock back while it compiles; what is still compiling when its turn has
    # come is waited for there.
    pool = concurrent.futures.ThreadPoolExecutor(max(1, min(len(jobs), (os.cpu_count() or 1) - 1)))
    done = [pool.submit(side.compile, *job) for job in jobs]
    half = float(deadline) - 0.5 * (float(deadline) - time.time())
    concurrent.futures.wait(done, timeout=max(0.0, half - time.time()))
    took = time.perf_counter() - compiled_in
    reply({"case": "compile", "seconds": took, "peak_gb": device_peak_gb()})
    for case, share in jobs:
        name = {"case": case.name, "share": share}
        if time.time() > float(deadline):
            reply(name | {"left_out": "no time left"})
            continue
        try:
            found = side.run(case, share, float(deadline), Path(traces))
        except Exception as error:  # out of memory, a kernel that is not there
            found = {"left_out": cases.shortened(error)}
        reply(name | found | {"peak_gb": device_peak_gb()})


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # whatever still compiles
