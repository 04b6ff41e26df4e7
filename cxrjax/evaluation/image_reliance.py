"""Image reliance: how much of a system's answers changes when it is shown another image.

A system called as another and `blind`, `shuffled`, `noise`, `blurred` or `masked` after it
("tuned_blind" beside "tuned") is that one on images so changed. Who looks at images changes
most answers and loses in every headline figure; who does not look changes none.

An answer's decision is the benchmark's: yes, no or neither, or the options or findings named.
"""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.evaluation.counted import DECISION, WORDS, YES_NO, Counted
from cxrjax.evaluation.figures import share
from cxrjax.metrics.bootstrap import Bootstrap, Columns, Figure, Resampled, compare, resample

_OTHER_IMAGE = re.compile(
    r"(?:(?P<own>.+)[\W_])?(?:blind|shuffled|noise|blurred|masked)", re.IGNORECASE
)
# Measure -> (column of what changed, column of what might have).
_CHANGED = {
    "changed/words": ("words/changed", "words"),
    "changed/decision": ("decision/changed", "decision"),
    "changed/decision_yes": ("yes/changed", "yes"),
    "changed/decision_no": ("no/changed", "no"),
}


def own_system(name: str, systems: Iterable[str]) -> str | None:
    """The system that `name` is on changed images; None where it is none, or that is not there.

    A bare "blind" belongs to the only system that was shown its own pictures.
    """
    match = _OTHER_IMAGE.fullmatch(name)
    if match is None:
        return None
    shown = [one for one in systems if not _OTHER_IMAGE.fullmatch(one)]
    if match["own"] is None:
        return shown[0] if len(shown) == 1 else None
    return match["own"] if match["own"] in shown else None


def image_reliance(
    systems: Mapping[str, Counted],
    resampled: Mapping[str, Resampled],
    clusters: Sequence[tuple[str, Hashable]],
    bootstrap: Bootstrap,
    headlines: Iterable[tuple[str, str]],
) -> Iterator[dict[str, Any]]:
    """Lines of image_reliance.json: shares of changed answers, then changes of headline figures.

    Args:
        headlines: (protocol, metric) of figures whose change is told, own images to others.
    """
    headlines = list(headlines)
    for name in systems:
        own = own_system(name, systems)
        if own is None:
            continue
        changed = resample(
            _changes(systems[own].columns, systems[name].columns), clusters, bootstrap
        )
        for measure, columns in _CHANGED.items():
            found = changed.estimate(share(*columns))
            if found.n:
                yield {"system": name, "own": own, "measure": measure, **found.to_json()}
        for protocol, metric in headlines:
            here = systems[name].figures[protocol].get(metric)
            there = systems[own].figures[protocol].get(metric)
            if isinstance(here, Figure) and isinstance(there, Figure):
                pair = {metric: (here, there)}
                difference = compare(resampled[name], resampled[own], pair)[metric]
                yield {
                    "system": name,
                    "own": own,
                    "measure": f"{protocol}/{metric}",
                    "value": difference.difference,
                    "ci_low": difference.ci_low,
                    "ci_high": difference.ci_high,
                    "n": difference.n,
                }


def _changes(own: Columns, other: Columns) -> dict[str, Float[np.ndarray, " units"]]:
    """Columns of changes between two systems, and of the answers with content in either."""
    columns: dict[str, Float[np.ndarray, " units"]] = {}
    for name, column in (("words", WORDS), ("decision", DECISION)):
        nothing = np.zeros(len(next(iter(own.values()))))
        first, second = (
            np.asarray(side[column]) if column in side else nothing for side in (own, other)
        )
        columns[name] = ((first > 0) | (second > 0)).astype(np.float64)
        columns[f"{name}/changed"] = (first != second).astype(np.float64)
        if name == "decision":
            for said, number in YES_NO.items():
                columns[said] = (first == number).astype(np.float64)
                columns[f"{said}/changed"] = columns[said] * columns["decision/changed"]
    return columns
