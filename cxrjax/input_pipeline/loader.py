"""Grain loaders: what step N reads is a pure function of (seed, N).

The order of the elements is a permutation per epoch, or several of them mixed (mixture.py); step N
takes the next `global_batch_size` of them whatever the epoch; each host loads some of that batch's
rows. So a run goes on exactly where it stopped, with as many hosts and worker processes as it
likes: Grain's iterator state takes it there where nothing changed, the step where something did.
"""

import collections
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
from absl import flags

from cxrjax.errors import UserError
from cxrjax.images.files import AnyFile, ImageError
from cxrjax.input_pipeline import examples
from cxrjax.input_pipeline.augment import AugmentConfig, ImageChange, OutOfPictureError, draw_change
from cxrjax.input_pipeline.batch import Batch, BatchProblem, LoadedBatch, empty_batch
from cxrjax.input_pipeline.mixture import Mixture, MixtureSource
from cxrjax.input_pipeline.sources import QuestionSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.input_pipeline.wording import WordingVariation
from cxrjax.paths import fetch_ahead, in_bucket

# Questions kept in tokens by each process, some 40 MB. From the second epoch on, reading and
# tokenizing text again would cost more than decoding a small image.
_CACHED_QUESTIONS = 2**16
NO_ELEMENT = -1
_NOT_SHOWN = (
    "compares with an earlier image, which is not shown; set data.earlier_images=True "
    "(config.data.earlier_images in training)"
)


@dataclasses.dataclass(frozen=True)
class _Question:
    slot: int
    index: int
    question_id: str
    tokens: examples.EncodedQuestion


