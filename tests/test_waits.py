"""What commands say of their waits where stderr is no terminal: here each is said at once."""

import functools
import re
import shutil
from pathlib import Path

import pytest
import tqdm

from cxrjax import progress
from cxrjax.commands import build, check_records, predict, report, review, score, train
from cxrjax.errors import UserError
from tests.apps.annotations.samples import draw_images


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
    assert_told(err, "drawing a sample of the questions", "pictures")


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
