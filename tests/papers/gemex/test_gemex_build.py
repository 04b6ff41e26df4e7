"""The whole way from sources to a folder, its statistics and figures."""

import io
import json
import shutil
import tarfile

import numpy as np
import pytest
from PIL import Image

from bench import paper_figures
from cxrjax.commands.build import main
from cxrjax.errors import UserError
from cxrjax.images.geometry import IDENTITY
from cxrjax.input_pipeline.prompts import PROMPTS, BoxText
from cxrjax.papers.gemex.construct.construction import HEALTHY, TARGET_MIX, classes_of, curate
from cxrjax.papers.gemex.native_files import TRAIN_FILE
from cxrjax.papers.gemex.statistics import PAPER, GemexStatistics
from cxrjax.papers.sources.report import RefinedSentence
from cxrjax.records import Answer, read_records
from cxrjax.simulation.studies.build import StudiesBuilder, StudiesOptions
from tests.asked import asked
from tests.papers.cases import data


def build(source, out, *flags):
    main(["--dataset=gemex", f"--source={source}", f"--out={out}", "--processes=1", *flags])
    names = ("manifest", "quality", "statistics")
    return {name: json.loads((out / f"{name}.json").read_text()) for name in names}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Graphs of phantom studies, with their images and tables."""
    folder = tmp_path_factory.mktemp("graphs")
    options = StudiesOptions(folder, seed=5, studies=24, long_side=64, processes=1)
    StudiesBuilder(options).build()
    return folder


@pytest.fixture(scope="module")
def from_graphs(graphs, tmp_path_factory):
    """(folder, JSON files) of a build of these; not to be changed."""
    out = tmp_path_factory.mktemp("built") / "out"
    return out, build(graphs, out)


def test_scene_graphs_become_records_with_boxes(from_graphs):
    out, built = from_graphs
    records = list(read_records(out / "records/train.jsonl"))
    assert records and built["quality"]["warnings"]
    for record in records:
        height, width = record.image_hw
        assert record.boxes and len(record.boxes) == len(record.answers[0].regions)
        boxes = np.array(record.boxes)
        assert (boxes >= 0).all() and (boxes <= [width, height] * 2).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (out / record.image_path).is_file()
        written = BoxText("gemex", "paligemma", height, width, IDENTITY)
        text = PROMPTS["gemex"].target(record, written)
        assert text.startswith("<answer> ") and text.count("<loc") == 4 * len(record.boxes)
        prefix = PROMPTS["gemex"].prefix(record)
        assert prefix.startswith("Input a") and prefix.endswith("\n")
        assert all(choice in prefix for choice in record.choices or [])
        assert record.type_prompt in PROMPTS["gemex_chat"].prefix(record)
    assert {p.stem for p in (out / "records").iterdir()} == {"train", "validation", "test"}
    assert built["manifest"]["refiner"] == {"name": "rules", "version": "1"}
    questions = (out / "questions/train.jsonl").read_text()
    assert "<answer>" not in questions and '"reason"' not in questions


def test_built_twice_is_the_same_to_the_byte(graphs, from_graphs, tmp_path):
    _, first = from_graphs
    again = tmp_path / "out"  # as deep as the first: the manifest tells ways from folder to folder
    assert first == build(graphs, again)


def test_the_papers_figures_are_drawn_alike_twice(from_graphs, tmp_path):
    for folder in ("one", "two"):
        paper_figures.main([f"--build={from_graphs[0]}", f"--out={tmp_path / folder}"])
    drawn = sorted((tmp_path / "one").iterdir())
    assert [path.stem.split("_")[1] for path in drawn] == ["3", "4", "5", "6", "7"]
    for path in drawn:
        assert np.asarray(Image.open(path)).std() > 5
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_the_built_files_are_the_releases_own_form(from_graphs, tmp_path):
    out, _ = from_graphs
    build(out / "native", tmp_path)
    before, after = (list(read_records(one / "records/train.jsonl")) for one in (out, tmp_path))
    assert [r.answer_text for r in after] == [r.answer_text for r in before]
    assert [r.choices for r in after] == [r.choices for r in before]


@pytest.fixture
def release(sample, tmp_path):
    """A copy of the sample's released files, to be changed."""
    shutil.copytree(sample / "test", tmp_path / "release" / "test")
    shutil.copy(sample / TRAIN_FILE, tmp_path / "release")
    return tmp_path / "release"


@pytest.mark.parametrize(("letters", "told"), [("A", 100), ("ABC", 100 / 3)])
def test_statistics_state_what_option_words_alone_tell(letters, told):
    """Learned from training: words that are always right, and words that are so in turn."""
    found, choices = GemexStatistics(), ("A: Normal", "B: Mass", "C: Nodule")
    for number in range(12):
        key = letters[number % len(letters)]
        text = f"<answer> {key} <reason> Seen. <location> [[1, 1, 9, 9]]"
        fields = {"question_type": "single_choice", "choices": choices, "answer_key": key}
        split = "train" if number < 6 else "test"
        found.add(asked(split=split, answers=[Answer(text=text)], reason="Seen.", **fields))
    values = found.values()
    assert values["option_words_percent/single_choice"] == pytest.approx(told)
    assert values["chance_percent/single_choice"] == pytest.approx(100 / 3)


