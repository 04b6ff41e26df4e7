"""What the page shows is what `predict` writes, and bad input ends in one line."""

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest

from cxrjax import predict
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.input_pipeline.tokenizer import load_tokenizer
from cxrjax.pages.demo import answers as demo
from cxrjax.pages.demo.answers import NamedFile, open_models
from cxrjax.pages.demo.rendering import render_examples
from cxrjax.records import QARecord, write_records

pytestmark = pytest.mark.slow
QUESTION = "Where is the Lung Opacity?"
# Asked for findings by name alone.
PHANTOM_BASE = Path(__file__).parents[3] / "data/demo_base"


@pytest.fixture(scope="module")
def models(base, tuned):
    return open_models(base, tuned)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A radiograph in which both models find something to draw a box around."""
    examples = render_examples(tmp_path_factory.mktemp("examples"))
    return next(one for one in examples if one.question == "Where are the lungs?")


def _predicted(words, example, question, tmp_path):
    height, width = read_image(example.path).shape[:2]
    record = QARecord(
        dataset="custom",
        split="validation",
        image_id="i",
        image_path=example.path.name,
        image_hw=(height, width),
        question_id="q",
        question=question,
        question_type="Where",
    )
    questions, out = tmp_path / "questions.jsonl", tmp_path / "out.jsonl"
    write_records(questions, [record])
    predict.main(
        [*words, "--prompt=vqa", "--mesh=data=8", f"--image_root={example.path.parent}"]
        + [f"--questions={questions}", f"--out={out}"]
    )
    return json.loads(out.read_text())


def test_the_same_as_predict_writes(models, base, tuned, example, tmp_path):
    asked = models.ask(NamedFile(example.path, "phantom"), example.question)
    assert asked["base"].boxes, "a comparison without boxes would say little"
    for name, words in {"base": f"--checkpoint={base}", "tuned": f"--workdir={tuned}"}.items():
        line = _predicted([words], example, example.question, tmp_path)
        answer = asked[name]
        assert (answer.text, answer.parse) == (line["text"], line["parse"])
        assert [list(box.fractions) for box in answer.boxes] == line["boxes"]
        confidences = [box.confidence for box in answer.boxes]
        assert confidences == pytest.approx(line["box_scores"], rel=1e-3)
        assert math.log(answer.probability) == pytest.approx(line["answer_logprob"], abs=1e-3)


def test_tokens_and_boxes_say_the_same_as_the_text(models, base, example):
    answer = models.ask(NamedFile(example.path, "phantom"), example.question)["base"]
    tokenizer = load_tokenizer(base / "tokenizer.model")
    ids = [tokenizer.piece_id(token.piece) for token in answer.tokens]
    assert answer.ended and ids[-1] == tokenizer.eos_id
    assert tokenizer.decode(ids) == answer.text
    probabilities = [token.probability for token in answer.tokens]
    assert all(0 < each <= 1 for each in probabilities)
    assert math.prod(probabilities) == pytest.approx(answer.probability, rel=1e-4)
    mean = math.prod(probabilities) ** (1 / len(probabilities))
    assert answer.token_probability == pytest.approx(mean, rel=1e-4)
    locations = [token.probability for token in answer.tokens if token.kind == "location"]
    assert len(locations) == 4 * len(answer.boxes) > 0
    kinds = [token.kind for token in answer.tokens]
    words = probabilities[: kinds.index("location")]
    # Expected IoU times the probability that there is a box.
    assert 0 < answer.boxes[0].confidence <= min(words, default=1.0) + 1e-4
    height, width = read_image(example.path).shape[:2]
    boxes, _ = CODECS["paligemma"].decode(answer.text, height, width)
    pixels = np.asarray(boxes) * [width, height, width, height]
    # Half a pixel is the rounding, either way where it is half a pixel.
    np.testing.assert_allclose([box.pixels for box in answer.boxes], pixels, rtol=0, atol=0.5001)


def test_what_cannot_be_asked_is_said_in_one_line(models, picture):
    file = NamedFile(picture(), "mine.png")
    with pytest.raises(UserError, match="no question"):
        models.ask(file, " \n ")
    with pytest.raises(UserError, match="501 characters: expected at most 500"):
        models.ask(file, "x" * 501)
    with pytest.raises(UserError, match="longer than the 512 tokens"):
        models.ask(file, "€" * 400)  # three bytes each, a token for every one
    bad = picture("bad.png")
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(UserError, match=r"^theirs\.png: damaged or truncated PNG"):
        models.ask(NamedFile(bad, "theirs.png"), QUESTION)
    bad.write_bytes(b"GIF89a")
    with pytest.raises(ImageError, match=r"^theirs\.gif: not PNG, JPEG or DICOM"):
        models.ask(NamedFile(bad, "theirs.gif"), QUESTION)


def test_compiling_tells_how_far_it_is(base, tuned, monkeypatch):
    models = open_models(base, tuned)
    assert models.progress == "base, model 1 of 2"
    assert not models.wait(0)
    begun, go_on = threading.Event(), threading.Event()

    def ask(*_):
        begun.set()
        assert go_on.wait(60)

    monkeypatch.setattr(demo, "_ask", ask)
    thread = threading.Thread(target=models.compile)
    thread.start()
    assert begun.wait(60) and not models.wait(0)
    go_on.set()
    thread.join()
    assert models.wait(0) and models.progress == ""


def test_a_failure_while_compiling_is_told(base, tuned, monkeypatch):
    models = open_models(base, tuned)

    def ask(*_):
        raise MemoryError("no memory")

    monkeypatch.setattr(demo, "_ask", ask)
    with pytest.raises(MemoryError):
        models.compile()
    with pytest.raises(UserError, match="could not be compiled: no memory"):
        models.wait(0)


def test_models_that_are_not_there_or_cannot_be_asked(base, tuned, tmp_path):
    with pytest.raises(UserError, match=r"--tuned=.*none: there is no such folder; `make demo`"):
        open_models(base, tmp_path / "none")
    with pytest.raises(UserError, match=r"--base=.*none: there is no such folder"):
        open_models(tmp_path / "none", tuned)
    with pytest.raises(UserError, match="no model here"):
        open_models(base, tmp_path)
    with pytest.raises(UserError, match="'grounding' asks about one finding by name"):
        open_models(tuned, PHANTOM_BASE)
