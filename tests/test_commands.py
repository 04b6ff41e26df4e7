"""The way of `make demo`, in small: build, train, predict, score, report, evaluate, convert."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cxrjax.commands import build, convert, evaluate, predict, report, score, train
from cxrjax.errors import UserError
from cxrjax.evaluation.evaluation_run import model_name
from cxrjax.lock import file_lock, folder_lock
from cxrjax.models import PRESETS, VLM
from cxrjax.records import read_records
from cxrjax.tools import coordinates
from cxrjax.training.base_model import save_base
from cxrjax.training.config_file import load_config

pytestmark = pytest.mark.slow
_ROOT = Path(__file__).parents[1]
_TOKENIZER = _ROOT / "data" / "demo_base" / "tokenizer.model"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A finished demo of two steps: data, a base of random parameters, a run, predictions."""
    out = tmp_path_factory.mktemp("demo")
    build.main(
        ["--dataset=phantom", "--seed=5", "--images=16", "--validation_images=3"]
        + ["--long_side=96", "--processes=1", f"--out={out / 'data'}"]
    )
    config = load_config(str(_ROOT / "configs" / "demo_base.py"))
    model = VLM(PRESETS["tiny"], rngs=nnx.Rngs(0), share="image", unroll=True)
    save_base(out / "base", model, config, _TOKENIZER, dtype="bfloat16")
    train.main(_train_arguments(out))
    questions = out / "data" / "questions" / "validation.jsonl"
    for name, words in {
        "base": [f"--checkpoint={out / 'base'}", "--prompt=vqa"],
        "base_own_prompt": [f"--checkpoint={out / 'base'}"],
        "tuned": [f"--workdir={out / 'train'}"],
    }.items():
        predict.main([*words, f"--questions={questions}", f"--out={out / name}.jsonl"])
    return out


def _train_arguments(out, *overrides):
    records = out / "data" / "records"
    return [
        f"--config={_ROOT / 'configs' / 'vindr_lora.py'}:phantom",
        f"--workdir={out / 'train'}",
        f"--config.model.init_from={out / 'base'}",
        f"--config.data.train={records / 'train.jsonl'}",
        f"--config.data.validation={records / 'validation.jsonl'}",
        "--config.data.workers=0",
        "--config.model.unroll=false",
        "--config.decoding.max_answer_tokens=6",
        "--config.data.packed_buckets=(400,)",
        *overrides,
    ]


