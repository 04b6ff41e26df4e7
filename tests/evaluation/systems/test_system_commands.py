"""`predict --runner=...` as a command, and its lines as `score` reads them."""

import json

import numpy as np
import pytest

from cxrjax.cli import run
from cxrjax.commands import evaluate, predict, score
from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import read_predictions
from cxrjax.evaluation.systems.table import resolved_settings
from cxrjax.records import ReaderBox, strip_answers, write_records
from tests.evaluation.systems.conftest import CASES
from tests.papers.cases import cases


@pytest.fixture
def files(tmp_path, record):
    """Training records, and the same as references and questions."""
    edges = {"R8": 20, "R9": 24}
    readers = {
        name: [ReaderBox(label="Cardiomegaly", box=[x, 10, x + 40, 50])]
        for name, x in edges.items()
    }
    records = []
    for number in range(24):
        box = [20 + number, 10, 60 + number, 50] if number % 3 else None
        about = _about_the_heart(record, number, f"image{number // 2}", box)
        records.append(about.model_copy(update={"readers": readers}))
    _write(tmp_path, records)
    return tmp_path


def _about_the_heart(record, number, image_id, box):
    """A question whether it is enlarged, and the answer: yes with a box, no without."""
    return record(
        number,
        dataset="vindr_cxr_vqa",
        image_id=image_id,
        question="Is there Cardiomegaly?",
        question_type="Is_there",
        finding="Cardiomegaly",
        said="Yes." if box else "No.",
        labels=["Cardiomegaly"] if box else [],
        polarity="pos" if box else "neg",
        boxes=[box] if box else [],
    )


def _write(folder, records):
    write_records(folder / "records.jsonl", records)
    write_records(folder / "questions.jsonl", map(strip_answers, records))


@cases("flags")
def test_each_baseline_is_one_command_whose_lines_can_be_scored(files, flags, capsys):
    words = [flag.replace("=records", f"={files}/records") for flag in flags]
    where = [f"--questions={files / 'questions.jsonl'}", f"--out={files / 'system.jsonl'}"]
    predict.main([*words, *where])
    assert "24 predictions" in capsys.readouterr().out
    first = (files / "system.jsonl").read_bytes()
    assert len(read_predictions(files / "system.jsonl")) == 24
    predict.main([*words, *where])
    assert (files / "system.jsonl").read_bytes() == first
    how = ["--benchmark=vindr_cxr_vqa", "--resamples=0", "--floors=never", "--gt_mode=reader:R9"]
    how += [f"--references={files / 'records.jsonl'}", f"--predictions={files / 'system.jsonl'}"]
    score.main([*how, f"--out={files}"])
    figures = json.loads((files / "metrics.json").read_text())["system"]["strict"]
    assert figures["vqa/accuracy"]["value"] > 0.2
    if "--runner=reader" in flags:
        # 36 of 44 columns of pixels are both readers'.
        assert figures["detection/miou_tp@0.3"]["value"] == pytest.approx(36 / 44)
        assert figures["detection/f1@0.3"]["value"] == 1
    if "--runner=majority" in flags:
        assert figures["vqa/accuracy"]["value"] == pytest.approx(16 / 24)


def _refusal(files, out, capsys, flags=("--runner=random",)):
    """What the command says of flags, or of an output, that cannot be used."""
    where = [f"--questions={files / 'questions.jsonl'}", f"--out={files / out}"]
    with pytest.raises(SystemExit) as ended:
        run(lambda: predict.main([*flags, *where]))
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_unusable_flags_end_with_code_2_and_an_out_that_cannot_be_written(files, capsys):
    for flags, message in CASES["unusable_flags"]:
        assert message in _refusal(files, "system.jsonl", capsys, flags)
    (files / "taken").write_text("a file")
    assert "taken: cannot write: " in _refusal(files, "taken/p.jsonl", capsys)
    (files / "p.jsonl.partial").symlink_to("/dev/full")
    said = _refusal(files, "p.jsonl", capsys)
    assert "p.jsonl: cannot write: No space left on device" in said
    assert not (files / "p.jsonl").exists()


_BASE = "data/demo_base"


