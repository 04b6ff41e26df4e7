"""The release's files: there and back, and what is refused."""

import copy
import io
import json
import os
import shutil
import zipfile

import numpy as np
import pytest

from cxrjax.boxes import pairwise_iou
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.native import StudyQuestions, StudySceneGraph
from cxrjax.papers.cxr_qba.records import from_records, to_records
from cxrjax.papers.cxr_qba.study_files import (
    MAX_BYTES,
    StudyFiles,
    holds_studies,
    study_path,
    write_study,
)
from cxrjax.records import format_record, parse_record
from cxrjax.records_io.quality import QualityLog

KEY = ("p19990001", "s59990001")
SIZES = {"synthetic-0001": (1200, 1000), "synthetic-0002": (900, 1100)}
IMAGES = [StudyImage(image_id, size, "PA") for image_id, size in SIZES.items()]


def in_order(content):
    """JSON with sorted keys: equal texts are equal up to the order of keys."""
    return json.dumps(content, sort_keys=True)


def lay(tmp_path, graph=None, questions=None, raw=None):
    """Writes a study's files, changed or not."""
    folder = tmp_path / "p19" / KEY[0]
    folder.mkdir(parents=True)
    for suffix, content in (("scene_graph", graph), ("qa", questions)):
        if content is not None:
            (folder / f"{KEY[1]}.{suffix}.json").write_text(json.dumps(content))
    if raw is not None:
        (folder / f"{KEY[1]}.scene_graph.json").write_bytes(raw)
    return tmp_path


def reason(path, key=KEY):
    """Why a study was set aside; None where it was not."""
    quality = QualityLog()
    with StudyFiles(path, quality) as files:
        if key in files.members:
            files.read(key, SIZES)
    return quality.entries[0].reason if quality.entries else None


def test_files_there_and_back(native_pair):
    graph, questions = native_pair
    graph["a_field_of_a_later_version"] = {"kept": [1, 2.5]}
    assert in_order(StudySceneGraph.model_validate(graph).to_json()) == in_order(graph)
    assert in_order(StudyQuestions.model_validate(questions).to_json()) == in_order(questions)


def test_records_there_and_back(native_pair):
    _, questions = native_pair
    study = StudyQuestions.model_validate(questions)
    records = list(to_records(study, IMAGES, "train"))
    assert len(records) == 2 * len(study.questions)
    assert len({record.question_id for record in records}) == len(records)
    again = [parse_record(format_record(record), "test") for record in records]
    (back,) = from_records(again)
    assert in_order(back.to_json()) == in_order(questions)


def test_nulls_bare_ids_and_unknown_fields_there_and_back(native_pair):
    graph, questions = native_pair
    graph |= {"patient_id": 19990001, "study_id": "59990001", "obs_relations": None}
    next(iter(graph["observations"].values())).update(modifiers=None, positiveness=None)
    questions |= {"patient_id": 19990001, "study_id": 59990001, "of_the_study": {"kept": None}}
    for question in questions["questions"]:
        question["variables"] = question["extraction_quality"] = None
        for answer in question["answers"]:
            # Ids need only differ among siblings.
            answer |= {"answer_id": "A", "modifiers": None, "regions": None, "answer_type": "odd"}
            for part in answer["sub_answers"]:
                part |= {"answer_id": "A", "sub_answers": None}
    read = StudySceneGraph.model_validate(graph)
    assert (read.patient_id, read.study_id) == KEY and read.obs_relations == []
    assert in_order(read.to_json()) == in_order(graph)
    study = StudyQuestions.model_validate(questions)
    assert in_order(study.to_json()) == in_order(questions)
    records = [parse_record(format_record(r), "test") for r in to_records(study, IMAGES, "train")]
    assert {(r.patient_id, r.study_id) for r in records} == {KEY}
    (back,) = from_records(records)
    assert in_order(back.to_json()) == in_order(questions)


def test_a_sparse_file_comes_back_as_sparse():
    sparse = {
        "patient_id": "p1",
        "study_id": "s1",
        "questions": [
            {
                "question_id": "q",
                "question_type": "B01_describe_all",
                "question_strategy": "abnormal",
                "question": "What?",
                "answers": [
                    {"answer_id": "a", "answer_type": "main_answer", "text": "That."},
                    {
                        "answer_id": "b",
                        "answer_type": "details",
                        "text": "This.",
                        "sub_answers": [],
                    },
                ],
            }
        ],
    }
    study = StudyQuestions.model_validate(sparse)
    (back,) = from_records(to_records(study, IMAGES, "train"))
    assert in_order(back.to_json()) == in_order(sparse)


