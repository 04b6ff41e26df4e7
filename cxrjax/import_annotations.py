"""`python -m cxrjax.import_annotations`: the command in cxrjax/commands/import_annotations.py."""

from cxrjax.cli import run
from cxrjax.commands.import_annotations import main

if __name__ == "__main__":
    run(main)
