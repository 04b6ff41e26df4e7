"""Chest ImaGenome's graphs: sentences, regions, boxes in two frames, and what can be wrong."""

import json
import shutil
import zipfile

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.papers.gemex.construct.construction import GemexConstruction
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from cxrjax.papers.gemex.construct.template_generator import TemplateGenerator
from cxrjax.papers.sources import mimic_tables
from cxrjax.papers.sources.chest_imagenome import (
    MAX_BYTES,
    MAX_REPORT_CHARACTERS,
    find_scene_graphs,
    parse_scene_graph,
    read_reports,
    read_scene_graph,
    to_report,
    write_scene_graph,
)
from cxrjax.papers.sources.regions import load_regions
from cxrjax.records_io.quality import CUT, QualityLog, Unusable

HEIGHT, WIDTH = 3000, 2400


def entry(name, x_min, y_min, x_max, y_max, plain=False):
    """An object with a box in both frames; the small one letterboxed or stretched."""
    longer = max(HEIGHT, WIDTH)
    pad = ((longer - WIDTH) / 2, (longer - HEIGHT) / 2) * 2
    original = (x_min, y_min, x_max, y_max)
    if plain:
        sides = (WIDTH, HEIGHT) * 2
        small = [round(v / s * 224) for v, s in zip(original, sides, strict=True)]
    else:
        small = [round((v + p) / longer * 224) for v, p in zip(original, pad, strict=True)]
    names = ("x1", "y1", "x2", "y2")
    return {
        "object_id": f"d1_{name}",
        "bbox_name": name,
        **dict(zip(names, small, strict=True)),
        **{f"original_{key}": value for key, value in zip(names, original, strict=True)},
    }


def graph(**changes):
    content = {
        "image_id": "d1",
        "viewpoint": "PA",
        "patient_id": 10000001,
        "study_id": 50000001,
        "gender": "F",
        "objects": [
            entry("right lung", 200, 300, 1100, 2400),
            entry("left lung", 1300, 300, 2200, 2500),
            entry("right costophrenic angle", 200, 2200, 400, 2400),
            entry("right lower lung zone", 250, 1700, 1100, 2300),
        ],
        "attributes": [
            {
                "object_id": "d1_right lung",
                "bbox_name": "right lung",
                "phrases": ["The lungs are clear.", "There is a right effusion."],
                "phrase_IDs": ["50000001|10", "50000001|9"],
            },
            {
                "object_id": "d1_left lung",
                "bbox_name": "left lung",
                "phrases": ["The lungs are clear."],
                "phrase_IDs": ["50000001|10"],
            },
        ],
        "relationships": [],
    }
    return parse_scene_graph(json.dumps(content | changes).encode(), "d1_SceneGraph.json")


def test_sentences_in_order_with_their_regions():
    report = to_report(graph(), (HEIGHT, WIDTH), QualityLog())
    assert [tuple(s) for s in report.sentences] == [
        ("There is a right effusion.", ("right lung",)),
        ("The lungs are clear.", ("bilateral lung",)),
    ]
    assert report.image_path == "files/p10/p10000001/s50000001/d1.jpg"


@pytest.mark.parametrize("plain", [False, True], ids=["letterboxed", "stretched"])
def test_boxes_are_fractions_of_the_image_whatever_the_small_frame(plain):
    boxes = {"right lung": (200, 300, 1100, 2400), "left lung": (1300, 300, 2200, 2500)}
    objects = [entry(name, *box, plain=plain) for name, box in boxes.items()]
    size = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    exact = to_report(graph(objects=objects), (HEIGHT, WIDTH), QualityLog()).boxes
    np.testing.assert_allclose(exact["left lung"], boxes["left lung"] / size)
    np.testing.assert_allclose(exact["bilateral lung"], np.array([200, 300, 2200, 2500]) / size)
    # Without a size, from the two frames: to some pixels of 224.
    told = to_report(graph(objects=objects), None, QualityLog()).boxes
    np.testing.assert_allclose(told["left lung"], exact["left lung"], atol=3 / 224)


def test_merged_regions_take_the_smallest_box_around():
    boxes = to_report(graph(), (HEIGHT, WIDTH), QualityLog()).boxes
    expected = [200 / WIDTH, 1700 / HEIGHT, 1100 / WIDTH, 2400 / HEIGHT]
    np.testing.assert_allclose(boxes["right lower lung zone"], expected)
    assert set(boxes) < set(load_regions().regions)


def test_dangling_ids_and_unknown_regions_are_set_aside_alone():
    base = graph().content
    attributes = [*base["attributes"], {**base["attributes"][0], "object_id": "d1_nowhere"}]
    objects = [*base["objects"], {**base["objects"][0], "bbox_name": "liver"}]
    quality = QualityLog()
    report = to_report(graph(attributes=attributes, objects=objects), (HEIGHT, WIDTH), quality)
    assert [e.reason for e in quality.entries] == ["unknown_region", "dangling_id"]
    assert len(report.sentences) == 2


