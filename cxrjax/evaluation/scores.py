"""The input and output of scoring: options, what was counted, and figures with intervals."""

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.codecs import Codec, get_codec
from cxrjax.errors import UserError
from cxrjax.evaluation.counted import STRICT, Counted, Curves
from cxrjax.evaluation.image_reliance import image_reliance
from cxrjax.evaluation.several_runs import Figures, RunDifferences, run_differences
from cxrjax.evaluation.text_scores.bert_score import BertScoreSettings
from cxrjax.evaluation.text_scores.radeval import RadEvalScorer
from cxrjax.files import file_sha256
from cxrjax.language_model.judges.judge import Judge
from cxrjax.metrics.bootstrap import (
    Attributes,
    Bootstrap,
    Drawn,
    Estimate,
    Figure,
    Resampled,
    Swapped,
    compare,
    difference,
    estimate_all,
    needed_columns,
    resample,
)
from cxrjax.paper import what_is_made

# The row of `cxrjax.evaluation.baselines` that is a person.
PERSON = "one reader"
_BLIND = re.compile(r"(?:.*[\W_])?(?:blind|shuffled|noise)")
# More questions than these are scored beside floors only where that is asked for: each of them
# takes as long as a system.
MOST_FOR_FLOORS = 50_000

# {system: {protocol: {metric: figure}}}
FiguresJson = dict[str, dict[str, dict[str, dict[str, float | int | str | None]]]]


@dataclass(frozen=True)
class ScoreOptions:
    """Options of scoring."""

    gt_mode: str  # one of the benchmark's ground-truth modes
    # Name of the convention in which predictions without boxes write them in their text.
    codec: str | None = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)  # how intervals are made
    judge: Judge | None = None  # a language model or its stand-in, for benchmarks that ask one
    # Cuts Vietnamese words, for benchmarks in that language; None: their own default.
    segmenter: str | None = None
    # The model that BERTScore is taken with, for benchmarks that have it.
    bert_score: BertScoreSettings | None = None
    # Metrics of the package RadEval, for benchmarks with free text; None: none.
    radeval: RadEvalScorer | None = None
    compare_to: str | None = None  # the system that all others are compared with; None: the first
    title: str | None = None  # of tables and page, where it is not the benchmark's own
    # Whether systems that do not look stand beside the others; None: unless there are more than
    # `MOST_FOR_FLOORS` questions.
    floors: bool | None = None

    @property
    def box_codec(self) -> Codec | None:
        """The codec of that name."""
        return get_codec(self.codec) if self.codec else None


@dataclass(frozen=True)
class Scores:
    """Results of several systems on one set of references."""

    figures: Figures  # {system: {protocol: {metric: figure}}}
    # {system: {category: how often}}, every category named, zeros too.
    problems: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any]  # how the figures came about: ground-truth mode, seed, hashes
    curves: Mapping[str, Curves] = field(default_factory=dict)  # {system: {curve: points}}
    # Two systems on one metric each, as of comparisons.json.
    comparisons: Sequence[Mapping[str, Any]] = ()
    # Figures of `cxrjax.evaluation.baselines`; those that are broken down, without intervals.
    floors: Figures = field(default_factory=dict)
    # Each system minus the best floor on one metric each, as of floors.json.
    against_floors: Sequence[Mapping[str, Any]] = ()
    # The same of figures that are broken down.
    groups_against_floors: Sequence[Mapping[str, Any]] = ()
    # Of systems on changed images, as of image_reliance.json.
    reliance: Sequence[Mapping[str, Any]] = ()
    # {system: {protocol: {metric: (difference, low, high)}}} of systems with several runs, from the
    # one that all are compared with, which has several, too.
    run_differences: RunDifferences = field(default_factory=dict)

    @property
    def rows(self) -> Figures:
        """The systems' figures, then those of the baselines, as tables have them."""
        baselines = {f"baseline: {name}": named for name, named in self.floors.items()}
        return {**self.figures, **baselines}

    @property
    def made(self) -> str:
        """Returns a note on which of the references are simulated; "" if none are."""
        return what_is_made(self.settings.get("datasets", ()))

    def metrics(self) -> FiguresJson:
        """The content of metrics.json."""
        return figures_json(self.figures, self.made)

    def with_settings(self, settings: Mapping[str, Any]) -> "Scores":
        """Returns the scores with more settings."""
        return replace(self, settings={**self.settings, **settings})


def figures_json(figures: Figures, made: str = "") -> FiguresJson:
    """{system: {protocol: {metric: {value, ci_low, ci_high, n}}}}; of simulated lesions also
    `made`, which says so beside each figure."""
    beside = {"made": made} if made else {}
    return {
        system: {
            protocol: {name: {**figure.to_json(), **beside} for name, figure in named.items()}
            for protocol, named in protocols.items()
        }
        for system, protocols in figures.items()
    }


