"""--benchmark=own: the user's classes and title, nothing of the paper's."""

import csv
import json

import pytest

from cxrjax.errors import UserError
from cxrjax.records import QARecord, write_records
from cxrjax.report import main as report
from cxrjax.score import main as score


def _record(number, asked, there):
    image = f"i{number}"
    box = {image: [[10.0, 10.0, 60.0, 60.0]]}
    return QARecord.model_validate(
        {
            "dataset": "custom",
            "split": "test",
            "image_id": image,
            "image_path": f"{image}.png",
            "image_hw": (100, 100),
            "question_id": f"q{number}",
            "question": f"Is there a {asked}?",
            "question_type": "Is_there",
            "variables": {"finding": asked},
            "answers": [
                {
                    "text": f"Yes, a {asked}." if there else f"No {asked}.",
                    "labels": [asked],
                    "polarity": "pos" if there else "neg",
                    "boxes_by_image": box if there else {},
                }
            ],
        }
    )


@pytest.fixture
def files(tmp_path):
    records = [
        _record(n, asked, n % 2 == 0)
        for n, asked in enumerate(["Feeding tube", "Pacemaker"] * 6, start=0)
    ]
    records += [_record(20, "Pacemaker", True), _record(21, "Swallowed coin", False)]
    write_records(tmp_path / "r.jsonl", records)
    lines = [
        {
            "question_id": r.question_id,
            "text": r.answer_text,
            "boxes": [[0.1, 0.1, 0.6, 0.6]] if r.boxes else [],
        }
        for r in records
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def _arguments(files, *flags):
    return [
        "--benchmark=own",
        *(f"--references={files / 'r.jsonl'}", f"--predictions={files / 'mine.jsonl'}"),
        *(f"--out={files / 'out'}", "--resamples=20", *flags),
    ]


def test_tables_have_the_users_classes_and_title_alone(files):
    score(_arguments(files, "--title=Devices of our ward"))
    text = (files / "out" / "tables.md").read_text()
    assert text.startswith("# Devices of our ward\n")
    for of_paper in ("VinDr-CXR-VQA", "the paper", "Table 4", "Cardiomegaly", "as printed", "[1]"):
        assert of_paper not in text, of_paper
    assert "| mine | strict | 1.000" in text
    strict = json.loads((files / "out" / "metrics.json").read_text())["mine"]["strict"]
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
    score(_arguments(files, "--title=Devices of our ward"))
    out = files / "out"
    report(
        [
            *(f"--workdir={out}", f"--out={out}", f"--references={files / 'r.jsonl'}"),
            *(f"--predictions={files / 'mine.jsonl'}", "--name=mine", "--pictures=none"),
        ]
    )
    page = (out / "index.html").read_text()
    assert "Devices of our ward" in page and "VinDr-CXR-VQA" not in page


def test_records_without_classes_are_refused(files):
    bare = _record(0, "x", True).model_copy(update={"variables": None})
    bare.answers[0].labels.clear()
    write_records(files / "r.jsonl", [bare])
    with pytest.raises(UserError, match="name no class"):
        score(_arguments(files))
