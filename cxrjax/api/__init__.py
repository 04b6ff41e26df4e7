"""The Python API: what the commands do, as typed functions in one process.

    data = cxrjax.import_boxes("export.zip", "runs/own/data")
    run = cxrjax.train("configs/records_lora.py", "runs/own/train", data=data)
    model = cxrjax.load(run)
    model.ask("chest.png", "Where is the effusion?")
    cxrjax.evaluate(model, data)

docs/python.md has examples that are tested. Shapes are jaxtyping's; boxes are x_min, y_min, x_max,
y_max. Errors that a user can fix are `cxrjax.errors.UserError`, in one line.
"""

import importlib
from typing import TYPE_CHECKING, Any

from cxrjax.api.answers import ModelAnswer, ModelAnswers
from cxrjax.api.builds import Build, read_records
from cxrjax.api.data import build, check, export, import_boxes, review
from cxrjax.api.model import Model, ask, load, predict
from cxrjax.api.scoring import ScoreTable, evaluate, score
from cxrjax.api.tables import Table
from cxrjax.api.training import TrainingRun, train
from cxrjax.choices import AnswerForm, BoxFormat, BoxReading, Prompt
from cxrjax.training.conversion import convert

if TYPE_CHECKING:
    from cxrjax.apps.planner.run import plan as plan

__all__ = ["AnswerForm", "BoxFormat", "BoxReading", "Build", "Model", "ModelAnswer", "Prompt"]
__all__ += ["ModelAnswers", "ScoreTable", "Table", "TrainingRun", "ask", "build", "check"]
__all__ += ["convert", "evaluate", "export", "import_boxes", "load", "plan", "predict"]
__all__ += ["read_records", "review", "score", "train"]


def __getattr__(name: str) -> Any:
    if name == "plan":  # takes a second to import
        return importlib.import_module("cxrjax.apps.planner.run").plan
    raise AttributeError(f"module 'cxrjax.api' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
