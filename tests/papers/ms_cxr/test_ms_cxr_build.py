"""MS-CXR's files -> records -> files, and what is set aside on the way."""

import csv
import json
from pathlib import Path

import pytest

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.papers.ms_cxr.build import PAPER
from cxrjax.papers.ms_cxr.native import FINDINGS, read_native, write_native
from cxrjax.records import read_records
from cxrjax.records_io.quality import QualityLog
from tests.evaluation import made

CASES = made.cases_of(__file__)

SAMPLE = Path(__file__).parents[3] / "data" / "ms_cxr" / "sample"
CSV = SAMPLE / "MS_CXR_Local_Alignment_v1.1.0.csv"
JSON = SAMPLE / "MS_CXR_Local_Alignment_v1.0.0.json"


def changed(path, without=(), **cells):
    """The sample with its second row changed, columns left out."""
    with open(CSV, newline="") as file:
        rows = list(csv.DictReader(file))
    rows[1] |= cells
    with open(path, "w", newline="") as file:
        names = [name for name in rows[0] if name not in without]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def built(source, out, *flags):
    build.main(["--dataset=ms_cxr", f"--source={source}", f"--out={out}", *flags])
    files = sorted((out / "records").glob("*.jsonl"))
    return {file.stem: list(read_records(file)) for file in files}


@pytest.mark.parametrize("source", [CSV, JSON], ids=["csv", "json"])
def test_native_to_records_to_native_loses_nothing(source, tmp_path):
    splits = built(source, tmp_path / "out", "--strict")
    back = tmp_path / source.name
    write_native(back, (record for records in splits.values() for record in records))
    if source is CSV:
        assert back.read_bytes() == CSV.read_bytes()
    else:
        assert json.loads(back.read_text()) == json.loads(JSON.read_text())


def test_a_phrase_is_one_question_with_all_of_its_boxes(tmp_path):
    splits = built(SAMPLE, tmp_path / "out")  # the folder's CSV, which has the split
    sizes = {split: len(records) for split, records in splits.items()}
    assert sizes == {"test": 3, "train": 4, "validation": 2}
    effusion = next(r for r in splits["train"] if r.gt_finding == "Pleural Effusion")
    assert effusion.boxes == [[30, 380, 120, 460], [260, 370, 360, 460]]
    assert (effusion.patient_id, effusion.study_id) == ("00000001", "00000001")
    assert effusion.image_hw == (500, 400)
    assert effusion.finding == "made-up phrase: effusions on both sides"
    questions = (tmp_path / "out" / "questions" / "train.jsonl").read_text()
    assert "gt_finding" not in questions and "category_name" not in questions


def test_both_files_hold_the_same_phrases():
    said = [
        [(r.image_id, r.question, r.gt_finding, r.boxes, r.image_path) for r in read]
        for read in (read_native(CSV, QualityLog()), read_native(JSON, QualityLog()))
    ]
    assert said[0] == said[1]


def test_without_a_split_patients_are_divided(tmp_path):
    splits = built(changed(tmp_path / "m.csv", without=["split"]), tmp_path / "out")
    patients = {name: {r.patient_id for r in records} for name, records in splits.items()}
    assert set(patients) == {"train", "validation"}
    assert not patients["train"] & patients["validation"]


@pytest.mark.parametrize(("cells", "reason", "found"), CASES["faults"])
def test_faults_are_set_aside_with_file_and_line(cells, reason, found, tmp_path):
    quality = QualityLog()
    path = changed(tmp_path / "m.csv", **cells)
    assert len(list(read_native(path, quality))) >= 8
    (entry,) = quality.entries
    assert (entry.reason, entry.where) == (reason, "m.csv:3") and found in entry.found
    assert quality.examined["rows"] == 12


def test_a_phrase_with_a_bad_box_is_left_out_whole(tmp_path):
    quality = QualityLog()
    kept = [r.question for r in read_native(changed(tmp_path / "m.csv", w="0"), quality)]
    assert not any("effusions on both sides" in question for question in kept)
    assert "rows left out: 2" in quality.entries[0].found


def test_annotations_that_lead_nowhere_are_set_aside(tmp_path):
    data = json.loads(JSON.read_text())
    data["annotations"][0]["image_id"] = 99
    data["annotations"][3]["bbox"] = [1, 2, 3]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(data))
    quality = QualityLog()
    assert len(list(read_native(path, quality))) == 7
    assert [(e.reason, e.where) for e in quality.entries] == [
        ("dangling_id", "m.json: annotation 0"),
        ("bad_box", "m.json: annotation 3"),
    ]


def test_a_patient_in_two_splits_is_set_aside(tmp_path):
    path = tmp_path / "m.csv"
    text = CSV.read_text().replace("dense right lower lobe", "dense").splitlines(keepends=True)
    text[7] = text[7].replace(",val", ",test")
    path.write_text("".join(text))
    built(path, tmp_path / "out")
    counts = json.loads((tmp_path / "out" / "quality.json").read_text())["counts"]
    assert counts["split_conflict"] == 1


def test_refusals(tmp_path):
    with pytest.raises(UserError, match=r"m\.csv:1: column image_width is missing"):
        built(changed(tmp_path / "m.csv", without=["image_width"]), tmp_path / "out")
    with pytest.raises(UserError, match=r"no MS_CXR_Local_Alignment\*\.csv"):
        built(tmp_path, tmp_path / "out")
    header = tmp_path / "h.csv"
    header.write_text(CSV.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match="no phrase left"):
        built(header, tmp_path / "out")
    with pytest.raises(UserError, match=r"quality\.rows of a \*\.json"):
        write_native(tmp_path / "x.json", read_native(CSV, QualityLog()))


def test_the_paper_s_pairs_add_up():
    pairs = [PAPER[f"finding_questions/{name}"].value for name in FINDINGS]
    assert sum(pairs) == PAPER["questions"].value == 1162
