"""Vietnamese: findings, denial, doubt, time, sides and places, on labelled and on own sentences."""

import json
import pathlib
import random
import time
import unicodedata

import pytest

import cxrjax.phantoms
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.mentions import VINDR_CLASSES
from cxrjax.radiology_text.vietnamese import VietnameseReader
from cxrjax.radiology_text.vietnamese_words import load_words

READER = VietnameseReader()
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


@pytest.mark.parametrize("row", _rows("sentences_vi.tsv"), ids=lambda row: row[0])
def test_a_sentence_is_read_as_labelled(row):
    labels = [tuple(label.split("|")[:5]) for label in filter(None, row[3].split(" ; "))]
    assert sorted({*_read(row[2])}) == sorted({*labels})


@pytest.mark.parametrize("row", _rows("answers_vi.tsv"), ids=lambda row: row[0])
def test_an_answer_is_read_as_labelled(row):
    assert READER.read(row[3].replace("\\n", "\n"), row[2]).outcome == row[4]


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Có {EFFUSION}", ("present", "certain", None, None)),
        (f"Không thấy {EFFUSION} hai bên", ("absent", "certain", "bilateral", None)),
        (f"Không {EFFUSION}", ("absent", "certain", None, None)),
        (f"Chưa ghi nhận {EFFUSION}", ("absent", "certain", None, None)),
        (f"{EFFUSION}: không", ("absent", "certain", None, None)),
        (f"{EFFUSION} (-)", ("absent", "certain", None, None)),
        (f"{EFFUSION} không thấy", ("absent", "certain", None, None)),
        (f"Không thấy {EFFUSION} lượng nhiều", ("absent", "likely", None, "large")),
        (f"{EFFUSION} bên phải", ("present", "certain", "right", None)),
        (f"{EFFUSION} phải lượng ít", ("present", "certain", "right", "small")),
        ("TDMP (T) mức độ vừa", ("present", "certain", "left", "moderate")),
        (f"Theo dõi {EFFUSION} phải", ("present", "likely", "right", None)),
        (f"Nghi ngờ {EFFUSION}", ("present", "likely", None, None)),
        (f"Có thể {EFFUSION}", ("uncertain", "possible", None, None)),
        (f"Chưa loại trừ {EFFUSION} trái", ("uncertain", "possible", "left", None)),
        (f"Ít nghĩ đến {EFFUSION}", ("uncertain", "unlikely", None, None)),
        (f"Khả năng {EFFUSION} thấp", ("uncertain", "unlikely", None, None)),
        (f"{EFFUSION} trái?", ("uncertain", "possible", "left", None)),
        ("Góc sườn hoành trái tù.", ("present", "certain", "left", None)),
        ("Góc sườn hoành hai bên nhọn.", ("absent", "certain", "bilateral", None)),
        (f"Cần phải chụp lại, {EFFUSION} trái", ("present", "certain", "left", None)),
        (f"{EFFUSION} trái, à nhầm, phải", ("present", "certain", "right", None)),
        ("Khong thay tran dich mang phoi trai", ("absent", "certain", "left", None)),
        ("ko thấy tràn dich màng phỗi", ("absent", "certain", None, None)),
        (f"Chưa hết {EFFUSION}", ("present", "certain", None, None)),
        (f"Chưa thể khẳng định có {EFFUSION}", ("uncertain", "possible", None, None)),
        (f"Không thấy rõ {EFFUSION} nhưng không loại trừ", ("uncertain", "possible", None, None)),
        (f"{EFFUSION} phải nhiều hơn trái", ("present", "certain", "bilateral", None)),
    ],
)
def test_one_finding(text, expected):
    (one,) = READER.read(text).assertions
    assert one.finding == "pleural effusion"
    assert (one.status, one.certainty, one.side, one.severity) == expected


@pytest.mark.parametrize(
    ("text", "present", "absent"),
    [
        ("Không tràn dịch, tràn khí màng phổi", [], ["pleural effusion", "pneumothorax"]),
        ("Không thấy bóng tim to.", [], ["cardiomegaly"]),
        ("Bóng tim không bình thường.", [], []),
        ("Không có tràn dịch, bóng tim to", ["cardiomegaly"], ["pleural effusion"]),
        ("Không thấy nốt nhưng có đám mờ", ["lung opacity"], ["lung nodule"]),
        (
            "Không tràn dịch, đáy phổi phải có dải xẹp",
            ["atelectasis"],
            ["pleural effusion"],
        ),
        (
            "Ngoài bóng tim to ra không thấy bất thường khác.",
            ["cardiomegaly"],
            ["cardiopulmonary abnormality"],
        ),
        (
            "Không thấy bất thường nào khác ngoài xơ phổi.",
            ["pulmonary fibrosis"],
            ["cardiopulmonary abnormality"],
        ),
        (
            "Đám mờ không đồng nhất, bờ không rõ, kèm xẹp phổi",
            ["lung opacity", "atelectasis"],
            [],
        ),
        (
            "Tràn khí dưới da. Tràn dịch màng tim.",
            ["subcutaneous emphysema", "pericardial effusion"],
            [],
        ),
        ("Màng phổi hai bên không dày.", [], ["pleural thickening"]),
        ("So với phim cũ, tìm thấy khối u phổi", ["lung mass"], []),
        ("Chẩn đoán nghĩ đến viêm phổi hơn là lao", ["pneumonia"], ["tuberculosis"]),
    ],
)
def test_reach_of_a_denial(text, present, absent):
    found = READER.read(text).assertions
    assert [one.finding for one in found if one.status == "present"] == present
    assert [one.finding for one in found if one.status == "absent"] == absent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Đám mờ và nốt phổi trái.", [("left", ("left lung",))] * 2),
        ("Phổi phải có đám mờ và nốt", [("right", ("right lung",))] * 2),
        (
            "Nốt phổi phải, đám mờ phổi trái",
            [("right", ("right lung",)), ("left", ("left lung",))],
        ),
        (
            "Đông đặc thùy trên, giữa và dưới phổi phải.",
            [("right", ("right upper lobe", "right middle lobe", "right lower lobe"))],
        ),
        (
            "Bóng tim to, nốt đỉnh phổi trái",
            [(None, ("cardiac silhouette",)), ("left", ("left lung apex",))],
        ),
        ("Gãy cung sau xương sườn 5 bên trái", [("left", ("left fifth rib",))]),
        ("Khối u phổi phải, xâm lấn trung thất", [("right", ("right lung",))]),
    ],
)
def test_places(text, expected):
    assert [(one.side, one.regions) for one in READER.read(text).assertions] == expected


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
    folder = pathlib.Path(cxrjax.phantoms.__file__).parent
    grammar = json.loads((folder / "grammar_v1.json").read_text(encoding="utf-8"))
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
                if name in known and not text.startswith("Viêm phổi"):
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
        for one in answer.assertions:
            assert 0 <= one.span[0] < one.span[1] <= len(text)


@pytest.mark.parametrize(
    "text",
    [f"không có {EFFUSION}, " * 3000, "không " * 20_000, "phải " * 40_000, "e\u0301" * 100_000,
     "à nhầm trái " * 15_000, "hai phổi mờ " * 17_000, "3 cm trên carina " * 12_000],
)  # fmt: skip
def test_rambling_is_read_in_time_that_grows_with_its_length(text):
    start = time.process_time()
    READER.read(text, f"Có {EFFUSION} không?")
    assert time.process_time() - start < 4
