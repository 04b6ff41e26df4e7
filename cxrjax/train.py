"""`python -m cxrjax.train`: the command in cxrjax/commands/train.py."""

from cxrjax.cli import start
from cxrjax.commands.train import main

start(__name__, main)
