"""Grain loaders: what step N reads is a pure function of (seed, N).

The order of the elements is a permutation per epoch, or several of them mixed (mixture.py); step N
takes the next `global_batch_size` of them whatever the epoch; each host loads some of that batch's
rows. So a run goes on exactly where it stopped, with as many hosts and worker processes as it
likes: Grain's iterator state takes it there where nothing changed, the step where something did.
"""

import collections
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grain
import jax
import numpy as np
from absl import flags

from cxrjax.errors import UserError
from cxrjax.input_pipeline.batch import LoadedBatch
from cxrjax.input_pipeline.batch_builder import NO_ELEMENT, BatchBuilder
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.mixture import Mixture, MixtureSource
from cxrjax.input_pipeline.sources import QuestionSource
from cxrjax.input_pipeline.tokenizer import Tokenizer

# Batches that each worker process has ready. Two let it work on one while another waits.
_WORKER_BUFFER = 2


class TrainLoader:
    """An endless iterator of `LoadedBatch`, epoch after epoch.

    Its state is small and fit for JSON: the step, and beside it the state of Grain's iterator. The
    step alone fits a loader with another number of hosts or workers. Close the loader (or use it as
    a context) where it has worker processes.
    """

    def __init__(
        self,
        rows: grain.MapDataset,
        builder: BatchBuilder,
        identity: dict[str, Any],
        workers: int,
    ) -> None:
        self._rows = rows
        self._dataset = rows.map(builder)
        self._mixture = builder.mixture
        self._identity = identity
        self._workers = workers
        self._step = 0
        self._images: collections.Counter[str] = collections.Counter()
        self._iterator: grain.DatasetIterator | None = None
        # The step where the iterator began, and the state to go on from there.
        self._begun = 0
        self._restored: dict[str, Any] | None = None

    def __iter__(self) -> "TrainLoader":
        return self

    def __next__(self) -> LoadedBatch:
        if self._iterator is None:
            if self._restored is None:
                self._begun = self._step
            self._iterator = _iterate(self._dataset[self._begun :], self._workers)
            if self._restored is not None:
                self._iterator.set_state(self._restored)
                self._restored = None
        loaded = _own(next(self._iterator))
        if len(self._mixture.sources) > 1:
            # Counted over all hosts: each of them knows the whole order.
            numbers = map(self._mixture.source_of, self._rows[self._step])
            self._images.update(self._mixture.names[number] for number in numbers)
        self._step += 1
        return loaded._replace(images_by_source=dict(self._images))

    def get_state(self) -> dict[str, Any]:
        """The loader's position: the batches it has handed out, and of what."""
        state = {"step": self._step, "images": dict(self._images), **self._identity}
        position = self._restored if self._iterator is None else self._iterator.get_state()
        if position is not None:
            state["grain"] = {**self._grain(), "begun": self._begun, "iterator": position}
        return state

    def _grain(self) -> dict[str, Any]:
        """The settings that a state of Grain's iterator depends on, beside the data."""
        return {"version": grain.__version__, "workers": self._workers}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where `get_state` was called.

        Raises:
            UserError: the state is of other data, another seed or another batch size, or Grain's
                iterator in it does not stand at its step.
        """
        for name, value in self._identity.items():
            if state.get(name) != value:
                raise UserError(
                    f"data position: saved with {name} {state.get(name)!r}, now {value!r}; the "
                    "batches would not be the same, so resume with the same data and settings or "
                    "start in a new workdir"
                )
        self.close()
        self._step = int(state["step"])
        self._images = collections.Counter(state.get("images", {}))
        self._begun, self._restored = self._step, None
        saved = state.get("grain")  # older checkpoints have the step alone
        if saved is not None and {**saved, **self._grain()} == saved:
            self._begun, self._restored = saved["begun"], saved["iterator"]
            stands_at = self._begun + _handed_out(self._restored)
            if stands_at != self._step:
                raise UserError(
                    f"data position: Grain's iterator stands at step {stands_at} and the loader at "
                    f"step {self._step}; the checkpoint is damaged, resume from another one"
                )

    def close(self) -> None:
        """Ends the worker processes; the next batch starts new ones."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __enter__(self) -> "TrainLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EvalLoader:
    """Every question once, in the order of the file's images; can be iterated again and again."""

    def __init__(self, dataset: grain.MapDataset, workers: int) -> None:
        self._dataset = dataset
        self._workers = workers

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[LoadedBatch]:
        iterator = _iterate(self._dataset, self._workers)
        try:
            yield from map(_own, iterator)
        finally:
            iterator.close()


