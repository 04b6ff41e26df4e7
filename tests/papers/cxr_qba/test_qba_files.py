"""The release's files: there and back, and what is refused."""

import copy
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cxrjax.boxes import pairwise_iou
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba import study_files
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.native import StudyQuestions, StudySceneGraph
from cxrjax.papers.cxr_qba.records import from_records, to_records
from cxrjax.papers.cxr_qba.study_files import MAX_BYTES, StudyFiles, fit_study_boxes, holds_studies
from cxrjax.records import format_record, parse_record
from cxrjax.records_io.quality import CUT, QualityLog, Unusable
from tests.papers.cases import cases
from tests.papers.cxr_qba import builds

KEY, IMAGE = ("p19990001", "s59990001"), "synthetic-0001"
MEMBER = f"p19/{KEY[0]}/{KEY[1]}"
SIZES = {IMAGE: (1200, 1000), "synthetic-0002": (900, 1100)}
RELEASE = Path(__file__).parents[3] / "data/cxr_qba/sample/release"
KINDS = ("scene_graph", "qa")
PAIR = [json.loads((RELEASE / f"{MEMBER}.{kind}.json").read_text()) for kind in KINDS]
IMAGES = [StudyImage(image_id, size, "PA") for image_id, size in SIZES.items()]


def in_order(content):
    """JSON with sorted keys: equal texts are equal up to the order of keys."""
    return json.dumps(content, sort_keys=True)


def lay(tmp_path, kind, content):
    """Writes one of a study's files; bytes as they are."""
    path = tmp_path / f"{MEMBER}.{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return tmp_path


def pack(path, name, content):
    """A zip archive with one member."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return path


def reason(path, key=KEY):
    """Why a study was set aside; None where it was not."""
    quality = QualityLog()
    with StudyFiles(path, quality) as files:
        if key in files.members:
            files.read(key, SIZES)
    return quality.entries[0].reason if quality.entries else None


def there_and_back(questions):
    """The questions' file out of the records that are made of it."""
    records = to_records(StudyQuestions.model_validate(questions), IMAGES, "train")
    (back,) = from_records([parse_record(format_record(record), "test") for record in records])
    return back.to_json()


def test_files_and_records_there_and_back(native_pair):
    graph, questions = native_pair
    graph["a_field_of_a_later_version"] = {"kept": [1, 2.5]}
    assert in_order(StudySceneGraph.model_validate(graph).to_json()) == in_order(graph)
    assert in_order(StudyQuestions.model_validate(questions).to_json()) == in_order(questions)
    _, questions = native_pair
    study = StudyQuestions.model_validate(questions)
    records = list(to_records(study, IMAGES, "train"))
    assert len(records) == 2 * len(study.questions)
    assert len({record.question_id for record in records}) == len(records)
    assert in_order(there_and_back(questions)) == in_order(questions)
    question = {"question_id": "q", "question_type": "B01_describe_all", "question": "What?"}
    question["question_strategy"] = "abnormal"
    answer = {"answer_id": "a", "answer_type": "main_answer", "text": "That."}
    other = {"answer_id": "b", "answer_type": "details", "text": "This.", "sub_answers": []}
    sparse = {"patient_id": "p1", "study_id": "s1"}
    sparse["questions"] = [question | {"answers": [answer, other]}]
    assert in_order(there_and_back(sparse)) == in_order(sparse)


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
    assert {(r.patient_id, r.study_id) for r in to_records(study, IMAGES, "train")} == {KEY}
    assert in_order(there_and_back(questions)) == in_order(questions)


def test_records_fuse_duplicate_boxes_and_keep_both_images(native_pair):
    _, questions = native_pair
    study = StudyQuestions.model_validate(questions)
    question = next(q for q in study.questions if q.answers[0].localization)
    native = question.answers[0].localization["synthetic-0001"].bboxes
    assert len(native) > len({tuple(box) for box in native})
    records = to_records(study, IMAGES, "train")
    record = next(record for record in records if question.question_id in record.question_id)
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


def test_studies_are_found_in_archives_of_each_kind_in_folders(tmp_path):
    """As the release has them: scene graphs and questions apart, an archive for each p1x."""
    source = tmp_path / "release"
    for kind in ("scene_graph", "qa"):
        (source / kind).mkdir(parents=True)
        with zipfile.ZipFile(source / kind / "p19.zip", "w") as archive:
            for path in RELEASE.rglob(f"*.{kind}.json"):
                archive.write(path, path.relative_to(RELEASE))
    assert holds_studies(source)
    with StudyFiles(source, QualityLog()) as files:
        graph, questions = files.read(KEY, SIZES)
    assert graph.study_id == questions.study_id == KEY[1]


def test_a_study_keeps_its_place_and_boxes_that_fit(native_pair, tmp_path):
    graph = StudySceneGraph.model_validate(native_pair[0])
    path = builds.write_graph(tmp_path, graph)
    assert path == tmp_path / f"{MEMBER}.scene_graph.json"
    assert in_order(json.loads(path.read_text())) == in_order(native_pair[0])
    assert study_files.study_path("p10000032", "s50414267") == "p10/p10000032/s50414267"
    graph, questions, quality = read(tmp_path, PAIR)
    assert [graph.to_json(), questions.to_json()] == PAIR
    assert not quality.entries and not quality.warnings