def test_the_run_leaves_what_the_contract_names(demo):
    run = demo / "train"
    for name in ("config.json", "run.json", "quality.json", "metrics.jsonl", "checkpoints"):
        assert (run / name).exists(), name
    assert list(run.glob("events.out.tfevents.*"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 2
    assert {"train/loss", "train/ce", "train/giou_loss", "validation/vqa/f1"} <= set(lines[-1])
    told = {"swapped_x", "argmax_iou", "spread/x_min", "mass_within_0.05/y_max", "n"}
    assert {f"validation/coordinates/left_half/{name}" for name in told} <= set(lines[-1])
    assert {"train/coordinates/swapped", "train/coordinates/spread/y_min"} <= set(lines[-1])
    assert json.loads((run / "run.json").read_text())["parameters"]["trainable"] > 0


def test_every_question_gets_a_line_and_the_model_never_sees_an_answer(demo):
    asked = list(read_records(demo / "data" / "questions" / "validation.jsonl"))
    assert all(not record.answers and record.gt_finding is None for record in asked)
    lines = [json.loads(line) for line in (demo / "tuned.jsonl").read_text().splitlines()]
    assert sorted(line["question_id"] for line in lines) == sorted(r.question_id for r in asked)
    named = "question_id text boxes labels box_scores answer_logprob decision_logprob"
    assert set(lines[0]) == set(f"{named} coordinate_logprob parse".split())
    own = [json.loads(line) for line in (demo / "base_own_prompt.jsonl").read_text().splitlines()]
    assert {line["question_id"] for line in own} == {
        record.question_id for record in asked if record.question_type != "What"
    }


def test_scores_and_page_from_those_files(demo, tmp_path, capsys):
    references = demo / "data" / "records" / "validation.jsonl"
    systems = [demo / f"{name}.jsonl" for name in ("base", "tuned")]
    score.main(
        ["--benchmark=vindr_cxr_vqa", f"--references={references}", f"--out={tmp_path}"]
        + [f"--predictions={path}" for path in systems]
    )
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert set(metrics) == {"base", "tuned"}
    assert metrics["tuned"]["strict"]["detection/f1@0.3"]["n"] == 3
    report.main(
        [f"--workdir={tmp_path}", f"--out={tmp_path}", f"--references={references}"]
        + [f"--image_root={demo / 'data'}", f"--training_log={demo / 'train' / 'metrics.jsonl'}"]
        + [f"--notes={_ROOT / 'data' / 'demo_base' / 'notes.json'}"]
        + [f"--predictions={path}" for path in systems]
    )
    page = (tmp_path / "index.html").read_text()
    assert "tuned" in page and "data:image/jpeg" in page
    capsys.readouterr()


def test_no_command_writes_where_another_process_does(demo, tmp_path):
    data = demo / "data"
    questions = data / "questions/validation.jsonl"
    references = f"--references={data / 'records/validation.jsonl'}"
    predicted = f"--predictions={demo / 'tuned.jsonl'}"
    (tmp_path / "scored").mkdir()
    scored = [f"--workdir={tmp_path / 'scored'}", references, predicted]
    (tmp_path / "scored/metrics.json").write_text("{}")
    cases = [
        (folder_lock, demo / "train", train, _train_arguments(demo)),
        (
            *(folder_lock, demo / "train/evaluation", evaluate),
            [f"--workdir={demo / 'train'}", "--benchmark=vindr_cxr_vqa"],
        ),
        (
            *(file_lock, demo / "tuned.jsonl", predict),
            [f"--workdir={demo / 'train'}", f"--questions={questions}"],
        ),
        (folder_lock, data, build, ["--dataset=phantom", "--images=2", "--validation_images=1"]),
        (folder_lock, tmp_path / "a", score, ["--benchmark=vindr_cxr_vqa", references, predicted]),
        (folder_lock, tmp_path / "b", report, scored),
        (file_lock, tmp_path / "c", convert, [f"--checkpoint={demo / 'train'}", "--to=peft"]),
    ]
    written = {path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.is_file()}
    for lock, place, command, words in cases:
        if command not in (train, evaluate):
            words = [*words, f"--out={place}"]
        with (
            lock(place),
            pytest.raises(
                UserError, match=rf"^{place}: in use by process \d+ .* choose another --"
            ),
        ):
            command.main(words)
    assert {p: p.stat().st_mtime_ns for p in demo.rglob("*") if p.is_file()} == written
    assert not list(tmp_path.rglob("*.lock")) and not list(demo.rglob("*.lock"))


def test_the_coordinates_of_a_run_and_of_a_base(demo, tmp_path, capsys):
    records = demo / "data" / "records" / "validation.jsonl"
    logged = json.loads((demo / "train" / "metrics.jsonl").read_text().splitlines()[-1])
    for model in (
        [f"--workdir={demo / 'train'}"],
        [f"--checkpoint={demo / 'base'}"],  # its prompt cannot ask What: those are left out
    ):
        out = tmp_path / "coordinates.json"
        coordinates.main([*model, f"--records={records}", f"--out={out}"])
        told = json.loads(out.read_text())
        assert set(told) == {"all", "left_half", "right_half"}
        counts = [told[half]["n"] for half in ("all", "left_half", "right_half")]
        assert counts[0] == counts[1] + counts[2] > 0
        assert len(told["all"]["mass_within_0.05"]) == len(told["all"]["argmax_error"]) == 4
        assert 0 <= told["all"]["swapped_x"] <= 1
        if model[0].startswith("--workdir"):
            assert told["all"]["n"] == logged["validation/coordinates/all/n"]
            np.testing.assert_allclose(
                told["all"]["spread"][0],
                logged["validation/coordinates/all/spread/x_min"],
                rtol=1e-4,
            )
    questions = demo / "data" / "questions" / "validation.jsonl"
    with pytest.raises(UserError, match=r"no answer|no record"):
        coordinates.main([*model, f"--records={questions}", f"--out={tmp_path / 'x.json'}"])
    capsys.readouterr()


def test_evaluate_equals_predict_then_score(demo, tmp_path):
    evaluate.main(
        [f"--workdir={demo / 'train'}", "--benchmark=vindr_cxr_vqa", f"--out={tmp_path}"]
        + ["--resamples=0", "--report", "--title=Of our ward"]
    )
    page = (tmp_path / "index.html").read_text()
    assert "Of our ward" in page and "Not found, so not shown: training log" not in page
    lines = sorted((tmp_path / "predictions.jsonl").read_text().splitlines())
    assert lines == sorted((demo / "tuned.jsonl").read_text().splitlines())
    assert "train" in json.loads((tmp_path / "metrics.json").read_text())


def test_evaluate_of_a_base_writes_event_files_of_its_own(demo, tmp_path):
    evaluate.main(
        [f"--checkpoint={demo / 'base'}", "--benchmark=vindr_cxr_vqa", f"--out={tmp_path}"]
        + [f"--references={demo / 'data' / 'records' / 'validation.jsonl'}", "--resamples=0"]
        + ["--prompt=vqa", "--max_answer_tokens=6"]
    )
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    told = set(accumulator.Tags()["tensors"])
    found = {"detection/recall@0.3", "parse_failure_rate"}  # the others may be undefined
    assert {f"evaluation/strict/{name}" for name in found} <= told
    assert {event.step for name in told for event in accumulator.Tensors(name)} == {0}


def test_evaluate_names_a_model_by_its_folder_and_wants_resamples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for image, name in (("shown", tmp_path.name), ("blind", "blind")):
        flags = evaluate.parse_arguments(
            ["--workdir=.", "--benchmark=vindr_cxr_vqa", f"--image={image}"]
        )
        assert model_name(flags) == name
    with pytest.raises(SystemExit) as end:
        evaluate.main(["--workdir=x", "--benchmark=vindr_cxr_vqa", "--resamples=-1"])
    assert end.value.code == 2 and "must not be negative" in capsys.readouterr().err


def test_devices_share_the_work_of_predict_as_the_mesh_says(demo, tmp_path):
    """A batch of five, raised to six for the two that share it; the last one is not full."""
    words = [f"--workdir={demo / 'train'}", "--mesh=data=2,tensor=4", "--images_per_batch=5"]
    questions = demo / "data" / "questions" / "validation.jsonl"
    predict.main([*words, f"--questions={questions}", f"--out={tmp_path / 'spread.jsonl'}"])
    lines = zip(_lines(tmp_path / "spread.jsonl"), _lines(demo / "tuned.jsonl"), strict=True)
    for ours, theirs in lines:
        for name in ("answer_logprob", "decision_logprob", "coordinate_logprob"):
            assert ours.pop(name) == pytest.approx(theirs.pop(name), abs=1e-3)
        assert ours.pop("box_scores") == pytest.approx(theirs.pop("box_scores"), abs=1e-3)
        assert ours == theirs
    with pytest.raises(UserError, match="tensor=8 does not divide the 4 attention heads"):
        predict.main([words[0], "--mesh=tensor=8", f"--questions={questions}", "--out=none"])


def _lines(path):
    return sorted(map(json.loads, path.read_text().splitlines()), key=lambda x: x["question_id"])


def test_a_blind_model_answers_as_on_grey_images(demo, tmp_path):
    """--image=blind against images that are grey on the disk, whatever else they were."""
    for image in (demo / "data" / "images").iterdir():
        grey = tmp_path / "data" / "images" / image.name
        grey.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(image) as picture:
            Image.new("L", picture.size, 128).save(grey)
    questions = demo / "data" / "questions" / "validation.jsonl"
    model = [f"--workdir={demo / 'train'}", f"--questions={questions}"]
    lines = {}
    for name, flags in {
        "blind": ["--image=blind"],
        "grey": [f"--image_root={tmp_path / 'data'}"],
        "shuffled": ["--image=shuffled"],
        "masked": ["--image=masked"],
    }.items():
        predict.main([*model, *flags, f"--out={tmp_path / name}.jsonl"])
        lines[name] = (tmp_path / f"{name}.jsonl").read_text()
    assert lines["blind"] == lines["grey"]
    seen = (demo / "tuned.jsonl").read_text()
    assert len({seen, *lines.values()}) == 4
    run, before = demo / "train", (demo / "train" / "metrics.jsonl").read_text()
    evaluate.main([f"--workdir={run}", "--benchmark=vindr_cxr_vqa", "--image=blind"])
    assert (run / "evaluation_blind" / "predictions.jsonl").read_text() == lines["blind"]
    assert set(json.loads((run / "evaluation_blind" / "metrics.json").read_text())) == {"blind"}
    assert (run / "metrics.jsonl").read_text() == before


def test_a_resumed_run_says_so_and_another_base_is_refused(demo, capsys):
    train.main(_train_arguments(demo))
    assert "resumed from the checkpoint of step 2" in capsys.readouterr().out
    other = VLM(PRESETS["tiny"], rngs=nnx.Rngs(1), share="image")
    config = load_config(str(_ROOT / "configs" / "demo_base.py"))
    save_base(demo / "other", other, config, _TOKENIZER)
    with pytest.raises(UserError, match="put the same base back"):
        train.main(_train_arguments(demo, f"--config.model.init_from={demo / 'other'}"))


def test_an_unreadable_image_leaves_its_questions_out_and_is_counted(demo, tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    (data / "records").mkdir(parents=True)
    (data / "images").mkdir()
    records = (demo / "data" / "records" / "train.jsonl").read_text().splitlines()
    (data / "records" / "train.jsonl").write_text("\n".join(records) + "\n")
    for path in (demo / "data" / "images").glob("*train*"):
        (data / "images" / path.name).write_bytes(path.read_bytes())
    first = json.loads(records[0])
    broken = data / first["image_path"]
    broken.write_bytes(broken.read_bytes()[:2000])
    arguments = _train_arguments(demo, f"--config.data.train={data / 'records' / 'train.jsonl'}")
    train.main([w for w in arguments if not w.startswith("--workdir")] + [f"--workdir={run}"])
    quality = json.loads((run / "quality.json").read_text())
    on_it = sum(json.loads(line)["image_id"] == first["image_id"] for line in records)
    assert quality["counts"]["unreadable_image"] == on_it
    assert all(broken.name in entry["found"] for entry in quality["set_aside"])


def test_the_plain_config_without_data_ends_with_one_line_that_helps(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "cxrjax.train", f"--config={_ROOT / 'configs' / 'vindr_lora.py'}"]
        + [f"--workdir={tmp_path}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_ROOT), "PATH": ""},
        check=False,
    )
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and ":demo" in errors[0] and "data/vindr" in errors[0]
