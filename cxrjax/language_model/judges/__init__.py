"""Judges of free text: a language model, its verdicts replayed, or rules in its place.

judge           what a judge is asked and what it says
language_model  asks one over HTTP, keeps its verdicts, replays them without a network
verdict_store   the file of verdicts
surrogate       rules: no model, no network, never called by a judge's metric's name
agreement       two judges, or a judge and people
flags           which judge, from a command line
"""

from cxrjax.language_model.judges.judge import (
    FactMatch,
    FactPair,
    Facts,
    Judge,
    Marks,
    RelativeScore,
    Sample,
    compare_facts,
    metric_name,
)

__all__ = [
    "FactMatch",
    "FactPair",
    "Facts",
    "Judge",
    "Marks",
    "RelativeScore",
    "Sample",
    "compare_facts",
    "metric_name",
]
