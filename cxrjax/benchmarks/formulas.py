"""Formulas of the kinds that every benchmark has, from names of columns."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from cxrjax.metrics.bootstrap import Formula
from cxrjax.metrics.classification import ratio

T = TypeVar("T")


def quotient(numerator: str, denominator: str) -> Formula:
    """One column's sum by another's."""
    return lambda sums: ratio(sums[numerator], sums[denominator])


def of(function: Callable[..., np.ndarray], *columns: str) -> Formula:
    """A function of counts on the sums of these columns."""
    return lambda sums: function(*(sums[column] for column in columns))


def named(prefix: str, figures: Mapping[str, T], suffix: str = "") -> dict[str, T]:
    """The figures under longer names: `<prefix>/<name><suffix>`."""
    return {f"{prefix}/{name}{suffix}": figure for name, figure in figures.items()}
