"""`python -m cxrjax.demo_app`: the command in cxrjax/commands/demo_app.py."""

from cxrjax.cli import run
from cxrjax.commands.demo_app import main

if __name__ == "__main__":
    run(main)
