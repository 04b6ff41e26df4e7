"""Vision-language models that answer questions about chest X-rays and point at what they mean.

    import cxrjax

    model = cxrjax.load("runs/demo/train")
    model.ask("chest.png", "Where is the effusion?")

`load`, `read_records`, `score` and `train` are those of `cxrjax.face` (docs/python.md); nothing is
imported before one of them is used. `cxrjax.train` and `cxrjax.score` are commands' modules too:
`cxrjax.train(...)` calls the function, `cxrjax.train.main()` is the command.
"""

import importlib
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .face import Model as Model
    from .face import ModelAnswer as ModelAnswer
    from .face import ModelAnswers as ModelAnswers
    from .face import ScoreTable as ScoreTable
    from .face import load as load
    from .face import read_records as read_records
    from .face import score as score
    from .face import train as train

__version__ = "0.1.0"

_FACE = ("Model", "ModelAnswers", "ModelAnswer", "ScoreTable", "load", "read_records")
# Named like commands, whose modules take these places as soon as anybody imports them.
_COMMANDS = ("score", "train")

__all__ = [*_FACE, *_COMMANDS, "__version__"]


class CallableCommand(types.ModuleType):
    """A command's module that is called as the function of its name in `cxrjax.face`."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls it; see there."""
        face = importlib.import_module("cxrjax.face")
        return getattr(face, self.__name__.rpartition(".")[2])(*arguments, **named)


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(importlib.import_module("cxrjax.face"), name)
    if name in _COMMANDS:
        return importlib.import_module(f"cxrjax.{name}")
    raise AttributeError(f"module 'cxrjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
