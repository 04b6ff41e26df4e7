"""The single answers of the page: which, with what boxes, marks and outcomes."""

import base64
import html
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.results.cases import IMAGES_PER_PART
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.paper import load_benchmark
from tests.apps.annotations.samples import dicom_image


def _question(cases, question_id):
    number = cases["questions"]["id"].index(question_id)
    image = cases["questions"]["image"][number]
    first = cases["questions"]["image"].index(image)
    return number, cases["cases"][image]["q"][number - first]


def test_every_question_has_its_boxes_answers_and_outcomes(page):
    page.predictions["base"][3]["parse"] = "wrong_arity"
    del page.predictions["base"][4]
    page.predictions["blind"] = page.predictions["base"]
    cases = page.cases(page.read())
    assert [system["name"] for system in cases["systems"]] == ["base", "tuned", "blind"]
    assert len({(s["colour"], s["style"]) for s in cases["systems"]}) == 3
    assert len(cases["questions"]["id"]) == len(cases["cases"]) == page.images
    number, shown = _question(cases, "image-3-0")
    # Pixels 8..40 of 80 and 20..60 of 100.
    label = cases["labels"].index("Cardiomegaly")
    assert shown["boxes"] == [[1000, 2000, 5000, 6000, label]]
    assert shown["answers"][1]["boxes"] == [[1600, 2000, 5600, 6000, label, 0.5]]
    assert cases["questions"]["iou"][1][number] == round(100 * 0.34 / 0.46)
    assert cases["parses"][cases["questions"]["parse"][0][number]] == "wrong_arity"
    assert cases["questions"]["parse"][1][number] == 0
    assert shown["ref"][-2:] == [["(1)", "box"], "."]
    assert "<loc" not in page.html
    number, shown = _question(cases, "image-4-0")
    assert shown["answers"][0] is None and cases["questions"]["right"][0][number] == "n"
    # "Seen at ..." does not name the class asked about, its box says that it is there.
    assert cases["questions"]["right"][1][number] == "r"
    assert cases["notes"][shown["answers"][1]["note"]] == "there, as said"


@pytest.mark.parametrize("judged", [True, False])
def test_an_answer_that_it_is_unknown_says_so(page, judged):
    page.predictions["tuned"][4] |= {"text": "Unknown.", "boxes": []}
    cases = page.cases(page.read() if judged else page.read(benchmark=None))
    decided = set("".join(cases["questions"]["right"]))
    assert cases["judged"] == judged and (judged or decided == {"u"})
    said, unknown = (
        _question(cases, name)[1]["answers"][1].get("note") for name in ("image-3-0", "image-4-0")
    )
    assert said is None or "does not know" not in cases["notes"][said]
    assert cases["notes"][unknown].startswith("the model says that it does not know this")


def test_the_embedded_picture_is_the_radiograph(page):
    image = page.cases(page.read())["cases"][0]
    picture = Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))
    assert picture.size == (page.width, page.height) == tuple(image["size"])
    difference = np.asarray(picture, np.float32) - np.linspace(20, 220, page.width)
    assert np.abs(difference).max() < 10


def test_a_folder_holds_pictures_and_parts(page):
    page.records = [
        page.record(n % page.images, image_id=f"x{n}", question_id=f"q{n}", answers=[])
        for n in range(IMAGES_PER_PART + 2)
    ]
    page.predictions = {"tuned": [{"question_id": "q0", "text": "ILD", "boxes": []}]}
    stale = page.root / "out" / "index_files"
    stale.mkdir(parents=True)
    (stale / "part-99.js").write_text("of an earlier page")
    page.write(pictures="folder")
    names = {path.name for path in stale.iterdir()}
    assert {"part-0.js", "part-1.js", "image-0.jpg", "image-26.jpg"} <= names and len(names) == 29
    text = (stale / "part-1.js").read_text(encoding="utf-8")
    assert text.startswith("cxrjaxPart(1, [") and text.endswith("]);\n")
    part = json.loads(text.removeprefix("cxrjaxPart(1, ").removesuffix(");\n"))
    assert [one["src"] for one in part] == [f"index_files/image-{n}.jpg" for n in (25, 26)]
    assert Image.open(stale / "image-26.jpg").size == (page.width, page.height)
    assert "data:image" not in page.html and 'part-0"' not in page.html


def test_pictures_go_into_a_folder_or_are_left_out(page, monkeypatch):
    with monkeypatch.context() as few:
        few.setattr("cxrjax.apps.results.page.MOST_IN_ONE_FILE", page.images - 1)
        page.write()
        assert (page.root / "out" / "index_files" / "image-9.jpg").exists()
        page.write(pictures="file")
        assert not (page.root / "out" / "index_files").exists()
    for path in (page.root / "images").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="image-"):
        page.read()
    cases = page.cases(page.read(pictures="none"))
    assert {image["src"] for image in cases["cases"]} == {None}
    first = cases["cases"][0]
    assert first["size"] == [page.width, page.height] and first["q"][0]["boxes"]


