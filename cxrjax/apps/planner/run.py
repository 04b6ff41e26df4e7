"""The work of `plan`: plans of one configuration, or the search of its best."""

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

import jax

from cxrjax.apps.planner import choice, gpu, search
from cxrjax.apps.planner.describe import describe
from cxrjax.apps.planner.plans import KEPT, make_plan
from cxrjax.apps.planner.serving_plan import describe_serving, plan_serving
from cxrjax.distributed.hardware import Topology, parse_topology
from cxrjax.errors import UserError
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.config_file import load_config


def plan(flags: argparse.Namespace, overrides: Sequence[str]) -> str:
    """Returns what the flags of `plan` request, as text or JSON.

    Raises:
        UserError: flags that do not go together, or nothing fits.
    """
    _check(flags)
    topology, config = parse_topology(flags.topology), load_config(flags.config, overrides)
    if flags.decode and topology.chip.kind == "gpu" and not gpu.is_installed():
        raise UserError(
            f"--decode is compiled, and XLA's compiler for GPUs ({topology.name}) is not installed "
            "(pip install 'cxrjax[plan_gpu]')"
        )
    # Whatever this machine has: programs are made for the devices of the slice.
    jax.config.update("jax_platforms", "cpu")
    kept = flags.kept or KEPT
    if flags.serve:
        slots = plan_serving(config, topology, kept=kept, log_line=_log)
        if flags.json:
            return json.dumps({"serve": [one.to_json() for one in slots]}, indent=2)
        return describe_serving(slots, topology)
    make = functools.partial(make_plan, topology=topology, kept=kept, log_line=_log)
    if flags.kept_only:
        make = functools.partial(make, kept_only=True)
    if flags.formula:
        make = functools.partial(make, compiled=False)
    if flags.sweep:
        compiles = 0 if flags.formula else flags.compiles
        found = search.sweep(config, topology, make, compiles)
        choice.store(found, config, topology, kept)
        return search.sweep_table(found)
    config = choice.resolved_for(config, topology, kept, _log)
    if flags.find_batch:
        return _find_batch(flags, config, topology, make)
    return _text(flags, make(config, decode=flags.decode))


def _check(flags: argparse.Namespace) -> None:
    """Raises `UserError` where flags are missing or do not go together."""
    several = [f"--{name}" for name in ("find_batch", "sweep") if getattr(flags, name)]
    if len(several) > 1:
        raise UserError(f"{' and '.join(several)}: one of them at a time")
    if flags.decode and several:
        raise UserError(f"--decode is of a single plan: leave it or {several[0]} out")
    if flags.decode and flags.formula:
        raise UserError("--decode is compiled, and has no formula: leave it or --formula out")
    if flags.json and flags.sweep:
        raise UserError("--json is of a single plan: leave it or --sweep out")
    for name in ("config", "topology"):
        if getattr(flags, name) is None:
            raise UserError(f"--{name} is missing; see python -m cxrjax.plan --help")
    if flags.compiles < 1:
        raise UserError(f"--compiles={flags.compiles}: expected 1 or more")
    if flags.serve and (several or flags.decode or flags.formula or flags.kept_only):
        raise UserError("--serve is compiled, and by itself: leave the other searches out")


def _find_batch(
    flags: argparse.Namespace, config: ExperimentConfig, topology: Topology, make: Any
) -> str:
    found, too_large = search.find_batch(config, topology, make, flags.compiles)
    if found is None:
        assert too_large is not None
        raise UserError(
            f"{topology.name}: a batch of {too_large.config.batch_images} images does not fit, the "
            f"smallest that was tried with --compiles={flags.compiles}"
        )
    if flags.json:
        return _text(flags, found)
    more = "" if too_large is None else f"; {too_large.config.batch_images} do not"
    return f"a batch of {found.config.batch_images} images fits{more}\n{_text(flags, found)}"


def _text(flags: argparse.Namespace, found: Any) -> str:
    return json.dumps(found.to_json(), indent=2) if flags.json else describe(found)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
