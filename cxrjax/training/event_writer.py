"""CLU's metric writers, and event files without TensorFlow.

`clu.metric_writers` imports TensorFlow for its `SummaryWriter`. A plain installation has none, and
importing it takes seconds: `EventWriter` writes the same events, also to buckets.
"""

import io
import itertools
import os
import socket
import sys
import time
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from clu.internal.utils import flatten_dict
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from cxrjax.paths import to_path

_replaced: Any = types.ModuleType("clu.metric_writers.summary_writer")
_replaced.SummaryWriter = None
sys.modules.setdefault(_replaced.__name__, _replaced)

from clu import metric_writers, periodic_actions  # noqa: E402, F401

_NUMBERS = itertools.count()


class FigureWriter(metric_writers.MetricWriter):
    """Base of writers of what a run writes: scalars, images and hyperparameters."""

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None: ...

    def write_hparams(self, hparams: Mapping[str, Any]) -> None: ...

    def _write_other(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} writes scalars, images and hparams")

    write_summaries = write_videos = write_audios = write_texts = write_histograms = _write_other


class EventWriter(FigureWriter):
    """The events of CLU's `SummaryWriter`, written with TensorBoard's own records.

    Args:
        directory: receives one file; created if it does not exist.

    Raises:
        OSError: the file cannot be written; every method raises it.
    """

    def __init__(self, directory: str) -> None:
        folder = to_path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        unique = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        path = folder / f"events.out.tfevents.{unique}.v2"
        self._file = RecordWriter(path.open("wb"))
        self._add(Event(file_version="brain.Event:2"))

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._add(Event(step=step, summary=scalar_pb(name, np.float32(value))))

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Adds images, uint8 [n, H, W, 3], to a step."""
        for name, stack in images.items():
            height, width = stack.shape[1:3]
            value = Summary.Value(
                tag=name,
                metadata=image_metadata.create_summary_metadata(None, None),
                tensor=make_tensor_proto(
                    [str(width).encode(), str(height).encode(), *map(_png, stack)]
                ),
            )
            self._add(Event(step=step, summary=Summary(value=[value])))

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        """Adds the configuration, keys of nested mappings joined by dots."""
        self._add(Event(summary=hparams_pb(dict(flatten_dict(hparams)))))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._file.write(event.SerializeToString())


def _png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
