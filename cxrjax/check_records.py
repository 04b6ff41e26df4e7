"""`python -m cxrjax.check_records`: the command in cxrjax/commands/check_records.py."""

from cxrjax.cli import run
from cxrjax.commands.check_records import main

if __name__ == "__main__":
    run(main)
