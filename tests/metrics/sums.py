"""Columns of sums and figures of them, for the tests of intervals."""

import numpy as np

from cxrjax.metrics.bootstrap import Bootstrap, Figure, estimate_all, needed_columns, resample
from cxrjax.metrics.classification import ratio


def columns(values):
    """A unit's value, its square, and that it is one."""
    values = np.asarray(values, np.float64)
    return {"sum": values, "square": values**2, "count": np.ones(len(values))}


def mean(sums):
    return ratio(sums["sum"], sums["count"])


MEAN = Figure(mean, "count")


def spread(sums):
    """Standard deviation: skewed, not linear in its sums."""
    return np.sqrt(np.maximum(sums["square"] / sums["count"] - mean(sums) ** 2, 0))


def estimated(values, clusters, settings=None, formula=mean):
    """A formula's value and interval, each of the values a unit (or columns as they are)."""
    if not isinstance(values, dict):
        values = columns(values)
    figure = Figure(formula, len(values["sum"]))
    return resample(values, clusters, settings or Bootstrap()).estimate(figure)


def estimate(given, clusters, figures, bootstrap, attributes=None):
    """All figures of a protocol, as scores estimate them."""
    needed = needed_columns(figures, list(given))
    return estimate_all(resample(given, clusters, bootstrap, attributes, needed), figures)
