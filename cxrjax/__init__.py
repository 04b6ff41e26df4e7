"""Vision-language models that answer questions about chest X-rays and point at what they mean.

    import cxrjax

    model = cxrjax.load("runs/demo/train")
    model.ask("chest.png", "Where is the effusion?")

The names in `__all__` are those of `cxrjax.api` (docs/python.md); nothing is imported before one
of them is used. The modules `cxrjax.train`, `cxrjax.score` and their like are for `python -m`
only: importing one replaces the function of its name.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Model as Model
    from .api import ModelAnswer as ModelAnswer
    from .api import ModelAnswers as ModelAnswers
    from .api import ScoreTable as ScoreTable
    from .api import import_boxes as import_boxes
    from .api import load as load
    from .api import read_records as read_records
    from .api import score as score
    from .api import train as train

__version__ = "0.1.0"

_MODELS = ("Model", "ModelAnswer", "ModelAnswers", "ScoreTable")
_API = (*_MODELS, "import_boxes", "load", "read_records", "score", "train")

__all__ = [*_API, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _API:
        return getattr(importlib.import_module("cxrjax.api"), name)
    raise AttributeError(f"module 'cxrjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
