"""Answers questions with continuous batching: newcomers are read between steps of the others.

One thread owns the devices. In each round it reads a few newcomers into free slots, and then all
slots write a token each. Where a client watches its answer come, no more than one tower stands
between two tokens. What the engine makes of an image is kept by the image's content, the model that
saw it and who sent it.
"""

import collections
import dataclasses
import logging
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from cxrjax.apps.serving.byte_lru import ByteLRU
from cxrjax.apps.serving.compile_count import compile_count
from cxrjax.apps.serving.fair_queue import FairQueue, QueueFullError
from cxrjax.apps.serving.programs import Programs, ReadImages, SlotRequest, SlotState, StepTokens
from cxrjax.errors import first_line

# Questions that are read between two steps, while others write.
_NEWCOMERS = 4
_LOG = logging.getLogger(__name__)

# `stop`: the model ended its answer; `length`: it had no more tokens; else why it was broken off.
Ending = Literal["stop", "length", "cancelled", "timeout", "failed"]


class TokenEvent(NamedTuple):
    """A token of an answer, its parts as of `Generation`.

    `top`: likeliest tokens in its place and their log-probabilities, if requested.
    """

    token: int
    logprob: float
    words: Float[np.ndarray, " W"]
    quantiles: Int[np.ndarray, " M"]
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class SeenImages:
    """An image [H, W, 3], or two [2, H, W, 3]; `key` is of their content and of the client."""

    key: Hashable
    pixels: np.ndarray = dataclasses.field(repr=False)
    has_second: bool = False


@dataclasses.dataclass(eq=False)
class Job:
    """A question to be answered.

    Attributes:
        deadline, asked_at: by `time.monotonic`.
        heard: called in the engine's thread with every token, and in the end with how it ended.
        watched: the client reads each token, not only the answer.
    """

    client: Hashable
    images: SeenImages
    asked: SlotRequest
    deadline: float
    heard: Callable[[TokenEvent | Ending], None]
    watched: bool = False
    asked_at: float = dataclasses.field(default_factory=time.monotonic)
    written: int = 0
    _broken_off: Ending | None = None

    def cancel(self) -> None:
        """Requests the end of the job after the current step."""
        self._broken_off = "cancelled"

    def broken_off(self, now: float) -> Ending | None:
        """Returns why the job must end early, or None."""
        return "timeout" if self._broken_off is None and now > self.deadline else self._broken_off


class Counts:
    """Counters of the engine's work; may be read from any thread."""

    def __init__(self) -> None:
        self.tokens = 0
        self.steps = 0
        self.questions: collections.Counter[Ending] = collections.Counter()
        self.waited = 0.0  # seconds in the queue, of all that were admitted
        self.compiled_after_warm_up = 0