def make_scores(
    systems: Mapping[str, Counted],
    clusters: Sequence[tuple[str, Hashable]],
    settings: Mapping[str, Any],
    options: ScoreOptions,
    attributes: Attributes | None = None,
    compared: Mapping[str, Iterable[str]] | None = None,
    floors: Iterable[tuple[str, Counted]] = (),
    beside: "Beside | None" = None,
    headlines: Iterable[tuple[str, str]] = (),
) -> Scores:
    """Figures with intervals from what was counted of each system.

    Args:
        systems: name -> its counts.
        clusters: of each unit: ("patient", id), or ("image", id) where no patient is known. The
            same resamples of them serve all systems.
        settings: what the benchmark says of itself; how the intervals are made is added.
        attributes: what figures are broken down by, attribute -> its value for each unit.
        compared: protocol -> the metrics of the paper's tables (`Layout.compared`), in which
            systems are compared; P-values are corrected for them together.
        floors: name -> counts of each system that does not look, one by one.
        beside: which of their figures stand beside the systems'.
        headlines: (protocol, metric) that are told of systems on changed images.

    Raises:
        UserError: no system is called `options.compare_to`.
    """
    reference = options.compare_to or next(iter(systems))
    if reference not in systems:
        raise UserError(f"--compare_to={reference}: expected one of {', '.join(systems)}")
    resampled = {
        name: resample(
            counted.columns,
            clusters,
            options.bootstrap,
            attributes,
            needed_columns(counted.figures, list(counted.columns)),
        )
        for name, counted in systems.items()
    }
    figures = {
        name: estimate_all(resampled[name], counted.figures) for name, counted in systems.items()
    }
    beside = beside or Beside()
    wanted = {
        protocol: dict.fromkeys((*metrics, *(beside.groups if protocol == STRICT else ())))
        for protocol, metrics in (compared or {}).items()
    }
    low, draws = _floors(clusters, options, attributes, floors, beside, wanted)
    for name in systems:
        if is_blind(name) and draws:
            draws[name] = _drawn(systems[name], resampled[name], wanted)
    against = [
        line
        for name in systems
        if not is_blind(name)
        for line in _against_floors(systems[name], resampled[name], name, draws, beside)
    ]
    comparisons: list[dict[str, Any]] = []
    for name in systems:
        if name != reference:
            for protocol, metrics in (compared or {}).items():
                comparisons += _compared(systems, resampled, (name, reference), protocol, metrics)
    judge = {} if options.judge is None else {"judge": options.judge.name}
    bootstrap = _bootstrap(options.bootstrap, clusters, figures)
    return Scores(
        figures=figures,
        problems={name: counted.problems for name, counted in systems.items()},
        settings={**settings, **judge, "bootstrap": bootstrap},
        curves={name: counted.curves for name, counted in systems.items() if counted.curves},
        comparisons=comparisons,
        floors=low,
        against_floors=[line for line in against if line["metric"] not in beside.groups],
        groups_against_floors=[line for line in against if line["metric"] in beside.groups],
        reliance=[*image_reliance(systems, resampled, clusters, options.bootstrap, headlines)],
        run_differences=run_differences(systems, resampled, reference, compared or {}),
    )


@dataclass(frozen=True)
class Beside:
    """The figures of floors that stand beside the systems'."""

    shown: Collection[str] = ()  # metrics of tables and lists
    groups: Collection[str] = ()  # those that are broken down: by class, by view, and so on
    # Metric -> 1 where higher is better, -1 where lower is, 0 where neither.
    direction: Callable[[str], int] = lambda metric: 1


# (protocol, metric) -> a floor's value as observed, then in every resample.
_Draws = dict[tuple[str, str], np.ndarray]


def _floors(
    clusters: Sequence[tuple[str, Hashable]],
    options: ScoreOptions,
    attributes: Attributes | None,
    floors: Iterable[tuple[str, Counted]],
    beside: Beside,
    wanted: Mapping[str, Iterable[str]],
) -> tuple[Figures, dict[str, _Draws]]:
    """Figures of the floors, and the draws of what systems are compared in."""
    found: dict[str, dict[str, dict[str, Estimate]]] = {}
    draws: dict[str, _Draws] = {}
    for name, counted in floors:
        shown, groups = (
            {
                protocol: {metric: figure for metric, figure in named.items() if metric in some}
                for protocol, named in counted.figures.items()
            }
            for some in (beside.shown, beside.groups)
        )
        both = {protocol: {**shown[protocol], **groups[protocol]} for protocol in shown}
        drawn = resample(
            counted.columns,
            clusters,
            options.bootstrap,
            attributes,
            needed_columns(both, list(counted.columns)),
        )
        found[name] = estimate_all(drawn, shown)
        for metric, figure in groups[STRICT].items():
            found[name][STRICT].setdefault(metric, drawn.observed(figure))
        if name != PERSON:
            draws[name] = _drawn(replace(counted, figures=both), drawn, wanted)
        del counted, drawn  # else they stay until the next floor is made
    return found, draws


