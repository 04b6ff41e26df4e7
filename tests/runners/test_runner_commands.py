"""`predict --runner=...` as a command, and its lines as `score` reads them."""

import json

import pytest

from cxrjax import predict, score
from cxrjax.cli import run
from cxrjax.records import ReaderBox, strip_answers, write_records
from cxrjax.scoring.predictions import read_predictions


@pytest.fixture
def files(tmp_path, record):
    """Training records, and the same as references and questions."""
    records = []
    for number in range(24):
        there = number % 3 != 0
        box = [20 + number, 10, 60 + number, 50]
        records.append(
            record(
                number,
                dataset="vindr_cxr_vqa",
                image_id=f"image{number // 2}",
                question="Is there Cardiomegaly?",
                question_type="Is_there",
                finding="Cardiomegaly",
                said="Yes." if there else "No.",
                labels=["Cardiomegaly"] if there else [],
                polarity="pos" if there else "neg",
                boxes=[box] if there else [],
                readers={
                    "R8": [ReaderBox(label="Cardiomegaly", box=[20, 10, 60, 50])],
                    "R9": [ReaderBox(label="Cardiomegaly", box=[24, 10, 64, 50])],
                },
            )
        )
    write_records(tmp_path / "records.jsonl", records)
    write_records(tmp_path / "questions.jsonl", map(strip_answers, records))
    return tmp_path


@pytest.mark.parametrize(
    "flags",
    [
        ["--runner=prior_box", "--train=records.jsonl"],
        ["--runner=majority", "--train=records.jsonl"],
        ["--runner=random", "--seed=3"],
        ["--runner=reader", "--reader=R8", "--readers=records.jsonl"],
    ],
)
def test_each_baseline_is_one_command_whose_lines_can_be_scored(files, flags, capsys):
    words = [flag.replace("=records", f"={files}/records") for flag in flags]
    where = [f"--questions={files / 'questions.jsonl'}", f"--out={files / 'system.jsonl'}"]
    predict.main([*words, *where])
    assert "24 predictions" in capsys.readouterr().out
    first = (files / "system.jsonl").read_bytes()
    assert len(read_predictions(files / "system.jsonl")) == 24
    predict.main([*words, *where])
    assert (files / "system.jsonl").read_bytes() == first
    score.main(
        ["--benchmark=vindr_cxr_vqa", f"--references={files / 'records.jsonl'}", "--resamples=0"]
        + [f"--predictions={files / 'system.jsonl'}", f"--out={files}", "--gt_mode=reader:R9"]
    )
    figures = json.loads((files / "metrics.json").read_text())["system"]["strict"]
    assert figures["vqa/accuracy"]["value"] > 0.2
    if "--runner=reader" in flags:
        # 36 of 44 columns of pixels are both readers'.
        assert figures["detection/miou_tp@0.3"]["value"] == pytest.approx(36 / 44)
        assert figures["detection/f1@0.3"]["value"] == 1
    if "--runner=majority" in flags:
        assert figures["vqa/accuracy"]["value"] == pytest.approx(16 / 24)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner=majority"], "error: --runner=majority needs --train"),
        (["--runner=reader", "--reader=R8"], "error: --runner=reader needs --readers"),
        (["--runner=oracle"], "invalid choice: 'oracle'"),
        ([], "one of the arguments --workdir --checkpoint --runner is required"),
    ],
)
def test_unusable_flags_end_with_code_2(files, flags, message, capsys):
    where = [f"--questions={files / 'questions.jsonl'}", f"--out={files / 'system.jsonl'}"]
    with pytest.raises(SystemExit) as ended:
        run(lambda: predict.main([*flags, *where]))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_out_that_cannot_be_written_is_told_in_one_line(files, capsys):
    (files / "taken").write_text("a file")
    where = [f"--questions={files / 'questions.jsonl'}", f"--out={files / 'taken/p.jsonl'}"]
    with pytest.raises(SystemExit) as ended:
        run(lambda: predict.main(["--runner=random", *where]))
    assert ended.value.code == 2
    assert "taken: cannot write: " in capsys.readouterr().err


def test_a_full_disk_is_told_in_one_line_and_leaves_no_predictions(files, capsys):
    (files / "p.jsonl.partial").symlink_to("/dev/full")
    where = [f"--questions={files / 'questions.jsonl'}", f"--out={files / 'p.jsonl'}"]
    with pytest.raises(SystemExit) as ended:
        run(lambda: predict.main(["--runner=random", *where]))
    assert ended.value.code == 2
    assert "p.jsonl: cannot write: No space left on device" in capsys.readouterr().err
    assert not (files / "p.jsonl").exists()
