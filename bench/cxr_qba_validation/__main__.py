"""Command line of the comparison."""

from bench.cxr_qba_validation import main
from cxrjax.cli import run

run(main)
