"""`predict --runner=openai` against a server on this machine: what is sent, what is made of it."""

import base64
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import PIL.Image
import pytest

from cxrjax.commands.predict import main
from cxrjax.errors import UserError
from cxrjax.evaluation.run_record import side_file
from cxrjax.evaluation.systems.stand_in_images import CHANGES
from cxrjax.records import EarlierImage, QARecord, Turn, read_records, write_records
from tests.evaluation.systems.conftest import CASES


@pytest.fixture
def predict(chat, tmp_path, questions):
    """`predict(script, *flags, file=..., out=...)` -> the server and the predictions file."""

    def run(script, *flags, file=None, out="p.jsonl", delay=0.0):
        out = tmp_path / out
        if out.with_suffix(".answers.jsonl").exists():
            gc.collect()  # an earlier run of this process may still hold it
        with chat.Server(script, delay=delay) as server:
            where = [f"--questions={file or questions()}", f"--out={out}"]
            main(["--runner=openai", f"--base_url={server.url}", "--model=m", *where, *flags])
        return server, out

    return run


def _question(body):
    """The text of the last turn."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def _picture(image):
    """The picture in a part of a message."""
    return PIL.Image.open(io.BytesIO(base64.b64decode(image["image_url"]["url"].split(",", 1)[1])))


def _say(chat, *answers):
    """These answers in turn of the questions' numbers, the last one for the rest."""

    def script(body, number):
        asked = int(re.search(r"number ([0-9]+)", _question(body))[1])
        answer = answers[min(asked, len(answers) - 1)]
        return chat.Text(answer) if isinstance(answer, str) else answer

    return script


def test_images_go_along_and_boxes_come_back(chat, predict, lines):
    answer = "The opacity is at [0.10, 0.20, 0.50, 0.60]."
    server, out = predict(_say(chat, answer), "--system=gpt_4o_mini", "--logprobs")
    for body in server.bodies:
        image, text = body["messages"][0]["content"]
        assert image["image_url"]["url"].startswith("data:image/jpeg;base64,")
        assert _picture(image).size == (60, 40)
        assert "[x_min, y_min, x_max, y_max]" in text["text"]
        assert body["temperature"] == 0.0 and body["max_completion_tokens"] == 1000
        assert "response_format" not in body and "seed" not in body
    assert len(server.bodies) == 4
    for line in lines(out).values():
        assert line["text"] == answer and line["parse"] == "ok"
        assert line["boxes"] == [pytest.approx([0.1, 0.2, 0.5, 0.6], abs=1e-6)]
        assert line["labels"] == ["opacity"]
    note = json.loads(out.with_suffix(".asked.json").read_text())
    assert note["account"]["requests"] == 4 and note["parse"] == {"ok": 4}


def test_both_images_of_a_question_on_change_go_along(chat, predict, questions):
    file = questions()
    records = list(read_records(file))
    own = records[0]
    earlier = EarlierImage(image_id="before", image_path=own.image_path)
    compared = own.model_copy(update={"earlier": earlier})
    write_records(file, [compared, *records[1:]])
    server, _ = predict(_say(chat, "No."), "--system=gpt_4o_mini", file=file)
    shown = [body["messages"][0]["content"] for body in server.bodies]
    (pair,) = [content for content in shown if len(content) == 3]
    assert [part["type"] for part in pair] == ["image_url", "image_url", "text"]
    assert "the second is of an earlier study" in pair[2]["text"]
    assert all(len(content) == 2 for content in shown if content is not pair)


@pytest.mark.parametrize(
    ("last", "told"), [(".", (-0.25, -3.0)), (None, (-0.25, -3.0)), ("else", (None, None))]
)
def test_the_decision_is_told_from_the_coordinates(chat, predict, lines, last, told):
    """Where the tokens make the text, with the one that ends it or without."""
    texts = ["The", " opacity", " is at ", "[0.10, 0.20", ", 0.50, 0.60]", "."]
    tokens = (*texts[:-1], last) if last else (*texts, "<end>")
    answer = chat.Text(
        "".join(texts),
        logprobs=(-0.125, -0.125, 0.0, -2.0, -1.0, -0.5, -0.5)[: len(tokens)],
        tokens=tokens,
    )
    _, out = predict(_say(chat, answer), "--system=gpt_4o_mini", "--logprobs")
    for _ in range(2):  # the second time of the cache
        for line in lines(out).values():
            assert (line["decision_logprob"], line["coordinate_logprob"]) == told
            assert line["answer_logprob"] == pytest.approx(sum(answer.logprobs))


