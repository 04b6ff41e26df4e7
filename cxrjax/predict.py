"""Answers questions with a model of ours, or a baseline: a line of predictions for each question.

    python -m cxrjax.predict --workdir=runs/vindr --questions=DIR/questions/validation.jsonl \\
        --out=predictions.jsonl
    python -m cxrjax.predict --checkpoint=data/demo_base --prompt=detect --questions=... --out=...
    python -m cxrjax.predict --runner=prior_box --train=DIR/records/train.jsonl --questions=... \\
        --out=...

The questions file carries no answers (`build` writes it; a records file works too, its answers are
not looked at). Where a question continues another one of the file and that one's answer is null in
its history, the other goes first and its prediction becomes the history; what was asked then is
left in OUT.turns.jsonl. A line has `question_id`, `text`, `boxes` (xyxy, fractions of the original
image), `labels`, `box_scores`, `answer_logprob` and `parse` (`ok`, or why no box could be read).
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tqdm

from cxrjax.benchmarks.prior_box import PriorBox
from cxrjax.cli import keep_compiled_programs, run
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.predictor import predict_questions
from cxrjax.decoding.strategy import read_decoding
from cxrjax.errors import UserError
from cxrjax.input_pipeline.dialogue import predict_in_turns
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.model_flags import add_model_flags, decoding_overrides
from cxrjax.records import read_records
from cxrjax.training.checkpoint import load_model
from cxrjax.training.data import example_config, open_tokenizer
from cxrjax.training.mixture_config import source_config


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = argparse.ArgumentParser(
        prog="python -m cxrjax.predict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add_model_flags(parser).add_argument(
        "--runner", choices=("prior_box",), help="a baseline: the mean box of each class"
    )
    add("--train", type=Path, metavar="FILE", help="records that --runner=prior_box averages")
    add("--step", type=int, help="of a training run, another checkpoint than the best")
    add("--questions", required=True, type=Path, metavar="FILE", help="questions (JSON Lines)")
    add("--out", required=True, type=Path, metavar="FILE", help="predictions to write")
    add("--images_per_batch", type=int, default=8)
    flags = parser.parse_args(argv)
    if flags.runner and not flags.train:
        parser.error(f"--runner={flags.runner} needs --train")
    return flags


def predict(
    model_directory: Path,
    questions: Path,
    out: Path,
    *,
    step: int | None = None,
    image_root: Path | None = None,
    prompt: str | None = None,
    mixture_source: str | None = None,
    images_per_batch: int = 8,
    decoding: Mapping[str, Any] | None = None,
) -> int:
    """Writes predictions and returns how many.

    Args:
        mixture_source: of a run on a mixture, the source whose prompt and codec are used.
        decoding: `decoding.*` keys in place of the model's own.

    Raises:
        UserError: no such model, questions that cannot be read, or options that do not go
            together.
    """
    if images_per_batch < 1:
        raise UserError(f"--images_per_batch={images_per_batch}: expected at least 1")
    model, config, tokenizer_path = load_model(model_directory, step)
    if mixture_source is not None:
        config = source_config(config, mixture_source)
    config.data.prompt = prompt or config.data.prompt
    config.decoding.update(decoding or {})
    # Questions may be longer than those the model was trained on; none is cut.
    longer = (32, 64, 128, 256, 512)
    buckets = config.data.prefix_buckets
    config.data.prefix_buckets = buckets + tuple(n for n in longer if n > max(buckets))
    tokenizer = open_tokenizer(tokenizer_path, config)
    source = RecordSource(questions, image_root, config.data.questions_per_image)
    if PROMPTS[config.data.prompt].needs_finding:
        source = source.without(
            {i for i, record in source.records() if not (record.variables or {}).get("finding")}
        )
    strategy, grammar = read_decoding(config.decoding, tokenizer, config.data.codec)
    generator = Generator(model, strategy, grammar)
    examples = example_config(config)

    def answer(questions: RecordSource) -> Iterable[Mapping[str, Any]]:
        return predict_questions(
            generator, questions, tokenizer, examples, images_per_batch=images_per_batch
        )

    lines = predict_in_turns(source, answer, out.with_name(out.name + ".turns.jsonl"))
    return write_predictions(out, lines, source.num_questions)


def write_predictions(out: Path, lines: Iterable[Mapping[str, Any]], total: int) -> int:
    """Writes a predictions file, whole or not at all, and returns its number of lines."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    count = 0
    with open(partial, "w", encoding="utf-8") as file:
        for line in tqdm.tqdm(lines, total=total, unit="question", desc=out.stem):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    partial.replace(out)
    return count


def main(argv: Sequence[str] | None = None) -> None:
    """Predicts what the flags ask for and says where it is."""
    flags = parse_arguments(argv)
    if flags.runner:
        baseline = PriorBox(read_records(flags.train))
        asked = list(read_records(flags.questions))
        count = write_predictions(flags.out, baseline.predict(asked), len(asked))
        print(f"{flags.out}: {count:,} predictions")
        return
    keep_compiled_programs()
    count = predict(
        flags.workdir or flags.checkpoint,
        flags.questions,
        flags.out,
        step=flags.step,
        image_root=flags.image_root,
        prompt=flags.prompt,
        mixture_source=flags.source,
        images_per_batch=flags.images_per_batch,
        decoding=decoding_overrides(flags),
    )
    print(f"{flags.out}: {count:,} predictions")


if __name__ == "__main__":
    run(main)
