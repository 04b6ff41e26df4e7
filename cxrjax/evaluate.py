"""`python -m cxrjax.evaluate`: the command in cxrjax/commands/evaluate.py."""

from cxrjax.cli import start
from cxrjax.commands.evaluate import main

start(__name__, main)