def test_failures_are_lines_with_a_category(chat, predict, lines, questions, monkeypatch):
    file = questions(count=6)
    (file.parent.parent / "images" / "image2.png").write_bytes(b"")
    declined = chat.Text(None, refusal="I cannot look at patients.")
    cut = chat.Text("The opacity is at [0.1", finish_reason="length")
    said = _say(chat, declined, cut, chat.Status(400, "too large"), "at [0.1, 0.2]", "-")
    _, out = predict(said, "--codec=radvlm", file=file)
    found = lines(out)
    faults = ["refusal", "truncated", "http_error", "wrong_arity", *["unreadable_image"] * 2]
    assert [found[f"q{number}"]["parse"] for number in range(len(found))] == faults
    assert found["q1"]["text"] == "The opacity is at [0.1"
    assert all(line["boxes"] == [] for line in found.values())
    note = json.loads(out.with_suffix(".asked.json").read_text())
    assert note["parse"]["unreadable_image"] == 2


def test_a_second_run_asks_again_only_what_failed(chat, predict, lines):
    server, out = predict(_say(chat, "a", chat.Status(400)))
    assert len(server.bodies) == 4
    server, out = predict(_say(chat, "never", "b"))
    assert sorted(_question(body)[-2] for body in server.bodies) == ["1", "2", "3"]
    assert [line["text"] for line in lines(out).values()] == ["a", "b", "b", "b"]


def test_boxes_of_a_padded_square(chat, predict, lines):
    """MedGemma 1.5 sees a square; 60 x 40 pixels have 10 rows of padding above and below."""
    answer = (
        "<unused94>it is bright<unused95>Final Answer: "
        '```json[{"box_2d": [250, 0, 750, 500], "label": "opacity"}]```'
    )
    server, out = predict(chat.Text(answer), "--system=medgemma_1.5", "--wording=locate")
    image, text = server.bodies[0]["messages"][0]["content"]
    picture = _picture(image)
    assert picture.size == (60, 60)
    assert picture.getpixel((30, 2)) < 10 and picture.getpixel((30, 57)) < 10
    assert "Where is the opacity?" in text["text"] and "{finding}" not in text["text"]
    line = lines(out)["q0"]
    assert line["boxes"] == [pytest.approx([0, 0.125, 0.5, 0.875])]
    assert line["text"].startswith("```json") and line["written"] == answer


def test_questions_that_fit_no_wording_and_those_with_options(chat, predict, lines, questions):
    file = questions(count=2, variables=None)
    server, out = predict(_say(chat, "-"), "--system=chexagent", "--wording=locate", file=file)
    assert not server.bodies
    assert {line["parse"] for line in lines(out).values()} == {"not_asked"}
    file = questions(count=1, choices=["A: one 0", "B: two"], type_prompt="Input a question.")
    server, _ = predict(_say(chat, "A"), "--wording=typed", file=file)
    assert _question(server.bodies[0]) == (
        "Input a question.\nWhere is the opacity, number 0? <choices>: [A: one 0, B: two]"
    )


def test_a_dialogue_is_asked_in_turns(chat, predict, lines, tmp_path, questions):
    first = QARecord.model_validate_json(questions(count=1).read_text().splitlines()[0])
    turn = Turn(question_id="q0", question=first.question)
    update = {"question_id": "q1", "question": "And number 1?", "history": [turn]}
    file = tmp_path / "data" / "questions" / "dialogue.jsonl"
    write_records(file, [first, first.model_copy(update=update)])
    server, out = predict(_say(chat, "findings", "impression"), file=file)
    later = server.bodies[1]["messages"]
    assert [message["role"] for message in later] == ["user", "assistant", "user"]
    assert later[0]["content"][0]["type"] == "image_url"
    assert later[1]["content"] == "findings" and later[2]["content"] == "And number 1?"
    assert lines(out)["q1"]["text"] == "impression"
    note = json.loads(out.with_suffix(".asked.json").read_text())
    assert note["parse"] == {"ok": 2}


def test_sampling_takes_three_seeds_and_prints_the_spread(chat, predict, lines, capsys):
    def said(body, number):
        return chat.Text("yes" if "number 0" in _question(body) else f"no {body['seed']}")

    server, out = predict(said, "--temperature=0.7", "--seeds=0,1,2")
    assert len(server.bodies) == 12
    for seed in (0, 1, 2):
        texts = [line["text"] for line in lines(out.with_suffix(f".seed{seed}.jsonl")).values()]
        assert texts == ["yes", *[f"no {seed}"] * 3]
    printed = capsys.readouterr().out
    assert "3 runs of 4 questions: 25.0% answered in the same words by all" in printed
    assert not predict(said, "--temperature=0.7", "--seeds=0,1,2")[0].bodies
    server, _ = predict(said, "--temperature=0.7", "--seeds=0,1,3")
    assert len(server.bodies) == 4