@pytest.mark.parametrize("command", [predict, evaluate])
def test_a_model_of_ours_is_not_sampled_once(files, capsys, command):
    flags = [f"--checkpoint={_BASE}", "--temperature=0.7", f"--out={files / 'out'}"]
    if command is predict:
        flags.append(f"--questions={files / 'questions.jsonl'}")
    else:
        flags += ["--benchmark=vindr_cxr_vqa", f"--references={files / 'records.jsonl'}"]
    with pytest.raises(SystemExit) as caught:
        run(lambda: command.main(flags))
    assert caught.value.code == 2
    assert "sampled answers differ from run to run" in capsys.readouterr().err


def test_settings_are_told_as_they_came_out(files):
    """Flags that were not given are the model's own, or the system's, and never null."""
    parse = ["--questions=q", f"--out={files / 'out'}"]
    own = predict.parse_arguments([f"--checkpoint={_BASE}", "--max_answer_tokens=9", *parse])
    settings = resolved_settings(own)
    assert settings["max_answer_tokens"] == 9 and settings["temperature"] == 0.0
    form = (settings["prompt"], settings["codec"], settings["beams"])
    assert form == ("grounding", "paligemma", 1)
    assert None not in settings.values()
    other = predict.parse_arguments(
        ["--runner=openai", "--system=gpt_4o_mini", "--base_url=http://127.0.0.1/v1", *parse]
    )
    settings = resolved_settings(other)
    assert settings["temperature"] == 0.0 and settings["max_answer_tokens"] == 1000
    assert settings["codec"] and settings["wording"] == "grounded"


def test_conformal_boxes_cover_those_of_other_patients(tmp_path, record, capsys):
    """Of a runner that places the box of a class where it mostly is: 90 % of 200 true boxes."""
    rng = np.random.default_rng(0)

    def write(name, numbers):
        records = []
        for number in numbers:
            x, y = (30 + 8 * rng.standard_normal(2)).clip(0, 60).round().tolist()
            box = [x, y, x + 30, y + 30]
            records.append(_about_the_heart(record, number, f"image{number}", box))
        (tmp_path / name).mkdir()
        _write(tmp_path / name, records)
        return records

    def ask(name, *flags):
        out = tmp_path / name / "predictions.jsonl"
        questions = tmp_path / name / "questions.jsonl"
        train = tmp_path / "train" / "records.jsonl"
        where = [f"--train={train}", f"--questions={questions}", f"--out={out}"]
        predict.main(["--runner=prior_box", *where, *flags])
        return [json.loads(line) for line in out.read_text().splitlines()]

    write("train", range(20))
    write("held_out", range(1000, 1200))
    asked = write("asked", range(2000, 2200))
    ask("held_out")
    plain = ask("asked")
    held_out = f"--conformal={tmp_path / 'held_out'}"
    capsys.readouterr()
    wide = ask("asked", held_out, "--cover=0.9")
    assert "| 90.0% | " in capsys.readouterr().out

    def covered(lines):
        true = np.array([one.boxes[0] for one in asked]) / np.tile(asked[0].image_hw[::-1], 2)
        boxes = np.array([line["boxes"][0] for line in lines])
        return np.all((true - boxes) * [1, 1, -1, -1] >= -1e-6, axis=1).mean()

    assert covered(plain) < 0.5 and 0.84 <= covered(wide) <= 0.96
    assert wide[0]["margins"] and "margins" not in plain[0]
    settings = json.loads((tmp_path / "asked/predictions.jsonl.run.json").read_text())["settings"]
    assert settings["margins"]["boxes"] == 200 and settings["cover"] == 0.9
    # Of another model, here one that learnt from other records: refused; of nobody knows: said.
    write("train2", range(5000, 5020))
    with pytest.raises(UserError, match=r"another model or asked otherwise \(train\)"):
        ask("asked", held_out, f"--train={tmp_path / 'train2' / 'records.jsonl'}")
    beside = tmp_path / "held_out" / "predictions.jsonl.run.json"
    kept = beside.read_text()
    beside.unlink()
    ask("asked", held_out)
    assert "margins hold for that model alone" in capsys.readouterr().err
    beside.write_text(kept)
    changed = tmp_path / "held_out" / "predictions.jsonl"
    whole = changed.read_text()
    changed.write_text(whole.replace("0.", "0.0", 1))
    with pytest.raises(UserError, match=r"asked otherwise \(predictions.jsonl itself\)"):
        ask("asked", held_out)
    changed.write_text(whole)
    with pytest.raises(UserError, match=r"200 of its patients are asked about too"):
        ask("held_out", held_out)
    for flags in (["--cover=0.5"], [held_out, "--seeds=0,1,2"]):
        with pytest.raises(SystemExit):
            ask("asked", *flags)
