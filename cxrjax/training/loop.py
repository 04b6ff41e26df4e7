"""The training loop.

For step n = 1, 2, ...: take batch n; dispatch the step; read the metrics of the step that is now
`max_in_flight` behind. Where an evaluation or a checkpoint is due, all metrics up to step n are
read first, then the evaluation runs, then step n's figures are written, then the checkpoint is
begun: it holds parameters, optimiser and data position after step n, so that a resumed run takes
batch n + 1 and goes on as if nothing had happened. Told to stop, the loop saves after step n
without the evaluation that may be due then; the resumed run makes up for it first.

Of several processes each loads its rows of a batch and saves its part of a checkpoint; the first
one writes everything else, and says what there is to say. What only one of them knows (questions
set aside, rates) is gathered where figures are logged, since they all come there at the same step.
What watches a run are observers (observers.py): none of them changes what is learnt.
"""

import collections
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from cxrjax.distributed import hosts, meshes
from cxrjax.distributed.meshes import host_rows, put_tree
from cxrjax.errors import Preempted, UserError
from cxrjax.files import read_json_object
from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.models import count_parameters, partition
from cxrjax.records_io.quality import QualityLog
from cxrjax.training import checkpoint, step
from cxrjax.training.base_model import copy_tokenizer
from cxrjax.training.config import ExperimentConfig, TrainingConfig
from cxrjax.training.event_writer import metric_writers, periodic_actions
from cxrjax.training.metric_log import RunWriter, step_figures
from cxrjax.training.observers import (
    ExampleLog,
    FinishedStep,
    InputLimit,
    NonFiniteSteps,
    Observer,
    PolicyHealth,
    SetAsideQuestions,
    StepProfiler,
    SwappedCorners,
)
from cxrjax.training.preemption import Preemption
from cxrjax.training.progress import Progress, RunningStep, StepClock, StepFlops, peak_flops
from cxrjax.training.store import DIRECTORY, CheckpointStore, readable
from cxrjax.training.watchdog import EVALUATING, Watchdog
from cxrjax.training.workdir import (
    CONFIG_FILE,
    check_present,
    describe_run,
    make_writable,
    peak_memory_gb,
    storage_errors,
    write_json,
)

if TYPE_CHECKING:
    from cxrjax.training.rollouts import Rollouts

# (step, model) -> figures by name; arrays among them are pictures for the event files.
Evaluate = Callable[[int, Any], Mapping[str, Any]]
# (configuration, graphdef, trained, frozen, mesh) -> what makes a step's experience of its batch
# (rollouts.py).
MakeRollouts = Callable[[ExperimentConfig, Any, Any, Any, Mesh], "Rollouts"]

QUALITY_FILE = "quality.json"
RUN_FILE = "run.json"


@runtime_checkable
class BatchIterator(Protocol):
    """Endless batches with a position that can be kept and restored."""

    def __next__(self) -> LoadedBatch: ...

    def __iter__(self) -> Iterator[LoadedBatch]: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


@dataclasses.dataclass
class TrainingData:
    """Data of a run.

    Attributes:
        batches: this host's rows of every batch, from the first one on.
        steps: of the whole run, those before a resume included.
        files: hashed into run.json.
        quality: what was set aside before; the run adds what it must leave out, and writes
            quality.json.
    """

    batches: BatchIterator
    steps: int
    files: Sequence[Path] = ()
    quality: QualityLog = dataclasses.field(default_factory=QualityLog)


class Start(NamedTuple):
    """Beginning of a run.

    Attributes:
        model, base: from `checkpoint.build_model`.
        tokenizer_file: copied into the workdir, so that the run can be used on its own.
    """

    model: nnx.Module
    base: Mapping[str, Any]
    tokenizer_file: str | Path | None = None


def print_at_once(line: str) -> None:
    """Prints a line even where the output goes into a file."""
    print(line, flush=True)


class _Prepared(NamedTuple):
    """A run before it looks for checkpoints."""

    mesh: Mesh
    graphdef: Any
    state: step.TrainState
    frozen: Any