def train_loader(
    mixture: Mixture,
    tokenizer: Tokenizer,
    *,
    global_batch_size: int,
    seed: int,
    workers: int = 0,
    rows: Sequence[int] | None = None,
) -> TrainLoader:
    """Shuffled batches for training, without end; of several sources they count the images of each.

    Args:
        mixture: of one source or more.
        global_batch_size: images in a step over all hosts.
        seed: of the order; any integer from 0.
        workers: processes that read and decode; 0 does it in this one.
        rows: of each global batch, those that this host loads, ascending; None: all of them.
    """
    builder = BatchBuilder(mixture, tokenizer, True, _or_all(rows, global_batch_size))
    identity = {
        "seed": seed,
        "global_batch_size": global_batch_size,
        "source": mixture.fingerprint,
    }
    elements = mixture.order(seed).batch(global_batch_size, drop_remainder=True)
    return TrainLoader(elements, builder, identity, workers)


def single_source(source: QuestionSource, config: ExampleConfig) -> Mixture:
    """A mixture of one source, which has no name."""
    return Mixture([MixtureSource("", source, config)])


def eval_loader(
    source: QuestionSource,
    tokenizer: Tokenizer,
    config: ExampleConfig,
    *,
    global_batch_size: int,
    workers: int = 0,
    rows: Sequence[int] | None = None,
    with_answers: bool = False,
) -> EvalLoader:
    """Each question exactly once, in order; the last batch is filled up with empty slots.

    Args:
        global_batch_size: images in a batch over all hosts.
        workers, rows: as in `train_loader`.
        with_answers: for teacher forcing. Else the records need none, and answer slots are all
            masked.
    """
    batches = -(-len(source) // global_batch_size)
    builder = BatchBuilder(
        single_source(source, config), tokenizer, with_answers, _or_all(rows, global_batch_size)
    )
    dataset = (
        grain.MapDataset.range(batches * global_batch_size)
        .map(_none_after(len(source)))
        .batch(global_batch_size)
        .map(builder)
    )
    return EvalLoader(dataset, workers)


def _none_after(count: int) -> Callable[[int], int]:
    return lambda element: element if element < count else NO_ELEMENT


def _or_all(rows: Sequence[int] | None, global_batch_size: int) -> Sequence[int]:
    return range(global_batch_size) if rows is None else rows


def _iterate(dataset: grain.MapDataset, workers: int) -> grain.DatasetIterator:
    # No threads: a step's questions are built in one process, and workers make the parallelism.
    read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = dataset.to_iter_dataset(read)
    if workers:
        # Grain reads absl flags when it starts a worker, and refuses in programs without absl.app.
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()
        batches = batches.mp_prefetch(
            grain.MultiprocessingOptions(workers, per_worker_buffer_size=_WORKER_BUFFER),
            worker_init_fn=_set_up_worker,
        )
    return iter(batches)


def _handed_out(state: Mapping[str, Any]) -> int:
    """The number of batches that an iterator of `_iterate` had handed out, by its own state."""
    if "next_index" in state:
        return state["next_index"]
    return sum(map(_handed_out, state["iterators_in_use_states"]))


def _own(loaded: LoadedBatch) -> LoadedBatch:
    """The batch in this process's memory, out of what it shares with a worker.

    JAX on a CPU computes on NumPy's memory without a copy, so that a batch in use would keep its
    shared memory (of which containers have little) up to the end of the run.
    """
    return loaded._replace(
        batch=jax.tree.map(lambda x: x if type(x) is np.ndarray else np.array(x), loaded.batch)
    )


def _set_up_worker(worker: int, workers: int) -> None:
    """Runs first in every worker process."""
    del worker, workers
    # Ctrl-C, and many a scheduler's SIGTERM, go to the whole group: the run's own process needs its
    # workers up to the end of the step in work, and ends them itself, without tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    # A run that is killed outright ends nothing; its workers would wait for it for ever.
    run = multiprocessing.parent_process()
    if run is not None:
        run.join()
        os._exit(1)
