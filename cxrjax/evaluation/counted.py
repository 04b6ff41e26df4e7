"""Counted answers: columns with a number for each unit, and the figures that are made of them."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cxrjax.metrics.bootstrap import Columns, Estimate, Figure

PAPER, STRICT = "paper", "strict"
# {curve: {"x": [...], "y": [...], "x_label": ..., "y_label": ...}}
Curves = Mapping[str, Mapping[str, Any]]
# Columns of a system: a number for the words and for the decision of each answer; 0: none.
WORDS, DECISION = "reliance/words", "reliance/decision"
YES_NO = {"yes": 1.0, "no": 2.0}


def code(said: str) -> float:
    """Returns a number above 0 for a decision or words, equal for equal ones; yes is 1, no 2."""
    return YES_NO.get(said) or 3.0 + zlib.crc32(said.encode(errors="surrogatepass"))


@dataclass(frozen=True)
class Outcome:
    """One prediction against its reference."""

    right: bool | None  # None where that is not decidable
    # How well its boxes lie on the true ones, 0 to 1; None without true and predicted boxes.
    iou: float | None
    note: str  # one short line for people, such as "said absent; it is there"


@dataclass(frozen=True)
class Counted:
    """Counts of one system, from which all its figures are computed."""

    # Name -> a number for each unit (image or question), the same units for all systems.
    columns: Columns
    # {protocol: {metric: figure}}; an `Estimate` is taken as it is.
    figures: Mapping[str, Mapping[str, Figure | Estimate]]
    problems: Mapping[str, int]  # category -> how often, every category named, zeros too
    curves: Curves = field(default_factory=dict)  # name -> points, for the page
    # Scored boxes (`RankedBoxes`), whose AP and FROC are compared with another system's; None:
    # none.
    ranked: Any = None
