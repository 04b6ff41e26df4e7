"""The work of `serve`: a model and its adapters behind an address, until SIGTERM."""

import dataclasses
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from cxrjax.apps import page_server
from cxrjax.apps.serving.flags import ServeFlags
from cxrjax.apps.serving.log import log_event, log_lines
from cxrjax.apps.serving.named_models import ServedModels, open_served
from cxrjax.apps.serving.start import Bounds, answer_until_told
from cxrjax.apps.serving.tokens import check_token, read_tokens
from cxrjax.cli import keep_compiled_programs
from cxrjax.distributed.meshes import make_mesh
from cxrjax.errors import UserError
from cxrjax.evaluation.conformal import PREDICTIONS, Margins, calibrate
from cxrjax.evaluation.flags import mesh_config
from cxrjax.evaluation.run_record import check_same_model
from cxrjax.evaluation.systems.own_model import model_directory, model_settings
from cxrjax.paths import to_path


def serve(flags: ServeFlags) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        UserError: flags, tokens or a model that cannot be used.
    """
    tokens, adapters = read_tokens(flags.token, flags.token_file), _adapters(flags.adapter)
    start = time.monotonic()
    with page_server.listen(flags.host, flags.port) as listening:
        check_token(flags.host, listening.getsockname()[0], tokens)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        keep_compiled_programs()
        log_lines()
        served = _open(flags, adapters)
        bounds = Bounds(
            flags.queue,
            flags.seconds,
            flags.drain_seconds,
            flags.max_megabytes * page_server.MIB,
            flags.image_cache_megabytes * page_server.MIB,
        )
        address = page_server.link(listening, flags.host, "v1").rstrip("/")
        print(f"{address}: {', '.join(served.by_name)}; Ctrl-C stops")
        sys.stdout.flush()
        log_event("compiling", slots=flags.slots)  # what /ready waits for
        engine = answer_until_told(
            served,
            listening,
            bounds,
            tokens,
            flags.allowed_host,
            lambda: log_event("ready", seconds=round(time.monotonic() - start, 1)),
        )
        log_event("ended", questions=dict(engine.counts.questions))


def _open(flags: ServeFlags, adapters: dict[str, Path]) -> ServedModels:
    return open_served(
        model_directory(flags),
        flags.name or flags.named.resolve().name,
        adapters,
        slots=flags.slots,
        longest_prompt=flags.longest_prompt,
        decoding=flags.decoding(),
        step=flags.step,
        source=flags.source,
        prompt=flags.prompt,
        margins=margins_of(flags, flags.conformal) if flags.conformal else None,
        mesh=_mesh(flags.mesh) if flags.mesh else None,
    )


def _adapters(given: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not equals or not re.fullmatch(r"[\w./-]{1,100}", name) or not folder or name in found:
            raise UserError(f"--adapter={one}: expected NAME=DIR, each name once")
        found[name] = to_path(folder)
    return found


def _mesh(text: str) -> Any:
    """Returns the devices that the model is split over.

    Raises:
        UserError: there are too few, or copies are requested.
    """
    asked = mesh_config(text)
    if asked.replica > 1 or asked.data > 1:
        raise UserError(
            f"--mesh={text}: slots are not split over copies of a model; give fsdp and tensor, and "
            "start a server for each copy"
        )
    count, devices = asked.fsdp * asked.tensor, jax.devices()
    if count > len(devices):
        raise UserError(f"--mesh={text}: {count} devices, and there are {len(devices)}")
    return make_mesh(dataclasses.replace(asked, data=1), devices[:count])


def margins_of(flags: ServeFlags, of_others: Path) -> Margins:
    """Returns margins of boxes, found on answers of this model to the same kind of request.

    Raises:
        UserError: unusable files, or answers of another model.
    """
    found = of_others / PREDICTIONS
    if not check_same_model(found, flags, model_settings(flags)):
        raise UserError(f"{found}: nothing tells which model made it; predict its questions again")
    margins, _ = calibrate(of_others, flags.cover, ())
    print(margins.describe())
    return margins
