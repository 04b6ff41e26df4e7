"""Each step is in metrics.jsonl, W&B and MLflow once, and in event files as CLU writes them."""

import io
import json
import struct
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util.tensor_util import make_ndarray

from cxrjax.commands import train
from cxrjax.errors import UserError
from cxrjax.training import metric_log
from cxrjax.training.event_writer import EventWriter
from cxrjax.training.metric_log import RunWriter
from cxrjax.training.tracking import FILE_NAME, open_tracker


def _lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_values_of_a_step_share_a_line_and_undefined_ones_are_null(tmp_path):
    writer = RunWriter(tmp_path, 0)
    writer.write_scalars(2, {"train/loss": 1.5, "train/giou_loss": float("nan")})
    writer.write_scalars(2, {"validation/vqa/f1": None})
    writer.write_images(2, {"overlay": np.zeros((4, 4, 3), np.uint8)})
    writer.write_scalars(4, {"train/loss": np.float32(0.25)})
    writer.close()
    assert _lines(tmp_path) == [
        {"step": 2, "train/loss": 1.5, "train/giou_loss": None, "validation/vqa/f1": None},
        {"step": 4, "train/loss": 0.25},
    ]
    (events,) = tmp_path.glob("events.out.tfevents*")
    assert b"overlay" in events.read_bytes() and b"giou_loss" not in events.read_bytes()


@pytest.mark.parametrize(
    ("later", "steps"),
    [
        ('{"step": 2}\n{"step": 3}\n{"step": 4, ', [1, 2, 3]),
        ('{"step": 2', [1, 3]),  # torn at the resumed step
    ],
)
def test_resume_cuts_later_and_torn_lines(tmp_path, later, steps):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + later)
    writer = RunWriter(tmp_path, 2)
    writer.write_scalars(3, {"a": 30.0})
    writer.close()
    assert [line["step"] for line in _lines(tmp_path)] == steps
    assert _lines(tmp_path)[-1] == {"step": 3, "a": 30.0}


def test_a_step_has_one_line_whatever_is_added_after_a_flush_or_a_resume(tmp_path):
    for start in (0, 5):
        writer = RunWriter(tmp_path, start)
        writer.write_scalars(5, {f"a{start}": 1.0})
        writer.flush()
        writer.write_scalars(5, {f"b{start}": 2.0})
        with pytest.raises(ValueError, match="step 4 after step 5"):
            writer.write_scalars(4, {"a": 1.0})
        writer.close()
    assert _lines(tmp_path) == [{"step": 5, "a0": 1.0, "b0": 2.0, "a5": 1.0, "b5": 2.0}]


