"""Cases of the reinforcement learning benchmark: a small PaliGemma, questions, the reward."""

import dataclasses
import itertools
import re
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Sizes as transformers' configurations name them; 256 image tokens, 6 M parameters. Of so small a
# vocabulary most tokens are locations, so that a model of random weights draws boxes.
SHAPE: dict[str, dict[str, Any]] = {
    "text": {
        "model_type": "gemma",
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "vocab_size": 1664,
    },
    "vision": {
        "hidden_size": 192,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "patch_size": 14,
        "image_size": 224,
        "projection_dim": 256,
        "vision_use_head": False,
    },
}
IMAGE_SIDE, IMAGE_TOKENS = 224, 256
PAD_ID, EOS_ID, BOS_ID, UNKNOWN_ID, NEWLINE_ID = 0, 1, 2, 3, 4
WORD_IDS = (5, 511)
IMAGE_ID, LOC_START, SEG_START = 511, 512, 1536
# Standard deviations of random weights: of the table so small that no token repeats itself.
WEIGHT_SCALE, TABLE_SCALE = 0.05, 0.01

GROUP = 8
PROMPT_TOKENS, ANSWER_TOKENS = 16, 32
LORA_RANK, LORA_ALPHA = 16, 32.0
LORA_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
LEARNING_RATE, KL_WEIGHT, EPSILONS = 1e-4, 0.02, (0.2, 0.28)


@dataclasses.dataclass(frozen=True)
class Questions:
    """Images with questions, the same for both sides.

    Attributes:
        images: RGB, uint8 [I, S, S, 3].
        words: of each question, [I, Q, PROMPT_TOKENS - 2]: between <bos> and newline.
        bins: of the one true box of each, y0, x0, y1, x1, [I, Q, 4].
        answers: other ids, to compare probabilities by, [I, Q, ANSWER_TOKENS].
    """

    images: np.ndarray
    words: np.ndarray
    bins: np.ndarray
    answers: np.ndarray


def make_questions(images: int, questions: int) -> Questions:
    rng = np.random.default_rng(0)
    asked = (images, questions)
    corners = np.sort(rng.integers(0, 1024, (*asked, 2, 2)), axis=-2)
    return Questions(
        rng.integers(0, 256, (images, IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8),
        rng.integers(*WORD_IDS, (*asked, PROMPT_TOKENS - 2)),
        corners.reshape(*asked, 4),
        rng.integers(WORD_IDS[0], SEG_START, (*asked, ANSWER_TOKENS)),
    )


def token_text(token: int) -> str:
    """A token as the tokenizers of both sides write it."""
    if LOC_START <= token < SEG_START:
        return f"<loc{token - LOC_START:04d}>"
    return f"w{token}"


def reward(ids: Sequence[int], true_bins: Sequence[int]) -> float:
    """The best IoU of an answer's boxes with the true one, divided by how many boxes there are.

    What `mean_iou` of cxrjax/training/rl/rewards.py is where one box is true: location tokens that
    follow each other are boxes by fours, and none where they do not come out even, unless the
    answer ends there; a box with swapped corners has no area.
    """
    found, end = [], 0
    for is_location, run in itertools.groupby(ids, lambda i: LOC_START <= i < SEG_START):
        bins = [i - LOC_START for i in run]
        end += len(bins)
        if is_location and (len(bins) % 4 == 0 or end == len(ids)):
            found += [bins[i : i + 4] for i in range(0, len(bins) - 3, 4)]
    return max((_iou(box, true_bins) for box in found), default=0.0) / max(len(found), 1)


def _iou(a: Sequence[int], b: Sequence[int]) -> float:
    def area(y0: float, x0: float, y1: float, x1: float) -> float:
        return max(y1 - y0, 0) * max(x1 - x0, 0)

    over = area(max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3]))
    if not area(*a):
        return 0.0
    return over / (area(*a) + area(*b) - over)


def example_answers(count: int = 64) -> Iterator[tuple[list[int], list[int]]]:
    """Answers and true boxes to compare rewards by: of random tokens, four in five of them bins."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        words = rng.integers(*WORD_IDS, ANSWER_TOKENS)
        bins = LOC_START + rng.integers(0, 1024, ANSWER_TOKENS)
        ids = np.where(rng.random(ANSWER_TOKENS) < 0.8, bins, words)
        corners = np.sort(rng.integers(0, 1024, (2, 2)), axis=0)
        yield ids.tolist(), corners.reshape(-1).tolist()


def clock() -> np.ndarray:
    """Seconds on the wall and of this process's threads, of which differences are taken."""
    return np.array([time.perf_counter(), time.process_time()])


def reset_peak() -> None:
    """Forgets the process's peak of memory, where Linux lets it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_gb() -> float:
    """GB that the process held at most, since `reset_peak`."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found.group(1)) / 1024**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
