"""The Python face: load a model, ask it, read records, score answers, train.

    model = cxrjax.load("runs/demo/train")
    reply = model.ask("chest.png", "Where is the effusion?")
    replies = model.ask("chest.png", ["Is there an effusion?", "Where is it?"])
    table = cxrjax.score("data/records/validation.jsonl", {"tuned": model.predict(questions)})
    records = cxrjax.import_boxes("export.zip", "runs/own/data")
    for figures in cxrjax.train("configs/records_lora.py", "runs/own/train"): ...

What the commands do, in one process; docs/python.md has examples that are tested.
"""

from cxrjax.api.annotations import import_boxes
from cxrjax.api.answers import ModelAnswer, ModelAnswers, ModelBox
from cxrjax.api.model import Model, load
from cxrjax.api.pictures import Picture
from cxrjax.api.scoring import ScoreTable, read_records, score
from cxrjax.api.training import train

__all__ = [
    "Model",
    "ModelAnswer",
    "ModelAnswers",
    "ModelBox",
    "Picture",
    "ScoreTable",
    "import_boxes",
    "load",
    "read_records",
    "score",
    "train",
]
