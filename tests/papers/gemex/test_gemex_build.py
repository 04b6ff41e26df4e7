"""The whole way from sources to a folder, its statistics and figures."""

import io
import json
import shutil
import tarfile

import numpy as np
import pytest
from PIL import Image

from cxrjax.build import main
from cxrjax.errors import UserError
from cxrjax.images.geometry import IDENTITY
from cxrjax.input_pipeline.prompts import PROMPTS, BoxText
from cxrjax.papers.gemex.construct.construction import HEALTHY, TARGET_MIX, classes_of, curate
from cxrjax.papers.gemex.native_files import TRAIN_FILE
from cxrjax.papers.gemex.statistics import PAPER
from cxrjax.papers.sources.report import RefinedSentence
from cxrjax.records import read_records


def build(source, out, *flags):
    main(["--dataset=gemex", f"--source={source}", f"--out={out}", "--processes=1", *flags])
    return {
        name: json.loads((out / f"{name}.json").read_text())
        for name in ("manifest", "quality", "statistics")
    }


@pytest.fixture(scope="module")
def graphs(sample, tmp_path_factory):
    """The sample's graphs with images of the sizes their table tells."""
    folder = tmp_path_factory.mktemp("graphs")
    shutil.copytree(sample / "scene_graph", folder / "scene_graph")
    for name in ("split", "metadata"):
        shutil.copy(sample / f"mimic-cxr-2.0.0-{name}.csv", folder)
    table = (folder / "mimic-cxr-2.0.0-metadata.csv").read_text().splitlines()
    for line in table[1:]:
        row = dict(zip(table[0].split(","), line.split(","), strict=True))
        patient = f"p{row['subject_id']}"
        path = folder / "files" / patient[:3] / patient / f"s{row['study_id']}"
        path.mkdir(parents=True)
        shade = np.tile(np.arange(int(row["Columns"]), dtype=np.uint8), (int(row["Rows"]), 1))
        Image.fromarray(shade).save(path / f"{row['dicom_id']}.jpg")
    return folder


def test_scene_graphs_become_records_with_boxes(graphs, tmp_path):
    built = build(graphs, tmp_path / "out")
    records = list(read_records(tmp_path / "out/records/train.jsonl"))
    assert len(records) >= 9
    for record in records:
        height, width = record.image_hw
        assert record.boxes and len(record.boxes) == len(record.answers[0].regions)
        assert all(0 <= box[0] < box[2] <= width and box[1] < box[3] <= height
                   for box in record.boxes)  # fmt: skip
        assert (tmp_path / "out" / record.image_path).is_file()
        text = PROMPTS["gemex"].target(
            record, BoxText("gemex", "paligemma", height, width, IDENTITY)
        )
        assert text.startswith("<answer> ") and text.count("<loc") == 4 * len(record.boxes)
        prefix = PROMPTS["gemex"].prefix(record)
        assert prefix.startswith("Input a") and prefix.endswith("\n")
        assert all(choice in prefix for choice in record.choices or [])
        assert record.type_prompt in PROMPTS["gemex_chat"].prefix(record)
    assert {p.stem for p in (tmp_path / "out/records").iterdir()} == {"train", "validation", "test"}
    assert built["manifest"]["refiner"] == {"name": "rules", "version": "1"}
    figures = sorted(path.stem for path in (tmp_path / "out/figures").iterdir())
    assert [name.split("_")[1] for name in figures] == ["3", "4", "5", "6", "7"]
    for path in (tmp_path / "out/figures").iterdir():
        assert np.asarray(Image.open(path)).std() > 5
    questions = (tmp_path / "out/questions/train.jsonl").read_text()
    assert "<answer>" not in questions and '"reason"' not in questions


def test_built_twice_is_the_same_to_the_byte(graphs, tmp_path):
    first, second = (build(graphs, tmp_path / name) for name in ("a", "b"))
    assert first == second
    for file in (tmp_path / "a").rglob("*.png"):
        assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes()


