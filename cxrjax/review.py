"""`python -m cxrjax.review`: the command in cxrjax/commands/review.py."""

from cxrjax.cli import start
from cxrjax.commands.review import main

start(__name__, main)
