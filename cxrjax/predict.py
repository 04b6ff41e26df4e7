"""`python -m cxrjax.predict`: the command in cxrjax/commands/predict.py."""

from cxrjax.cli import start
from cxrjax.commands.predict import main

start(__name__, main)
