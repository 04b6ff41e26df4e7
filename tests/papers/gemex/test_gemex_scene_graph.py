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
from cxrjax.papers.sources import chest_imagenome, mimic_tables
from cxrjax.papers.sources.chest_imagenome import find_scene_graphs, parse_scene_graph, to_report
from cxrjax.papers.sources.regions import load_regions
from cxrjax.records_io.quality import CUT, QualityLog, Unusable
from tests.papers.cases import cases, data

HEIGHT, WIDTH = 3000, 2400
DRAWN = data(__file__)


def entry(name, *box, plain=False):
    """An object with a box in both frames; the small one letterboxed or stretched."""
    longer = max(HEIGHT, WIDTH)
    sides, pad = np.array([WIDTH, HEIGHT] * 2), np.array([longer - WIDTH, longer - HEIGHT] * 2) / 2
    small = np.divide(box, sides) if plain else (box + pad) / longer
    corners = dict(zip(("x1", "y1", "x2", "y2"), (small * 224).round().astype(int), strict=True))
    told = {"object_id": f"d1_{name}", "bbox_name": name}
    told |= {corner: int(value) for corner, value in corners.items()}
    return told | {f"original_{corner}": value for corner, value in zip(corners, box, strict=True)}


def attribute(name, *phrases):
    """What was said of a region: (number, phrase)s."""
    told = {"object_id": f"d1_{name}", "bbox_name": name, "phrases": [text for _, text in phrases]}
    return told | {"phrase_IDs": [f"50000001|{number}" for number, _ in phrases]}


def graph(**changes):
    said = {name: attribute(name, *phrases) for name, phrases in DRAWN["phrases"].items()}
    content = {"attributes": list(said.values()), "relationships": [], **DRAWN["graph"]}
    content["objects"] = [entry(name, *box) for name, box in DRAWN["boxes"].items()]
    return parse_scene_graph(json.dumps(content | changes).encode(), "d1_SceneGraph.json")


def report_of(size=(HEIGHT, WIDTH), **changes):
    """(report, what was set aside) of a graph."""
    quality = QualityLog()
    return to_report(graph(**changes), size, quality), quality


def reasons(quality):
    return [entry.reason for entry in quality.entries]


def test_sentences_in_order_with_their_regions():
    report, _ = report_of()
    said = {"There is a right effusion.": "right lung", "The lungs are clear.": "bilateral lung"}
    assert [tuple(one) for one in report.sentences] == [(k, (v,)) for k, v in said.items()]
    assert report.image_path == "files/p10/p10000001/s50000001/d1.jpg"


@pytest.mark.parametrize("plain", [False, True], ids=["letterboxed", "stretched"])
def test_boxes_are_fractions_of_the_image_whatever_the_small_frame(plain):
    boxes = {"right lung": (200, 300, 1100, 2400), "left lung": (1300, 300, 2200, 2500)}
    objects = [entry(name, *box, plain=plain) for name, box in boxes.items()]
    size = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    exact = report_of(objects=objects)[0].boxes
    np.testing.assert_allclose(exact["left lung"], boxes["left lung"] / size)
    np.testing.assert_allclose(exact["bilateral lung"], np.array([200, 300, 2200, 2500]) / size)
    # Without a size, from the two frames: to some pixels of 224.
    told = report_of(None, objects=objects)[0].boxes
    np.testing.assert_allclose(told["left lung"], exact["left lung"], atol=3 / 224)


def test_merged_regions_take_the_smallest_box_around():
    boxes = report_of()[0].boxes
    expected = [200 / WIDTH, 1700 / HEIGHT, 1100 / WIDTH, 2400 / HEIGHT]
    np.testing.assert_allclose(boxes["right lower lung zone"], expected)
    assert set(boxes) < set(load_regions().regions)


def test_dangling_ids_and_unknown_regions_are_set_aside_alone():
    base = graph().content
    attributes = [*base["attributes"], {**base["attributes"][0], "object_id": "d1_nowhere"}]
    objects = [*base["objects"], {**base["objects"][0], "bbox_name": "liver"}]
    report, quality = report_of(attributes=attributes, objects=objects)
    assert reasons(quality) == ["unknown_region", "dangling_id"]
    assert len(report.sentences) == 2


