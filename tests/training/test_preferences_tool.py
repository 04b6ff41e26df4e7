"""Pairs of predictions and of records: the right one is preferred, and the rest is counted."""

import json

import pytest
from PIL import Image

from cxrjax.codecs import transcode
from cxrjax.codecs.resize_rules import padded_to
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.records import Answer, QARecord, read_records, write_records
from cxrjax.tools import preferences

# The box of every record, in pixels of 100 x 100 and in location tokens.
TRUTH = "<loc_10_10_30_30>"
NEAR, FAR = "<loc0102><loc0102><loc0307><loc0307>", "<loc0600><loc0600><loc0900><loc0900>"


def _record(name, text=f"Nodule {TRUTH}", size=(100, 100)):
    return QARecord(
        dataset="custom",
        split="train",
        image_id=name,
        image_path=f"{name}.png",
        image_hw=size,
        question_id=name,
        question="Where is the nodule?",
        question_type="Where",
        answers=[Answer(text=text)],
    )


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
        lines = [json.dumps({"question_id": q, "text": text}) for q, text in answers.items()]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def _make(files, *flags):
    out = files / "pairs.jsonl"
    arguments = ["--records", str(files / "records.jsonl"), "--out", str(out), *flags]
    preferences.main(arguments)
    pairs = [json.loads(line) for line in out.read_text().splitlines()]
    return {pair["question_id"]: pair for pair in pairs}


def _predictions(files, *names):
    return [word for name in names for word in ("--predictions", str(files / f"{name}.jsonl"))]


def test_the_nearer_box_is_preferred_in_whatever_order(files, capsys):
    for names in (("one", "two"), ("two", "one")):
        pairs = _make(files, *_predictions(files, *names))
        assert pairs.keys() == {"a", "b"}
        assert (pairs["a"]["better"], pairs["a"]["worse"]) == (f"Nodule {NEAR}", f"Nodule {FAR}")
        assert (pairs["b"]["better"], pairs["b"]["worse"]) == (
            f"Nodule {NEAR}",
            "There is no nodule.",
        )
        told = capsys.readouterr().out
        assert "2 pairs of 5 questions" in told
        for line in ("1 without: no prediction", "1 without: the image's size", "1 without: they"):
            assert line in told


def test_a_record_is_preferred_to_what_a_model_said(files):
    pairs = _make(files, *_predictions(files, "two"), "--better=record")
    assert pairs.keys() == {"a"}
    assert pairs["a"]["worse"] == f"Nodule {FAR}"
    assert pairs["a"]["better"].startswith("Nodule <loc01")


def test_images_that_were_padded(files):
    """A perfect answer of a model whose input is a square, the image on its left half."""
    write_records(files / "records.jsonl", [_record("a", size=(100, 50))])
    placed = padded_to([(64, 64)], (100, 50))
    right = transcode(f"Nodule {TRUTH}", "vindr_px", "paligemma", 100, 50, placed)
    stretched = transcode(f"Nodule {TRUTH}", "vindr_px", "paligemma", 100, 50)
    assert right != stretched
    for name, text in (("one", right), ("two", stretched)):
        line = json.dumps({"question_id": "a", "text": text})
        (files / f"{name}.jsonl").write_text(line + "\n")
    predictions = _predictions(files, "one", "two")
    pairs = _make(files, *predictions, "--letterbox=64x64")
    assert (pairs["a"]["better"], pairs["a"]["worse"]) == (right, stretched)
    assert _make(files, *predictions)["a"]["better"] == stretched
    out = files / "best.jsonl"
    arguments = ["--records", str(files / "records.jsonl"), "--best", str(out), *predictions]
    preferences.main([*arguments, "--letterbox=64x64"])
    (best,) = read_records(out)
    assert best.boxes[0] == pytest.approx([10, 10, 30, 30], abs=0.2)
    with pytest.raises(SystemExit):
        _make(files, *predictions, "--letterbox=64")


def test_one_file_makes_no_pairs_and_strangers_are_refused(files):
    with pytest.raises(SystemExit) as stopped:
        _make(files, *_predictions(files, "one"))
    assert stopped.value.code == 2
    (files / "odd.jsonl").write_text('{"question_id": "z", "text": ""}\n')
    with pytest.raises(UserError, match="question z is none of the records'"):
        _make(files, *_predictions(files, "one", "odd"))


def test_the_best_of_n_is_what_training_reads(files, capsys):
    for name in "abcde":
        Image.new("L", (100, 100)).save(files / f"{name}.png")
    swapped = "<loc0307><loc0307><loc0102><loc0102>"
    lines = {"a": "<loc0102>", "b": f"Nodule {swapped}", "c": "Nodule", "e": f"Nodule {swapped}"}
    text = "".join(json.dumps({"question_id": q, "text": t}) + "\n" for q, t in lines.items())
    (files / "three.jsonl").write_text(text)
    out = files / "best.jsonl"
    flags = ["--records", str(files / "records.jsonl"), "--best", str(out)]
    preferences.main([*flags, *_predictions(files, "one", "two", "three")])
    best = {record.question_id: record for record in read_records(out)}
    assert {name: record.answer_text for name, record in best.items()} == {
        name: f"Nodule {TRUTH}" for name in "abc"
    }
    assert best["b"].boxes == [[10, 10, 30, 30]] and best["b"].generator is not None
    assert not check_records(RecordSource(out)).indices
    told = capsys.readouterr().out
    assert "the best answers to 3 of 5 questions" in told
    assert "1 without: no prediction's boxes can be read" in told


def test_a_record_is_not_the_best_of_n(files):
    flags = ["--records", "r", "--best", "b", *_predictions(files, "one"), "--better=record"]
    with pytest.raises(SystemExit) as stopped:
        preferences.main(flags)
    assert stopped.value.code == 2
