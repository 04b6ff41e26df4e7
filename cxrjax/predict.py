"""`python -m cxrjax.predict`: the command in cxrjax/commands/predict.py."""

from cxrjax.cli import run
from cxrjax.commands.predict import main

if __name__ == "__main__":
    run(main)
