"""One law for every benchmark of the registry: who is right scores all, who says nothing scores
nothing, and who does not look is warned of."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from cxrjax.commands import build
from cxrjax.evaluation import baselines
from cxrjax.evaluation.benchmark import Answers
from cxrjax.evaluation.on_topic import is_about_another
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.evaluation.tables import floor_warnings
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.paper import load_benchmark, load_papers
from cxrjax.records import read_records

CASES = tomllib.loads(Path(__file__).with_name("law.toml").read_text(encoding="utf-8"))
BENCHMARKS = [name for paper in load_papers() for name in paper.benchmarks]
OPTIONS = ScoreOptions("exact", None, bootstrap=Bootstrap(resamples=0))
SCORES_LEAST = 0.05


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Benchmark -> records of a build, one build for all that are built alike."""
    folder = tmp_path_factory.mktemp("law")
    made = {}

    def built(name):
        if name not in made:
            (folder / name).mkdir(exist_ok=True)
            flags = [flag.format(folder=folder) for flag in CASES["builds"][name]]
            for needed in re.findall(r"\{folder\}/(\w+)", " ".join(CASES["builds"][name])):
                built(needed)
            build.main([*flags, f"--out={folder / name}", "--processes=1"])
            files = sorted((folder / name / "records").glob("*.jsonl"))
            wanted = [f for f in files if re.fullmatch(r"train|validation|test", f.stem)]
            made[name] = {f.stem: list(read_records(f)) for f in wanted}
        return made[name]

    # A benchmark without a build of its own here is held to records of any kind that it reads.
    return lambda benchmark: built(CASES["of"].get(benchmark, benchmark))


def _line(record, said):
    some = len(said.boxes) > 0
    labels = tuple(said.labels_for(record.finding)) if some else None
    scores = np.full(len(said.boxes), said.score) if some else None
    parse = "ok" if some else "no_box"
    return Prediction(record.question_id, said.text, said.boxes, labels, parse, scores)


def _own(record):
    """The record's answer as a system's."""
    main = [a for a in record.answers if a.answer_type in (None, "main")]
    shown = record.model_copy(update={"answers": main})
    boxes = baselines.box_fractions(shown) if record.image_hw else np.zeros((0, 4))
    boxes = boxes[np.sort(np.unique(boxes, axis=0, return_index=True)[1])]
    labels = [
        a.labels[0] for a in main if a.labels for _ in a.boxes_by_image.get(record.image_id, ())
    ]
    return baselines.Said(record.answer_text, boxes, labels if len(labels) == len(boxes) else None)


def _score(benchmark, records, systems, options=OPTIONS, floors=None):
    references = benchmark.read(records, "law", benchmark.gt_modes[0])
    if floors is not None:
        floors.leave_out(references.left_out)
    answers = {
        name: Answers([_line(r, say(r)) for r in records], name) for name, say in systems.items()
    }
    return benchmark.score(references, answers, options, floors=floors)


def _other(record):
    """A finding that the question does not ask about."""
    words = f"{record.question} {record.finding} {record.choices}".lower()
    return next(name for name in CASES["findings"] if name not in words)


def test_what_is_about_something_else(subtests):
    for text, asked, words, expected in CASES["on_topic"]:
        with subtests.test(text=text, asked=asked):
            assert is_about_another(text, asked, words) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_references_score_all_and_what_says_nothing_scores_nothing(name, references, subtests):
    benchmark = load_benchmark(name)
    records = max(references(name).values(), key=len)
    records = records[:: 1 + len(records) // 80]
    systems = {"reference": _own}
    for text in CASES["nothing"]:
        systems[text] = lambda record, text=text: baselines.Said(text)
    for text in CASES["off_topic"]:
        systems[text] = lambda record, text=text: baselines.Said(
            text.format(_other(record)) if record.finding else "12345"
        )
    scores = _score(benchmark, records, systems)
    rates = [*CASES["rates"], "parse_failure_rate"]
    for system, figures in scores.figures.items():
        for protocol, metric in benchmark.layout.telling():
            value = figures[protocol][metric].value
            with subtests.test(system=system, metric=metric):
                if system == "reference":
                    assert value is None or value == pytest.approx(1, abs=1e-6)
                else:
                    assert value is None or value <= SCORES_LEAST
        with subtests.test(system=system, named=True):
            found = [
                figure.value or 0
                for metric, figure in figures["strict"].items()
                if metric.rpartition("/")[2] in rates
            ]
            assert system == "reference" or sum(found) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_who_does_not_look_is_warned_of(name, references):
    benchmark = load_benchmark(name)
    records = [record for split in references(name).values() for record in split]
    patients = sorted({record.patient_id or record.image_id for record in records})
    held_out = set(patients[::2])
    sides = {True: [], False: []}
    for record in records:
        sides[(record.patient_id or record.image_id) in held_out].append(record)
    asked, train = sides[True][:400], sides[False]
    blind = {
        "majority": baselines.learn_majority(train),
        "question": baselines.learn_question(train),
        "seeing": _own,
    }
    asked = [r.model_copy(update={"split": "validation"}) for r in asked]
    floors = baselines.Baselines()
    for record in asked:
        floors.add(record)
    options = ScoreOptions("exact", None, bootstrap=Bootstrap(resamples=50))
    scores = _score(benchmark, asked, blind, options, floors)
    told = floor_warnings(scores, benchmark.layout.telling())
    assert [name for name in blind if f"Warning: {name} is" in told] == ["majority", "question"]
    known = {(row["protocol"], row["metric"]) for row in scores.against_floors}
    assert set(benchmark.layout.telling()) <= known
    assert json.dumps(scores.against_floors)
