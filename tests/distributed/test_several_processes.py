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

_STEPS = 6
_FILES = ("config.json", "quality.json", "run.json", "tokenizer.model")


def _examples(workdir, read_lines):
    """(step, row) -> what was read there; whoever has read it twice has read the same."""
    found = {}
    for path in (workdir / "examples").iterdir():
        for line in read_lines(path):
            key = line.pop("step"), line.pop("row")
            assert found.setdefault(key, line) == line
    return found


def _assert_same_figures(ours, theirs):
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for a, b in zip(ours, theirs, strict=True):
        learnt = {name for name in b if not _is_rate(name)}
        assert {name for name in a if not _is_rate(name)} == learnt
        for name in learnt:
            expected = b[name] and pytest.approx(b[name], rel=2e-4, abs=1e-5)  # null stays null
            assert a[name] == expected, (a["step"], name)


def _is_rate(name):
    """Time and memory, which no two runs share."""
    return name.endswith(("_per_second", "_seconds", "_gb", "/seconds_left", "/mfu"))


def _parameters(workdir, step=_STEPS):
    path = workdir.absolute() / "checkpoints" / str(step) / "parameters"
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with ocp.StandardCheckpointer() as checkpointer:
        saved = checkpointer.metadata(path).item_metadata.tree
        shapes = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
            for name, leaf in saved.items()
        }
        found = checkpointer.restore(path, shapes)
    return {name: np.asarray(value) for name, value in found.items()}


def _assert_same_parameters(ours, theirs):
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
def train(experiment, start_small, tmp_path):
    """`train(processes, name, *settings, ...)` starts it and gives process and workdir."""

    def start(processes, name, *settings, **options):
        arguments = [f"--config={experiment / 'experiment.py'}", f"--workdir={tmp_path / name}"]
        return start_small(processes, "train", *arguments, *settings, **options), tmp_path / name

    return start


def test_two_processes_train_and_evaluate_as_one(alone, train, finish, read_lines):
    process, workdir = train(2, "two", EVENTS="1")
    output = finish(process)
    assert _examples(workdir, read_lines) == _examples(alone, read_lines)
    assert len(_examples(workdir, read_lines)) == _STEPS * 8
    _assert_same_figures(read_lines(workdir / "metrics.jsonl"), read_lines(alone / "metrics.jsonl"))
    assert "validation/vqa/f1" in read_lines(workdir / "metrics.jsonl")[-1]
    _assert_same_parameters(workdir, alone)
    # Each rows' process sets aside what it cannot read; it is counted once, over all of them.
    quality = json.loads((workdir / "quality.json").read_text())
    assert quality == json.loads((alone / "quality.json").read_text())
    assert quality["counts"]["unreadable_image"] == 2
    assert output.count("set aside train12_0") == output.count("set aside train12_1") == 1
    assert json.loads((workdir / "run.json").read_text())["devices"]["processes"] == 2
    lines = [re.sub(r"^\[\d\] ", "", line) for line in output.splitlines()]
    assert sum(line.startswith("step 6/6") for line in lines) == 1, "only the first one talks"
    assert len(list(workdir.glob("events.out.tfevents.*"))) == 1


