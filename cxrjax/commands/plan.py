"""Estimates memory and time of a training run on a TPU or GPU slice that is not at hand.

    python -m cxrjax.plan --config=FILE[:VARIANT] --topology=v5e:4x4 [--json] [--config.key=value]

For TPUs (v5e, v5p, v6e) the very step of `train` is compiled by the TPU's own compiler (extra
`plan`; no TPU needed, some minutes): memory of a chip by kind, whether it fits, what the chips send
one another. For GPUs (a100-80, h100, h200, b200) nothing is compiled, and formulas stand in. Step
times and MFU are a model's in both cases, and upper bounds of what a chip can do.

--find_batch looks for the largest batch that fits; --sweep compares meshes and remat policies;
--decode compiles generation as well, --serve the step of a server (one chip) for several numbers of
slots: which fit, and tokens a second. Figures of compiled programs are kept in
~/.cache/cxrjax/plans, so that a second look costs seconds, and --kept_only makes no others.
"""

from collections.abc import Sequence

from cxrjax.apps.planner.flags import PlanFlags
from cxrjax.cli import command_parser
from cxrjax.flags import parse_known_options


def parse_arguments(argv: Sequence[str] | None = None) -> tuple[PlanFlags, list[str]]:
    """Returns the options, and the words that override the configuration."""
    return parse_known_options(command_parser("plan", __doc__), PlanFlags, argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Plans what the flags request and prints it."""
    flags, overrides = parse_arguments(argv)
    from cxrjax.apps.planner.run import answer

    print(answer(flags, overrides))
