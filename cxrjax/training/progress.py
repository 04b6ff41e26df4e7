"""Progress of a run: where a step's time goes, rates, the share of the devices that is used.

Steps are dispatched before the metrics of earlier ones are read, so that the time that the loop
spends on a step is not the step's. What counts is the device's: it takes the steps in order, and
the time from the end of one to the end of the next falls into three parts without remainder.

- **device**: from the moment at which the step can begin, dispatched and the one before it done,
  to its end. Computing, sums over devices, and the transfer of its batch where that lasts longer
  than the step before.
- **data wait**: what of the time before that moment the loop spent on waiting for the batch. The
  device had nothing to do, because the input pipeline had nothing ready. While an earlier step is
  still being computed, waiting for a batch costs nothing, and is not counted.
- **host**: the rest of the time before that moment: batches put on devices, lines written.

On a CPU, input pipeline, loop and device share the cores: there `device` is longer than the step
would take alone.
"""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from cxrjax.distributed import hosts
from cxrjax.distributed.hardware import chip_of_device
from cxrjax.input_pipeline.batch import Batch, LoadedBatch
from cxrjax.models import VLM
from cxrjax.models.flops import BatchShape, step_flops, total
from cxrjax.models.layers import recomputes
from cxrjax.training.box_loss import NEAR
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.observers import FinishedStep, Observer, StepTimes
from cxrjax.training.workdir import peak_memory_gb


class RunningStep(NamedTuple):
    """A step on its way."""

    wait: tuple[float, float]  # when the loop began to wait for its batch, and when it had it
    dispatched: float  # when it was
    finished: Future[float]  # when its results were there


