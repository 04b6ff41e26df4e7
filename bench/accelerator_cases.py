"""Cases of the accelerator's benchmark: MedGemma 4B's shape, two layers of it, or a tiny one."""

import dataclasses
import re
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BOS_ID, BEGIN_IMAGE_ID, END_IMAGE_ID, IMAGE_ID = 2, 4, 5, 6
# Ids of questions and answers: nothing special is among them.
FIRST_TEXT_ID = 10
LORA_RANK, LORA_ALPHA = 16, 32.0
LORA_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
GROUP = 8
EPSILONS, KL_WEIGHT, LEARNING_RATE = (0.2, 0.28), 0.02, 1e-4
ROUNDS = 5

# Operations per second in bfloat16, dense, as the makers publish them; by a part of the name.
_PEAK_FLOPS = {
    **{"B200": 2250e12, "H200": 989e12, "H100": 989e12, "GH200": 989e12, "A100": 312e12},
    **{"L40S": 362e12, "L40": 181e12, "L4": 121e12, "A10G": 70e12, "A10": 125e12},
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A model of Gemma 3's kind with SigLIP's tower."""

    image_size: int
    patch_size: int
    pool: int
    vision_width: int
    vision_depth: int
    vision_heads: int
    vision_mlp: int
    vocab_size: int
    width: int
    depth: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    prompt: int
    answer: int

    @property
    def image_tokens(self) -> int:
        return (self.image_size // self.patch_size // self.pool) ** 2


SIZES = {
    # arXiv 2503.19786, table 1 and the published configuration.
    "medgemma_4b": Sizes(
        *(896, 14, 4, 1152, 27, 16, 4304),
        *(262_208, 2560, 34, 8, 4, 256, 10_240),
        *(32, 64),
    ),
    # Its kernels in two layers: whether a device takes them at all.
    "thin": Sizes(
        *(896, 14, 4, 1152, 2, 16, 4304),
        *(8192, 2560, 2, 8, 4, 256, 10_240),
        *(32, 8),
    ),
    "tiny": Sizes(*(56, 14, 2, 48, 1, 2, 96), *(2048, 64, 1, 4, 2, 16, 128), *(6, 4)),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A piece of work: so many images with so many questions each.

    Attributes:
        kind: "train", "generate" or "rollout".
        ways: what ours does otherwise: "unrolled" or "scanned" layers, "features" in the place of
            pixels, "dropout" of 0.1, "recipe": configs/vindr_lora.py's own step. Theirs has none.
    """

    kind: str
    images: int
    questions: int
    ways: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ", ".join((self.kind, f"{self.images} x {self.questions}", *self.ways))


# In this order: on a short loan the end is not reached.
CASES = {
    "medgemma_4b": (
        Case("train", 4, 1),
        Case("train", 4, 1, ("scanned",)),
        Case("train", 16, 1),
        Case("train", 16, 1, ("features",)),
        Case("train", 16, 1, ("scanned",)),
        Case("train", 4, 1, ("dropout",)),
        Case("train", 16, 1, ("recipe",)),
        Case("generate", 8, 1),
        Case("generate", 64, 1),
        Case("generate", 1, 16),
        Case("rollout", 2, 2),
        Case("train", 2, 8),
    ),
    "thin": (Case("train", 2, 2), Case("generate", 2, 1), Case("rollout", 1, 1)),
    "tiny": (
        Case("train", 1, 2),
        Case("generate", 1, 1),
        Case("rollout", 1, 1),
        Case("train", 8, 1, ("recipe",)),
        Case("train", 2, 1, ("features",)),
    ),
}
# Of the recipe's step.
RECIPE_ANSWER, RECIPE_DROPOUT, RECIPE_MICRO_BATCHES = 512, 0.1, 8


def chosen(shape: str, names: str, theirs: bool = False) -> list[Case]:
    """Cases of a shape with one of these parts, apart by `|`, in their names; empty: all."""
    parts = [part for part in names.split("|") if part]
    every = [case for case in CASES[shape] if not (theirs and case.ways)]
    return [case for case in every if not parts or any(part in case.name for part in parts)]


def make_questions(sizes: Sizes, case: Case) -> dict[str, np.ndarray]:
    """Images in [-1, 1] [I, H, W, 3], ids of prompts and answers [I, Q, ...]."""
    rng = np.random.default_rng(0)
    answer = RECIPE_ANSWER if "recipe" in case.ways and sizes.depth > 1 else sizes.answer
    asked, side = (case.images, case.questions), sizes.image_size
    ids = (FIRST_TEXT_ID, sizes.vocab_size)
    return {
        "images": rng.uniform(-1, 1, (case.images, side, side, 3)).astype(np.float32),
        "prompts": rng.integers(*ids, (*asked, sizes.prompt)).astype(np.int32),
        "answers": rng.integers(*ids, (*asked, answer)).astype(np.int32),
    }


def drawn_advantages(case: Case) -> np.ndarray:
    """Advantage of each sampled answer, [I, Q * GROUP], of mean 0 in each group."""
    shape = (case.images, case.questions, GROUP)
    drawn = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    drawn = (drawn - drawn.mean(-1, keepdims=True)) / drawn.std(-1, keepdims=True)
    return drawn.reshape(case.images, -1)


def with_profile(deadline: float, seconds: float, take: Callable[[], Any]) -> dict[str, Any]:
    """The `profile` of a step where there is time; why not, where there is none to be had."""
    if time.time() + 3 * seconds + 10 > deadline:
        return {}
    try:
        return {"profile": take()}
    except Exception as error:  # what was timed must not go with it
        return {"no_profile": shortened(error)}


def shortened(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:600]}"


def refuse_cpu(shape: str, device: str) -> None:
    """Ends a side that would take hours."""
    if device == "cpu" and shape != "tiny":
        raise SystemExit("no accelerator is seen here; --shape=tiny runs without one")


def peak_flops(device: str) -> float | None:
    """Peak FLOP/s of a device by its name; None: not in the table."""
    return next((flops for name, flops in _PEAK_FLOPS.items() if name in device), None)


def host_peak_gb() -> float:
    """Most that this process has held."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    kilobytes = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * 1024 / 1e9


def timed(work: Callable[[], Any], deadline: float) -> dict[str, Any]:
    """A warm-up (compilation) and up to `ROUNDS` runs, fewer where time runs out.

    Args:
        work: ends when the device has; what it gives last is kept under `result`.
        deadline: of the clock `time.time`, by which the next run must begin.
    """
    started = time.perf_counter()
    result = work()
    first, seconds = time.perf_counter() - started, []
    for _ in range(ROUNDS):
        if seconds and time.time() + seconds[-1] > deadline:
            break
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    return {
        "seconds": statistics.median(seconds),
        "first_seconds": first,
        "rounds": len(seconds),
        "result": result,
    }