def test_the_built_files_are_the_releases_own_form(graphs, tmp_path):
    build(graphs, tmp_path / "out")
    build(tmp_path / "out/native", tmp_path / "again")
    before = list(read_records(tmp_path / "out/records/train.jsonl"))
    after = list(read_records(tmp_path / "again/records/train.jsonl"))
    assert [r.answer_text for r in after] == [r.answer_text for r in before]
    assert [r.choices for r in after] == [r.choices for r in before]


def test_released_files(sample, tmp_path):
    source = tmp_path / "release"
    shutil.copytree(sample / "test", source / "test")
    shutil.copy(sample / TRAIN_FILE, source)
    built = build(source, tmp_path / "out")
    values = {name: row["value"] for name, row in built["statistics"].items()}
    assert (values["questions"], values["train_questions"], values["test_questions"]) == (10, 5, 5)
    assert (values["train_boxes/multi_choice"], values["answer_boxes"]) == (2, 12)
    assert "MADE-UP REPORT" not in "".join(
        path.read_text() for path in (tmp_path / "out").rglob("*.json*")
    )
    assert not any(built["quality"]["counts"].values())
    figures = sorted(path.stem.split("_")[1] for path in (tmp_path / "out/figures").iterdir())
    assert figures == ["3", "4", "5", "6", "7"]
    # Of the one report: a small effusion on the left.
    assert values["region_percent/left lower lung zone"] == 100
    assert values["test_class_percent/Pleural Effusion"] == 100
    table = (tmp_path / "out/tables.md").read_text()
    assert "| Train | 2 / 2 | 1 / 1 | 1 / 1 | 1 / 2 | 5 | 1 |" in table
    assert "| Test | 2 / 2 | 1 / 1 | 1 / 1 | 1 / 2 | 5 | 1 |" in table
    assert "| Test, paper | 1,144 / 1,189 | 543 / 552 |" in table
    assert "| Total, paper | 446,139 / 471,618 | 275,011 / 279,985 | 445,934 / 453,719 |" in table
    assert "| 438,491 / 870,460 | 1,605,575 | 151,025 |" in table
    build(source, tmp_path / "kept", "--keep_reports")
    assert "MADE-UP REPORT" in (tmp_path / "kept/native/test/open_ended_question.jsonl").read_text()


def test_released_files_with_images_are_written_back_as_they_were(sample, tmp_path):
    source = tmp_path / "release"
    shutil.copytree(sample / "test", source / "test")
    shutil.copy(sample / TRAIN_FILE, source)
    rows = json.loads((source / TRAIN_FILE).read_text())
    image = source / "files" / rows[0]["image"]
    image.parent.mkdir(parents=True)
    Image.fromarray(np.tile(np.arange(120, dtype=np.uint8), (90, 1))).save(image)
    rows[1]["image"] = "p10/p10000001/s50000001/nowhere.jpg"
    (source / TRAIN_FILE).write_text(json.dumps(rows))
    built = build(source, tmp_path / "out", "--keep_reports")
    assert built["quality"]["counts"]["missing_image"] == 1
    records = list(read_records(tmp_path / "out/records/train.jsonl"))
    assert records[0].image_hw == (90, 120) and records[0].boxes
    assert (tmp_path / "out" / records[0].image_path).samefile(image)
    written = json.loads((tmp_path / "out/native" / TRAIN_FILE).read_text())
    assert written == [rows[0], *rows[2:]]
    for path in sorted((source / "test").iterdir()):
        again = tmp_path / "out/native/test" / path.name
        assert [json.loads(line) for line in again.read_text().splitlines()] == [
            json.loads(line) for line in path.read_text().splitlines()
        ]


def many_patients(sample, count):
    """Training rows of so many patients, and a row whose box is a stray of the other convention."""
    (row, *_) = json.loads((sample / TRAIN_FILE).read_text())
    rows = []
    for number in range(count):
        image = f"p10/p1000{number:04d}/s5000{number:04d}/{number:040d}.jpg"
        rows.append({**row, "image": image, "row_id": number})
    return rows


