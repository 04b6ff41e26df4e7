"""Several real processes do what one does: training, evaluation, prediction, resuming."""

import json
import os
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from cxrjax.lock import folder_lock
from cxrjax.training.config import flatten
from tests.papers.cases import data
from tests.training.conftest import read_metrics

_STEPS = 6


def _examples(workdir):
    """(step, row) -> what was read there; whoever has read it twice has read the same."""
    found = {}
    for path in (workdir / "examples").iterdir():
        for line in map(json.loads, path.read_text().splitlines()):
            key = line.pop("step"), line.pop("row")
            assert found.setdefault(key, line) == line
    return found


def _assert_same_figures(ours, theirs):
    ours, theirs = (read_metrics(workdir, timed=False) for workdir in (ours, theirs))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name, value in b.items():
            expected = value and pytest.approx(value, rel=2e-4, abs=1e-5)  # null stays null
            assert a[name] == expected, (a["step"], name)


def _parameters(workdir):
    path = workdir.absolute() / "checkpoints" / str(_STEPS) / "parameters"
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with ocp.StandardCheckpointer() as checkpointer:
        saved = checkpointer.metadata(path).item_metadata.tree
        shapes = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
            for name, leaf in saved.items()
        }
        found = checkpointer.restore(path, shapes)
    return {name: np.asarray(value) for name, value in found.items()}


def _assert_same_run(ours, theirs):
    """What was learned of the same data in as many steps."""
    _assert_same_figures(ours, theirs)
    ours, theirs = _parameters(ours), _parameters(theirs)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.fixture(scope="module")
def alone(experiment, start_small, finish):
    """The workdir of the run in one process."""
    workdir = experiment / "alone"
    config = f"--config={experiment / 'experiment.py'}"
    finish(start_small(1, "train", config, f"--workdir={workdir}"))
    return workdir


@pytest.fixture
def train(experiment, start_small, finish, tmp_path):
    """`train(processes, name, *settings, code=0, ...)` gives what it wrote and the workdir."""

    def run(processes, name, *settings, code=0, **options):
        arguments = [f"--config={experiment / 'experiment.py'}", f"--workdir={tmp_path / name}"]
        process = start_small(processes, "train", *arguments, *settings, **options)
        return finish(process, code), tmp_path / name

    return run


@pytest.mark.slow
def test_two_processes_train_and_evaluate_as_one(alone, train):
    output, workdir = train(2, "two")
    assert _examples(workdir) == _examples(alone)
    assert len(_examples(workdir)) == _STEPS * 8
    _assert_same_run(workdir, alone)
    assert "validation/vqa/f1" in read_metrics(workdir)[-1]
    # Each rows' process sets aside what it cannot read; it is counted once, over all of them.
    quality = json.loads((workdir / "quality.json").read_text())
    assert quality == json.loads((alone / "quality.json").read_text())
    assert quality["counts"]["unreadable_image"] == 2
    assert output.count("rejected train12_0") == output.count("rejected train12_1") == 1
    assert json.loads((workdir / "run.json").read_text())["devices"]["processes"] == 2
    lines = [re.sub(r"^\[\d\] ", "", line) for line in output.splitlines()]
    assert sum(line.startswith("step 6/6") for line in lines) == 1, "only the first one talks"
    assert len(list(workdir.glob("events.out.tfevents.*"))) == 1


