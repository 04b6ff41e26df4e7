"""Questions, answers, figures of both, and the command's flags and files; all made up."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from cxrjax.commands import score
from cxrjax.evaluation.benchmark import Answers
from cxrjax.evaluation.predictions import parse_prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.metrics.bootstrap import Bootstrap, resample
from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA
from cxrjax.records import QARecord

NO, FEW = Bootstrap(resamples=0), Bootstrap(resamples=20)
HEIGHT, WIDTH = 100, 200
BOX, OTHER = [20.0, 10.0, 100.0, 50.0], [120.0, 60.0, 180.0, 90.0]
FRACTIONS, OTHER_FRACTIONS = [0.1, 0.1, 0.5, 0.5], [0.6, 0.6, 0.9, 0.9]


def record_of(
    image="i0", number=0, asked="ILD", boxes=(), labels=None, kind="Is_there", answer=(), **fields
):
    """A question about one class (present where there are boxes), or, with labels, an open one.

    `answer` and `fields`: what else is said of its answer and of itself.
    """
    there = bool(boxes) if labels is None else bool(labels)
    named = asked or " and ".join(labels or ()) or "finding"
    own = {
        "text": f"Yes, {named}." if there else f"There is no {named}.",
        "labels": [asked] if labels is None else labels,
        "polarity": "pos" if there else "neg",
        "boxes_by_image": {image: [list(box) for box in boxes]} if len(boxes) else {},
    }
    return QARecord.model_validate(
        {
            "dataset": "synthetic",
            "split": "validation",
            "image_id": image,
            "image_path": f"{image}.png",
            "image_hw": (HEIGHT, WIDTH),
            "question_id": f"{image}-{number}",
            "question": f"Is there {asked}?" if asked else "What is there?",
            "question_type": kind,
            "variables": {"finding": asked} if asked else None,
            "answers": [own | dict(answer)],
            "negative_kind": None if there else "absent_class",
            **fields,
        }
    )


def line_of(record, text="", boxes=(), **fields):
    return {"question_id": record.question_id, "text": text, "boxes": list(boxes), **fields}


def predictions_of(lines):
    return [parse_prediction(line, "p:1") for line in lines]


def score_systems(records, systems, options, benchmark=VINDR_CXR_VQA):
    references = benchmark.read(records, "r.jsonl", options.gt_mode)
    answers = {name: Answers(predictions, name) for name, predictions in systems.items()}
    return benchmark.score(references, answers, options)


class _Lazy(Mapping):
    """Figures by name, each made where it is asked for: there are a thousand of them."""

    def __init__(self, names, make):
        self._names, self._make = names, make

    def __getitem__(self, name):
        return self._make(self._names[name])

    def __iter__(self):
        return iter(self._names)

    def __len__(self):
        return len(self._names)


def scores_of(records, lines, codec=None, gt_mode="exact", bootstrap=NO, benchmark=VINDR_CXR_VQA):
    """Scores of one system, "s", without intervals unless a bootstrap is given."""
    options = ScoreOptions(gt_mode, codec, bootstrap=bootstrap)
    return score_systems(records, {"s": predictions_of(lines)}, options, benchmark)


def score_lines(records, lines, codec=None, gt_mode="exact"):
    """Figures without intervals by protocol, and problems."""
    options = ScoreOptions(gt_mode, codec, bootstrap=NO)
    references = VINDR_CXR_VQA.read(records, "r.jsonl", gt_mode)
    found = VINDR_CXR_VQA.count(references, {"s": Answers(predictions_of(lines), "s")}, options)
    counted = found.systems["s"]
    clusters = found.clusters or references.clusters
    resampled = resample(counted.columns, clusters, NO, found.attributes)
    figures = {p: _Lazy(named, resampled.observed) for p, named in counted.figures.items()}
    return figures, counted.problems


def values_of(records, lines, protocol="strict", **how):
    return _Lazy(score_lines(records, lines, **how)[0][protocol], lambda figure: figure.value)


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def cases_of(test_file):
    """Tables of cases that stand in cases.toml beside a file of tests; "null" is None there."""
    text = Path(test_file).with_name("cases.toml").read_text(encoding="utf-8")
    return {name: _with_none(table) for name, table in tomllib.loads(text).items()}


def _with_none(value):
    if isinstance(value, dict):
        return {key: _with_none(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_none(one) for one in value]
    return None if value == "null" else value


def read_json(*path):
    return json.loads(path[0].joinpath(*path[1:]).read_text())


def flags_of(folder, *systems, benchmark="vindr_cxr_vqa", out="out", **more):
    """Flags of the command: `folder`'s records.jsonl against the lines of <system>.jsonl.

    As quick as can be, without intervals and floors, unless `more` says otherwise.
    """
    named = {"benchmark": benchmark, "references": folder / "records.jsonl", "out": folder / out}
    named |= {"resamples": 0, "floors": "never"} | more
    predictions = [f"--predictions={folder / system}.jsonl" for system in systems]
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in named.items()]
    return [*words, *predictions]


def run_score(folder, *systems, out="out", **more):
    """Figures by system and protocol as the command writes them, and its tables."""
    score.main(flags_of(folder, *systems, out=out, **more))
    return read_json(folder, out, "metrics.json"), (folder / out / "tables.md").read_text()
