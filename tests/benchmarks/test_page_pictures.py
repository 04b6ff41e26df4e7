"""The radiographs of the page: which, with what boxes, names and answers."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from cxrjax.benchmarks.overlays import COLOURS
from cxrjax.benchmarks.page_cases import LabelledBox, agreement
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError


def test_every_picture_has_three_layers_with_the_right_boxes(page):
    cards = list(page.read().all("article", "card"))
    assert len(cards) == page.images
    for card in cards:
        layers = {layer["data-system"]: layer for layer in card.all("g", "layer")}
        assert list(layers) == ["truth", "base", "tuned"]
        for name, layer in layers.items():
            assert COLOURS[name] in layer["style"]
        index = int(card["aria-label"].rpartition("-")[2])
        rectangles = {
            name: [r for r in layer.all("rect") if "halo" not in r.classes]
            for name, layer in layers.items()
        }
        assert [len(r) for r in rectangles.values()] == [1, 1 if index else 0, 1]
        # Pixels 8..40 of 80 and 20..60 of 100, in a view of 400 x 500.
        truth = [float(rectangles["truth"][0][key]) for key in ("x", "y", "width", "height")]
        assert truth == [40, 100, 160, 200]
        assert float(rectangles["tuned"][0]["x"]) == pytest.approx(40 + 8 * index, abs=0.1)
        (svg,) = [s for s in card.all("svg") if s["viewbox"].endswith(" 500.0")]
        assert svg["viewbox"] == "0 0 400 500.0"


def test_the_embedded_picture_is_the_radiograph(page):
    card = next(page.read().all("article", "card"))
    uri = next(card.all("img"))["src"]
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert picture.size == (page.width, page.height)
    difference = np.asarray(picture, np.float32) - np.linspace(20, 220, page.width)
    assert np.abs(difference).max() < 10


def test_answers_stand_beside_the_picture(page):
    page.predictions["base"] = [
        p | ({"parse": "wrong_arity"} if p["question_id"] == "image-3-0" else {})
        for p in page.predictions["base"]
        if p["question_id"] != "image-4-0"
    ]
    cards = {card["aria-label"]: card for card in page.read().all("article", "card")}
    row = next(r for r in cards["Radiograph image-3"].all("tr") if "data-q" in r.attributes)
    reference, base, tuned = row.all("td")
    assert "The Cardiomegaly is at <loc_8_20_40_60>." in reference.text
    assert "answer 3" in base.text and "wrong arity" in base.text
    assert "answer 3" in tuned.text and "wrong arity" not in tuned.text
    assert next(row.all("button", "ask")).text == "Where is the Cardiomegaly?"
    row = next(r for r in cards["Radiograph image-4"].all("tr") if "data-q" in r.attributes)
    assert "no prediction" in list(row.all("td"))[1].text


def test_filters_offer_what_is_there_and_rows_carry_it(page):
    page.records.append(
        page.record(2, question_id="q-what", question="What?", question_type="What", variables=None)
    )
    root = page.read()
    selects = {s["name"]: [o.text for o in s.all("option")] for s in root.all("select")}
    assert selects == {
        "class": ["all", "Cardiomegaly", "Nodule/Mass"],
        "type": ["all", "What", "Where"],
    }
    for row in root.all("tr"):
        if "data-q" in row.attributes:
            label = "Cardiomegaly" if "Cardiomegaly" in row.text else "Nodule/Mass"
            assert row["data-classes"].split() == [
                str(["Cardiomegaly", "Nodule/Mass"].index(label))
            ]
            assert selects["type"][1 + int(row["data-type"])] in row.text
    switches = [i["value"] for i in root.all("input", name="system")]
    assert switches == ["truth", "base", "tuned"]


def test_questions_with_boxes_come_first(page):
    other = {"question": "Anything else?", "question_id": "image-0-first", "answers": []}
    page.records.insert(0, page.record(0, **other))
    card = next(c for c in page.read().all("article", "card") if c["aria-label"].endswith("-0"))
    asked = [button.text for button in card.all("button", "ask")]
    assert asked == ["Where is the Nodule/Mass?", "Anything else?"]
    (layer,) = card.all("g", "layer", data_system="truth")
    assert [g["data-q"] for g in layer.all("g")] == ["0"]


def test_worst_best_and_a_random_sample(page):
    page.arguments["max_images"] = 8
    groups = {
        card["aria-label"].rpartition("-")[2]: card["data-groups"].split()
        for card in page.read().all("article", "card")
    }
    assert 6 <= len(groups) <= 8
    assert {name for name, g in groups.items() if "best" in g} == {"0", "1"}
    assert {name for name, g in groups.items() if "worst" in g} == {"8", "9"}
    assert sum("random" in g for g in groups.values()) == 4
    first = page.html
    page.read()
    assert page.html == first, "the sample is drawn with a fixed seed"
    assert "random sample (seed 0)" in first


def test_agreement_of_two_sets_of_boxes():
    left = LabelledBox("ILD", (0.0, 0.0, 0.5, 1.0))
    half = LabelledBox("ILD", (0.0, 0.0, 0.25, 1.0))
    other = LabelledBox("Nodule/Mass", left.box)
    assert agreement([], []) is None
    assert agreement([left], []) == agreement([], [left]) == 0
    assert agreement([left], [left]) == 1
    assert agreement([left], [half]) == pytest.approx(0.5)
    assert agreement([left], [other]) == 0, "another class is no agreement"
    # True boxes .5 and 0, predicted box .5.
    assert agreement([left, other], [half]) == pytest.approx(1 / 3)


def test_pictures_that_are_not_shown_are_not_read(page):
    shown = {card["aria-label"] for card in page.read(max_images=4).all("article", "card")}
    assert 3 <= len(shown) <= 4
    for index in range(page.images):
        if f"Radiograph image-{index}" not in shown:
            (page.root / "images" / f"image-{index}.png").unlink()
    page.read(max_images=4)
    with pytest.raises(UserError, match="image-"):
        page.read()


def test_a_third_system_gets_its_layer_and_its_column(page):
    page.predictions["blind"] = page.predictions["base"]
    page.arguments["metrics"]["blind"] = {"strict": {"detection/f1@0.3": page.entry(0.111)}}
    root = page.read()
    layers = list(next(root.all("article", "card")).all("g", "layer"))
    assert [layer["data-system"] for layer in layers] == ["truth", "base", "tuned", "blind"]
    assert len({layer["style"] for layer in layers}) == 4
    cells = page.row(page.table(root, "table_5"), "Strict", "F1")
    assert [next(c.all("b")).text for c in cells[:3]] == ["0.224", "0.666", "0.111"]


def test_boxes_are_read_from_text_by_a_codec(page):
    box = np.array([[0.1, 0.2, 0.5, 0.6]], np.float32)
    text = "At " + CODECS["paligemma"].encode(box, page.height, page.width)
    page.predictions["tuned"] = [
        {"question_id": f"image-{i}-0", "text": text} for i in range(page.images)
    ]
    with pytest.raises(UserError, match="--codec"):
        page.read()
    card = next(page.read(codec=CODECS["paligemma"]).all("article", "card"))
    (layer,) = card.all("g", "layer", data_system="tuned")
    assert float(next(layer.all("rect"))["x"]) == pytest.approx(40, abs=0.5)


def test_names_lie_in_the_picture_and_apart(page):
    rng = np.random.default_rng(0)
    for system in page.predictions:
        for line in page.predictions[system]:
            corners = np.sort(rng.random((12, 2, 2)), axis=1)
            line["boxes"] = corners.reshape(12, 4).tolist()
            line["box_scores"] = [0.5] * 12
            line["labels"] = ["Pleural thickening", "Nodule/Mass"] * 6
    for card in page.read().all("article", "card"):
        spans = []
        for group in card.all("g"):
            if "data-q" in group.attributes and "echo" not in group.classes:
                for name in group.all("text"):
                    x, y, length = float(name["x"]), float(name["y"]), 5 * len(name.text)
                    left = x if name["text-anchor"] == "start" else x - length
                    assert left >= 0 and left + length <= 400 and 9 <= y <= 500
                    spans.append((left, left + length, y))
        assert len(spans) > 3
        for i, (a0, a1, ay) in enumerate(spans):
            for b0, b1, by in spans[:i]:
                assert a1 <= b0 or b1 <= a0 or abs(ay - by) >= 10
