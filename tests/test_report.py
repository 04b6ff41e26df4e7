"""`python -m cxrjax.report`: what it finds in a work directory, and what it says when it cannot."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax import report
from cxrjax.errors import UserError
from cxrjax.records import Answer, QARecord, write_records


def _entry(value: float) -> dict:
    return {"value": value, "ci_low": value - 0.1, "ci_high": value + 0.1, "n": 300}


def _scores(value: float) -> dict:
    return {"strict": {"detection/f1@0.3": _entry(value)}}


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A finished run of one image, laid out as the demo's."""
    root = tmp_path / "runs" / "demo"
    for folder in ("predictions", "train", "data/images"):
        (root / folder).mkdir(parents=True)
    Image.fromarray(np.full((40, 30), 99, np.uint8)).save(root / "data/images/a.png")
    record = QARecord(
        dataset="synthetic",
        split="validation",
        image_id="a",
        image_path="images/a.png",
        image_hw=(40, 30),
        question_id="a-0",
        question="Where is the Cardiomegaly?",
        question_type="Where",
        variables={"finding": "Cardiomegaly"},
        answers=[Answer(text="Here.", boxes_by_image={"a": [[3, 4, 15, 20]]})],
    )
    write_records(root / "data/records/validation.jsonl", [record])
    for system in ("base", "tuned"):
        line = {"question_id": "a-0", "text": f"{system} says", "boxes": [], "parse": "ok"}
        (root / f"predictions/{system}.jsonl").write_text(json.dumps(line))
    (root / "metrics.json").write_text(json.dumps({"base": _scores(0.3), "tuned": _scores(0.7)}))
    (root / "score.json").write_text('{"benchmark": "vindr_cxr_vqa", "gt_mode": "exact"}')
    (root / "tables.md").write_text("# A\n\n## Table 5\n\n| a | b |\n|---|---|\n| c | 0.5 |\n")
    (root / "train/metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 1.5}')
    (root / "train/run.json").write_text('{"seed": 1234}')
    (root / "notes.json").write_text('{"remarks": ["A remark."]}')
    return root


def _page(workdir: Path, *flags: str) -> str:
    out = workdir / "page"
    report.main([f"--workdir={workdir}", f"--out={out}", *flags])
    return (out / "index.html").read_text(encoding="utf-8")


def test_the_demos_layout_is_found_without_options(workdir, capsys):
    html = _page(workdir)
    assert capsys.readouterr().out.strip() == str(workdir / "page" / "index.html")
    for text in (
        "VinDr-CXR-VQA results: demo",
        "0.700",
        "base says",
        "tuned says",
        "1234",
        "A remark.",
        "Ground truth: exact.",
        "Table 5",
        "data:image/jpeg",
        "first 2.5, last 1.5",
    ):
        assert text in html
    assert "Not found" not in html


def test_a_plain_training_workdir_has_its_log_at_the_top(workdir):
    for name in ("metrics.jsonl", "run.json"):
        (workdir / "train" / name).rename(workdir / name)
    html = _page(workdir)
    assert "1234" in html and "first 2.5, last 1.5" in html


def test_what_is_optional_and_missing_is_said_on_the_page(workdir):
    shutil.rmtree(workdir / "train")
    (workdir / "notes.json").unlink()
    (workdir / "score.json").unlink()
    (workdir / "tables.md").unlink()
    html = _page(workdir)
    assert "<h1>Results: demo</h1>" in html
    assert "Not found, so not shown: training log" in html
    assert "Not found, so not shown: what was run" in html
    assert "Not found, so not shown: how score worked" in html
    assert "Not found, so not shown: the benchmark&#39;s tables" in html
    assert "No training log was given" in html and "No run.json was given" in html


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("metrics.json", "metrics.json: no such file: run `python -m cxrjax.score`"),
        ("predictions/base.jsonl", None),  # one system is enough
        ("data/records/validation.jsonl", "validation.jsonl: no such file"),
        ("data/images/a.png", "a.png"),
    ],
)
def test_what_is_required_and_missing_is_a_user_error(workdir, name, message):
    (workdir / name).unlink()
    if message is None:
        assert "base says" not in _page(workdir)
        return
    with pytest.raises(UserError, match=message):
        _page(workdir)
    assert not (workdir / "page" / "index.html").exists()


