"""`python -m cxrjax.score`: the command in cxrjax/commands/score.py."""

from cxrjax.cli import run
from cxrjax.commands.score import main

if __name__ == "__main__":
    run(main)
