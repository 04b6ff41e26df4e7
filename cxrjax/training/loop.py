"""The training loop.

For step n = 1, 2, ...: take batch n; dispatch the step; read the metrics of the step that is now
`max_in_flight` behind. Where an evaluation or a checkpoint is due, all metrics up to step n are
read first, then the evaluation runs, then step n's figures are written, then the checkpoint is
begun: it holds parameters, optimiser and data position after step n, so that a resumed run takes
batch n + 1 and continues as if nothing had happened. Told to stop, the loop saves after step n
without the evaluation that may be due then; the resumed run makes up for it first.

What watches a run are observers (observers.py): none of them changes what is learned.
"""

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from cxrjax.distributed import hosts, meshes
from cxrjax.errors import Preempted, UserError
from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.event_writer import periodic_actions
from cxrjax.training.metric_log import step_figures
from cxrjax.training.objectives import MakeRollouts
from cxrjax.training.observers import FinishedStep, LogLine, Observer
from cxrjax.training.preemption import Preemption
from cxrjax.training.progress import RunningStep
from cxrjax.training.run import Run, Start, TrainingData, open_run, print_at_once
from cxrjax.training.step import StepMetrics
from cxrjax.training.watchdog import EVALUATING

# (step, model) -> figures by name; arrays among them are images for the event files.
Evaluate = Callable[[int, Any], Mapping[str, Any]]


def train(
    config: ExperimentConfig,
    workdir: Path,
    start: Start,
    data: TrainingData,
    *,
    mesh: Mesh | None = None,
    evaluate: Evaluate | None = None,
    make_rollouts: MakeRollouts | None = None,
    preemption: Preemption | None = None,
    track: str | None = None,
    log_line: LogLine = print_at_once,
    observers: Sequence[Observer] = (),
) -> None:
    """Trains, or resumes training, until the last step; leaves checkpoints in the workdir.

    Args:
        config: valid; a workdir with checkpoints must have been started with the same one. With
            more steps than its run had, it continues with the schedule of so many.
        workdir: receives config.json, run.json, metrics.jsonl, event files and checkpoints; the
            same directory for all processes.
        mesh: from `checked_mesh`; None: the configuration's.
        evaluate: figures of the model after a step, the same in every process;
            `training.best_metric` must be among them. None: no evaluation, and the last checkpoint
            counts as the best.
        make_rollouts: for reinforcement learning; the start is what the run began with, resumed or
            not. None: steps are on batches as they are.
        preemption: asked after each step whether to save and stop. None: never.
        track: what else receives the figures (`tracking.TRACKERS`).
        log_line: where progress goes, in the first process.
        observers: beside the run's own.

    Raises:
        UserError: the workdir cannot be written or holds another run or a longer one, the mesh
            does not fit, or the loss or the gradients are no longer finite, more often than may be
            left out.
        Preempted: told to stop; everything is saved.
    """
    with open_run(
        config,
        workdir,
        start,
        data,
        mesh=mesh,
        make_rollouts=make_rollouts,
        preemption=preemption,
        track=track,
        log_line=log_line,
    ) as run:
        run.observers = [*run.observers, *observers]
        steps = _StepsInFlight(run)
        for observer in run.observers:
            observer.on_start(run.saved)
        if run.number and _evaluates(run, evaluate) and not run.checkpoints.metrics(run.number):
            run.save(_evaluate(run, evaluate))  # what the stop put off
        run.restart_clock()
        for number in range(run.number + 1, run.steps + 1):
            steps.rest_where_wanted(number, before=True)
            run.announce(number, "reading data")
            with run.clock.waiting_for_data():
                loaded = next(run.batches)
            run.announce(number, "waiting for the step")
            steps.dispatch(number, loaded)
            steps.read_metrics(leave=run.settings.max_in_flight)
            steps.rest_where_wanted(number, before=False)
            stop = run.is_told_to_stop()
            evaluates = not stop and _evaluates(run, evaluate)
            saves = stop or evaluates or run.is_due(run.settings.checkpoint_every)
            if saves or (run.local is not None and run.is_due(run.settings.local_every)):
                steps.read_metrics(leave=0)
                figures: Mapping[str, float | None] = {}
                if evaluates:
                    try:
                        figures = _evaluate(run, evaluate)
                    except Preempted:
                        run.log_line(f"step {number:,}: the evaluation is put off to the restart")
                        stop = True
                    except Exception:
                        # Its fault must not cost the training. Of several processes only one may
                        # have met it, and would wait for the others to save.
                        if hosts.alone():
                            run.save({})
                        raise
                run.save(figures, run.checkpoints if saves else run.local)
                run.restart_clock()
            if stop:
                assert preemption is not None
                raise Preempted(f"{preemption.reason}: saved step {number:,} and stopped")