def test_no_predictions_at_all_is_a_user_error(workdir):
    shutil.rmtree(workdir / "predictions")
    with pytest.raises(UserError, match="holds no predictions"):
        _page(workdir)


def test_files_can_be_named(workdir, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    for name in ("metrics.json", "predictions", "train", "data", "notes.json"):
        shutil.move(workdir / name, other / name)
    html = _page(
        workdir,
        "--title=Named",
        f"--metrics={other}/metrics.json",
        f"--predictions={other}/predictions/tuned.jsonl",
        f"--references={other}/data/records/validation.jsonl",
        f"--image_root={other}/data",
        f"--training_log={other}/train/metrics.jsonl",
        f"--run={other}/train/run.json",
        f"--notes={other}/notes.json",
    )
    assert "Named" in html and "tuned says" in html and "base says" not in html
    assert "1234" in html and "A remark." in html


@pytest.mark.parametrize(
    "flag", ["metrics", "predictions", "references", "training_log", "run", "score", "notes"]
)
def test_a_named_file_must_be_there(workdir, flag):
    with pytest.raises(UserError, match="nowhere"):
        _page(workdir, f"--{flag}=nowhere/{flag}")


def test_the_image_root_of_records_outside_a_records_folder_is_their_own(workdir):
    loose = workdir / "data" / "questions.jsonl"
    shutil.move(workdir / "data/records/validation.jsonl", loose)
    assert "data:image/jpeg" in _page(workdir, f"--references={loose}")


def test_a_second_workdir_stands_beside_the_first(workdir):
    second = workdir.parent / "other-run"
    shutil.copytree(workdir, second)
    (second / "metrics.json").write_text(json.dumps({"tuned": _scores(0.123)}))
    (second / "predictions/base.jsonl").unlink()
    html = _page(workdir, f"--compare={second}")
    assert "other-run/tuned" in html and "other-run/base" not in html
    assert "0.123" in html and "0.700" in html


def test_any_number_of_runs_is_compared_with_the_first_by_a_paired_test(workdir):
    """Of each the tuned system; runs in folders of one name are told apart."""
    right = {"question_id": "a-0", "text": "Here.", "boxes": [[0.1, 0.1, 0.5, 0.5]]}
    folders = [workdir.parent / name for name in ("second", "third", "sub/third")]
    for folder in folders:
        shutil.copytree(workdir, folder)
    (folders[0] / "predictions/tuned.jsonl").write_text(json.dumps(right))
    html = _page(workdir, *(f"--compare={folder}" for folder in folders))
    for name in ("second", "third 1", "third 2"):
        assert f"{name}/tuned − tuned, strict protocol" in html
    assert "second/base − " not in html
    strict = html.partition("second/tuned − tuned, strict protocol")[2].partition("</table>")[0]
    assert "+1.000" in strict  # F1 of the box


def test_what_score_left_beside_the_metrics_is_drawn(workdir):
    curve = {"x": [0, 1], "y": [0.5, 1], "x_label": "false boxes", "y_label": "sensitivity"}
    (workdir / "curves.json").write_text(json.dumps({"tuned": {"froc": curve}}))
    compared = {"system": "tuned", "compared_to": "base", "protocol": "strict", "n": 1}
    compared |= dict.fromkeys(("difference", "ci_low", "ci_high", "p", "p_holm"), 0.125)
    (workdir / "comparisons.json").write_text(json.dumps([compared | {"metric": "vqa/f1"}]))
    html = _page(workdir)
    assert "FROC. tuned: from (0, 0.5) to (1, 1)." in html and "+0.125" in html
    second = workdir.parent / "other-run"
    shutil.copytree(workdir, second)
    html = _page(workdir, f"--compare={second}")
    assert "other-run/tuned: from (0, 0.5)" in html and "other-run: Table 5" in html
    (workdir / "comparisons.json").write_text("{}")
    with pytest.raises(UserError, match=r"comparisons\.json: expected a JSON list"):
        _page(workdir)


def test_pictures_can_stand_in_a_folder_or_be_left_out(workdir):
    html = _page(workdir, "--pictures=folder")
    files = workdir / "page" / "index_files"
    assert sorted(path.name for path in files.iterdir()) == ["image-0.jpg", "part-0.js"]
    assert "data:image" not in html and "tuned says" not in html
    assert "tuned says" in (files / "part-0.js").read_text(encoding="utf-8")
    (workdir / "data/images/a.png").unlink()
    html = _page(workdir, "--pictures=none")
    assert "data:image" not in html and "tuned says" in html and not files.exists()


def test_two_systems_of_one_name_are_refused(workdir):
    twice = workdir / "predictions" / "tuned.jsonl"
    with pytest.raises(UserError, match="is called tuned too"):
        _page(workdir, f"--predictions={twice}", f"--predictions={twice}")


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not JSON"), ("[]", "expected a JSON object, found list")]
)
def test_files_that_are_no_objects_are_named(workdir, content, message):
    (workdir / "metrics.json").write_text(content)
    with pytest.raises(UserError, match=rf"metrics.json: {message}"):
        _page(workdir)


