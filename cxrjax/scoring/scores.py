"""The input and output of scoring: options, what was counted, and figures with intervals."""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.codecs import Codec, get_codec
from cxrjax.errors import UserError
from cxrjax.files import file_sha256
from cxrjax.language_model.judges.judge import Judge
from cxrjax.metrics.bootstrap import (
    Attributes,
    Bootstrap,
    Columns,
    Estimate,
    Figure,
    Resampled,
    compare,
    estimate_all,
    needed_columns,
    resample,
)
from cxrjax.scoring.bert_score import BertScoreSettings
from cxrjax.scoring.text_tables import grid

PAPER, STRICT = "paper", "strict"
GT_MODE_HELP = (
    "which boxes are true: exact (the answers' own, the default), or of the readers: raw, "
    "per_reader, reader:ID, majority, lesion_majority, wbf, nms, components (the last four also "
    "with their IoU, as in wbf:0.4)"
)

# {system: {protocol: {metric: figure}}}
Figures = Mapping[str, Mapping[str, Mapping[str, Estimate]]]
# {curve: {"x": [...], "y": [...], "x_label": ..., "y_label": ...}}
Curves = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ScoreOptions:
    """Options of scoring.

    Attributes:
        gt_mode: one of the benchmark's ground-truth modes.
        codec: name of the convention in which predictions without boxes write them in their text.
        bootstrap: how intervals are made.
        judge: a language model or its stand-in, for benchmarks that ask one.
        segmenter: cuts Vietnamese words, for benchmarks in that language; None: their own default.
        bert_score: the model that BERTScore is taken with, for benchmarks that have it.
        compare_to: the system that all others are compared with; None: the first.
    """

    gt_mode: str
    codec: str | None = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    judge: Judge | None = None
    segmenter: str | None = None
    bert_score: BertScoreSettings | None = None
    compare_to: str | None = None

    @property
    def box_codec(self) -> Codec | None:
        """The codec of that name."""
        return get_codec(self.codec) if self.codec else None


@dataclass(frozen=True)
class Outcome:
    """One prediction against its reference.

    Attributes:
        right: None where that is not decidable.
        iou: how well its boxes lie on the true ones, 0 to 1; None without true and predicted boxes.
        note: one short line for people, such as "said absent; it is there".
    """

    right: bool | None
    iou: float | None
    note: str


@dataclass(frozen=True)
class Counted:
    """Counts of one system: all that its figures are made of.

    Attributes:
        columns: name -> a number for each unit (image or question), the same units for all systems.
        figures: {protocol: {metric: figure}}; an `Estimate` is taken as it is.
        problems: category -> how often, every category named, zeros too.
        curves: name -> points, for the page.
    """

    columns: Columns
    figures: Mapping[str, Mapping[str, Figure | Estimate]]
    problems: Mapping[str, int]
    curves: Curves = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """Results of several systems on one set of references.

    Attributes:
        figures: {system: {protocol: {metric: figure}}}.
        problems: {system: {category: how often}}, every category named, zeros too.
        settings: how the figures came about: ground-truth mode, seed, hashes.
        curves: {system: {curve: points}}.
        comparisons: two systems on one metric each, as of comparisons.json.
    """

    figures: Figures
    problems: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any]
    curves: Mapping[str, Curves] = field(default_factory=dict)
    comparisons: Sequence[Mapping[str, Any]] = ()

    def metrics(self) -> dict[str, dict[str, dict[str, dict[str, float | int | None]]]]:
        """The content of metrics.json."""
        return {
            system: {
                protocol: {name: figure.to_json() for name, figure in named.items()}
                for protocol, named in protocols.items()
            }
            for system, protocols in self.figures.items()
        }

    def with_settings(self, settings: Mapping[str, Any]) -> "Scores":
        """The same with more settings."""
        return replace(self, settings={**self.settings, **settings})


def make_scores(
    systems: Mapping[str, Counted],
    clusters: Sequence[tuple[str, Hashable]],
    settings: Mapping[str, Any],
    options: ScoreOptions,
    attributes: Attributes | None = None,
    compared: Mapping[str, Iterable[str]] | None = None,
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
    )


def _compared(
    systems: Mapping[str, Counted],
    resampled: Mapping[str, Resampled],
    pair: tuple[str, str],
    protocol: str,
    metrics: Iterable[str],
) -> list[dict[str, Any]]:
    """Lines of comparisons.json: the first of the pair minus the second."""
    first, second = (systems[name].figures[protocol] for name in pair)
    figures = {}
    for metric in dict.fromkeys(metrics):
        one, two = first.get(metric), second.get(metric)
        if isinstance(one, Figure) and isinstance(two, Figure):
            figures[metric] = (one, two)
    found = compare(resampled[pair[0]], resampled[pair[1]], figures)
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
    """Tells how intervals were made, and which are not by the method asked for."""
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


_RUN = re.compile(r"(?P<system>.+)\.seed(?P<seed>[0-9]+)")


def seed_spread(figures: Figures) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """{system: {protocol: {metric: {mean, sd, low, high, runs}}}} of systems with several runs.

    `sd` is the sample standard deviation over runs. Runs in which a figure is undefined do not
    count; with fewer than two left, all but `runs` is None.
    """
    systems: dict[str, list[str]] = {}
    for name in figures:
        run = _RUN.fullmatch(name)
        if run is not None:
            systems.setdefault(run["system"], []).append(name)
    return {
        system: {
            protocol: {
                metric: _summary([figures[name][protocol].get(metric) for name in names])
                for metric in named
            }
            for protocol, named in figures[names[0]].items()
        }
        for system, names in systems.items()
        if len(names) > 1
    }


def _summary(estimates: list[Any]) -> dict[str, Any]:
    values = [e.value for e in estimates if e is not None and e.value is not None]
    defined = np.array([value for value in values if np.isfinite(value)], np.float64)
    if len(defined) < 2:
        return {"mean": None, "sd": None, "low": None, "high": None, "runs": len(defined)}
    return {
        "mean": float(defined.mean()),
        "sd": float(defined.std(ddof=1)),
        "low": float(defined.min()),
        "high": float(defined.max()),
        "runs": len(defined),
    }


def spread_markdown(spread: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> str:
    """A table for each system, of the figures over all questions (breakdowns are in the file)."""
    parts = []
    for system, protocols in spread.items():
        rows = [["protocol", "metric", "mean", "sd", "lowest", "highest", "runs"]]
        for protocol, named in protocols.items():
            for metric, found in named.items():
                if found["mean"] is not None and metric.count("/") <= 1:
                    numbers = (f"{found[key]:.4f}" for key in ("mean", "sd", "low", "high"))
                    rows.append([protocol, metric, *numbers, str(found["runs"])])
        parts.append(f"### {system}: spread over seeds\n\n{grid(rows)}")
    return "\n".join(parts)