@dataclasses.dataclass
class _Element:
    """One image with its questions in tokens, its pixels not yet read."""

    image_path: AnyFile | None = None
    earlier_path: AnyFile | None = None
    questions: list[_Question] = dataclasses.field(default_factory=list)
    problems: list[BatchProblem] = dataclasses.field(default_factory=list)
    change: ImageChange | None = None
    image_hw: tuple[int, int] | None = None
    earlier_hw: tuple[int, int] | None = None
    unvaried: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class BatchBuilder:
    """A step's number and those of its global batch's elements -> this host's rows of it.

    Lengths are chosen from all questions of the global batch, so that every host picks the same
    buckets; pixels are read for this host's rows alone. Can be pickled.

    Args:
        augment, wording, seed: of what is changed at every visit.
    """

    def __init__(
        self,
        mixture: Mixture,
        tokenizer: Tokenizer,
        with_answers: bool,
        rows: Sequence[int],
        augment: AugmentConfig | None = None,
        wording: WordingVariation | None = None,
        seed: int = 0,
    ) -> None:
        self.mixture = mixture
        self.augment = augment or AugmentConfig()
        self.wording = wording or WordingVariation()
        self.seed = seed
        self.encoders = [examples.QuestionEncoder(tokenizer, s.config) for s in mixture.sources]
        self.config = mixture.config
        self.with_answers = with_answers
        self.rows = rows
        # Asked for now, so that a tokenizer that does not fit is told before the first batch.
        # All sources have the same tokens for digits, if any; the longest numbers need the room.
        self._digits = max(e.digit_shape for e in self.encoders) if with_answers else (0, ())
        self._cache: dict[int, _Element] = {}

    def __call__(self, step: int, elements: np.ndarray) -> LoadedBatch:
        mine = self.rows
        # An empty row is never the first one.
        config = self.mixture.config_of(int(elements[0]))
        one_shape = len(config.prefix_buckets) == len(config.answer_buckets) == 1
        one_shape = one_shape and not config.packed_buckets
        rows = mine if one_shape else range(len(elements))
        first = step * len(elements)
        encoded = {row: self._encode(int(elements[row]), first + row) for row in rows}
        tokens = [question.tokens for row in encoded.values() for question in row.questions]
        loaded = LoadedBatch(
            batch=empty_batch(
                images=len(mine),
                image=config.empty_input(),
                questions=self.mixture.questions_per_image,
                prefix_slots=_slots([len(t.prefix) for t in tokens], config.prefix_buckets),
                answer_slots=_slots([len(t.answer) for t in tokens], config.answer_buckets),
                boxes=config.max_boxes,
                packed_length=_packed_length(list(encoded.values()), config),
                max_digits=self._digits[0],
                digit_ids=self._digits[1],
            ),
            question_ids=[[None] * self.mixture.questions_per_image for _ in mine],
            problems=[],
            unvaried=sum((encoded[row].unvaried for row in mine), collections.Counter()),
        )
        self._fetch_ahead(encoded[row] for row in mine)
        for local_row, row in enumerate(mine):
            self._fill(loaded, local_row, encoded[row], config)
        return loaded

    def announce(self, elements: np.ndarray) -> None:
        """Starts to copy images of this host's rows of a later batch that are in a bucket."""
        numbers = [int(elements[row]) for row in self.rows if elements[row] != NO_ELEMENT]
        self._fetch_ahead(self.mixture[number] for number in numbers)

    def _fetch_ahead(self, shown: Iterable[Any]) -> None:
        if self.config.image_cache is None and self.config.features is None:
            fetch_ahead(path for one in shown for path in (one.image_path, one.earlier_path))

    def _encode(self, element: int, position: int) -> _Element:
        if element == NO_ELEMENT:
            return _Element()
        if element in self._cache:
            return self._cache[element]
        image_path, indices, records, earlier_path = self.mixture[element]
        encoder = self.encoders[self.mixture.source_of(element)]
        change = draw_change(self.augment, self.seed, position)
        encoded = _Element(image_path, earlier_path, change=change, image_hw=records[0].image_hw)
        if records[0].earlier is not None:
            encoded.earlier_hw = records[0].earlier.image_hw
            if not encoder.config.earlier_images:
                encoded.problems.extend(
                    BatchProblem(index, record.question_id, "earlier_image", _NOT_SHOWN)
                    for index, record in zip(indices, records, strict=True)
                )
                return encoded
        for slot, (index, record) in enumerate(zip(indices, records, strict=True)):
            asked = record
            if self.wording:
                asked, record = self.wording.draw(record, self.seed, position, slot)
            try:
                try:
                    tokens = encoder.encode(record, self.with_answers, change, asked)
                except examples.TooLongError as error:
                    if asked is record or error.reason != "prefix_too_long":
                        raise
                    tokens = encoder.encode(record, self.with_answers, change)
                    encoded.unvaried["wording_too_long"] += 1
            except OutOfPictureError:
                encoded.unvaried["out_of_picture"] += 1
            except examples.TooLongError as error:
                if self.config.too_long == "error":
                    raise
                problem = BatchProblem(index, record.question_id, error.reason, str(error))
                encoded.problems.append(problem)
            else:
                encoded.questions.append(_Question(slot, index, record.question_id, tokens))
        kept = len(self._cache) * self.mixture.questions_per_image
        if change is None and not self.wording and kept < _CACHED_QUESTIONS:
            self._cache[element] = encoded
        return encoded

    def _fill(
        self, loaded: LoadedBatch, row: int, element: _Element, config: examples.ExampleConfig
    ) -> None:
        """Writes one image with its questions into row `row`; config: of the batch's grid."""
        loaded.problems.extend(element.problems)
        if element.image_path is None or not element.questions:
            return
        batch = loaded.batch
        try:
            own = examples.load_input(element.image_path, config, element.change, element.image_hw)
            if batch.has_earlier is None:
                batch.images[row] = own
            else:
                batch.images[row, 0] = own
                self._fill_earlier(batch, row, element, config)
        except ImageError as error:
            loaded.problems.extend(
                BatchProblem(question.index, question.question_id, "unreadable_image", str(error))
                for question in element.questions
            )
            return
        for question in element.questions:
            _fill_question(batch, row, question.slot, question.tokens)
            batch.question_index[row, question.slot] = question.index
            loaded.question_ids[row][question.slot] = question.question_id

    def _fill_earlier(
        self, batch: Batch, row: int, element: _Element, config: examples.ExampleConfig
    ) -> None:
        """The earlier image, changed as the row's own one: what moves both is no change."""
        if element.earlier_path is None:
            return
        assert batch.has_earlier is not None
        batch.images[row, 1] = examples.load_input(
            element.earlier_path, config, element.change, element.earlier_hw
        )
        batch.has_earlier[row] = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}