def _drawn(counted: Counted, drawn: Resampled, wanted: Mapping[str, Iterable[str]]) -> _Draws:
    return {
        (protocol, metric): drawn.draws(figure)
        for protocol, metrics in wanted.items()
        for metric in metrics
        if isinstance(figure := counted.figures[protocol].get(metric), Figure | Drawn)
    }


def is_blind(system: str) -> bool:
    """Returns whether a system's name states that it was shown no image, or another."""
    return _BLIND.fullmatch(system.lower()) is not None


def _against_floors(
    counted: Counted, resampled: Resampled, system: str, draws: Mapping[str, _Draws], beside: Beside
) -> Iterable[dict[str, Any]]:
    """Lines of floors.json: the system minus the best floor, drawn from the same resamples."""
    tail = (1 - resampled.settings.confidence) / 2
    for protocol, metric in dict.fromkeys(key for drawn in draws.values() for key in drawn):
        figure, sign = counted.figures[protocol].get(metric), beside.direction(metric)
        here = {
            name: sign * drawn[protocol, metric]
            for name, drawn in draws.items()
            if (protocol, metric) in drawn and np.isfinite(drawn[protocol, metric][0])
        }
        if not sign or not isinstance(figure, Figure | Drawn) or not here:
            continue
        best = max(here, key=lambda name: here[name][0])
        fewest = min(map(len, here.values()))
        highest = np.fmax.reduce([drawn[:fewest] for drawn in here.values()])
        own = sign * resampled.draws(figure)
        # Who finds nothing where a floor finds something is no better than it.
        known = np.isfinite(own[0])
        away = difference(own, highest)[1:]
        away = sign * away[np.isfinite(away)]
        low, high = np.quantile(away, [tail, 1 - tail]) if known and len(away) else (None, None)
        least = sign * (own[0] - here[best][0]) if known else None
        worst = least if low is None else (low if sign > 0 else high)
        yield {
            "system": system,
            "protocol": protocol,
            "metric": metric,
            "floor": best,
            "floor_value": float(sign * here[best][0]),
            "difference": None if least is None else float(least),
            "ci_low": None if low is None else float(low),
            "ci_high": None if high is None else float(high),
            "n": resampled.n(figure),
            "better": worst is not None and bool(sign * worst > 0),
        }


def _compared(
    systems: Mapping[str, Counted],
    resampled: Mapping[str, Resampled],
    pair: tuple[str, str],
    protocol: str,
    metrics: Iterable[str],
) -> list[dict[str, Any]]:
    """Lines of comparisons.json: the first of the pair minus the second."""
    first, second = (systems[name].figures[protocol] for name in pair)
    figures: dict[str, tuple[Any, Any]] = {}
    for metric in dict.fromkeys(metrics):
        one, two = first.get(metric), second.get(metric)
        if type(one) is type(two) and isinstance(one, Figure | Drawn):
            figures[metric] = (one, two)
    settings = resampled[pair[0]].settings

    def swapped() -> Swapped | None:
        one, two = (systems[name].ranked for name in pair)
        return one.swapped(two, settings) if one and two else None

    found = compare(resampled[pair[0]], resampled[pair[1]], figures, swapped)
    return [
        {
            "system": pair[0],
            "compared_to": pair[1],
            "protocol": protocol,
            "metric": metric,
            **asdict(comparison),
        }
        for metric, comparison in found.items()
    ]


def _bootstrap(
    bootstrap: Bootstrap, clusters: Sequence[tuple[str, Hashable]], figures: Figures
) -> dict[str, Any]:
    """Describes how intervals were computed, and which are not by the requested method."""
    fallbacks = {
        system: {
            protocol: [name for name, figure in named.items() if figure.fallback]
            for protocol, named in protocols.items()
        }
        for system, protocols in figures.items()
    }
    return {
        "method": bootstrap.method,
        "percentile_instead": fallbacks if bootstrap.method != "percentile" else {},
        "resamples": bootstrap.resamples,
        "seed": bootstrap.seed,
        "confidence": bootstrap.confidence,
        "clusters": len(set(clusters)),
        "clustered_by": sorted({kind for kind, _ in clusters}),
    }


def named_file(path: Path) -> dict[str, str]:
    """A file as records of runs tell it: its name without the folder, and its hash."""
    return {"name": path.name, "sha256": file_sha256(path)}
