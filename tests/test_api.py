"""The Python face: lazy, callable beside the commands, and as docs/python.md says."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import cxrjax
from cxrjax import api
from cxrjax.api import training
from cxrjax.api.pictures import as_file
from cxrjax.errors import Preempted, UserError
from cxrjax.images.decode import image_size, read_image
from cxrjax.records import QARecord, write_records
from tests.apps.annotations import samples
from tests.apps.page_records import make_record

ROOT = Path(__file__).parents[1]


def test_importing_is_instant_and_brings_nothing():
    code = (
        "import sys, cxrjax; print([m for m in ('jax', 'numpy', 'pydantic') if m in sys.modules], "
        "'load' in dir(cxrjax))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["[]", "True"], done.stderr


def test_commands_of_the_same_names_stay_commands():
    from cxrjax.commands import score, train

    assert cxrjax.train is api.train and cxrjax.score is api.score
    assert train.main and score.main
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = cxrjax.lode


def test_what_is_no_image_is_told():
    for image, found in (
        (np.zeros((4, 4), np.float32), "float32"),
        (np.zeros((4, 4, 4), np.uint8), r"\[4, 4, 4\]"),
        ("nowhere.png", "nowhere.png"),
    ):
        with pytest.raises(UserError, match=found):
            image_size(as_file(image))


def test_images_of_every_kind_are_the_same(tmp_path):
    pixels = (np.arange(12 * 8).reshape(12, 8) * 2).astype(np.uint8)
    PIL.Image.fromarray(pixels).save(tmp_path / "a.png")
    rgb, file = np.repeat(pixels[..., None], 3, axis=2), tmp_path / "a.png"
    for image in (pixels, rgb, file.read_bytes(), PIL.Image.fromarray(pixels), str(file)):
        np.testing.assert_array_equal(read_image(as_file(image))[..., 0], pixels)


def record(number: int) -> QARecord:
    answer = {"labels": ["effusion"], "polarity": "pos"}
    place = {"image_id": f"i{number}", "image_hw": (60, 80), "split": "validation"}
    place["variables"] = {"finding": "effusion"}
    text, box = "The effusion is at <loc_10_20_40_50>.", [10, 20, 40, 50]
    return make_record(f"q{number}", text, [box], answer=answer, **place)


def line(number: int, box: list[float]) -> dict:
    text = "The effusion is here."
    return {"question_id": f"q{number}", "text": text, "boxes": [box], "labels": ["effusion"]}


def test_scores_are_rows_that_pandas_takes(tmp_path):
    right = [10 / 80, 20 / 60, 40 / 80, 50 / 60]
    records = [record(n) for n in range(6)]
    good = [line(n, right) for n in range(6)]
    bad = [line(n, [0.6, 0.0, 0.9, 0.2]) for n in range(6)]
    table = cxrjax.score(records, {"good": good, "bad": bad}, resamples=20)
    assert table.value("localization/mean_iou", "good") == pytest.approx(1, abs=1e-3)
    assert table.value("localization/mean_iou", "bad") == 0
    assert {*table[0]} == {"system", "protocol", "metric", "value", "ci_low", "ci_high", "n"}
    assert len(table.only("localization/mean_iou")) == 2
    assert "<th>metric</th>" in table._repr_html_()
    with pytest.raises(UserError, match="no figure 'nothing'"):
        table.value("nothing")
    # The same of files.
    write_records(tmp_path / "r.jsonl", records)
    (tmp_path / "p.jsonl").write_text("".join(f"{one}\n".replace("'", '"') for one in good))
    again = cxrjax.score(tmp_path / "r.jsonl", tmp_path / "p.jsonl", resamples=20)
    assert again.value("localization/mean_iou") == table.value("localization/mean_iou", "good")
    pandas = pytest.importorskip("pandas")
    assert list(pandas.DataFrame(table).columns) == [*table[0]]
    with pytest.raises(UserError, match="expected one of own, cxr_qba"):
        cxrjax.score(records, good, benchmark="none")


def test_records_of_a_file_and_of_a_build(tmp_path):
    (tmp_path / "records").mkdir()
    write_records(tmp_path / "records" / "validation.jsonl", [record(0)])
    assert cxrjax.read_records(tmp_path, "validation") == [record(0)]
    assert cxrjax.read_records(tmp_path / "records" / "validation.jsonl")[0].question_id == "q0"


def stub_training(monkeypatch, tmp_path, steps: int, ending: BaseException | None = None):
    from cxrjax.api import training_run

    asked = []

    def run(config, workdir, preemption, recipe):
        workdir.mkdir(exist_ok=True)
        with open(workdir / "metrics.jsonl", "a") as log:
            for step in range(1, steps + 1):
                log.write(f'{{"step": {step}, "train/loss": 1.0}}\n{{"step')
                log.flush()
                time.sleep(0.05)
                log.seek(log.tell() - 6)
                log.truncate()
                if preemption.requested:
                    asked.append(step)
                    raise Preempted(preemption.reason)
        if ending is not None:
            raise ending

    monkeypatch.setattr(training_run, "train_run", run)
    monkeypatch.setattr(training, "_LOOKED_EVERY", 0.01)
    monkeypatch.chdir(ROOT)
    return cxrjax.train(workdir=tmp_path / "run", overrides={"training.steps": 5}), asked


def test_training_yields_the_figures_of_each_step_once(monkeypatch, tmp_path):
    figures, _ = stub_training(monkeypatch, tmp_path, 5)
    assert [one["step"] for one in figures] == [1, 2, 3, 4, 5]


def test_what_training_raises_comes_out_of_the_loop(monkeypatch, tmp_path):
    figures, _ = stub_training(monkeypatch, tmp_path, 1, UserError("no records"))
    with pytest.raises(UserError, match="no records"):
        list(figures)


def test_leaving_the_loop_stops_the_run(monkeypatch, tmp_path):
    figures, asked = stub_training(monkeypatch, tmp_path, 200)
    for _ in figures:
        break
    figures.close()
    assert asked and asked[0] < 200


def test_a_key_that_is_none_is_refused_before_the_loop(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match="stepz"):
        cxrjax.train("configs/records_lora.py", "x", {"training.stepz": 1})
    with pytest.raises(UserError, match="nowhere: not there; expected a folder"):
        cxrjax.load("nowhere")


# What the examples leave, looked at in their own process.
AFTER = """
import numpy as np, PIL.Image
from cxrjax.errors import UserError

