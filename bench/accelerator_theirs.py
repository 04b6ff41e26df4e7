"""transformers' and PEFT's side of the accelerator's benchmark.

    accelerator_theirs.py SHAPE {eager,compiled,liger} DEADLINE TRACES CASES

Speaks as accelerator_ours.py does. A row a question, as users of these libraries have it; bfloat16
weights under autocast, adapters in float32, as `Trainer(bf16=True)` has them.
"""

import sys
import time
from typing import Any

import numpy as np
import peft
import torch
import transformers
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from bench import accelerator_cases as cases
from bench.process import reply

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_model(sizes: cases.Sizes) -> Any:
    config = Gemma3Config(
        text_config={
            "hidden_size": sizes.width,
            "intermediate_size": sizes.mlp,
            "num_hidden_layers": sizes.depth,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "vocab_size": sizes.vocab_size,
            "query_pre_attn_scalar": sizes.head_dim,
            "sliding_window": 1024,
        },
        vision_config={
            "hidden_size": sizes.vision_width,
            "intermediate_size": sizes.vision_mlp,
            "num_hidden_layers": sizes.vision_depth,
            "num_attention_heads": sizes.vision_heads,
            "image_size": sizes.image_size,
            "patch_size": sizes.patch_size,
            "vision_use_head": False,
        },
        mm_tokens_per_image=sizes.image_tokens,
        image_token_index=cases.IMAGE_ID,
        boi_token_index=cases.BEGIN_IMAGE_ID,
        eoi_token_index=cases.END_IMAGE_ID,
    )
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(DEVICE):
            model = Gemma3ForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(default)
    return model


