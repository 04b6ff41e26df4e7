"""Files of data sets with ids, paths, sizes and texts that nobody meant well."""

import csv
import itertools
import json
import re
import shutil
import time
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import Prediction
from cxrjax.papers.cxr_qba.construct.rule_extractor import split_text
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.release_tables import read_release_tables
from cxrjax.papers.cxr_qba.study_files import StudyFiles
from cxrjax.papers.gemex import native_files
from cxrjax.papers.gemex.construct.refine import refine_sentence
from cxrjax.papers.gemex.native_files import reports
from cxrjax.papers.ms_cxr import native as ms_cxr
from cxrjax.papers.ms_cxr.figures import _load_map
from cxrjax.papers.sources import report
from cxrjax.papers.sources.chest_imagenome import find_scene_graphs, read_reports
from cxrjax.papers.sources.openi import parse_openi
from cxrjax.papers.sources.report import split_sentences
from cxrjax.papers.vindr_cxr_vqa import native as vindr
from cxrjax.papers.vindr_cxr_vqa.box_table import read_box_table
from cxrjax.papers.vix_ray.deidentification import find_identifiers
from cxrjax.radiology_text.facts import align
from cxrjax.records_io.quality import QualityLog, Unusable
from tests.papers.cases import cases, data, write_files

DATA = Path(__file__).parents[2] / "data"
BAD = ["../../x", "/etc/passwd", "x" * 5_000, "a\0b", "a\nb", ".."]


def reasons(quality):
    return [entry.reason for entry in quality.entries]


@pytest.mark.parametrize("name", BAD)
def test_an_image_of_vindrs_release(tmp_path, name):
    images = json.loads((DATA / "vindr_cxr_vqa/sample/data_v1.json").read_text())
    questions = [len(image["vqa"]) for image in images]
    images[0]["image_id"] = name
    (tmp_path / "data_v1.json").write_text(json.dumps(images))
    quality = QualityLog()
    assert len(vindr.read_native(tmp_path / "data_v1.json", quality)) == sum(questions[1:])
    assert reasons(quality) == ["invalid_record"]


