"""The work of `plan`: plans of one configuration, or the search of its best."""

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from cxrjax.apps.planner import choice, gpu, search
from cxrjax.apps.planner.describe import describe
from cxrjax.apps.planner.flags import PlanFlags
from cxrjax.apps.planner.plans import KEPT, Plan, make_plan
from cxrjax.apps.planner.serving_plan import describe_serving, plan_serving
from cxrjax.distributed.hardware import Topology, parse_topology
from cxrjax.errors import UserError
from cxrjax.paths import AnyPath, to_path
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.config_file import load_config, override_words


def plan(
    config: str | ExperimentConfig,
    topology: str,
    overrides: Mapping[str, object] | Sequence[str] = (),
    *,
    compiled: bool = True,
    decode: bool = False,
    kept_only: bool = False,
    kept: AnyPath = KEPT,
) -> Plan:
    """Estimates memory and time of a training run on a TPU or GPU slice that is not at hand.

    Args:
        config: FILE.py[:VARIANT], or a configuration.
        topology: such as "v5e:2x4", "v5p-8" or "h200-8".
        overrides: key -> value, such as {"training.batch_images": 64}, or words as on the command
            line.
        compiled: use the slice's compiler, where it is installed (extras plan and plan-gpu); False:
            by formula only.
        decode: also of generation.
        kept_only: compile nothing that was not compiled before.
        kept: folder of figures of compiled programs.

    Returns:
        The plan; `print` shows it. `fits`, `memory` (bytes of a chip), `estimate` (seconds), `mfu`.

    Raises:
        UserError: no such configuration or slice, or its compiler is missing.
    """
    if isinstance(config, str):
        config = load_config(config, override_words(overrides))
    place, folder = parse_topology(topology), to_path(kept)
    _check_decode(place, decode)
    config = choice.resolved_for(config, place, folder, _log)
    return make_plan(
        config,
        place,
        compiled=compiled,
        decode=decode,
        kept=folder,
        kept_only=kept_only,
        log_line=_log,
    )


def _check_decode(topology: Topology, decode: bool) -> None:
    if decode and topology.chip.kind == "gpu" and not gpu.is_installed():
        raise UserError(
            f"--decode is compiled, and XLA's compiler for GPUs ({topology.name}) is not installed "
            "(pip install 'cxrjax[plan-gpu]')"
        )


def answer(flags: PlanFlags, overrides: Sequence[str]) -> str:
    """Returns what the flags of `plan` request, as text or JSON.

    Raises:
        UserError: no such configuration or slice, or nothing fits.
    """
    topology, config = parse_topology(flags.topology), load_config(flags.config, overrides)
    # Whatever this machine has: programs are made for the devices of the slice.
    jax.config.update("jax_platforms", "cpu")
    kept = flags.kept or KEPT
    if not (flags.serve or flags.sweep or flags.find_batch):
        one = plan(
            config,
            flags.topology,
            compiled=not flags.formula,
            decode=flags.decode,
            kept_only=flags.kept_only,
            kept=kept,
        )
        return _text(flags, one)
    if flags.serve:
        slots = plan_serving(config, topology, kept=kept, log_line=_log)
        if flags.json:
            return json.dumps({"serve": [one.to_json() for one in slots]}, indent=2)
        return describe_serving(slots, topology)
    make = functools.partial(
        make_plan,
        topology=topology,
        kept=kept,
        log_line=_log,
        kept_only=flags.kept_only,
        compiled=not flags.formula,
    )
    if flags.sweep:
        compiles = 0 if flags.formula else flags.compiles
        found = search.sweep(config, topology, make, compiles)
        choice.store(found, config, topology, kept)
        return search.sweep_table(found)
    return _find_batch(flags, choice.resolved_for(config, topology, kept, _log), topology, make)


def _find_batch(flags: PlanFlags, config: ExperimentConfig, topology: Topology, make: Any) -> str:
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


def _text(flags: PlanFlags, found: Plan) -> str:
    return json.dumps(found.to_json(), indent=2) if flags.json else describe(found)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