def _prepare(
    config: ExperimentConfig, workdir: Path, start: Start, data: TrainingData
) -> _Prepared:
    """Puts the model on the devices, after checking that all processes mean the same run."""
    make_writable(workdir)
    hosts.check_shared(workdir)
    position = {n: value for n, value in data.batches.get_state().items() if n != "step"}
    same = {"configuration": config.to_json(), "base": start.base, "data": position}
    hosts.check_same(same)
    mesh = meshes.make_mesh(config.mesh)
    meshes.check_batch_divides(
        mesh,
        config.batch_images,
        config.training.accumulation_steps,
        config.training.batch_questions,
    )
    graphdef, trainable, frozen = partition(start.model, config.trainable)
    frozen = step.cast_params(frozen, config.model.frozen_dtype)
    state = step.init_state(trainable, step.make_optimizer(config.optimizer, data.steps))
    return _Prepared(mesh, graphdef, put_tree(state, mesh), put_tree(frozen, mesh))


def train(
    config: ExperimentConfig,
    workdir: Path,
    start: Start,
    data: TrainingData,
    *,
    evaluate: Evaluate | None = None,
    make_rollouts: MakeRollouts | None = None,
    preemption: Preemption | None = None,
    track: str | None = None,
    log_line: Callable[[str], None] = print_at_once,
) -> None:
    """Trains, or goes on training, until the last step; leaves checkpoints in the workdir.

    Args:
        config: valid; a workdir with checkpoints must have been begun with the same one. With more
            steps than its run had, it goes on with the schedule of so many.
        workdir: receives config.json, run.json, metrics.jsonl, event files and checkpoints; the
            same directory for all processes.
        evaluate: figures of the model after a step, the same in every process;
            `training.best_metric` must be among them. None: no evaluation, and the last checkpoint
            counts as the best.
        make_rollouts: for reinforcement learning; the start is what the run began with, resumed or
            not. None: steps are on batches as they are.
        preemption: asked after each step whether to save and stop. None: never.
        track: what else gets the figures (`tracking.TRACKERS`).
        log_line: where progress goes, in the first process.

    Raises:
        UserError: the workdir cannot be written or holds another run or a longer one, the mesh
            does not fit, or the loss or the gradients are no longer finite, more often than may be
            left out.
        Preempted: told to stop; everything is saved.
    """
    if not hosts.is_first():
        log_line = _say_nothing
    mesh, graphdef, state, frozen = _prepare(config, workdir, start, data)
    trained = count_parameters(state.trainable)
    parameters = {"total": trained + count_parameters(frozen), "trainable": trained}
    log_line(
        f"{parameters['trainable']:,} of {parameters['total']:,} parameters are trained "
        f"({parameters['trainable'] / parameters['total']:.2%})"
    )
    settings = config.training
    checkpoints = CheckpointStore(
        workdir, settings.best_metric, settings.keep_last, log_line=log_line
    )
    rolls = None
    if make_rollouts is not None:
        rolls = make_rollouts(config, graphdef, state.trainable, frozen, mesh)
    first, saved = checkpoints.latest_step() or 0, {}
    if first:
        checkpoint.check_same_run(workdir, config)
        planned = _planned_steps(workdir, data.steps)
        checkpoint.check_same_base(workdir, checkpoints.restore_json(first, "base"), start.base)
        state = checkpoints.restore_state(first, state)
        saved = checkpoints.restore_json(first, "data")
        with readable(workdir / DIRECTORY / str(first) / "data"):
            data.batches.set_state(saved)
        log_line(f"resumed from the checkpoint of step {first:,}")
        if planned < data.steps:
            each = config.rl.updates
            rates = [
                step.learning_rate_schedule(config.optimizer, steps * each)
                for steps in (planned, data.steps)
            ]
            log_line(
                f"lengthened from {planned:,} to {data.steps:,} steps: the learning rate goes on "
                f"with the {config.optimizer.schedule} schedule of {data.steps:,} steps, after "
                f"step {first:,} with {rates[1](first * each):.3g} (step {first:,} had "
                f"{rates[0](first * each - 1):.3g})"
            )
    if hosts.is_first():
        about = describe_run(
            seed=settings.seed,
            steps=data.steps,
            resumed_from=first,
            parameters=parameters,
            base=start.base,
            data_files=data.files,
        )
        _begin_workdir(workdir, config, start.tokenizer_file, data.quality, about)
    watchdog = Watchdog(workdir, settings.stall_seconds)
    step_flops = StepFlops(start.model, config, jax.process_count())
    # What drawing answers takes is not counted, and a share of the peak without it would be wrong.
    peak = None if make_rollouts is not None else peak_flops(config, mesh)
    observers: list[Observer] = [
        watchdog,
        Progress(data.steps, peak, step_flops, log_line),
        NonFiniteSteps(workdir, settings.skip_nonfinite, log_line, checkpoints.latest_step),
        *_watchers(config, workdir, data, mesh, first, log_line),
    ]
    if preemption is not None:
        preemption.check()
    updates = data.steps * config.rl.updates
    train_step = step.make_parallel_step(graphdef, config, updates, mesh, state, frozen)
    if rolls is not None:
        train_step = rolls.repeated(train_step)
    writer = metric_writers.MultiWriter([])
    if hosts.is_first():
        writer = RunWriter(workdir, first, track)
    if not first:
        writer.write_hparams(config.to_json())
    loop = _Loop(
        settings=settings,
        workdir=workdir,
        mesh=mesh,
        graphdef=graphdef,
        frozen=frozen,
        base=start.base,
        train_step=train_step,
        rollouts=rolls,
        steps=data.steps,
        evaluate=evaluate,
        preemption=preemption,
        checkpoints=checkpoints,
        writer=writer,
        observers=observers,
        log_line=log_line,
    )
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(watchdog)
        if preemption is not None:
            stack.enter_context(preemption.deferred())
        # Also after an error: a checkpoint that is being written gets finished.
        for resource in (checkpoints, writer, loop.clock, *observers):
            stack.enter_context(contextlib.closing(resource))
        try:
            loop.run(state, data.batches, first, saved)
        except Exception as error:
            watchdog.blame(error)
            raise
    log_line(
        f"{data.steps - first:,} steps in {time.monotonic() - begun:,.0f} s, compilation, "
        f"evaluations and checkpoints included; peak memory {peak_memory_gb():.2f} GB"
    )