def test_patients_are_held_out_where_no_file_has_validation_rows(sample, tmp_path):
    rows = many_patients(sample, 150)
    (tmp_path / TRAIN_FILE).write_text(json.dumps(rows))
    built = build(tmp_path, tmp_path / "out")
    split = {
        s: list(read_records(tmp_path / f"out/records/{s}.jsonl")) for s in ("train", "validation")
    }
    patients = {s: {r.patient_id for r in of} for s, of in split.items()}
    assert len(patients["train"]) == 148 and len(patients["validation"]) == 2
    assert not patients["train"] & patients["validation"]
    assert {r.split for r in split["validation"]} == {"validation"}
    assert built["statistics"]["validation_questions"]["value"] == 2
    assert built["statistics"]["train_questions"]["value"] == 148
    assert "2 of 150 patients" in built["manifest"]["validation"]
    # Written in the release's form, they are the same two when they are read again.
    build(tmp_path / "out/native", tmp_path / "again")
    again = list(read_records(tmp_path / "again/records/validation.jsonl"))
    assert {r.patient_id for r in again} == patients["validation"]
    train = list(read_records(tmp_path / "again/records/train.jsonl"))
    assert {r.patient_id for r in train} == patients["train"]


def test_images_without_a_patient_are_held_out_by_themselves(sample, tmp_path):
    rows = many_patients(sample, 150)
    for row in rows:
        row["image"] = row["image"].split("/", 2)[2]  # the study's folder comes first
    (tmp_path / TRAIN_FILE).write_text(json.dumps(rows))
    splits = build(tmp_path, tmp_path / "out")["manifest"]["splits"]
    assert {split: entry["questions"] for split, entry in splits.items()} == {
        "train": 148,
        "validation": 2,
    }


def test_one_stray_box_sets_its_row_aside(sample, tmp_path):
    rows = many_patients(sample, 6)
    for number, row in enumerate(rows):
        box = [150, 150, 40, 60] if number == 3 else [126, 110, 203, 167]
        row["conversations"] = [
            row["conversations"][0],
            {"from": "gpt", "value": f"<answer> Less. <reason> It is. <location> [{box}]"},
        ]
    (tmp_path / TRAIN_FILE).write_text(json.dumps(rows))
    built = build(tmp_path / TRAIN_FILE, tmp_path / "out")
    assert built["quality"]["counts"]["wrong_frame"] == 1
    assert sum(s["questions"] for s in built["manifest"]["splits"].values()) == 5


def test_comparing_questions_of_the_release_are_counted_and_set_aside_if_asked_for(
    sample, tmp_path
):
    rows = json.loads((sample / TRAIN_FILE).read_text())
    rows[0]["conversations"][1]["value"] = (
        "<answer> Less. <reason> It is smaller than on the previous film. <location> [[1, 2, 3, 4]]"
    )
    (tmp_path / TRAIN_FILE).write_text(json.dumps(rows))
    kept = build(tmp_path / TRAIN_FILE, tmp_path / "kept")
    assert kept["manifest"]["splits"]["train"]["questions"] == len(rows)
    assert kept["statistics"]["train_longitudinal_questions"]["value"] == 1
    built = build(tmp_path / TRAIN_FILE, tmp_path / "out", "--drop_longitudinal")
    assert built["manifest"]["splits"]["train"]["questions"] == len(rows) - 1
    (entry,) = built["quality"]["set_aside"]
    assert entry["reason"] == "longitudinal" and "previous" in entry["found"]
    assert entry["item"] == "train-open_ended-18-0" and entry["where"] == TRAIN_FILE


def test_table_3():
    """The sums of Table 3, and its quotients."""
    totals = {"open_ended": 446_139, "closed_ended": 275_011}
    totals |= {"single_choice": 445_934, "multi_choice": 438_491}
    splits = ("train", "validation", "test")
    for kind, total in totals.items():
        assert sum(PAPER[f"{split}_questions/{kind}"].value for split in splits) == total
    assert sum(PAPER[f"{split}_questions"].value for split in splits) == 1_605_575
    assert sum(PAPER[f"{split}_images"].value for split in splits) == 151_025
    assert round(PAPER["train_boxes_per_question/multi_choice"].value, 3) == 1.985
    assert sum(TARGET_MIX.values()) == pytest.approx(100, abs=0.01)
    # Every share is a whole number of 529 labels.
    for share in TARGET_MIX.values():
        assert round(share * 5.29) / 5.29 == pytest.approx(share, abs=0.01)


