"""Systems that do not look: what they say, and that nobody gets above them without looking."""

import random

import pytest

from cxrjax.errors import UserError
from cxrjax.evaluation.baselines import Baselines
from cxrjax.evaluation.scores import is_blind
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.records import write_records
from tests.evaluation import made

KINDS = ("Is_there", "Where", "How_many", "Which", "Yes_No")
SIZE = 100
PLACES = {name: random.Random(name).uniform(5, 55) for name in CLASSES}


def _record(image, number, kind, asked, boxes=(), labels=None, **fields):
    return made.record_of(
        image, number, asked, boxes, labels, kind, image_hw=(SIZE, SIZE), variables=None, **fields
    )


def _phantoms(images):
    """Dense questions with more absent classes than present ones, some images without findings."""
    rng = random.Random(4)
    records = []
    for i in range(images):
        present = [] if i % 10 == 0 else rng.choices(CLASSES, range(14, 0, -1), k=3)
        present = list(dict.fromkeys(present))
        absent = rng.sample([name for name in CLASSES if name not in present], 5)
        boxes = {}
        for name in present:
            x, y = PLACES[name] + rng.gauss(0, 4), PLACES[name] + rng.gauss(0, 4)
            boxes[name] = [max(x, 0), max(y, 0), max(x, 0) + 35, max(y, 0) + 30]
        readers = {
            f"R{n}": [{"label": k, "box": b} for k, b in boxes.items() if rng.random() < 0.8]
            for n in range(3)
        }
        for number, name in enumerate([*present, *absent]):
            here = [boxes[name]] if name in present else []
            kind = KINDS[number % len(KINDS)]
            records.append(_record(f"i{i}", number, kind, name, here, readers=readers))
        text = f"The findings are {' and '.join(present)}." if present else "There is no finding."
        answer = {"text": text}
        records.append(
            _record(f"i{i}", 99, "What", "", labels=present, answer=answer, readers=readers)
        )
    return records


def _score(tmp_path, records, systems, **flags):
    write_records(tmp_path / "records.jsonl", records)
    for name, say in systems.items():
        lines = [{"question_id": r.question_id, **say(r)} for r in records]
        made.write_lines(tmp_path / f"{name}.jsonl", lines)
    metrics, tables = made.run_score(tmp_path, *systems, **{"floors": "auto"} | flags)
    floors = tmp_path / "out" / "floors.json"
    return metrics, made.read_json(floors) if floors.exists() else None, tables


def test_who_looks_is_above_them_and_is_not_warned_of(tmp_path):
    def answer(record):
        return {
            "text": record.answer_text,
            "boxes": [[value / SIZE for value in box] for box in record.boxes],
        }

    few = {"resamples": 20, "interval": "percentile"}
    _, told, tables = _score(tmp_path, _phantoms(40), {"seeing": answer}, **few)
    assert "**Warning" not in tables
    assert "| baseline: constant yes | strict |" in tables
    (row,) = (one for one in told["differences"] if one["metric"] == "vqa/balanced_accuracy")
    assert row["ci_low"] > 0.1
    floors = {name: f["strict"] for name, f in told["figures"].items()}
    assert floors["constant yes"]["vqa/sensitivity"]["value"] == 1
    assert floors["constant no"]["vqa/specificity"]["value"] == 1
    assert floors["constant yes"]["vqa/balanced_accuracy"]["value"] == 0.5
    assert floors["prior box"]["detection/f1@0.3"]["value"] > 0.1
    # A person is none of the floors, and better.
    assert floors["one reader"]["detection/f1@0.3"]["value"] > 0.7
    assert "one reader" not in {line["floor"] for line in told["differences"]}


def test_the_floors_alone_need_no_predictions(tmp_path):
    metrics, floors, tables = _score(tmp_path, _phantoms(8), {})
    assert {"constant yes", "constant no", "majority", "prior box", "random"} <= metrics.keys()
    assert floors is None
    assert "| majority | strict |" in tables
    with pytest.raises(UserError, match="nothing to score"):
        _score(tmp_path, _phantoms(8), {}, floors="never")


def test_without_floors_there_are_none_and_boxes_do_not_make_themselves_typical(tmp_path):
    say = {"s": lambda record: {"text": "Yes.", "boxes": []}}
    _, floors, tables = _score(tmp_path, _phantoms(12), say, floors="never")
    assert floors is None and "baseline:" not in tables and "Warning" not in tables
    # Five that are alike on one image count less than three alike on three
    floors = Baselines()
    alone = [[10.0, 10.0, 40.0, 40.0 + n] for n in range(5)]
    floors.add(_record("i0", 0, "Where", "ILD", alone))
    for n in range(1, 4):
        floors.add(_record(f"i{n}", 0, "Where", "ILD", [[60.0, 60.0, 90.0, 90.0 + n]]))
    floors.add(_record("i9", 0, "Where", "ILD"))
    lines = dict(floors.systems(lambda name: "ILD", 0, ()))
    assert lines["prior box"][-1].boxes[0, 0] == 0.6