class Engine:
    """One model's slots.

    Args:
        stop_ids: tokens that end an answer.
        most_waiting: questions that may wait beside those in slots.
        image_bytes: of contexts that are kept.
        first_token: called with the seconds from a question to its first token.
    """

    def __init__(
        self,
        programs: Programs,
        stop_ids: tuple[int, ...],
        most_waiting: int,
        image_bytes: int,
        first_token: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._programs = programs
        self._stop_ids = frozenset(stop_ids)
        self._waiting: FairQueue[Job] = FairQueue(most_waiting)
        self._slots: list[Job | None] = [None] * programs.shapes.slots
        self.images: ByteLRU[ReadImages] = ByteLRU(image_bytes, _bytes_of)
        self._changed = threading.Condition()
        self._draining = False
        self._warm = threading.Event()
        self._ended = threading.Event()
        self._first_token = first_token
        self.counts = Counts()
        self.failure: BaseException | None = None

    @property
    def is_ready(self) -> bool:
        """Returns whether the engine is compiled, and not draining or failed."""
        return self._warm.is_set() and not self._draining and self.failure is None

    @property
    def waiting(self) -> int:
        """Questions that wait for a slot."""
        return len(self._waiting)

    @property
    def writing(self) -> int:
        """Questions that are being answered."""
        return sum(job is not None for job in self._slots)

    def submit(self, client: Hashable, jobs: list[Job]) -> None:
        """Queues questions: all of them or none.

        Raises:
            QueueFullError: the queue is full, or the engine is draining or has failed.
        """
        with self._changed:
            if self._draining or self.failure is not None:
                raise QueueFullError
            self._waiting.put(client, jobs)
            self._changed.notify()

    def drain(self) -> None:
        """Takes no more questions, and ends when those that it has are answered."""
        with self._changed:
            self._draining = True
            self._changed.notify()

    def join(self, seconds: float | None = None) -> bool:
        """Waits for the end; whether it has come."""
        return self._ended.wait(seconds)

    def wait_until_warm(self, seconds: float | None = None) -> bool:
        """Waits until everything is compiled; whether it is."""
        return self._warm.wait(seconds)

    def run(self) -> None:
        """Answers until it is drained, or has failed. To be called in a thread of its own."""
        try:
            compile_count()
            state = self._programs.warm_up()
            self._compiled = compile_count()
            self._warm.set()
            while self._wait_for_work():
                state = self._round(state)
        except BaseException as error:
            self.failure = error
            told = (type(error).__name__, first_line(error), traceback.format_exc())
            _LOG.error("the engine has failed: %s: %s\n%s", *told)
        finally:
            self._give_up()
            self._ended.set()

    def _give_up(self) -> None:
        with self._changed:
            left = self._waiting.remove(lambda job: True)
            left += [job for job in self._slots if job is not None]
            self._slots = [None] * len(self._slots)
        for job in left:
            self._end(job, "failed")

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not self.writing and not self._waiting:
                if self._draining:
                    return False
                self._changed.wait()
            return True

    def _round(self, state: SlotState) -> SlotState:
        """Reads a few newcomers, and has everybody write a token."""
        self._break_off()
        for _ in range(_NEWCOMERS):
            with self._changed:
                free = next((i for i, job in enumerate(self._slots) if job is None), None)
                job = None if free is None else self._waiting.pop()
            if job is None or free is None:
                break
            self.counts.waited += time.monotonic() - job.asked_at
            watched = any(other is not None and other.watched for other in self._slots)
            self._slots[free] = job  # before it is read: told of the end, should that fail
            known = self.images.get(job.images.key)
            context = known or self._programs.read_images(
                job.images.pixels, job.images.has_second, job.asked.adapter
            )
            if known is None:
                self.images.put(job.images.key, context)
            state = self._programs.admit(state, free, context, job.asked)
            if known is None and watched:
                break  # a tower is work enough between two tokens that somebody waits for
        if not self.writing:
            return state
        return self._write(state)

    def _write(self, state: SlotState) -> SlotState:
        last = max(i for i, job in enumerate(self._slots) if job is not None)
        width = next(width for width in self._programs.shapes.widths if width > last)
        alive = np.array([job is not None for job in self._slots[:width]])
        wants_top = any(job is not None and job.asked.wants_top for job in self._slots)
        state, tokens = self._programs.step(state, alive, wants_top)
        self.counts.steps += 1
        self.counts.compiled_after_warm_up = compile_count() - self._compiled
        for slot in np.flatnonzero(alive).tolist():
            self._tell(slot, tokens)
        return state

    def _tell(self, slot: int, tokens: StepTokens) -> None:
        job = self._slots[slot]
        assert job is not None
        token = int(tokens.tokens[slot])
        top: tuple[tuple[int, float], ...] = ()
        if job.asked.wants_top:
            each = zip(tokens.top_tokens[slot], tokens.top_logprobs[slot], strict=True)
            top = tuple((int(one), float(logprob)) for one, logprob in each)
        event = TokenEvent(
            token,
            float(tokens.logprobs[slot]),
            tokens.words[slot].copy(),
            tokens.quantiles[slot].copy(),
            top,
        )
        job.written += 1
        self.counts.tokens += 1
        if job.written == 1:
            self._first_token(time.monotonic() - job.asked_at)
        job.heard(event)
        if token in self._stop_ids or job.written >= job.asked.limit:
            self._slots[slot] = None
            self._end(job, "stop" if token in self._stop_ids else "length")

    def _break_off(self) -> None:
        """Ends what nobody waits for any more, in slots and in the queue."""
        now = time.monotonic()
        with self._changed:
            gone = self._waiting.remove(lambda job: job.broken_off(now) is not None)
        for slot, job in enumerate(self._slots):
            if job is not None and job.broken_off(now):
                self._slots[slot] = None
                gone.append(job)
        for job in gone:
            self._end(job, job.broken_off(now) or "cancelled")

    def _end(self, job: Job, ending: Ending) -> None:
        self.counts.questions[ending] += 1
        job.heard(ending)


def _bytes_of(context: ReadImages) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(context._replace(image_hw=None)))
