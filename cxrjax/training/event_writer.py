"""Event files with what CLU's `SummaryWriter` writes, without TensorFlow, which that one needs."""

import io
import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
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

_NUMBERS = itertools.count()


class EventWriter:
    """The methods of CLU's `MetricWriter` that a run calls, over TensorBoard's own records.

    Args:
        directory: receives one file; made if it is not there.

    Raises:
        OSError: it cannot be written, here and in every method.
    """

    def __init__(self, directory: str) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        told = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        path = Path(directory) / f"events.out.tfevents.{told}.v2"
        self._file = RecordWriter(open(path, "wb"))  # noqa: SIM115 - open for the run
        self._add(Event(file_version="brain.Event:2"))

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds values to a step."""
        for name, value in scalars.items():
            self._add(Event(step=step, summary=scalar_pb(name, np.float32(value))))

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Adds pictures, uint8 [n, H, W, 3], to a step."""
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
        """Adds what the run was told, keys of nested mappings joined by dots."""
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
