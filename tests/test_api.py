"""The Python API: lazy, callable beside the commands, and as docs/python.md says."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import cxrjax
from cxrjax import api
from cxrjax.api.pictures import as_file
from cxrjax.errors import UserError
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


def test_what_is_offered_is_typed_and_explained():
    """Names, defaults and docstrings of each function; the list stands in two places."""
    assert set(dir(cxrjax)) - {"__version__"} == set(api.__all__) == set(dir(api))
    for name in api.__all__:
        offered = getattr(cxrjax, name)
        assert offered.__doc__ and not isinstance(offered, types.ModuleType), name
        if isinstance(offered, types.FunctionType):
            for argument in inspect.signature(offered).parameters.values():
                assert argument.annotation not in (inspect.Parameter.empty, Any, "Any"), name
                assert argument.kind is not inspect.Parameter.VAR_POSITIONAL, name
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = cxrjax.lode


def test_a_command_is_no_module_to_import():
    """It would take the place of the function of its name."""
    with pytest.raises(ImportError, match="from cxrjax import train"):
        importlib.import_module("cxrjax.train")
    assert cxrjax.train is api.train


def test_a_wrong_name_is_told_the_nearest():
    assert cxrjax.Prompt("vqa") is cxrjax.Prompt.vqa and cxrjax.BoxFormat.qwen2_5_vl == "qwen2.5_vl"
    for kind, wrong, right in (
        (cxrjax.Prompt, "detct", "detect"),
        (cxrjax.BoxFormat, "paligema", "paligemma"),
        (cxrjax.AnswerForm, "yesno", "yes_no"),
    ):
        with pytest.raises(UserError, match=f"'{wrong}': no such .* is '{right}'; expected"):
            kind(wrong)
    for option, found in (
        ({"gramar": "none"}, "'gramar': no such decoding option; the nearest is 'grammar'"),
        ({"boxes": "smooth"}, "'smooth': no such box reading; the nearest is 'smoothed'"),
        ({"max_answer_tokens": "9"}, "max_answer_tokens='9': input should be a valid integer"),
        ({"prompt": "vqaa"}, "no such prompt; the nearest is 'vqa'"),
    ):
        with pytest.raises(UserError, match=found):
            cxrjax.load(ROOT / "data/real_base", **option)


def test_builds_take_options_by_name(tmp_path):
    samples.draw_images(tmp_path / "in" / "images")
    samples.write_format("coco", tmp_path / "in")
    for dataset, options, found in (
        ("boxes", {"sorce": "x"}, "no option 'sorce'; the nearest is 'source'"),
        ("boxes", {}, "option 'source' is missing"),
        ("boxes", {"source": "x", "seed": "one"}, "option 'seed': found 'one'; input should be"),
        ("boxes", {"source": "x", "units": "miles"}, "option 'units': found 'miles'"),
        ("nothing", {}, "data set 'nothing' is not known"),
    ):
        with pytest.raises(UserError, match=found):
            cxrjax.build(dataset, tmp_path / "out", options)
    data = cxrjax.import_boxes(tmp_path / "in", tmp_path / "out")
    assert {*data.splits} == {"train", "validation"} and data.statistics and data.quality
    assert data.records("validation") == cxrjax.read_records(data, "validation")
    assert "images" in cxrjax.export(data, "coco", tmp_path / "coco")
    with pytest.raises(UserError, match="'coko': no such tool; expected one of coco"):
        cxrjax.export(data, "coko", tmp_path / "coco")
    assert cxrjax.review(data, tmp_path / "review", sample=3).is_file()
    with pytest.raises(UserError, match="no review there"):
        cxrjax.review(data, tmp_path / "x", sample=3, corrected=tmp_path / "corrected")


def test_tables_are_shown_and_taken_by_pandas(monkeypatch):
    table = cxrjax.Table([{"a": 1.0, "b": None}, {"a": 2, "c": "<x>"}])
    shown = table._repr_html_()
    assert "<th>c</th>" in shown and "1.000" in shown and "&lt;x&gt;" in shown
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas, or use the rows"):
        table.to_pandas()


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
    assert cxrjax.score(records, {"bad": bad}, resamples=0, box_format="paligemma")
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


def test_training_is_given_a_builds_splits_and_returns_the_run(monkeypatch, tmp_path):
    from cxrjax.api import training_run

    seen = {}

    def run(config, workdir, preemption, **more):
        seen.update(more, config=config, hears=preemption is not None)
        workdir.mkdir()
        (workdir / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n')

    monkeypatch.setattr(training_run, "train_run", run)
    monkeypatch.chdir(ROOT)
    (tmp_path / "records").mkdir()
    with pytest.raises(UserError, match=r"no records/train.jsonl in it; expected a build"):
        cxrjax.train(data=tmp_path)
    write_records(tmp_path / "records" / "train.jsonl", [record(0)])
    done = cxrjax.train(workdir=tmp_path / "run", overrides={"training.steps": 5}, data=tmp_path)
    config = seen["config"]
    assert config.data.train == str(tmp_path / "records" / "train.jsonl")
    assert config.data.validation is None and config.training.steps == 5 and seen["hears"]
    assert seen["recipe"] == "configs/records_lora.py" and Path(done) == done.folder
    assert done.figures == [{"step": 1, "train/loss": 2.0}]
    with pytest.raises(UserError, match="for a configuration's file"):
        cxrjax.train(config, tmp_path / "x", {"training.steps": 5})


def test_a_key_that_is_none_is_refused(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match="stepz"):
        cxrjax.train("configs/records_lora.py", "x", {"training.stepz": 1})
    for source, found in (("nowhere", "not there; expected a folder"), (__file__, "not a GGUF")):
        with pytest.raises(UserError, match=found):
            cxrjax.load(source)


# Somebody at CVAT: draws what was true; tests of the import read an export again.
BY_HAND = """
import shutil
assert open("RUNS/own/to_correct/annotations.xml").read().count("<image ") == len(
    {record.image_id for record in data.records("train")}
)
shutil.copy("export.zip", "corrected.zip")
"""
# What the examples leave, looked at in their own process.
AFTER = """
import numpy as np, PIL.Image