def test_unusable_flags_and_seeds_and_images_sent_untold(
    predict, subtests, capsys, tmp_path, questions
):
    for flags, message in CASES["flags_that_do_not_go_together"]:
        with subtests.test(message), pytest.raises(UserError, match=message):
            predict(lambda body, number: pytest.fail("asked"), *flags)
    for seeds in ("0,1", "0,0,1", "a,b,c", "-1,0,1"):
        with pytest.raises(SystemExit) as end:
            predict(None, "--temperature=1", f"--seeds={seeds}")
        assert end.value.code == 2 and "--seeds" in capsys.readouterr().err
    where = [f"--questions={questions()}", f"--out={tmp_path / 'p.jsonl'}"]
    with pytest.raises(UserError, match=r"pixels of images .4 in all.*--allow_sending"):
        main(["--runner=openai", "--base_url=http://model.invalid/v1", "--model=m", *where])
    for flag in ("--system=gemini", "--codec=gemex", "--base_url=http://h/v1"):
        with pytest.raises(UserError, match="is about other people's models"):
            main(["--runner=random", *where, flag])


def test_a_dry_run_and_the_table_of_systems_send_nothing(chat, predict, capsys):
    server, out = predict(_say(chat, "-"), "--dry_run", "--price_in=1", "--price_out=2")
    assert not server.bodies and not out.exists()
    assert "4 requests to send with 4 images" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["--list_systems"])
    assert end.value.code == 0
    assert "MiniGPT-Med" in capsys.readouterr().out


@pytest.mark.slow  # two processes
def test_killed_and_started_again_it_asks_nothing_twice(chat, tmp_path, questions, lines):
    file = questions(count=30, per_image=3)
    answered = []

    def said(body, number):
        answered.append(_question(body))
        return chat.Text(f"answer to {_question(body)}")

    out = tmp_path / "p.jsonl"
    with chat.Server(said, delay=0.05) as server:
        command = [sys.executable, "-m", "cxrjax.predict", "--runner=openai", "--concurrency=1"]
        command += [f"--base_url={server.url}", "--model=m", f"--questions={file}", f"--out={out}"]
        killed = subprocess.Popen(command, env=os.environ, start_new_session=True)
        deadline = time.monotonic() + 120
        while len(answered) < 10:
            assert time.monotonic() < deadline and killed.poll() is None
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        kept = out.with_suffix(".answers.jsonl").read_bytes().count(b"\n")
        assert not out.exists() and 9 <= kept < 30
        subprocess.run(command, env=os.environ, check=True, timeout=120)
    assert len(lines(out)) == 30
    # At most the one request that was under way when the process died was sent again.
    assert 30 <= len(answered) <= 31 and len(set(answered)) == 30
    for line in lines(out).values():
        assert line["text"].startswith("answer to Where is the opacity")


def test_other_images_than_the_questions_own(chat, predict, subtests):
    def shown(name, *flags):
        server, out = predict(_say(chat, "-"), "--concurrency=1", *flags, out=f"{name}.jsonl")
        bodies = (body["messages"][0]["content"] for body in server.bodies)
        return [content[0]["image_url"]["url"] for content in bodies], out

    own, _ = shown("own")
    for kind in ("blind", "shuffled", "noise", "blurred", "masked"):
        with subtests.test(kind):
            urls, out = shown(kind, f"--image={kind}")
            assert all(a != b for a, b in zip(own, urls, strict=True))
            assert (set(own) == set(urls)) == (kind == "shuffled")
            assert json.loads(out.with_suffix(".asked.json").read_text())["image"] == kind
            settings = json.loads(side_file(out).read_text())["settings"]
            assert settings.items() >= {"image": kind, **CHANGES.get(kind, {})}.items()


def test_the_random_row_takes_seeds_too(tmp_path, questions, capsys, lines):
    file = questions(count=40, question="Is there an opacity?", question_type="Is_there")
    out = tmp_path / "p.jsonl"
    main(["--runner=random", f"--questions={file}", f"--out={out}", "--seeds=0,1,2"])
    files = (lines(out.with_suffix(f".seed{seed}.jsonl")) for seed in (0, 1, 2))
    texts = [[line["text"] for line in found.values()] for found in files]
    assert texts[0] != texts[1] != texts[2]
    assert "3 runs of 40 questions" in capsys.readouterr().out
