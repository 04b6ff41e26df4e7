"""The reader on labelled sentences, and its promises on any text."""

import json
import random
import time
import unicodedata

import pytest

from bench.readers import frames
from bench.readers.__main__ import grade_file, shown
from bench.readers.sentences import FOLDER, HELD_OUT, files, read_file
from cxrjax.cli import EXIT_USER_ERROR
from cxrjax.radiology_text import __main__ as command
from cxrjax.radiology_text.answers import EnglishReader
from cxrjax.radiology_text.assertions import NOT_NOW
from cxrjax.radiology_text.reader import ReportReader
from cxrjax.radiology_text.reading import open_reader
from tests.radiology_text.conftest import CASES

READER = ReportReader()
ANSWERS = EnglishReader()


def test_the_authors_sentences_are_read_as_labelled(subtests):
    for name in ("hard_en_author", "answers_en_author"):
        for one in grade_file(FOLDER / f"{name}.tsv"):
            with subtests.test(one.sentence.family, id=one.sentence.id):
                assert one.is_right, shown(one)
                sure = [pair.label.certainty == pair.read.certainty for pair in one.pairs]
                assert all(sure), shown(one)


@pytest.mark.parametrize("language", ["en", "vi", "zh"])
def test_frames_are_read_as_their_codes_say(language, subtests):
    """Each with a few findings; what a third of them, held aside, gives is a figure alone."""
    reader = open_reader("vi" if language == "vi" else "en")
    named = ("pleural effusion", "pneumonia", "lung nodule")
    for frame in frames.read_frames(language):
        for one in frames.fill(frame, language, named) if not frame.is_held else ():
            read = reader.read(one.text).assertions
            with subtests.test(one.text):
                assert frames.grade(one, read) == "right", (frame.code, read)


def test_no_sentence_of_the_rounds_is_turned_round():
    daily = [one for n in ("en", "vi", "zh") for one in grade_file(FOLDER / f"daily_{n}.tsv")]
    graded = grade_file(FOLDER / "hard_en_rounds.tsv")
    turned = [one.sentence.id for one in [*graded, *daily] if one.inversions]
    # "Wrong to call the heart not enlarged", "full recovery from the pneumonia".
    assert turned == ["round11-en031", "round12-en061"]
    assert sum(one.is_right for one in graded) > 0.84 * len(graded)
    assert sum(one.is_right for one in daily) > 0.92 * len(daily)
    common = [one for one in daily if one.sentence.family == "common"]
    assert len(common) == 74 and not [shown(one) for one in common if not one.is_right]


@pytest.mark.parametrize("path", [*files(), *files(held_out=True)], ids=lambda path: path.stem)
def test_labels_are_as_the_rules_say(path):
    rows = read_file(path)
    assert f"`{path.stem.removesuffix(HELD_OUT)}`" in (FOLDER / "README.md").read_text()
    assert len({(row.question, row.text) for row in rows}) == len(rows) > 10
    for label in (label for row in rows for label in row.labels):
        if label.time in NOT_NOW:
            assert (label.status, label.certainty) == ("uncertain", "possible"), label
        if label.time == "resolved":
            assert (label.status, label.certainty) == ("absent", "certain"), label


def test_places_sizes_distances_and_counts():
    [one] = READER.read("Consolidation in the right upper, middle, and lower lobes.")
    assert one.regions == ("right upper lobe", "right middle lobe", "right lower lobe")
    [one] = READER.read("Opacity in the right apex and upper lung zone.")
    assert one.regions == ("right lung apex", "right upper lung zone")
    [one] = READER.read("ET tube 4 cm above the carina.")
    assert (one.regions, one.distances) == ((), ("4 cm above the carina",))
    [one] = READER.read("Two nodules in the left upper lobe measuring 4 mm and 1.2 x 0.8 cm.")
    assert (one.count, one.sizes) == (2, ("4 mm", "1.2 x 0.8 cm"))
    assert one.regions == ("left upper lobe",)
    for said, *expected in CASES["degrees_and_changes"]:
        [one] = READER.read(said)
        assert [one.severity or "", one.time] == expected, said
    text = "No effusion. Small left pneumothorax."
    assert [text[slice(*one.span)] for one in READER.read(text)] == ["effusion", "pneumothorax"]


def test_small_words_turn_nothing_round(subtests):
    for text, said in CASES["small_words_turn_nothing_round"]:
        with subtests.test(text):
            read = READER.read(text)
            assert [[one.finding, one.status, one.side or "-"] for one in read] == said


def test_what_stands_under_an_unknown_word_is_left_open(subtests):
    for text in CASES["unknown_words"]:
        with subtests.test(text):
            read = READER.read(text)
            assert [one.finding for one in read] == ["pneumothorax"]
            assert read[0].status == "uncertain"