def _planned_steps(workdir: Path, steps: int) -> int:
    """The steps that the run in a workdir was to have; `steps` where its run.json is gone.

    Raises:
        UserError: it was to have more than `steps`.
    """
    if not (workdir / RUN_FILE).is_file():
        return steps
    planned = read_json_object(workdir / RUN_FILE).get("steps")
    if not isinstance(planned, int) or planned > steps:
        raise UserError(
            f"{workdir} holds a run of {planned} steps and this one is to have {steps}: a run can "
            "be lengthened, not shortened; set training.steps or epochs higher, or use another "
            "workdir"
        )
    return planned


def _watchers(
    config: ExperimentConfig,
    workdir: Path,
    data: TrainingData,
    mesh: Mesh,
    first: int,
    log_line: Callable[[str], None],
) -> list[Observer]:
    """Observers that a run could do without, but that say what is wrong with it."""
    settings = config.training
    watchers: list[Observer] = [
        InputLimit(config, log_line),
        SwappedCorners(data.steps, log_line),
        SetAsideQuestions(data.quality, workdir / QUALITY_FILE, log_line),
    ]
    if config.rl.kind != "none":
        watchers.append(PolicyHealth(log_line))
    if settings.log_examples:
        watchers.append(ExampleLog(workdir, host_rows(mesh, config.batch_images)))
    if settings.profile_steps:
        steps = settings.profile_steps
        watchers.append(StepProfiler(workdir, steps, first, data.steps, log_line))
    return watchers