@pytest.mark.parametrize("name", BAD[:3])
def test_a_row_of_vindrs_boxes(tmp_path, name):
    header, first, *rest = (DATA / "vindr_cxr_vqa/sample/train.csv").read_text().splitlines()
    first = ",".join([name, *first.split(",")[1:]])
    (tmp_path / "train.csv").write_text("\n".join([header, first, *rest]))
    quality = QualityLog()
    images = read_box_table(tmp_path / "train.csv", quality)
    assert images and name not in {image.image_id for image in images}
    assert reasons(quality).count("invalid_record") == 1


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [(column, name, "invalid_record") for column in ("dicom_id", "path") for name in BAD[:3]]
    + [("image_width", "2147483647", "bad_size"), ("x", "1e400", "bad_box")],
)
def test_a_phrase_of_ms_cxr(tmp_path, column, value, reason):
    with open(DATA / "ms_cxr/sample/MS_CXR_Local_Alignment_v1.1.0.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    rows[0][column] = value
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    quality = QualityLog()
    kept = list(ms_cxr.read_native(tmp_path / "a.csv", quality))
    assert reason in reasons(quality)
    assert len(kept) + len(quality.entries) == quality.examined["questions"]
    assert value not in {record.image_id for record in kept}


@pytest.mark.parametrize("name", [*BAD, 7, None])
def test_a_row_of_gemex(tmp_path, name):
    rows = json.loads((DATA / "gemex/sample/sub_training_data.json").read_text())
    rows[0]["image"] = name
    path = tmp_path / native_files.TRAIN_FILE
    path.write_text(json.dumps(rows))
    quality = QualityLog()
    kept = list(native_files.read_native(path, "train", quality))
    assert len(kept) == len(rows) - 1
    assert reasons(quality) == ["invalid_record"]
    assert name not in native_files.image_paths(path)


def test_paths_and_lines_that_lead_elsewhere(tmp_path):
    changes = [{"study_id": "s" * 5_000}, {"split": "\ud800"}, *data(__file__)["changes"]]
    good = {"patient_id": "p1", "study_id": "s1", "sections": {"findings": "Clear."}}
    for change in changes:
        text = "".join(json.dumps(line) + "\n" for line in (good, good | change))
        (tmp_path / "studies.jsonl").write_text(text)
        quality = QualityLog()
        assert len(list(read_studies(tmp_path, quality))) == len(quality.entries) == 1, change
    prediction = Prediction.__new__(Prediction)
    for name in ("../x.npy", "/dev/zero", "x" * 5_000):
        object.__setattr__(prediction, "heat_map", name)
        object.__setattr__(prediction, "where", "p.jsonl:1")
        with pytest.raises(UserError, match=r"p\.jsonl:1: heat map"):
            _load_map(tmp_path, prediction)


def test_an_image_in_a_study_of_the_release(tmp_path):
    release = DATA / "cxr_qba/sample/release"
    shutil.copytree(release, tmp_path / "release")
    for file in (tmp_path / "release").rglob("*.qa.json"):
        text = file.read_text()
        (image, *_) = re.findall(r'"image_id": ?"([^"]+)"', text)
        file.write_text(text.replace(image, "../../x"))
    quality = QualityLog()
    with StudyFiles(tmp_path / "release", quality) as files:
        read = [files.read(key) for key in files.members]
    assert any(questions is None for _, questions in read)
    assert set(reasons(quality)) == {"invalid_record"}


@cases("level, row, words")
def test_a_row_of_the_releases_tables(tmp_path, level, row, words):
    name = f"metadata/{level}_metadata.csv.gz"
    write_files(tmp_path / "release", {name: f"{data(__file__)[level]}\n{row}\n"})
    with pytest.raises(UserError, match=words):
        read_release_tables(tmp_path / "release")


def test_a_phrase_id_of_two_hundred_thousand_digits(tmp_path):
    shutil.copytree(DATA / "gemex/sample/scene_graph", tmp_path / "scene_graph")
    file = min((tmp_path / "scene_graph").glob("*.json"))
    graph = json.loads(file.read_text())
    for entry in graph["attributes"]:
        entry["phrase_IDs"] = ["1" * 200_000 + str(n) for n in range(len(entry["phrases"]))]
    file.write_text(json.dumps(graph))
    quality = QualityLog()
    places = find_scene_graphs(tmp_path, quality)
    assert len(list(read_reports(places, sorted(places), {}, quality))) == len(places)


LENGTH = 60_000
PIECES = (
    *(" ", "\n", "a", "A", ",", "(", ". ", "no ", "1", "1. ", "A. ", "Dr. ", "no. ", "e.g. "),
    *("a@a.", "effusion, ", "Right pleural effusion. ", "\n \n", "FINDINGS: a\n", "tràn dịch, "),
)
READERS = {
    "sentences": split_sentences,
    "sections": report.parse_sections,
    "text": lambda text: list(split_text(text)),
    "identifiers": find_identifiers,
    "refined": lambda text: refine_sentence(report.ReportSentence(text)),
    "align en": lambda text: align(text, "No effusion. The heart is large.", "en"),
    "align vi": lambda text: align(text, "Không tràn dịch. Tim to.", "vi"),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_text_holds_a_reader_up(reader):
    READERS[reader]("A first text, so that tables are loaded.")
    for piece in PIECES:
        text = "".join(itertools.islice(itertools.cycle(piece), LENGTH))
        start = time.process_time()
        READERS[reader](text)
        assert time.process_time() - start < 1, piece


def test_reports_of_any_length_end_their_sentences_or_are_refused(tmp_path):
    text = "The aorta, as Dr. Who says, i.e. the large one, is normal. No. 7 is not."
    first, second = split_sentences(text)
    assert first == "The aorta, as Dr. Who says, i.e. the large one, is normal."
    assert second == "No. 7 is not."
    text = "no " * (report.MAX_REPORT_CHARACTERS // 3 + 9)
    xml = f'<a><uId id="CXR1"/><AbstractText Label="FINDINGS">{text}</AbstractText></a>'
    with pytest.raises(Unusable, match="report_too_long"):
        parse_openi(xml.encode(), "1.xml")
    path = tmp_path / "closed_ended_question.jsonl"
    path.write_text(f'{{"image_path": "a", "ori_report": "{text}"}}')
    with pytest.raises(UserError, match="expected at most"):
        reports(path)