def test_records_fuse_duplicate_boxes_and_keep_both_images(native_pair):
    _, questions = native_pair
    study = StudyQuestions.model_validate(questions)
    question = next(q for q in study.questions if q.answers[0].localization)
    native = question.answers[0].localization["synthetic-0001"].bboxes
    assert len(native) > len({tuple(box) for box in native})
    record = next(
        r for r in to_records(study, IMAGES, "train") if question.question_id in r.question_id
    )
    boxes = record.answers[0].boxes_by_image
    assert set(boxes) == set(SIZES)
    kept = np.array(boxes["synthetic-0001"])
    overlaps = pairwise_iou(kept, kept) - np.eye(len(kept))
    assert len(kept) < len(native) and overlaps.max() <= 0.9
    # Each native box is still covered by one of them.
    assert (pairwise_iou(np.array(native, np.float64), kept).max(axis=1) > 0.9).all()


@pytest.mark.parametrize("kind", ["folder", "zip", "folder of zips"])
def test_studies_are_found(sample, tmp_path, kind):
    source = sample / "release"
    if kind != "folder":
        archive = shutil.make_archive(str(tmp_path / "qba"), "zip", source)
        source = tmp_path if kind == "folder of zips" else tmp_path / os.path.basename(archive)
    quality = QualityLog()
    with StudyFiles(source, quality) as files:
        assert list(files.members) == [KEY, ("p19990002", "s59990002")]
        graph, questions = files.read(KEY, SIZES)
    assert graph.study_id == questions.study_id == KEY[1]
    assert not quality.entries


def test_studies_are_found_in_archives_of_each_kind_in_folders(sample, tmp_path):
    """As the release has them: scene graphs and questions apart, an archive for each p1x."""
    release, source = sample / "release", tmp_path / "release"
    for kind, suffix in (("scene_data", "scene_graph.json"), ("qa", "qa.json")):
        (source / kind).mkdir(parents=True)
        with zipfile.ZipFile(source / kind / "p19.zip", "w") as archive:
            for path in release.rglob(f"*.{suffix}"):
                archive.write(path, path.relative_to(release))
    assert holds_studies(source)
    with StudyFiles(source, QualityLog()) as files:
        graph, questions = files.read(KEY, SIZES)
    assert graph.study_id == questions.study_id == KEY[1]


def test_archives_of_other_things_are_no_studies(tmp_path):
    with zipfile.ZipFile(tmp_path / "mimic-cxr-reports.zip", "w") as archive:
        archive.writestr("files/p10/p10000032/s50414267.txt", "FINAL REPORT")
    (tmp_path / "damaged.zip").write_bytes(b"PK nonsense")
    assert not holds_studies(tmp_path)


def test_writing_puts_a_study_at_its_place(native_pair, tmp_path):
    graph = StudySceneGraph.model_validate(native_pair[0])
    path = write_study(tmp_path, graph, whole=False)
    assert path == tmp_path / "p19" / KEY[0] / f"{KEY[1]}.scene_graph.json"
    assert in_order(json.loads(path.read_text())) == in_order(native_pair[0])
    assert study_path("p10000032", "s50414267") == "p10/p10000032/s50414267"


def _dangling(edges, field):
    def change(graph):
        graph[edges][-1][field] = "S99"

    return change


def _cycle(graph):
    edge = graph["obs_relations"][0]
    graph["obs_relations"].append(
        {
            "parent_observation_id": edge["child_observation_id"],
            "child_observation_id": edge["parent_observation_id"],
        }
    )


def _three_numbers(graph):
    observation = next(o for o in graph["observations"].values() if o["localization"])
    observation["localization"]["synthetic-0001"]["bboxes"] = [[1, 2, 3]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_dangling("located_at_relations", "observation_id"), "dangling_id"),
        (_dangling("located_at_relations", "region"), "dangling_id"),
        (_dangling("obs_relations", "parent_observation_id"), "dangling_id"),
        (_dangling("obs_relations", "child_observation_id"), "dangling_id"),
        (_dangling("obs_sent_relations", "observation_id"), "dangling_id"),
        (_dangling("obs_sent_relations", "sentence_id"), "dangling_id"),
        (_dangling("region_region_relations", "related_region"), "dangling_id"),
        (lambda g: g["top_level_obs_ids"].append("O99"), "dangling_id"),
        (lambda g: g["indication"]["associated_obs_ids"].append("O99"), "dangling_id"),
        (_cycle, "invalid_graph"),
        (_three_numbers, "invalid_graph"),
        (lambda g: g.update(study_id="s1"), "invalid_graph"),
        (lambda g: g.pop("patient_id"), "invalid_graph"),
        (lambda g: None, None),
    ],
)
def test_graphs_that_do_not_hold_together(native_pair, tmp_path, change, expected):
    graph = copy.deepcopy(native_pair[0])
    change(graph)
    assert reason(lay(tmp_path, graph)) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"patient_id": "\xff"}', "bad_encoding"),
        (b'{"patient_id": ', "invalid_graph"),
        (b"[" * 100_000, "invalid_graph"),
        (b"[]", "invalid_graph"),
        (b"", "invalid_graph"),
    ],
)
def test_files_that_are_none(tmp_path, raw, expected):
    assert reason(lay(tmp_path, raw=raw)) == expected


