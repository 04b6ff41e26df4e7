"""Figures as data, and their intervals by resampling whole clusters.

Every metric here is a function of sums over units (images, questions). So a unit is reduced once to
a row of numbers (its hits, its misses, ...), and a resample is a weighted sum of rows: one matrix
product for all metrics and all resamples, whatever the number of boxes. What comes from one patient
stays together: clusters are drawn, not units. Figures that are no functions of sums are computed
anew on every resample of the same clusters (`estimate_reweighted`).

Two systems are compared on the same resamples (`compare`), with p of a paired permutation test:
under the null hypothesis, whose answers are whose does not matter, so their results are swapped,
whole clusters at a time.
"""

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from threadpoolctl import threadpool_limits

from cxrjax.metrics.packed import Packed

Method = Literal["bca", "percentile"]
LEAST_PIVOTAL = 200
# Two figures that differ by this are the same but for the order in which their sums were added.
ROUNDING = 1e-12


def interval(
    draws: Float[np.ndarray, " sums"],
    left_out: Callable[[], Float[np.ndarray, " clusters"]],
    confidence: float,
    method: Method,
) -> tuple[float | None, float | None, bool]:
    """The interval of a figure: (low, high, whether BCa was asked for and is undefined).

    BCa is undefined, and percentiles are taken, where all resamples lie on one side of the observed
    value, where the figure is undefined without some cluster, and where it is extremely skewed.

    Args:
        draws: the observed value, then that of every resample; NaN where undefined.
        confidence: share of the draws inside the interval.
        left_out: gives the figure without each cluster; called only where it is needed.
    """
    value, drawn = draws[0], draws[1:][np.isfinite(draws[1:])]
    if not len(drawn):
        return None, None, False
    tail = (1 - confidence) / 2
    shares = np.array([tail, 1 - tail])
    fallback = False
    if method == "bca" and np.ptp(drawn) > ROUNDING:
        corrected = _bca_shares(value, drawn, left_out(), shares)
        fallback = corrected is None
        shares = shares if corrected is None else corrected
    low, high = np.quantile(drawn, shares)
    return float(low), float(high), fallback


def _bca_shares(
    value: float,
    drawn: Float[np.ndarray, " draws"],
    left_out: Float[np.ndarray, " clusters"],
    shares: Float[np.ndarray, "2"],
) -> Float[np.ndarray, "2"] | None:
    """The shares of the draws between which BCa's interval lies; None where undefined."""
    from scipy.special import ndtr, ndtri  # here: it takes long to load

    away = drawn - value
    tied = np.abs(away) <= ROUNDING
    # Draws that tie with the value count half: figures of few units take few values.
    bias = ndtri(np.mean((away < 0) & ~tied) + np.mean(tied) / 2)
    influence = left_out.mean() - left_out
    spread = float((influence**2).sum())
    if not np.isfinite(bias) or not spread > 0:  # NaN too
        return None
    acceleration = float((influence**3).sum()) / (6 * spread**1.5)
    z = bias + ndtri(shares)
    if (acceleration * z >= 1).any():  # so skewed that the ends would change places
        return None
    return np.asarray(ndtr(bias + z / (1 - acceleration * z)))


# Weights held at once while resampling: 16 MB of float64, but never less than some rows where a
# matrix of units would be read anew for each of them.
_CHUNK = 2_000_000
_LEAST_ROWS = 8
# Sums of clusters held as one table of float64 each: 270 MB together. Above, tables are made of as
# many columns at a time and of this many resamples, since each pass makes them anew.
_MOST_TABLED = 1 << 25
_ROWS_OF_PASS = 32
_MOST_LEFT_OUT = 1000

Columns = Mapping[str, Float[np.ndarray, " units"] | Packed]
Sums = Mapping[str, Float[np.ndarray, " sums"]]
Formula = Callable[[Sums], Float[np.ndarray, " sums"]]
# Attribute -> its value for each unit; None: not of this unit, or not known.
Attributes = Mapping[str, Sequence[str | None]]


