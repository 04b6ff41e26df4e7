"""Says what a training run takes of a TPU or GPU slice, without the slice, data or weights.

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

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import command_parser
from cxrjax.distributed.hardware import parse_topology
from cxrjax.errors import UserError


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
    parser.add_argument("--kept", type=Path, metavar="DIR", help="where compiled figures are kept")
    flags, overrides = parser.parse_known_args(arguments)
    # After the flags: --help stays quick.
    import jax

    from cxrjax.apps.planner import search
    from cxrjax.apps.planner.describe import describe
    from cxrjax.apps.planner.plans import KEPT, make_plan
    from cxrjax.training.config_file import load_config

    several = [f"--{name}" for name in ("find_batch", "sweep") if getattr(flags, name)]
    if len(several) > 1:
        raise UserError(f"{' and '.join(several)}: one of them at a time")
    if flags.decode and several:
        raise UserError(f"--decode is of a single plan: leave it or {several[0]} out")
    if flags.decode and flags.formula:
        raise UserError("--decode is compiled, and has no formula: leave it or --formula out")
    if flags.json and flags.sweep:
        raise UserError("--json is of a single plan: leave it or --sweep out")
    # Whatever this machine has: programs are made for the devices of the slice.
    jax.config.update("jax_platforms", "cpu")
    make = functools.partial(make_plan, kept=flags.kept or KEPT, log_line=_log)
    if flags.kept_only:
        make = functools.partial(make, kept_only=True)
    if flags.formula:
        make = functools.partial(make, compiled=False)
    for name in ("config", "topology"):
        if getattr(flags, name) is None:
            raise UserError(f"--{name} is missing; see python -m cxrjax.plan --help")
    if flags.compiles < 1:
        raise UserError(f"--compiles={flags.compiles}: expected 1 or more")
    topology, config = parse_topology(flags.topology), load_config(flags.config, overrides)
    if flags.decode and topology.chip.kind == "gpu":
        raise UserError(f"--decode is compiled, and nothing is for a GPU ({topology.name})")
    if flags.serve:
        if several or flags.decode or flags.formula or flags.kept_only:
            raise UserError("--serve is compiled, and by itself: leave the other searches out")
        from cxrjax.apps.planner.serving_plan import describe_serving, plan_serving

        found_slots = plan_serving(config, topology, kept=flags.kept or KEPT, log_line=_log)
        told = json.dumps({"serve": [one.to_json() for one in found_slots]}, indent=2)
        print(told if flags.json else describe_serving(found_slots, topology))
        return
    plan = functools.partial(make, topology=topology)
    if flags.sweep:
        compiles = 0 if flags.formula else flags.compiles
        print(search.sweep_table(search.sweep(config, topology, plan, compiles)))
        return
    if flags.find_batch:
        found, too_large = search.find_batch(config, topology, plan, flags.compiles)
        if found is None:
            assert too_large is not None
            smallest = too_large.config.batch_images
            raise UserError(
                f"{topology.name}: a batch of {smallest} images does not fit, the smallest that "
                f"was tried with --compiles={flags.compiles}"
            )
        if not flags.json:
            more = "" if too_large is None else f"; {too_large.config.batch_images} do not"
            print(f"a batch of {found.config.batch_images} images fits{more}")
    else:
        found = plan(config, decode=flags.decode)
    print(json.dumps(found.to_json(), indent=2) if flags.json else describe(found))


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
