"""Training beside a loop that reads its figures."""

import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cxrjax.errors import UserError
from cxrjax.files import reading
from cxrjax.paths import to_path
from cxrjax.untrusted.foreign_files import raw_lines
from cxrjax.untrusted.json_text import parse_object

if TYPE_CHECKING:
    from cxrjax.training.config import ExperimentConfig

Figures = dict[str, float | None]
_LOOKED_EVERY = 0.2  # seconds


def train(
    config: "str | Path | ExperimentConfig" = "configs/records_lora.py",
    workdir: str | Path = "runs/own/train",
    overrides: Mapping[str, Any] | None = None,
) -> Iterator[Figures]:
    """Trains as `python -m cxrjax.train` does, and yields figures while it goes.

    Training goes on beside the loop, from where a run in the workdir stopped, and leaves there all
    that the command leaves. Whoever leaves the loop has it save after the step in work and stop.

    Args:
        config: FILE.py[:VARIANT], or a configuration.
        overrides: key -> value, such as {"data.train": path, "training.steps": 100}.

    Returns:
        The values of each step that is logged from here on, "step" among them, as metrics.jsonl has
        them.

    Raises:
        UserError: the configuration cannot be used; of data that cannot be used it is raised in
            the loop.
    """
    from cxrjax import cli
    from cxrjax.training.config_file import load_config

    cli.keep_compiled_programs()
    recipe = None
    if isinstance(config, str | Path):
        recipe = str(config)
        words = [f"--config.{key}={value}" for key, value in (overrides or {}).items()]
        config = load_config(str(config), words)
    elif overrides:
        raise UserError("overrides are for a configuration's file; change the object itself")
    return _trained(config, to_path(workdir), recipe)


def _trained(config: "ExperimentConfig", workdir: Path, recipe: str | None) -> Iterator[Figures]:
    """Trains in a thread and yields what it logs."""
    from cxrjax.training.metric_log import FILE_NAME

    ended: queue.Queue[BaseException | None] = queue.Queue()
    stop = _stop_by_hand()
    log = workdir / FILE_NAME
    last = max((_step(one) for one in _logged(log)), default=-1)

    def work() -> None:
        from cxrjax.api import training_run

        try:
            training_run.train_run(config, workdir, stop, recipe=recipe)
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    thread = threading.Thread(target=work, name="cxrjax training")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOKED_EVERY)
            for figures in _logged(log):
                if _step(figures) > last:
                    last = _step(figures)
                    yield figures
        yield from (figures for figures in _logged(log) if _step(figures) > last)
    finally:
        stop.ask()
        thread.join()
    error = ended.get()
    if error is not None:
        raise error


def _logged(log: Path) -> Iterator[Figures]:
    """Whole lines of a run's log; the last may be in work."""
    if log.is_file():
        with reading(log, "figures", "train again"):
            for _, line in raw_lines(log):
                if line.endswith(b"\n"):
                    yield parse_object(line)


def _step(figures: Figures) -> float:
    return figures.get("step") or 0.0


def _stop_by_hand() -> Any:
    """A `Preemption` that somebody asks for instead of a signal."""
    from cxrjax.training.preemption import Preemption

    class ByHand(Preemption):
        """Threads cannot hear signals."""

        _asked = False

        def ask(self) -> None:
            """Requests a stop after the current step."""
            self._asked = True

        @property
        def requested(self) -> bool:
            return self._asked

        @property
        def reason(self) -> str:
            return "the loop was left"

    return ByHand()
