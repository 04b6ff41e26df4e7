"""A stage: what a data set gives it, and what it does with answers, failures and permission."""

import json

import pytest

from cxrjax.errors import UserError
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.request import EncodedImage, NoAnswer
from cxrjax.language_model.settings import Settings
from cxrjax.language_model.stage import Stage, Strict, make_request

PROMPT = {
    "system": "\nName a city.\n",
    "demonstrations": [{"user": "Japan?\n", "assistant": '{"city": "Kobe"}'}],
}


class City(Strict):
    city: str


class Cities(Stage[str, City]):
    """Cities of countries: not "Nowhere", and the shorter the name the better."""

    content = "names of countries"

    def __init__(self, client):
        super().__init__(client, "7")

    def request(self, item):
        return make_request(PROMPT, item, City, 10)

    def check(self, item, answer):
        if answer.city == "Nowhere":
            raise ValueError(f"{answer.city} is no city of {item}")

    def shortcoming(self, item, answer):
        return max(len(answer.city) - 4, 0), "Shorter, please."


def _answers(chat, *cities):
    """These cities in turn; None is a refusal."""

    said = [json.dumps({"city": city}) for city in cities]
    refused = chat.Text(None, refusal="no")
    return lambda _, n: refused if cities[n] is None else chat.Text(said[n])


def test_a_prompt_becomes_instruction_demonstrations_and_the_item(chat, client):
    with chat.Server(_answers(chat, "Hue")) as there:
        stage = Cities(client(there))
        assert stage.ask("Vietnam?").city == "Hue"
    assert (stage.name, stage.version) == ("m", "prompt 7")
    turns = [f"{turn['role']}: {turn['content']}" for turn in there.bodies[0]["messages"]]
    example = ["user: Japan?", 'assistant: {"city": "Kobe"}']
    assert turns == ["system: Name a city.", *example, "user: Vietnam?"]


@pytest.mark.parametrize(
    ("second", "taken"), [("Hue", "Hue"), ("Ho Chi Minh City", "Hanoi"), (None, "Hanoi")]
)
def test_the_better_of_two_answers_is_taken(chat, client, second, taken):
    with chat.Server(_answers(chat, "Hanoi", second)) as there:
        assert Cities(client(there)).ask("Vietnam?").city == taken
    assert there.bodies[1]["messages"][-1]["content"] == "Shorter, please."


def test_failures_stand_at_their_items_and_the_check_knows_the_item(chat, client):
    with chat.Server(_answers(chat, "Hue", None, "Nowhere", "Bern")) as there:
        stage = Cities(client(there, concurrency=1))
        found = list(stage.answers(iter(["Vietnam?", "Japan?", "Swiss?"])))
    assert [item for item, _ in found] == ["Vietnam?", "Japan?", "Swiss?"]
    assert [getattr(one, "city", None) for _, one in found] == ["Hue", None, "Bern"]
    assert isinstance(found[1][1], NoAnswer) and found[1][1].category == "refusal"
    assert "Nowhere is no city of Swiss?" in there.bodies[3]["messages"][-1]["content"]


def test_nothing_is_sent_elsewhere_unasked(tmp_path):
    away = Client(Settings("https://model.invalid/v1", "m"), AnswerCache(tmp_path / "a.jsonl"))
    with pytest.raises(UserError, match=r"2 requests with names of countries to model\.invalid"):
        list(Cities(away).answers(iter(["Vietnam?", "Japan?"])))
    assert away.account.to_json()["requests"] == 0


def test_an_estimate_passes_over_images_that_cannot_be_read(chat, client):
    def unreadable():
        raise NoAnswer("unreadable_image", "cut short")

    class Pictured(Cities):
        def request(self, item):
            image = EncodedImage(unreadable if item == "broken" else lambda: b"1", "image/png")
            return make_request(PROMPT, (image, item), City, 10)

    with chat.Server(_answers(chat, "Hue")) as there:
        stage = Pictured(client(there))
        assert stage.ask("whole").city == "Hue"
        estimate = stage.estimate(["whole", "broken", "another"])
    assert (estimate.from_cache, estimate.requests) == (1, 1)
