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
"""

import collections
import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from cxrjax.distributed import hosts, meshes
from cxrjax.distributed.meshes import host_rows, put_tree
from cxrjax.errors import Preempted, UserError
from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.models import count_parameters, partition
from cxrjax.records_io.quality import QualityLog
from cxrjax.training import checkpoint, executable, step
from cxrjax.training.base_model import copy_tokenizer
from cxrjax.training.config import ExperimentConfig, TrainingConfig
from cxrjax.training.coordinate_report import swapped_share
from cxrjax.training.example_log import ExampleLog
from cxrjax.training.input_limit import InputLimit
from cxrjax.training.metric_log import MetricLog, NoLog
from cxrjax.training.nonfinite import NonFiniteSteps
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.parallel import make_parallel_step
from cxrjax.training.preemption import Preemption
from cxrjax.training.profiling import StepProfiler
from cxrjax.training.progress import Load, Progress, load_of
from cxrjax.training.run_info import describe_run, peak_memory_gb, write_json
from cxrjax.training.set_aside import SetAsideQuestions
from cxrjax.training.step_clock import RunningStep, StepClock
from cxrjax.training.store import CheckpointStore
from cxrjax.training.swapped_corners import LIMIT, SwappedCorners, swapped_line
from cxrjax.training.utilization import StepFlops, memory_figures, peak_flops
from cxrjax.training.watchdog import EVALUATING, Watchdog
from cxrjax.training.workdir import CONFIG_FILE, check_present, make_writable

# (step, model) -> figures by name; arrays among them are pictures for the event files.
Evaluate = Callable[[int, Any], Mapping[str, Any]]

QUALITY_FILE = "quality.json"


@runtime_checkable
class BatchIterator(Protocol):
    """Endless batches with a position that can be kept and restored."""

    def __next__(self) -> LoadedBatch: ...

    def __iter__(self) -> Iterator[LoadedBatch]: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class _InFlight(NamedTuple):
    """A step whose metrics have not been read."""

    step: int
    metrics: step.StepMetrics
    question_ids: list[str]
    load: Load
    flops: float | None
    running: RunningStep
    images_by_source: Mapping[str, int]


def print_at_once(line: str) -> None:
    """Prints a line even where the output goes into a file."""
    print(line, flush=True)


def train(
    config: ExperimentConfig,
    workdir: str | Path,
    *,
    model: nnx.Module,
    base: Mapping[str, Any],
    batches: BatchIterator,
    steps: int,
    tokenizer_file: str | Path | None = None,
    evaluate: Evaluate | None = None,
    data_files: Iterable[Path] = (),
    quality: QualityLog | None = None,
    compiled: Path | None = None,
    compile_only: Path | None = None,
    log_line: Callable[[str], None] = print_at_once,
    preemption: Preemption | None = None,
) -> None:
    """Trains, or goes on training, until step `steps`; leaves checkpoints in the workdir.

    Args:
        config: valid; a workdir with checkpoints must have been begun with the same one.
        workdir: receives config.json, run.json, metrics.jsonl, event files and checkpoints; the
            same directory for all processes.
        model, base: from `checkpoint.build_model`.
        batches: this host's rows of every batch, from the first one on.
        steps: of the whole run, those before a resume included.
        tokenizer_file: copied into the workdir, so that the run can be used on its own.
        evaluate: figures of the model after a step, the same in every process;
            `training.best_metric` must be among them. None: no evaluation, and the last checkpoint
            counts as the best.
        data_files: hashed into run.json.
        quality: what was set aside before; the run adds what it must leave out, and writes
            quality.json.
        compiled: a compiled step from a file (executable.py), for batches of its shape.
        compile_only: compile the step for the first batch into this file, and do not train.
        log_line: where progress goes, in the first process.
        preemption: asked after each step whether to save and stop. None: never.

    Raises:
        UserError: the workdir cannot be written or holds another run, the mesh does not fit, or
            the loss or the gradients are no longer finite, more often than may be left out.
        Preempted: told to stop; everything is saved.
    """
    if config.mesh.strategy == "pmap" and (compiled or compile_only):
        raise UserError("a compiled step in a file needs mesh.strategy='jit', and it is 'pmap'")
    workdir = Path(workdir)
    if not hosts.is_first():
        log_line = _say_nothing
    make_writable(workdir)
    hosts.check_shared(workdir)
    data = {name: value for name, value in batches.get_state().items() if name != "step"}
    hosts.check_same({"configuration": config.to_json(), "base": base, "data": data})
    mesh = sharding.make_mesh(config.mesh)
    sharding.check_batch_divides(mesh, config.batch_images, config.training.accumulation_steps)

    graphdef, trainable, frozen = partition(model, config.trainable)
    frozen = step.cast_params(frozen, config.model.frozen_dtype)
    state = step.init_state(trainable, make_optimizer(config.optimizer, steps))
    state, frozen = put_tree(state, mesh), put_tree(frozen, mesh)
    parameters = {
        "total": count_parameters(state.trainable) + count_parameters(frozen),
        "trainable": count_parameters(state.trainable),
    }
    log_line(
        f"{parameters['trainable']:,} of {parameters['total']:,} parameters are trained "
        f"({parameters['trainable'] / parameters['total']:.2%})"
    )

    checkpoints = CheckpointStore(
        workdir, config.training.best_metric, config.training.keep_last, log_line=log_line
    )
    start, saved = checkpoints.latest_step() or 0, {}
    if start:
        checkpoint.check_same_run(workdir, config)
        checkpoint.check_same_base(workdir, checkpoints.restore_json(start, "base"), base)
        state = checkpoints.restore_state(start, state)
        saved = checkpoints.restore_json(start, "data")
        batches.set_state(saved)
        log_line(f"resumed from the checkpoint of step {start:,}")
    left_out, skipped = saved.get("set_aside", []), saved.get("skipped_steps", 0)
    quality = quality or QualityLog()
    if hosts.is_first():
        about = describe_run(
            seed=config.training.seed,
            steps=steps,
            resumed_from=start,
            parameters=parameters,
            base=base,
            data_files=data_files,
        )
        _begin_workdir(workdir, config, tokenizer_file, quality, about)
    examples = None
    if config.training.log_examples:
        examples = ExampleLog(workdir, host_rows(mesh, config.batch_images))

    if preemption is not None:
        preemption.check()
    train_step = make_parallel_step(graphdef, config, steps, mesh, state, frozen)
    if compile_only is not None:
        batch = meshes.put_batch(next(batches).batch, mesh)
        executable.save(compile_only, train_step, config, steps, (state, frozen, batch))
        log_line(f"the compiled step is in {compile_only}")
        return
    if compiled is not None:
        train_step = executable.CompiledStep(train_step, compiled, config, steps)
    watchdog = Watchdog(workdir, config.training.stall_seconds)
    run_loop = _Loop(
        settings=config.training,
        workdir=workdir,
        mesh=mesh,
        graphdef=graphdef,
        frozen=frozen,
        base=base,
        train_step=train_step,
        checkpoints=checkpoints,
        log=MetricLog(workdir, start) if hosts.is_first() else NoLog(),
        examples=examples,
        steps=steps,
        evaluate=evaluate,
        set_aside=SetAsideQuestions(quality, workdir / QUALITY_FILE, log_line, left_out),
        nonfinite=NonFiniteSteps(workdir, config.training.skip_nonfinite, log_line, skipped),
        log_line=log_line,
        progress=Progress(steps, peak_flops(config, mesh)),
        step_flops=StepFlops(model, config, jax.process_count()),
        input_limit=InputLimit(config),
        swapped=SwappedCorners(steps),
        profiler=StepProfiler(workdir, config.training.profile_steps),
        preemption=preemption,
        watchdog=watchdog,
    )
    begun = time.monotonic()
    with (
        watchdog,
        preemption.deferred() if preemption is not None else contextlib.nullcontext(),
        # Also after an error: a checkpoint that is being written gets finished.
        contextlib.closing(checkpoints),
        contextlib.closing(run_loop.log),
        contextlib.closing(run_loop.clock),
        contextlib.closing(run_loop.profiler),
    ):
        try:
            run_loop.run(state, batches, start)
        except Exception as error:
            watchdog.blame(error)
            raise
    log_line(
        f"{steps - start:,} steps in {time.monotonic() - begun:,.0f} s, compilation, "
        f"evaluations and checkpoints included; peak memory {peak_memory_gb():.2f} GB"
    )


def _begin_workdir(
    workdir: Path,
    config: ExperimentConfig,
    tokenizer_file: str | Path | None,
    quality: QualityLog,
    about: Mapping[str, Any],
) -> None:
    """What is known of a run before its first step.

    Args:
        quality: of a resumed run, also receives what the workdir has of the part before.
        about: for run.json.
    """
    if about["resumed_from"] and (workdir / QUALITY_FILE).is_file():
        quality.extend(json.loads((workdir / QUALITY_FILE).read_text(encoding="utf-8")))
    write_json(workdir / QUALITY_FILE, quality.to_json())
    if tokenizer_file is not None:
        copy_tokenizer(tokenizer_file, workdir)
    write_json(workdir / CONFIG_FILE, config.to_json())
    write_json(workdir / "run.json", about)


@dataclasses.dataclass
class _Loop:
    """What stays the same from step to step, and the steps in flight."""

    settings: TrainingConfig  # the `training` group
    workdir: Path
    mesh: Mesh
    graphdef: Any
    frozen: Any
    base: Mapping[str, Any]
    train_step: step.StepFunction
    checkpoints: CheckpointStore
    log: MetricLog | NoLog
    examples: ExampleLog | None
    steps: int
    evaluate: Evaluate | None
    set_aside: SetAsideQuestions
    nonfinite: NonFiniteSteps
    log_line: Callable[[str], None]
    progress: Progress
    step_flops: StepFlops
    input_limit: InputLimit
    swapped: SwappedCorners
    profiler: StepProfiler
    preemption: Preemption | None
    watchdog: Watchdog

    def __post_init__(self) -> None:
        self.clock = StepClock()
        self.in_flight: collections.deque[_InFlight] = collections.deque()
        self.compiled_shapes: set[tuple[Any, ...]] = set()
        self.input_warning: str | None = None

    def run(self, state: step.TrainState, batches: BatchIterator, start: int) -> None:
        if start and self._evaluates_after(start) and not self.checkpoints.metrics(start):
            self.log.reopen()
            self._save(start, state, batches, self._evaluate(start, state))
        self._restart_clock()
        for number in range(start + 1, self.steps + 1):
            if self.profiler.begins(number):
                self._read_metrics(0)
                self.profiler.start()
                self._restart_clock()
            self.watchdog.beat(number, "reading data")
            with self.clock.waiting_for_data():
                loaded = next(batches)
            self.watchdog.beat(number, "waiting for the step")
            state = self._dispatch(number, state, loaded)
            self._read_metrics(self.settings.max_in_flight)
            if self.profiler.ends(number, number == self.steps):
                self._read_metrics(0)
                self.profiler.close()
                self.log_line(f"step {number:,}: profile written to {self.profiler.folder}")
                self._restart_clock()
            stop = self.preemption is not None and self.preemption.reached(number)
            evaluates = not stop and self._evaluates_after(number)
            if stop or evaluates or self._due(number, self.settings.checkpoint_every):
                self._read_metrics(0)
                self.set_aside.share()
                figures: dict[str, float | None] = {}
                if evaluates:
                    try:
                        figures = self._evaluate(number, state)
                    except Preempted:
                        self.log_line(f"step {number:,}: the evaluation is put off to the restart")
                        stop = True
                self._save(number, state, batches, figures)
                self._restart_clock()
            if stop:
                assert self.preemption is not None
                raise Preempted(f"{self.preemption.reason}: saved step {number:,} and stopped")

    def _save(
        self,
        number: int,
        state: step.TrainState,
        batches: BatchIterator,
        figures: Mapping[str, float | None],
    ) -> None:
        self.watchdog.beat(number, "saving a checkpoint")
        check_present(self.workdir, CONFIG_FILE)
        self.log.flush()
        position = {
            **batches.get_state(),
            "set_aside": self.set_aside.state(),
            "skipped_steps": self.nonfinite.skipped,
        }
        self.checkpoints.save(number, state, position, self.base, figures)

    def _evaluates_after(self, number: int) -> bool:
        return self.evaluate is not None and self._due(number, self.settings.eval_every)

    def _restart_clock(self) -> None:
        """Nothing is in flight, and what was done since the last step is none's time."""
        self.clock.restart()
        self.progress.restart()

    def _due(self, number: int, every: int) -> bool:
        return number == self.steps or (every > 0 and number % every == 0)

    def _dispatch(
        self, number: int, state: step.TrainState, loaded: LoadedBatch
    ) -> step.TrainState:
        """Starts a step; waits for it only where its shapes are new and XLA must compile."""
        self.set_aside.note(number, loaded.problems)
        if self.examples is not None:
            self.examples.write(number, loaded)
        batch = meshes.put_batch(loaded.batch, self.mesh)
        shapes = (jax.tree.structure(batch), *(x.shape for x in jax.tree.leaves(batch)))
        new = shapes not in self.compiled_shapes
        if new:
            self._read_metrics(0)
            self.log_line(f"step {number:,}: compiling for {_shape_text(loaded.batch)}")
        with jax.transfer_guard("disallow"), self.profiler.step(number):
            self.clock.dispatching()
            state, metrics = self.train_step(state, self.frozen, batch)
            running = self.clock.watch(metrics.loss)
        load = load_of(loaded.batch)
        flops = self.step_flops.of(loaded.batch, load.answer_tokens)
        ids = [i for row in loaded.question_ids for i in row if i is not None]
        self.in_flight.append(
            _InFlight(number, metrics, ids, load, flops, running, loaded.images_by_source)
        )
        if new:
            self.compiled_shapes.add(shapes)
            self._read_metrics(0, compiled=True)
            self._restart_clock()
        return state

    def _read_metrics(self, leave: int, compiled: bool = False) -> None:
        """Waits for steps until `leave` are in flight; checks them, and logs where it is due.

        Of a step that was `compiled` on the way, the time says nothing.
        """
        while len(self.in_flight) > leave:
            done = self.in_flight.popleft()
            # Divided on the host: on the device it would queue behind the steps dispatched since.
            with np.errstate(invalid="ignore"):
                values = {n: float(v) for n, v in jax.device_get(done.metrics).values().items()}
            self.nonfinite.check(done.step, values, done.question_ids, self.checkpoints.latest_step)
            times = self.clock.times(done.running)
            self.progress.count(done.load, times, done.flops)
            if not compiled and (warning := self.input_limit.check(times)):
                self.input_warning = f"warning: step {done.step:,}: {warning}"
            if swapped := self.swapped.check(done.step, values):
                self.log_line(f"step {done.step:,}: {swapped}")
            due = self._due(done.step, self.settings.log_every)
            if due or (self.input_warning and hosts.alone()):
                self._share_input_warning()
            if due:
                rates: dict[str, float] = {}
                if not compiled:
                    rates = _of_all(self.progress.rates(done.step)) | memory_figures()
                self.set_aside.share()
                self.log_line(self.progress.line(done.step, values, rates))
                named = {f"train/{name}": v for name, v in {**values, **rates}.items()}
                named |= {f"train/images/{n}": c for n, c in done.images_by_source.items()}
                named["train/set_aside"] = len(self.set_aside)
                if self.nonfinite.limit:
                    named["train/skipped_steps"] = self.nonfinite.skipped
                self.log.write(done.step, named)

    def _share_input_warning(self) -> None:
        """A slow input pipeline of one process keeps all waiting. Called by all of them."""
        found = hosts.gather(self.input_warning)
        self.input_warning = None
        limited = [process for process, warning in enumerate(found) if warning]
        if limited:
            several = f" (processes {', '.join(map(str, limited))})" if len(found) > 1 else ""
            self.log_line(found[limited[0]] + several)

    def _evaluate(self, number: int, state: step.TrainState) -> dict[str, float | None]:
        assert self.evaluate is not None
        self.watchdog.beat(number, EVALUATING)
        found = self.evaluate(number, nnx.merge(self.graphdef, state.trainable, self.frozen))
        pictures = {n: v for n, v in found.items() if isinstance(v, np.ndarray) and v.ndim > 1}
        figures = {n: _number(v) for n, v in found.items() if n not in pictures}
        best = self.settings.best_metric
        if best not in figures:
            raise UserError(
                f"training.best_metric={best!r} is not among the evaluation's figures: "
                + ", ".join(sorted(figures))
            )
        self.log.write(
            number,
            {f"validation/{name}": value for name, value in figures.items()},
            {f"validation/{name}": value for name, value in pictures.items()},
        )
        shown = "undefined" if figures[best] is None else f"{figures[best]:.4f}"
        self.log_line(f"step {number:,}: validation {best} {shown}")
        share = swapped_share(figures)
        if share is not None and share > LIMIT:
            self.log_line(f"step {number:,}: validation: {swapped_line(share)}")
        return figures


def _say_nothing(line: str) -> None:
    """`log_line` of every process but the first."""


def _of_all(rates: dict[str, float]) -> dict[str, float]:
    """Rates over all processes, of what each has counted; they take their steps together.

    Times are of the one that waited longest for data: to the others its wait is a slow step.
    """
    if jax.process_count() == 1 or not rates:
        return rates
    found = hosts.gather(rates)
    slowest = max(found, key=lambda part: part["data_wait_seconds"])
    summed = {n: sum(part[n] for part in found) for n in rates if n.endswith("_per_second")}
    return {**slowest, **summed}


def _shape_text(batch: Batch) -> str:
    images, questions, prefix = batch.prefix_tokens.shape
    answer = batch.answer_tokens.shape[-1]
    return f"{images} images x {questions} questions of {prefix} + {answer} tokens"


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
