"""Case studies on the page: what GEMeX prints of a question, with the marks that score kept."""

import json

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.pages.results.studies import choose_cases, read_judgements, study_answers
from cxrjax.papers.benchmarks import BENCHMARKS
from cxrjax.records import Answer
from cxrjax.scoring.predictions import parse_prediction
from tests.pages.page_records import make_record

REASON = "The angle is blunt."


@pytest.fixture
def gemex(page):
    """Ten single-choice questions: base gives no answer to one of them, tuned all."""
    text = f"<answer> B: Fluid <reason> {REASON} <location>[[0, 0, 112, 224]]"
    given = {"dataset": "gemex", "question": "Which shadow is <b>seen</b>?", "variables": None}
    given |= {"question_type": "single_choice", "choices": ["A: Air", "B: Fluid"]}
    given |= {"answer_key": "B", "reason": REASON}
    boxes = ({f"image-{i}": [[0, 0, 40, 100]]} for i in range(page.images))
    answers = (Answer(text=text, boxes_by_image=one) for one in boxes)
    page.records = [page.record(i, answers=[one], **given) for i, one in enumerate(answers)]
    base = page.texts("<answer> A: Air <reason> It is dark.")
    page.predictions = {"base": base, "tuned": page.texts(text)}
    page.arguments |= {"benchmark": BENCHMARKS["gemex"](), "codec": CODECS["gemex"]}
    return page


def _judgement(system, question_id, **changes):
    fields = {"task": "relative_score", "judge": "model-1", "surrogate": False, "failure": None}
    fields |= {"system": system, "question_id": question_id, "ratio_reference_first": 4 / 9}
    return fields | changes


def test_a_study_has_picture_choices_truth_and_answers_with_marks(gemex):
    lines = [_judgement(s, f"image-{i}-0") for s in ("base", "tuned") for i in range(10)]
    lines.append({"task": "facts"})
    file = gemex.write_lines(gemex.root / "judgements.jsonl", lines)
    root = gemex.read(judgements=read_judgements(file))
    studies = list(root.all("article", "study"))
    assert len(studies) == 2, "two of the one type"
    study = studies[0]
    assert [li.text for li in next(study.all("ul", "choices")).all("li")] == ["A: Air", "B: Fluid"]
    truth, base, tuned = study.all("dd")
    assert [next(said.all("b")).text for said in (truth, tuned)] == ["B: Fluid"] * 2
    assert "The angle is blunt." in tuned.text and "✓ right" in tuned.text
    assert "✗ wrong" in base.text and "said A; it is B" in base.text
    assert "GPTScore 44.44" in base.text and "GPTScore" not in truth.text
    layers = {layer["style"]: list(layer.all("rect")) for layer in study.all("g", "layer")}
    assert [len(boxes) for boxes in layers.values()] == [1, 0, 1]
    boxes = [boxes[0] for boxes in layers.values() if boxes]
    assert {(box["width"], box["height"]) for box in boxes} == {("200.0", "500.0")}
    assert next(study.all("img"))["src"].startswith("data:image/jpeg")
    question = next(study.all("a"))["href"].removeprefix("#q=")
    assert question in gemex.cases(root)["questions"]["id"]


def test_without_pictures_and_marks(gemex):
    gemex.predictions["base"] = gemex.predictions["base"][:1]
    root = gemex.read(pictures="none")
    studies = list(root.all("article", "study"))
    assert not [image for study in studies for image in study.all("img")]
    assert "no prediction" in "".join(study.text for study in studies)
    assert "no judge's marks were given" in root.text


def test_a_surrogates_marks_are_called_so(tmp_path, page):
    file = tmp_path / "judgements.jsonl"
    page.write_lines(file, [_judgement("a", "q", surrogate=True, judge="surrogate: rules")])
    found = read_judgements(file)
    assert found.name == "Score by surrogate: rules"
    assert found.marks["a", "q"] == pytest.approx(44.44, abs=0.01)
    page.write_lines(file, [_judgement("a", "q", failure="refusal"), {"task": "facts"}])
    assert read_judgements(file) is None


@pytest.mark.parametrize("line", ["{", "[]", json.dumps({"task": "relative_score"})])
def test_lines_that_are_no_judgements_are_named(tmp_path, line):
    file = tmp_path / "judgements.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(UserError, match=r"judgements\.jsonl:1: .*expected a judgement"):
        read_judgements(file)


TYPES = ("open_ended", "closed_ended", "single_choice", "multi_choice")


def make(number, kind):
    key = {"open_ended": "Fluid.", "closed_ended": "Yes.", "single_choice": "B"}.get(kind, ["B"])
    boxes = [[0, 0, 112, 224]]
    place = {"dataset": "gemex", "image_id": f"i{number}", "image_hw": (224, 224)}
    asked = {"question_type": kind, "answer_key": key, "reason": REASON}
    asked["choices"] = ["A: Air", "B: Fluid"] if kind.endswith("choice") else None
    text = f"<answer> {key} <reason> {REASON} <location>{boxes}"
    return make_record(f"q{number}", text, boxes if number != 3 else (), **place, **asked)


RECORDS = [make(number, TYPES[number % 4]) for number in range(12)]


def predictions(*texts):
    return {
        f"q{n}": parse_prediction({"question_id": f"q{n}", "text": text}, "test")
        for n, text in enumerate(texts)
    }


def test_cases_hold_what_the_paper_prints():
    systems = {
        "first": predictions("x", "<answer> No. <reason> None. <location>[[0, 0, 112, 224]]"),
        "second": predictions("x", "Yes, at [0, 0, 56, 224]."),
        "third": predictions("x"),
    }
    truth, first, second, third = study_answers(RECORDS[1], systems, marks={("first", "q1"): 50.0})
    assert (truth.system, truth.outcome) == ("truth", None)
    assert (truth.said.answer, truth.said.reason) == ("Yes.", "The angle is blunt.")
    np.testing.assert_allclose(truth.said.boxes, [[0, 0, 0.5, 1]])
    assert (first.said.answer, first.said.reason) == ("No.", "None.")
    assert (first.outcome.right, first.outcome.note) == (False, "said No; it is Yes")
    assert first.outcome.iou == pytest.approx(1)
    assert (first.score, second.score) == (50.0, None)
    assert second.said.answer == "Yes, at ." and second.outcome.right
    assert second.outcome.iou == pytest.approx(0.5)
    assert (third.said, third.outcome.right) == (None, False)


def test_cases_are_drawn_by_seed_of_each_type_and_with_boxes():
    chosen = choose_cases(RECORDS, 2, seed=1)
    assert [record.question_type for record in chosen] == [t for t in TYPES for _ in range(2)]
    assert choose_cases(RECORDS[::-1], 2, seed=1) == chosen
    assert choose_cases(RECORDS, 2, seed=2) != chosen
    assert "q3" not in {record.question_id for record in choose_cases(RECORDS, 3)}
    assert choose_cases([], 3) == []