def test_a_region_that_was_not_detected_still_has_its_sentences():
    """As in the release: attributes name a region of which the image has no box, or none at all."""
    phrases = {"phrases": ["There is an opacity."], "phrase_IDs": ["50000001|11"]}
    attributes = [
        {"object_id": "d1_left apical zone", "bbox_name": "left apical zone", **phrases},
        {"object_id": "d1_unknown", "bbox_name": "unknown", **phrases},
    ]
    quality = QualityLog()
    report = to_report(graph(attributes=attributes), (HEIGHT, WIDTH), quality)
    assert [tuple(s) for s in report.sentences] == [
        ("There is an opacity.", ("left upper lung zone",))
    ]
    assert [e.reason for e in quality.entries] == ["dangling_id", "dangling_id"]


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ({"x2": 500}, "wrong_frame"),
        ({"original_x2": 9000}, "wrong_frame"),
        ({"original_x1": 900, "original_x2": 1800}, "wrong_frame"),
        ({"original_x1": None}, "bad_box"),
        ({"y1": "12"}, "bad_box"),
        ({"original_y2": 10**300}, "bad_box"),
        ({"x1": float("nan")}, "bad_box"),
        ({"original_x2": 200, "x2": entry("right lung", 200, 0, 200, 0)["x2"]}, "bad_box"),
    ],
)
@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), None], ids=["size known", "size estimated"])
def test_a_bad_box_is_set_aside_alone_and_its_region_keeps_its_sentences(box, reason, size):
    objects = [
        {**entry("right lung", 200, 300, 1100, 2400), **box},
        *graph().content["objects"][1:],
    ]
    quality = QualityLog()
    report = to_report(graph(objects=objects), size, quality)
    assert [entry.reason for entry in quality.entries] == [reason]
    assert "left lung" in report.boxes and "right lung" not in report.boxes
    assert report.sentences[0].regions == ("right lung",)
    exact = np.array([1300, 300, 2200, 2500]) / np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    np.testing.assert_allclose(report.boxes["left lung"], exact, atol=3 / 224)


def test_a_box_that_reaches_into_the_black_beside_the_image_is_cut():
    """Chest ImaGenome has boxes with negative coordinates and some beyond the image."""
    objects = [entry("right lung", -60, 300, 1100, 2400), entry("left lung", 1300, 300, 2460, 2500)]
    quality = QualityLog()
    report = to_report(graph(objects=objects), (HEIGHT, WIDTH), quality)
    assert report.boxes["right lung"][0] == 0.0 and report.boxes["left lung"][2] == 1.0
    assert quality.warnings[CUT] == 2
    inside = QualityLog()
    to_report(graph(), (HEIGHT, WIDTH), inside)
    assert not inside.warnings[CUT]


@pytest.mark.parametrize("size", [(WIDTH, HEIGHT), (900, 4000)])
def test_boxes_in_the_frame_of_another_image_set_the_graph_aside(size):
    quality = QualityLog()
    with pytest.raises(Unusable, match="wrong_frame"):
        to_report(graph(), size, quality)
    assert not quality.entries


def test_a_graph_without_sentences_has_a_report_without_any():
    nothing = [{"object_id": "d1_right lung", "phrases": ["  "], "phrase_IDs": ["1|1"]}]
    for attributes in ([], nothing):
        report = to_report(graph(attributes=attributes), (HEIGHT, WIDTH), QualityLog())
        assert report.sentences == ()
        quality = QualityLog()
        construction = GemexConstruction(RuleRefiner(), TemplateGenerator(0), quality)
        assert list(construction.refine([report])) == []
        assert [e.reason for e in quality.entries] == ["empty_report"]


def test_a_report_of_a_megabyte():
    attributes = [
        {
            "object_id": "d1_right lung",
            "phrases": ["The lungs are clear. " * (MAX_REPORT_CHARACTERS // 20)],
            "phrase_IDs": ["1|1"],
        }
    ]
    with pytest.raises(Unusable, match="report_too_long"):
        to_report(graph(attributes=attributes), (HEIGHT, WIDTH), QualityLog())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff{}", "bad_encoding"),
        (b"{", "invalid_record"),
        (b"[" * 100_000, "invalid_record"),
        (b"[]", "invalid_record"),
        (b'{"image_id": "d1"}', "invalid_record"),
        (
            b'{"image_id":1,"patient_id":"../1","study_id":1,"objects":[],"attributes":[]}',
            "invalid_record",
        ),
        (
            b'{"image_id":1,"patient_id":1,"study_id":1,"objects":[1],"attributes":[]}',
            "invalid_record",
        ),
    ],
)
def test_what_is_no_graph(content, reason):
    with pytest.raises(Unusable, match=reason):
        parse_scene_graph(content, "x")


