"""Baselines of grounded reports, learned from training records."""

import collections
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import get_codec
from cxrjax.evaluation.baselines import box_fractions
from cxrjax.evaluation.predictions import Prediction
from cxrjax.files import replace_text
from cxrjax.images.decode import read_image
from cxrjax.images.geometry import resize
from cxrjax.metrics.text import tokens
from cxrjax.papers.grounded_reports.figures import box_counts
from cxrjax.records import QARecord, read_records

_SIDE, _MOST_SENTENCES, _MOST_REPORTS = 24, 12, 400


def write_baselines(train: Path, questions: Path, out: Path, image_root: Path | None) -> str:
    """Writes medoid.jsonl, nearest.jsonl and prevalence.jsonl; returns a line that says so.

    Raises:
        UserError: records or images cannot be read.
    """
    files = train, questions
    known, asked = (list(read_records(path)) for path in files)
    folders = [image_root or path.parent.parent for path in files]
    seen, shown = map(features, (known, asked), folders)
    nearest = [known[n].answer_text for n in np.argmax(shown @ seen.T, axis=1)]
    always = {"medoid": medoid(known), "prevalence": prevalence(known)}
    said = {name: [text] * len(asked) for name, text in always.items()} | {"nearest": nearest}
    out.mkdir(parents=True, exist_ok=True)
    for name, texts in said.items():
        pairs = zip(asked, texts, strict=True)
        lines = (json.dumps({"question_id": q.question_id, "text": text}) for q, text in pairs)
        replace_text(out / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))
    return f"{out}: {', '.join(f'{name}.jsonl' for name in said)}"


def features(records: Sequence[QARecord], folder: Path) -> Float[np.ndarray, "n d"]:
    """Returns each image's grey values on a coarse grid, of mean 0 and length 1."""
    small = [resize(read_image(folder / one.image_path), _SIDE, _SIDE)[0] for one in records]
    flat = np.stack(small).astype(np.float64).mean(axis=-1).reshape(len(small), -1)
    flat -= flat.mean(axis=1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)


def medoid(records: Sequence[QARecord]) -> str:
    """Returns the report that has most words in common with the others, of some 400."""
    some = records[:: max(1, len(records) // _MOST_REPORTS)]
    words = [collections.Counter(tokens(one.answer_text)) for one in some]
    alike = [sum((a & b).total() / (a.total() + b.total()) for b in words) for a in words]
    return some[int(np.argmax(alike))].answer_text


def prevalence(records: Sequence[QARecord]) -> str:
    """Returns frequent sentences with median boxes, as many as find most of some 400 reports."""
    places: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    for record in records:
        for one in record.answers:
            boxes = box_fractions(record.model_copy(update={"answers": [one]}))
            places[one.text.partition(" <loc")[0]].append(boxes)
    said, some = [], records[:: max(1, len(records) // _MOST_REPORTS)]
    for text, every in sorted(places.items(), key=lambda item: -len(item[1]))[:_MOST_SENTENCES]:
        most = collections.Counter(map(len, every)).most_common(1)[0][0]
        typical = np.median([boxes for boxes in every if len(boxes) == most], axis=0)
        shown = (get_codec("paligemma").encode(box[None], 1, 1) for box in typical)
        said.append(" ".join([text, *shown]))

    def f1(report: str) -> float:
        line = Prediction("", report, None, None, "ok")
        right, given, there = np.sum([box_counts(one, line, None) for one in some], axis=0)
        return float(2 * right / max(given + there, 1))

    return max((" ".join(said[: n + 1]) for n in range(len(said))), key=f1)
