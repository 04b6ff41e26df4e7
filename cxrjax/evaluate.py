"""`python -m cxrjax.evaluate`: the command in cxrjax/commands/evaluate.py."""

from cxrjax.cli import run
from cxrjax.commands.evaluate import main

if __name__ == "__main__":
    run(main)
