"""Bars on terminals only; elsewhere few lines, and waits reported at once."""

import functools
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import tqdm

from cxrjax import progress
from cxrjax.commands import build, check_records, predict, report, review, score, train
from cxrjax.errors import UserError
from tests.apps.annotations.samples import draw_images

ROOT = Path(__file__).parents[1]


@pytest.fixture
def log(monkeypatch, capsys):
    """What was written to stderr, which is no terminal; seconds are short."""
    monkeypatch.setattr(progress, "_FIRST", 0.1)
    monkeypatch.setattr(progress, "_LATER", 0.4)
    monkeypatch.setattr(progress._LinesBar, "_shown", -1.0)
    return lambda: capsys.readouterr().err


def work(bar, each: float = 0.01) -> None:
    for _ in bar:
        time.sleep(each)


def test_short_work_and_a_failed_wait_say_nothing(log):
    work(progress.progress_bar(range(3), desc="checking", unit="image", disable=False))
    assert log() == ""
    with pytest.raises(ValueError), progress.waiting("loading x"):
        raise ValueError
    assert log() == ""


def test_work_of_any_length_says_a_line_now_and_then(log):
    work(progress.progress_bar(range(100), desc="checking", unit="image", disable=False))
    said = log()
    lines = said.splitlines()
    assert "\r" not in said and 2 <= len(lines) <= 6
    assert re.fullmatch(
        r"checking: \d+ of 100 images in 00:0\d, 00:0\d left, +[\d.]+images/s", lines[0]
    )
    assert lines[-1].startswith("checking: 100 of 100 images")
    # A log of a bar has thousands of carriage returns.
    for file in sorted((ROOT / "cxrjax").rglob("*.py")):
        if file.name != "progress.py":
            assert "tqdm" not in file.read_text(encoding="utf-8"), f"{file}: use cxrjax.progress"


def test_work_of_unknown_length_and_by_hand(log):
    with progress.progress_bar(unit="study", disable=False) as bar:
        for _ in range(40):
            time.sleep(0.01)
            bar.update()
    lines = log().splitlines()
    assert lines and all(line.startswith("working: ") and "\r" not in line for line in lines)


def test_a_wait_says_what_it_is(log):
    with progress.waiting("loading x"):
        time.sleep(0.01)
    assert log() == ""
    with progress.waiting("loading x"):
        time.sleep(0.7)
    lines = log().splitlines()
    assert lines[0].startswith("loading x ... 0 s so far") and lines[-1] == "loading x: 1 s"
    assert len(lines) == 3


def test_a_terminal_gets_a_bar():
    code = (
        "import time; from cxrjax.progress import progress_bar\n"
        "for _ in progress_bar(range(5), 'checking', disable=False): time.sleep(0.05)"
    )
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, 80))
    subprocess.run([sys.executable, "-c", code], stderr=writer, cwd=ROOT, check=True, timeout=60)
    os.set_blocking(reader, False)
    shown = os.read(reader, 65536).decode()
    os.close(writer)
    os.close(reader)
    assert "\r" in shown and "100%|" in shown


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of one's own records, and a table of the same boxes beside them."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(Path(__file__).parent / "apps" / "own_source", folder, dirs_exist_ok=True)
    draw_images(folder / "images", [f"p{number}.png" for number in range(8)])
    return folder


@pytest.fixture
def said(monkeypatch, capsys):
    """Calls a command and returns what it said on stderr."""
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    shown = functools.partialmethod(tqdm.tqdm.__init__, disable=False)  # tests show no bars else
    monkeypatch.setattr(progress._LinesBar, "__init__", shown)

    def of(main, *words) -> str:
        capsys.readouterr()
        main([str(word) for word in words])
        return capsys.readouterr().err

    return of


def assert_told(err: str, *waits: str) -> None:
    for wait in waits:
        assert re.search(rf"(?m)^{wait}(: | \.\.\. )", err), (wait, err)


def test_import(source, tmp_path, said):
    words = ("--dataset=boxes", f"--source={source / 'boxes.csv'}", f"--out={tmp_path}")
    err = said(build.main, *words)
    assert_told(err, "reading the annotations", "checking", "boxes")
    assert_told(err, "dividing the images and wording the questions", "writing train")


def test_build_predict_score_report_review(source, tmp_path, said):
    out = tmp_path
    err = said(build.main, "--dataset=records", f"--source={source}", f"--out={out}")
    assert_told(err, "reading", "checking", "records beside images", "writing train")
    records = out / "records" / "validation.jsonl"
    questions = out / "questions" / "validation.jsonl"
    train_file = out / "records" / "train.jsonl"
    predictions = out / "prior.jsonl"
    files = (f"--train={train_file}", f"--questions={questions}", f"--out={predictions}")
    err = said(predict.main, "--runner=prior_box", *files)
    assert_told(err, f"reading {questions}", f"looking for dialogues in {questions}", "prior")
    said_of = (f"--references={records}", f"--predictions={predictions}", f"--out={out}")
    err = said(score.main, "--benchmark=own", *said_of, "--resamples=0", "--floors=never")
    assert_told(err, "scoring, and computing intervals")
    err = said(report.main, f"--workdir={out}", *said_of, "--pictures=folder")
    assert_told(err, "reading questions and answers", "page", "pictures")
    err = said(report.main, f"--workdir={out}", *said_of, "--pictures=none")
    assert "removing what an earlier page left" in err
    sheet = ("--sample=1", f"--out={out / 'review'}")
    err = said(review.main, f"--records={records}", *sheet)
    assert_told(err, "reading the questions", "images")


def test_check_records(source, tmp_path, said):
    err = said(check_records.main, source, f"--out={tmp_path}", "--processes=1")
    assert_told(err, "reading", "checking", "encoding")


def test_train(source, tmp_path, said, capsys):
    file = source / "records.jsonl"
    words = ("--config=configs/records_lora.py", f"--workdir={tmp_path}")
    data = (f"--config.data.train={file}", f"--config.data.validation={file}")
    with pytest.raises(UserError, match="are in training too"):
        said(train.main, *words, *data)
    assert_told(capsys.readouterr().err, "reading and checking the records")
