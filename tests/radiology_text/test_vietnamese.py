"""Vietnamese: findings, denial, doubt, time, sides and places, on labelled and on own sentences."""

import json
import pathlib
import random
import time
import unicodedata

import pytest

import cxrjax.simulation
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.mentions import VINDR_CLASSES
from cxrjax.radiology_text.reading import open_reader
from cxrjax.radiology_text.vietnamese_words import load_words
from tests.radiology_text.conftest import CASES

READER = open_reader("vi")
SENTENCES = pathlib.Path(__file__).parent / "sentences"
EFFUSION = "tràn dịch màng phổi"


def _read(text):
    return [
        (one.finding, one.status, one.certainty, one.time, one.side or "-")
        for one in READER.read(text).assertions
    ]


def _rows(name):
    lines = (SENTENCES / name).read_text(encoding="utf-8").splitlines()
    return [(line + "\t").split("\t") for line in lines if line and not line.startswith("#")]


def test_a_sentence_is_read_as_labelled(subtests):
    for name, _, text, labels, *_ in _rows("sentences_vi.tsv"):
        with subtests.test(name):
            said = {tuple(label.split("|")[:5]) for label in filter(None, labels.split(" ; "))}
            assert {*_read(text)} == said


def test_an_answer_is_read_as_labelled(subtests):
    for name, _, question, answer, outcome, *_ in _rows("answers_vi.tsv"):
        with subtests.test(name):
            assert READER.read(answer.replace("\\n", "\n"), question).outcome == outcome


def test_yes_to_a_question_of_normality_means_normal():
    for question in ("Phổi có bình thường không?", "Phim này có bình thường không?"):
        for outcome, answers in {
            "yes": ("Bình thường.", "Vâng, hai phổi bình thường.", "Không thấy bất thường.", "Có."),
            "no": ("Không.", "Có đám mờ ở đáy phổi phải.", "Bất thường.", "Không bình thường."),
        }.items():
            read = {answer: READER.read(answer, question).outcome for answer in answers}
            assert read == dict.fromkeys(answers, outcome), question
    asked = "Tràn dịch có ở bên trái không?"
    for answer in ("Bên phải.", "Chỉ ở bên phải."):
        assert READER.read(answer, asked).outcome == "off_topic"


def test_names_are_those_of_the_definitions():
    definitions = load_definitions()
    words = load_words(False)
    names = {name for _, names in words.findings.items() for name in names}
    for _, (organ, _well) in words.organs.items():
        names |= {*organ.normal, *(name for _, name in organ.states.items())}
        assert {*organ.regions} <= {*definitions.regions, *definitions.sides}
    assert names <= definitions.findings.keys()
    numbered = {f"left {name}" for _, name in words.regions.items() if name.endswith(" rib")}
    assert numbered <= definitions.regions.keys()
    plain = {name for _, name in words.regions.items() if not name.endswith(" rib")}
    assert plain <= definitions.regions.keys() | definitions.sides.keys()
    assert {finding for findings in VINDR_CLASSES.values() for finding in findings} <= names


def test_one_finding(subtests):
    for text, expected in CASES["one_finding"]:
        with subtests.test(text):
            (one,) = READER.read(text).assertions
            assert one.finding == "pleural effusion"
            found = (one.status, one.certainty, one.side or "-", one.severity or "-")
            assert " ".join(found) == expected


def test_reach_of_a_denial(subtests):
    for text, present, absent in CASES["reach_of_a_denial"]:
        with subtests.test(text):
            found = READER.read(text).assertions
            assert [one.finding for one in found if one.status == "present"] == present
            assert [one.finding for one in found if one.status == "absent"] == absent


def test_places(subtests):
    for text, expected in CASES["places"]:
        with subtests.test(text):
            found = READER.read(text).assertions
            assert [[one.side or "-", [*one.regions]] for one in found] == expected


