"""Several record files in one run, each asked in its own way.

A row of a batch is an image with its questions, whichever source it is from. The source with share
p_i has between floor and ceiling of about p_i * N of the first N rows (Grain's interleaving, which
draws no lots), and takes its own rows from permutations of its own, one after the other: each row
once before any comes again.

Shares come from weights, p_i = w_i / sum of w, or from sizes and a temperature,

    p_i = n_i^(1/T) / sum over j of n_j^(1/T)

(the multilingual BERT's exponent s = 1/T; mT5, arXiv 2010.11934, section 3.1, calls it alpha), n_i
being the rows of source i. T = 1 is in proportion to size, T = infinity the same for all. Grain
takes them as whole numbers of which the smallest is 100, so a share may be a hundredth off.

With `like_lengths` a batch has answers of like length, so that few are padded far: of every sixteen
batches' rows, in the order above, the shortest make one batch, the next ones another, and these
sixteen come in an order of their own.

Where images go onto several grids a batch is of one: grids take turns by the same interleaving,
each as often as its rows ask for, and within each the sources have their shares.
"""

import bisect
import dataclasses
import hashlib
import itertools
import json
import zlib
from collections.abc import Mapping, Sequence

import grain
import numpy as np
from jaxtyping import Float, Int

from cxrjax.errors import UserError
from cxrjax.input_pipeline.coordinates import BoxRoute, resolve_box_route
from cxrjax.input_pipeline.data_config import DataConfig, MixtureConfig
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.sources import ImageQuestions, QuestionSource, StoredQuestions

# Batches whose rows are sorted by length together.
_WINDOW = 16
# What each source may have of its own. The rest makes the batch's shape, or is the run's.
_OWN = ("codec", "record_codec", "prompt")


@dataclasses.dataclass(frozen=True)
class MixtureSource:
    """One of a mixture's sources.

    `weight` is its share relative to the others'; None: by size and temperature.
    """

    name: str
    records: QuestionSource
    config: ExampleConfig
    weight: float | None = None