def openi(reports):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for number, (findings, impression) in enumerate(reports):
            xml = (
                f'<e><uId id="CXR{number}"/><AbstractText Label="FINDINGS">{findings}'
                f'</AbstractText><AbstractText Label="IMPRESSION">{impression}</AbstractText></e>'
            ).encode()
            member = tarfile.TarInfo(f"r/{number}.xml")
            member.size = len(xml)
            tar.addfile(member, io.BytesIO(xml))
    return buffer.getvalue()


def test_openi_reports_have_regions_and_no_boxes_and_filters_count(tmp_path):
    usable = ("The heart is normal. The lungs are clear.", "No effusion.")
    archive = tmp_path / "NLMCXR_reports.tgz"
    archive.write_bytes(
        openi(
            [usable, usable, ("", ""), ("Normal chest.", ""), ("Rib fracture.", "Old film lost.")]
            + [("Lungs are clear. Compared to the prior exam, better.", "Heart is normal.")]
        )
    )
    built = build(archive, tmp_path / "out")
    counts = {reason: n for reason, n in built["quality"]["counts"].items() if n}
    assert counts == {"empty_report": 1, "short_report": 2, "no_region": 1, "longitudinal": 2}
    records = [
        record
        for split in ("train", "validation")
        for record in read_records(tmp_path / f"out/records/{split}.jsonl")
    ]
    assert len({record.image_id for record in records}) == 3
    assert all(r.answers[0].regions and not r.boxes for r in records)
    assert all(r.answer_text.endswith("<location>[]") for r in records)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "found no sub_training_data.json"),
        (lambda path: path.write_bytes(b"x"), "found no sub_training_data.json"),
    ],
)
def test_unusable_sources(tmp_path, make, message):
    make(tmp_path / "source")
    with pytest.raises(UserError, match=message):
        build(tmp_path / "source", tmp_path / "out")


def test_broken_graphs_are_set_aside_and_an_empty_build_is_refused(graphs, tmp_path):
    source = tmp_path / "graphs"
    shutil.copytree(graphs, source)
    files = sorted((source / "scene_graph").iterdir())
    files[0].write_bytes(b"\xff")
    built = build(source, tmp_path / "out")
    assert built["quality"]["counts"]["bad_encoding"] == 1
    files[1].write_text("{}")
    with pytest.raises(UserError, match="no question left"):
        build(source, tmp_path / "none")
    image = next((source / "files").rglob("*.jpg"))
    assert image.is_file()


def test_classes_of_an_image():
    def classes(*texts):
        return classes_of(RefinedSentence(t, "bilateral lung", k) for k, t in enumerate(texts))

    assert classes("There is mild cardiomegaly.", "There is atelectasis.") == [
        "Atelectasis",
        "Cardiomegaly",
    ]
    assert classes("The lungs are clear.", "There is no effusion.") == [HEALTHY]
    assert classes("There may be pneumonia.") == []


def test_curation_comes_near_the_target():
    rng = np.random.default_rng(0)
    names = list(TARGET_MIX)
    labels = {
        f"i{k}": (
            [HEALTHY]
            if rng.random() < 0.5
            else [names[j] for j in rng.choice(len(names), rng.integers(1, 4), replace=False)]
        )
        for k in range(2331)
    }
    labels = {k: [n for n in v if n != HEALTHY] or [HEALTHY] for k, v in labels.items()}
    chosen = curate(labels, seed=1)
    assert len(chosen) == len(set(chosen)) == 300
    counted = [name for image_id in chosen for name in labels[image_id]]
    for name, share in TARGET_MIX.items():
        assert 100 * counted.count(name) / len(counted) == pytest.approx(share, abs=1.5)
    assert chosen == curate(labels, seed=1)
    assert curate({"a": ["Mass"], "b": []}, seed=0) == ["a"]
