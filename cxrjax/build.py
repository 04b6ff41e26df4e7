"""`python -m cxrjax.build`: the command in cxrjax/commands/build.py."""

from cxrjax.cli import run
from cxrjax.commands.build import main

if __name__ == "__main__":
    run(main)