class Mixture:
    """The rows of several sources under one numbering, source after source. Can be pickled.

    Attributes:
        sources: in the order given.
        config: what all sources share, with the first one's codec and prompt.
        shares: of the rows of a run, in the order of the sources.
        questions_per_image: the most that a row of any source holds.
        fingerprint: of the records and the shares; of a single source, the source's.

    Raises:
        UserError: sources cannot share a batch, have one name, or have weights in part.
    """

    def __init__(
        self, sources: Sequence[MixtureSource], temperature: float = 1.0, like_lengths: bool = False
    ) -> None:
        self.sources = tuple(sources)
        self.config = self.sources[0].config
        self.names = [source.name for source in self.sources]
        if len(set(self.names)) < len(self.names):
            raise UserError(f"mixture: sources are named {self.names}, expected different names")
        for source in self.sources:
            own = {name: getattr(source.config, name) for name in _OWN}
            if dataclasses.replace(self.config, **own) != source.config:
                raise UserError(
                    f"mixture: source {source.name} and {self.names[0]} differ in more than "
                    f"{', '.join(_OWN)}; the rest of ExampleConfig is one for all"
                )
        one_box_route(self.config.box_route, {s.name: s.config.codec for s in self.sources})
        records = [source.records for source in self.sources]
        weights = {source.name: source.weight for source in self.sources}
        self.shares = shares([len(r) for r in records], weights, temperature)
        self.questions_per_image = max(r.questions_per_image for r in records)
        self._starts = [0, *itertools.accumulate(len(r) for r in records)]
        self._first_question = [0, *itertools.accumulate(r.num_records for r in records)]
        self.fingerprint = records[0].fingerprint
        if len(records) > 1:
            parts = [self.names, [r.fingerprint for r in records], self.shares.tolist()]
            self.fingerprint = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        # [rows] letters of answers, by which batches are made.
        self._lengths: Int[np.ndarray, " rows"] | None = None
        stored = [each for each in records if like_lengths and isinstance(each, StoredQuestions)]
        found = [each.answer_lengths() for each in stored]
        lengths = [each for each in found if each is not None]
        if len(lengths) == len(records):
            self._lengths = np.concatenate(lengths)
        self._grids: Int[np.ndarray, " rows"] | None = None
        if self.config.grids:
            self._grids = np.concatenate([self._grids_of(r) for r in records])
            parts = [self.fingerprint, self.config.grids]
            self.fingerprint = hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _grids_of(self, records: QuestionSource) -> Int[np.ndarray, " rows"]:
        """The number of each row's grid among the configuration's."""
        sizes, which = np.unique(records.image_sizes(), axis=0, return_inverse=True)
        config = self.config
        inputs = [config.on_grid_of((h, w) if h else None).image_hw for h, w in sizes.tolist()]
        return np.array([config.grids.index(each) for each in inputs], np.int8)[which.reshape(-1)]

    def __len__(self) -> int:
        """Rows of all sources."""
        return self._starts[-1]

    def source_of(self, row: int) -> int:
        """The number of the source that the row is of."""
        return bisect.bisect_right(self._starts, row) - 1

    def __getitem__(self, row: int) -> ImageQuestions:
        """The row; the indices of its records count on from source to source."""
        number = self.source_of(row)
        questions = self.sources[number].records[row - self._starts[number]]
        first = self._first_question[number]
        return questions._replace(indices=tuple(first + index for index in questions.indices))

    def config_of(self, row: int) -> ExampleConfig:
        """The settings that rows on this row's grid share."""
        if self._grids is None:
            return self.config
        return self.config.on_grid_of(self.config.grids[self._grids[row]])

    def by_grid(self) -> list[Int[np.ndarray, " rows"]]:
        """The rows on each grid, ascending; of one grid, all."""
        if self._grids is None:
            return [np.arange(len(self))]
        every = [np.flatnonzero(self._grids == number) for number in range(len(self.config.grids))]
        return [rows for rows in every if len(rows)]

    def batches(self, seed: int, size: int) -> grain.MapDataset:
        """Row numbers of each batch, without end and by random access: a function of the seed."""
        if self._grids is None:
            starts = zip(self._starts[:-1], self._starts[1:], strict=True)
            orders = [grain.MapDataset.range(*ends) for ends in starts]
            rows = self._shuffled(orders, self.shares, seed)
            if self._lengths is None:
                return rows.batch(size, drop_remainder=True)
            windows = rows.batch(size * _WINDOW, drop_remainder=True)
            cut = _LikeLengths(windows, self._lengths, seed)
            return grain.MapDataset.range(len(windows) * _WINDOW).map(cut)
        of_grids, weights = [], []
        for rows in self.by_grid():
            parts = np.split(rows, np.searchsorted(rows, self._starts[1:-1]))
            counts = np.array([len(part) for part in parts])
            # Of each source as much as of its rows is here.
            part_shares = self.shares * counts / np.diff(self._starts)
            orders = [grain.MapDataset.source(part) for part in parts]
            mixed = self._shuffled(orders, part_shares, seed, f"@{self._grids[rows[0]]}")
            of_grids.append(mixed.batch(size, drop_remainder=True))
            weights.append(float(part_shares.sum()))
        return _mixed(of_grids, weights)

    def _shuffled(
        self,
        orders: Sequence[grain.MapDataset],
        weights: Float[np.ndarray, " sources"],
        seed: int,
        of_grid: str = "",
    ) -> grain.MapDataset:
        """The sources' rows (of some none), each permuted again and again, mixed."""
        # Grain shuffles epoch e with seed + e: spread the seeds, or run 1 repeats run 0 an epoch
        # late.
        endless = [
            order.shuffle(seed=_spread(seed, source.name + of_grid)).repeat()
            for source, order in zip(self.sources, orders, strict=True)
            if len(order)
        ]
        return _mixed(endless, [float(weight) for weight in weights if weight])


