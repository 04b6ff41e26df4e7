"""Everything that answers questions: models of ours, of others, and baselines that do not look.

Each is a module of its own that turns questions into lines of predictions; `table` lists them.
"""

from cxrjax.evaluation.systems.base import Answer, Line, Runner, answer_all
from cxrjax.evaluation.systems.table import (
    RUNNERS,
    add_runner_flags,
    estimate_run,
    resolved_settings,
    start_runner,
    start_sampler,
)

__all__ = [
    "RUNNERS",
    "Answer",
    "Line",
    "Runner",
    "add_runner_flags",
    "answer_all",
    "estimate_run",
    "resolved_settings",
    "start_runner",
    "start_sampler",
]
