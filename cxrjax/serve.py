"""`python -m cxrjax.serve`: the command in cxrjax/commands/serve.py."""

from cxrjax.cli import run
from cxrjax.commands.serve import main

if __name__ == "__main__":
    run(main)
