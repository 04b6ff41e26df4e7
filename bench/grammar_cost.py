"""Cost of the answer grammar: greedy answers without one, with `boxes`, and with `findings`.

    python -m bench.grammar_cost [--tokenizer=data/demo_base/tokenizer.model]

Random weights of the `tiny` preset with as many embeddings as the tokenizer has entries, the same
inputs, no stop tokens, so that every run takes as many steps. The runs are interleaved; printed are
the medians and their ratios to no grammar.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flax import nnx

from cxrjax import cli
from cxrjax.decoding.answer_forms import answer_grammar
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.input_pipeline.tokenizer import load_tokenizer
from cxrjax.models import PRESETS, VLM

FORMS = ("none", "boxes", "findings")
# The findings of ChestX-ray14 (arXiv 1705.02315).
NAMES = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Effusion",
    "Emphysema",
    "Fibrosis",
    "Hernia",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pleural Thickening",
    "Pneumonia",
    "Pneumothorax",
)
_ROWS, _QUESTIONS, _PREFIX = 4, 8, 16


def measure(tokenizer_file: Path, answer_tokens: int, runs: int) -> dict[str, float]:
    """Median seconds of one batch (4 images, 8 questions each), by answer form."""
    tokenizer = load_tokenizer(tokenizer_file)
    config = PRESETS["tiny"]
    decoder = dataclasses.replace(config.decoder, vocab_size=tokenizer.vocab_size)
    config = dataclasses.replace(config, decoder=decoder)
    assert config.vision is not None
    model = VLM(config, rngs=nnx.Rngs(0), share="image")
    rng = np.random.default_rng(0)
    side, shape = config.vision.image_size, (_ROWS, _QUESTIONS, _PREFIX)
    inputs = (
        rng.integers(0, 256, (_ROWS, side, side, 3)).astype(np.uint8),
        rng.integers(1100, tokenizer.vocab_size, shape).astype(np.int32),
        np.ones(shape, bool),
    )
    strategy = Strategy(answer_tokens)
    generators = {
        form: Generator(model, strategy, answer_grammar(form, tokenizer, NAMES)) for form in FORMS
    }
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    for run in range(runs + 1):
        for form, generator in generators.items():
            start = time.perf_counter()
            generator(*inputs)
            if run > 0:  # the first one compiles
                seconds[form].append(time.perf_counter() - start)
    return {form: statistics.median(times) for form, times in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.grammar_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    default = Path("data/demo_base/tokenizer.model")
    parser.add_argument("--tokenizer", type=Path, default=default, metavar="FILE")
    parser.add_argument("--answer_tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=15)
    flags = parser.parse_args(arguments)
    medians = measure(flags.tokenizer, flags.answer_tokens, flags.runs)
    for form, median in medians.items():
        print(f"{form:10} {median:8.3f} s   {median / medians[FORMS[0]]:.3f} of no grammar")


if __name__ == "__main__":
    cli.run(main)