@dataclass(frozen=True)
class Figure:
    """A metric as a function of sums over units.

    Attributes:
        formula: from named sums to the figure, elementwise over resamples; NaN where undefined.
        n: what the figure is taken over, for the record: a number, or the name of the column whose
            sum it is (which a breakdown needs, to know n in every cell).
        within: (attribute, value): the sums are over the units that have this value.
        pivotal: resamples are biased by as much as the figure itself is, as a mean of absolute
            gaps is: the interval is that of percentiles mirrored at the figure, cut at 0, and
            there is none of fewer than `LEAST_PIVOTAL` clusters, where it would not cover.
    """

    formula: Formula
    n: int | str
    within: tuple[str, str] | None = None
    pivotal: bool = False


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        value, ci_low, ci_high: None where undefined.
        n: what it was taken over.
        fallback: whether the interval is of percentiles because BCa is undefined for it.
    """

    value: int | float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    fallback: bool = False

    def to_json(self) -> dict[str, float | int | None]:
        """The cell of metrics.json."""
        return {"value": self.value, "ci_low": self.ci_low, "ci_high": self.ci_high, "n": self.n}


@dataclass(frozen=True)
class Drawn(Estimate):
    """A figure that is no function of sums, with all that its interval was made of.

    Attributes:
        draws: the observed value, then that of every resample; NaN where undefined.
        left_out: the value without each group of clusters, where BCa was asked for.
    """

    draws: Float[np.ndarray, " draws"] = field(
        default_factory=lambda: np.full(1, np.nan), repr=False, compare=False
    )
    left_out: Float[np.ndarray, " groups"] = field(
        default_factory=lambda: np.zeros(0), repr=False, compare=False
    )


@dataclass(frozen=True)
class Bootstrap:
    """Settings of intervals."""

    resamples: int = 1000  # 0 for no intervals
    # The same seed and the same clusters give the same resamples, so that two systems on one
    # set of references are resampled together.
    seed: int = 0
    confidence: float = 0.95  # share of the resamples inside the interval
    # "bca" (bias-corrected and accelerated; Efron, JASA 82, 1987) or "percentile".
    method: Method = "bca"


@dataclass
class ClusterSums:
    """Units summed by cluster: all of them, or those with one value of an attribute."""

    columns: dict[str, int]
    clusters: Int[np.ndarray, " rows"]  # which cluster each row is of
    rows: list[Packed]  # sums of each column; columns that are 0 everywhere are left out
    # First the observed sums, then one row per resample.
    sums: Float[np.ndarray, "sums columns"] = field(init=False)

    def of_each(self, name: str) -> Float[np.ndarray, " rows"]:
        """A column's sum over each cluster."""
        if name not in self.columns:
            return np.zeros(len(self.clusters))
        return np.asarray(self.rows[self.columns[name]])