def test_foreign_files_and_what_goes_wrong_with_events_are_told(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metric_log, "EventWriter", full)
    with pytest.raises(UserError, match="No space left"):
        RunWriter(tmp_path, 0)
    (tmp_path / "metrics.jsonl").write_text("something else\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: not a line of metrics"):
        RunWriter(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_text() == "something else\n"


ROOT = Path(__file__).parents[2]
IMAGE = np.full((4, 4, 3), 200, np.uint8)


def _write_run(workdir, kind):
    """Two processes of one run, the second of which goes on after step 2."""
    for start, steps in ((0, (1, 2)), (2, (3,))):
        time.sleep(1.1 * (kind == "wandb"))  # which names folders by the second
        writer = RunWriter(workdir, start, kind)
        for step in steps:
            values = {"train/loss": 1 / step, "validation/detection/f1@0.3": 0.5, "nothing": None}
            writer.write_scalars(step, values)
            writer.write_images(step, {"overlay": IMAGE})
        writer.close()


@pytest.mark.parametrize("kind", ["wandb", "mlflow"])
def test_an_absent_library_is_told_before_anything_is_read(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, kind, None)
    config = f"--config={ROOT / 'configs' / 'records_lora.py'}"
    nowhere = f"--config.data.train={tmp_path / 'nowhere.jsonl'}"
    with pytest.raises(UserError, match=rf"pip install 'cxrjax\[{kind}\]'"):
        train.main([config, f"--workdir={tmp_path / 'run'}", f"--track={kind}", nowhere])
    assert not (tmp_path / "run").exists()


def _logged(content):
    """The records of a .wandb file: 7 bytes, then blocks of 32 KiB in LevelDB's form of a log."""
    record, at = b"", 7
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:  # too little for a header: padding up to the next block
            at += 2**15 - at % 2**15
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield record
            record = b""


def _records(file, pb):
    """What a run wrote; its last words may come a moment after it has ended."""
    for _ in range(100):
        records = [pb.Record.FromString(data) for data in _logged(file.read_bytes())]
        if any(record.HasField("exit") for record in records):
            break
        time.sleep(0.1)
    return records


def test_mlflow_has_every_step_of_a_run_that_went_on(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="extra mlflow")
    store = (tmp_path / "mlflow").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    workdir = tmp_path / "run"
    workdir.mkdir()
    _write_run(workdir, "mlflow")
    client = mlflow.MlflowClient(store)
    (run,) = client.search_runs(["0"])
    assert run.info.run_id == json.loads((workdir / FILE_NAME).read_text())["mlflow"]
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    # MLflow takes no @ in a name.
    assert len(client.get_metric_history(run.info.run_id, "validation/detection/f1_at_0.3")) == 3
    assert run.info.status == "FINISHED" and mlflow.active_run() is None


@pytest.mark.slow
def test_wandb_has_every_step_of_a_run_that_went_on(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="extra wandb")
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    workdir = tmp_path / "run"
    workdir.mkdir()
    _write_run(workdir, "wandb")
    told, names = [], set()
    for file in sorted(workdir.glob("wandb/offline-run-*/*.wandb")):
        names.add(file.stem.removeprefix("run-"))
        for record in _records(file, pb):
            items = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            if "train/loss" in items:
                told.append((items["_step"], items["train/loss"]))
    assert told == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert names == {json.loads((workdir / FILE_NAME).read_text())["wandb"]}


@pytest.mark.parametrize(
    ("kind", "begin", "remedy"),
    [("wandb", "init", "WANDB_MODE=offline"), ("mlflow", "start_run", "MLFLOW_TRACKING_URI=")],
)
def test_a_library_that_cannot_begin_is_told_in_a_line(tmp_path, monkeypatch, kind, begin, remedy):
    def refuse(**named):
        raise RuntimeError("No API key configured.\nSee the manual.")

    monkeypatch.setitem(sys.modules, kind, types.SimpleNamespace(**{begin: refuse}))
    with pytest.raises(UserError) as told:
        open_tracker(kind, tmp_path)
    assert f"--track={kind}: No API key configured" in str(told.value)
    assert remedy in str(told.value) and "\n" not in str(told.value)


_PICTURES = np.random.default_rng(3).integers(0, 256, (2, 5, 7, 3), np.uint8)


def _written(writer, folder):
    """Events as (step, tag, metadata without times, tensor with pictures decoded)."""
    writer.write_hparams({"lr": 0.1, "model": {"name": "tiny", "parts": [1, None], "on": True}})
    writer.write_scalars(3, {"loss": 0.1, "acc": 1})
    writer.write_images(4, {"overlay": _PICTURES})
    writer.flush()
    writer.close()
    (path,) = folder.glob("events.out.tfevents.*.v2")
    found = []
    for event in EventFileLoader(str(path)).Load():
        assert event.wall_time > 1.7e9
        for value in event.summary.value:
            tensor = make_ndarray(value.tensor)
            content = [_pixels(one) for one in np.atleast_1d(tensor)]
            metadata = type(value.metadata).FromString(value.metadata.SerializeToString())
            if metadata.plugin_data.plugin_name == "hparams":
                told = HParamsPluginData.FromString(metadata.plugin_data.content)
                told.session_start_info.start_time_secs = 0
                metadata.plugin_data.content = told.SerializeToString(deterministic=True)
            found.append((event.step, value.tag, metadata, tensor.dtype, tensor.shape, content))
    return found


def _pixels(value):
    if isinstance(value, bytes) and value.startswith(b"\x89PNG"):
        return np.asarray(Image.open(io.BytesIO(value))).tolist()
    return value


def test_events_are_those_of_clu_and_need_no_tensorflow(tmp_path):
    from clu.metric_writers.tf.summary_writer import SummaryWriter  # TensorFlow: three seconds

    clu, ours = tmp_path / "clu", tmp_path / "ours"
    theirs = _written(SummaryWriter(str(clu)), clu)
    assert _written(EventWriter(str(ours)), ours) == theirs
    tags = ["_hparams_/session_start_info", "loss", "acc", "overlay"]
    assert [tag for _, tag, *_ in theirs] == tags
    subprocess.run([sys.executable, "-c", _WITHOUT, str(tmp_path)], check=True)
    (path,) = tmp_path.glob("events.out.tfevents.*.v2")
    events = EventFileLoader(str(path)).Load()
    assert [(e.step, v.tag) for e in events for v in e.summary.value] == [(1, "loss")]


_WITHOUT = """
import sys
from pathlib import Path
sys.modules["tensorflow"] = None  # as if it were not installed
from cxrjax.training.metric_log import RunWriter
writer = RunWriter(Path(sys.argv[1]), 0)
writer.write_scalars(1, {"loss": 2.0})
writer.close()
"""
