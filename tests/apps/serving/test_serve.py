"""The command as a process: OpenAI's protocol, the same answers as `predict`, and a quiet end."""

import base64
import dataclasses
import http.client
import json
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import openai
import pydantic
import pydicom
import pytest
from PIL import Image

from cxrjax.apps.serving import run
from cxrjax.apps.serving.flags import ServeFlags
from cxrjax.commands import predict, serve
from cxrjax.errors import UserError
from cxrjax.records import Answer, QARecord, write_records
from tests.apps.raw_http import ask_raw, random_requests, status_of
from tests.asked import asked
from tests.papers.cases import cases, data

ROOT = Path(__file__).parents[3]
BASE = ROOT / "data" / "real_base"
RADIOGRAPHS = sorted((ROOT / "data" / "radiographs" / "images").glob("*.jpeg"))[:4]
WORDS = ("Where is the right lung?", "where is the left lung", "Is there a stethoscope?")
TOKEN = "0123456789abcdef"


def uri(content: bytes, kind: str = "image/jpeg") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def chat(image: str | list[str], question: str, **more) -> dict:
    images = [image] if isinstance(image, str) else image
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in images]
    content = [*parts, {"type": "text", "text": question}]
    return {"model": "real_base", "messages": [{"role": "user", "content": content}], **more}