def test_a_region_that_was_not_detected_still_has_its_sentences():
    """As in the release: attributes name a region of which the image has no box, or none at all."""
    said = (11, "There is an opacity.")
    attributes = [attribute(name, said) for name in ("left apical zone", "unknown")]
    report, quality = report_of(attributes=attributes)
    (sentence,) = report.sentences
    assert tuple(sentence) == ("There is an opacity.", ("left upper lung zone",))
    assert reasons(quality) == ["dangling_id", "dangling_id"]


@cases("box, reason")
@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), None], ids=["size known", "size estimated"])
def test_a_bad_box_is_set_aside_alone_and_its_region_keeps_its_sentences(box, reason, size):
    box = {key: 10**300 if side == 1e300 else side for key, side in box.items()}  # beyond floats
    first, *others = graph().content["objects"]
    report, quality = report_of(size, objects=[{**first, **box}, *others])
    assert reasons(quality) == [reason]
    assert "left lung" in report.boxes and "right lung" not in report.boxes
    assert report.sentences[0].regions == ("right lung",)
    exact = np.array([1300, 300, 2200, 2500]) / np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    np.testing.assert_allclose(report.boxes["left lung"], exact, atol=3 / 224)


def test_a_box_that_reaches_into_the_black_beside_the_image_is_cut():
    """Chest ImaGenome has boxes with negative coordinates and some beyond the image."""
    objects = [entry("right lung", -60, 300, 1100, 2400), entry("left lung", 1300, 300, 2460, 2500)]
    report, quality = report_of(objects=objects)
    assert report.boxes["right lung"][0] == 0.0 and report.boxes["left lung"][2] == 1.0
    assert quality.warnings[CUT] == 2 and not report_of()[1].warnings[CUT]


@pytest.mark.parametrize("size", [(WIDTH, HEIGHT), (900, 4000)])
def test_boxes_in_the_frame_of_another_image_set_the_graph_aside(size):
    quality = QualityLog()
    with pytest.raises(Unusable, match="wrong_frame"):
        to_report(graph(), size, quality)
    assert not quality.entries


def test_a_graph_without_sentences_has_a_report_without_any():
    nothing = [{"object_id": "d1_right lung", "phrases": ["  "], "phrase_IDs": ["1|1"]}]
    for attributes in ([], nothing):
        report, _ = report_of(attributes=attributes)
        assert report.sentences == ()
        quality = QualityLog()
        construction = GemexConstruction(RuleRefiner(), TemplateGenerator(0), quality)
        assert list(construction.refine([report])) == []
        assert [e.reason for e in quality.entries] == ["empty_report"]


