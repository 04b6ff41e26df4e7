"""Shows predictions of ViX-Ray beside the references, errors in colour, and a sheet to fill in.

    python -m bench.vix_ray_errors --references=DIR/records/test.jsonl \\
        --predictions=tuned.jsonl --out=DIR --examples=50

Writes to --out:

    errors.html   fact by fact, as in appendix D: correct blue, incorrect red, missing purple,
                  hallucinated and redundant orange; guessed by rules
    errors.csv    a line for each fact with the guess, and columns to fill in by hand: `judged` as
                  one of correct, incorrect, redundant (section 4.4), missing, refusal; `comment`
    spans.jsonl   all answers: both texts (Unicode's form NFC), and where in each the words of each
                  fact stand: [start, end, label]
    errors.json   how many of each label
"""

import argparse
import csv
import io
import json
import random
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cxrjax.cli import run
from cxrjax.evaluation.benchmark import read_references
from cxrjax.evaluation.predictions import check_known, read_predictions
from cxrjax.evaluation.text_tables import template
from cxrjax.files import cell, writing
from cxrjax.papers.vix_ray.counts import VixRayQuestion, read_question
from cxrjax.paths import in_path, out_path
from cxrjax.radiology_text.facts import VIETNAMESE, Aligned, FactLabel, align, is_refusal
from cxrjax.records import read_records

REFUSAL = "refusal"
FIELDS = (
    "question_id",
    "kind",
    "number",
    "predicted",
    "reference",
    "guess",
    "similarity",
    "judged",
    "comment",
)


class DissectedAnswer(NamedTuple):
    """One answer taken apart. `refused`: it declines, so that nothing in it is a fact."""

    question_id: str
    kind: str
    text: str
    reference: str
    refused: bool
    aligned: list[Aligned]


def examine(
    references: Mapping[str, VixRayQuestion], texts: Mapping[str, str]
) -> list[DissectedAnswer]:
    """The answers, taken apart; of a refusal, every fact of the reference is missing."""
    examples = []
    for question_id, text in texts.items():
        reference = references[question_id]
        refused = is_refusal(text)
        aligned = align(text, reference.text, VIETNAMESE)
        examples.append(
            DissectedAnswer(question_id, reference.kind, text, reference.text, refused, aligned)
        )
    return examples


def count(examples: Sequence[DissectedAnswer]) -> dict[str, int]:
    """Facts by label, and answers that refuse."""
    labels = Counter(part.label for example in examples for part in example.aligned)
    return {
        **{str(label): labels[label] for label in FactLabel},
        REFUSAL: sum(example.refused for example in examples),
        "answers": len(examples),
    }


def to_csv(examples: Sequence[DissectedAnswer]) -> str:
    """The sheet, with a BOM so that spreadsheet programs read it as UTF-8."""
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, FIELDS, lineterminator="\r\n")
    writer.writeheader()
    for example in examples:
        row = {"question_id": example.question_id, "kind": example.kind}
        if example.refused:
            writer.writerow({**row, "number": 0, "predicted": cell(example.text), "guess": REFUSAL})
        for number, part in enumerate(example.aligned, start=1):
            writer.writerow(
                {
                    **row,
                    "number": number,
                    "predicted": cell(part.predicted),
                    "reference": cell(part.reference),
                    "guess": part.label,
                    "similarity": f"{part.similarity:.2f}",
                }
            )
    return "\ufeff" + sheet.getvalue()


def spans(example: DissectedAnswer) -> dict[str, Any]:
    """A line of spans.jsonl: what to colour in both texts."""
    marked: dict[str, list[tuple[int, int, str]]] = {"predicted": [], "reference": []}
    for part in example.aligned:
        for side, span in zip(marked, (part.predicted_span, part.reference_span), strict=True):
            if span is not None:
                marked[side].append((*span, str(part.label)))
    return {
        "question_id": example.question_id,
        "kind": example.kind,
        "refused": example.refused,
        "predicted_text": unicodedata.normalize("NFC", example.text),
        "reference_text": unicodedata.normalize("NFC", example.reference),
        **{side: sorted(found) for side, found in marked.items()},
    }


def to_html(examples: Sequence[DissectedAnswer], title: str) -> str:
    """The page."""
    return template("bench", "vix_ray_errors.html.j2").render(
        examples=examples, title=title, counts=count(examples)
    )


def write_errors(
    references: Path, predictions: Path, out: Path, examples: int = 50, seed: int = 0
) -> dict[str, int]:
    """Writes the four files and returns the counts of errors.json, over all predictions.

    Args:
        examples: answers on the page and in the sheet, drawn from all.

    Raises:
        UserError: a file is unusable.
    """
    true = read_references(read_records(references), str(references), read_question).questions
    lines = read_predictions(predictions)
    check_known(lines, true, str(predictions))
    found = examine(true, {line.question_id: line.text for line in lines})
    chosen = random.Random(f"{seed}/errors").sample(range(len(found)), min(examples, len(found)))
    drawn = [found[index] for index in sorted(chosen)]
    counts = count(found)
    contents: dict[str, Any] = {
        "errors.html": to_html(drawn, predictions.stem),
        "errors.csv": to_csv(drawn),
        "spans.jsonl": "".join(
            json.dumps(spans(example), ensure_ascii=False) + "\n" for example in found
        ),
        "errors.json": json.dumps({**counts, "examples_drawn": len(drawn)}, indent=1) + "\n",
    }
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (out / name).write_text(content, encoding="utf-8", newline="")
    return counts


def main(argv: Sequence[str] | None = None) -> None:
    """Writes what the flags ask for and prints the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.vix_ray_errors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--references", required=True, type=in_path, metavar="FILE", help="records with answers")
    add("--predictions", required=True, type=in_path, metavar="FILE", help="of one system")
    add("--examples", type=int, default=50, help="answers shown, drawn from all (default 50)")
    add("--seed", type=int, default=0, help="of the draw (default 0)")
    add("--out", required=True, type=out_path, metavar="DIR", help="folder to write to")
    flags = parser.parse_args(argv)
    if flags.examples < 1:
        parser.error("--examples must be at least 1")
    counts = write_errors(
        flags.references, flags.predictions, flags.out, flags.examples, flags.seed
    )
    print(", ".join(f"{name}: {number:,}" for name, number in counts.items()))
    print(f"{flags.out}: errors.html, errors.csv, spans.jsonl, errors.json")


if __name__ == "__main__":
    run(main)
