"""Baselines of grounded reports, learned from training records."""

import collections
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cxrjax.evaluation.text_scores.sentences import reference_text
from cxrjax.files import replace_text
from cxrjax.images.decode import read_image
from cxrjax.images.geometry import resize
from cxrjax.metrics.text import tokens
from cxrjax.papers.grounded_reports.figures import frequent_sentences
from cxrjax.records import QARecord, read_records

_SIDE, _MOST_REPORTS = 24, 400


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
    texts = [reference_text(one) for one in known]
    always = {"medoid": medoid(known), "prevalence": frequent_sentences(texts)}
    said = {name: [text] * len(asked) for name, text in always.items()} | {"nearest": nearest}
    out.mkdir(parents=True, exist_ok=True)
    for name, answers in said.items():
        pairs = zip(asked, answers, strict=True)
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
