"""MS-CXR's files to records and back, and its figures by hand."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.metrics.localization import contrast_to_noise, region_mask
from cxrjax.papers.ms_cxr.build import PAPER
from cxrjax.papers.ms_cxr.native import FINDINGS, read_native, write_native
from cxrjax.records import read_records, write_records
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


def test_both_files_hold_the_same_phrases_and_the_papers_pairs_add_up():
    said = [
        [(r.image_id, r.question, r.gt_finding, r.boxes, r.image_path) for r in read]
        for read in (read_native(CSV, QualityLog()), read_native(JSON, QualityLog()))
    ]
    assert said[0] == said[1]
    pairs = [PAPER[f"finding_questions/{name}"].value for name in FINDINGS]
    assert sum(pairs) == PAPER["questions"].value == 1162


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


# Question id -> finding, patient, true boxes in pixels of an image of height 100, width 200.
TRUE = {
    "a": ("Edema", "p1", [[0, 0, 100, 50]]),
    "b": ("Edema", "p2", [[0, 0, 40, 100], [20, 0, 60, 100]]),
    "c": ("Pneumonia", "p3", [[100, 0, 200, 100]]),
}


@pytest.fixture
def folder(tmp_path):
    """A folder with the references."""
    records = []
    for name, (finding, patient, boxes) in TRUE.items():
        own = {"question_id": name, "patient_id": patient, "gt_finding": finding}
        own |= {"kind": "grounding", "dataset": "ms_cxr"}
        records.append(made.record_of(f"image-{name}", 0, finding, boxes, **own))
    write_records(tmp_path / "records.jsonl", records)
    return tmp_path


def scored(folder, lines):
    """Protocol -> metric -> value of one system."""
    made.write_lines(folder / "p.jsonl", ({"text": "", **line} for line in lines))
    metrics, _ = made.run_score(folder, "p", benchmark="ms_cxr")
    of = metrics["p"].items()
    return {p: {name: f["value"] for name, f in named.items()} for p, named in of}


def problems_of(folder):
    return made.read_json(folder, "out", "score.json")["problems"]["p"]


def maps(names):
    return [{"question_id": name, "heat_map": f"{name}.npy"} for name in names]


def test_regions_of_boxes_by_hand(folder):
    # a: the true 100 x 50 and twice as much, 1/2. b: the union is x 0 to 60 of which 0 to 30 twice,
    # 1/2 (by boxes counted apart it would be 60 * 100 / (80 * 100)). c: no line.
    lines = [
        {"question_id": "a", "boxes": [[0, 0, 0.5, 1]]},
        {"question_id": "b", "boxes": [[0, 0, 0.15, 1], [0, 0, 0.15, 0.5]]},
    ]
    figures = scored(folder, lines)
    expected = (("paper", None, 0.5, 0.5), ("strict", 0.0, 0.25, 1 / 3))
    for protocol, pneumonia, mean, phrases in expected:
        named = figures[protocol]
        assert named["miou/Edema"] == pytest.approx(0.5)
        assert named["miou/Pneumonia"] == pneumonia
        assert named["miou/Atelectasis"] is None
        assert named["miou"] == pytest.approx(mean)
        assert named["miou_phrases"] == pytest.approx(phrases)
        assert named["cnr"] is None
    assert problems_of(folder)["missing_prediction"] == 1
    assert "| p | strict |" in (folder / "out" / "tables.md").read_text()
    rows = list(csv.DictReader((folder / "out" / "tables.csv").open()))
    assert {row["table"] for row in rows} == {"miou", "cnr", "cnr_signed"}


def test_heat_maps_against_numpy(folder):
    rng = np.random.default_rng(0)
    heat = rng.normal(size=(10, 20))
    heat[:, :6] -= 2  # darker within b's boxes
    for name in "ab":
        np.save(folder / f"{name}.npy", heat)
    figures = scored(folder, maps("ab"))
    a, b = np.zeros((2, 10, 20), bool)
    a[:5, :10] = True
    b[:, :6] = True
    signed = [
        (heat[m].mean() - heat[~m].mean()) / np.sqrt(heat[m].var() + heat[~m].var()) for m in (a, b)
    ]
    assert signed[1] < 0
    for protocol in ("paper", "strict"):
        named = figures[protocol]
        assert named["cnr_signed/Edema"] == pytest.approx(np.mean(signed))
        assert named["cnr/Edema"] == pytest.approx(np.mean(np.abs(signed)))
        assert named["miou"] is None  # a system without boxes
    assert figures["paper"]["cnr/Pneumonia"] is None
    assert figures["strict"]["cnr/Pneumonia"] == 0


def test_maps_without_noise_and_unusable_ones_are_counted(folder):
    heat = np.zeros((10, 20))
    heat[:, 10:] = 1
    np.save(folder / "c.npy", heat)
    np.save(folder / "a.npy", np.full((10, 20), np.nan))
    np.save(folder / "b.npy", np.ones((10, 20)))
    figures, problems = scored(folder, maps("abc")), problems_of(folder)
    assert (problems["noiseless_map"], problems["unusable_map"]) == (1, 1)
    assert figures["strict"]["cnr/Edema"] == 0
    assert figures["strict"]["cnr/Pneumonia"] is None


def test_heat_maps_leave_no_boxes_out_and_other_references_are_refused(folder):
    """Only a system of heat maps alone has no mIoU; one that gives no box where it could has 0."""
    np.save(folder / "a.npy", np.random.default_rng(0).normal(size=(10, 20)))
    empty = [{"question_id": name, "boxes": []} for name in "bc"]
    figures = scored(folder, [*maps("a"), *empty])
    assert figures["strict"]["miou"] == figures["strict"]["miou/Edema"] == 0
    assert figures["strict"]["cnr/Edema"] > 0
    assert scored(folder, maps("a"))["strict"]["miou"] is None
    references = folder / "records.jsonl"
    references.write_text(references.read_text().replace("Edema", "ILD"))
    with pytest.raises(UserError, match="expected one of MS-CXR's findings"):
        scored(folder, [{"question_id": "a", "boxes": []}])


def test_contrast_is_between_cells_whose_centres_are_inside():
    inside = np.array([[True, False]])
    assert contrast_to_noise(np.array([[0.1, 0.1]]), inside) == 0
    assert contrast_to_noise(np.array([[0.0, 1.0]]), inside) == -np.inf
    mask = region_mask(np.array([[0.0, 0.0, 26.0, 24.0]]), (100, 100), (2, 2))
    assert not mask.any()  # a centre at 25 below the box's edge
    mask = region_mask(np.array([[0.0, 0.0, 26.0, 26.0]]), (100, 100), (2, 2))
    assert mask.tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize(("heat_map", "message"), CASES["refused_maps"])
def test_heat_maps_that_are_refused(folder, heat_map, message):
    np.save(folder / "flat.npy", np.ones(4))
    with pytest.raises(UserError, match=message):
        scored(folder, [{"question_id": "a", "heat_map": heat_map}])
