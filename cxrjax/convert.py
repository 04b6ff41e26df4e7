"""`python -m cxrjax.convert`: the command in cxrjax/commands/convert.py."""

from cxrjax.cli import start
from cxrjax.commands.convert import main

start(__name__, main)
