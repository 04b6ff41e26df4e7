"""Answers that are text of any form: what is sent, what comes back, what is kept."""

import dataclasses

import pytest

from cxrjax.language_model import EncodedImage, Message, NoAnswer, Request

ASKED = Request(
    (Message("user", (EncodedImage(lambda: b"pixels", "image/png"), "What is it?")),), None
)


def test_text_is_asked_for_without_a_form_and_kept(chat, client):
    with chat.Server(chat.Text("Pleural effusion.")) as server:
        there = client(server, temperature=0.0)
        assert there.complete(ASKED).text == "Pleural effusion."
        assert there.complete(ASKED).text == "Pleural effusion."
    (body,) = server.bodies
    assert "response_format" not in body and "seed" not in body and "logprobs" not in body
    assert body["temperature"] == 0.0
    assert [message["role"] for message in body["messages"]] == ["user"]
    image, text = body["messages"][0]["content"]
    assert image["image_url"]["url"] == "data:image/png;base64,cGl4ZWxz"
    assert text["text"] == "What is it?"


def test_seeds_are_other_requests(chat, client):
    with chat.Server(lambda body, number: chat.Text(f"sample {body['seed']}")) as server:
        there = client(server, temperature=1.0)
        asked = [dataclasses.replace(ASKED, seed=seed) for seed in (0, 1, 0)]
        texts = [there.complete(request).text for request in asked]
    assert texts == ["sample 0", "sample 1", "sample 0"]
    assert len(server.bodies) == 2


def test_log_probabilities_are_summed_and_kept(chat, client):
    answer = chat.Text("no", logprobs=(-0.5, -0.25))
    with chat.Server(answer) as server:
        asked = dataclasses.replace(ASKED, logprobs=True)
        assert client(server).complete(asked).logprob == pytest.approx(-0.75)
        assert client(server).complete(asked).logprob == pytest.approx(-0.75)
    assert len(server.bodies) == 1 and server.bodies[0]["logprobs"] is True


def test_a_cut_answer_and_a_refusal_come_back_as_they_are(chat, client):
    cut = chat.Text("The heart is", finish_reason="length")
    declined = chat.Text(None, refusal="I can't.")
    with chat.Server(cut, declined, chat.Status(400)) as server:
        there = client(server)
        assert there.complete(ASKED).finish_reason == "length"
        assert there.complete(dataclasses.replace(ASKED, seed=1)).refusal == "I can't."
        with pytest.raises(NoAnswer, match="http_error"):
            there.complete(dataclasses.replace(ASKED, seed=2))
