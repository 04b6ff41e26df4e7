"""An entry point with the preset `tiny` made smaller: `python small_run.py train --config=...`.

Its arrays are cut over fsdp as those of a large model are, which its own would be too small for.

Event files are written without TensorFlow, which takes seconds to import.
Where STOP_BEFORE_STEP is set, training is interrupted there, after the checkpoint of the step
before. Where SIGNALLED is, the process of that number is told to stop while it starts; where SLOW
is, its batches take 0.8 s each, and eight steps are enough to tell; where LATE is, JAX's farewell
waits for 2 s, and that process scores for longer.
"""

import dataclasses
import functools
import importlib
import os
import signal
import sys
import time

import jax

from cxrjax import cli
from cxrjax.distributed import meshes
from cxrjax.evaluation import benchmark
from cxrjax.input_pipeline.loader import TrainLoader
from cxrjax.models import PRESETS
from cxrjax.training import checkpoint
from cxrjax.training.observers import InputLimit

_TINY = PRESETS["tiny"]
PRESETS["tiny"] = dataclasses.replace(
    _TINY,
    vision=dataclasses.replace(_TINY.vision, width=16, depth=1, num_heads=2, mlp_dim=16),
    decoder=dataclasses.replace(
        _TINY.decoder, width=16, depth=1, num_heads=2, head_dim=8, mlp_dim=16
    ),
)
meshes._FSDP_MIN_SIZE = 64
if "SLOW" in os.environ:
    InputLimit.__init__.__defaults__ = (8,)
_next_batch = TrainLoader.__next__


def _is_meant(variable):
    """Whether this process is the one whose number is there."""
    return os.environ.get(variable) == os.environ.get("JAX_PROCESS_ID", "none")


def _next_or_stop(loader):
    if _is_meant("SLOW"):
        time.sleep(0.8)
    if loader.get_state()["step"] + 1 == int(os.environ.get("STOP_BEFORE_STEP", 0)):
        raise KeyboardInterrupt
    return _next_batch(loader)


TrainLoader.__next__ = _next_or_stop
_build_model = checkpoint.build_model


def _build_model_and_signal(*arguments):
    model = _build_model(*arguments)
    if _is_meant("SIGNALLED"):
        os.kill(os.getpid(), signal.SIGTERM)
    return model


checkpoint.build_model = _build_model_and_signal
sys.modules["tensorflow"] = None  # as if it were not installed
if "LATE" in os.environ:
    jax.distributed.initialize = functools.partial(
        jax.distributed.initialize, shutdown_timeout_seconds=2
    )
_write_scores = benchmark.write_scores


def _write_scores_late(*arguments):
    if _is_meant("LATE"):
        time.sleep(8)
    return _write_scores(*arguments)


benchmark.write_scores = _write_scores_late

if __name__ == "__main__":
    entry_point = importlib.import_module(f"cxrjax.commands.{sys.argv[1]}")
    cli.run(lambda: entry_point.main(sys.argv[2:]))