def test_a_report_of_a_megabyte():
    text = "The lungs are clear. " * (chest_imagenome.report.MAX_REPORT_CHARACTERS // 20)
    with pytest.raises(Unusable, match="report_too_long"):
        report_of(attributes=[attribute("right lung", (1, text))])


@pytest.mark.parametrize(
    "content",
    [
        b"\xff{}",
        b"{",
        b"[" * 100_000,
        b"[]",
        b'{"image_id": "d1"}',
        b'{"image_id":1,"patient_id":"../1","study_id":1,"objects":[],"attributes":[]}',
        b'{"image_id":1,"patient_id":1,"study_id":1,"objects":[1],"attributes":[]}',
    ],
)
def test_what_is_no_graph(content):
    with pytest.raises(Unusable, match="bad_encoding" if b"\xff" in content else "invalid_record"):
        parse_scene_graph(content, "x")


@pytest.fixture
def places(sample):
    return find_scene_graphs(sample, QualityLog())


@pytest.fixture
def place(places):
    return next(iter(places.values()))


def pack(folder, members):
    """scene_graph.zip of {name: a file or bytes}."""
    path = folder / "scene_graph.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            raw = content if isinstance(content, bytes) else content.read_bytes()
            archive.writestr(name, raw)
    return path


def test_files_and_zips_hold_the_same_and_are_written_back(places, tmp_path):
    assert len(places) == 2
    pack(tmp_path, {f"scene_graph/{place.name}": place for place in places.values()})
    zipped = find_scene_graphs(tmp_path, QualityLog())
    assert zipped.keys() == places.keys()
    for image_id, place in places.items():
        one = chest_imagenome.read_scene_graph(place)
        assert chest_imagenome.read_scene_graph(zipped[image_id]).content == one.content
        assert one.content == json.loads(place.read_bytes())


def test_a_zip_is_read_and_never_unpacked(place, tmp_path):
    """A path that leads out and a bomb are set aside."""
    members = {
        "../../outside/d1_SceneGraph.json": place,
        "/d3_SceneGraph.json": b"{}",
        "__MACOSX/scene_graph/._d4_SceneGraph.json": b"\0",
        "d2_SceneGraph.json": b" " * (chest_imagenome.MAX_BYTES + 1),
    }
    pack(tmp_path, members)
    before = {*tmp_path.parent.rglob("*")}
    quality = QualityLog()
    assert not find_scene_graphs(tmp_path, quality)
    found = [(entry.reason, entry.item) for entry in quality.entries]
    assert found == [("unsafe_member", name) for name in ("d1", "d3", "d2")]
    assert {*tmp_path.parent.rglob("*")} == before


def test_a_second_graph_of_an_image_is_set_aside(places, tmp_path):
    """But not the archive beside the folder that it was unpacked into."""
    (tmp_path / "scene_graph").mkdir()
    pack(tmp_path, {f"scene_graph/{place.name}": place for place in places.values()})
    for place in places.values():
        shutil.copy(place, tmp_path / "scene_graph")
    quality = QualityLog()
    assert find_scene_graphs(tmp_path, quality).keys() == places.keys()
    assert not quality.entries
    (tmp_path / "again").mkdir()
    shutil.copy(next(iter(places.values())), tmp_path / "again")
    find_scene_graphs(tmp_path, quality)
    assert reasons(quality) == ["duplicate_id"]


def test_a_graph_under_the_name_of_another_image_is_set_aside(place, tmp_path):
    shutil.copy(place, tmp_path / "d1_SceneGraph.json")
    quality = QualityLog()
    places = find_scene_graphs(tmp_path, quality)
    assert list(chest_imagenome.read_reports(places, ["d1"], {}, quality)) == []
    assert [(e.reason, e.item) for e in quality.entries] == [("invalid_record", "d1")]


def test_an_archive_of_many_graphs_is_opened_once(place, tmp_path, monkeypatch):
    pack(tmp_path, {f"d{number}_SceneGraph.json": place for number in range(3)})
    opened = []
    open_archive = zipfile.ZipFile.__init__
    count = lambda self, *a, **k: opened.append(a) or open_archive(self, *a, **k)  # noqa: E731
    monkeypatch.setattr(zipfile.ZipFile, "__init__", count)
    places = find_scene_graphs(tmp_path, QualityLog())
    read = [chest_imagenome.read_scene_graph(places[f"d{number}"]) for number in range(3)]
    assert len({one.image_id for one in read}) == len(opened) == 1


def test_a_broken_zip(place, tmp_path):
    path = pack(tmp_path, {"d1_SceneGraph.json": place})
    content = bytearray(path.read_bytes())
    content[60:90] = b"\xff" * 30  # in the compressed data
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"scene_graph\.zip: d1_SceneGraph\.json: cannot read"):
        chest_imagenome.read_scene_graph(find_scene_graphs(tmp_path, QualityLog())["d1"])


def test_mimic_tables(tmp_path, sample):
    splits = mimic_tables.read_splits(sample / "mimic-cxr-2.0.0-split.csv")
    assert set(splits.values()) == {"train", "test"}
    assert len(mimic_tables.read_sizes(sample / "mimic-cxr-2.0.0-metadata.csv")) == 2
    table = tmp_path / "mimic-cxr-2.0.0-split.csv"
    for text, message in DRAWN["broken_tables"]:
        table.write_text(text.replace("LONG", "x" * 200_000))
        with pytest.raises(UserError, match=message):
            mimic_tables.read_splits(table)
