"""Systems that were run several times: NAME.seed0, NAME.seed1, ... are runs of NAME."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cxrjax.evaluation.counted import Counted
from cxrjax.evaluation.text_tables import grid
from cxrjax.metrics.bootstrap import Drawn, Estimate, Figure, Resampled, difference

Figures = Mapping[str, Mapping[str, Mapping[str, Estimate]]]
_RUN = re.compile(r"(?P<system>.+)\.seed(?P<seed>[0-9]+)")


RunDifferences = Mapping[str, Mapping[str, Mapping[str, tuple[float, float, float]]]]


def _runs(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """{system: {seed: name}} of systems with several runs."""
    systems: dict[str, dict[str, str]] = {}
    for name in names:
        run = _RUN.fullmatch(name)
        if run is not None:
            systems.setdefault(run["system"], {})[run["seed"]] = name
    return {system: runs for system, runs in systems.items() if len(runs) > 1}


def run_differences(
    systems: Mapping[str, Counted],
    resampled: Mapping[str, Resampled],
    reference: str,
    compared: Mapping[str, Iterable[str]],
) -> RunDifferences:
    """Differences of the means over runs, of systems from the reference's, with intervals.

    Each resample has its clusters and its runs drawn with replacement, the same for both systems
    where they have the same seeds: an interval tells of other patients and of other seeds.
    """
    runs, run = _runs(systems), _RUN.fullmatch(reference)
    if run is None or run["system"] not in runs:
        return {}
    of_reference = runs.pop(run["system"])
    settings = resampled[reference].settings
    tail = (1 - settings.confidence) / 2

    def means(own: Mapping[str, str], protocol: str, metric: str) -> np.ndarray | None:
        """Over the runs as observed, then over those drawn in every resample."""
        drawn = []
        for _, name in sorted(own.items()):
            figure = systems[name].figures[protocol].get(metric)
            if not isinstance(figure, Figure | Drawn):
                return None
            drawn.append(resampled[name].draws(figure))
        values = np.stack([x[: min(map(len, drawn))] for x in drawn])
        rng = np.random.default_rng([settings.seed, *map(int, sorted(own))])
        chosen = rng.integers(0, len(values), (len(values), values.shape[1]))
        chosen[:, 0] = np.arange(len(values))
        return np.take_along_axis(values, chosen, axis=0).mean(axis=0)

    found: dict[str, dict[str, dict[str, tuple[float, float, float]]]] = {}
    for system, own in runs.items():
        for protocol, metrics in compared.items():
            for metric in dict.fromkeys(metrics):
                pair = [means(each, protocol, metric) for each in (own, of_reference)]
                if pair[0] is None or pair[1] is None:
                    continue
                away = difference(pair[0], pair[1])
                rest = away[1:][np.isfinite(away[1:])]
                if np.isfinite(away[0]) and len(rest):
                    low, high = np.quantile(rest, [tail, 1 - tail])
                    told = found.setdefault(system, {}).setdefault(protocol, {})
                    told[metric] = (float(away[0]), float(low), float(high))
    return found


def seed_spread(
    figures: Figures, differences: RunDifferences | None = None
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """{system: {protocol: {metric: {mean, sd, low, high, runs}}}} of systems with several runs.

    `sd` is the sample standard deviation over runs. Runs in which a figure is undefined do not
    count; with fewer than two left, all but `runs` is None. Where there are differences from
    another system's runs, `difference`, `ci_low` and `ci_high` as well.
    """

    def of_metric(system: str, names: Iterable[str], protocol: str, metric: str) -> dict[str, Any]:
        found = _summary([figures[name][protocol].get(metric) for name in names])
        away = (differences or {}).get(system, {}).get(protocol, {}).get(metric)
        if away is not None:
            found |= dict(zip(("difference", "ci_low", "ci_high"), away, strict=True))
        return found

    return {
        system: {
            protocol: {
                metric: of_metric(system, own.values(), protocol, metric) for metric in named
            }
            for protocol, named in figures[next(iter(own.values()))].items()
        }
        for system, own in _runs(figures).items()
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
        rows = [["protocol", "metric", "mean", "sd", "lowest", "highest", "runs", "difference"]]
        for protocol, named in protocols.items():
            for metric, found in named.items():
                if found["mean"] is not None and metric.count("/") <= 1:
                    numbers = (f"{found[key]:.4f}" for key in ("mean", "sd", "low", "high"))
                    away = ""
                    if "difference" in found:
                        away = "{difference:+.4f} ({ci_low:+.4f} to {ci_high:+.4f})".format(**found)
                    rows.append([protocol, metric, *numbers, str(found["runs"]), away])
        parts.append(f"### {system}: spread over seeds\n\n{grid(rows)}")
    return "\n".join(parts)
