"""What a run leaves behind, how it goes on, and how it stops."""

import functools
import json
import re
import shutil

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cxrjax.errors import UserError
from cxrjax.training import loop
from cxrjax.training import run as run_module
from cxrjax.training.observers import InputLimit, StepProfiler
from cxrjax.training.store import CheckpointStore
from tests.training import conftest as small
from tests.training.conftest import BASE, BatchStream, open_store, read_arrays, read_metrics


def _losses(workdir):
    return read_metrics(workdir, timed=False)


def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(run, tmp_path):
    run(workdir="whole")
    with pytest.raises(KeyboardInterrupt):
        run(BatchStream(stop_before=6), "cut")
    # Another start value, to see that the parameters come from the checkpoint.
    lines = run(workdir="cut", seed=1)
    assert "resumed from the checkpoint of step 4" in lines
    assert json.loads((tmp_path / "cut/run.json").read_text())["resumed_from"] == 4
    assert [line["step"] for line in read_metrics(tmp_path / "cut")] == [1, 2, 3, 4, 5, 6]
    assert _losses(tmp_path / "cut") == _losses(tmp_path / "whole")
    small.assert_same_arrays(tmp_path / "cut", tmp_path / "whole")
    assert "loss" in lines[-3] and "questions/s" in lines[-3] and "left" in lines[-3]
    assert lines[-2].startswith("goodput ")
    assert "peak memory" in lines[-1]


def test_a_newer_local_copy_is_resumed_from_by_its_own_run(run, tmp_path):
    run(workdir="whole")
    run.config.training.checkpoint_every = 2
    run.config.training.local_checkpoints = str(tmp_path / "local")
    run.config.training.local_every = 3
    with pytest.raises(KeyboardInterrupt):
        run(BatchStream(stop_before=4), workdir="cut")
    (local,) = (tmp_path / "local").glob("*/checkpoints")
    assert f"resumed from the checkpoint of step 3 in {local}" in run(workdir="cut", seed=1)
    small.assert_same_arrays(tmp_path / "cut", tmp_path / "whole")
    shutil.rmtree(tmp_path / "cut")
    assert not any(line.startswith("resumed") for line in run(workdir="cut"))