assert len(replies) == 2 and replies[0].text == reply.text
width, height = PIL.Image.open(chest).size
assert reply._repr_png_().startswith(b"\\x89PNG") and reply.picture.shape == (height, width, 3)
assert str(reply) in reply._repr_html_() and "(1)" in reply.words
assert len(reply.boxes) == 1 and "<loc" in reply.text and "<loc" not in reply.words
assert 0 < reply.confidence <= 1 and 0 < reply.boxes[0].confidence <= 1
assert abs(reply.boxes[0].pixels[2] - width * reply.boxes[0].fractions[2]) < 0.1
assert {row["system"] for row in table} == {"base", "tuned"}
assert model.ask(np.asarray(PIL.Image.open(chest)), "Where is the right lung?").text == reply.text
try:
    model.ask(chest, [])
except UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path):
    """In order, in one process, as somebody would type them."""
    from cxrjax.commands import build

    samples.draw_images(tmp_path / "data" / "images")
    samples.write_format("coco", tmp_path / "data")
    runs = tmp_path / "runs"
    out = runs / "own" / "data"
    build.main(["--dataset=boxes", f"--input={tmp_path / 'data'}", f"--out={out}", "--processes=1"])
    validation = out / "records" / "validation.jsonl"
    # One question, for which the first example has compiled; half the time is XLA's.
    validation.write_text(f"{validation.read_text().splitlines()[0]}\n")
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 5
    # A radiograph: of noise the base may say anything.
    chest = str(min((ROOT / "data/radiographs/images").iterdir()))
    code = "\n".join(blocks).replace('"chest.png"', repr(chest)).replace('"runs/', f'"{runs}/')
    (tmp_path / "examples.py").write_text(f"{code}\nchest = {chest!r}\n{AFTER}")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, str(tmp_path / "examples.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "The right lung is located at (1)." in done.stdout
    assert "no question: give at least one" in done.stdout
