"""--benchmark=own: the user's classes and title, nothing of the paper's."""

import csv

import pytest

from cxrjax.commands.report import main as report
from cxrjax.errors import UserError
from cxrjax.records import write_records
from tests.evaluation import made


def _record(number, asked, there):
    boxes = [[10.0, 10.0, 60.0, 60.0]] if there else []
    return made.record_of(f"i{number}", 0, asked, boxes, dataset="custom", image_hw=(100, 100))


@pytest.fixture
def files(tmp_path):
    classes = ["Feeding tube", "Pacemaker"] * 6
    records = [_record(n, asked, n % 2 == 0) for n, asked in enumerate(classes)]
    records += [_record(20, "Pacemaker", True), _record(21, "Swallowed coin", False)]
    write_records(tmp_path / "records.jsonl", records)
    right = [[0.1, 0.1, 0.6, 0.6]]
    lines = [made.line_of(r, r.answer_text, right if r.boxes else []) for r in records]
    made.write_lines(tmp_path / "mine.jsonl", lines)
    return tmp_path


def score(files, **flags):
    return made.run_score(files, "mine", benchmark="own", **flags)


def test_tables_have_the_users_classes_and_title_alone(files):
    metrics, text = score(files, title="Devices of our ward", floors="auto", resamples=5)
    assert text.startswith("# Devices of our ward\n")
    for of_paper in ("VinDr-CXR-VQA", "the paper", "Table 4", "Cardiomegaly", "as printed", "[1]"):
        assert of_paper not in text, of_paper
    assert "| mine | strict | 1.000" in text
    strict = metrics["mine"]["strict"]
    named = {n.split("/")[-1] for n in strict if n.startswith("by_class/detection/f1")}
    assert named == {"Feeding tube", "Pacemaker", "Swallowed coin"}
    # Nothing has the coin: no row of boxes, but one of answers.
    boxes, answers = (
        text.split(f"## {title}")[1].split("## ")[0] for title in ("Boxes by class", "There or not")
    )
    assert "Pacemaker" in boxes and "Swallowed coin" not in boxes and "Swallowed coin" in answers
    with open(files / "out" / "tables.csv", newline="") as lines:
        assert {row["paper"] for row in csv.DictReader(lines)} == {""}


def test_the_page_has_the_title(files):
    score(files, title="Devices of our ward")
    out = files / "out"
    report(
        [
            *(f"--workdir={out}", f"--out={out}", f"--references={files / 'records.jsonl'}"),
            *(f"--predictions={files / 'mine.jsonl'}", "--name=mine", "--pictures=none"),
        ]
    )
    page = (out / "index.html").read_text()
    assert "Devices of our ward" in page and "VinDr-CXR-VQA" not in page


def test_records_without_classes_are_refused(files):
    bare = _record(0, "x", True).model_copy(update={"variables": None})
    bare.answers[0].labels.clear()
    write_records(files / "records.jsonl", [bare])
    with pytest.raises(UserError, match="name no class"):
        score(files)