def _evaluates(run: Run, evaluate: Evaluate | None) -> bool:
    return evaluate is not None and run.is_due(run.settings.eval_every)


def _evaluate(run: Run, evaluate: Evaluate | None) -> dict[str, float | None]:
    """Writes the figures of the model as it is, and returns them."""
    assert evaluate is not None
    run.announce(run.number, EVALUATING)
    found = evaluate(run.number, run.model)
    images = {n: v for n, v in found.items() if isinstance(v, np.ndarray) and v.ndim > 1}
    figures = {n: _number(v) for n, v in found.items() if n not in images}
    best = run.settings.best_metric
    if best not in figures:
        raise UserError(
            f"training.best_metric={best!r} is not among the evaluation's figures: "
            + ", ".join(sorted(figures))
        )
    run.writer.write_scalars(run.number, {f"validation/{n}": v for n, v in figures.items()})
    run.writer.write_images(run.number, {f"validation/{n}": v for n, v in images.items()})
    shown = "undefined" if figures[best] is None else f"{figures[best]:.4f}"
    run.log_line(f"step {run.number:,}: validation {best} {shown}")
    for observer in run.observers:
        observer.on_evaluation(run.number, figures)
    return figures


class _InFlight(NamedTuple):
    """A step whose metrics have not been read."""

    number: int
    metrics: StepMetrics
    question_ids: list[str]
    running: RunningStep


class _StepsInFlight:
    """Dispatches steps of a run, and reads the metrics of earlier ones."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: collections.deque[_InFlight] = collections.deque()
        self._compiled_shapes: set[tuple[Any, ...]] = set()
        self._report = periodic_actions.PeriodicCallback(
            every_steps=run.settings.log_every, on_steps=[run.steps], callback_fn=self._log
        )

    def dispatch(self, number: int, loaded: LoadedBatch) -> None:
        """Starts a step; waits for it only where its shapes are new and XLA must compile."""
        run = self._run
        for observer in run.observers:
            observer.on_batch(number, loaded)
        if run.rollouts is None:
            batch = meshes.put_batch(loaded.batch, run.mesh)
        else:
            batch = run.rollouts(number, run.state, loaded)
        shapes = (jax.tree.structure(batch), *(x.shape for x in jax.tree.leaves(batch)))
        new = shapes not in self._compiled_shapes
        if new:
            self.read_metrics(leave=0)
            run.log_line(f"step {number:,}: compiling for {_shape_text(loaded.batch)}")
        # A trace shows steps by their numbers.
        named = jax.profiler.StepTraceAnnotation("train", step_num=number)
        with jax.transfer_guard("disallow"), named:
            run.clock.dispatching()
            run.state, metrics = run.train_step(run.state, run.frozen, batch)
            running = run.clock.watch(metrics.loss)
        run.number = number
        ids = [i for row in loaded.question_ids for i in row if i is not None]
        self._waiting.append(_InFlight(number, metrics, ids, running))
        if new:
            self._compiled_shapes.add(shapes)
            self.read_metrics(leave=0, compiled=True)
            run.restart_clock()

    def read_metrics(self, leave: int, compiled: bool = False) -> None:
        """Waits for steps until `leave` are in flight, and logs their figures where it is due."""
        while len(self._waiting) > leave:
            number, metrics, question_ids, running = self._waiting.popleft()
            values, times = step_figures(metrics), self._run.clock.times(running)
            done = FinishedStep(number, values, times, question_ids, compiled)
            for observer in self._run.observers:
                observer.on_step(done)
            self._report(number, done=done)

    def rest_where_wanted(self, number: int, before: bool) -> None:
        """Reads all metrics where an observer wants no step in flight, and lets it work then."""
        wanting = [one for one in self._run.observers if one.wants_rest(number, before)]
        if wanting:
            self.read_metrics(leave=0)
            for observer in wanting:
                observer.on_rest(number, before)
            self._run.restart_clock()

    def _log(self, step: int, done: FinishedStep, **_: Any) -> None:
        figures = dict(done.values)
        for observer in self._run.observers:
            observer.on_log(done, figures)
        named = {f"train/{name}": value for name, value in figures.items()}
        self._run.writer.write_scalars(step, named)


def _shape_text(batch: Batch) -> str:
    images, questions, prefix = batch.prefix_tokens.shape
    answer = batch.answer_tokens.shape[-1]
    height, width = batch.images.shape[-3:-1]
    size = "" if height == width or batch.images.ndim == 3 else f" ({height} x {width})"
    return f"{images} images{size} x {questions} questions of {prefix} + {answer} tokens"


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
