"""A run that is open: what it trains, where it is written, and where it stands.

Of several processes each loads its rows of a batch and saves its part of a checkpoint; the first
one writes everything else, and logs what there is to log. What only one of them knows (rejected
questions, rates) is gathered where figures are logged, since they all come there at the same step.
"""

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from flax import nnx
from jax.sharding import Mesh

from cxrjax.distributed import hosts, meshes
from cxrjax.distributed.meshes import host_rows, put_tree
from cxrjax.errors import UserError
from cxrjax.files import read_json_object
from cxrjax.input_pipeline.batch import LoadedBatch
from cxrjax.models import count_parameters, partition
from cxrjax.paths import local_path
from cxrjax.records_io.quality import QualityLog
from cxrjax.training import checkpoint, step
from cxrjax.training.base_model import copy_tokenizer
from cxrjax.training.config import ExperimentConfig, TrainingConfig
from cxrjax.training.event_writer import metric_writers
from cxrjax.training.goodput import Goodput
from cxrjax.training.metric_log import RunWriter
from cxrjax.training.objectives import Experiences, MakeRollouts, policy_observers
from cxrjax.training.observers import (
    ExampleLog,
    InputLimit,
    LogLine,
    NonFiniteSteps,
    Observer,
    SetAsideQuestions,
    StepProfiler,
    SwappedCorners,
)
from cxrjax.training.optimizer import learning_rate_schedule, make_optimizer
from cxrjax.training.preemption import Preemption
from cxrjax.training.progress import Progress, StepClock, StepFlops, peak_flops
from cxrjax.training.store import CheckpointStore, readable
from cxrjax.training.watchdog import SAVING, Watchdog
from cxrjax.training.workdir import (
    CONFIG_FILE,
    check_present,
    describe_run,
    make_writable,
    peak_memory_gb,
    storage_errors,
    write_json,
)

QUALITY_FILE = "quality.json"
RUN_FILE = "run.json"


@runtime_checkable
class BatchIterator(Protocol):
    """Endless batches with a position that can be saved and restored."""

    def __next__(self) -> LoadedBatch: ...

    def __iter__(self) -> Iterator[LoadedBatch]: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


@dataclasses.dataclass
class TrainingData:
    """Data of a run."""

    batches: BatchIterator  # this host's rows of every batch, from the first one on
    steps: int  # of the whole run, those before a resume included
    files: Sequence[Path] = ()  # hashed into run.json
    # What was rejected before; the run adds what it must leave out, and writes quality.json.
    quality: QualityLog = dataclasses.field(default_factory=QualityLog)


class Start(NamedTuple):
    """Beginning of a run."""

    # `model`, `base`: from `checkpoint.build_model`.
    model: nnx.Module
    base: Mapping[str, Any]
    # Copied into the workdir, so that the run can be used without its base.
    tokenizer_file: str | Path | None = None


def print_at_once(line: str) -> None:
    """Prints a line even where the output goes into a file."""
    print(line, flush=True)


@dataclasses.dataclass
class Opening:
    """Parts that a run is opened with."""

    config: ExperimentConfig
    workdir: Path
    start: Start
    data: TrainingData
    mesh: Mesh
    log_line: LogLine

    @property
    def settings(self) -> TrainingConfig:
        """The group `training`."""
        return self.config.training