@pytest.mark.slow
def test_two_processes_learn_from_rewards_as_one(train):
    settings = ["rl.kind=grpo", "rl.updates=2", "rl.group_size=2", "training.steps=2"]
    words = [f"--config.{setting}" for setting in settings]
    one, two = (train(processes, f"{processes}", *words)[1] for processes in (1, 2))
    # Each has drawn and rewarded its own rows; what was learned of them is one.
    _assert_same_figures(two, one)
    assert read_metrics(one)[-1]["train/rl/length"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_process_before_the_first_step_ends_both_alike(train, signalled):
    output, workdir = train(2, "told", code=75, SIGNALLED=str(signalled))
    assert f"[{signalled}] SIGTERM; resume by the same command (exit code 75)" in output
    assert (
        f"[{1 - signalled}] another process was told to stop; resume by the same command" in output
    )
    assert "Traceback" not in output and "Check failure" not in output
    assert not list((workdir / "checkpoints").glob("[0-9]*"))


@pytest.mark.slow
def test_the_first_process_tells_of_a_slow_input_pipeline_of_another(train):
    settings = {"steps": 12, "log_every": 6, "checkpoint_every": 0, "log_examples": False}
    words = [f"--config.training.{name}={value}" for name, value in settings.items()]
    output, workdir = train(2, "slow", *words, SLOW="1")
    (warning,) = (line for line in output.splitlines() if "the input pipeline is the limit" in line)
    assert re.match(r"\[0\] warning: step (8|9|1[0-2]): ", warning), "after eight steps"
    assert warning.endswith(" (processes 1)")
    # Of the other, whose own wait is next to none.
    assert read_metrics(workdir)[-1]["train/data_wait_seconds"] > 0.1


@pytest.mark.slow
def test_damaged_checkpoints_are_refused_by_both_processes_in_one_line(
    alone, train, experiment, start_small, finish, tmp_path
):
    workdir = tmp_path / "damaged"
    shutil.copytree(alone, workdir)
    for file in (workdir / "checkpoints").glob("*/base/metadata"):
        file.write_text("{")
    starting, _ = train(2, "damaged", code=2)
    words = [f"--workdir={workdir}", f"--questions={experiment / 'questions/validation.jsonl'}"]
    predicting = finish(start_small(2, "predict", *words, f"--out={tmp_path / 'none.jsonl'}"), 2)
    for output, told in ((starting, "no checkpoint is whole"), (predicting, "is damaged: ")):
        assert output.count("] error: ") == output.count(told) == 2, output
        assert "Traceback" not in output and "Check failure" not in output


@pytest.mark.heavy
def test_resumes_with_another_number_of_processes_and_of_slices(alone, train):
    slices = "--config.mesh.slices=2"
    _, workdir = train(2, "changing", slices, code=130, stop_before=3)
    output, _ = train(1, "changing", code=130, stop_before=5)
    assert "resumed from the checkpoint of step 2" in output
    assert "resumed from the checkpoint of step 4" in train(4, "changing", slices)[0]
    names = {path.name for path in (workdir / "examples").iterdir()}
    assert names == {"0_of_1.jsonl", "0_of_2.jsonl", "1_of_2.jsonl"} | {
        f"{i}_of_4.jsonl" for i in range(4)
    }
    assert _examples(workdir) == _examples(alone)
    _assert_same_run(workdir, alone)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("processes", "devices", "settings"),
    data(__file__)["meshes"],
)
def test_meshes_over_processes_train_as_one_device(processes, devices, settings, alone, train):
    _, workdir = train(processes, "mesh", *settings, devices=devices)
    assert _examples(workdir) == _examples(alone)
    _assert_same_run(workdir, alone)


@pytest.mark.heavy
def test_processes_cache_features_of_a_tower_that_none_of_them_has_whole(train, tmp_path):
    runs = []
    for name, processes, fsdp in (("one", 1, 1), ("split", 2, 2)):
        settings = (
            f"--config.data.feature_cache={tmp_path / f'features_{name}'}",
            "--config.trainable=('decoder/.*', 'projector/.*')",
            f"--config.mesh.fsdp={fsdp}",
        )
        runs.append(train(processes, name, *settings)[1])
    _assert_same_figures(*runs)
    one, split = (
        {path.relative_to(folder) for path in folder.rglob("*.npy")}
        for folder in (tmp_path / "features_one", tmp_path / "features_split")
    )
    assert one == split and len(one) == 12 + 10


@pytest.mark.heavy
def test_every_process_reads_its_part_of_a_base(
    alone, train, experiment, start_small, finish, read_lines, tmp_path
):
    base = tmp_path / "base"
    finish(start_small(1, "convert", f"--checkpoint={alone}", f"--out={base}"))
    settings = {"model.init": "checkpoint", "model.init_from": base, "lora.rank": 2}
    settings |= {"lora.alpha": 4.0, "model.frozen_dtype": "int8"}
    lora = [f"--config.{key}={value}" for key, value in settings.items()]
    lora.append("--config.trainable=('/lora/',)")
    _, alone_on_base = train(1, "one", *lora)
    _, workdir = train(2, "two", *lora, "--config.mesh.tensor=2")
    _assert_same_run(workdir, alone_on_base)
    questions = experiment / "questions/validation.jsonl"
    arguments = [f"--workdir={workdir}", f"--questions={questions}", f"--image_root={experiment}"]
    finish(start_small(1, "predict", *arguments, f"--out={tmp_path / 'one.jsonl'}"))
    arguments.append("--mesh=tensor=2")
    finish(start_small(2, "predict", *arguments, f"--out={tmp_path / 'two.jsonl'}"))
    _same_predictions(read_lines(tmp_path / "two.jsonl"), read_lines(tmp_path / "one.jsonl"))


