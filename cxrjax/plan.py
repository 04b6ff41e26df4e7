"""`python -m cxrjax.plan`: the command in cxrjax/commands/plan.py."""

from cxrjax.cli import start
from cxrjax.commands.plan import main

start(__name__, main)
