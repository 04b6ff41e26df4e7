"""Sends a run's figures to Weights & Biases or MLflow, by their own libraries and settings.

Where they send them, under which project and whether at all is theirs to be told:
WANDB_MODE=offline, WANDB_PROJECT, MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and the rest of their
variables. A run that goes on is the same run there: its name is in `tracked_as.json` of the
workdir.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cxrjax.errors import UserError, first_line, optional
from cxrjax.files import read_json_object, write_json

if TYPE_CHECKING:
    import numpy as np

TRACKERS = ("wandb", "mlflow")
FILE_NAME = "tracked_as.json"
_HOW_TO_BEGIN = {
    "wandb": "log in with `wandb login`, or keep figures on this machine with WANDB_MODE=offline",
    "mlflow": (
        "name a server with MLFLOW_TRACKING_URI=http://..., or keep figures on this machine with "
        "MLFLOW_TRACKING_URI=file:mlruns MLFLOW_ALLOW_FILE_STORE=true"
    ),
}
_LONGEST_PARAMETER = 500  # characters that every MLflow store takes


class WandbTracker:
    """A writer of CLU's kind whose figures go to Weights & Biases."""

    def __init__(self, workdir: Path, known_as: str | None) -> None:
        wandb = optional("wandb", extra="wandb")
        self._run = wandb.init(dir=str(workdir), name=workdir.name, id=known_as, resume="allow")
        self._image = wandb.Image
        self.known_as = str(self._run.id)

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        self._run.log({name: float(value) for name, value in scalars.items()}, step=step)

    def write_images(self, step: int, images: Mapping[str, "np.ndarray"]) -> None:
        """Writes uint8 [n, H, W, 3] of each name."""
        shown = {name: [self._image(image) for image in of] for name, of in images.items()}
        self._run.log(shown, step=step)

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        self._run.config.update(dict(hparams), allow_val_change=True)

    def flush(self) -> None:
        """No-op: the library sends in the background."""

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """A writer of CLU's kind whose figures go to MLflow."""

    def __init__(self, workdir: Path, known_as: str | None) -> None:
        mlflow = optional("mlflow", extra="mlflow")
        run = mlflow.start_run(run_id=known_as, run_name=None if known_as else workdir.name)
        self.known_as = str(run.info.run_id)
        # The library's current run is a thread's, and figures are written from another, which could
        # not end it: it is told by name from here on, and this thread may start the next one.
        mlflow.end_run("RUNNING")
        self._client = mlflow.MlflowClient()
        self._log_metrics = mlflow.log_metrics

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        values = {_mlflow_name(name): float(value) for name, value in scalars.items()}
        self._log_metrics(values, step=step, run_id=self.known_as)

    def write_images(self, step: int, images: Mapping[str, "np.ndarray"]) -> None:
        """Writes uint8 [n, H, W, 3] of each name."""
        for name, of in images.items():
            for number, image in enumerate(of):
                key = f"{_mlflow_name(name)}_{number}"
                self._client.log_image(self.known_as, image, key=key, step=step)

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        from cxrjax.training.config import flatten  # brings JAX, which --help does without

        flat = flatten(hparams).items()
        told = {name: str(value)[:_LONGEST_PARAMETER] for name, value in flat}
        for name, value in told.items():
            self._client.log_param(self.known_as, name, value)

    def flush(self) -> None:
        """No-op: every call is sent as it is made."""

    def close(self) -> None:
        self._client.set_terminated(self.known_as)


def _mlflow_name(name: str) -> str:
    """A figure's name as MLflow takes it: `detection/f1@0.3` as `detection/f1_at_0.3`."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def check_installed(kind: str) -> None:
    """Looks for the library of one of TRACKERS.

    Raises:
        UserError: it is not installed.
    """
    optional(kind, extra=kind)


def open_tracker(kind: str, workdir: Path) -> WandbTracker | MlflowTracker:
    """A writer for a workdir's run, which goes on with what an earlier process has sent.

    Args:
        kind: one of TRACKERS.

    Raises:
        UserError: the library is not installed, or cannot begin a run.
    """
    file = workdir / FILE_NAME
    known = read_json_object(file) if file.is_file() else {}
    try:
        tracker = (WandbTracker if kind == "wandb" else MlflowTracker)(workdir, known.get(kind))
    except UserError:
        raise
    except Exception as error:  # each library has its own for a login or a place that is missing
        told = f"--track={kind}: {first_line(error)}"
        raise UserError(f"{told}; {_HOW_TO_BEGIN[kind]}") from error
    write_json(file, {**known, kind: tracker.known_as})
    return tracker
