"""`python -m cxrjax.export`: the command in cxrjax/commands/export.py."""

from cxrjax.cli import start
from cxrjax.commands.export import main

start(__name__, main)
