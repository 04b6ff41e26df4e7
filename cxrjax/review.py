"""`python -m cxrjax.review`: the command in cxrjax/commands/review.py."""

from cxrjax.cli import run
from cxrjax.commands.review import main

if __name__ == "__main__":
    run(main)
