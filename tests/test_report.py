"""`python -m cxrjax.report`: what it finds in a work directory, and what it says when it cannot."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.commands import report
from cxrjax.errors import UserError
from tests.apps.servers import run_as_command


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A finished run of one image, laid out as the demo's."""
    root = tmp_path / "runs" / "demo"
    shutil.copytree(Path(__file__).parent / "apps" / "finished_run", root)
    (root / "data/images").mkdir()
    Image.fromarray(np.full((40, 30), 99, np.uint8)).save(root / "data/images/a.png")
    return root


def _page(workdir: Path, *flags: str) -> str:
    out = workdir / "page"
    report.main([f"--workdir={workdir}", f"--out={out}", *flags])
    return (out / "index.html").read_text(encoding="utf-8")


def test_the_demos_layout_is_found_without_options(workdir, capsys):
    html = _page(workdir)
    assert capsys.readouterr().out.strip() == str(workdir / "page" / "index.html")
    said = ("VinDr-CXR-VQA results: demo", "0.700", "base says", "tuned says", "1234", "A remark.")
    said += ("Ground truth: exact.", "Table 5", "data:image/jpeg", "first 2.5, last 1.5")
    for text in said:
        assert text in html
    assert "Not found" not in html


def test_a_plain_workdir_and_loose_records_are_found(workdir):
    for name in ("metrics.jsonl", "run.json"):
        (workdir / "train" / name).rename(workdir / name)
    html = _page(workdir)
    assert "1234" in html and "first 2.5, last 1.5" in html
    loose = workdir / "data" / "questions.jsonl"
    shutil.move(workdir / "data/records/validation.jsonl", loose)
    assert "data:image/jpeg" in _page(workdir, f"--references={loose}")


def test_what_is_optional_and_missing_is_said_on_the_page(workdir):
    shutil.rmtree(workdir / "train")
    for name in ("notes.json", "score.json", "tables.md"):
        (workdir / name).unlink()
    html = _page(workdir)
    assert "<h1>Results: demo</h1>" in html
    missing = ("training log", "what was run", "how score worked", "the benchmark&#39;s tables")
    for text in missing:
        assert f"Not found, so not shown: {text}" in html
    assert "No training log was given" in html and "No run.json was given" in html


REQUIRED = {
    "metrics.json": "metrics.json: no such file: run `python -m cxrjax.score`",
    "data/records/validation.jsonl": "validation.jsonl: no such file",
    "data/images/a.png": "a.png",
}


@pytest.mark.parametrize("name", REQUIRED)
def test_what_is_required_and_missing_is_a_user_error(workdir, name):
    (workdir / name).unlink()
    with pytest.raises(UserError, match=REQUIRED[name]):
        _page(workdir)
    assert not (workdir / "page" / "index.html").exists()


