"""The worker of the other side: transformers and PEFT. Speaks JSON lines, see `worker.py`."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForImageTextToText,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
)

from bench import worker
from bench.cases import (
    BEGIN_IMAGE_ID,
    BOS_ID,
    END_IMAGE_ID,
    EOS_ID,
    IMAGE_ID,
    IMAGE_TOKENS,
    LORA_ALPHA,
    LORA_PARTS,
    LORA_RANK,
    SHAPES,
    Case,
)


def make_checkpoint(shape: str, directory: Path) -> int:
    """Saves a model with random weights; returns its number of parameters."""
    torch.manual_seed(0)
    sizes = SHAPES[shape]
    if shape == "paligemma":
        config = PaliGemmaConfig(
            text_config=dict(sizes["text"]),
            vision_config=dict(sizes["vision"]),
            projection_dim=sizes["vision"]["projection_dim"],
            image_token_index=IMAGE_ID,
        )
        model = PaliGemmaForConditionalGeneration(config)
    else:
        config = Gemma3Config(
            text_config=dict(sizes["text"]),
            vision_config=dict(sizes["vision"]),
            mm_tokens_per_image=IMAGE_TOKENS,
            image_token_index=IMAGE_ID,
            boi_token_index=BEGIN_IMAGE_ID,
            eoi_token_index=END_IMAGE_ID,
        )
        model = Gemma3ForConditionalGeneration(config)
    with torch.no_grad():  # biases and norms too, so that nothing is trivially equal
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())


class Theirs:
    """One loaded model; each call does one timed piece of work."""

    def __init__(self, shape: str, directory: str, compiled: bool) -> None:
        self.shape = shape
        start = time.perf_counter()
        base = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
        self.load_seconds = time.perf_counter() - start
        parts = "|".join(LORA_PARTS)
        config = LoraConfig(
            r=LORA_RANK, lora_alpha=LORA_ALPHA, target_modules=rf".*language_model.*\.({parts})"
        )
        self.model = get_peft_model(base, config)
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad], lr=1e-4
        )
        self.step_model = torch.compile(self.model) if compiled else self.model

    def inputs(self, case: Case, data: dict[str, np.ndarray], with_answer: bool) -> dict[str, Any]:
        """One row a question, each with its own image, as users of these libraries have it."""
        ids, kinds, labels = [], [], []
        for row, column in np.ndindex(case.images, case.questions):
            before = [IMAGE_ID] * IMAGE_TOKENS
            if self.shape == "gemma3":
                before = [BOS_ID, BEGIN_IMAGE_ID, *before, END_IMAGE_ID]
            prompt = before + data["prompts"][row, column].tolist()
            answer = data["answers"][row, column].tolist() if with_answer else []
            ids.append(prompt + answer)
            labels.append([-100] * len(prompt) + answer)
            if self.shape == "gemma3":
                kinds.append([int(token == IMAGE_ID) for token in ids[-1]])
            else:
                kinds.append([0] * len(prompt) + [1] * len(answer))
        pixels = torch.from_numpy(data["images"]).permute(0, 3, 1, 2)
        inputs = {
            "input_ids": torch.tensor(ids),
            "attention_mask": torch.ones(len(ids), len(ids[0]), dtype=torch.long),
            "pixel_values": pixels.repeat_interleave(case.questions, dim=0),
            "token_type_ids": torch.tensor(kinds),
        }
        return inputs | ({"labels": torch.tensor(labels)} if with_answer else {})

    @property
    def instructions(self) -> str:
        """The instruction set that torch has taken, and oneDNN's limit."""
        limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
        return torch.backends.cpu.get_cpu_capability() + (f", oneDNN {limit}" if limit else "")

    def train(self, case: Case) -> dict[str, Any]:
        inputs = self.inputs(case, worker.examples(self.shape, case), with_answer=True)
        self.model.train()
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.step_model(**inputs).loss
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "seconds": time.perf_counter() - start}

    def generate(self, case: Case) -> dict[str, Any]:
        inputs = self.inputs(case, worker.examples(self.shape, case), with_answer=False)
        self.model.eval()
        start = time.perf_counter()
        with torch.inference_mode():
            ids = self.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=case.answer_tokens,
                min_new_tokens=case.answer_tokens,
                eos_token_id=EOS_ID,
                pad_token_id=0,
            )
        seconds = time.perf_counter() - start
        new = ids[:, inputs["input_ids"].shape[1] :]
        return {"seconds": seconds, "ids": new.tolist()}


if __name__ == "__main__":
    if sys.argv[1] == "make":
        print(make_checkpoint(sys.argv[2], Path(sys.argv[3])))
    else:
        side = Theirs(sys.argv[1], sys.argv[2], compiled=sys.argv[3] == "compiled")
        worker.serve(side)