def _fill_question(batch: Batch, row: int, slot: int, question: examples.EncodedQuestion) -> None:
    prefix_start = batch.prefix_tokens.shape[-1] - len(question.prefix)
    batch.prefix_tokens[row, slot, prefix_start:] = question.prefix
    batch.prefix_mask[row, slot, prefix_start:] = True
    batch.answer_tokens[row, slot, : len(question.answer)] = question.answer
    batch.answer_mask[row, slot, : len(question.answer)] = True
    num_boxes = len(question.boxes)
    batch.coordinate_positions[row, slot, :num_boxes] = question.coordinate_positions
    batch.target_boxes[row, slot, :num_boxes] = question.boxes
    batch.box_mask[row, slot, :num_boxes] = True
    if batch.digits is not None and question.digits is not None:
        for name in ("positions", "place_weights"):
            values = getattr(question.digits, name)
            getattr(batch.digits, name)[row, slot, :num_boxes, :, : values.shape[-1]] = values
        batch.digits.scale[row, slot] = question.digits.scale
        batch.digits.offset[row, slot] = question.digits.offset


def _slots(lengths: list[int], buckets: tuple[int, ...]) -> int:
    return examples.bucket(max(lengths, default=0), buckets)


def _packed_length(elements: list[_Element], config: examples.ExampleConfig) -> int | None:
    """The smallest bucket that holds all tokens of each image, None where there is none."""
    longest = max(
        sum(len(question.tokens.prefix) + len(question.tokens.answer) for question in e.questions)
        for e in elements
    )
    return next((length for length in config.packed_buckets if length >= longest), None)


# Batches that each worker process has ready. Two let it work on one while another waits.
_WORKER_BUFFER = 2
# Batches whose images are on their way from a bucket.
_AHEAD = 4