width, height = PIL.Image.open(chest).size
assert answer._repr_png_().startswith(b"\\x89PNG") and "base64" in answer._repr_html_()
assert str(answer) in answers._repr_html_() and "(1)" in answer.text
assert answer.boxes.shape == (1, 4) and "<loc" in answer.raw and "<loc" not in answer.text
assert 0 < answer.confidence <= 1 and 0 < answer.scores[0] <= 1 and answer.labels == (None,)
assert abs(answer.pixel_boxes[0, 2] - width * answer.boxes[0, 2]) < 0.1
assert [one.text for one in answers][0] == answer.text and len(answers.table()) == 2
assert "".join(model.stream(chest, "Where is the left lung?")) == answers[1].raw
assert {row["system"] for row in table} == {"base", "tuned"}
assert model.ask(np.asarray(PIL.Image.open(chest)), "Where is the right lung?").raw == answer.raw
for image, question in ((chest, []), (chest, 5), ([chest], "Where is the right lung?")):
    try:
        model.ask(image, question)
    except UserError as error:
        print(error)
"""


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path):
    """In order, in one process, as somebody would type them; the first is twelve lines."""
    samples.draw_images(tmp_path / "in" / "images")
    samples.write_format("cvat", tmp_path / "in")
    shutil.make_archive(str(tmp_path / "export"), "zip", tmp_path / "in")
    runs = tmp_path / "runs"
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 7
    loop = [line for line in blocks[0].splitlines() if line and line[0] != "#"]
    assert len(loop) == 12 and loop[0] == "import cxrjax"
    code = re.sub("(?m)^# Open .*", lambda _: BY_HAND, "\n".join(blocks))
    # Half the time is XLA's: no evaluation while training.
    code = code.replace("quick = {", 'quick = {"data.validation": None, ')
    # A radiograph: of noise the base may say anything.
    chest = str(min((ROOT / "data/radiographs/images").iterdir()))
    for name, place in (
        ('"chest.png"', repr(chest)),
        ('"runs/', f'"{runs}/'),
        ("RUNS", str(runs)),
        ('"export.zip"', repr(str(tmp_path / "export.zip"))),
        ('"corrected.zip"', repr(str(tmp_path / "corrected.zip"))),
    ):
        code = code.replace(name, place)
    (tmp_path / "examples.py").write_text(f"{code}\nchest = {chest!r}\n{AFTER}")
    one_device = re.sub(r"--\w+device_count=\d+", "", os.environ["XLA_FLAGS"])
    environment = os.environ | {"XLA_FLAGS": one_device}
    environment |= {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    command = [sys.executable, str(tmp_path / "examples.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    for told in (
        "The right lung is located at (1).",
        "'smooth': no such box reading; the nearest is 'smoothed'",
        "no question: give at least one",
        "a question of type int: expected words",
        "a list of images: ask about one at a time",
    ):
        assert told in done.stdout