def test_parts_of_answers_without_end(native_pair, tmp_path):
    questions = native_pair[1]
    questions["questions"][0]["answers"] = ["DEEP"]
    deep = '{"answer_id": "a", "answer_type": "d", "text": "t", "sub_answers": ['
    path = lay(tmp_path, questions=questions) / "p19" / KEY[0] / f"{KEY[1]}.qa.json"
    for depth in (300, 2000):
        text = json.dumps(questions).replace('"DEEP"', deep * depth + "]}" * depth)
        path.write_text(text)
        assert reason(tmp_path) == "invalid_graph"


@pytest.mark.parametrize("region", [None, 3, ["left lung"]])
def test_a_region_of_an_answer_that_is_none(native_pair, tmp_path, region):
    questions = native_pair[1]
    questions["questions"][0]["answers"][0]["regions"] = [region]
    assert reason(lay(tmp_path, questions=questions)) == "invalid_graph"


def test_a_question_twice(native_pair, tmp_path):
    questions = native_pair[1]
    questions["questions"].append(questions["questions"][0])
    assert reason(lay(tmp_path, questions=questions)) == "duplicate_id"


@pytest.mark.parametrize(
    "name",
    [
        "../p19/p19990001/s59990001.qa.json",
        "/p19/p19990001/s59990001.qa.json",
        "..\\p19990001\\s59990001.qa.json",
        "C:/p19990001/s59990001.qa.json",
    ],
)
def test_paths_that_lead_out_of_an_archive(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "qba.zip", "w") as archive:
        archive.writestr(name, "{}")
    quality = QualityLog()
    with StudyFiles(tmp_path / "qba.zip", quality) as files:
        assert not files.members
    assert [entry.reason for entry in quality.entries] == ["unsafe_member"]


def test_a_link_that_leads_out_of_a_folder(tmp_path, native_pair):
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(native_pair[0]))
    folder = tmp_path / "in" / "p19" / KEY[0]
    folder.mkdir(parents=True)
    (folder / f"{KEY[1]}.scene_graph.json").symlink_to(outside)
    assert reason(tmp_path / "in") == "unsafe_member"


def test_a_bomb_is_not_unpacked(tmp_path):
    name = f"p19/{KEY[0]}/{KEY[1]}.qa.json"
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b" " * (MAX_BYTES + 1))
    assert reason(tmp_path / "bomb.zip") == "unsafe_member"


def test_a_bomb_that_lies_about_its_size(tmp_path):
    """The directory says a kilobyte; zipfile stops there, and what is left is no JSON."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"p19/{KEY[0]}/{KEY[1]}.qa.json", b" " * (2 << 20))
    size = (2 << 20).to_bytes(4, "little")
    (tmp_path / "bomb.zip").write_bytes(
        buffer.getvalue().replace(size, (1024).to_bytes(4, "little"))
    )
    try:
        assert reason(tmp_path / "bomb.zip") in ("unsafe_member", "invalid_graph")
    except UserError as error:
        assert "cannot read" in str(error)


def test_a_damaged_member(native_pair, tmp_path):
    path = tmp_path / "qba.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"p19/{KEY[0]}/{KEY[1]}.qa.json", json.dumps(native_pair[1]))
    content = bytearray(path.read_bytes())
    content[80:120] = b"\xff" * 40
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"qba\.zip: p19/.*: cannot read"):
        reason(path)


def test_what_is_no_archive(tmp_path):
    (tmp_path / "qba.zip").write_bytes(b"PK nonsense")
    with pytest.raises(UserError, match="not a zip archive"):
        StudyFiles(tmp_path / "qba.zip", QualityLog())
    with pytest.raises(UserError, match="not there"):
        StudyFiles(tmp_path / "none", QualityLog())
