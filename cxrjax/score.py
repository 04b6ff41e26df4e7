"""`python -m cxrjax.score`: the command in cxrjax/commands/score.py."""

from cxrjax.cli import start
from cxrjax.commands.score import main

start(__name__, main)