def test_released_files(release, tmp_path):
    built = build(release, tmp_path / "out")
    values = {name: row["value"] for name, row in built["statistics"].items()}
    assert (values["questions"], values["train_questions"], values["test_questions"]) == (10, 5, 5)
    assert (values["train_boxes/multi_choice"], values["answer_boxes"]) == (2, 12)
    files = (tmp_path / "out").rglob("*.json*")
    assert "MADE-UP REPORT" not in "".join(path.read_text() for path in files)
    assert not any(built["quality"]["counts"].values())
    # Of the one report: a small effusion on the left.
    assert values["region_percent/left lower lung zone"] == 100
    assert values["test_class_percent/Pleural Effusion"] == 100
    table = (tmp_path / "out/tables.md").read_text()
    assert [row for row in data(__file__)["rows"] if row not in table] == []


def test_released_files_with_images_are_written_back_as_they_were(release, tmp_path):
    """Reports as well, where they are to be kept."""
    rows = json.loads((release / TRAIN_FILE).read_text())
    image = release / "files" / rows[0]["image"]
    image.parent.mkdir(parents=True)
    Image.fromarray(np.tile(np.arange(120, dtype=np.uint8), (90, 1))).save(image)
    rows[1]["image"] = "p10/p10000001/s50000001/nowhere.jpg"
    (release / TRAIN_FILE).write_text(json.dumps(rows))
    built = build(release, tmp_path / "out", "--keep_reports")
    assert built["quality"]["counts"]["missing_image"] == 1
    records = list(read_records(tmp_path / "out/records/train.jsonl"))
    assert records[0].image_hw == (90, 120) and records[0].boxes
    assert (tmp_path / "out" / records[0].image_path).samefile(image)
    written = json.loads((tmp_path / "out/native" / TRAIN_FILE).read_text())
    assert written == [rows[0], *rows[2:]]
    for path in sorted((release / "test").iterdir()):
        files = (tmp_path / "out/native/test" / path.name, path)
        again, was = ([json.loads(line) for line in one.open()] for one in files)
        assert again == was
        assert path.stem != "open_ended_question" or "MADE-UP REPORT" in files[0].read_text()


def many_patients(sample, count):
    """Training rows of so many patients."""
    (row, *_) = json.loads((sample / TRAIN_FILE).read_text())
    images = (f"p10/p1000{n:04d}/s5000{n:04d}/{n:040d}.jpg" for n in range(count))
    return [{**row, "image": image, "row_id": number} for number, image in enumerate(images)]


def test_patients_are_held_out_where_no_file_has_validation_rows(sample, tmp_path):
    (tmp_path / TRAIN_FILE).write_text(json.dumps(many_patients(sample, 150)))

    def patients(out, split):
        records = list(read_records(out / f"records/{split}.jsonl"))
        assert {record.split for record in records} == {split}
        return {record.patient_id for record in records}

    built = build(tmp_path, tmp_path / "out")
    train, validation = (patients(tmp_path / "out", s) for s in ("train", "validation"))
    assert (len(train), len(validation)) == (148, 2) and not train & validation
    assert built["statistics"]["validation_questions"]["value"] == 2
    assert built["statistics"]["train_questions"]["value"] == 148
    assert "2 of 150 patients" in built["manifest"]["validation"]
    # Written in the release's form, they are the same two when they are read again.
    build(tmp_path / "out/native", tmp_path / "again")
    assert patients(tmp_path / "again", "validation") == validation
    assert patients(tmp_path / "again", "train") == train


def test_images_without_a_patient_are_held_out_by_themselves(sample, tmp_path):
    rows = many_patients(sample, 150)
    for row in rows:
        row["image"] = row["image"].split("/", 2)[2]  # the study's folder comes first
    (tmp_path / TRAIN_FILE).write_text(json.dumps(rows))
    splits = build(tmp_path, tmp_path / "out")["manifest"]["splits"]
    questions = {split: entry["questions"] for split, entry in splits.items()}
    assert questions == {"train": 148, "validation": 2}


def test_one_stray_box_sets_its_row_aside(sample, tmp_path):
    rows = many_patients(sample, 6)
    for number, row in enumerate(rows):
        box = [150, 150, 40, 60] if number == 3 else [126, 110, 203, 167]
        said = {"from": "gpt", "value": f"<answer> Less. <reason> It is. <location> [{box}]"}
        row["conversations"] = [row["conversations"][0], said]
    (tmp_path / TRAIN_FILE).write_text(json.dumps(rows))
    built = build(tmp_path / TRAIN_FILE, tmp_path / "out")
    assert built["quality"]["counts"]["wrong_frame"] == 1
    assert sum(s["questions"] for s in built["manifest"]["splits"].values()) == 5