def test_a_blind_system_is_a_floor_of_the_others(tmp_path):
    def blind(record):
        seen = record.answer_text if int(record.image_id[1:]) % 5 else "No."
        return {"text": seen, "boxes": []}

    systems = {"seeing": lambda record: {"text": "Yes.", "boxes": []}, "seeing_blind": blind}
    lines = _score(tmp_path, _phantoms(16), systems, resamples=2)[1]["differences"]
    assert {line["system"] for line in lines} == {"seeing"}
    (row,) = (line for line in lines if line["metric"] == "vqa/balanced_accuracy")
    assert row["floor"] == "seeing_blind"
    assert is_blind("tuned.shuffled") and is_blind("noise") and not is_blind("blinded")


def test_a_prior_box_is_of_another_image_and_the_majority_of_the_same_type():
    """The only box of a class would be a perfect answer to its own question."""
    box = [10.0, 10.0, 50.0, 50.0]
    floors = Baselines()
    floors.add(_record("i0", 0, "Where", "ILD", [box]))
    lines = dict(floors.systems(lambda name: "ILD", 0, ()))
    assert not len(lines["prior box"][0].boxes)
    floors.add(_record("i1", 0, "Where", "ILD", [[20.0, 10.0, 60.0, 50.0]]))
    lines = dict(floors.systems(lambda name: "ILD", 0, ()))
    assert lines["prior box"][0].boxes.tolist() == [[0.2, 0.1, 0.6, 0.5]]
    assert lines["prior box"][1].boxes.tolist() == [[0.1, 0.1, 0.5, 0.5]]
    floors = Baselines()
    answers = [("Where", True)] * 3 + [("Is_there", False)] * 2 + [("Is_there", True)]
    for n, (kind, there) in enumerate(answers):
        answer = {"text": "Yes." if there else "No."}
        boxes = [[10.0, 10.0, 40.0, 40.0]] if there else []
        floors.add(_record(f"i{n}", 0, kind, "ILD", boxes, answer=answer))
    lines = dict(floors.systems(lambda name: "ILD", 0, ()))["majority"]
    assert [one.text for one in lines] == ["Yes."] * 3 + ["No."] * 3


def _named(lines, *floors):
    return {floor: {q.labels[0] for q in lines[floor] if q.labels} for floor in floors}


def test_the_easiest_classes_are_those_that_a_constant_box_finds():
    floors = Baselines()
    for n in range(8):
        # Always in one place; in one of two; somewhere else each time.
        spots = {"ILD": 10.0, "Atelectasis": 10.0 + 25 * (n % 2), "Calcification": 8.0 * n}
        for k, (name, x) in enumerate(spots.items()):
            box = [[x, 10.0, x + 20, 30.0]]
            floors.add(_record(f"i{n}", k, "Where", name, box))
    names = ("ILD", "Atelectasis", "Calcification")
    lines = dict(floors.systems(lambda question: names[int(question[-1])], 0, ()))
    said = _named(lines, "one class", "easy classes")
    assert said == {"one class": {"ILD"}, "easy classes": {"ILD", "Atelectasis"}}
    assert all(q.text.startswith("Yes") == bool(q.labels) for q in lines["one class"])
    first = [q.box_scores[0] for q in lines["prior box"][:3]]
    assert first[0] == 1 and first[0] > first[1] > first[2] > 0


def test_the_easiest_classes_by_question_may_be_others():
    """Asked six times where its box lies right, a class pays by question and not by image."""
    floors, names = Baselines(), ("ILD", "Atelectasis", None)
    for n in range(8):
        floors.add(_record(f"i{n}", 2, "What", "", labels=["ILD"]))
        for k, name in enumerate(names[:2]):
            there = k == 0 or n < 2
            box = [[10.0, 10.0, 30.0, 30.0] if there else [9.0 * n, 60.0, 9.0 * n + 8, 70.0]]
            for again in range(6 if k and there else 1):
                floors.add(_record(f"i{n}", f"{again}{k}", "Where", name, box))
    lines = dict(floors.systems(lambda question: names[int(question[-1])], 0, ()))
    said = _named(lines, "easy classes", "easy questions")
    assert said == {"easy classes": {"ILD"}, "easy questions": {"ILD", "Atelectasis"}}
    silent = {f: [not len(q.boxes) for q in lines[f] if q.question_id.endswith("2")] for f in said}
    assert not any(silent["easy classes"]) and all(silent["easy questions"])


def test_many_questions_have_floors_only_where_they_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("cxrjax.evaluation.benchmark.MOST_FOR_FLOORS", 50)
    say = {"s": lambda record: {"text": "Yes.", "boxes": []}}
    _, floors, tables = _score(tmp_path, _phantoms(12), say)
    assert floors is None and "--floors=always" in tables
    _, floors, _ = _score(tmp_path, _phantoms(12), say, floors="always")
    assert "constant yes" in floors["figures"]
