"""Sentences of scene graphs to label, with the regions that rules give them."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
