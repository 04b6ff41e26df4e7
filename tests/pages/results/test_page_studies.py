"""Case studies on the page: what GEMeX prints of a question, with the marks that score kept."""

import json

import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.pages.results.studies import read_judgements
from cxrjax.papers.benchmarks import BENCHMARKS
from cxrjax.records import Answer


@pytest.fixture
def gemex(page):
    """Ten single-choice questions: base gives no answer to one of them, tuned all."""
    page.records = [
        page.record(
            i,
            dataset="gemex",
            question="Which shadow is <b>seen</b>?",
            question_type="single_choice",
            choices=["A: Air", "B: Fluid"],
            variables=None,
            answer_key="B",
            reason="The angle is blunt.",
            answers=[
                Answer(
                    text="<answer> B: Fluid <reason> The angle is blunt. "
                    "<location>[[0, 0, 112, 224]]",
                    boxes_by_image={f"image-{i}": [[0, 0, 40, 100]]},
                )
            ],
        )
        for i in range(page.images)
    ]
    texts = {"base": "<answer> A: Air <reason> It is dark.", "tuned": page.records[0].answer_text}
    page.predictions = {
        name: [{"question_id": f"image-{i}-0", "text": text} for i in range(page.images)]
        for name, text in texts.items()
    }
    page.arguments |= {
        "benchmark": BENCHMARKS["gemex"](),
        "codec": CODECS["gemex"],
    }
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
    assert found.name == "Score by surrogate: rules" and found.marks["a", "q"] == pytest.approx(
        44.44, abs=0.01
    )
    page.write_lines(file, [_judgement("a", "q", failure="refusal"), {"task": "facts"}])
    assert read_judgements(file) is None


@pytest.mark.parametrize("line", ["{", "[]", json.dumps({"task": "relative_score"})])
def test_lines_that_are_no_judgements_are_named(tmp_path, line):
    file = tmp_path / "judgements.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(UserError, match=r"judgements\.jsonl:1: .*expected a judgement"):
        read_judgements(file)