def _same_predictions(ours, theirs):
    assert [line["question_id"] for line in ours] == [line["question_id"] for line in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert (a["text"], a["parse"]) == (b["text"], b["parse"])
        if b["answer_logprob"] is None:
            assert a["answer_logprob"] is None
        else:
            assert a["answer_logprob"] == pytest.approx(b["answer_logprob"], rel=1e-3, abs=1e-3)


@pytest.mark.heavy
@pytest.mark.parametrize("processes", [2, 4])
def test_prediction_and_evaluation_answer_every_question_once(
    processes, alone, experiment, start_small, finish, read_lines, tmp_path
):
    questions = experiment / "questions/validation.jsonl"  # 11 images: 8 and an uneven rest
    arguments = [f"--workdir={alone}", f"--questions={questions}", f"--image_root={experiment}"]
    one = start_small(1, "predict", *arguments, f"--out={tmp_path / 'one.jsonl'}")
    output = finish(start_small(processes, "predict", *arguments, f"--out={tmp_path / 'n.jsonl'}"))
    finish(one)
    assert output.count("22 predictions (20 truncated, 2 unreadable_image)") == 1
    _same_predictions(read_lines(tmp_path / "n.jsonl"), read_lines(tmp_path / "one.jsonl"))

    benchmark = ["--benchmark=vindr_cxr_vqa", "--resamples=20"]
    arguments = [f"--workdir={alone}", *benchmark, f"--image_root={experiment}"]
    one = start_small(1, "evaluate", *arguments, f"--out={tmp_path / 'one'}")
    finish(start_small(processes, "evaluate", *arguments, f"--out={tmp_path / 'n'}"))
    finish(one)
    ours, theirs = (
        flatten(json.loads((tmp_path / name / "metrics.json").read_text())) for name in ("n", "one")
    )
    assert ours.keys() == theirs.keys() and len(ours) > 100
    for name, value in theirs.items():  # calibration is of the answers' log-probabilities
        assert ours[name] == (value and pytest.approx(value, rel=1e-3, abs=1e-6)), name


@pytest.mark.slow
def test_an_evaluation_is_scored_for_as_long_as_it_takes(
    alone, experiment, start_small, finish, tmp_path
):
    words = [f"--workdir={alone}", "--benchmark=vindr_cxr_vqa", "--resamples=20"]
    words += [f"--image_root={experiment}", f"--out={tmp_path / 'late'}"]
    output = finish(start_small(2, "evaluate", *words, LATE="0"))
    assert "Barrier timed out" not in output and "predictions.jsonl, metrics.json" in output


@pytest.mark.slow
def test_a_workdir_in_use_is_refused_in_all_processes(train, tmp_path):
    with folder_lock(tmp_path / "used"):
        output, workdir = train(2, "used", code=2)
    told = f"error: {workdir}: in use by process {os.getpid()} "
    assert f"[0] {told}" in output and f"[1] {told}" in output
    assert output.count("error: ") == 2 and "Traceback" not in output
    assert not (workdir / "config.json").exists()


@pytest.mark.slow
def test_unusable_numbers_of_processes_are_refused_in_one_line(train, experiment, tmp_path):
    output, _ = train(3, "three", code=2)
    assert "error: a batch of 8 images does not divide over 3 devices" in output
    assert "Traceback" not in output and "Check failure" not in output
    lines = (experiment / "records/train.jsonl").read_text().splitlines()[:2]
    few = Path(tmp_path / "records/few.jsonl")
    few.parent.mkdir()
    few.write_text("\n".join(lines) + "\n")
    settings = f"--config.data.train={few}", f"--config.data.image_root={experiment}"
    output, _ = train(2, "few", *settings, code=2)
    assert "error: training: 1 images for 2 processes" in output