class StepClock:
    """Stamps steps; nothing waits for it. Close it at the end of the run.

    Args:
        now: the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # One thread, which sleeps until the device is done: steps end in the order of dispatch.
        self._watcher = ThreadPoolExecutor(1, "step-clock")
        self._wait = (now(), now())
        self._dispatched = now()
        self._last_end = now()

    def restart(self) -> None:
        """Lets time since the last step's end (an evaluation, say) belong to no step."""
        self._last_end = self._now()

    @contextlib.contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Around the request for a batch."""
        begun = self._now()
        yield
        self._wait = (begun, self._now())

    def dispatching(self) -> None:
        """Right before the call that dispatches the step."""
        self._dispatched = self._now()

    def watch(self, result: Any) -> RunningStep:
        """Right after that call.

        Args:
            result: of the step; not donated to a later one.
        """
        finished = self._watcher.submit(self._end_of, result)
        return RunningStep(self._wait, self._dispatched, finished)

    def times(self, step: RunningStep) -> StepTimes:
        """Waits for the end of a step. To be asked of every step once, in their order."""
        end, begun = step.finished.result(), max(step.dispatched, self._last_end)
        wait_begun, wait_ended = step.wait
        wait = max(0.0, min(wait_ended, begun) - max(wait_begun, self._last_end))
        found = StepTimes(end - begun, wait, begun - self._last_end - wait)
        self._last_end = end
        return found

    def close(self) -> None:
        """Steps on their way are not waited for: after an error they may never end."""
        self._watcher.shutdown(wait=False)

    def _end_of(self, result: Any) -> float:
        jax.block_until_ready(result)
        return self._now()


class Load(NamedTuple):
    """Contents of a batch of this host; padding and empty slots are not counted."""

    images: int = 0  # that have a question
    questions: int = 0  # examples: a record is one question
    tokens: int = 0  # of text, prompts and answers
    answer_tokens: int = 0  # of answers, the ones with a loss


def load_of(batch: Batch) -> Load:
    """Counts a batch that is on the host."""
    present = np.asarray(batch.question_index) >= 0
    answer_tokens = int(np.sum(batch.answer_mask))
    return Load(
        images=int(np.sum(present.any(axis=-1))),
        questions=int(np.sum(present)),
        tokens=int(np.sum(batch.prefix_mask)) + answer_tokens,
        answer_tokens=answer_tokens,
    )


class StepFlops:
    """Operations that steps need by formula (`cxrjax.models.flops`), recomputation left out.

    Args:
        model: whose step it is; of one that is no VLM nothing is known.
        config: a whole configuration.
        processes: that each have as many rows of a batch as this one.
    """

    def __init__(self, model: nnx.Module, config: ExperimentConfig, processes: int = 1) -> None:
        self._model = _shapes_of(model) if isinstance(model, VLM) else None
        self._config = config
        self._processes = processes
        route = config.box_route
        self._loc_loss = route == "loc"
        # Shapes of a batch, and of its images -> (operations without any answer token, what each
        # of those adds).
        self._known: dict[tuple[BatchShape, tuple[int, ...]], tuple[float, float]] = {}

    def of(self, batch: Batch, answer_tokens: int) -> float | None:
        """Operations of the step over all processes; None where the model is no VLM.

        Args:
            batch: this process's rows.
            answer_tokens: in them.
        """
        if self._model is None:
            return None
        images, questions, prefix = batch.prefix_tokens.shape
        shape = BatchShape(
            images=images * self._processes,
            questions=questions,
            prefix=prefix,
            answer=batch.answer_tokens.shape[-1],
            boxes=batch.box_mask.shape[-1],
            packed_length=batch.packed_length,
            answer_tokens=0,
            from_features=batch.images.ndim == 3,
            two_images=batch.has_earlier is not None,
        )
        known = (shape, batch.images.shape)
        if known not in self._known:
            model = self._model.of_batch(batch.images)
            without, with_one = (
                total(
                    step_flops(
                        model,
                        self._config.trainable,
                        dataclasses.replace(shape, answer_tokens=count),
                        remat=recomputes(self._config.model.remat),
                        loc_loss=self._loc_loss,
                    )
                ).model
                for count in (0, 1)
            )
            self._known[known] = (without, with_one - without)
        fixed, each = self._known[known]
        return fixed + each * answer_tokens * self._processes


def _shapes_of(model: VLM) -> VLM:
    """The model without its numbers, which are not to be held twice."""
    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.eval_shape(lambda: state))


def peak_flops(each: float | None, mesh: Mesh) -> float | None:
    """Operations per second that all devices can do: `training.peak_flops` of each, else what the
    maker publishes for bfloat16; None where neither is known, as of CPUs."""
    if each is None:
        chip = chip_of_device(mesh.devices.flat[0].device_kind)
        each = None if chip is None else chip.flops
    return None if each is None else each * mesh.size


def memory_figures() -> dict[str, float]:
    """Gigabytes (1e9 bytes), the largest of this process's devices: `hbm_gb` in use and
    `hbm_peak_gb` the most so far. Where the backend does not tell, as on CPUs,
    `host_peak_memory_gb`: the most that this process has held."""
    stats = [found for device in jax.local_devices() if (found := device.memory_stats())]
    if not stats:
        return {"host_peak_memory_gb": peak_memory_gb()}
    names = {"hbm_gb": "bytes_in_use", "hbm_peak_gb": "peak_bytes_in_use"}
    return {
        name: max(found[key] for found in stats) / 1e9
        for name, key in names.items()
        if all(key in found for found in stats)
    }


class Progress(Observer):
    """Adds up what steps did and how long they took, and tells of it in rates and a line.

    Time spent on compiling, evaluating and saving belongs to no step (`StepClock.restart`); the
    time left counts training steps alone.

    Args:
        total_steps: of the run.
        peak_flops: operations per second of all devices together; None: unknown, and no MFU.
        step_flops: gives the operations of a batch; None: unknown, and no MFU.
        log_line: told a line of each step that is logged.
    """

    def __init__(
        self,
        total_steps: int,
        peak_flops: float | None = None,
        step_flops: StepFlops | None = None,
        log_line: Callable[[str], None] = print,
    ) -> None:
        self._total = total_steps
        self._peak = peak_flops
        self._step_flops = step_flops
        self._log_line = log_line
        self._in_flight: collections.deque[tuple[Load, float | None, Mapping[str, int]]]
        self._in_flight = collections.deque()
        self._images: Mapping[str, int] = {}
        self.restart()

    def on_batch(self, step: int, loaded: LoadedBatch) -> None:
        load = load_of(loaded.batch)
        known = self._step_flops
        flops = None if known is None else known.of(loaded.batch, load.answer_tokens)
        self._in_flight.append((load, flops, loaded.images_by_source))

    def on_step(self, done: FinishedStep) -> None:
        load, flops, self._images = self._in_flight.popleft()
        self.count(load, done.times, flops)

    def on_log(self, done: FinishedStep, figures: dict[str, float]) -> None:
        rates: dict[str, float] = {}
        if not done.compiled:
            rates = _of_all(self.rates(done.number)) | memory_figures()
        figures |= rates
        figures |= {f"images/{name}": count for name, count in self._images.items()}
        self._log_line(self.line(done.number, done.values, rates))

    def on_restart_of_clock(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begins a new window."""
        self._counted: list[tuple[Load, StepTimes, float]] = []

    def count(self, load: Load, times: StepTimes, flops: float | None = None) -> None:
        """Adds a step, and the operations it needed where they are known."""
        self._counted.append((load, times, flops or 0.0))

    def rates(self, step: int) -> dict[str, float]:
        """Rates since the last call or restart; empty where nothing was counted since.

        `step_seconds` is the mean from the end of a step to the end of the next; `device_seconds`,
        `data_wait_seconds` and `host_seconds` are its parts (see the module). `mfu`: operations by
        formula over what the devices could have done in `step_seconds`; absent where unknown.
        """
        if not self._counted:
            return {}
        loads, each_step, flops = zip(*self._counted, strict=True)
        load = Load(*map(sum, zip(*loads, strict=True)))
        times = StepTimes(*map(sum, zip(*each_step, strict=True)))
        seconds, steps = times.total, len(loads)
        if seconds <= 0:
            return {}
        rates = {
            "images_per_second": load.images / seconds,
            "questions_per_second": load.questions / seconds,
            "tokens_per_second": load.tokens / seconds,
            "step_seconds": seconds / steps,
            "device_seconds": times.device / steps,
            "data_wait_seconds": times.data_wait / steps,
            "host_seconds": times.host / steps,
            "seconds_left": (self._total - step) * seconds / steps,
        }
        if self._peak and sum(flops):
            rates["mfu"] = sum(flops) / seconds / self._peak
        self.restart()
        return rates

    def line(self, step: int, values: Mapping[str, float], rates: Mapping[str, float]) -> str:
        """One line for people."""
        parts = [f"step {step:,}/{self._total:,}", f"loss {values['loss']:.4f}"]
        parts += _of_policy(values) if "rl/reward" in values else _of_answers(values)
        if rates:
            parts += [
                f"{rates['questions_per_second']:,.1f} questions/s",
                f"{rates['tokens_per_second']:,.0f} tokens/s",
                f"{rates['step_seconds']:.3g} s a step",
                f"data wait {rates['data_wait_seconds'] / rates['step_seconds']:.0%}",
                f"host {rates['host_seconds'] / rates['step_seconds']:.0%}",
                *([f"MFU {rates['mfu']:.1%}"] if "mfu" in rates else []),
                *(f"{name} {rates[key]:.1f} GB" for key, name in _MEMORY.items() if key in rates),
                f"{clock(rates['seconds_left'])} left",
            ]
        return "  ".join(parts)


