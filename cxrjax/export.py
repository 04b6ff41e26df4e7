"""`python -m cxrjax.export`: the command in cxrjax/commands/export.py."""

from cxrjax.cli import run
from cxrjax.commands.export import main

if __name__ == "__main__":
    run(main)