def _begin_workdir(
    workdir: Path,
    config: ExperimentConfig,
    tokenizer_file: str | Path | None,
    quality: QualityLog,
    about: Mapping[str, Any],
) -> None:
    """Writes what is known of a run before its first step; `about` is for run.json."""
    # Of a resumed run, also what the workdir has of the part before.
    if about["resumed_from"] and (workdir / QUALITY_FILE).is_file():
        quality.extend(read_json_object(workdir / QUALITY_FILE))
    write_json(workdir / QUALITY_FILE, quality.to_json())
    if tokenizer_file is not None:
        with storage_errors(f"{workdir}: the tokenizer"):
            copy_tokenizer(tokenizer_file, workdir)
    write_json(workdir / CONFIG_FILE, config.to_json())
    write_json(workdir / RUN_FILE, about)


class _InFlight(NamedTuple):
    """A step whose metrics have not been read."""

    number: int
    metrics: step.StepMetrics
    question_ids: list[str]
    running: RunningStep


@dataclasses.dataclass
class _Loop:
    """The loop: what stays the same from step to step, and the steps in flight."""

    settings: TrainingConfig
    workdir: Path
    mesh: Mesh
    graphdef: Any
    frozen: Any
    base: Mapping[str, Any]
    train_step: step.StepFunction
    rollouts: "Rollouts | None"
    steps: int
    evaluate: Evaluate | None
    preemption: Preemption | None
    checkpoints: CheckpointStore
    writer: metric_writers.MultiWriter
    observers: Sequence[Observer]
    log_line: Callable[[str], None]

    def __post_init__(self) -> None:
        self.clock = StepClock()
        self.in_flight: collections.deque[_InFlight] = collections.deque()
        self.compiled_shapes: set[tuple[Any, ...]] = set()
        self.report = periodic_actions.PeriodicCallback(
            every_steps=self.settings.log_every, on_steps=[self.steps], callback_fn=self._report
        )

    def run(
        self,
        state: step.TrainState,
        batches: BatchIterator,
        first: int,
        saved: Mapping[str, Any],
    ) -> None:
        """Takes the steps after `first`; `saved` is what its checkpoint holds beside the state."""
        for observer in self.observers:
            observer.on_start(saved)
        if first and self._evaluates_after(first) and not self.checkpoints.metrics(first):
            self._save(first, state, batches, self._evaluate(first, state))
        self._restart_clock()
        for number in range(first + 1, self.steps + 1):
            self._rest_where_wanted(number, before=True)
            self._begin(number, "reading data")
            with self.clock.waiting_for_data():
                loaded = next(batches)
            self._begin(number, "waiting for the step")
            state = self._dispatch(number, state, loaded)
            self._read_metrics(self.settings.max_in_flight)
            self._rest_where_wanted(number, before=False)
            stop = self.preemption is not None and self.preemption.reached(number)
            evaluates = not stop and self._evaluates_after(number)
            if stop or evaluates or self._due(number, self.settings.checkpoint_every):
                self._read_metrics(0)
                figures: dict[str, float | None] = {}
                if evaluates:
                    try:
                        figures = self._evaluate(number, state)
                    except Preempted:
                        self.log_line(f"step {number:,}: the evaluation is put off to the restart")
                        stop = True
                    except Exception:
                        # Its fault must not cost the training. Of several processes only one may
                        # have met it, and would wait for the others to save.
                        if hosts.alone():
                            self._save(number, state, batches, {})
                        raise
                self._save(number, state, batches, figures)
                self._restart_clock()
            if stop:
                assert self.preemption is not None
                raise Preempted(f"{self.preemption.reason}: saved step {number:,} and stopped")

    def _begin(self, number: int, doing: str) -> None:
        for observer in self.observers:
            observer.on_phase(number, doing)

    def _rest_where_wanted(self, number: int, before: bool) -> None:
        wanting = [one for one in self.observers if one.wants_rest(number, before)]
        if wanting:
            self._read_metrics(0)
            for observer in wanting:
                observer.on_rest(number, before)
            self._restart_clock()

    def _save(
        self,
        number: int,
        state: step.TrainState,
        batches: BatchIterator,
        figures: Mapping[str, float | None],
    ) -> None:
        self._begin(number, "saving a checkpoint")
        check_present(self.workdir, CONFIG_FILE)
        self.writer.flush()
        position = {**batches.get_state()}
        for observer in self.observers:
            position |= observer.state()
        self.checkpoints.save(number, state, position, self.base, figures)

    def _evaluates_after(self, number: int) -> bool:
        return self.evaluate is not None and self._due(number, self.settings.eval_every)

    def _restart_clock(self) -> None:
        """Nothing is in flight, and what was done since the last step is none's time."""
        self.clock.restart()
        for observer in self.observers:
            observer.on_restart_of_clock()

    def _due(self, number: int, every: int) -> bool:
        return number == self.steps or (every > 0 and number % every == 0)

    def _dispatch(
        self, number: int, state: step.TrainState, loaded: LoadedBatch
    ) -> step.TrainState:
        """Starts a step; waits for it only where its shapes are new and XLA must compile."""
        for observer in self.observers:
            observer.on_batch(number, loaded)
        if self.rollouts is None:
            batch = meshes.put_batch(loaded.batch, self.mesh)
        else:
            batch = self.rollouts(number, state, loaded)
        shapes = (jax.tree.structure(batch), *(x.shape for x in jax.tree.leaves(batch)))
        new = shapes not in self.compiled_shapes
        if new:
            self._read_metrics(0)
            self.log_line(f"step {number:,}: compiling for {_shape_text(loaded.batch)}")
        # A trace shows steps by their numbers.
        named = jax.profiler.StepTraceAnnotation("train", step_num=number)
        with jax.transfer_guard("disallow"), named:
            self.clock.dispatching()
            state, metrics = self.train_step(state, self.frozen, batch)
            running = self.clock.watch(metrics.loss)
        ids = [i for row in loaded.question_ids for i in row if i is not None]
        self.in_flight.append(_InFlight(number, metrics, ids, running))
        if new:
            self.compiled_shapes.add(shapes)
            self._read_metrics(0, compiled=True)
            self._restart_clock()
        return state

    def _read_metrics(self, leave: int, compiled: bool = False) -> None:
        """Waits for steps until `leave` are in flight, tells of them, and logs where it is due."""
        while len(self.in_flight) > leave:
            number, metrics, question_ids, running = self.in_flight.popleft()
            values, times = step_figures(metrics), self.clock.times(running)
            done = FinishedStep(number, values, times, question_ids, compiled)
            for observer in self.observers:
                observer.on_step(done)
            self.report(number, done=done)

    def _report(self, step: int, done: FinishedStep, **_: Any) -> None:
        figures = dict(done.values)
        for observer in self.observers:
            observer.on_log(done, figures)
        named = {f"train/{name}": value for name, value in figures.items()}
        self.writer.write_scalars(step, named)

    def _evaluate(self, number: int, state: step.TrainState) -> dict[str, float | None]:
        assert self.evaluate is not None
        self._begin(number, EVALUATING)
        found = self.evaluate(number, nnx.merge(self.graphdef, state.trainable, self.frozen))
        pictures = {n: v for n, v in found.items() if isinstance(v, np.ndarray) and v.ndim > 1}
        figures = {n: _number(v) for n, v in found.items() if n not in pictures}
        best = self.settings.best_metric
        if best not in figures:
            raise UserError(
                f"training.best_metric={best!r} is not among the evaluation's figures: "
                + ", ".join(sorted(figures))
            )
        self.writer.write_scalars(number, {f"validation/{n}": v for n, v in figures.items()})
        self.writer.write_images(number, {f"validation/{n}": v for n, v in pictures.items()})
        shown = "undefined" if figures[best] is None else f"{figures[best]:.4f}"
        self.log_line(f"step {number:,}: validation {best} {shown}")
        for observer in self.observers:
            observer.on_evaluation(number, figures)
        return figures


def _say_nothing(line: str) -> None:
    """`log_line` of every process but the first."""


def _shape_text(batch: Batch) -> str:
    images, questions, prefix = batch.prefix_tokens.shape
    answer = batch.answer_tokens.shape[-1]
    height, width = batch.images.shape[-3:-1]
    size = "" if height == width or batch.images.ndim == 3 else f" ({height} x {width})"
    return f"{images} images{size} x {questions} questions of {prefix} + {answer} tokens"


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
