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

from cxrjax.cli import command_parser
from cxrjax.paths import in_path


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_parser("plan", __doc__)
    parser.add_argument("--config", metavar="FILE[:VARIANT]")
    parser.add_argument("--topology", metavar="NAME", help="v5e:2x4, v5e-8, v5p-8, v6e-256, h200-8")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--formula", action="store_true", help="compile nothing, for TPUs either")
    parser.add_argument("--decode", action="store_true", help="also the decode loop")
    parser.add_argument("--serve", action="store_true", help="slots of a server on one chip")
    parser.add_argument("--find_batch", action="store_true", help="search the largest batch")
    parser.add_argument("--sweep", action="store_true", help="compare meshes and remat policies")
    parser.add_argument(
        "--compiles", type=int, default=5, metavar="N", help="at most, for the two searches"
    )
    parser.add_argument(
        "--kept_only", action="store_true", help="compile nothing; by formula what is not kept"
    )
    parser.add_argument("--kept", type=in_path, metavar="DIR", help="folder of compiled figures")
    flags, overrides = parser.parse_known_args(arguments)
    from cxrjax.apps.planner.run import answer

    print(answer(flags, overrides))
