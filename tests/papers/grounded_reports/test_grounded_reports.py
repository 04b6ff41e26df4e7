"""Grounded reports of every source, what is rejected, and figures by hand."""

import json
import shutil
from pathlib import Path

import pytest

from cxrjax.commands import build, predict
from cxrjax.errors import UserError
from cxrjax.evaluation.text_scores.report_floors import report_floors
from cxrjax.evaluation.text_scores.sentences import reference_text
from cxrjax.papers.grounded_reports.build import words_by_language
from cxrjax.papers.grounded_reports.figures import GROUNDED_REPORTS
from cxrjax.records import Answer, read_records
from tests.evaluation import made
from tests.papers.cases import cases

CASES = made.cases_of(__file__)
DATA = Path(__file__).parents[3] / "data"
SAMPLE, RELEASE = DATA / "grounded_reports/sample", DATA / "cxr_qba/sample/release"
FILE = "grounded_reports_20000101.json"


def built(source, out, *flags):
    build.main(["--dataset=grounded_reports", f"--source={source}", f"--out={out}", *flags])
    files = sorted((out / "records").glob("*.jsonl"))
    return {file.stem: list(read_records(file)) for file in files}


def rejected(out):
    found = json.loads((out / "quality.json").read_text())["set_aside"]
    return [(one["reason"], one["found"]) for one in found]


def test_padchest_gr(tmp_path):
    splits = built(SAMPLE, tmp_path / "out", "--earlier=image", "--strict")
    assert {name: len(of) for name, of in splits.items()} == {
        "train": 3,
        "validation": 1,
        "test": 1,
    }
    first, second, _ = splits["train"]
    assert first.answers[0].text == "Left pleural effusion. <loc0614><loc0593><loc0972><loc0942>"
    assert first.earlier is None and first.answers[0].polarity == "pos"
    assert second.question.startswith(
        "Describe the findings. Earlier report: Left pleural effusion."
    )
    assert second.earlier.image_id == first.image_id
    assert len(second.boxes) == 2 and second.answers[0].modifiers == [("change", "worse")]
    # An earlier image without a report is shown, too.
    assert splits["test"][0].earlier.image_id.endswith("9_sample")
    spanish = built(SAMPLE, tmp_path / "es", "--language=es")["train"][0]
    assert (spanish.lang, spanish.answer_text[:25]) == ("es", "Derrame pleural izquierdo")


@pytest.mark.parametrize("name", CASES["faults"])
def test_a_broken_report_is_rejected_and_counted(name, tmp_path):
    changes, reason, found = CASES["faults"][name]
    shutil.copytree(SAMPLE, tmp_path / "source")
    studies = json.loads((SAMPLE / FILE).read_text())
    studies[1] |= changes
    (tmp_path / "source" / FILE).write_text(json.dumps(studies))
    splits = built(tmp_path / "source", tmp_path / "out")
    ((why, what),) = rejected(tmp_path / "out")
    assert why == reason and found in what
    assert sum(map(len, splits.values())) == 4


def test_baselines(tmp_path):
    built(SAMPLE, tmp_path / "out")
    train, out = tmp_path / "out/records/train.jsonl", tmp_path / "nearest.jsonl"
    flags = [f"--train={train}", f"--questions={train}", f"--out={out}"]
    predict.main(["--runner=nearest", *flags])
    records = list(read_records(train))
    texts = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    assert texts == [record.answer_text for record in records]
    changed = "Right pleural effusion has increased."
    answers = [*records[0].answers, Answer(text=changed), Answer(text="New left nodule.")]
    reports = {"q": reference_text(records[0].model_copy(update={"answers": answers}))}
    said = {name: lines[0].text for name, lines in report_floors(reports)}
    assert said["medoid"].startswith("Left pleural effusion. <loc0614><loc0593><loc0972><loc0942>")
    assert said["frequent sentences"].startswith("Left pleural effusion. <loc0614><loc0593>")
    floor = "The right pleural effusion is worse. The left lung nodule is worse."
    assert said["true findings, worse"] == floor


def test_scene_graphs(tmp_path):
    (train,) = built(RELEASE, tmp_path / "out", "--lateral").values()
    one = train[0]
    assert one.image_path == "files/p19/p19990001/s59990001/synthetic-0001.jpg"
    assert one.question == (
        "Describe the findings. Indication: Cough. Evaluate for pneumonia. The second image is the "
        "lateral view."
    )
    assert one.earlier.image_id == "synthetic-0003"
    said = {answer.text.partition(" <")[0]: answer for answer in one.answers}
    assert said["The heart is mildly enlarged."].boxes_by_image == {
        "synthetic-0001": [[340, 504, 780, 936]]
    }
    assert not said["No pneumothorax."].boxes_by_image
    # What an observation is interpreted as has the region of no words.
    opacity = said["Patchy left basilar opacity may represent atelectasis or pneumonia."]
    assert len(opacity.boxes_by_image["synthetic-0001"]) == 1


@cases("old, new, reason")
def test_a_broken_scene_graph_is_rejected(old, new, reason, tmp_path):
    shutil.copytree(RELEASE, tmp_path / "source")
    file = next((tmp_path / "source").rglob("s59990001.scene_graph.json"))
    text = json.dumps(json.loads(file.read_text()))
    assert old in text
    file.write_text(text.replace(old, new) if reason != "invalid_graph" else text[1:])
    built(tmp_path / "source", tmp_path / "out")
    assert {why for why, _ in rejected(tmp_path / "out")} == {reason}


def test_words_of_languages_and_other_sources(tmp_path, subtests):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no grounded reports; expected grounded_reports"):
        built(tmp_path / "empty", tmp_path / "out")
    for text, expected in CASES["languages"].items():
        with subtests.test(text=text):
            assert words_by_language(text) == expected


def test_figures(subtests):
    box = [100.0, 60.0, 180.0, 90.0]
    effusion = {"text": "Left pleural effusion.", "boxes_by_image": {"i0": [box]}}
    record = made.record_of(kind="findings").model_copy(update={"dataset": "grounded_reports"})
    absent = {"text": "There is no pneumothorax."}
    record = type(record).model_validate(record.model_dump() | {"answers": [effusion, absent]})
    for case in CASES["answers"]:
        lines = [{"question_id": record.question_id, "text": case["text"]}]
        found = made.scores_of([record], lines, benchmark=GROUNDED_REPORTS).figures
        scores = found["s"]["strict"]
        for name, value in case["figures"].items():
            with subtests.test(text=case["text"], figure=name):
                assert scores[name].value == pytest.approx(value, abs=1e-6)
