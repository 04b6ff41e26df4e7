"""`python -m cxrjax.plan`: the command in cxrjax/commands/plan.py."""

from cxrjax.cli import run
from cxrjax.commands.plan import main

if __name__ == "__main__":
    run(main)