@pytest.mark.parametrize(
    "sizes",
    [{"slices": 2, "data": 1, "fsdp": 2, "tensor": 2}, {"data": 8, "strategy": "pmap"}],
    ids=["all axes", "pmap"],
)
def test_a_checkpoint_of_one_mesh_goes_on_under_another_and_back(
    run, tmp_path, monkeypatch, sizes, caplog
):
    """The same batches and, to rounding, the same figures and parameters, compiled once."""
    monkeypatch.setattr("cxrjax.distributed.meshes._FSDP_MIN_SIZE", 16)
    run.config.optimizer.schedule = "constant"  # whatever the number of steps
    run(workdir="whole")
    before = dict(run.config.mesh)
    run(workdir="moved", steps=2)
    run.config.mesh.update(sizes)
    with jax.log_compiles():
        lines = run(workdir="moved", steps=4, seed=1)
    # `_fun` is the step as pmap calls it.
    steps = [x for x in caplog.messages if re.match(r"Compiling jit\((train_step|_fun)\)", x)]
    assert len(steps) == 1
    assert "resumed from the checkpoint of step 2" in lines
    run.config.mesh.update(before)
    run(workdir="moved", seed=1)
    for ours, theirs in zip(_losses(tmp_path / "moved"), _losses(tmp_path / "whole"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    ours, theirs = (read_arrays(tmp_path / name, 6) for name in ("moved", "whole"))
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        off = np.linalg.norm(ours[name] - array)
        assert off <= 1e-4 * np.linalg.norm(array), name


def test_best_and_last_checkpoints_are_kept_and_everything_is_written(run, tmp_path):
    run.config.training.eval_every = 2
    run.config.training.checkpoint_every = 3
    run.config.training.log_every = 4
    seen = {}

    def evaluate(step, model):
        seen[step] = float(np.abs(np.asarray(model.projector.kernel[...])).sum())
        scores = {2: 0.3, 4: 0.5, 6: None, 8: 0.4}
        return {"vqa/f1": scores[step], "n": 10, "overlay": np.zeros((8, 8, 3), np.uint8)}

    records = tmp_path / "data/records/train.jsonl"
    records.parent.mkdir(parents=True)
    records.write_text("{}\n")
    manifest = tmp_path / "data/manifest.json"
    manifest.write_text('{"splits": {"train": {"split_sha256": "abc"}}}')
    lines = run(steps=8, evaluate=evaluate, data_files=[records])
    workdir = tmp_path / "run"
    store = open_store(workdir)
    assert store.all_steps() == [4, 6, 8]
    assert store.best_step() == 4
    data = {"step": 4, "set_aside": [], "skipped_steps": 0, "unvaried": {}}
    saved = store.restore_json(4, "data")
    assert saved.pop("goodput")["step"] == 4 and saved == data
    assert store.restore_json(4, "base") == BASE
    kernel = read_arrays(workdir, 4)["projector.kernel"]
    np.testing.assert_allclose(np.abs(kernel).sum(), seen[4])
    assert [line["step"] for line in read_metrics(workdir)] == [2, 4, 6, 8]
    at_4, at_6 = read_metrics(workdir)[1:3]
    assert at_4["validation/vqa/f1"] == 0.5 and at_4["validation/n"] == 10
    assert "train/loss" in at_4 and "validation/overlay" not in at_4
    assert at_6 == {"step": 6, "validation/vqa/f1": None, "validation/n": 10.0}
    assert list(workdir.glob("events.out.tfevents*"))
    assert json.loads((workdir / "config.json").read_text())["training"]["eval_every"] == 2
    info = json.loads((workdir / "run.json").read_text())
    assert info["goodput"]["seconds"]["training"] > 0 and info["goodput"]["step"] == info["steps"]
    assert info["parameters"]["trainable"] == info["parameters"]["total"] > 1000
    assert set(info["data_sha256"]) == {str(records), str(manifest)}
    assert info["split_sha256"] == {str(manifest): {"train": "abc"}}
    assert info["versions"]["jax"] == jax.__version__
    assert any("parameters are trained" in line for line in lines)
    assert any("compiling for 8 images x 3 questions" in line for line in lines)


def test_stops_on_nan_naming_step_and_questions(run, tmp_path):
    with pytest.raises(UserError) as caught:
        run(BatchStream(poison=5))
    message = str(caught.value)
    assert message.startswith("step 5: loss nan")
    assert "the last good one is step 4" in message
    assert "\n" not in message
    report = json.loads((tmp_path / "run/nonfinite.jsonl").read_text())
    assert report["step"] == 5
    assert report["question_ids"][0] in message
    assert report["values"]["loss"] is None
    assert {int(name[1:]) // 100 for name in report["question_ids"]} == {5}
    assert open_store(tmp_path / "run").latest_step() == 4
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]
    assert all(np.isfinite(x).all() for x in read_arrays(tmp_path / "run", 4).values())


def test_a_stopped_run_may_go_on_without_the_step_that_is_not_finite(run, tmp_path):
    """Its batch changes nothing: the run ends as one that never met it."""
    run.config.optimizer.schedule = "constant"  # else the learning rate is one update behind
    with pytest.raises(UserError, match=r"stopped .* set training\.skip_nonfinite"):
        run(BatchStream(poison=5), "poisoned")
    run.config.training.skip_nonfinite = 1
    lines = run(BatchStream(poison=5), "poisoned", steps=7)
    assert any(line.startswith("step 5: loss nan, gradient norm nan; left out") for line in lines)
    at_5, *after = read_metrics(tmp_path / "poisoned")[4:]
    assert at_5["train/loss"] is None and at_5["train/skipped_steps"] == 1
    assert [line["train/skipped_steps"] for line in after] == [1, 1]
    assert open_store(tmp_path / "poisoned").restore_json(7, "data")["skipped_steps"] == 1
    run(BatchStream(without=5), "without", steps=6)
    assert [line["train/loss"] for line in after] == [
        line["train/loss"] for line in read_metrics(tmp_path / "without")[4:]
    ]
    for item in ("parameters", "optimizer"):
        paths = tmp_path / "poisoned", tmp_path / "without"
        small.assert_same_arrays(*paths, 7, item, their_number=6)


def test_more_steps_in_a_row_than_may_be_left_out_stop_the_run(run, tmp_path):
    run.config.training.skip_nonfinite = 2
    run(BatchStream(poison=(2, 3, 5, 6)), "apart")
    assert read_metrics(tmp_path / "apart")[-1]["train/skipped_steps"] == 4
    with pytest.raises(UserError, match=r"^step 5: .* after 2 in a row .* good one is step 4"):
        run(BatchStream(poison=(3, 4, 5)), "in_a_row")
    file = tmp_path / "in_a_row/nonfinite.jsonl"
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [3, 4, 5]


def test_a_workdir_of_another_run_is_refused(run, ended):
    run.config.training.log_every = 2  # may change
    before = dict(run.config.mesh)
    run.config.mesh.update(data=2, fsdp=2, tensor=2)  # whatever the mesh
    with pytest.raises(UserError, match=r"belong to base random with hash abc.* has hash def"):
        run(base={**BASE, "sha256": "def"})
    run.config.mesh.update(before)
    run.config.optimizer.learning_rate = 0.5
    run.config.training.lambda_box = 0.0
    with pytest.raises(UserError) as caught:
        run()
    assert "optimizer.learning_rate is 0.01 there and 0.5 now" in str(caught.value)
    assert "training.lambda_box is 0.5 there and 0.0 now" in str(caught.value)
    assert "log_every" not in str(caught.value)
    saved = json.loads((ended / "config.json").read_text())
    assert saved["optimizer"]["learning_rate"] == 0.01


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_finished_run_is_lengthened_and_killed_in_between(run, tmp_path, schedule):
    run.config.optimizer.schedule = schedule
    run.config.training.steps = 4
    run(workdir="cut", steps=4)
    shutil.copytree(tmp_path / "cut", tmp_path / "left alone")
    run.config.training.steps = 8
    lines = run(workdir="left alone", steps=8)
    with pytest.raises(KeyboardInterrupt):
        run(BatchStream(stop_before=8), "cut", steps=8, seed=1)
    again = run(workdir="cut", steps=8, seed=1)
    small.assert_same_arrays(tmp_path / "cut", tmp_path / "left alone", 8)
    assert _losses(tmp_path / "cut") == _losses(tmp_path / "left alone")
    (told,) = (line for line in lines if line.startswith("lengthened from 4 to 8 steps"))
    assert not any(line.startswith("lengthened") for line in again)
    run(workdir="whole", steps=8)
    rates, whole = (
        [line["train/learning_rate"] for line in read_metrics(tmp_path / name)]
        for name in ("left alone", "whole")
    )
    assert rates[4:] == whole[4:] and (rates[:4] == whole[:4]) == (schedule == "constant")
    assert f"with {rates[4]:.3g} (step 4 had {rates[3]:.3g})" in told
    if schedule == "constant":  # as if it had been so long from the start
        small.assert_same_arrays(tmp_path / "cut", tmp_path / "whole", 8)
    run.config.training.steps = 4
    with pytest.raises(UserError, match=r"a run of 8 steps .* lengthened, not shortened"):
        run(workdir="cut", steps=4)


def test_a_missing_best_metric_is_told_and_costs_no_training(run, tmp_path):
    run.config.training.best_metric = "vqa/f2"
    with pytest.raises(UserError, match=r"best_metric='vqa/f2' is not among .*: vqa/f1"):
        run(steps=1, evaluate=lambda step, model: {"vqa/f1": 0.5})
    assert open_store(tmp_path / "run", "vqa/f2").latest_step() == 1


def test_micro_batches_follow_the_mesh(run, capsys):
    run.config.training.accumulation_steps = 2
    run(steps=1)
    told = "micro-batches: 1 instead of 2; each device has 1 of the images"
    assert told in capsys.readouterr().out


def test_steps_in_flight_are_bounded(run, monkeypatch):
    """Metrics are read late, but never more than `max_in_flight` steps late."""
    run.config.training.max_in_flight = 3
    run.config.training.checkpoint_every = 0
    most = []
    read = loop._StepsInFlight.read_metrics

    def watched(self, leave, **options):
        most.append(len(self._waiting))
        read(self, leave, **options)

    monkeypatch.setattr(loop._StepsInFlight, "read_metrics", watched)
    run(steps=8)
    assert max(most) == 4  # three, and the one just dispatched


def test_figures_of_a_slow_loader(run, monkeypatch, tmp_path):
    """In metrics.jsonl and the event files, on the step line, and in one warning."""
    monkeypatch.setattr(run_module, "InputLimit", functools.partial(InputLimit, steps=5))
    run.config.training.checkpoint_every = 0
    lines = run(BatchStream(pause=0.2), steps=8)
    warnings = [line for line in lines if line.startswith("warning: step 6: the input pipeline")]
    assert len(warnings) == 1 == sum("input pipeline" in line for line in lines)
    assert any("data wait" in line and "s a step" in line for line in lines)
    found = [line for line in read_metrics(tmp_path / "run") if "train/step_seconds" in line]
    assert [line["step"] for line in found] == [2, 3, 4, 5, 6, 7, 8]  # 1 was compiled
    for line in found:
        parts = [line[f"train/{name}_seconds"] for name in ("device", "data_wait", "host")]
        assert sum(parts) == pytest.approx(line["train/step_seconds"])
        assert line["train/host_peak_memory_gb"] > 0
        assert "train/mfu" not in line
    assert np.median([line["train/data_wait_seconds"] for line in found]) > 0.1
    accumulator = EventAccumulator(str(tmp_path / "run"))
    accumulator.Reload()
    assert {"train/step_seconds", "train/data_wait_seconds"} <= set(accumulator.Tags()["tensors"])


def test_a_profile_begins_after_what_is_due_before_its_first_step(run, monkeypatch):
    run.config.training.profile_steps = (3, 4)
    seen = []
    save = CheckpointStore.save

    def note_save(store, number, *arguments):
        seen.append(("save", number))
        return save(store, number, *arguments)

    def note_rest(profiler, step, before):
        seen.append(("begins" if before else "ends", step))

    monkeypatch.setattr(CheckpointStore, "save", note_save)
    monkeypatch.setattr(StepProfiler, "on_rest", note_rest)
    run(steps=5)
    assert seen == [("save", 2), ("begins", 3), ("ends", 4), ("save", 4), ("save", 5)]


@pytest.mark.heavy  # XLA's profiler once ended a worker that had run many tests before it
def test_a_profile_of_some_steps(run, tmp_path):
    run.config.training.profile_steps = (3, 4)
    lines = run(steps=5)
    assert sum("step 4: profile written to" in line for line in lines) == 1
    (trace,) = (tmp_path / "run/profile").rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    steps = [dict(event.stats)["step_num"] for event in events if event.name == "train"]
    assert sorted(steps) == [3, 4]
    # A finished range is not traced again.
    assert not any("profile" in line for line in run(steps=6))