class _LikeLengths:
    """Number of a batch -> its rows, of like length; a function of the seed and the number."""

    def __init__(
        self, windows: grain.MapDataset, lengths: Int[np.ndarray, " rows"], seed: int
    ) -> None:
        self.windows, self.lengths, self.seed = windows, lengths, seed
        self._last: tuple[int, np.ndarray] | None = None

    def __call__(self, number: int) -> np.ndarray:
        window, place = divmod(int(number), _WINDOW)
        last = self._last
        if last is None or last[0] != window:
            rows = self.windows[window]
            ordered = rows[np.argsort(self.lengths[rows], kind="stable")].reshape(_WINDOW, -1)
            order = np.random.default_rng([self.seed, window]).permutation(_WINDOW)
            self._last = last = window, ordered[order]
        return last[1][place]


def _mixed(parts: Sequence[grain.MapDataset], weights: Sequence[float]) -> grain.MapDataset:
    return parts[0] if len(parts) == 1 else grain.MapDataset.mix(parts, weights)


def shares(
    rows: Sequence[int], weights: Mapping[str, float | None], temperature: float = 1.0
) -> Float[np.ndarray, " sources"]:
    """Each source's share of a run's rows; they sum to 1 (the module tells the formula).

    Args:
        rows, weights: of each source; weights of all of them or none.
        temperature: for sources without weights, above 0.

    Raises:
        UserError: a weight or the temperature is not above 0, or some sources have a weight and
            others none.
    """
    missing = [name for name, weight in weights.items() if weight is None]
    if missing and len(missing) < len(weights):
        raise UserError(
            f"mixture: no weight for {', '.join(missing)}; set it for all sources or for none"
        )
    for name, weight in weights.items():
        if weight is not None and not 0 < weight < float("inf"):
            raise UserError(f"mixture: weight of {name} is {weight}, expected a number above 0")
    if not temperature > 0:
        raise UserError(f"mixture: temperature is {temperature}, expected a number above 0")
    if missing:
        # In logarithms: a low temperature makes powers that no float holds.
        logarithms = np.log(np.asarray(rows, np.float64)) / temperature
        parts = np.exp(logarithms - logarithms.max())
    else:
        parts = np.array([weight for weight in weights.values()], np.float64)
    parts /= parts.sum()
    if not parts.min() > 1e-9:
        low = list(weights)[int(parts.argmin())]
        raise UserError(f"mixture: the share of {low} is {parts.min():.1e}; leave it out")
    return parts


def one_box_route(route: str, codecs: Mapping[str, str]) -> BoxRoute:
    """The route by which the loss reaches the boxes of all sources, of these codecs.

    Raises:
        UserError: there is none for all of them.
    """
    routes = {name: resolve_box_route(route, codec) for name, codec in codecs.items()}
    if len(set(routes.values())) > 1:
        found = ", ".join(f"{name} ({codecs[name]}) by {way}" for name, way in routes.items())
        raise UserError(
            f"mixture: a batch has one route to boxes, and training.box_route={route!r}"
            f" means {found}; use location tokens for all sources, or digits for all"
        )
    return next(iter(routes.values()))


def check_mixture(
    mixture: MixtureConfig, data: DataConfig, each: Mapping[str, DataConfig], route: str
) -> None:
    """Checks the sources of a mixture before their files are read.

    Args:
        data: the group `data`, whose codec the step takes its route to boxes from.
        each: the group as each source has it.
        route: `training.box_route`.

    Raises:
        UserError: a source without records, or sources that do not go together.
    """
    for name, own in each.items():
        if not own.train:
            raise UserError(f"mixture.sources.{name}.train is not set: expected a records file")
    one_box_route(route, {"data": data.codec, **{name: own.codec for name, own in each.items()}})
    weights = {name: source.weight for name, source in mixture.sources.items()}
    shares([1] * len(weights), weights)
    if mixture.temperature != 1 and None not in weights.values():
        raise UserError(
            f"mixture.temperature={mixture.temperature} would change nothing beside a weight for "
            "every source: leave it at 1.0, or leave the weights out"
        )


def _spread(seed: int, name: str) -> int:
    """A seed for a source; of a run with one source it's that of the run alone."""
    entropy = [seed, zlib.crc32(name.encode())] if name else seed
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
