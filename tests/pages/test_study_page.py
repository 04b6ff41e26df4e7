"""The page of studies: from both constructions, escaped, self-contained, the same every time."""

import json
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax import build
from cxrjax.errors import UserError
from cxrjax.pages.study_page import _layers, main, write_page
from cxrjax.papers.cxr_qba.native import NativeObservation
from cxrjax.records import Answer
from tests.pages.html_tree import Tree
from tests.pages.page_records import make_record

XML = Path(__file__).with_name("report.xml").read_text()


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """(reports, build of cxr_qba, build of gemex) of eight reports."""
    root = tmp_path_factory.mktemp("page")
    source = root / "reports"
    source.mkdir()
    for n in range(8):
        (source / f"{n}.xml").write_text(XML.format(n=n))
    for name in ("cxr_qba", "gemex"):
        flags = [f"--dataset={name}", f"--source={source}", f"--out={root / name}"]
        build.main([*flags, "--processes=1"])
    return source, root / "cxr_qba", root / "gemex"


def test_report_graph_questions_and_answers_of_both(builds, tmp_path):
    source, cxr_qba, gemex = builds
    out = tmp_path / "page.html"
    words = [f"--source={source}", f"--cxr_qba={cxr_qba}", f"--gemex={gemex}", f"--out={out}"]
    main([*words, "--studies=3"])
    page = out.read_text()
    found = Tree(page).root
    text, tags = found.text, [node.tag for node in found.all()]
    assert tags.count("section") == 3 and "script" not in tags and "img" not in tags
    links = [v for n in found.all() for k, v in n.attributes.items() if k in ("src", "href")]
    assert all(link.startswith("#") for link in links)
    assert text.count("<script>alert(1)</script>") >= 3  # as text
    drawn = {n for n in range(8) if f"<h2>CXR{n}" in page}
    assert len(drawn) == 3
    written = {}
    for path in (cxr_qba / "native").glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            written |= {name.rsplit("/")[-1]: archive.read(name) for name in archive.namelist()}
    for n in drawn:
        qa = json.loads(written[f"CXR{n}.qa.json"])
        for question in qa["questions"]:
            assert question["question"] in text
            assert all(answer["text"] in text for answer in question["answers"])
        graph = json.loads(written[f"CXR{n}.scene_graph.json"])
        assert all(one["name"] in text for one in graph["observations"].values())
    records = [json.loads(line) for f in gemex.glob("records/*.jsonl") for line in f.open()]
    shown = [r for r in records if r["study_id"] in {f"CXR{n}" for n in drawn}]
    assert shown and all(r["question"] in text and r["reason"] in text for r in shown)


def test_radiographs_are_shown_with_all_pixels_beside_the_page(builds, tmp_path):
    source, cxr_qba, gemex = builds
    images = tmp_path / "images"
    images.mkdir()
    for n in range(7):
        Image.fromarray(np.full((500, 400), 20 * n, np.uint8)).save(images / f"CXR{n}_1.png")
    out = tmp_path / "page.html"
    write_page(source, out, cxr_qba, gemex, 8, 0, image_root=images)
    page = out.read_text()
    assert len(list(Tree(page).root.all("img"))) == 7 and "found of CXR7_1" in page
    full = sorted((tmp_path / "page_files").iterdir())
    assert [one.name for one in full] == [f"full-{n}.jpg" for n in range(7)]
    assert all(Image.open(one).size == (400, 500) for one in full)
    assert all(f"page_files/{one.name}" in page for one in full)
    write_page(source, out, cxr_qba, gemex, 1, 0, image_root=images)
    assert len(list((tmp_path / "page_files").iterdir())) == 1, "no radiograph of an earlier page"


def test_boxes_are_of_observations_and_of_regions_that_answers_name():
    seen = {"obs_id": "0", "name": "n", "positiveness": "pos"}
    seen |= {"localization": {"a": {"image_id": "a", "bboxes": [[1, 2, 30, 40]]}}}
    changes = {"obs_entities": ["lung nodule"]}, {"positiveness": "neg"}, {"from_report": False}
    observations = [NativeObservation.model_validate(seen | one) for one in changes]
    graph = types.SimpleNamespace(observations=dict(zip("012", observations, strict=True)))
    boxes = {"a": [[5, 6, 7, 8]], "b": [[1, 1, 2, 2]]}
    answers = [
        Answer(text="x", regions=regions, boxes_by_image=boxes)
        for regions in (["heart", "mediastinum"], ["heart"])
    ]
    record = make_record("q", "", dataset="gemex", image_id="a", answers=answers)
    found = {one["name"]: one["boxes"] for one in _layers("a", graph, [record])}
    assert found == {
        "CXR-QBA": [{"label": "lung nodule", "box": [1, 2, 30, 40]}],
        "GEMeX": [{"label": "heart", "box": [5, 6, 7, 8]}],
    }
    assert _layers("c", graph, [record]) == []


def test_which_are_drawn_is_decided_by_the_seed(builds, tmp_path):
    source, cxr_qba, gemex = builds
    pages = []
    for name, seed in (("a", 0), ("b", 0), ("c", 5)):
        write_page(source, tmp_path / name, cxr_qba, None, 3, seed)
        pages.append((tmp_path / name).read_text())
    assert pages[0] == pages[1] != pages[2]
    assert "GEMeX" not in pages[0]
    write_page(source, tmp_path / "d", None, gemex, 30, 0)
    page = (tmp_path / "d").read_text()
    assert page.count("<section") == 8 and "scene graph" not in page


def test_what_cannot_be_shown(builds, tmp_path):
    source, cxr_qba, gemex = builds
    other = tmp_path / "reports"
    other.mkdir()
    (other / "9.xml").write_text(XML.format(n=9))
    for reports, first, second, says in (
        (other, cxr_qba, gemex, "were they made from it"),
        (source, None, tmp_path / "none", "expected the folder of a build"),
        (source, tmp_path / "none", None, "none/native"),
    ):
        with pytest.raises(UserError, match=says):
            write_page(reports, tmp_path / "page", first, second, 3, 0)
    with pytest.raises(SystemExit) as left:
        main([f"--source={source}", f"--out={tmp_path / 'page'}"])
    assert left.value.code == 2
