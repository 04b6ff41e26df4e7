"""Sends a run's figures to Weights & Biases or MLflow.

Their own variables set server and project: WANDB_MODE=offline, WANDB_PROJECT, MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME. A resumed run stays the same run there: `tracked_as.json` in the workdir
has its id.
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
    """Metric writer that sends figures to Weights & Biases."""

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
    """Metric writer that sends figures to MLflow."""

    def __init__(self, workdir: Path, known_as: str | None) -> None:
        mlflow = optional("mlflow", extra="mlflow")
        run = mlflow.start_run(run_id=known_as, run_name=None if known_as else workdir.name)
        self.known_as = str(run.info.run_id)
        # The library's current run belongs to this thread, and another one writes figures: it
        # passes the run's id, and this thread may start the next run.
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

        for name, value in flatten(hparams).items():
            self._client.log_param(self.known_as, name, str(value)[:_LONGEST_PARAMETER])

    def flush(self) -> None:
        """No-op: every call is sent as it is made."""

    def close(self) -> None:
        self._client.set_terminated(self.known_as)


def _mlflow_name(name: str) -> str:
    """Returns a name that MLflow accepts: `detection/f1_at_0.3` for `detection/f1@0.3`."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def check_installed(kind: str) -> None:
    """Raises a UserError if the library of one of TRACKERS is not installed."""
    optional(kind, extra=kind)


def open_tracker(kind: str, workdir: Path) -> WandbTracker | MlflowTracker:
    """Opens the writer of a workdir's run, which continues the run of an earlier process.

    Args:
        kind: one of TRACKERS.

    Raises:
        UserError: the library is not installed, or cannot start a run.
    """
    file = workdir / FILE_NAME
    known = read_json_object(file) if file.is_file() else {}
    try:
        tracker = (WandbTracker if kind == "wandb" else MlflowTracker)(workdir, known.get(kind))
    except UserError:
        raise
    except Exception as error:  # each library has its own for a missing login or server
        found = f"--track={kind}: {first_line(error)}"
        raise UserError(f"{found}; {_HOW_TO_BEGIN[kind]}") from error
    write_json(file, {**known, kind: tracker.known_as})
    return tracker