def test_sizes_distances_and_counts():
    [one] = READER.read("Hai nốt mờ đỉnh phổi trái, kích thước 4mm và 1,2 x 0,8 cm.").assertions
    assert (one.count, one.sizes) == (2, ("4 mm", "1.2 x 0.8 cm"))
    [one] = READER.read("Đầu ống nội khí quản cách carina khoảng 2,5 cm").assertions
    assert (one.finding, one.distances) == ("endotracheal tube", ("2.5 cm from the carina",))
    assert one.regions == () and one.sizes == ()


def test_an_explanation_names_what_it_explains():
    opacity, pneumonia = READER.read("Đám mờ đáy phổi trái, nghĩ đến viêm phổi").assertions
    assert (opacity.source, pneumonia.source) == (None, 0)
    assert pneumonia.regions == opacity.regions == ("left lung base",)


def test_spellings_read_the_same():
    text = f"Không có {EFFUSION} trái, vôi hóa thùy trên phổi phải"
    assert _read(unicodedata.normalize("NFD", text)) == _read(text)
    assert _read(text.replace("hóa", "hoá").replace("thùy", "thuỳ")) == _read(text)
    composed = READER.read(text).assertions
    decomposed = unicodedata.normalize("NFD", text)
    for one, other in zip(composed, READER.read(decomposed).assertions, strict=True):
        words = decomposed[slice(*other.span)]
        assert unicodedata.normalize("NFC", words) == text[slice(*one.span)]
    assert [text[slice(*one.span)] for one in composed] == [EFFUSION, "vôi hóa"]


def test_sentences_of_our_reports():
    """Normal sentences deny or are silent; an impression names its class with its side."""
    folder = pathlib.Path(cxrjax.simulation.__file__).parent
    grammar = json.loads((folder / "vix_ray_grammar.json").read_text(encoding="utf-8"))
    normal = [text for topic in grammar["normal"].values() for text in topic["sentences"]]
    for text in (*normal, *grammar["normal_impression"], *grammar["openings"]):
        assert all(one.status == "absent" for one in READER.read(text).assertions), text
    for text in grammar["advice"]:
        assert not READER.read(text).assertions, text
    known = {*CLASSES} - {"Other lesion"}
    for name, texts in grammar["impression"].items():
        for text in texts:
            for side, word in (("left", "trái"), ("right", "phải")):
                place = grammar["zones"]["lower"].format(side=word)
                found = READER.read(text.format(side=word, place=place)).assertions
                expected = side if "{" in text else None
                assert (True, expected) in [(one.status == "present", one.side) for one in found]
                if name in known and "viêm phổi" not in text:
                    # A band of scarring is a class of its own in the definitions.
                    expected = {*VINDR_CLASSES[name]} | ({"scarring"} if "xơ" in text else set())
                    assert {one.finding for one in found} & expected, text


def test_random_words_raise_nothing():
    words = "không chưa thấy có tràn dịch khí màng phổi phải trái hai bên , và hoặc : ( ) ?"
    words += " bóng tim to rốn góc sườn hoành tù nhọn đáy thùy trên dưới nghi loại trừ khả năng"
    words += " ít cao thấp đã hết tăng 3 cm cách carina xương 5 bình thường ngoài nhưng à nhầm"
    random_words = random.Random(7)
    for _ in range(3_000):
        text = " ".join(random_words.choices(words.split(), k=random_words.randint(1, 14)))
        text = unicodedata.normalize(random_words.choice(("NFC", "NFD")), text)
        answer = READER.read(text, f"Có {EFFUSION} không?")
        assert answer.outcome is not None
        for one in (*answer.assertions, *answer.unsaid):
            assert 0 <= one.span[0] < one.span[1] <= len(text)
    assert [one.reason for one in READER.read(f"Không đề cập {EFFUSION}.").unsaid] == [
        "said nothing"
    ]


@pytest.mark.parametrize(
    "text",
    [f"không có {EFFUSION}, " * 3000, "không " * 20_000, "phải " * 40_000, "e\u0301" * 100_000,
     "à nhầm trái " * 15_000, "hai phổi mờ " * 17_000, "3 cm trên carina " * 12_000],
)  # fmt: skip
def test_rambling_is_read_in_time_that_grows_with_its_length(text):
    start = time.process_time()
    READER.read(text, f"Có {EFFUSION} không?")
    assert time.process_time() - start < 4
