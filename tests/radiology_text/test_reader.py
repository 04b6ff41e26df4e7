"""The reader on labelled sentences, and its promises on any text."""

import json
import random
import time
from pathlib import Path

import pytest

from cxrjax.cli import EXIT_USER_ERROR
from cxrjax.radiology_text import __main__ as command
from cxrjax.radiology_text.answers import EnglishReader
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.reader import ReportReader
from cxrjax.radiology_text.reading import open_reader

SENTENCES = Path(__file__).parent / "sentences"
READER = ReportReader()
ANSWERS = EnglishReader()


def labelled(name: str) -> list[list[str]]:
    """Rows of a file of labelled sentences."""
    lines = (SENTENCES / name).read_text(encoding="utf-8").splitlines()
    return [(line + "\t").split("\t")[:3] for line in lines if not line.startswith("#")]


def said(one: Assertion, with_side: bool) -> str:
    """An assertion as the files write it."""
    parts = [one.finding, one.status, one.certainty, one.time]
    return ":".join([*parts, one.side or ""] if with_side else parts)


def meant(text: str) -> list[tuple[str, bool]]:
    """The labels of a row, each with whether it names a side."""
    labels = []
    for label in filter(None, text.split(";")):
        parts = label.split(":")
        parts += [*("present", "certain", "current")[len(parts) - 1 :]]
        labels.append((":".join(parts), len(parts) == 5))
    return labels


@pytest.mark.parametrize(("family", "text", "expected"), labelled("hard_en_author.tsv"))
def test_a_hard_sentence_is_read_as_labelled(family, text, expected):
    found = READER.read(text)
    left = list(found)
    for label, with_side in meant(expected):
        match = [one for one in left if said(one, with_side) == label]
        assert match, (label, [said(one, True) for one in found])
        left.remove(match[0])
    assert not left, [said(one, True) for one in left]


@pytest.mark.parametrize(("outcome", "question", "answer"), labelled("answers_en_author.tsv"))
def test_an_answer_is_read_as_labelled(outcome, question, answer):
    assert ANSWERS.read(answer, question).outcome == outcome


def test_places_sizes_distances_and_counts():
    [one] = READER.read("Consolidation in the right upper, middle, and lower lobes.")
    assert one.regions == ("right upper lobe", "right middle lobe", "right lower lobe")
    [one] = READER.read("Opacity in the right apex and upper lung zone.")
    assert one.regions == ("right lung apex", "right upper lung zone")
    [one] = READER.read("ET tube 4 cm above the carina.")
    assert (one.regions, one.distances) == ((), ("4 cm above the carina",))
    [one] = READER.read("Two nodules in the left upper lobe measuring 4 mm and 1.2 x 0.8 cm.")
    assert (one.count, one.sizes, one.regions) == (
        2,
        ("4 mm", "1.2 x 0.8 cm"),
        ("left upper lobe",),
    )
    [one] = READER.read("Slightly increased left effusion.")
    assert (one.severity, one.time) == (None, "worse")
    text = "No effusion. Small left pneumothorax."
    assert [text[slice(*one.span)] for one in READER.read(text)] == ["effusion", "pneumothorax"]


def test_an_explanation_names_what_it_explains():
    opacity, atelectasis, pneumonia = READER.read(
        "Left base opacity, likely atelectasis, less likely pneumonia."
    )
    assert (opacity.source, atelectasis.source) == (None, 0)
    assert pneumonia.source is not None


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\n\n", "\0\x01", "????", "<p>No <b>effusion</b></p>", "肺部没有积液", "😀" * 50,
        "no " * 60_000, "effusion, " * 20_000, "a" * 200_000, "(" * 200_000, "effusion" * 25_000,
        "1 cm " * 40_000, "left " * 40_000, ". " * 100_000, "\ud800 effusion",
        "no effusion\n" * 15_000, "\n" * 200_000, "\n " * 100_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("language", ["en", "vi"])
def test_any_text_is_read_in_time(text, language):
    start = time.process_time()
    open_reader(language).read(text, "Is there an effusion?")
    assert time.process_time() - start < 2


def test_random_words_raise_nothing():
    english = ["no", "not", "left", "right", "and", ",", "or", ":", "none", "likely", "than", "one"]
    english += ["effusion", "opacity", "heart", "enlarged", "clear", "lungs", "4", "cm", "above"]
    english += ["both", "except", "resolved", "(", ")", "which", "is", "in", "the", "base", "?"]
    random_words = random.Random(7)
    for _ in range(3_000):
        text = " ".join(random_words.choices(english, k=random_words.randint(1, 14)))
        for one in READER.read(text):
            assert 0 <= one.span[0] < one.span[1] <= len(text)
        assert ANSWERS.read(text, "Is there an effusion?").outcome is not None


def test_the_command_reads_lines_of_json(tmp_path, monkeypatch, capsys):
    rows = [
        {"id": "a", "text": "No effusion.", "question": "Is there an effusion?"},
        {"id": 2, "text": "Left pneumothorax."},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["x", f"--sentences={tmp_path / 'in.jsonl'}", f"--out={tmp_path / 'out.jsonl'}"]
    monkeypatch.setattr("sys.argv", arguments)
    command.main()
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert (first["id"], first["answer"]) == ("a", "no")
    assert (second["id"], second["answer"]) == (2, None)
    assert second["assertions"][0]["side"] == "left"
    monkeypatch.setattr("sys.argv", ["x", "--list_findings"])
    capsys.readouterr()
    command.main()
    assert any(line.startswith("pneumothorax; ") for line in capsys.readouterr().out.splitlines())


def test_the_command_names_a_line_that_is_none(tmp_path, monkeypatch):
    (tmp_path / "in.jsonl").write_text('{"id": 1, "text": "x"}\n{"id": 1}\n')
    arguments = ["x", f"--sentences={tmp_path / 'in.jsonl'}", f"--out={tmp_path / 'out.jsonl'}"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(command.UserError, match=r"in\.jsonl:2: expected"):
        command.main()
    assert EXIT_USER_ERROR == 2
    assert not (tmp_path / "out.jsonl").exists()
