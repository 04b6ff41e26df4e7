"""run.json of scoring, its refusal of another split, and the side file of predictions."""

import hashlib
import json

import pytest

from cxrjax.cli import run
from cxrjax.commands.score import main
from cxrjax.evaluation.flags import ModelFlags
from cxrjax.evaluation.run_record import side_file, write_prediction_record
from cxrjax.files import hash_lines
from cxrjax.records import read_records, strip_answers, write_records
from tests.evaluation import made

CASES = made.cases_of(__file__)


@pytest.fixture
def files(tmp_path):
    records = [made.record_of(f"i{i}", boxes=[[10, 10, 40, 40]]) for i in range(3)]
    write_records(tmp_path / "records.jsonl", records)
    write_records(tmp_path / "questions.jsonl", map(strip_answers, records))
    made.write_lines(tmp_path / "base.jsonl", [made.line_of(r, "Yes.") for r in records])
    split = {"split_sha256": hash_lines(["i0", "i1", "i2"])}
    (tmp_path / "manifest.json").write_text(json.dumps({"splits": {"validation": split}}))
    return tmp_path


def _arguments(folder, *more):
    return [*made.flags_of(folder, "base"), *more]


def _sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run_json(files):
    return made.read_json(files, "out", "run.json")


def test_scoring_says_what_it_scored_of_the_right_split(files):
    main(_arguments(files, "--seed=4"))
    record = _run_json(files)
    assert record["references"]["sha256"] == _sha256(files / "records.jsonl")
    assert record["systems"]["base"]["predictions"]["sha256"] == _sha256(files / "base.jsonl")
    assert record["systems"]["base"]["made"] is None
    assert record["split_sha256"] == {"validation": hash_lines(["i2", "i1", "i0"])}
    assert record["bootstrap_seed"] == 4
    assert {"python", "numpy", "scipy"} <= record["versions"].keys()
    main(_arguments(files, f"--manifest={files / 'manifest.json'}"))
    assert (files / "out" / "metrics.json").exists()


@pytest.mark.parametrize(("manifest", "says"), CASES["other_splits"])
def test_another_split_is_refused_before_anything_is_scored(files, capsys, manifest, says):
    (files / "manifest.json").write_text(json.dumps({"splits": manifest}))
    with pytest.raises(SystemExit) as caught:
        run(lambda: main(_arguments(files, f"--manifest={files / 'manifest.json'}")))
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert says in error
    assert error.count("\n") == 1
    assert not (files / "out").exists()


def test_records_that_were_changed_are_refused_though_their_images_are_the_same(files, capsys):
    manifest = made.read_json(files / "manifest.json")
    arguments = _arguments(files, f"--manifest={files / 'manifest.json'}")
    main(arguments)
    assert "image ids alone were compared" in capsys.readouterr().err
    manifest["splits"]["validation"]["records_sha256"] = _sha256(files / "records.jsonl")
    (files / "manifest.json").write_text(json.dumps(manifest))
    main(arguments)
    assert capsys.readouterr().err == ""
    text = (files / "records.jsonl").read_text()
    for what, other in (('"Yes, ILD."', '"No."'), ("[[10.0, 10.0, 40.0, 40.0]]", "[]")):
        assert what in text
        (files / "records.jsonl").write_text(text.replace(what, other))
        with pytest.raises(SystemExit) as caught:
            run(lambda: main(arguments))
        assert caught.value.code == 2
        assert "their answers or boxes are not those that were built" in capsys.readouterr().err


def test_a_training_runs_folder_is_not_written_over(files, capsys):
    (files / "out" / "checkpoints").mkdir(parents=True)
    with pytest.raises(SystemExit):
        run(lambda: main(_arguments(files)))
    assert "is a training run's folder" in capsys.readouterr().err


def test_how_predictions_were_made_goes_into_the_scores(files, capsys):
    (files / "model").mkdir()
    (files / "model" / "tokenizer.model").write_bytes(b"words")
    write_prediction_record(
        files / "base.jsonl",
        files / "questions.jsonl",
        ModelFlags(checkpoint=files / "model", prompt="vqa"),
        {"beams": 1},
    )
    assert capsys.readouterr().err == ""
    main(_arguments(files))
    made = _run_json(files)["systems"]["base"]["made"]
    assert made["questions"]["sha256"] == _sha256(files / "questions.jsonl")
    assert made["questions_with_answers"] == 0
    assert made["model_sha256"] == {"tokenizer.model": hashlib.sha256(b"words").hexdigest()}
    assert made["settings"]["prompt"] == "vqa" and made["settings"]["beams"] == 1
    # Of another file under the same name it says nothing.
    base = files / "base.jsonl"
    base.write_text(base.read_text().replace("Yes", "No"))
    main(_arguments(files))
    assert _run_json(files)["systems"]["base"]["made"] is None


def test_questions_that_carry_answers_are_told(files, capsys):
    records = list(read_records(files / "records.jsonl"))
    write_records(files / "mixed.jsonl", [strip_answers(records[0]), *records[1:]])
    write_prediction_record(
        files / "base.jsonl",
        files / "mixed.jsonl",
        ModelFlags(checkpoint=files / "model", prompt="vqa"),
        {},
    )
    warning = capsys.readouterr().err
    assert "mixed.jsonl: 2 questions carry answers" in warning
    assert warning.count("\n") == 1
    record = made.read_json(side_file(files / "base.jsonl"))
    assert record["questions_with_answers"] == 2
