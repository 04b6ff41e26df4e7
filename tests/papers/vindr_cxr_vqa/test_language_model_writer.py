"""Words for plans from a language model: what is told, checked, asked again and set aside."""

import base64
import dataclasses
import io
import json
import os
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.errors import UserError
from cxrjax.images.encode import LONG_SIDE
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.flags import CACHE_NAME, ClientFlags, client_from_flags
from cxrjax.language_model.settings import Prices, Settings
from cxrjax.papers.vindr_cxr_vqa.annotation import FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct import language_model_writer as writing
from cxrjax.papers.vindr_cxr_vqa.construct.language_model_writer import LanguageModelWriter
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion, Wording
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES
from cxrjax.records_io.quality import QualityLog
from tests.evaluation import made

HEART, EFFUSION = (691.0, 1375.0, 1653.0, 1831.0), (200.4, 1500.0, 450.0, 1900.6)
FINDINGS = [FindingBox("Cardiomegaly", HEART), FindingBox("Pleural effusion", EFFUSION)]
IMAGE = ImageAnnotation(
    "img", "images/img.png", (2400, 2000), FINDINGS, {"R1": FINDINGS, "R2": FINDINGS[:1], "R3": []}
)
NORMAL = ImageAnnotation("calm", "images/calm.png", None, [], {"R1": [], "R2": [], "R3": []})
REASON = " ".join(["word"] * 200)


def _plan(number=0, kind="Where", image=IMAGE, **fields):
    plan = PlannedQuestion(
        image=image,
        question_id=f"{image.image_id}-{number}",
        kind=kind,
        style="lesions",
        labels=("Cardiomegaly",),
        boxes={"Cardiomegaly": (HEART,)},
        count=1,
    )
    return dataclasses.replace(plan, **fields)


def _absent(number=0, kind="Is_there"):
    return _plan(
        number, kind, labels=("Nodule/Mass",), boxes={}, count=0, negative_kind="absent_class"
    )


LIST_ALL = _plan(
    9,
    "What",
    style="list_all",
    labels=("Cardiomegaly", "Pleural effusion"),
    boxes={"Cardiomegaly": (HEART,), "Pleural effusion": (EFFUSION,)},
    count=2,
)
# Distinct requests: plans that differ in number alone ask for the same words.
EVERY_KIND = [_plan(number, kind) for number, kind in enumerate(QUESTION_TYPES)]
HEART_TEXT = "<loc_691_1375_1653_1831>"
EFFUSION_TEXT = "<loc_200_1500_450_1901>"
QUESTIONS = made.cases_of(__file__)["questions"]


def _good(plan) -> dict:
    """Usable words for a plan."""
    boxes = " ".join(writing.written_boxes(plan))
    label = plan.labels[0] if plan.labels else "finding"
    question = QUESTIONS["list_all" if plan.style == "list_all" else plan.kind].format(label)
    if plan.negative_kind:
        answer = f"No, there is no {label}."
    elif plan.style == "list_all":
        answer = f"Cardiomegaly is at {HEART_TEXT}. Pleural effusion is at {EFFUSION_TEXT}."
    else:
        answer = f"Yes, {plan.count} {label} at {boxes}."
    return {"question": question, "answer": answer, "reason": REASON, "difficulty": "Easy"}


