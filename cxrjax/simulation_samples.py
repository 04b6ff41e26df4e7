"""`python -m cxrjax.simulation_samples`: the command in cxrjax/commands/simulation_samples.py."""

from cxrjax.cli import run
from cxrjax.commands.simulation_samples import main

if __name__ == "__main__":
    run(main)
