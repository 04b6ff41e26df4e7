"""`python -m cxrjax.build`: the command in cxrjax/commands/build.py."""

from cxrjax.cli import start
from cxrjax.commands.build import main

start(__name__, main)