def test_unusable_flags_leave_with_two(workdir):
    for flags in (
        [],
        ["--max_images=0"],
        ["--no-such-flag"],
        ["--codec=none"],
        ["--benchmark=none"],
    ):
        with pytest.raises(SystemExit) as caught:
            report.main([f"--workdir={workdir}", "--out=x", *flags] if flags else [])
        assert caught.value.code == 2


def test_from_the_shell(tmp_path):
    command = [sys.executable, "-m", "cxrjax.report"]
    wrong = subprocess.run(
        [*command, f"--workdir={tmp_path}", f"--out={tmp_path}"], capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1
    told = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert told.returncode == 0 and "data/records/validation.jsonl" in told.stdout


@pytest.mark.parametrize("field", ["confidence", "resamples", "clustered_by"])
def test_a_score_that_score_did_not_write_is_refused(workdir, field):
    wrong = True if field == "clustered_by" else {"a": 1}
    bootstrap = {"confidence": 0.95, "resamples": 10, "seed": 0, field: wrong}
    (workdir / "score.json").write_text(json.dumps({"bootstrap": bootstrap}))
    with pytest.raises(UserError, match=r"bootstrap is .*score again"):
        _page(workdir)
    assert not (workdir / "page" / "index.html").exists()


@pytest.mark.parametrize("n", [{}, "many", 1e999])
def test_a_comparison_that_score_did_not_write_is_refused(workdir, n):
    keys = ("system", "compared_to", "protocol", "metric")
    row = dict.fromkeys(keys, "a") | dict.fromkeys(("difference", "ci_low", "ci_high"), 0.1)
    (workdir / "comparisons.json").write_text(json.dumps([{**row, "p": 1, "p_holm": 1, "n": n}]))
    with pytest.raises(UserError, match="comparisons: entry 1"):
        _page(workdir)


def test_half_of_a_surrogate_pair_in_a_prediction_is_shown_as_no_character(workdir):
    line = '{"question_id": "a-0", "text": "seen \\ud800", "boxes": []}'
    path = workdir / "predictions/base.jsonl"
    path.write_text("\n".join([line, *path.read_text().splitlines()[1:]]))
    _page(workdir)
    page = (workdir / "page" / "index.html").read_text(encoding="utf-8")
    assert "seen" in page and "\\ud800" not in page


@pytest.mark.parametrize("name", ["classes_seen_by_base", "remarks"])
def test_notes_are_lists(workdir, name):
    (workdir / "notes.json").write_text(json.dumps({name: True}))
    with pytest.raises(UserError, match=f"{name}: expected a list"):
        _page(workdir)
