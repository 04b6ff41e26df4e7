"""Boxes of released studies that do not lie on their images."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.native import StudyQuestions, StudySceneGraph
from cxrjax.papers.cxr_qba.records import from_records, to_records
from cxrjax.papers.cxr_qba.study_files import StudyFiles, fit_study_boxes
from cxrjax.records_io.quality import CUT, QualityLog, Unusable

KEY = ("p19990001", "s59990001")
IMAGE = "synthetic-0001"
SIZES = {IMAGE: (1200, 1000), "synthetic-0002": (900, 1100)}
RELEASE = Path(__file__).parents[3] / "data/cxr_qba/sample/release/p19" / KEY[0]
KINDS = ("scene_graph", "qa")
PAIR = [json.loads((RELEASE / f"{KEY[1]}.{kind}.json").read_text()) for kind in KINDS]


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
    return {
        (p["image_id"], tuple(box)) for file in files for p in places(file) for box in p["bboxes"]
    }


def moved(changes):
    """The sample's files with boxes replaced everywhere: (image, box) -> box."""
    files = copy.deepcopy(PAIR)
    for file in files:
        for place in places(file):
            place["bboxes"] = [
                list(changes.get((place["image_id"], tuple(box)), box)) for box in place["bboxes"]
            ]
    return files


def read(tmp_path, files):
    """(graph, questions, quality) of files as a release has them."""
    folder = tmp_path / "p19" / KEY[0]
    folder.mkdir(parents=True)
    for kind, content in zip(KINDS, files, strict=True):
        (folder / f"{KEY[1]}.{kind}.json").write_text(json.dumps(content))
    quality = QualityLog()
    with StudyFiles(tmp_path, quality) as opened:
        return *opened.read(KEY, SIZES), quality


def one_box():
    """A box of the first image that stands in the graph and in answers."""
    shared = different_boxes(PAIR[0]) & different_boxes(PAIR[1])
    return min(key for key in shared if key[0] == IMAGE)


def test_a_study_whose_boxes_fit_is_left_as_it_is(tmp_path):
    graph, questions, quality = read(tmp_path, PAIR)
    assert [graph.to_json(), questions.to_json()] == PAIR
    assert not quality.entries and not quality.warnings


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ([-0.5, 10, 400, 500], [0, 10, 400, 500]),
        ([10, 10, 400, 1200.5], [10, 10, 400, 1200]),
        ([10, 10, 5000, 50], [10, 10, 1000, 50]),
    ],
)
def test_a_box_beyond_an_edge_is_cut_in_graph_and_answers(tmp_path, box, expected):
    key = one_box()
    graph, questions, quality = read(tmp_path, moved({key: box}))
    assert [graph.to_json(), questions.to_json()] == moved({key: expected})
    assert not quality.entries and quality.warnings == {CUT: 1}


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ([50, 10, 10, 50], "bad_box"),
        ([50, 10, 50, 50], "bad_box"),
        ([float("nan"), 2, 3, 4], "bad_box"),
        ([10, 20, 10**300, 40], "bad_box"),
        ([1000, 10, 1400, 50], "box_outside_image"),
        ([0.1, 0.1, 0.5, 0.5], "wrong_frame"),
    ],
)
def test_a_box_that_is_none_is_taken_out_alone(tmp_path, box, reason):
    key = one_box()
    graph, questions, quality = read(tmp_path, moved({key: box}))
    left = [graph.to_json(), questions.to_json()]
    for was, now in zip(map(list, map(places, PAIR)), map(list, map(places, left)), strict=True):
        for old, new in zip(was, now, strict=True):
            kept = [b for b in old["bboxes"] if (old["image_id"], tuple(b)) != key]
            assert new == old | {"bboxes": kept}
    (entry,) = quality.entries
    assert (entry.reason, entry.item) == (reason, "/".join(KEY))
    assert IMAGE in entry.found and "taken out of" in entry.found and not quality.warnings
    (back,) = from_records(to_records(questions, [StudyImage(IMAGE, SIZES[IMAGE], "PA")], "train"))
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
CHANGES = st.dictionaries(
    st.sampled_from(sorted(different_boxes(*PAIR))),
    st.tuples(NUMBER, NUMBER, NUMBER, NUMBER),
    max_size=len(different_boxes(*PAIR)),
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