def test_comparing_questions_of_the_release_are_counted_and_set_aside_if_asked_for(
    sample, tmp_path
):
    rows = json.loads((sample / TRAIN_FILE).read_text())
    told = "<answer> Less. <reason> It is smaller than on the previous film."
    rows[0]["conversations"][1]["value"] = f"{told} <location> [[1, 2, 3, 4]]"
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
    totals = {"questions/open_ended": 446_139, "questions/closed_ended": 275_011}
    totals |= {"questions/single_choice": 445_934, "questions/multi_choice": 438_491}
    for name, total in (totals | {"questions": 1_605_575, "images": 151_025}).items():
        splits = ("train", "validation", "test")
        assert sum(PAPER[f"{split}_{name}"].value for split in splits) == total
    assert round(PAPER["train_boxes_per_question/multi_choice"].value, 3) == 1.985
    assert sum(TARGET_MIX.values()) == pytest.approx(100, abs=0.01)
    # Every share is a whole number of 529 labels.
    for share in TARGET_MIX.values():
        assert round(share * 5.29) / 5.29 == pytest.approx(share, abs=0.01)


def test_openi_reports_have_regions_and_no_boxes_and_filters_count(tmp_path):
    usable = ("The heart is normal. The lungs are clear.", "No effusion.")
    ill = ("The heart is enlarged. There is a small left effusion.", "No pneumothorax.")
    compared = ("Lungs are clear. Compared to the prior exam, better.", "Heart is normal.")
    others = [("", ""), ("Normal chest.", ""), ("Rib fracture.", "Old film lost."), compared]
    archive = tmp_path / "NLMCXR_reports.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for number, (findings, impression) in enumerate([usable, ill, ill, *others]):
            xml = (
                f'<e><uId id="CXR{number}"/><AbstractText Label="FINDINGS">{findings}'
                f'</AbstractText><AbstractText Label="IMPRESSION">{impression}</AbstractText></e>'
            ).encode()
            member = tarfile.TarInfo(f"r/{number}.xml")
            member.size = len(xml)
            tar.addfile(member, io.BytesIO(xml))
    built = build(archive, tmp_path / "out")
    counts = {reason: n for reason, n in built["quality"]["counts"].items() if n}
    assert counts == {"empty_report": 1, "short_report": 2, "no_region": 1, "longitudinal": 2}
    files = [tmp_path / f"out/records/{split}.jsonl" for split in ("train", "validation")]
    records = [record for file in files for record in read_records(file)]
    assert {record.image_id for record in records} & {"CXR1", "CXR2"}
    left_out = "questions left out to balance options and contents"
    assert built["quality"]["warnings"][left_out] > 30
    assert all(r.answers[0].regions and not r.boxes for r in records)
    assert all(r.answer_text.endswith("<location>[]") for r in records)


def test_unusable_sources(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    for name in ("none", "folder", "file"):
        told = "no such file" if name == "none" else "found no sub_training_data.json"
        with pytest.raises(UserError, match=told):
            build(tmp_path / name, tmp_path / "out")


def test_broken_graphs_are_set_aside_and_an_empty_build_is_refused(graphs, tmp_path):
    source = shutil.copytree(graphs, tmp_path / "graphs")
    files = sorted(source.rglob("*_SceneGraph.json"))
    files[0].write_bytes(b"\xff")
    built = build(source, tmp_path / "out")
    assert built["quality"]["counts"]["bad_encoding"] == 1
    for file in files:
        file.write_text("{}")
    with pytest.raises(UserError, match="no question left"):
        build(source, tmp_path / "none")


def test_classes_of_an_image():
    def classes(*texts):
        return classes_of(RefinedSentence(t, "bilateral lung", k) for k, t in enumerate(texts))

    both = classes("There is mild cardiomegaly.", "There is atelectasis.")
    assert both == ["Atelectasis", "Cardiomegaly"]
    assert classes("The lungs are clear.", "There is no effusion.") == [HEALTHY]
    assert classes("There may be pneumonia.") == []


def test_curation_comes_near_the_target():
    rng = np.random.default_rng(0)
    names = list(TARGET_MIX)
    labels = {}
    for k in range(2331):
        some = [] if rng.random() < 0.5 else rng.choice(names, rng.integers(1, 4), replace=False)
        labels[f"i{k}"] = [str(name) for name in some if name != HEALTHY] or [HEALTHY]
    chosen = curate(labels, seed=1)
    assert len(chosen) == len(set(chosen)) == 300
    counted = [name for image_id in chosen for name in labels[image_id]]
    for name, share in TARGET_MIX.items():
        assert 100 * counted.count(name) / len(counted) == pytest.approx(share, abs=1.5)
    assert chosen == curate(labels, seed=1)
    assert curate({"a": ["Mass"], "b": []}, seed=0) == ["a"]
