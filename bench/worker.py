"""Shared code of both sides: the examples, and the loop that answers the runner's requests."""

import dataclasses
import json
import resource
import sys
from typing import Any, Protocol

import numpy as np

from bench.cases import PROMPT_TOKENS, SHAPES, TEXT_IDS, Case
from bench.process import reply


class Side(Protocol):
    """A loaded model of either side."""

    load_seconds: float

    @property
    def instructions(self) -> str:
        """The instruction set of its products."""
        ...

    def train(self, case: Case) -> dict[str, Any]: ...

    def generate(self, case: Case) -> dict[str, Any]: ...


def examples(shape: str, case: Case) -> dict[str, np.ndarray]:
    """Examples of both sides: images in [-1, 1] [I, H, W, 3], ids of prompts and answers."""
    rng = np.random.default_rng(0)
    side = SHAPES[shape]["vision"]["image_size"]
    questions = (case.images, case.questions)
    return {
        "images": rng.uniform(-1, 1, (case.images, side, side, 3)).astype(np.float32),
        "prompts": rng.integers(*TEXT_IDS, (*questions, PROMPT_TOKENS)).astype(np.int32),
        "answers": rng.integers(*TEXT_IDS, (*questions, case.answer_tokens)).astype(np.int32),
    }


def serve(side: Side) -> None:
    """Reads a case a line, does it, writes a line; ends with the input."""

    reply({"load_seconds": side.load_seconds, "instructions": side.instructions})
    for line in sys.stdin:
        case = Case(**json.loads(line))
        found = side.train(case) if case.kind == "train" else side.generate(case)
        # Kilobytes on Linux.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        reply(found | {"peak_gb": peak})


def request(case: Case) -> str:
    """The line that asks for a case."""
    return json.dumps(dataclasses.asdict(case))
