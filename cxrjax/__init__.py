"""Vision-language models that answer questions about chest X-rays and point at what they mean.

    import cxrjax

    model = cxrjax.load("runs/demo/train")
    model.ask("chest.png", "Where is the effusion?")

The names in `__all__` are those of `cxrjax.api` (docs/python.md); nothing is imported before one
of them is used. The modules `cxrjax.train`, `cxrjax.score` and their like are for `python -m`
only, and refuse to be imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *  # noqa: F403

__version__ = "0.1.0"

_API = [
    *("AnswerForm", "BoxFormat", "BoxReading", "Build", "Model", "ModelAnswer", "ModelAnswers"),
    *("Prompt", "ScoreTable", "Table", "TrainingRun", "ask", "build", "check", "convert"),
    *("evaluate", "export", "import_boxes", "load", "plan", "predict", "read_records", "review"),
    *("score", "train"),
]
__all__ = [*_API, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _API:
        return getattr(importlib.import_module("cxrjax.api"), name)
    raise AttributeError(f"module 'cxrjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