def test_all_pixels_lie_beside_the_page_where_it_has_fewer(page):
    large = np.tile(np.linspace(0, 255, 900).astype(np.uint8), (1000, 1))
    path = page.root / "images" / "image-0.png"
    dicom_image(path, "1.2.3", pixels=large, PhotometricInterpretation="MONOCHROME1")
    Image.fromarray(large).save(page.root / "images" / "image-1.png")
    folder = page.root / "out" / "index_files"
    for pictures in ("auto", "folder"):
        page.write(pictures=pictures)
        files = sorted(one.name for one in folder.glob("full-*"))
        assert files == ["full-0.jpg", "full-1.jpg"], "of the small ones the page has all"
        for name, left in (("full-0.jpg", 255), ("full-1.jpg", 0)):  # as it is displayed
            shown = Image.open(folder / name)
            assert shown.size == (900, 1000) and abs(shown.getpixel((2, 500)) - left) < 12
    cases = page.cases(page.read())["cases"]
    assert [case.get("full") for case in cases[:3]] == [*(f"index_files/{f}" for f in files), None]
    assert cases[0]["size"] == [900, 1000] and cases[0]["src"].startswith("data:")
    assert "img-src data: 'self' file:" in html.unescape(page.html)
    page.write(full_pictures=1)
    assert [one.name for one in folder.iterdir()] == ["full-0.jpg"]
    page.write(pictures="file")
    assert not folder.exists() and "file:" not in page.html.partition("<title>")[0]


def test_filters_offer_what_is_there(page):
    page.records.append(
        page.record(2, question_id="q-what", question="What?", question_type="What", variables=None)
    )
    root = page.read()
    selects = {s["name"]: [o.text for o in s.all("option")] for s in root.all("select")}
    assert selects["subject"] == ["all", "Cardiomegaly", "Nodule/Mass"]
    assert selects["type"] == ["all", "What", "Where"]
    assert selects["rank"] == ["base", "tuned"] and "outcome-1" in selects
    assert {"missed", "misplaced", "wrong answer", "right"} <= {*selects["outcome-0"]}
    cases = page.cases(root)
    number, _ = _question(cases, "q-what")
    assert [cases["subjects"][s] for s in cases["questions"]["subjects"][number]] == ["Nodule/Mass"]


def test_of_many_images_a_random_sample_and_the_worst_are_shown(page):
    page.arguments["max_images"] = 6
    root = page.read()
    images = page.cases(root)["images"]
    worst = [n for n, s in zip(images["id"], images["sampled"], strict=True) if s == "0"]
    assert len(images["id"]) == 6 and len(worst) == 3
    # The higher the index, the worse; the sample may hold some of the worst already.
    rest = sorted({f"image-{i}" for i in range(10)} - set(images["id"]))
    assert max(rest) < min(worst)
    assert "6 of 10 images: a random sample (seed 0)" in root.text
    first = page.html
    page.read()
    assert page.html == first, "the sample is drawn with a fixed seed"
    undecided = page.cases(page.read(benchmark=None))["images"]
    assert len(undecided["id"]) == 6 and undecided["sampled"].count("1") == 3
    for name in rest:
        (page.root / "images" / f"{name}.png").unlink()
    page.read()  # pictures that are not shown are not read


def test_boxes_are_read_from_text_and_texts_alone_need_none(page):
    box = np.array([[0.1, 0.2, 0.5, 0.6]], np.float32)
    text = "At " + CODECS["paligemma"].encode(box, page.height, page.width)
    page.predictions["tuned"] = page.texts(text)
    with pytest.raises(UserError, match="--codec"):
        page.read()
    cases = page.cases(page.read(codec=CODECS["paligemma"]))
    assert cases["cases"][0]["q"][0]["answers"][1]["boxes"][0][0] == pytest.approx(1000, abs=10)
    said = {"image_hw": None, "answers": [{"text": "Bóng tim không to."}], "lang": "vi"}
    page.records = [page.record(i, **said) for i in range(page.images)]
    page.predictions = {"tuned": page.texts("Tim to")}
    benchmark = replace(load_benchmark("vix_ray"), outcome=None)
    root = page.read(benchmark=benchmark, pictures="none")
    assert "names" not in [i.attributes.get("value") for i in root.all("input")]
    assert not list(root.all("input", name="system")), "no boxes to switch"
    shown = page.cases(root)["cases"][0]["q"][0]
    assert shown["boxes"] == shown["answers"][0]["boxes"] == []
    assert "Facts are told apart by rules" in root.text
    assert shown["answers"][0]["text"] != ["Tim to"], "facts are marked"