@dataclasses.dataclass
class Run(Opening):
    """A run between two steps."""

    # `graphdef`, `frozen`: of the model, besides what `state` trains.
    graphdef: Any
    frozen: Any
    state: step.TrainState  # after step `number`
    train_step: step.StepFunction  # compiled for the mesh
    rollouts: Experiences | None  # what samples a step's answers; None: supervised
    number: int  # of the last step that was dispatched; at first that of the checkpoint, or 0
    saved: Mapping[str, Any]  # data and observers as of the checkpoint that the run resumes from
    checkpoints: CheckpointStore
    local: CheckpointStore | None  # the last state on a local disk, beside the workdir's
    writer: metric_writers.MultiWriter
    observers: Sequence[Observer]
    preemption: Preemption | None
    clock: StepClock = dataclasses.field(default_factory=StepClock)  # of steps

    @property
    def batches(self) -> BatchIterator:
        """Batches, of which the next is that of step `number` + 1."""
        return self.data.batches

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.data.steps

    @property
    def model(self) -> Any:
        """The model with what it has learned so far."""
        return nnx.merge(self.graphdef, self.state.trainable, self.frozen)

    def is_due(self, every: int) -> bool:
        """Returns whether something that comes every so many steps, and at the end, comes now."""
        return self.number == self.steps or (every > 0 and self.number % every == 0)

    def is_told_to_stop(self) -> bool:
        """Returns whether to save and leave after this step; the same in all processes."""
        return self.preemption is not None and self.preemption.reached(self.number)

    def announce(self, number: int, doing: str) -> None:
        """Passes on to observers what comes next."""
        for observer in self.observers:
            observer.on_phase(number, doing)

    def restart_clock(self) -> None:
        """With nothing in flight: what was done since the last step is no step's time."""
        self.clock.restart()
        for observer in self.observers:
            observer.on_restart_of_clock()

    def save(
        self, figures: Mapping[str, float | None], store: CheckpointStore | None = None
    ) -> None:
        """Begins a checkpoint of parameters, optimiser, data and observers, with figures.

        Args:
            store: None: the workdir's.
        """
        self.announce(self.number, SAVING)
        check_present(self.workdir, CONFIG_FILE)
        self.writer.flush()
        position = {**self.batches.get_state()}
        for observer in self.observers:
            position |= observer.state()
        store = store or self.checkpoints
        store.save(self.number, self.state, position, self.start.base, figures)


@contextlib.contextmanager
def open_run(
    config: ExperimentConfig,
    workdir: Path,
    start: Start,
    data: TrainingData,
    *,
    mesh: Mesh | None = None,
    make_rollouts: MakeRollouts | None = None,
    preemption: Preemption | None = None,
    track: str | None = None,
    log_line: LogLine = print_at_once,
) -> Iterator[Run]:
    """Opens a run where its last checkpoint left it, or at its start; see `loop.train`.

    On leaving, a checkpoint that is being written is finished, also after an error.
    """
    if not hosts.is_first():
        log_line = _log_nothing
    mesh = checked_mesh(config) if mesh is None else mesh
    watchdog = Watchdog(workdir, config.training.stall_seconds)
    opener = _Opener(config, workdir, start, data, mesh, log_line)
    run = opener.run(watchdog, make_rollouts, preemption, track)
    first, begun = run.number, time.monotonic()
    with contextlib.ExitStack() as stack:
        for one in run.observers:
            if isinstance(one, Goodput):
                stack.callback(one.finish)
        stack.enter_context(watchdog)
        if preemption is not None:
            stack.enter_context(preemption.deferred())
        # Also after an error: a checkpoint that is being written gets finished.
        if run.local is not None:
            stack.enter_context(contextlib.closing(run.local))
        for resource in (run.checkpoints, run.writer, run.clock, *run.observers):
            stack.enter_context(contextlib.closing(resource))
        try:
            yield run
            run.announce(run.number, SAVING)
        except Exception as error:
            watchdog.blame(error)
            raise
    log_line(
        f"{run.steps - first:,} steps in {time.monotonic() - begun:,.0f} s, compilation, "
        f"evaluations and checkpoints included; peak memory {peak_memory_gb():.2f} GB"
    )


def checked_mesh(config: ExperimentConfig) -> Mesh:
    """The mesh of a run.

    Raises:
        UserError: it does not fit the devices, or the batch does not divide over it.
    """
    mesh = meshes.make_mesh(config.mesh)
    training = config.training
    images, most = config.batch_images, training.accumulation_steps
    meshes.check_batch_divides(mesh, images, training.batch_questions)
    if (count := meshes.micro_batches(mesh, images, most)) < most and hosts.is_first():
        share = images // meshes.batch_shards(mesh)
        print(f"micro-batches: {count} instead of {most}; each device has {share} of the images")
    return mesh