class LazyColumns(Mapping[str, Float[np.ndarray, " rows"]]):
    """Name -> an array, made when it is asked for: all of them together may not fit the memory."""

    def __init__(
        self, names: Iterable[str], make: Callable[[str], Float[np.ndarray, " rows"]]
    ) -> None:
        # A dictionary is shared: thousands of names, asked for thousands of times.
        self._names = names if isinstance(names, dict) else dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> Float[np.ndarray, " rows"]:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Resampled:
    """Sums of every column, as observed and in every resample; made by `resample`."""

    settings: Bootstrap
    clusters: int
    names: dict[str, None]
    blocks: Mapping[tuple[str, str] | None, ClusterSums]

    def block(self, within: tuple[str, str] | None = None) -> ClusterSums:
        """The units that have this value.

        Raises:
            ValueError: no unit has it.
        """
        if within not in self.blocks:
            raise ValueError(f"no unit has the {within[0]} {within[1]!r}" if within else "no units")
        return self.blocks[within]

    def sums(self, within: tuple[str, str] | None = None) -> LazyColumns:
        """Name -> first the observed sum, then one per resample."""
        block = self.block(within)

        def of(name: str) -> Float[np.ndarray, " sums"]:
            if (column := block.columns.get(name)) is None:
                return np.zeros(len(block.sums))
            return block.sums[:, column]

        return LazyColumns(self.names, of)

    def n(self, figure: Figure | Drawn) -> int:
        """Returns the number that the figure is taken over."""
        if isinstance(figure, Drawn):
            return figure.n
        if isinstance(figure.n, int):
            return figure.n
        return round(float(self.sums(figure.within)[figure.n][0]))

    def draws(self, figure: Figure | Drawn) -> Float[np.ndarray, "sums"]:
        """The figure as observed, then in every resample."""
        if isinstance(figure, Drawn):
            return figure.draws
        return np.asarray(figure.formula(self.sums(figure.within)), np.float64)

    def observed(self, figure: Figure | Estimate) -> Estimate:
        """The figure without an interval."""
        if isinstance(figure, Estimate):
            return Estimate(figure.value, None, None, figure.n)
        sums = self.sums(figure.within)
        value = float(figure.formula(LazyColumns(self.names, lambda name: sums[name][:1]))[0])
        return Estimate(value if np.isfinite(value) else None, None, None, self.n(figure))

    def left_out(self, figure: Figure | Drawn) -> Float[np.ndarray, " clusters"]:
        """The figure without each cluster, those without a unit of the figure's group last."""
        if isinstance(figure, Drawn):
            return figure.left_out
        block = self.block(figure.within)

        def without_each(name: str) -> Float[np.ndarray, " rows"]:
            if (column := block.columns.get(name)) is None:
                return np.zeros(len(block.clusters))
            return block.sums[0, column] - block.of_each(name)

        values = np.asarray(figure.formula(LazyColumns(self.names, without_each)), np.float64)
        return np.concatenate([values, np.full(self.clusters - len(values), self.draws(figure)[0])])

    def estimate(self, figure: Figure) -> Estimate:
        """A figure and its interval.

        Returns:
            The observed value with an interval of the resamples in which it is defined. No interval
            where the value is undefined or nothing was resampled.
        """
        n, draws = self.n(figure), self.draws(figure)
        if not np.isfinite(draws[0]):
            return Estimate(None, None, None, n)
        if figure.pivotal:
            return self._mirrored(figure, draws, n)
        low, high, fallback = interval(
            draws, lambda: self.left_out(figure), self.settings.confidence, self.settings.method
        )
        return Estimate(float(draws[0]), low, high, n, fallback)

    def _mirrored(self, figure: Figure, draws: Float[np.ndarray, "sums"], n: int) -> Estimate:
        value = float(draws[0])
        if len(self.block(figure.within).clusters) < LEAST_PIVOTAL:
            return Estimate(value, None, None, n)
        low, high, _ = interval(draws, lambda: draws, self.settings.confidence, "percentile")
        if low is None or high is None:
            return Estimate(value, None, None, n)
        return Estimate(value, max(2 * value - high, 0.0), max(2 * value - low, 0.0), n)


def estimate_all(
    resampled: Resampled, figures: Mapping[str, Mapping[str, Figure | Estimate]]
) -> dict[str, dict[str, Estimate]]:
    """All figures of one system, {protocol: {metric: figure}}; an `Estimate` stays as it is."""
    return {
        protocol: {
            name: figure if isinstance(figure, Estimate) else resampled.estimate(figure)
            for name, figure in named.items()
        }
        for protocol, named in figures.items()
    }


def needed_columns(
    figures: Mapping[str, Mapping[str, Figure | Estimate]], names: Sequence[str]
) -> dict[tuple[str, str] | None, set[str]]:
    """Group -> the columns that its figures are made of; the others need no resampling."""
    needed: dict[tuple[str, str] | None, set[str]] = {}
    for figure in (figure for named in figures.values() for figure in named.values()):
        if isinstance(figure, Figure):
            asked = needed.setdefault(figure.within, set())

            def note(name: str, asked: set[str] = asked) -> Float[np.ndarray, " sums"]:
                asked.add(name)
                return np.zeros(1)

            with np.errstate(divide="ignore", invalid="ignore"):
                figure.formula(LazyColumns(names, note))
            if isinstance(figure.n, str):
                asked.add(figure.n)
    return needed