@cases("edges, field")
def test_graphs_with_an_edge_to_nowhere(native_pair, tmp_path, edges, field):
    native_pair[0][edges][-1][field] = "S99"
    assert reason(lay(tmp_path, "scene_graph", native_pair[0])) == "dangling_id"


def _cycle(graph):
    edge = graph["obs_relations"][0]
    ends = ("parent_observation_id", "child_observation_id")
    graph["obs_relations"].append({ends[0]: edge[ends[1]], ends[1]: edge[ends[0]]})


def _three_numbers(graph):
    observation = next(o for o in graph["observations"].values() if o["localization"])
    observation["localization"]["synthetic-0001"]["bboxes"] = [[1, 2, 3]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
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
    change(native_pair[0])
    assert reason(lay(tmp_path, "scene_graph", native_pair[0])) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"patient_id": "\xff"}', "bad_encoding"),
        *((raw, "invalid_graph") for raw in (b'{"patient_id": ', b"[" * 100_000, b"[]", b"")),
    ],
)
def test_files_that_are_none(tmp_path, raw, expected):
    assert reason(lay(tmp_path, "scene_graph", raw)) == expected


def test_parts_of_answers_without_end(native_pair, tmp_path):
    questions = native_pair[1]
    questions["questions"][0]["answers"] = ["DEEP"]
    deep = '{"answer_id": "a", "answer_type": "d", "text": "t", "sub_answers": ['
    for depth in (300, 2000):
        text = json.dumps(questions).replace('"DEEP"', deep * depth + "]}" * depth)
        assert reason(lay(tmp_path, "qa", text.encode())) == "invalid_graph"


@pytest.mark.parametrize("region", [None, 3, ["left lung"]])
def test_a_region_of_an_answer_that_is_none(native_pair, tmp_path, region):
    questions = native_pair[1]
    questions["questions"][0]["answers"][0]["regions"] = [region]
    assert reason(lay(tmp_path, "qa", questions)) == "invalid_graph"


def test_a_question_twice(native_pair, tmp_path):
    questions = native_pair[1]
    questions["questions"].append(questions["questions"][0])
    assert reason(lay(tmp_path, "qa", questions)) == "duplicate_id"


@cases("name")
def test_paths_that_lead_out_of_an_archive(tmp_path, name):
    quality = QualityLog()
    with StudyFiles(pack(tmp_path / "qba.zip", name, "{}"), quality) as files:
        assert not files.members
    assert [entry.reason for entry in quality.entries] == ["unsafe_member"]


def test_members_that_lead_out_unpack_to_more_or_are_damaged(tmp_path, native_pair):
    bomb = pack(tmp_path / "bomb.zip", f"{MEMBER}.qa.json", b" " * (MAX_BYTES + 1))
    assert reason(bomb) == "unsafe_member"
    link = lay(tmp_path / "in", "scene_graph", native_pair[0]) / f"{MEMBER}.scene_graph.json"
    link.symlink_to(link.rename(tmp_path / "outside.json"))
    assert reason(tmp_path / "in") == "unsafe_member"
    path = pack(tmp_path / "qba.zip", f"{MEMBER}.qa.json", json.dumps(native_pair[1]))
    content = bytearray(path.read_bytes())
    content[80:120] = b"\xff" * 40
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"qba\.zip: p19/.*: cannot read"):
        reason(path)


def test_a_bomb_that_lies_about_its_size(tmp_path):
    """The directory says a kilobyte; zipfile stops there, and what is left is no JSON."""
    bomb = pack(tmp_path / "bomb.zip", f"{MEMBER}.qa.json", b" " * (2 << 20))
    told, lie = (size.to_bytes(4, "little") for size in (2 << 20, 1024))
    bomb.write_bytes(bomb.read_bytes().replace(told, lie))
    try:
        assert reason(bomb) in ("unsafe_member", "invalid_graph")
    except UserError as error:
        assert "cannot read" in str(error)


def test_what_is_no_archive_or_holds_no_studies(tmp_path):
    (tmp_path / "qba.zip").write_bytes(b"PK nonsense")
    with pytest.raises(UserError, match="not a zip archive"):
        StudyFiles(tmp_path / "qba.zip", QualityLog())
    with pytest.raises(UserError, match="not there"):
        StudyFiles(tmp_path / "none", QualityLog())
    text = "files/p10/p10000032/s50414267.txt"
    pack(tmp_path / "mimic-cxr-reports.zip", text, "FINAL REPORT")
    (tmp_path / "damaged.zip").write_bytes(b"PK nonsense")
    assert not holds_studies(tmp_path)


def places(content):
    """Every object that has boxes, in a scene graph or a question file."""
    if isinstance(content, dict):
        if "bboxes" in content:
            yield content
        for value in content.values():
            yield from places(value)
    elif isinstance(content, list):
        for value in content:
            yield from places(value)