class Theirs:
    def __init__(self, shape: str, variant: str) -> None:
        self.sizes, self.compiled = cases.SIZES[shape], variant == "compiled"
        if variant == "liger":  # kernels of its own, and no logits of all positions
            from liger_kernel.transformers import apply_liger_kernel_to_gemma3

            apply_liger_kernel_to_gemma3()
        base = make_model(self.sizes)
        self.parameters = sum(p.numel() for p in base.parameters())
        parts = "|".join(cases.LORA_PARTS)
        config = peft.LoraConfig(
            r=cases.LORA_RANK,
            lora_alpha=int(cases.LORA_ALPHA),
            target_modules=rf".*language_model.*\.({parts})",
        )
        self.model = peft.get_peft_model(base, config)
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=cases.LEARNING_RATE,
            weight_decay=0.0,
        )
        self.step_model = torch.compile(self.model) if self.compiled else self.model

    def inputs(
        self, images: np.ndarray, prompts: np.ndarray, answers: np.ndarray | None
    ) -> dict[str, Any]:
        """Returns the inputs for questions [I, Q, ...], on the device."""
        rows = prompts.shape[0] * prompts.shape[1]
        image = [cases.BOS_ID, cases.BEGIN_IMAGE_ID]
        image += [cases.IMAGE_ID] * self.sizes.image_tokens + [cases.END_IMAGE_ID]
        ids = [np.tile(image, (rows, 1)), prompts.reshape(rows, -1)]
        before = sum(part.shape[1] for part in ids)
        if answers is not None:
            ids.append(answers.reshape(rows, -1))
        joined = torch.tensor(np.concatenate(ids, axis=1), dtype=torch.long, device=DEVICE)
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).to(DEVICE, torch.bfloat16)
        inputs = {
            "input_ids": joined,
            "attention_mask": torch.ones_like(joined),
            "pixel_values": pixels.repeat_interleave(prompts.shape[1], dim=0),
            "token_type_ids": (joined == cases.IMAGE_ID).long(),
        }
        if answers is not None:
            labels = joined.clone()
            labels[:, :before] = -100
            inputs["labels"] = labels
        return inputs

    def run(self, case: cases.Case, deadline: float) -> dict[str, Any]:
        data = cases.make_questions(self.sizes, case)
        return getattr(self, case.kind)(case, data, deadline)

    def learn(self, loss: torch.Tensor) -> float:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def train(
        self, case: cases.Case, data: dict[str, np.ndarray], deadline: float
    ) -> dict[str, Any]:
        self.model.train()

        def step() -> float:
            inputs = self.inputs(data["images"], data["prompts"], data["answers"])
            with autocast():
                loss = self.step_model(**inputs).loss
            return self.learn(loss)

        found = cases.timed(step, deadline)
        told = {"loss": found.pop("result")}
        profiled = cases.with_profile(deadline, found["seconds"], lambda: longest_operations(step))
        return found | told | profiled

    def drawn(self, data: dict[str, np.ndarray], **settings: Any) -> torch.Tensor:
        self.model.eval()
        inputs = self.inputs(data["images"], data["prompts"], None)
        if self.compiled and DEVICE == "cuda":
            settings["cache_implementation"] = "static"  # which has transformers compile
        with torch.inference_mode(), autocast():
            ids = self.model.generate(
                **inputs,
                max_new_tokens=self.sizes.answer,
                min_new_tokens=self.sizes.answer,
                eos_token_id=1,
                pad_token_id=0,
                **settings,
            )
        return ids[:, inputs["input_ids"].shape[1] :]

    def generate(
        self, case: cases.Case, data: dict[str, np.ndarray], deadline: float
    ) -> dict[str, Any]:
        found = cases.timed(lambda: self.drawn(data, do_sample=False).cpu(), deadline)
        return found | {"tokens": found.pop("result").numel()}

    def rollout(
        self, case: cases.Case, data: dict[str, np.ndarray], deadline: float
    ) -> dict[str, Any]:
        """Answers drawn, told their probability under the base, and learned from once."""
        advantages = torch.from_numpy(cases.drawn_advantages(case)).to(DEVICE).reshape(-1, 1)
        prompts = np.repeat(data["prompts"], cases.GROUP, axis=1)
        parts: dict[str, list[float]] = {"draw": [], "reference": [], "update": []}

        def logprobs(inputs: dict[str, Any]) -> torch.Tensor:
            labels, count = inputs["labels"], self.sizes.answer
            given = {name: value for name, value in inputs.items() if name != "labels"}
            with autocast():
                logits = self.step_model(**given, logits_to_keep=count + 1).logits
            found = torch.log_softmax(logits[:, :-1].float(), dim=-1)
            return torch.gather(found, 2, labels[:, -count:, None])[..., 0]

        def step() -> int:
            clock = [time.perf_counter()]
            settings = {"do_sample": True, "top_k": 0, "num_return_sequences": cases.GROUP}
            tokens = self.drawn(data, **settings).cpu().numpy()
            clock.append(time.perf_counter())
            # A drawn image token would want an image.
            tokens = np.where(tokens == cases.IMAGE_ID, cases.FIRST_TEXT_ID, tokens)
            answers = tokens.reshape(*prompts.shape[:2], -1)
            inputs = self.inputs(data["images"], prompts, answers)
            self.model.train()
            with torch.no_grad(), self.model.disable_adapter():
                reference = logprobs(inputs)
            wait()
            clock.append(time.perf_counter())
            own = logprobs(inputs)
            ratio = torch.exp(own - own.detach())
            low, high = cases.EPSILONS
            bounded = torch.clamp(ratio, 1 - low, 1 + high)
            gain = torch.minimum(ratio * advantages, bounded * advantages)
            away = reference - own
            kl = torch.exp(away) - away - 1
            self.learn((cases.KL_WEIGHT * kl - gain).mean())
            wait()
            clock.append(time.perf_counter())
            for name, seconds in zip(parts, np.diff(clock), strict=True):
                parts[name].append(float(seconds))
            return tokens.size

        found = cases.timed(step, deadline)
        tokens = int(found.pop("result"))
        later = {f"{name}_seconds": float(np.median(s[1:])) for name, s in parts.items()}
        return found | later | {"tokens": tokens}


def autocast() -> Any:
    return torch.autocast(DEVICE, torch.bfloat16)


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def longest_operations(step: Any, count: int = 12) -> dict[str, float]:
    """Milliseconds of the operations that took the most of a step."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        step()
        wait()
    clock = f"self_{'device' if DEVICE == 'cuda' else 'cpu'}_time_total"
    events = sorted(profile.key_averages(), key=lambda event: -getattr(event, clock))
    return {event.key[:120]: round(getattr(event, clock) / 1e3, 3) for event in events[:count]}


def device_peak_gb() -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if DEVICE == "cuda" else cases.host_peak_gb()


def main() -> None:
    shape, variant, deadline = sys.argv[1], sys.argv[2], float(sys.argv[3])
    cases.refuse_cpu(shape, DEVICE)
    started = time.perf_counter()
    side = Theirs(shape, variant)
    reply(
        {
            "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
            "parameters": side.parameters,
            "load_seconds": time.perf_counter() - started,
            "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft)},
        }
    )
    for case in cases.chosen(shape, sys.argv[5], theirs=True):
        if time.time() > deadline:
            reply({"case": case.name, "left_out": "no time left"})
            continue
        try:
            found = side.run(case, deadline)
        except Exception as error:  # out of memory, what cannot be compiled
            found = {"left_out": cases.shortened(error)}
        side.optimizer.zero_grad(set_to_none=True)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()  # the next case, or what is left of the memory, begins anew
        reply({"case": case.name, **found, "peak_gb": device_peak_gb()})


if __name__ == "__main__":
    main()
