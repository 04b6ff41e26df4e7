"""`python -m cxrjax.convert`: the command in cxrjax/commands/convert.py."""

from cxrjax.cli import run
from cxrjax.commands.convert import main

if __name__ == "__main__":
    run(main)