class Served:
    """The command, and how it is asked."""

    def __init__(self, folder: Path) -> None:
        tokens = folder / "tokens"
        tokens.write_text(f"# of the test\nanna = {TOKEN}\nbao={TOKEN[::-1]}\n")
        self.errors = folder / "stderr"
        command = [sys.executable, "-m", "cxrjax.serve", f"--checkpoint={BASE}", "--port=0"]
        command += ["--slots=3", "--queue=40", "--longest_prompt=24", f"--token_file={tokens}"]
        command += ["--max_megabytes=2", "--seconds=60"]
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT
            )
        line = self.process.stdout.readline()
        found = re.match(r"http://127.0.0.1:(\d+)/v1: real_base", line)
        assert found, line + self.errors.read_text()
        self.port = int(found[1])
        assert self.ask("GET", "/health", token=None)[0] == 200
        deadline = time.monotonic() + 300
        while self.ask("GET", "/ready", token=None)[0] != 200:
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.2)

    def ask(self, method, path, body=None, token=TOKEN):
        """(status, what was answered, headers)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            sent = body if isinstance(body, bytes | None) else json.dumps(body)
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = answer.getheader("content-type", "").startswith("application/json")
            return answer.status, json.loads(text) if is_json else text, answer.headers
        finally:
            connection.close()

    def chat(self, image, question, **more):
        status, told, _ = self.ask("POST", "/v1/chat/completions", chat(image, question, **more))
        assert status == 200, told
        return told

    def metric(self, name: str) -> float:
        page = self.ask("GET", "/metrics")[1]
        return float(re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    one = Served(tmp_path_factory.mktemp("serve"))
    yield one
    one.process.send_signal(signal.SIGTERM)
    one.process.communicate(timeout=60)
    assert one.process.returncode == 0
    said = one.errors.read_text()
    lines = [json.loads(line) for line in said.splitlines()]
    assert {"ready", "request", "ended"} <= {line.get("event") for line in lines}
    assert not any(word in said for word in ("lung", TOKEN, "located", "/9j/"))


def record(number: int, place: int) -> QARecord:
    path = RADIOGRAPHS[number]
    return asked(
        image_id=path.stem,
        image_path=path.name,
        image_hw=Image.open(path).size[::-1],
        question_id=f"{number} {place}",
        question=WORDS[place],
    )


@pytest.fixture(scope="module")
def predicted_folder(tmp_path_factory):
    """Questions and what `predict` has answered, with records of true boxes beside them."""
    folder = tmp_path_factory.mktemp("predict")
    records = [record(number, place) for number in range(4) for place in range(3)]
    questions, out = folder / "questions.jsonl", folder / "predictions.jsonl"
    write_records(questions, records)
    boxed = [
        record.model_copy(
            update={
                "patient_id": record.image_id,
                "answers": [Answer(text="x", boxes_by_image={record.image_id: [[9, 9, 90, 90]]})],
            }
        )
        for record in records
        if record.question != WORDS[2]
    ]
    write_records(folder / "records.jsonl", boxed)
    predict.main(
        [f"--checkpoint={BASE}", f"--questions={questions}", f"--out={out}"]
        + [f"--image_root={RADIOGRAPHS[0].parent}"]
    )
    return folder


@pytest.fixture(scope="module")
def predicted(predicted_folder):
    """Lines of `predict` by image and question."""
    out = predicted_folder / "predictions.jsonl"
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {tuple(map(int, line["question_id"].split())): line for line in lines}


def check_same(told: dict, line: dict) -> None:
    exact = {name for name in line if not re.search("score|logprob|spread|question_id", name)}
    assert {name: told[name] for name in exact} == {name: line[name] for name in exact}
    for name in set(line) - exact - {"question_id"}:
        expected = np.array(line[name], float)
        np.testing.assert_allclose(np.array(told[name], float), expected, atol=2e-3)


def test_answers_are_those_of_predict_whoever_asks_beside(served, predicted):
    uris = [uri(path.read_bytes()) for path in RADIOGRAPHS]
    shuffled = list(predicted) * 2
    random.Random(3).shuffle(shuffled)
    found, faults = {}, []

    def client(part):
        try:
            for number, place in part:
                told = served.chat(uris[number], WORDS[place])
                found[number, place] = told["choices"][0]
        except Exception as error:
            faults.append(error)

    clients = [threading.Thread(target=client, args=(shuffled[i::6],)) for i in range(6)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert not faults
    assert found.keys() == predicted.keys()
    for key, line in predicted.items():
        assert found[key]["message"]["content"] == line["text"]
        assert found[key]["finish_reason"] == "stop"
        check_same(found[key]["grounding"], line)
    assert served.metric("cxrjax_compiled_after_warm_up_total") == 0
    assert served.metric("cxrjax_image_cache_misses_total") == len(RADIOGRAPHS)


def test_systems_earlier_turns_and_many_questions_of_one_image(served, predicted):
    body = {"image": uri(RADIOGRAPHS[1].read_bytes()), "questions": [*WORDS]}
    body["questions"][1] = {"question": WORDS[1], "question_id": "mine", "finding": "left lung"}
    status, told, _ = served.ask("POST", "/v1/ground", body)
    assert status == 200 and told["model"] == "real_base"
    lines = told["predictions"]
    assert [line["question_id"] for line in lines] == ["q0", "mine", "q2"]
    assert lines[1]["labels"] == ["left lung"]
    for place, line in enumerate(lines):
        check_same(line | {"labels": predicted[1, place]["labels"]}, predicted[1, place])
    body = chat(GOOD, WORDS[0])
    body["messages"].insert(0, {"role": "system", "content": "Be brief."})
    prompt = served.ask("POST", "/v1/chat/completions", body)[1]["usage"]["prompt_tokens"]
    same = served.chat(GOOD, f"Be brief.\n{WORDS[0]}")["usage"]["prompt_tokens"]
    assert prompt == same > served.chat(GOOD, WORDS[0])["usage"]["prompt_tokens"]
    body["messages"][0]["content"] = ""
    told = served.ask("POST", "/v1/chat/completions", body)[1]
    assert told["choices"][0]["message"]["content"] == predicted[0, 0]["text"]
    body["messages"] += [{"role": "assistant", "content": "Here."}]
    assert served.ask("POST", "/v1/chat/completions", body)[0] == 400
    body["messages"] += [{"role": "user", "content": "And?"}]
    longer = served.ask("POST", "/v1/chat/completions", body)[1]["usage"]["prompt_tokens"]
    assert longer > served.chat(GOOD, "And?")["usage"]["prompt_tokens"] + 5


def events_of(served, body):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.getheader("content-type").startswith("text/event-stream")
    lines = [line for line in answer.read().decode().split("\n\n") if line]
    connection.close()
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_stream_makes_the_same_answer(served, predicted):
    body = chat(uri(RADIOGRAPHS[0].read_bytes()), WORDS[0], stream=True, logprobs=True, n=2)
    chunks = events_of(served, body | {"stream_options": {"include_usage": True}})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 4
    for index in range(2):
        own = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        text = "".join(choice["delta"].get("content", "") for choice in own)
        assert text == predicted[0, 0]["text"]
        assert own[-1]["finish_reason"] == "stop"
        check_same(own[-1]["grounding"], predicted[0, 0])
        assert len(own) > 5
        listed = [e for choice in own if choice["logprobs"] for e in choice["logprobs"]["content"]]
        assert len(listed) == chunks[-1]["usage"]["completion_tokens"] // 2


def test_logprobs_stops_limits_seeds_and_forms(served, predicted):
    image, line = uri(RADIOGRAPHS[0].read_bytes()), predicted[0, 0]
    told = served.chat(image, WORDS[0], logprobs=True, top_logprobs=3)
    listed = told["choices"][0]["logprobs"]["content"]
    assert "".join(one["token"] for one in listed) == line["text"]
    assert abs(sum(one["logprob"] for one in listed) - line["answer_logprob"]) < 0.1
    assert all(len(one["top_logprobs"]) == 3 for one in listed)
    assert told["usage"]["completion_tokens"] == len(listed) + 1

    stopped = served.chat(image, WORDS[0], stop=[" lo", "nowhere"])["choices"][0]
    assert stopped["message"]["content"] == line["text"].partition(" lo")[0]
    assert stopped["finish_reason"] == "stop"
    body = chat(image, WORDS[0], stop=" lo", stream=True)
    pieces = [c["choices"][0]["delta"].get("content", "") for c in events_of(served, body)]
    assert "".join(pieces) == line["text"].partition(" lo")[0]

    short = served.chat(image, WORDS[0], max_tokens=3)
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 3
    assert line["text"].startswith(short["choices"][0]["message"]["content"])

    drawn = [served.chat(image, WORDS[0], temperature=2.0, seed=5, n=3) for _ in range(2)]
    texts = [[choice["message"]["content"] for choice in one["choices"]] for one in drawn]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1

    form = {"type": "answer_form", "form": "yes_no"}
    held = served.chat(image, WORDS[2], response_format=form)["choices"][0]["message"]["content"]
    assert held.lower() in ("yes", "no")
    as_json = served.chat(image, WORDS[0], response_format={"type": "json_object"})
    read = json.loads(as_json["choices"][0]["message"]["content"])
    assert read["text"] == line["text"] and read["boxes"] == line["boxes"]


def test_pictures_of_every_kind(served, tmp_path):
    grey = np.asarray(Image.open(RADIOGRAPHS[0]).convert("L"))
    Image.fromarray(grey).save(tmp_path / "a.png")
    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    made.Rows, made.Columns = grey.shape
    made.PhotometricInterpretation, made.SamplesPerPixel = "MONOCHROME2", 1
    made.BitsAllocated = made.BitsStored = 8
    made.HighBit, made.PixelRepresentation = 7, 0
    made.WindowCenter, made.WindowWidth = 128, 256
    made.PixelData = grey.tobytes()
    pydicom.dcmwrite(tmp_path / "a.dcm", made, enforce_file_format=True)
    answers = [
        served.chat(uri((tmp_path / name).read_bytes(), kind), WORDS[0])["choices"][0]["grounding"]
        for name, kind in (("a.png", "image/png"), ("a.dcm", "application/dicom"))
    ]
    first, second = (np.array(answer["boxes"]) for answer in answers)
    np.testing.assert_allclose(first, second, atol=0.02)


GOOD = uri(RADIOGRAPHS[0].read_bytes())
BOMB = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", 60000, 60000)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (chat(GOOD, "x", model="other"), 404, "model_not_found"),
        (chat(GOOD, "x", nonsense=1), 400, "unknown_parameter"),
        (chat(GOOD, "x", temperature="1"), 400, "invalid_value"),
        (chat(GOOD, "x", temperature=float("nan")), 400, "invalid_value"),
        (chat(GOOD, "x", tools=[{"type": "function"}]), 400, "unsupported_parameter"),
        (chat(GOOD, "x", top_logprobs=3), 400, "invalid_value"),
        (chat(GOOD, "x", n=9), 400, "invalid_value"),
        (chat(GOOD, "x", stop=["a"] * 5), 400, "invalid_value"),
        (chat(GOOD, "x", response_format={"type": "json_schema"}), 400, "unsupported_schema"),
        (chat(GOOD, " "), 400, "invalid_value"),
        (chat(GOOD, "where " * 200), 400, "context_length_exceeded"),
        (chat(GOOD, "where " * 20_000), 400, "context_length_exceeded"),
        (chat(uri(BOMB, "image/png"), "where " * 200), 400, "context_length_exceeded"),
        (chat([GOOD, GOOD], "x"), 400, "invalid_image_count"),
        (chat([], "x"), 400, "invalid_image_count"),
        (chat("https://example.org/a.png", "x"), 400, "invalid_image_url"),
        (chat("file:///etc/passwd", "x"), 400, "invalid_image_url"),
        (chat("data:image/png;base64,%%", "x"), 400, "invalid_base64_image"),
        (chat(uri(b"GIF89a"), "x"), 400, "invalid_image"),
        (chat(uri(BOMB, "image/png"), "x"), 400, "invalid_image"),
        (chat(uri(RADIOGRAPHS[0].read_bytes()[:2000]), "x"), 400, "invalid_image"),
        ({"model": "real_base", "messages": []}, 400, "invalid_value"),
        (chat(GOOD, "x" * 3_000_000), 413, None),
    ],
    ids=lambda value: None if isinstance(value, bytes | dict) else str(value),
)
def test_what_is_refused_is_told_as_openai_does(served, body, status, code):
    found, told, _ = served.ask("POST", "/v1/chat/completions", body)
    assert (found, told["error"]["code"]) == (status, code), told
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert len(told["error"]["message"]) < 500


@cases("path, wrong, place")
def test_the_place_of_a_mistake_is_told(served, path, wrong, place):
    body = {"model": "real_base", "messages": [{"role": "user", "content": [wrong]}]}
    if path == "ground":
        body = {"image": GOOD, "questions": [wrong]}
    status, told, _ = served.ask("POST", f"/v1/{path}", body)
    assert status == 400 and told["error"]["message"].startswith(place), told


def test_fields_that_ask_for_nothing_are_ignored_and_too_many_told_to_come_again(served, predicted):
    more = {"user": "me", "metadata": {"a": "b"}, "frequency_penalty": 0, "tools": []}
    told = served.chat(GOOD, WORDS[0], **more)
    assert told["choices"][0]["message"]["content"] == predicted[0, 0]["text"]
    body = {"image": GOOD, "questions": ["Where is it?"] * 41}
    status, told, headers = served.ask("POST", "/v1/ground", body)
    assert status == 429 and told["error"]["code"] == "queue_full"
    assert headers["Retry-After"]


def test_who_has_no_token_learns_nothing(served):
    for token in (None, "wrong", TOKEN + "x"):
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            status, told, _ = served.ask("GET", path, token=token)
            assert status == 401 and told["error"]["type"] == "authentication_error"
    status, told, headers = served.ask("GET", "/v1/models", token=TOKEN[::-1])
    assert status == 200 and [one["id"] for one in told["data"]] == ["real_base"]
    assert headers["X-Request-Id"]
    assert served.ask("GET", "/v1/models/real_base")[1]["images"] == 1
    # As adapters may be named.
    status, told, _ = served.ask("GET", "/v1/models/vindr/best")
    assert status == 404 and told["error"]["code"] == "model_not_found"
    status, told, _ = served.ask("GET", "/v1/nothing")
    assert status == 404 and "error" in told


def test_images_are_shared_by_those_with_the_same_token_alone(served):
    image = uri(RADIOGRAPHS[3].read_bytes())
    served.chat(image, WORDS[0])
    misses = served.metric("cxrjax_image_cache_misses_total")
    served.chat(image, WORDS[1])
    assert served.metric("cxrjax_image_cache_misses_total") == misses
    assert served.ask("POST", "/v1/chat/completions", chat(image, "?"), TOKEN[::-1])[0] == 200
    assert served.metric("cxrjax_image_cache_misses_total") == misses + 1


def test_a_client_that_leaves_costs_no_more(served):
    body = json.dumps({"image": GOOD, "questions": ["Where is the right lung?"] * 40}).encode()
    head = (
        f"POST /v1/ground HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as leaving:
        leaving.sendall(head + body)
        time.sleep(0.15)
    deadline = time.monotonic() + 60
    while 'ending="cancelled"' not in served.ask("GET", "/metrics")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while served.metric("cxrjax_batch") + served.metric("cxrjax_queue"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nonsense_on_the_wire_ends_nothing(served):
    for sent in random_requests(7, 30, TOKEN):
        ask_raw(served.port, sent, seconds=0.3)
    told = ask_raw(served.port, b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert status_of(told) == 400
    assert served.ask("GET", "/ready", token=None)[0] == 200


def test_the_official_client_works(served, predicted):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=TOKEN)
    body = chat(GOOD, WORDS[0], seed=1)
    told = client.chat.completions.create(**body)
    assert told.choices[0].message.content == predicted[0, 0]["text"]
    assert told.choices[0].grounding["boxes"] == predicted[0, 0]["boxes"]
    pieces = client.chat.completions.create(**body, stream=True)
    text = "".join(one.choices[0].delta.content or "" for one in pieces)
    assert text == predicted[0, 0]["text"]
    assert [one.id for one in client.models.list()] == ["real_base"]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**body, "model": "other"})
    logged = client.chat.completions.create(**body, logprobs=True, top_logprobs=2)
    assert len(logged.choices[0].logprobs.content[0].top_logprobs) == 2
    with pytest.raises(openai.BadRequestError, match="2 images: this model is asked about 1"):
        client.chat.completions.create(**chat([GOOD, GOOD], "x"))


class Lung(pydantic.BaseModel):
    bbox: list[float]
    label: str | None
    confidence: float


class Lungs(pydantic.BaseModel):
    present: bool
    findings: Annotated[list[Lung], pydantic.Field(min_length=1, max_length=1)]


def test_the_official_client_parses_boxes_by_its_own_schema(served, predicted):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=TOKEN)
    told = client.chat.completions.parse(**chat(GOOD, WORDS[0]), response_format=Lungs)
    (lung,) = told.choices[0].message.parsed.findings
    line = predicted[0, 0]
    assert lung.bbox == line["boxes"][0] and lung.confidence == pytest.approx(line["box_scores"][0])
    # What says nothing of a place by itself is held to one.
    told = client.chat.completions.parse(**chat(GOOD, WORDS[2]), response_format=Lungs)
    assert told.choices[0].message.parsed.present
    image = {"type": "input_image", "image_url": GOOD, "detail": "auto"}
    asked = [{"role": "user", "content": [image, {"type": "input_text", "text": WORDS[0]}]}]
    parsed = client.responses.parse(model="real_base", input=asked, text_format=Lungs)
    assert parsed.output_parsed.findings[0].bbox == line["boxes"][0]


def test_the_official_client_has_responses(served, predicted):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=TOKEN)
    image = {"type": "input_image", "image_url": GOOD, "detail": "auto"}
    content = [image, {"type": "input_text", "text": WORDS[0]}]
    asked = {"model": "real_base", "input": [{"role": "user", "content": content}]}
    line = predicted[0, 0]
    told = client.responses.create(**asked, include=["message.output_text.logprobs"])
    assert told.output_text == line["text"] and told.status == "completed"
    assert told.output[0].grounding["boxes"] == line["boxes"]
    assert "".join(one.token for one in told.output[0].content[0].logprobs) == line["text"]
    short = client.responses.create(**asked, max_output_tokens=3)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert short.usage.output_tokens == 3
    longer = client.responses.create(**asked, instructions="Be brief.")
    assert longer.usage.input_tokens > told.usage.input_tokens
    with client.responses.stream(**asked) as stream:
        kinds = [(event.type, event.sequence_number) for event in stream]
        final = stream.get_final_response()
    assert final.output_text == line["text"] and len(kinds) > 8
    assert kinds[0] == ("response.created", 0) and kinds[-1][0] == "response.completed"
    earlier = {"role": "assistant", "content": [{"type": "output_text", "text": "Here."}]}
    more = [*asked["input"], earlier, {"role": "user", "content": "And?"}]
    assert client.responses.create(model="real_base", input=more).usage.input_tokens > 5
    for wrong, says in data(__file__)["the_official_client_has_responses"]:
        with pytest.raises(openai.BadRequestError, match=says):
            client.responses.create(**{**asked, **wrong})


def test_the_runner_of_the_project_works(served, predicted, tmp_path, monkeypatch):
    monkeypatch.setenv("CXRJAX_LM_API_KEY", TOKEN)
    write_records(tmp_path / "q.jsonl", [record(0, place) for place in range(3)])
    predict.main(
        ["--runner=openai", f"--base_url=http://127.0.0.1:{served.port}/v1", "--model=real_base"]
        + ["--system=paligemma", f"--questions={tmp_path / 'q.jsonl'}", "--wording=plain"]
        + [f"--out={tmp_path / 'out.jsonl'}", f"--image_root={RADIOGRAPHS[0].parent}"]
        + ["--allow_sending", "--logprobs"]
    )
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["parse"] for line in lines] == ["ok"] * len(WORDS)
    # The runner writes the picture as a JPEG of its own.
    np.testing.assert_allclose(lines[0]["boxes"], predicted[0, 0]["boxes"], atol=0.03)


def test_margins_are_of_this_model_asked_in_this_way(predicted_folder):
    flags = ServeFlags(checkpoint=BASE, cover=0.5)
    margins = run.margins_of(flags, predicted_folder)
    assert margins.cover == 0.5 and margins.scaled and margins.margin > 0
    with pytest.raises(UserError, match="boxes"):
        run.margins_of(dataclasses.replace(flags, boxes="greedy"), predicted_folder)


@pytest.mark.parametrize(
    "words",
    ["--token=short", "--token_file=FILE", "--host=0.0.0.0", "--mesh=data=2", "--mesh=tensor=99"]
    + ["--adapter=x", "--adapter=x=a --adapter=x=b"],
)
def test_flags_that_do_not_go(words, tmp_path):
    file = tmp_path / "tokens"
    file.write_text("# nothing\n")
    words = words.replace("FILE", str(file)).split()
    with pytest.raises(UserError):
        serve.main([f"--checkpoint={BASE}", "--port=0", *words])