@dataclasses.dataclass
class _Opener(Opening):
    """Opens a run, new or as of its last checkpoint."""

    def run(
        self,
        watchdog: Watchdog,
        make_rollouts: MakeRollouts | None,
        preemption: Preemption | None,
        track: str | None,
    ) -> Run:
        """Puts the model on the devices, new or as of its checkpoint, and prepares the workdir."""
        config, mesh, data = self.config, self.mesh, self.data
        graphdef, state, frozen = self._on_devices()
        parameters = self._counted(state, frozen)
        checkpoints, (local, run_id) = self._checkpoints(), self._local_store()
        # Before the state is restored: answers are compared with what the run began with.
        rollouts = None
        if make_rollouts is not None:
            rollouts = make_rollouts(config, graphdef, state.trainable, frozen, mesh)
        stores = [one for one in (checkpoints, local) if one is not None]
        newest = max(stores, key=lambda one: one.latest_step() or 0)
        first, saved = newest.latest_step() or 0, dict[str, Any]()
        if first:
            state, saved = self._restored(newest, state)
        if hosts.is_first():
            self._describe(first, parameters, run_id)
        if preemption is not None:
            preemption.check()
        updates = data.steps * config.rl.updates
        train_step = step.make_parallel_step(graphdef, config, updates, mesh, state, frozen)
        writer = self._writer(first, track)
        return Run(
            **vars(self),
            graphdef=graphdef,
            frozen=frozen,
            state=state,
            train_step=train_step if rollouts is None else rollouts.repeated(train_step),
            rollouts=rollouts,
            number=first,
            saved=saved,
            checkpoints=checkpoints,
            local=local,
            writer=writer,
            observers=[watchdog, *self._observers(checkpoints, first)],
            preemption=preemption,
        )

    def _checkpoints(self) -> CheckpointStore:
        best, last = self.settings.best_metric, self.settings.keep_last
        return CheckpointStore(self.workdir, best, last, log_line=self.log_line)

    def _local_store(self) -> tuple[CheckpointStore | None, str | None]:
        """Opens the run's checkpoints on this machine's disk; returns them and the run's id.

        The id names their folder and is in run.json, so that another run in a workdir of the same
        name does not find them.
        """
        if self.settings.local_checkpoints is None:
            return None, None
        directory = local_path(self.settings.local_checkpoints, "training.local_checkpoints")
        make_writable(directory, "--config.training.local_checkpoints")
        remedy = "local copies are of one host; leave out training.local_checkpoints on several"
        hosts.check_shared(directory, remedy)
        found = _earlier(self.workdir).get("run_id")
        if not isinstance(found, str) or not re.fullmatch(r"[0-9a-f]{16}", found):
            found = os.urandom(8).hex()
        run_id = hosts.from_first(found)
        (directory / run_id).mkdir(exist_ok=True)
        return CheckpointStore(directory / run_id, "", 1, log_line=self.log_line), run_id

    def _writer(self, first: int, track: str | None) -> metric_writers.MultiWriter:
        is_first = hosts.is_first()
        writer = (
            RunWriter(self.workdir, first, track) if is_first else metric_writers.MultiWriter([])
        )
        if not first:
            writer.write_hparams(self.config.to_json())
        return writer

    def _on_devices(self) -> tuple[Any, step.TrainState, Any]:
        """Puts the model on the devices, after checking that all processes mean the same run."""
        config, data, mesh = self.config, self.data, self.mesh
        make_writable(self.workdir)
        hosts.check_shared(self.workdir)
        position = {n: value for n, value in data.batches.get_state().items() if n != "step"}
        same = {"configuration": config.to_json(), "base": self.start.base, "data": position}
        hosts.check_same(same)
        graphdef, trainable, frozen = partition(self.start.model, config.trainable)
        frozen = step.cast_params(frozen, config.model.frozen_dtype)
        state = step.init_state(trainable, make_optimizer(config.optimizer, data.steps))
        return graphdef, put_tree(state, mesh), put_tree(frozen, mesh)

    def _counted(self, state: step.TrainState, frozen: Any) -> dict[str, int]:
        """Logs how many parameters are trained, and returns the counts."""
        trained = count_parameters(state.trainable)
        total = trained + count_parameters(frozen)
        self.log_line(f"{trained:,} of {total:,} parameters are trained ({trained / total:.2%})")
        return {"total": total, "trainable": trained}

    def _restored(
        self, checkpoints: CheckpointStore, state: step.TrainState
    ) -> tuple[step.TrainState, dict[str, Any]]:
        """State and data position of the last checkpoint; moves the batches there.

        Raises:
            UserError: the checkpoint is of another run, or of a longer one.
        """
        workdir, steps, first = self.workdir, self.data.steps, checkpoints.latest_step() or 0
        checkpoint.check_same_run(workdir, self.config)
        planned = _planned_steps(workdir, steps)
        base = checkpoints.restore_json(first, "base")
        checkpoint.check_same_base(workdir, base, self.start.base)
        state = checkpoints.restore_state(first, state)
        saved = checkpoints.restore_json(first, "data")
        with readable(checkpoints.directory / str(first) / "data"):
            self.data.batches.set_state(saved)
        where = "" if checkpoints.directory.parent == workdir else f" in {checkpoints.directory}"
        self.log_line(f"resumed from the checkpoint of step {first:,}{where}")
        if planned < steps:
            self._log_new_rates(planned, first)
        return state, saved

    def _log_new_rates(self, planned: int, first: int) -> None:
        """Logs the learning rate before and after a run was lengthened from `planned` steps."""
        optimizer, updates, steps = self.config.optimizer, self.config.rl.updates, self.data.steps
        old, new = (learning_rate_schedule(optimizer, n * updates) for n in (planned, steps))
        self.log_line(
            f"lengthened from {planned:,} to {steps:,} steps: the learning rate goes on with the "
            f"{optimizer.schedule} schedule of {steps:,} steps, after step {first:,} with "
            f"{new(first * updates):.3g} (step {first:,} had {old(first * updates - 1):.3g})"
        )

    def _observers(self, checkpoints: CheckpointStore, first: int) -> list[Observer]:
        """Observers of a run: its progress, and what may be wrong with it."""
        config, settings, data = self.config, self.config.training, self.data
        workdir, log_line = self.workdir, self.log_line
        # What sampling answers takes is not counted, and a share of the peak without it would be
        # wrong.
        peak = None
        if config.rl.kind == "none":
            peak = peak_flops(settings.peak_flops, self.mesh)
        step_flops = StepFlops(self.start.model, config, jax.process_count())
        observers: list[Observer] = [
            Progress(data.steps, peak, step_flops, log_line),
            NonFiniteSteps(workdir, settings.skip_nonfinite, log_line, checkpoints.latest_step),
            InputLimit(config.data, log_line),
            SwappedCorners(data.steps, log_line),
            SetAsideQuestions(data.quality, workdir / QUALITY_FILE, log_line),
            *policy_observers(config.rl, log_line),
        ]
        if hosts.is_first():
            observers.append(Goodput(workdir / RUN_FILE, first, log_line))
        if settings.log_examples:
            observers.append(ExampleLog(workdir, host_rows(self.mesh, config.batch_images)))
        if steps := settings.profile_steps:
            observers.append(StepProfiler(workdir, steps, first, data.steps, log_line))
        return observers

    def _describe(self, first: int, parameters: Mapping[str, int], run_id: str | None) -> None:
        """Writes what is known of a run before its first step."""
        workdir, data, start = self.workdir, self.data, self.start
        about = describe_run(
            seed=self.config.training.seed,
            steps=data.steps,
            resumed_from=first,
            parameters=parameters,
            base=start.base,
            data_files=data.files,
        )
        # Of a resumed run, also what the workdir has of the part before.
        if first and (workdir / QUALITY_FILE).is_file():
            data.quality.extend(read_json_object(workdir / QUALITY_FILE))
        write_json(workdir / QUALITY_FILE, data.quality.to_json())
        if start.tokenizer_file is not None:
            with storage_errors(f"{workdir}: the tokenizer"):
                copy_tokenizer(start.tokenizer_file, workdir)
        write_json(workdir / CONFIG_FILE, self.config.to_json())
        if goodput := _earlier(workdir).get("goodput"):
            about["goodput"] = goodput
        if run_id is not None:
            about["run_id"] = run_id
        write_json(workdir / RUN_FILE, about)


def _earlier(workdir: Path) -> Mapping[str, Any]:
    """run.json of the process before; empty where there was none."""
    return read_json_object(workdir / RUN_FILE) if (workdir / RUN_FILE).is_file() else {}


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


def _log_nothing(line: str) -> None:
    """`log_line` of every process but the first."""
