"""Measures how far figures differ between runs of one system with other seeds.

Runs are told by their names, as `predict --seeds` names their files: p.seed0, p.seed1, p.seed2.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cxrjax.scoring.scores import Figures
from cxrjax.scoring.text_tables import grid

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