# Of each coordinate, the probability near the target (box_loss.py).
_NEAR = f"coordinates/mass_within_{NEAR}/"
# Names in a run's figures (`memory_figures`) -> on the step line.
_MEMORY = {"hbm_peak_gb": "HBM", "host_peak_memory_gb": "memory"}


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


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


def _of_answers(values: Mapping[str, float]) -> list[str]:
    """Formats a supervised step's figures of its answers."""
    parts = [
        f"tokens {values['ce']:.4f}",
        f"boxes {values['box_loss']:.4f}",
        f"token accuracy {values['token_accuracy']:.3f}",
    ]
    if "box_iou" in values:
        near = [value for name, value in values.items() if name.startswith(_NEAR)]
        parts += [
            f"box IoU {values['box_iou']:.3f}",
            f"swapped {values['coordinates/swapped']:.1%}",
            f"within {NEAR} {sum(near) / len(near):.3f}",
        ]
    return parts


def _of_policy(values: Mapping[str, float]) -> list[str]:
    """Formats the figures of sampled answers in a step of reinforcement learning."""
    return [
        f"reward {values['rl/reward']:.3f} (boxes {values['rl/reward_iou']:.3f})",
        f"spread {values['rl/spread']:.3f}",
        f"dead groups {values['rl/dead_groups']:.0%}",
        f"KL {values['rl/kl']:.4f}",
        f"entropy of coordinates {values['rl/coordinate_entropy']:.2f}",
        f"spurious boxes {values['rl/spurious_boxes']:.2f}",
    ]