def test_files_can_be_named(workdir, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    for name in ("metrics.json", "predictions", "train", "data", "notes.json"):
        shutil.move(workdir / name, other / name)
    places = "metrics=metrics.json predictions=predictions/tuned.jsonl image_root=data "
    places += "references=data/records/validation.jsonl training_log=train/metrics.jsonl "
    places += "run=train/run.json notes=notes.json"
    named = (one.replace("=", f"={other}/", 1) for one in places.split())
    html = _page(workdir, "--title=Named", *(f"--{one}" for one in named))
    assert "Named" in html and "tuned says" in html and "base says" not in html
    assert "1234" in html and "A remark." in html


def test_files_must_be_there_once_and_at_least_one_system(workdir):
    for flag in ["metrics", "predictions", "references", "training_log", "run", "score", "notes"]:
        with pytest.raises(UserError, match=f"nowhere/{flag}"):
            _page(workdir, f"--{flag}=nowhere/{flag}")
    twice = workdir / "predictions" / "tuned.jsonl"
    with pytest.raises(UserError, match="is called tuned too"):
        _page(workdir, f"--predictions={twice}", f"--predictions={twice}")
    (workdir / "predictions/base.jsonl").unlink()
    assert "base says" not in _page(workdir)
    shutil.rmtree(workdir / "predictions")
    with pytest.raises(UserError, match="holds no predictions"):
        _page(workdir)


def test_a_second_workdir_stands_beside_the_first(workdir):
    second = workdir.parent / "other-run"
    shutil.copytree(workdir, second)
    scores = json.loads((second / "metrics.json").read_text())
    scores["tuned"]["strict"]["detection/f1@0.3"]["value"] = 0.123
    (second / "metrics.json").write_text(json.dumps({"tuned": scores["tuned"]}))
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
    compared = {"system": "tuned", "compared_to": "base", "protocol": "strict", "metric": "vqa/f1"}
    (workdir / "comparisons.json").write_text(json.dumps([_COMPARED | compared]))
    html = _page(workdir)
    assert "FROC. tuned: from (0, 0.5) to (1, 1)." in html and "+0.125" in html
    second = workdir.parent / "other-run"
    shutil.copytree(workdir, second)
    html = _page(workdir, f"--compare={second}")
    assert "other-run/tuned: from (0, 0.5)" in html and "other-run: Table 5" in html


def test_pictures_can_stand_in_a_folder_or_be_left_out(workdir):
    html = _page(workdir, "--pictures=folder")
    files = workdir / "page" / "index_files"
    assert sorted(path.name for path in files.iterdir()) == ["image-0.jpg", "part-0.js"]
    assert "data:image" not in html and "tuned says" not in html
    assert "tuned says" in (files / "part-0.js").read_text(encoding="utf-8")
    (workdir / "data/images/a.png").unlink()
    html = _page(workdir, "--pictures=none")
    assert "data:image" not in html and "tuned says" in html and not files.exists()


_COMPARED = dict.fromkeys(("system", "compared_to", "protocol", "metric"), "a")
_COMPARED |= dict.fromkeys(("difference", "ci_low", "ci_high", "p", "p_holm"), 0.125) | {"n": 1}
_BOOTSTRAP = {"confidence": 0.95, "resamples": 10, "seed": 0}
_NOT_SCORES = [
    ("metrics.json", [], "metrics.json: expected a JSON object, found list"),
    ("comparisons.json", {}, r"comparisons\.json: expected a JSON list"),
    *(
        ("score.json", {"bootstrap": _BOOTSTRAP | wrong}, r"bootstrap is .*score again")
        for wrong in ({"confidence": {"a": 1}}, {"resamples": {"a": 1}}, {"clustered_by": True})
    ),
    *(
        ("comparisons.json", [_COMPARED | {"n": n}], r"comparisons\.json: 0/n is")
        for n in ({}, "many", 1e999)
    ),
    *(
        ("notes.json", {name: True}, f"{name}: expected a list")
        for name in ("classes_seen_by_base", "remarks")
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), _NOT_SCORES)
def test_a_file_that_score_did_not_write_is_refused(workdir, name, content, message):
    (workdir / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        _page(workdir)
    assert not (workdir / "page" / "index.html").exists()
    (workdir / name).write_text("{")
    with pytest.raises(UserError, match=rf"{name}: not JSON"):
        _page(workdir)


def test_the_shell_and_unusable_flags_leave_with_two(tmp_path, capsys, workdir):
    assert run_as_command("report", f"--workdir={tmp_path}", f"--out={tmp_path}") == 2
    wrong = capsys.readouterr().err
    assert wrong.startswith("error: ") and wrong.count("\n") == 1
    assert run_as_command("report", "--help") == 0
    assert "data/records/validation.jsonl" in capsys.readouterr().out
    of_it = [f"--workdir={workdir}", "--out=x"]
    for flag in ("--max_images=0", "--no-such-flag", "--codec=none", "--benchmark=none", None):
        with pytest.raises(SystemExit) as caught:
            report.main([*of_it, flag] if flag else [])
        assert caught.value.code == 2


def test_half_of_a_surrogate_pair_in_a_prediction_is_shown_as_no_character(workdir):
    line = '{"question_id": "a-0", "text": "seen \\ud800", "boxes": []}'
    path = workdir / "predictions/base.jsonl"
    path.write_text("\n".join([line, *path.read_text().splitlines()[1:]]))
    page = _page(workdir)
    assert "seen" in page and "\\ud800" not in page