def different_boxes(*files):
    """(image, box), each once."""
    every = [place for file in files for place in places(file)]
    return {(place["image_id"], tuple(box)) for place in every for box in place["bboxes"]}


def moved(changes):
    """The sample's files with boxes replaced everywhere: (image, box) -> box."""
    files = copy.deepcopy(PAIR)
    for file in files:
        for place in places(file):
            keys = [(place["image_id"], tuple(box)) for box in place["bboxes"]]
            place["bboxes"] = [list(changes.get(key, key[1])) for key in keys]
    return files


def read(tmp_path, files):
    """(graph, questions, quality) of files as a release has them."""
    for kind, content in zip(KINDS, files, strict=True):
        lay(tmp_path, kind, content)
    quality = QualityLog()
    with StudyFiles(tmp_path, quality) as opened:
        return *opened.read(KEY, SIZES), quality


# A box of the first image that stands in the graph and in answers.
ONE = min(k for k in different_boxes(PAIR[0]) & different_boxes(PAIR[1]) if k[0] == IMAGE)


@cases("box, expected")
def test_a_box_beyond_an_edge_is_cut_in_graph_and_answers(tmp_path, box, expected):
    graph, questions, quality = read(tmp_path, moved({ONE: box}))
    assert [graph.to_json(), questions.to_json()] == moved({ONE: expected})
    assert not quality.entries and quality.warnings == {CUT: 1}


@cases("box, reason")
def test_a_box_that_is_none_is_taken_out_alone(tmp_path, box, reason):
    box = [10**300 if side == 1e300 else side for side in box]  # an integer beyond floats
    graph, questions, quality = read(tmp_path, moved({ONE: box}))
    left = [graph.to_json(), questions.to_json()]
    for was, now in zip(map(list, map(places, PAIR)), map(list, map(places, left)), strict=True):
        for old, new in zip(was, now, strict=True):
            kept = [b for b in old["bboxes"] if (old["image_id"], tuple(b)) != ONE]
            assert new == old | {"bboxes": kept}
    (entry,) = quality.entries
    assert (entry.reason, entry.item) == (reason, "/".join(KEY))
    assert IMAGE in entry.found and "taken out of" in entry.found and not quality.warnings
    (back,) = from_records(to_records(questions, IMAGES[:1], "train"))
    assert back.to_json() == questions.to_json()


def test_the_answer_of_the_indication_is_looked_at_as_well(tmp_path):
    files = copy.deepcopy(PAIR)
    place = {"image_id": IMAGE, "bboxes": [[5, 5, 5, 5], [10, 10, 1400, 50]]}
    files[0]["indication"]["answer_for_indication"]["localization"] = {IMAGE: place}
    graph, _, quality = read(tmp_path, files)
    answer = graph.indication.answer_for_indication
    assert answer.localization[IMAGE].bboxes == [[10, 10, 1000, 50]]
    assert [e.reason for e in quality.entries] == ["bad_box"] and quality.warnings == {CUT: 1}


@pytest.mark.parametrize("scale", [1 / 1200, 3])
def test_a_study_on_another_frame_is_set_aside_once(tmp_path, scale):
    changes = {key: [v * scale for v in key[1]] for key in different_boxes(*PAIR)}
    graph, questions, quality = read(tmp_path, moved(changes))
    assert graph is None and questions is None and not quality.warnings
    assert [(e.reason, e.item) for e in quality.entries] == [("wrong_frame", "/".join(KEY))]


NUMBER = st.one_of(st.integers(-200, 1500), st.floats(-200, 1500))
EVERY = sorted(different_boxes(*PAIR))
CHANGES = st.dictionaries(st.sampled_from(EVERY), st.tuples(*[NUMBER] * 4), max_size=len(EVERY))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(CHANGES)
def test_after_reading_every_box_lies_on_its_image_and_counts_add_up(changes):
    files = moved(changes)
    before = different_boxes(*files)
    graph = StudySceneGraph.model_validate(files[0])
    questions = StudyQuestions.model_validate(files[1])
    quality = QualityLog()
    try:
        fit_study_boxes(graph, questions, SIZES, "files", quality)
    except Unusable as fault:
        assert fault.reason == "wrong_frame" and not quality.entries and not quality.warnings
        # Half of the boxes were moved at least.
        assert 2 * len(changes) >= len(before)
        return
    left = different_boxes(graph.to_json(), questions.to_json())
    for image_id, (x_min, y_min, x_max, y_max) in left:
        height, width = SIZES[image_id]
        assert 0 <= x_min < x_max <= width and 0 <= y_min < y_max <= height
    unchanged = len(before & left)
    assert len(before) >= unchanged + quality.warnings[CUT] + len(quality.entries)
    # Cut boxes may become equal to others.
    assert len(left) <= unchanged + quality.warnings[CUT]
    assert len(before - left) == quality.warnings[CUT] + len(quality.entries)
    if len(quality.entries) == len(changes):
        assert different_boxes(*PAIR) - set(changes) == left
