"""HTML of pictures and answers."""

import base64
import io
import json

import html5lib
import PIL.Image
import pytest

from cxrjax.apps.demo import rendering
from cxrjax.apps.demo.answers import AnswerBox, Answered, NamedFile, Token
from cxrjax.apps.demo.rendering import TrueBox, open_picture, render_answers
from cxrjax.images.files import ImageError
from tests.apps.rows import ROWS

EVIL = "<script>window.hit=1</script>{{ 7 * 7 }}"


def _parse(text):
    """Strict: wrong HTML is an error."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    return parser.parseFragment(text)


def _answered(text="ILD <loc0100><loc0200><loc0300><loc0400>", **fields):
    tokens = [("▁ILD", 0.9, "word"), ("<loc0100>", 0.00001, "location"), ("<eos>", 0.999, "end")]
    given = {"reason": "", "probability": 0.031, "token_probability": 0.5, "parse": "ok"}
    given["boxes"] = (AnswerBox((16, 6, 31, 18), (0.2, 0.1, 0.4, 0.3), 0.25),)
    given["tokens"] = tuple(Token(*one) for one in tokens)
    return Answered(text=text, **given | fields)


def test_boxes_stand_where_they_belong(picture):
    opened = open_picture(NamedFile(picture(height=60, width=80), "x.png"))
    assert (opened.height, opened.width) == (60, 80)
    truth = (TrueBox("ILD", (0.6, 0.5, 0.9, 1.0)),)
    answers = {"base": _answered(boxes=()), "tuned": _answered()}
    html = rendering.render_picture(opened, answers, truth, 7)
    (node,) = (one for one in _parse(html).iter("div"))
    assert node.get("data-number") == "7"
    shown = json.loads(node.get("data-shown"))
    layers = {layer["name"]: layer["boxes"] for layer in shown["layers"]}
    assert list(layers) == ["truth", "base", "tuned"]
    # In pixels of the original, which has as many as the picture.
    assert layers["truth"] == [{"box": pytest.approx([48, 30, 72, 60]), "label": "ILD"}]
    assert layers["base"] == []
    assert layers["tuned"] == [{"box": pytest.approx([16, 6, 32, 18]), "confidence": 0.25}]
    content = base64.b64decode(shown["picture"]["url"].removeprefix("data:image/jpeg;base64,"))
    assert PIL.Image.open(io.BytesIO(content)).size == (80, 60)
    assert (shown["picture"]["width"], shown["picture"]["height"]) == (80, 60)


def test_all_pixels_are_shown_of_a_picture_that_can_be_read(picture):
    opened = open_picture(NamedFile(picture("big.png", 1200, 1500), "big.png"))
    content = base64.b64decode(opened.source.removeprefix("data:image/jpeg;base64,"))
    assert PIL.Image.open(io.BytesIO(content)).size == (1500, 1200)
    path = picture("no.png")
    path.write_text("no")
    with pytest.raises(ImageError, match=r"^mine\.png: not PNG"):
        open_picture(NamedFile(path, "mine.png"))


def _by_system(tree):
    texts = {one.get("data-system"): " ".join(one.itertext()) for one in tree.iter("section")}
    return {name: " ".join(text.split()) for name, text in texts.items()}


def test_answers_and_texts_of_models_files_and_people_are_no_html(picture):
    said = render_answers({"base": _answered("none", boxes=()), "tuned": _answered()})
    tree = _parse(said)
    text = _by_system(tree)
    assert "No box." in text["base"] and "none" in text["base"]
    assert "1 16 to 31 6 to 18 25 %" in text["tuned"]
    assert "in the words: 90 % (with coordinates, as a whole: 3.1 %, 50 % a token" in text["tuned"]
    assert "ILD 90 % <loc0100> <0.01 % <eos> >99 %" in text["tuned"]
    (code,) = tree.iter("code")
    assert (code.text, code.get("title")) == ("box 1", "<loc0100><loc0200><loc0300><loc0400>")
    for said in (
        render_answers({"tuned": _answered(EVIL, tokens=(Token(EVIL, 1.0, "word"),))}),
        rendering.render_status(EVIL, problem=True),
    ):
        tree = _parse(said)
        assert not list(tree.iter("script"))
        assert EVIL in "".join(tree.itertext())


def test_what_went_wrong_or_was_not_taught_is_said():
    cut = _answered(tokens=(Token("a", 0.5, "word"),), parse="wrong_order", reason="Because.")
    said = render_answers({"tuned": cut})
    assert "A box could not be read: wrong_order" in said
    assert "Cut off: longer than the 1 tokens" in said and "Reason: Because." in said
    assert "(an empty answer)" in render_answers({"tuned": _answered("")})
    known, unknown = _answered(), _answered("Unknown.", boxes=())
    texts = _by_system(_parse(render_answers({"base": known, "tuned": unknown})))
    assert "The model does not know this" in texts["tuned"]
    for word in ("Confidence", "No box", "Unknown.", "3.1 %"):
        assert word not in texts["tuned"]
    assert "Confidence" in texts["base"] and "does not know" not in texts["base"]


@pytest.mark.parametrize(("probability", "said"), ROWS["percents"])
def test_percent(probability, said):
    assert rendering.percent(probability) == said