def resample(
    columns: Columns,
    clusters: Sequence[Hashable],
    settings: Bootstrap,
    attributes: Attributes | None = None,
    needed: Mapping[tuple[str, str] | None, set[str]] | None = None,
) -> Resampled:
    """Sums the columns over the units, as observed and in every resample of the clusters.

    Args:
        columns: name -> one number per unit. Units may be of two kinds (questions and images), each
            0 in the columns of the other.
        clusters: the cluster of each unit: ("patient", id), or ("image", id) where no patient is
            known.
        settings: how many resamples, from which seed.
        attributes: what figures may be broken down by. Each parts the units, so it costs as much as
            its columns once more, however many values it has.
        needed: as of `needed_columns`; None: every column in every group.

    Returns:
        The sums. Without intervals where there are fewer than two clusters: one cluster says
        nothing about how another would have come out.

    Raises:
        ValueError: columns, clusters and attributes of different lengths.
    """
    rows, count = number_clusters(clusters)
    lengths = {len(values) for values in (attributes or {}).values()}
    if not isinstance(columns, LazyColumns):
        lengths |= {len(column) for column in columns.values()}
    if lengths - {len(rows)}:
        raise ValueError(f"{len(rows)} clusters for {sorted(lengths)} units")
    everything = set(columns)
    whole = everything if needed is None else needed.get(None, set())
    blocks = _blocks(columns, {None: (np.arange(len(rows)), whole)}, rows)
    for attribute, values in (attributes or {}).items():
        members: dict[str, array[int]] = {}
        for unit, value in enumerate(values):
            if value is not None and (needed is None or (attribute, value) in needed):
                members.setdefault(value, array("i")).append(unit)
        groups: dict[tuple[str, str] | None, tuple[Int[np.ndarray, " _"], set[str]]] = {}
        for value in list(members):
            names = everything if needed is None else needed[attribute, value]
            groups[attribute, value] = np.asarray(members.pop(value)), names
        blocks |= _blocks(columns, groups, rows)
    draws = settings.resamples if count > 1 else 0
    _draw(list(blocks.values()), count, draws, settings.seed)
    return Resampled(settings, count, dict.fromkeys(columns), blocks)


def number_clusters(clusters: Sequence[Hashable]) -> tuple[Int[np.ndarray, " units"], int]:
    """Each unit's cluster as a number from 0, by first appearance; how many there are."""
    index = {cluster: row for row, cluster in enumerate(dict.fromkeys(clusters))}
    return np.asarray([index[cluster] for cluster in clusters], np.int64), len(index)


def _blocks(
    columns: Columns,
    groups: Mapping[tuple[str, str] | None, tuple[Int[np.ndarray, " _"], set[str]]],
    clusters: Int[np.ndarray, " units"],
) -> dict[tuple[str, str] | None, ClusterSums]:
    """Sums of columns over the units of each group, by cluster.

    Args:
        groups: key -> its units, and the columns that are summed.
        clusters: of all units.
    """
    blocks, rows = {}, {}
    for key, (chosen, _) in groups.items():
        present, rows[key] = np.unique(clusters[chosen], return_inverse=True)
        blocks[key] = ClusterSums({}, present, [])
    for name in columns:
        wanted = [key for key, (_, names) in groups.items() if name in names]
        if not wanted:
            continue
        column = np.asarray(columns[name], np.float64)
        for key in wanted:
            values = column[groups[key][0]]
            if values.any():
                block = blocks[key]
                block.columns[name] = len(block.rows)
                sums = np.bincount(rows[key], weights=values, minlength=len(block.clusters))
                block.rows.append(Packed(sums))
    return blocks


@threadpool_limits.wrap(limits=1, user_api="blas")  # on a busy machine threads wait for each other
def _draw(blocks: Sequence[ClusterSums], count: int, resamples: int, seed: int) -> None:
    """Fills in the blocks' sums: the same draws of clusters for all of them."""
    fits = sum(len(block.clusters) * len(block.rows) for block in blocks) <= _MOST_TABLED
    tables = [list(_tables(block)) if fits else None for block in blocks]
    for block, made in zip(blocks, tables, strict=True):
        block.sums = np.empty((1 + resamples, len(block.rows)))
        for some, table in made or _tables(block):
            block.sums[0, some] = table.sum(axis=0)
            del table  # else it stays until the next one is made
    for part, weights in draw_clusters(
        count, resamples, seed, _LEAST_ROWS if fits else _ROWS_OF_PASS
    ):
        drawn = slice(1 + part.start, 1 + part.stop)
        for block, made in zip(blocks, tables, strict=True):
            here = weights if len(block.clusters) == count else weights[:, block.clusters]
            for some, table in made or _tables(block):
                block.sums[drawn, some] = here @ table
                del table
            del here