def test_what_a_sentence_says_again_is_one_assertion():
    [one] = READER.read("The lungs are clear without focal airspace opacity.")
    assert (one.finding, one.status, one.organ) == ("lung opacity", "absent", "lungs")
    assert len(READER.read("No effusion on the left and no effusion on the right.")) == 2


def test_what_stands_for_something_before_changes_it_and_keeps_places():
    text = "Free air? A: none. Left effusion. It has resolved, likely pneumonia. "
    text += "Left opacity, likely edema."
    found = READER.read(text)
    assert [
        f"{text[slice(*one.span)]}: {one.finding} {one.status} {one.time}" for one in found
    ] == [
        "Free air: free air absent current",
        "effusion: pleural effusion absent resolved",
        "pneumonia: pneumonia present current",
        "opacity: lung opacity present current",
        "edema: pulmonary edema present current",
    ]
    assert found[4].source == 3


def test_an_explanation_names_what_it_explains():
    text = "Left base opacity, likely atelectasis, less likely pneumonia."
    opacity, atelectasis, pneumonia = READER.read(text)
    assert (opacity.source, atelectasis.source) == (None, 0)
    assert pneumonia.source is not None


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\n\n", "\0\x01", "????", "<p>No <b>effusion</b></p>", "肺部没有积液", "😀" * 50,
        "no " * 30_000, "effusion, " * 10_000, "a" * 100_000, "(" * 100_000, "effusion" * 12_500,
        "1 cm " * 20_000, "left " * 20_000, ". " * 50_000, "\ud800 effusion",
        "no effusion\n" * 7_500, "\n" * 100_000, "\n " * 50_000,
        "it is unlikely that there is " * 3_000,
        "<b>No</b> <script>alert('pneumothorax')</script> " * 2_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("language", ["en", "vi"])
def test_any_text_is_read_in_time(text, language):
    start = time.process_time()
    open_reader(language).read(text, "Is there an effusion?")
    open_reader(language).read("Yes.", f"Is there an effusion? {text}")
    assert time.process_time() - start < 1.5


def test_random_words_raise_nothing():
    words = "no not left right and , or : none likely than one effusion opacity heart enlarged"
    words += " clear lungs 4 cm above both except resolved ( ) which is in the base ? neither"
    words += " absent but longer amount that other it"
    random_words = random.Random(7)
    for _ in range(1_500):
        text = " ".join(random_words.choices(words.split(), k=random_words.randint(1, 14)))
        for one in READER.read(text):
            assert 0 <= one.span[0] < one.span[1] <= len(text)
        assert ANSWERS.read(text, "Is there an effusion?").outcome is not None


@pytest.mark.parametrize("answer", ["No atelectasis.", "There is no atelectasis.", "I see none."])
def test_a_question_asserts_nothing_beside_its_answer(answer):
    assert [one.status for one in READER.read(f"Is there atelectasis? {answer}")] == ["absent"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command on what stands in in.jsonl."""

    def _run(text):
        (tmp_path / "in.jsonl").write_text(text)
        arguments = [f"--sentences={tmp_path / 'in.jsonl'}", f"--out={tmp_path / 'out.jsonl'}"]
        monkeypatch.setattr("sys.argv", ["x", *arguments])
        command.main()

    return _run


def test_the_command_reads_lines_of_json(run, tmp_path, monkeypatch, capsys):
    asked = {"id": "a", "text": "No effusion.", "question": "Is there an effusion?"}
    run(json.dumps(asked) + '\n{"id": 2, "text": "Left pneumothorax."}')
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert (first["id"], first["answer"]) == ("a", "no")
    assert (second["id"], second["answer"]) == (2, None)
    assert second["assertions"][0]["side"] == "left"
    monkeypatch.setattr("sys.argv", ["x", "--list_findings"])
    capsys.readouterr()
    command.main()
    assert any(line.startswith("pneumothorax; ") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_command_knows_vietnamese_by_its_letters(run, tmp_path, form):
    text = unicodedata.normalize(form, "Tràn dịch màng phổi phải.")
    run(json.dumps({"id": 1, "text": text}))
    (one,) = json.loads((tmp_path / "out.jsonl").read_text())["assertions"]
    assert (one["finding"], one["side"]) == ("pleural effusion", "right")


def test_the_command_names_a_line_that_is_none(run, tmp_path):
    with pytest.raises(command.UserError, match=r"in\.jsonl:2: expected"):
        run('{"id": 1, "text": "x"}\n{"id": 1}\n')
    assert EXIT_USER_ERROR == 2
    assert not (tmp_path / "out.jsonl").exists()
