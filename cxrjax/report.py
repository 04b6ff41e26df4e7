"""`python -m cxrjax.report`: the command in cxrjax/commands/report.py."""

from cxrjax.cli import run
from cxrjax.commands.report import main

if __name__ == "__main__":
    run(main)