class TrainLoader:
    """An endless iterator of `LoadedBatch`, epoch after epoch.

    Its state is small and fit for JSON: the step, and beside it the state of Grain's iterator. The
    step alone fits a loader with another number of hosts or workers. Close the loader (or use it as
    a context) where it has worker processes.
    """

    def __init__(
        self, rows: grain.MapDataset, builder: BatchBuilder, identity: dict[str, Any], workers: int
    ) -> None:
        self._rows = rows
        self._dataset = rows.map_with_index(builder)
        self._mixture = builder.mixture
        self._builder = builder
        roots = (getattr(one.records, "image_root", None) for one in builder.mixture.sources)
        self._remote = any(isinstance(root, Path) and in_bucket(root) for root in roots)
        self._announced = 0  # batches before it were
        self._identity = identity
        self._workers = workers
        self._step = 0
        self._images: collections.Counter[str] = collections.Counter()
        self._iterator: grain.DatasetIterator | None = None
        self._started: grain.DatasetIterator | None = None  # of the step where the loader stands
        # The step where the iterator began, and the state to go on from there.
        self._begun = 0
        self._restored: dict[str, Any] | None = None

    def __iter__(self) -> "TrainLoader":
        return self

    def __next__(self) -> LoadedBatch:
        if self._iterator is None:
            if self._restored is None:
                self._begun = self._step
            self._iterator, self._started = self._started, None
            if self._iterator is None:
                self._iterator = _iterate(self._dataset[self._begun :], self._workers)
            if self._restored is not None:
                self._iterator.set_state(self._restored)
                self._iterator.start_prefetch()  # all workers at once, as a new iterator does
                self._restored = None
        if self._remote:
            for step in range(max(self._announced, self._step + 1), self._step + 1 + _AHEAD):
                self._builder.announce(self._rows[step])
            self._announced = self._step + 1 + _AHEAD
        loaded = _own(next(self._iterator))
        if len(self._mixture.sources) > 1:
            # Counted over all hosts: each of them knows the whole order.
            numbers = map(self._mixture.source_of, self._rows[self._step])
            self._images.update(self._mixture.names[number] for number in numbers)
        self._step += 1
        return loaded._replace(images_by_source=dict(self._images))

    def start(self) -> None:
        """Starts the worker processes, whose first batches then are there sooner.

        A position that is set later ends them, and the next batch starts new ones.
        """
        if self._workers and self._iterator is None and self._restored is None:
            self._started = _iterate(self._dataset[self._step :], self._workers)
            self._started.start_prefetch()

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
        self._step, self._announced = int(state["step"]), 0
        self._images = collections.Counter(state.get("images", {}))
        self._begun, self._restored = self._step, None
        saved = state.get("grain")  # older checkpoints have the step alone
        if saved is not None and {**saved, **self._grain()} == saved:
            self._begun, self._restored = saved["begun"], saved["iterator"]
            stands_at = self._begun + _handed_out(self._restored)
            if stands_at != self._step:
                raise UserError(
                    f"data position: Grain's iterator is at step {stands_at} and the loader at "
                    f"step {self._step}; the checkpoint is damaged, resume from another one"
                )

    def close(self) -> None:
        """Ends the worker processes; the next batch starts new ones."""
        for iterator in (self._iterator, self._started):
            if iterator is not None:
                iterator.close()
        self._iterator = self._started = None

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
    augment: AugmentConfig | None = None,
    wording: WordingVariation | None = None,
) -> TrainLoader:
    """Shuffled batches for training, without end; of several sources they count the images of each.

    Args:
        mixture: of one source or more.
        global_batch_size: images in a step over all hosts.
        seed: of the order and of what is changed; any integer from 0.
        workers: processes that read and decode; 0 does it in this one.
        rows: of each global batch, those that this host loads, ascending; None: all of them.
        augment, wording: how images and questions are changed at every visit.
    """
    mine = _or_all(rows, global_batch_size)
    builder = BatchBuilder(mixture, tokenizer, True, mine, augment, wording, seed)
    identity = {"seed": seed, "global_batch_size": global_batch_size, "source": mixture.fingerprint}
    return TrainLoader(mixture.batches(seed, global_batch_size), builder, identity, workers)


def single_source(source: QuestionSource, config: examples.ExampleConfig) -> Mixture:
    """A mixture of one source, which has no name."""
    return Mixture([MixtureSource("", source, config)])


def eval_loader(
    source: QuestionSource,
    tokenizer: Tokenizer,
    config: examples.ExampleConfig,
    *,
    global_batch_size: int,
    workers: int = 0,
    rows: Sequence[int] | None = None,
    with_answers: bool = False,
) -> EvalLoader:
    """Each question exactly once, in order; the last batch is filled up with empty slots.

    Of images on several grids one grid after another, each to its last batch.

    Args:
        global_batch_size: images in a batch over all hosts.
        workers, rows: as in `train_loader`.
        with_answers: for teacher forcing. Else the records need none, and answer slots are all
            masked.
    """
    mixture = single_source(source, config)
    mine = _or_all(rows, global_batch_size)
    builder = BatchBuilder(mixture, tokenizer, with_answers, mine)
    whole = [
        np.pad(on_grid, (0, -len(on_grid) % global_batch_size), constant_values=NO_ELEMENT)
        for on_grid in mixture.by_grid()
    ]
    elements = grain.MapDataset.source(np.concatenate(whole)).batch(global_batch_size)
    return EvalLoader(elements.map_with_index(builder), workers)


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