def _script(chat, plans, change=None):
    """Good words for whichever plan a request is about; `change(plan, words, attempt)` first."""
    texts = {writing.plan_text(plan, writing.load_prompt()): plan for plan in plans}

    def script(body, number):
        turns = body["messages"]
        content = turns[1]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        plan = texts[text]
        words = _good(plan)
        if change:
            words = change(plan, words, (len(turns) - 2) // 2)
        return words if not isinstance(words, dict) else chat.Text(json.dumps(words))

    return script


@pytest.fixture
def write(chat, tmp_path):
    """`write(plans, change)` -> (results, quality log, server)."""

    def run(plans, change=None, image_root=None, **settings):
        quality = QualityLog()
        cache = AnswerCache(tmp_path / "answers.jsonl")
        with chat.Server(_script(chat, plans, change)) as there:
            client = Client(Settings(there.url, "m", **settings), cache)
            writer = LanguageModelWriter(client, quality, image_root)
            results = list(writer.write(iter(plans)))
        cache.close()
        return results, quality, there

    return run


def test_every_kind_of_plan_is_worded_in_order(write):
    plans = [
        *EVERY_KIND,
        *(_absent(number, kind) for number, kind in enumerate(QUESTION_TYPES) if kind != "What"),
        _plan(0, "What", NORMAL, labels=(), boxes={}, count=0, negative_kind="no_finding_image"),
        _plan(7, "How_many", count=3),
        LIST_ALL,
    ]
    results, quality, _ = write(plans)
    assert [plan for plan, _ in results] == plans
    for plan, wording in results:
        assert wording == Wording(**_good(plan))
    assert not quality.entries
    assert quality.warnings == {writing.NO_IMAGE: len(plans)}


def test_the_model_is_told_the_whole_annotation_and_the_schema(write):
    _, _, there = write([_plan()])
    body = there.bodies[0]
    text = body["messages"][1]["content"]
    assert f"Boxes of the answer: {HEART_TEXT}\n" in text
    assert f"- Cardiomegaly: {HEART_TEXT}\n" in text
    assert f"- Pleural effusion: {EFFUSION_TEXT}" in text
    assert "2000 x 2400 pixels (width x height)" in text
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["question", "answer", "reason", "difficulty"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["difficulty"]["enum"] == ["Easy", "Medium"]


def test_prompt_words_every_kind():
    prompt = writing.load_prompt()
    assert prompt["version"] == "2"
    for part in ("question", "answer", "negative"):
        assert set(prompt[part]) == {*QUESTION_TYPES, "list_all"}
    assert "None pixels" not in writing.plan_text(_plan(image=NORMAL), prompt)


EFFUSION_PLAN = _plan(
    labels=("Pleural effusion",),
    boxes={"Pleural effusion": (EFFUSION,)},
    place="in the right lower zone",
)
PLANS = {
    "where": _plan(),
    "what": _plan(kind="What"),
    "yes_no": _plan(kind="Yes_No"),
    "how_many": _plan(kind="How_many", count=3),
    "absent": _absent(),
    "absent_where": _absent(kind="Where"),
    "effusion": EFFUSION_PLAN,
    "effusion_without_a_size": dataclasses.replace(
        EFFUSION_PLAN, image=dataclasses.replace(IMAGE, image_hw=None)
    ),
    "list_all": LIST_ALL,
}


def test_words_that_say_something_else_are_told_so(subtests):
    written = Path(__file__).with_name("wrong_words.jsonl").read_text()
    for name, text in (("HEART", HEART_TEXT), ("EFFUSION", EFFUSION_TEXT), ("REASON", REASON)):
        written = written.replace(name, text)
    for line in written.splitlines():
        change = json.loads(line)
        with subtests.test(change.pop("name")):
            plan, told = PLANS[change.pop("plan")], change.pop("told")
            assert not writing.faults(plan, Wording(**_good(plan)))
            assert told in " ".join(writing.faults(plan, Wording(**_good(plan) | change)))


@pytest.mark.parametrize("answer", ["Three areas show it: Cardiomegaly, one at {}.", "3: {}"])
def test_numbers_may_be_words(answer):
    plan = _plan(0, "How_many", count=3)
    words = _good(plan) | {"answer": answer.format(HEART_TEXT) + " Cardiomegaly."}
    assert not writing.faults(plan, Wording(**words))


def test_wrong_boxes_are_asked_for_again_then_set_aside(write):
    stubborn, corrected, fine = _plan(0), _plan(1, "Is_there"), _plan(2, "Yes_No")

    def change(plan, words, attempt):
        wrong = plan == stubborn or (plan == corrected and attempt == 0)
        return words | {"answer": "Yes, Cardiomegaly at <loc_1_2_3_4>."} if wrong else words

    results, quality, there = write([stubborn, corrected, fine], change)
    assert [plan for plan, _ in results] == [corrected, fine]
    assert [(e.reason, e.item) for e in quality.entries] == [("generator_failed", "img-0")]
    assert quality.entries[0].found.startswith("invalid_content: ")
    assert "<loc_1_2_3_4>" in quality.entries[0].found
    assert len(there.bodies) == 3 + 2 + 1
    again = next(body for body in there.bodies if len(body["messages"]) > 2)
    assert HEART_TEXT in again["messages"][-1]["content"]


def test_each_failure_is_set_aside_by_its_category(write, chat):
    faulty = {
        "img-0": chat.Text(None, refusal="No."),
        "img-1": chat.Text('{"question": "W', finish_reason="length"),
        "img-2": chat.Text('{"question": "W'),
        "img-3": chat.Status(400, "too many images"),
        "img-4": chat.Text(json.dumps(_good(_plan()) | {"difficulty": "Hard"})),
    }
    _, quality, _ = write(EVERY_KIND, lambda plan, words, _: faulty.get(plan.question_id, words))
    found = {entry.item: entry.found.split(":")[0] for entry in quality.entries}
    assert found == {
        "img-0": "refusal",
        "img-1": "truncated",
        "img-2": "invalid_json",
        "img-3": "http_error",
        "img-4": "invalid_content",
    }
    assert quality.counts()["generator_failed"] == 5


def test_a_short_reason_is_asked_for_once_more_and_kept(write):
    never, mended, worse = _plan(0), _plan(1, "Is_there"), _plan(2, "Yes_No")
    lengths = {"img-0": (20, 90), "img-1": (300, 180), "img-2": (140, 20)}

    def change(plan, words, attempt):
        return words | {"reason": " ".join(["w"] * lengths[plan.question_id][attempt])}

    results, quality, there = write([never, mended, worse], change)
    assert [len(wording.reason.split()) for _, wording in results] == [90, 180, 140]
    assert quality.warnings[writing.REASON_LENGTH] == 2 and not quality.entries
    assert len(there.bodies) == 6
    assert any("20 words" in body["messages"][-1]["content"] for body in there.bodies)


def test_the_radiograph_is_sent_where_there_is_one(write, tmp_path):
    (tmp_path / "images").mkdir()
    pixels = np.arange(1500 * 1200, dtype=np.uint32).reshape(1500, 1200) % 251
    PIL.Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / "img.png")
    broken = dataclasses.replace(IMAGE, image_id="broken", image_path="images/broken.png")
    (tmp_path / "images" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    missing = dataclasses.replace(IMAGE, image_id="missing", image_path="images/missing.png")
    plans = [_plan(0), _plan(1, "Is_there"), _plan(0, image=broken), _plan(0, image=missing)]
    results, quality, there = write(plans, image_root=tmp_path)
    assert [plan.question_id for plan, _ in results] == ["img-0", "img-1", "missing-0"]
    assert [(e.reason, e.item) for e in quality.entries] == [("unreadable_image", "broken-0")]
    assert quality.warnings == {writing.NO_IMAGE: 1}
    shown = [body["messages"][1]["content"] for body in there.bodies]
    urls = {content[0]["image_url"]["url"] for content in shown if isinstance(content, list)}
    assert len(urls) == 1 and sum(isinstance(content, str) for content in shown) == 1
    header, data = urls.pop().split(",")
    assert header == "data:image/jpeg;base64"
    picture = PIL.Image.open(io.BytesIO(base64.b64decode(data)))
    assert picture.size == (round(1200 * LONG_SIDE / 1500), LONG_SIDE) and picture.mode == "L"
    _, quality, there = write(plans[:2], image_root=tmp_path, text_only=True)
    assert quality.warnings == {writing.NO_IMAGE: 2}


def test_a_second_run_sends_nothing(write):
    def change(plan, words, attempt):
        return words | {"answer": "wrong"} if plan.question_id == "img-3" else words

    first, quality, there = write(EVERY_KIND, change)
    assert len(there.bodies) == 5 + 3
    second, replayed, there = write(EVERY_KIND, change)
    assert there.bodies == []
    assert second == first and replayed.to_json() == quality.to_json()


def test_nothing_leaves_the_machine_unasked(tmp_path):
    cache = AnswerCache(tmp_path / "a.jsonl")
    client = Client(Settings("https://model.invalid/v1", "m"), cache)
    quality = QualityLog()
    writer = LanguageModelWriter(client, quality)
    with pytest.raises(UserError) as error:
        list(writer.write(iter(EVERY_KIND)))
    for part in ("6 requests", "annotations of VinDr-CXR", "model.invalid", "--allow_sending"):
        assert part in str(error.value)
    assert "pixels" not in str(error.value)
    (tmp_path / "images").mkdir()
    PIL.Image.new("L", (9, 9)).save(tmp_path / "images" / "img.png")
    with pytest.raises(UserError, match=r"pixels of images \(6 in all\)"):
        list(LanguageModelWriter(client, quality, tmp_path).write(iter(EVERY_KIND)))
    assert client.account.to_json()["requests"] == 0


def test_the_dry_run(chat, tmp_path, monkeypatch):
    monkeypatch.delenv("CXRJAX_LM_API_KEY", raising=False)
    with chat.Server(lambda *_: chat.Status(500)) as there:
        flags = ClientFlags(base_url=there.url, model="gem", price_in=1, price_out=10)
        client = client_from_flags(flags, tmp_path / CACHE_NAME, ["vindr_cxr_vqa"])
        writer = LanguageModelWriter(client, QualityLog())
        assert (writer.name, writer.version) == ("gem", "prompt 2")
        estimate = writer.estimate(EVERY_KIND)
        assert there.bodies == []
    assert estimate.requests == 6 and estimate.images == 0
    assert 6 * 500 < estimate.input_tokens < 6 * 1500
    assert estimate.cost_at_most > 6 * 4096 * 10 / 1e6
    assert (tmp_path / "language_model_answers.jsonl").exists()


@pytest.mark.local_model
def test_a_real_local_model_words_a_plan(tmp_path, monkeypatch):
    """Any model: what it says is judged by the checks, small ones will fail them."""
    url, model = os.environ.get("CXRJAX_LM_BASE_URL"), os.environ.get("CXRJAX_LM_MODEL")
    if not url or not model:
        pytest.skip("no model: CXRJAX_LM_BASE_URL and CXRJAX_LM_MODEL are not set")
    # Small models ramble up to the limit, at a few tokens a second.
    monkeypatch.setattr(writing, "MAX_OUTPUT_TOKENS", 400)
    key = os.environ.get("CXRJAX_LM_API_KEY", "")
    settings = Settings(url, model, key, text_only=True, timeout=600, answers=2)
    if not settings.is_local:
        pytest.skip(f"{url} is not on this machine")
    client = Client(dataclasses.replace(settings, prices=Prices(0, 0)), AnswerCache(tmp_path / "a"))
    quality = QualityLog()
    results = list(LanguageModelWriter(client, quality).write([_plan(0), _absent(1)]))
    assert len(results) + len(quality.entries) == 2
    categories = {entry.found.split(":")[0] for entry in quality.entries}
    assert categories <= {"refusal", "truncated", "invalid_json", "invalid_content"}, quality
    account = client.account.to_json()
    assert account["answers"] >= 2 and account["output_tokens"] > 0
    print(json.dumps(account), [entry.found for entry in quality.entries], results)