def test_files_and_zips_hold_the_same_and_are_written_back(sample, tmp_path):
    places = find_scene_graphs(sample, QualityLog())
    assert len(places) == 2
    with zipfile.ZipFile(tmp_path / "scene_graph.zip", "w") as archive:
        for place in places.values():
            archive.write(place, f"scene_graph/{place.name}")
    zipped = find_scene_graphs(tmp_path, QualityLog())
    assert zipped.keys() == places.keys()
    for image_id, place in places.items():
        one = read_scene_graph(place)
        assert read_scene_graph(zipped[image_id]).content == one.content
        written = write_scene_graph(tmp_path, one)
        assert json.loads(written.read_bytes()) == json.loads(place.read_bytes())


def test_a_zip_is_read_and_never_unpacked(sample, tmp_path):
    """A path that leads out and a bomb are set aside."""
    (place, *_) = find_scene_graphs(sample, QualityLog()).values()
    with zipfile.ZipFile(tmp_path / "scene_graph.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(place, "../../outside/d1_SceneGraph.json")
        archive.writestr("/d3_SceneGraph.json", b"{}")
        archive.writestr("__MACOSX/scene_graph/._d4_SceneGraph.json", b"\0")
        archive.writestr("d2_SceneGraph.json", b" " * (MAX_BYTES + 1))
    before = {*tmp_path.parent.rglob("*")}
    quality = QualityLog()
    places = find_scene_graphs(tmp_path, quality)
    assert not places
    assert [(e.reason, e.item) for e in quality.entries] == [
        ("unsafe_member", "d1"),
        ("unsafe_member", "d3"),
        ("unsafe_member", "d2"),
    ]
    assert {*tmp_path.parent.rglob("*")} == before


def test_a_second_graph_of_an_image_is_set_aside(sample, tmp_path):
    """But not the archive beside the folder that it was unpacked into."""
    places = find_scene_graphs(sample, QualityLog())
    first, second = places.values()
    (tmp_path / "scene_graph").mkdir()
    with zipfile.ZipFile(tmp_path / "scene_graph.zip", "w") as archive:
        for place in (first, second):
            archive.write(place, f"scene_graph/{place.name}")
            shutil.copy(place, tmp_path / "scene_graph")
    quality = QualityLog()
    assert find_scene_graphs(tmp_path, quality).keys() == places.keys()
    assert not quality.entries
    (tmp_path / "again").mkdir()
    shutil.copy(first, tmp_path / "again")
    find_scene_graphs(tmp_path, quality)
    assert [e.reason for e in quality.entries] == ["duplicate_id"]


def test_a_graph_under_the_name_of_another_image_is_set_aside(sample, tmp_path):
    (place, *_) = find_scene_graphs(sample, QualityLog()).values()
    shutil.copy(place, tmp_path / "d1_SceneGraph.json")
    quality = QualityLog()
    places = find_scene_graphs(tmp_path, quality)
    assert list(read_reports(places, ["d1"], {}, quality)) == []
    assert [(e.reason, e.item) for e in quality.entries] == [("invalid_record", "d1")]


def test_an_archive_of_many_graphs_is_opened_once(sample, tmp_path, monkeypatch):
    (place, *_) = find_scene_graphs(sample, QualityLog()).values()
    with zipfile.ZipFile(tmp_path / "scene_graph.zip", "w") as archive:
        for number in range(3):
            archive.write(place, f"d{number}_SceneGraph.json")
    opened = []
    open_archive = zipfile.ZipFile.__init__
    monkeypatch.setattr(
        zipfile.ZipFile,
        "__init__",
        lambda self, *a, **k: opened.append(a) or open_archive(self, *a, **k),
    )
    places = find_scene_graphs(tmp_path, QualityLog())
    assert len({read_scene_graph(places[f"d{number}"]).image_id for number in range(3)}) == 1
    assert len(opened) == 1


def test_a_broken_zip(sample, tmp_path):
    (place, *_) = find_scene_graphs(sample, QualityLog()).values()
    path = tmp_path / "scene_graph.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(place, "d1_SceneGraph.json")
    content = bytearray(path.read_bytes())
    content[60:90] = b"\xff" * 30  # in the compressed data
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"scene_graph\.zip: d1_SceneGraph\.json: cannot read"):
        read_scene_graph(find_scene_graphs(tmp_path, QualityLog())["d1"])


def test_mimic_tables(tmp_path, sample):
    assert set(mimic_tables.read_splits(sample / "mimic-cxr-2.0.0-split.csv").values()) == {
        "train",
        "test",
    }
    assert len(mimic_tables.read_sizes(sample / "mimic-cxr-2.0.0-metadata.csv")) == 2
    table = tmp_path / "mimic-cxr-2.0.0-split.csv"
    for text, message in (
        ("dicom_id,study_id\n1,2\n", "column split is missing"),
        ("dicom_id,split\na,dev\n", "split.csv:2: split 'dev'"),
        ("dicom_id,split\na\n", "split.csv:2: 1 cells, expected 2"),
        ("dicom_id,split\n\na,dev\n", "split.csv:3: split 'dev'"),
        (f"dicom_id,split\na,{'x' * 200_000}\n", "split.csv:2: field larger than"),
    ):
        table.write_text(text)
        with pytest.raises(UserError, match=message):
            mimic_tables.read_splits(table)
