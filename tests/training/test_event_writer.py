"""Event files without TensorFlow hold what CLU's writer puts into its own."""

import io
import subprocess
import sys

import numpy as np
from clu.metric_writers.tf.summary_writer import SummaryWriter
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util.tensor_util import make_ndarray

from cxrjax.training.event_writer import EventWriter

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


def test_the_same_events_as_clu_writes(tmp_path):
    clu, ours = tmp_path / "clu", tmp_path / "ours"
    theirs = _written(SummaryWriter(str(clu)), clu)
    assert _written(EventWriter(str(ours)), ours) == theirs
    tags = ["_hparams_/session_start_info", "loss", "acc", "overlay"]
    assert [tag for _, tag, *_ in theirs] == tags


_WITHOUT = """
import sys
from pathlib import Path
sys.modules["tensorflow"] = None  # as if it were not installed
from cxrjax.training.metric_log import RunWriter
writer = RunWriter(Path(sys.argv[1]), 0)
writer.write_scalars(1, {"loss": 2.0})
writer.close()
"""


def test_a_run_without_tensorflow_has_event_files(tmp_path):
    subprocess.run([sys.executable, "-c", _WITHOUT, str(tmp_path)], check=True)
    (path,) = tmp_path.glob("events.out.tfevents.*.v2")
    events = EventFileLoader(str(path)).Load()
    assert [(e.step, v.tag) for e in events for v in e.summary.value] == [(1, "loss")]