@pytest.mark.slow
def test_two_processes_learn_from_rewards_as_one(train, finish, read_lines):
    settings = ["rl.kind=grpo", "rl.updates=2", "rl.group_size=2", "training.steps=2"]
    words = [f"--config.{setting}" for setting in settings]
    found = []
    for processes in (1, 2):
        process, workdir = train(processes, f"{processes}", *words)
        finish(process)
        found.append(read_lines(workdir / "metrics.jsonl"))
    # Each has drawn and rewarded its own rows; what was learned of them is one.
    _assert_same_figures(found[1], found[0])
    assert found[0][-1]["train/rl/length"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_process_before_the_first_step_ends_both_alike(train, finish, signalled):
    process, workdir = train(2, "told", SIGNALLED=str(signalled))
    output = finish(process, 75)
    assert f"[{signalled}] SIGTERM; the same command goes on (exit code 75)" in output
    assert f"[{1 - signalled}] another process was told to stop; the same command" in output
    assert "Traceback" not in output and "Check failure" not in output
    assert not list((workdir / "checkpoints").glob("[0-9]*"))


@pytest.mark.slow
def test_the_first_process_tells_of_a_slow_input_pipeline_of_another(train, finish, read_lines):
    settings = {"steps": 54, "log_every": 18, "checkpoint_every": 0, "log_examples": False}
    words = [f"--config.training.{name}={value}" for name, value in settings.items()]
    process, workdir = train(2, "slow", *words, SLOW="1", SLOW_SECONDS="0.8")
    output = finish(process)
    (warning,) = (line for line in output.splitlines() if "the input pipeline is the limit" in line)
    assert warning.startswith("[0] warning: step 5") and warning.endswith(" (processes 1)")
    last = read_lines(workdir / "metrics.jsonl")[-1]
    assert last["train/data_wait_seconds"] > 0.1  # of the other, whose own wait is next to none


@pytest.mark.slow
def test_damaged_checkpoints_are_refused_by_both_processes_in_one_line(
    alone, train, experiment, start_small, finish, tmp_path
):
    workdir = tmp_path / "damaged"
    shutil.copytree(alone, workdir)
    for file in (workdir / "checkpoints").glob("*/base/metadata"):
        file.write_text("{")
    process, _ = train(2, "damaged")
    starting = finish(process, 2)
    words = [f"--workdir={workdir}", f"--questions={experiment / 'questions/validation.jsonl'}"]
    predicting = finish(start_small(2, "predict", *words, f"--out={tmp_path / 'none.jsonl'}"), 2)
    for output, told in ((starting, "no checkpoint is whole"), (predicting, "is damaged: ")):
        assert output.count("] error: ") == output.count(told) == 2, output
        assert "Traceback" not in output and "Check failure" not in output


@pytest.mark.heavy
def test_resumes_with_another_number_of_processes(alone, train, finish, read_lines):
    process, workdir = train(2, "changing", stop_before=3)
    finish(process, 130)
    process, _ = train(4, "changing", stop_before=5)
    assert "resumed from the checkpoint of step 2" in finish(process, 130)
    process, _ = train(1, "changing")
    assert "resumed from the checkpoint of step 4" in finish(process)
    names = {path.name for path in (workdir / "examples").iterdir()}
    assert names == {"0_of_1.jsonl", "0_of_2.jsonl", "1_of_2.jsonl"} | {
        f"{i}_of_4.jsonl" for i in range(4)
    }
    assert _examples(workdir, read_lines) == _examples(alone, read_lines)
    _assert_same_figures(read_lines(workdir / "metrics.jsonl"), read_lines(alone / "metrics.jsonl"))
    _assert_same_parameters(workdir, alone)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("processes", "devices", "settings"),
    [
        (4, 1, ()),
        (2, 2, ("--config.mesh.fsdp=4", "--config.training.accumulation_steps=2")),
        (2, 1, ("--config.mesh.tensor=2",)),  # both processes have all rows
        (2, 2, ("--config.mesh.strategy=pmap",)),
    ],
)
def test_meshes_over_processes_train_as_one_device(
    processes, devices, settings, alone, train, finish, read_lines
):
    process, workdir = train(processes, "mesh", *settings, devices=devices)
    finish(process)
    assert _examples(workdir, read_lines) == _examples(alone, read_lines)
    _assert_same_figures(read_lines(workdir / "metrics.jsonl"), read_lines(alone / "metrics.jsonl"))
    _assert_same_parameters(workdir, alone)


@pytest.mark.heavy
def test_processes_cache_features_of_a_tower_that_none_of_them_has_whole(
    train, finish, read_lines, tmp_path
):
    lines = []
    for name, processes, fsdp in (("one", 1, 1), ("split", 2, 2)):
        cache = f"--config.data.feature_cache={tmp_path / f'features_{name}'}"
        settings = (
            "--config.trainable=('decoder/.*', 'projector/.*')",
            f"--config.mesh.fsdp={fsdp}",
        )
        process, workdir = train(processes, name, cache, *settings)
        finish(process)
        lines.append(read_lines(workdir / "metrics.jsonl"))
    _assert_same_figures(*lines)
    one, split = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.npy")}
        for folder in (tmp_path / "features_one", tmp_path / "features_split")
    )
    assert one.keys() == split.keys() and len(one) == 12 + 10


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
    one, alone_on_base = train(1, "one", *lora)
    finish(one)
    process, workdir = train(2, "two", *lora, "--config.mesh.tensor=2")
    finish(process)
    _assert_same_figures(
        read_lines(workdir / "metrics.jsonl"), read_lines(alone_on_base / "metrics.jsonl")
    )
    _assert_same_parameters(workdir, alone_on_base)
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


def _flat(tree, path=""):
    """A nested dict's leaves by path."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for name in tree for k, v in _flat(tree[name], f"{path}/{name}").items()}


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
        _flat(json.loads((tmp_path / name / "metrics.json").read_text())) for name in ("n", "one")
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


def test_a_workdir_in_use_is_refused_in_all_processes(train, finish, tmp_path):
    with folder_lock(tmp_path / "used"):
        process, workdir = train(2, "used")
        output = finish(process, 2)
    told = f"error: {workdir}: in use by process {os.getpid()} "
    assert f"[0] {told}" in output and f"[1] {told}" in output
    assert output.count("error: ") == 2 and "Traceback" not in output
    assert not (workdir / "config.json").exists()


def test_unusable_numbers_of_processes_are_refused_in_one_line(
    train, experiment, finish, start_small, tmp_path
):
    process, _ = train(3, "three")
    output = finish(process, 2)
    assert "error: a batch of 8 images does not divide over 3 devices" in output
    assert "Traceback" not in output and "Check failure" not in output
    lines = (experiment / "records/train.jsonl").read_text().splitlines()[:2]
    few = Path(tmp_path / "records/few.jsonl")
    few.parent.mkdir()
    few.write_text("\n".join(lines) + "\n")
    process, _ = train(
        2, "few", f"--config.data.train={few}", f"--config.data.image_root={experiment}"
    )
    assert "error: training: 1 images for 2 processes" in finish(process, 2)
