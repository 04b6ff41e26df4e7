"""`python -m cxrjax.train`: the command in cxrjax/commands/train.py."""

from cxrjax.cli import run
from cxrjax.commands.train import main

if __name__ == "__main__":
    run(main)
