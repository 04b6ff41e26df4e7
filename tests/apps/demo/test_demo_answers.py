"""What the page shows is what `predict` writes, and bad input ends in one line."""

import contextlib
import json
import math

import numpy as np
import pytest
from flax import nnx

from cxrjax.apps.demo import run
from cxrjax.apps.demo.answers import AskedModel, Models, NamedFile, ServerAddress, models_of
from cxrjax.apps.demo.rendering import render_examples
from cxrjax.apps.serving.pair import open_pair
from cxrjax.codecs import CODECS
from cxrjax.commands import demo_app, predict
from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.input_pipeline.tokenizer import load_tokenizer
from cxrjax.models import LoRAConfig, apply_lora
from cxrjax.models.peft import save_peft
from cxrjax.records import write_records
from cxrjax.training.base_model import base_sha256
from cxrjax.training.checkpoint import load_model
from tests.apps.page_records import make_record
from tests.apps.servers import ROOT, replies

pytestmark = pytest.mark.slow
QUESTION = "Where is the Lung Opacity?"
# Asked for findings by name alone.
PHANTOM_BASE = ROOT / "data/demo_base"


def opened(*words):
    """The models of a command with these words, as a context."""
    return run.open_models(demo_app.parse_arguments(words))


@pytest.fixture(scope="module")
def models(base, tuned):
    with opened(f"--base={base}", f"--tuned={tuned}") as found:
        assert not found.wait(0) and found.progress == "base and tuned"
        found.watch()
        assert found.wait(0) and found.progress == "" and not found.elsewhere
        yield found


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A radiograph in which both models find something to draw a box around."""
    examples = render_examples(tmp_path_factory.mktemp("examples"))
    return next(one for one in examples if one.question == "Where are the lungs?")


def _predicted(words, example, question, tmp_path):
    height, width = read_image(example.path).shape[:2]
    place = {"image_path": example.path.name, "image_hw": (height, width), "split": "validation"}
    record = make_record("q", "", question=question, answers=[], **place)
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
    assert answer.ended and answer.tokens[-1].kind == "end"
    assert "".join(token.piece for token in answer.tokens[:-1]) == answer.text
    assert len(tokenizer.encode(answer.text)) == len(answer.tokens) - 1
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
    for question, says in (
        (" \n ", "no question"),
        ("x" * 501, "501 characters: expected at most 500"),
        ("€" * 400, "at most 128"),  # three bytes each, a token for every one
    ):
        with pytest.raises(UserError, match=says):
            models.ask(file, question)
    bad = picture("bad.png")
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(UserError, match=r"^theirs\.png: damaged or truncated PNG"):
        models.ask(NamedFile(bad, "theirs.png"), QUESTION)
    bad.write_bytes(b"GIF89a")
    with pytest.raises(ImageError, match=r"^theirs\.gif: not PNG, JPEG or DICOM"):
        models.ask(NamedFile(bad, "theirs.gif"), QUESTION)


@pytest.fixture
def fake():
    """`fake(answers by path)` -> the address; `fake.asked` has what was asked."""
    with contextlib.ExitStack() as stack:

        def start(answers):
            def answer(asked):
                start.asked.append((asked.path, asked.headers["Authorization"]))
                return answers[asked.path]

            return f"http://127.0.0.1:{stack.enter_context(replies(answer))}/v1"

        start.asked = []
        yield start


def _cards(*names, **more):
    card = {"needs_finding": False, "images": 1} | more
    return 200, json.dumps({"data": [{"id": name, **card} for name in names]}).encode()


def test_a_server_elsewhere_is_asked_by_its_models_names(fake, picture, monkeypatch):
    read = {"boxes": [[0.5, 0.1, 0.25, 0.5]], "box_scores": [0.5], "parse": "ok"}
    said = {
        "logprobs": {"content": [{"token": "Yes", "logprob": -0.1, "bytes": []}]},
        "grounding": {"text": "Yes", "end_logprob": None, **read},
    }
    body = json.dumps({"choices": [said]}).encode()
    pages = {"/v1/models": _cards("a", "b", "c"), "/ready": (200, b"")}
    pages["/v1/chat/completions"] = 200, body
    address = fake(pages)
    monkeypatch.setenv("CXRJAX_LM_API_KEY", "secret")
    with opened(f"--server={address}") as models:
        assert models.progress == "a and b"
        models.watch()
        answers = models.ask(NamedFile(picture("x.png", 40, 80), "x.png"), "?")
    assert list(answers) == ["a", "b"] and not answers["a"].ended
    assert answers["a"].boxes[0].pixels == (20, 4, 40, 20)
    assert answers["a"].probability == pytest.approx(math.exp(-0.1))
    assert {key for _, key in fake.asked} == {"Bearer secret"}
    with opened(f"--server={address}", "--models=c") as models:
        assert models.progress == "c"
    with pytest.raises(UserError, match="'d' is none of the server's models"):
        models_of(ServerAddress(address), ["d"])
    pages["/v1/models"] = _cards("a", needs_finding=True)
    with pytest.raises(UserError, match="no model that can be asked in free words"):
        models_of(ServerAddress(address), [])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((400, b'{"error": {"message": "image 1: damaged"}}'), r"^x\.png: damaged"),
        ((401, b'{"error": {"message": "expected Bearer"}}'), "expected Bearer"),
        ((500, b"<html>"), "answers 500 and nothing that can be read"),
        ((200, b"{}"), "answers 200 and nothing that can be read"),
        ((200, b'{"choices": [{"logprobs": null, "grounding": {}}]}'), "nothing that can be read"),
    ],
)
def test_what_a_server_says_wrong_is_one_line(fake, picture, answer, told):
    models = Models({"a": AskedModel(ServerAddress(fake({"/v1/chat/completions": answer})), "a")})
    with pytest.raises(UserError, match=told):
        models.ask(NamedFile(picture("x.png"), "x.png"), "?")


def test_a_server_that_is_not_there_is_told():
    models = Models({"a": AskedModel(ServerAddress("http://127.0.0.1:1"), "a")})
    models.watch()  # in a thread, whose end nobody reads
    with pytest.raises(UserError, match=r"cannot be asked: the server at 127\.0\.0\.1:1"):
        models.wait(0)


def test_pictures_leave_this_machine_only_where_that_is_allowed():
    with pytest.raises(UserError, match="--allow_sending"):
        ServerAddress("https://models.example.org")
    with pytest.raises(UserError, match="unencrypted"):
        ServerAddress("http://models.example.org", "secret", allow_sending=True)
    away = ServerAddress("https://models.example.org", "secret", allow_sending=True)
    assert Models({"a": AskedModel(away, "a")}).elsewhere == ("models.example.org",)
    assert "secret" not in repr(away)


def test_models_that_are_not_there_or_cannot_be_asked(base, tuned, tmp_path):
    def refused(first, second, match):
        with pytest.raises(UserError, match=match), opened(f"--base={first}", f"--tuned={second}"):
            pass

    refused(base, tmp_path / "none", r"--tuned=.*none: there is no such folder; `make demo`")
    refused(tmp_path / "none", tuned, r"--base=.*none: there is no such folder")
    refused(base, tmp_path, "no model here")
    refused(tuned, PHANTOM_BASE, "'grounding' asks about one finding by name")


def test_a_run_that_trained_more_than_an_adapter_has_a_server_of_its_own(base, tuned):
    """The demo's trains the table of tokens too."""
    apart = open_pair(base, tuned, slots=1, longest_prompt=16)
    assert [list(served.by_name) for served in apart] == [["base"], ["tuned"]]
    assert {name.examples.prompt for one in apart for name in one.by_name.values()} == {"vqa"}


def test_an_adapter_shares_the_server_of_its_base(base, tmp_path):
    model = load_model(base).model
    apply_lora(model, LoRAConfig(rank=1, targets=(r"decoder/layers/attn/q_proj",)), nnx.Rngs(0))
    save_peft(tmp_path, model, None, base_sha256=base_sha256(base))
    (together,) = open_pair(base, tmp_path, slots=1, longest_prompt=16)
    assert list(together.by_name) == ["base", "tuned"]
