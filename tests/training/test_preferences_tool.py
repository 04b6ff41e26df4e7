"""Pairs of predictions and of records: the right one is preferred, and the rest is counted."""

import json

import pytest
from PIL import Image

from cxrjax.codecs import transcode
from cxrjax.codecs.resize_rules import padded_to
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.records import read_records, write_records
from cxrjax.tools import preferences
from tests.training.small_data import make_record

# The box of every record, in pixels of 100 x 100 and in location tokens.
TRUTH = "<loc_10_10_30_30>"
NEAR, FAR = "<loc0102><loc0102><loc0307><loc0307>", "<loc0600><loc0600><loc0900><loc0900>"


def _record(name, text=f"Nodule {TRUTH}", size=(100, 100)):
    asked = {"question": "Where is the nodule?", "image_path": f"{name}.png"}
    return make_record(name, name, text, size, **asked)


@pytest.fixture
def files(tmp_path):
    """Records a to e, and two files of predictions."""
    records = [_record(name) for name in "abce"] + [_record("d", size=None)]
    write_records(tmp_path / "records.jsonl", records)
    said = {
        "one": {"a": f"Nodule {NEAR}", "b": "There is no nodule.", "c": f"Nodule {NEAR}", "d": "x"},
        "two": {"a": f"Nodule {FAR}", "b": f"Nodule {NEAR}", "c": f"Nodule {NEAR}", "d": "y"},
    }
    for name, answers in said.items():
        _answer(tmp_path, name, answers)
    return tmp_path


def _answer(folder, name, answers):
    lines = [json.dumps({"question_id": q, "text": text}) for q, text in answers.items()]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def _make(files, *flags):
    out = files / "pairs.jsonl"
    arguments = ["--records", str(files / "records.jsonl"), "--out", str(out), *flags]
    preferences.main(arguments)
    pairs = [json.loads(line) for line in out.read_text().splitlines()]
    return {pair["question_id"]: (pair["better"], pair["worse"]) for pair in pairs}


def _best(files, *flags):
    out = files / "best.jsonl"
    preferences.main(["--records", str(files / "records.jsonl"), "--best", str(out), *flags])
    return out


def _predictions(files, *names):
    return [word for name in names for word in ("--predictions", str(files / f"{name}.jsonl"))]


def test_the_nearer_box_and_the_record_are_preferred(files, capsys):
    for names in (("one", "two"), ("two", "one")):
        pairs = _make(files, *_predictions(files, *names))
        near = f"Nodule {NEAR}"
        assert pairs == {"a": (near, f"Nodule {FAR}"), "b": (near, "There is no nodule.")}
        told = capsys.readouterr().out
        assert "2 pairs of 5 questions" in told
        for line in ("1 without: no prediction", "1 without: the image's size", "1 without: they"):
            assert line in told
    pairs = _make(files, *_predictions(files, "two"), "--better=record")
    (better, worse) = pairs.pop("a")
    assert worse == f"Nodule {FAR}" and better.startswith("Nodule <loc01") and not pairs


def test_images_that_were_padded(files):
    """A perfect answer of a model whose input is a square, the image on its left half."""
    write_records(files / "records.jsonl", [_record("a", size=(100, 50))])
    placed = padded_to([(64, 64)], (100, 50))
    right = transcode(f"Nodule {TRUTH}", "vindr_px", "paligemma", 100, 50, placed)
    stretched = transcode(f"Nodule {TRUTH}", "vindr_px", "paligemma", 100, 50)
    assert right != stretched
    for name, text in (("one", right), ("two", stretched)):
        _answer(files, name, {"a": text})
    predictions = _predictions(files, "one", "two")
    assert _make(files, *predictions, "--letterbox=64x64")["a"] == (right, stretched)
    assert _make(files, *predictions)["a"][0] == stretched
    (best,) = read_records(_best(files, *predictions, "--letterbox=64x64"))
    assert best.boxes[0] == pytest.approx([10, 10, 30, 30], abs=0.2)
    with pytest.raises(SystemExit):
        _make(files, *predictions, "--letterbox=64")


def test_one_file_makes_no_pairs_and_a_record_is_not_the_best_of_n(files):
    with pytest.raises(SystemExit) as stopped:
        _make(files, *_predictions(files, "one"))
    assert stopped.value.code == 2
    (files / "odd.jsonl").write_text('{"question_id": "z", "text": ""}\n')
    with pytest.raises(UserError, match="question z is none of the records'"):
        _make(files, *_predictions(files, "one", "odd"))
    with pytest.raises(SystemExit) as stopped:
        _best(files, *_predictions(files, "one"), "--better=record")
    assert stopped.value.code == 2


def test_the_best_of_n_is_what_training_reads(files, capsys):
    for name in "abcde":
        Image.new("L", (100, 100)).save(files / f"{name}.png")
    swapped = "<loc0307><loc0307><loc0102><loc0102>"
    said = {"a": "<loc0102>", "b": f"Nodule {swapped}", "c": "Nodule", "e": f"Nodule {swapped}"}
    _answer(files, "three", said)
    out = _best(files, *_predictions(files, "one", "two", "three"))
    best = {record.question_id: record for record in read_records(out)}
    assert {name: record.answer_text for name, record in best.items()} == {
        name: f"Nodule {TRUTH}" for name in "abc"
    }
    assert best["b"].boxes == [[10, 10, 30, 30]] and best["b"].generator is not None
    assert not check_records(RecordSource(out)).indices
    told = capsys.readouterr().out
    assert "the best answers to 3 of 5 questions" in told
    assert "1 without: no prediction's boxes can be read" in told
