"""Vietnamese: denial, doubt, sides and severity, in contrasts and on our own reports' sentences."""

import json
import pathlib
import time
import unicodedata

import pytest

import cxrjax.phantoms
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.radiology_text.vietnamese_mentions import VINDR_VOCABULARY, VietnameseReader

READER = VietnameseReader()
EFFUSION = "tràn dịch màng phổi"


def _read(text):
    return [(m.name, m.negated, m.certainty, m.side, m.severity) for m in READER.read(text)]


def test_vocabulary_is_the_fourteen_classes():
    assert tuple(VINDR_VOCABULARY) == CLASSES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Có {EFFUSION}", (False, "certain", "", "")),
        (f"không có {EFFUSION}", (True, "certain", "", "")),
        (f"Không thấy {EFFUSION} hai bên", (True, "certain", "both", "")),
        (f"Không {EFFUSION}", (True, "certain", "", "")),
        (f"Chưa ghi nhận {EFFUSION}", (True, "certain", "", "")),
        (f"Không có dấu hiệu {EFFUSION}", (True, "certain", "", "")),
        (f"{EFFUSION}: không", (True, "certain", "", "")),
        (f"{EFFUSION} không thấy", (True, "certain", "", "")),
        (f"{EFFUSION} trái", (False, "certain", "left", "")),
        (f"{EFFUSION} bên phải", (False, "certain", "right", "")),
        (f"{EFFUSION} hai bên", (False, "certain", "both", "")),
        (f"{EFFUSION} phải lượng ít", (False, "certain", "right", "small")),
        (f"{EFFUSION} trái lượng nhiều", (False, "certain", "left", "large")),
        (f"{EFFUSION} mức độ vừa", (False, "certain", "", "moderate")),
        (f"Theo dõi {EFFUSION} phải", (False, "uncertain", "right", "")),
        (f"Nghi ngờ {EFFUSION}", (False, "uncertain", "", "")),
        (f"Chưa loại trừ {EFFUSION} trái", (False, "uncertain", "left", "")),
        (f"Không loại trừ {EFFUSION}", (False, "uncertain", "", "")),
        (f"Nhiều khả năng {EFFUSION}", (False, "likely", "", "")),
        (f"{EFFUSION} trái?", (False, "uncertain", "left", "")),
        ("Góc sườn hoành trái tù.", (False, "certain", "left", "")),
        ("Góc sườn hoành hai bên nhọn.", (True, "certain", "both", "")),
        (f"Cần phải chụp lại, {EFFUSION} trái", (False, "certain", "left", "")),
    ],
)
def test_one_finding(text, expected):
    assert _read(text) == [("Pleural effusion", *expected)]


@pytest.mark.parametrize(
    ("text", "present", "absent"),
    [
        (
            "Không thấy tràn dịch, tràn khí màng phổi.",
            [],
            ["Pleural effusion", "Pneumothorax"],
        ),
        ("Không tràn dịch, tràn khí màng phổi", [], ["Pleural effusion", "Pneumothorax"]),
        ("Bóng tim to.", ["Cardiomegaly"], []),
        ("Bóng tim không to.", [], ["Cardiomegaly"]),
        ("Không thấy bóng tim to.", [], ["Cardiomegaly"]),
        ("Bóng tim không bình thường.", [], []),
        (
            "Không có tràn dịch màng phổi, bóng tim to",
            ["Cardiomegaly"],
            ["Pleural effusion"],
        ),
        (
            "Bóng tim không to, tràn dịch màng phổi phải",
            ["Pleural effusion"],
            ["Cardiomegaly"],
        ),
        (
            "Tràn dịch màng phổi phải, không thấy tràn khí",
            ["Pleural effusion"],
            ["Pneumothorax"],
        ),
        ("Không thấy nốt nhưng có đám mờ", ["Lung Opacity"], ["Nodule/Mass"]),
        ("Đám mờ không đồng nhất, bờ không rõ, kèm xẹp phổi", ["Lung Opacity", "Atelectasis"], []),
        ("Có tràn dịch màng phổi không?", [], []),
        ("Tràn khí dưới da. Tràn dịch màng tim.", [], []),
        ("Màng phổi hai bên không dày.", [], ["Pleural thickening"]),
        ("Dày màng phổi phải.", ["Pleural thickening"], []),
    ],
)
def test_reach_of_a_denial(text, present, absent):
    found = READER.read(text)
    assert [m.name for m in found if not m.negated] == present
    assert [m.name for m in found if m.negated] == absent


def test_a_list_shares_its_side():
    assert {m.side for m in READER.read("Phổi phải có đám mờ và nốt")} == {"right"}
    assert {m.side for m in READER.read("Đám mờ và nốt phổi trái")} == {"left"}
    sides = [m.side for m in READER.read("Nốt phổi phải, đám mờ phổi trái")]
    assert sides == ["right", "left"]


def test_decomposed_text_reads_the_same():
    text = f"Không có {EFFUSION} trái"
    assert _read(unicodedata.normalize("NFD", text)) == _read(text)
    (mention,) = READER.read(text)
    assert text[mention.start : mention.end] == EFFUSION


def test_sentences_of_our_reports():
    """Normal sentences deny or are silent; an impression names its class with its side."""
    folder = pathlib.Path(cxrjax.phantoms.__file__).parent
    grammar = json.loads((folder / "grammar_v1.json").read_text(encoding="utf-8"))
    normal = [text for topic in grammar["normal"].values() for text in topic["sentences"]]
    for text in (*normal, *grammar["normal_impression"], *grammar["advice"], *grammar["openings"]):
        assert all(mention.negated for mention in READER.read(text)), text
    read = 0
    for name, texts in grammar["impression"].items():
        for text in texts:
            for side, word in (("left", "trái"), ("right", "phải")):
                place = grammar["zones"]["lower"].format(side=word)
                found = READER.read(text.format(side=word, place=place))
                if text.startswith("Viêm phổi"):
                    continue  # pneumonia is none of the classes
                expected = side if "{" in text else ""
                assert (name, False, expected) in [(m.name, m.negated, m.side) for m in found], text
                read += 1
    assert read >= 40


@pytest.mark.parametrize("text", [f"không có {EFFUSION}, " * 3000, "không " * 20_000])
def test_rambling_is_read_in_time_that_grows_with_its_length(text):
    start = time.process_time()
    READER.read(text)
    assert time.process_time() - start < 30
