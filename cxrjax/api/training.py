"""Training from Python, and the run that it leaves."""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cxrjax.api.builds import Build
from cxrjax.api.tables import Table
from cxrjax.errors import UserError
from cxrjax.paths import AnyPath, to_path

if TYPE_CHECKING:
    from cxrjax.training.config import ExperimentConfig
    from cxrjax.training.observers import Observer


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """The folder of a training run; `load` takes it, and functions that take a path.

    Attributes:
        folder: with checkpoints/, config.json, run.json, metrics.jsonl, and the run's card.
    """

    folder: Path

    def __fspath__(self) -> str:
        return os.fspath(self.folder)

    @property
    def figures(self) -> Table:
        """Returns the figures of each logged step (metrics.jsonl): step, train/loss, ..."""
        from cxrjax.files import read_json_lines
        from cxrjax.training.metric_log import FILE_NAME

        lines = read_json_lines(self.folder / FILE_NAME, "figures", "train again")
        return Table(line for _, line in lines)

    @property
    def card(self) -> str:
        """Returns the run's card (README.md): data, settings, figures, limits."""
        from cxrjax.untrusted.foreign_files import read_text

        return read_text(self.folder / "README.md", 2**24)


def train(
    config: "str | Path | ExperimentConfig" = "configs/records_lora.py",
    workdir: AnyPath = "runs/own/train",
    overrides: Mapping[str, object] | None = None,
    *,
    data: Build | AnyPath | None = None,
    observers: "Sequence[Observer]" = (),
    track: str | None = None,
    recipe: str | None = None,
) -> TrainingRun:
    """Trains to the last step, from where a run in the workdir stopped.

    Ctrl-C, or the stop button of a notebook, saves after the current step; the same call resumes.

    Args:
        config: FILE.py[:VARIANT], or a configuration.
        workdir: folder of the run.
        overrides: key -> value, such as {"training.steps": 100}.
        data: a build whose splits "train" and "validation" are trained on and evaluated.
        observers: hear of each step, its figures and each evaluation.
        track: sends the figures to "mlflow" or "wandb" too.
        recipe: the configuration's name on the run's card (default: its file).

    Returns:
        The run, for `load`.

    Raises:
        UserError: the configuration or the data cannot be used.
        Preempted: stopped by a signal; everything is saved.
    """
    from cxrjax import cli
    from cxrjax.api.training_run import train_run
    from cxrjax.training.config_file import load_config, override_words
    from cxrjax.training.preemption import Preemption

    cli.keep_compiled_programs()
    values = {**_splits(data), **(overrides or {})}
    if isinstance(config, str | Path):
        recipe = recipe or str(config)
        config = load_config(str(config), override_words(values))
    elif values:
        raise UserError("overrides and data are for a configuration's file; change the object")
    folder = to_path(workdir)
    # Only the main thread hears signals.
    hears = threading.current_thread() is threading.main_thread()
    with Preemption() if hears else contextlib.nullcontext() as preemption:
        train_run(config, folder, preemption, track=track, recipe=recipe, observers=observers)
    return TrainingRun(folder)


def _splits(data: Build | AnyPath | None) -> dict[str, object]:
    """Keys of a configuration that a build's splits are the values of.

    Raises:
        UserError: there is no split to train on.
    """
    if data is None:
        return {}
    files = Build(to_path(data)).splits
    if "train" not in files:
        raise UserError(f"{os.fspath(data)}: no records/train.jsonl in it; expected a build")
    return {"data.train": files["train"], "data.validation": files.get("validation")}