def _tables(block: ClusterSums) -> Iterator[tuple[slice, Float[np.ndarray, "rows _"]]]:
    """Columns of a block side by side, as many at a time as fit the memory."""
    step = max(1, _MOST_TABLED // max(1, len(block.clusters)))
    for start in range(0, len(block.rows), step):
        some = slice(start, min(start + step, len(block.rows)))
        table = np.empty((len(block.clusters), some.stop - some.start))
        for place, column in enumerate(block.rows[some]):  # one by one, as they are unpacked
            table[:, place] = column
        yield some, table
        del table


def draw_clusters(
    count: int, resamples: int, seed: int, least: int = 1
) -> Iterator[tuple[slice, Float[np.ndarray, "part clusters"]]]:
    """Yields how often each cluster is drawn in each resample, `least` or more at a time.

    The next ones overwrite the array.
    """
    rng = np.random.default_rng(seed)
    weights = np.empty((0, count))
    for part in chunks(resamples, count, least):
        rows = part.stop - part.start
        if not len(weights):
            weights = np.empty((rows, count))
        for row in weights[:rows]:  # one by one: numbers drawn for all take twice the memory
            row[:] = np.bincount(rng.integers(0, count, count), minlength=count)
        yield part, weights[:rows]


def chunks(resamples: int, clusters: int, least: int = 1) -> Iterator[slice]:
    """Resamples in groups whose weights fit the memory."""
    step = max(least, _CHUNK // max(clusters, 1))
    for start in range(0, resamples, step):
        yield slice(start, min(start + step, resamples))


# How often each unit counts in each draw -> the figures of each draw, NaN where undefined.
Reweighted = Callable[[Float[np.ndarray, "draws units"]], Mapping[str, Float[np.ndarray, " draws"]]]


def estimate_reweighted(
    figures: Reweighted, clusters: Sequence[Hashable], n: Mapping[str, int], bootstrap: Bootstrap
) -> dict[str, Drawn]:
    """Figures with their intervals.

    Args:
        figures: computes all of them from how often each unit counts.
        clusters: the cluster of each unit.
        n: figure -> what it is taken over, for the record.
        bootstrap: how intervals are made; no resamples, no intervals.
    """
    rows, count = number_clusters(clusters)
    resamples = bootstrap.resamples if count > 1 else 0

    def drawn() -> Iterator[Float[np.ndarray, "draws units"]]:
        yield np.ones((1, len(rows)))
        for _, weights in draw_clusters(count, resamples, bootstrap.seed):
            yield weights[:, rows]

    # Of many clusters several are left out together: acceleration comes to the same.
    groups = min(count, _MOST_LEFT_OUT)

    def left_out() -> Iterator[Float[np.ndarray, "draws units"]]:
        for part in chunks(groups, len(rows)):
            yield (rows % groups != np.arange(part.start, part.stop)[:, None]).astype(np.float64)

    draws = _of_all(figures, drawn())
    is_bca = bootstrap.method == "bca" and resamples > 0
    without = _of_all(figures, left_out()) if is_bca else {}
    estimates: dict[str, Drawn] = {}
    for name, values in draws.items():
        left = without.get(name, np.zeros(0))
        if not np.isfinite(values[0]):
            estimates[name] = Drawn(None, None, None, n[name], draws=values, left_out=left)
            continue
        ends = interval(values, left.view, bootstrap.confidence, bootstrap.method)
        estimates[name] = Drawn(
            float(values[0]), *ends[:2], n[name], ends[2], draws=values, left_out=left
        )
    return estimates


def _of_all(
    figures: Reweighted, weights: Iterator[Float[np.ndarray, "draws units"]]
) -> dict[str, Float[np.ndarray, " draws"]]:
    parts = [figures(some) for some in weights]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems.

    Attributes:
        difference: of the observed values; None where one is undefined.
        ci_low, ci_high: interval of the difference; None where there is none.
        p: two-sided, of the permutation test; never below 1 / (1 + permutations).
        p_holm: p corrected for all metrics that were compared together (Holm, 1979).
        n: what the metric is taken over.
    """

    difference: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None
    n: int


# Metric -> its values in every permutation, of each of two systems.
Swapped = tuple[Mapping[str, Float[np.ndarray, " sums"]], Mapping[str, Float[np.ndarray, " sums"]]]


def compare(
    first: Resampled,
    second: Resampled,
    figures: Mapping[str, tuple[Figure | Drawn, Figure | Drawn]],
    swapped: Callable[[], Swapped | None] = lambda: None,
) -> dict[str, Comparison]:
    """The first system minus the second, metric by metric, with as many permutations as resamples.

    Args:
        first, second: of the same units, clusters and settings.
        figures: metric -> the figure of the first and of the second system, over the same group.
        swapped: gives those that are no functions of sums in every permutation, where that is to
            be had; without, they have no p.

    Raises:
        ValueError: the two were not resampled alike.
    """
    if (first.settings, first.clusters) != (second.settings, second.clusters):
        raise ValueError("systems are compared on the same clusters and resamples")
    results: dict[str, Comparison] = {}
    drawn = {name for name, (one, _) in figures.items() if isinstance(one, Drawn)}
    permuted = swapped() if drawn and first.settings.resamples else None
    for name in drawn:
        sides = None if permuted is None else (permuted[0][name], permuted[1][name])
        results[name] = _compared(first, second, figures[name], sides)
    groups = {name: one.within for name, (one, _) in figures.items() if isinstance(one, Figure)}
    for within in dict.fromkeys(groups.values()):
        here = {name: pair for name, pair in figures.items() if groups.get(name, "") == within}
        results |= _compare_within(first, second, here, within)
    defined = {name: result.p for name, result in results.items() if result.p is not None}
    corrected = dict(zip(defined, holm(list(defined.values())), strict=True))
    return {name: replace(results[name], p_holm=corrected.get(name)) for name in figures}


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being several, in the order given (Scand. J. Statist. 6, 1979)."""
    order = np.argsort(p_values, kind="stable")
    factors = len(order) - np.arange(len(order))
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(np.asarray(p_values)[order] * factors)
    return np.minimum(corrected, 1.0).tolist()


def _compare_within(
    first: Resampled,
    second: Resampled,
    figures: Mapping[str, tuple[Any, Any]],
    within: tuple[str, str] | None,
) -> dict[str, Comparison]:
    swapped = _swapped_sums(first, second, within)
    return {
        name: _compared(
            first, second, (one, two), (one.formula(swapped[0]), two.formula(swapped[1]))
        )
        for name, (one, two) in figures.items()
    }


def _compared(
    first: Resampled,
    second: Resampled,
    pair: tuple[Figure | Drawn, Figure | Drawn],
    sides: tuple[np.ndarray, np.ndarray] | None,
) -> Comparison:
    """One metric; `sides` are both systems' values in every permutation."""
    settings, n = first.settings, first.n(pair[0])
    draws = difference(first.draws(pair[0]), second.draws(pair[1]))
    if not np.isfinite(draws[0]):
        return Comparison(None, None, None, None, None, n)
    low, high, _ = interval(
        draws,
        lambda: first.left_out(pair[0]) - second.left_out(pair[1]),
        settings.confidence,
        settings.method,
    )
    if sides is None or not settings.resamples:
        return Comparison(float(draws[0]), low, high, None, None, n)
    with np.errstate(invalid="ignore"):
        other = np.abs(sides[0] - sides[1])
    # One that is undefined is no evidence against chance: it counts as large.
    as_large = int((~(other < abs(draws[0]) - ROUNDING)).sum())
    p = (1 + as_large) / (1 + settings.resamples)
    return Comparison(float(draws[0]), low, high, p, None, n)


def difference(
    first: Float[np.ndarray, " draws"], second: Float[np.ndarray, " others"]
) -> Float[np.ndarray, " fewer"]:
    """Subtracts `second` from `first`, as observed and in every resample that both have."""
    fewer = min(len(first), len(second))
    return first[:fewer] - second[:fewer]


@threadpool_limits.wrap(limits=1, user_api="blas")  # as in bootstrap
def _swapped_sums(
    first: Resampled, second: Resampled, within: tuple[str, str] | None
) -> tuple[Sums, Sums]:
    """Both systems' sums in every permutation, clusters swapped with even chance."""
    settings = first.settings
    one, two = first.block(within), second.block(within)
    names = list(dict.fromkeys((*one.columns, *two.columns)))
    gaps = np.zeros((len(one.clusters), len(names)))
    totals = np.zeros((2, len(names)))
    for place, name in enumerate(names):
        for sign, block, total in ((1, one, totals[0]), (-1, two, totals[1])):
            if name in block.columns:
                gaps[:, place] += sign * block.of_each(name)
                total[place] = block.sums[0, block.columns[name]]
    rng = np.random.default_rng(settings.seed)
    moved = np.empty((settings.resamples, len(names)))
    for rows in chunks(settings.resamples, len(gaps)):
        swaps = rng.integers(0, 2, size=(rows.stop - rows.start, len(gaps)), dtype=np.int8)
        moved[rows] = swaps.astype(np.float64) @ gaps
    nothing = np.zeros(len(moved))
    sums = []
    for system, total, sign in ((first, totals[0], -1), (second, totals[1], 1)):
        named = {name: total[place] + sign * moved[:, place] for place, name in enumerate(names)}
        sums.append({name: named.get(name, nothing) for name in system.names})
    return sums[0], sums[1]
