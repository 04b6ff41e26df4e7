"""Draws sentences of scene graphs to be labelled by hand, for `refiner_accuracy` (section 3.1.2).

    python -m cxrjax.papers.gemex.construct.draw_sentences --source=CHEST_IMAGENOME --reports=100 \\
        --out=labels.jsonl

Each line has the regions that the rules give the sentence, to be put right, and `rule` null, to be
filled in where a rule of Table 9 decides. The paper drew 100 reports of Chest ImaGenome's test set,
some 367 sentences. Sentences of credentialed reports may not be passed on, and stay out of the
repository.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cxrjax.cli import command_parser, run
from cxrjax.errors import UserError
from cxrjax.papers.gemex.construct.refine import refine_sentence
from cxrjax.papers.sources import mimic_tables
from cxrjax.papers.sources.chest_imagenome import find_scene_graphs, read_reports
from cxrjax.records_io.quality import QualityLog


def draw(source: Path, reports: int, seed: int) -> Iterator[dict[str, Any]]:
    """Lines of a label file: every sentence of as many reports of the test split.

    Raises:
        UserError: there are no graphs of the test split (without a split table: none at all).
    """
    quality = QualityLog()
    graphs = find_scene_graphs(source, quality)
    table = mimic_tables.find_table(source, mimic_tables.SPLIT_PATTERN)
    splits = mimic_tables.read_splits(table) if table else {}
    ids = sorted(one for one in graphs if splits.get(one, "test") == "test")
    if not ids:
        raise UserError(f"{source}: no scene graphs of the test split; expected *_SceneGraph.json")
    random.Random(f"{seed}/sentences to label").shuffle(ids)
    # Sizes matter to boxes alone, which nobody looks at here.
    for report in read_reports(graphs, ids[:reports], {}, quality):
        for number, sentence in enumerate(report.sentences):
            given = refine_sentence(sentence)
            regions = [] if isinstance(given, str) else [region for _, region in given]
            yield {
                "id": f"{report.image_id}-{number}",
                "rule": None,
                "sentence": sentence.text,
                "regions": list(dict.fromkeys(regions)),
            }


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the file to label."""
    parser = command_parser("papers.gemex.construct.draw_sentences", __doc__)
    add = parser.add_argument
    add("--source", required=True, type=Path, help="folder or zip of scene graphs")
    add("--reports", type=int, default=100, help="how many (default 100)")
    add("--seed", type=int, default=0, help="which (default 0)")
    add("--out", required=True, type=Path, help="JSON Lines to write; must not be there")
    flags = parser.parse_args(argv)
    lines = list(draw(flags.source, flags.reports, flags.seed))
    try:
        with open(flags.out, "x", encoding="utf-8") as out:
            out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    except FileExistsError:
        raise UserError(
            f"{flags.out}: is there, and may hold labels; choose another --out"
        ) from None
    except OSError as error:
        raise UserError(f"{flags.out}: cannot write: {error.strerror}") from None
    print(f"{flags.out}: {len(lines)} sentences to label")


if __name__ == "__main__":
    run(main)
