"""A data set of somebody else's package, behind an entry point: nothing of cxrjax names it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax import paper
from cxrjax.commands import build, predict, report, review, score, train
from cxrjax.errors import UserError
from cxrjax.records import read_records

_ROOT = Path(__file__).parents[2]
_ROWS = 12


@pytest.fixture(scope="module")
def installed():
    """The package as pip would have left it: modules and a dist-info folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent / "elsewhere")
        _forget()
        yield
    _forget()


def _forget():
    paper._entry_points.cache_clear()
    paper.find_paper.cache_clear()


@pytest.fixture(scope="module")
def built(installed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "source").mkdir()
    with open(folder / "source" / "table.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["image", "split", "finding", "box"])
        table.writeheader()
        for number in range(_ROWS):
            pixels = np.random.default_rng(number).integers(0, 255, (96, 80), np.uint8)
            Image.fromarray(pixels).save(folder / "source" / f"{number}.png")
            split, finding = "validation" if number < 3 else "train", ("nodule", "effusion")
            box = "10 20 40 60" if number % 3 else ""
            box = "10 20 400 60" if number == _ROWS - 1 else box  # leaves the image
            row = {"image": f"{number}.png", "split": split, "finding": finding[number % 2]}
            table.writerow(row | {"box": box})
    build.main(["--dataset=elsewhere", f"--source={folder / 'source'}", f"--out={folder / 'out'}"])
    return folder


def test_it_is_listed_and_built_and_its_records_are_read(built, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        build.main(["--help"])
    assert "elsewhere          Elsewhere's table and images" in capsys.readouterr().out
    manifest = json.loads((built / "out/manifest.json").read_text())
    assert manifest["dataset"] == "elsewhere"
    assert manifest["splits"]["train"]["questions"] == _ROWS - 4
    quality = json.loads((built / "out/quality.json").read_text())
    assert quality["counts"]["box_outside_image"] == 1
    (record, *_) = read_records(built / "out/records/train.jsonl")
    assert record.codec == "llava" and paper.closed_classes("elsewhere") == ("nodule", "effusion")


def test_its_own_rules_check_its_records(built, tmp_path, capsys):
    words = ["--check", "--processes=1", f"--out={tmp_path}", "--allow_leakage"]
    assert review.main([*words, f"--records={built / 'out'}"]) == 0
    text = (built / "out/records/validation.jsonl").read_text()
    (tmp_path / "other.jsonl").write_text(text.replace('"answer_key": "no"', '"answer_key": "yes"'))
    assert review.main([*words, f"--records={tmp_path / 'other.jsonl'}"]) == 0
    assert "e0: key 'yes' with 0 boxes" in capsys.readouterr().out


def test_predictions_are_scored_and_shown(built, tmp_path, capsys):
    records = f"--references={built / 'out/records/validation.jsonl'}"
    lines = [{"question_id": f"e{n}", "text": "Yes.", "boxes": []} for n in range(3)]
    (tmp_path / "yes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = [records, f"--predictions={tmp_path / 'yes.jsonl'}", f"--out={tmp_path}"]
    score.main(["--benchmark=elsewhere", "--resamples=0", *words])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["yes"]["strict"]["accuracy"]["value"] == pytest.approx(2 / 3)
    assert "Elsewhere (CC0; https://example.org/elsewhere)" in capsys.readouterr().out
    report.main([f"--workdir={tmp_path}", f"--image_root={built / 'out'}", *words])
    assert "Right answers" in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_a_model_learns_from_it_and_answers(built, tmp_path, monkeypatch):
    monkeypatch.chdir(_ROOT)  # the configuration names the shipped base
    records = built / "out/records"
    train.main(
        [
            "--config=configs/records_lora.py",
            f"--workdir={tmp_path}",
            "--config.benchmark=elsewhere",
        ]
        + [f"--config.data.{name}={records / name}.jsonl" for name in ("train", "validation")]
        + ["--config.training.steps=2", "--config.training.batch_images=8"]
        + ["--config.training.best_metric=accuracy", "--config.data.record_codec=llava"]
        + ["--config.decoding.max_answer_tokens=6", "--config.data.workers=0"]
        + ["--config.training.checkpoint_every=2", "--config.model.unroll=false"]
    )
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2 and "validation/accuracy" in last
    questions, out = built / "out/questions/validation.jsonl", tmp_path / "answers.jsonl"
    predict.main([f"--workdir={tmp_path}", f"--questions={questions}", f"--out={out}"])
    assert len(out.read_text().splitlines()) == 3


def test_what_is_not_installed_is_refused_with_what_is(built, tmp_path):
    line = (built / "out/records/train.jsonl").read_text().splitlines()[0]
    (tmp_path / "r.jsonl").write_text(line.replace('"elsewhere"', '"nowhere"'))
    told = "r.jsonl:1: dataset: .*no installed package has a data set 'nowhere'.*custom.*elsewhere"
    with pytest.raises(UserError, match=told):
        list(read_records(tmp_path / "r.jsonl"))
    with pytest.raises(UserError, match="'nowhere' is not known; installed: boxes, custom"):
        paper.find_paper("nowhere")


def test_a_name_that_two_packages_declare_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[cxrjax.papers]\ngemex = other:GEMEX\n")
    monkeypatch.syspath_prepend(tmp_path)
    _forget()
    told = "'gemex' is declared twice: cxrjax.papers.gemex:GEMEX and other:GEMEX; uninstall one"
    with pytest.raises(UserError, match=told):
        paper.find_paper("gemex")
    _forget()
