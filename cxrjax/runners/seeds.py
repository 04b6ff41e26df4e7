"""Sampled runs: several seeds, a predictions file each, and how much their answers differ.

What one sampled run scores is partly luck. So sampling takes at least three seeds; `score` given
all of their files prints the spread of every figure.
"""

import argparse
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.runners.base import Answer, answer_all

MIN_SEEDS = 3


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of `--seeds=0,1,2`, for argparse.

    Raises:
        argparse.ArgumentTypeError: not whole numbers, repeated, or fewer than three.
    """
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers, as 0,1,2") from None
    if len(set(seeds)) != len(seeds) or len(seeds) < MIN_SEEDS or min(seeds) < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected at least {MIN_SEEDS} different numbers from 0 on, as 0,1,2"
        )
    return seeds


def check_seeds(seeds: Sequence[int] | None, samples: bool) -> None:
    """Refuses sampling without seeds, and seeds without sampling.

    Raises:
        UserError: one without the other.
    """
    if samples and not seeds:
        raise UserError(
            "sampled answers differ from run to run: give at least three seeds, as --seeds=0,1,2, "
            "or --temperature=0 for the likeliest answer"
        )
    if seeds and not samples:
        raise UserError("--seeds is about sampling, and --temperature is 0; set one, such as 1")


def run_file(out: Path, seed: int | None) -> Path:
    """`out`, or for a seed the file of its run: p.jsonl -> p.seed0.jsonl."""
    return out if seed is None else out.with_suffix(f".seed{seed}{out.suffix}")


def answer_seeds(
    questions: RecordSource,
    sampler: Callable[[int | None], Answer],
    out: Path,
    seeds: Sequence[int],
) -> list[Path]:
    """Answers all questions once for each seed and returns the files.

    Raises:
        UserError: what the runner raises.
    """
    files = [run_file(out, seed) for seed in seeds]
    for seed, file in zip(seeds, files, strict=True):
        answer_all(questions, sampler(seed), file)
    return files


def describe_spread(files: Sequence[Path]) -> str:
    """How much the answers of several runs differ, in one line.

    Args:
        files: predictions of the same questions.
    """
    texts: dict[str, list[bytes]] = {}
    boxes, failures = np.zeros(len(files)), np.zeros(len(files))
    for run, file in enumerate(files):
        with open(file, encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                # A hash of each: the texts of many runs may be more than memory holds.
                digest = hashlib.sha256(line["text"].encode()).digest()[:8]
                texts.setdefault(line["question_id"], []).append(digest)
                boxes[run] += len(line["boxes"])
                failures[run] += line["parse"] != "ok"
    pairs = [a == b for said in texts.values() for a, b in itertools.combinations(said, 2)]
    same = [len(set(said)) == 1 for said in texts.values()]
    per_question = boxes / len(texts)
    return (
        f"{len(files)} runs of {len(texts):,} questions: {np.mean(same):.1%} answered in the same "
        f"words by all, {np.mean(pairs):.1%} by two; boxes a question "
        f"{per_question.mean():.2f} (standard deviation over runs {per_question.std(ddof=1):.2f}); "
        f"answers that failed to parse {failures.mean():.1f} ({failures.std(ddof=1):.1f})"
    )
