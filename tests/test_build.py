"""The build command: flags, exit codes, one line for user errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cxrjax import build
from cxrjax.errors import UserError

SAMPLE = Path(__file__).parents[1] / "data" / "vindr_cxr_vqa" / "sample"


def _run(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "cxrjax.build", *flags], capture_output=True, text=True, timeout=300
    )


def test_command_ends_with_zero_and_says_where(tmp_path):
    source = f"--source={SAMPLE / 'train.csv'}"
    done = _run("--dataset=vindr_cxr_vqa", source, f"--out={tmp_path}")
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path) in done.stdout
    assert json.loads((tmp_path / "statistics.json").read_text())["images"]["value"] == 2


def test_user_error_is_one_line_and_code_two(tmp_path):
    done = _run("--dataset=vindr_cxr_vqa", "--source=missing.csv", f"--out={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: missing.csv: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "flags", [[], ["--dataset=nope", "--out=x"], ["--dataset=phantom"], ["--imagez=3"]]
)
def test_unusable_flags_are_code_two(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        build.main(flags)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit) as caught:
        build.main(["--help"])
    assert caught.value.code == 0
    assert "--normal_percent" in capsys.readouterr().out


def test_source_is_needed(tmp_path):
    with pytest.raises(UserError, match="needs --source"):
        build.main(["--dataset=records", f"--out={tmp_path}"])


def test_unwritable_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write: Not a directory"):
        build.main(
            ["--dataset=vindr_cxr_vqa", f"--source={SAMPLE}", f"--out={tmp_path / 'file' / 'out'}"]
        )


@pytest.mark.parametrize("blocked", ["records/train.jsonl", "data_v1.json", "quality.json"])
def test_file_that_cannot_be_written(tmp_path, blocked):
    (tmp_path / blocked).mkdir(parents=True)
    with pytest.raises(UserError, match=f"{blocked}: cannot write: Is a directory"):
        build.main(["--dataset=vindr_cxr_vqa", f"--source={SAMPLE}", f"--out={tmp_path}"])


def test_another_builds_splits_are_not_mixed_in(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "test.jsonl").write_text("")
    with pytest.raises(UserError, match=r"test\.jsonl: left by another build"):
        build.main(["--dataset=vindr_cxr_vqa", f"--source={SAMPLE}", f"--out={tmp_path}"])


def test_phantom(tmp_path):
    build.main(
        [
            "--dataset=phantom",
            f"--out={tmp_path}",
            "--images=3",
            "--validation_images=2",
            "--seed=5",
            "--long_side=64",
            "--processes=1",
            "--image_format=jpg",
            "--normal_percent=0",
        ]
    )
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    options = {"seed": 5, "long_side": 64, "image_format": "jpg", "normal_percent": 0}
    assert {name: manifest[name] for name in options} == options
    assert len(list((tmp_path / "images").glob("*.jpg"))) == 5
