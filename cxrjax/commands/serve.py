"""Serves a model over HTTP: OpenAI's protocol, boxes with confidence in a field of their own.

    python -m cxrjax.serve --checkpoint=data/real_base --port=8000
    python -m cxrjax.serve --workdir=runs/vindr --name=vindr --token_file=FILE --host=0.0.0.0
    python -m cxrjax.serve --checkpoint=data/medgemma_4b --adapter=vindr=runs/vindr --adapter=...

/v1/chat/completions and /v1/models are what OpenAI's clients expect; /v1/ground answers many
questions about one image as `predict` writes them; /health, /ready and /metrics are for whoever
looks after it. An image is read once for all of its questions, and questions are answered side by
side. Adapters (training runs, or PEFT folders) share one base, and requests name the one they mean.

Serves this machine alone unless --host says otherwise, which needs a token. Images come with the
request; nothing is fetched. SIGTERM lets answers end that are on their way, and then ends.
docs/serving.md tells more. For research: not a medical device.
"""

import argparse
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.evaluation.systems.model_flags import BOX_READINGS, GRAMMARS
from cxrjax.files import shipped
from cxrjax.input_pipeline.prompts import PROMPTS

_SHORTEST_TOKEN = 16


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("serve", __doc__)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--workdir", type=Path, help="a training run: its best checkpoint")
    model.add_argument("--checkpoint", type=shipped, help="a base model's directory")
    add = parser.add_argument
    add("--name", help="of that model in requests (default: its folder's name)")
    text = "an adapter on --checkpoint: a run, or a PEFT folder; may be repeated"
    add("--adapter", action="append", default=[], metavar="NAME=DIR", help=text)
    add("--step", type=int, help="of a training run, another checkpoint than the best")
    add("--prompt", choices=sorted(PROMPTS), help="prompt format (default: the model's own)")
    add("--source", metavar="NAME", help="of a run on a mixture: ask as this source does")
    add("--grammar", choices=GRAMMARS, help="what answers may be (default: the model's own)")
    add("--names", metavar="A,B,...", help="findings, for the grammar")
    add("--boxes", choices=BOX_READINGS, help="how coordinates are read from location tokens")
    add("--max_answer_tokens", type=int, help="length of an answer, end token included")
    text = "of other patients, to widen boxes by, as of predict"
    add("--conformal", type=Path, metavar="DIR", help=text)
    add("--cover", type=float, default=0.9, metavar="SHARE", help="of true boxes (0.9)")
    group = parser.add_argument_group("server")
    add = group.add_argument
    add("--host", default="127.0.0.1", help="default 127.0.0.1: this machine alone")
    add("--port", type=int, default=8000, help="default 8000; 0: any free one")
    add("--allowed_host", action="append", metavar="NAME", help="name of a proxy before it")
    add("--token", action="append", default=[], help="that a client must have; may be repeated")
    add("--token_file", type=Path, metavar="FILE", help="lines NAME=TOKEN; # begins a comment")
    text = "devices that the model is split over, such as tensor=2 or fsdp=4 (default: one device)"
    add("--mesh", default="", metavar="AXIS=N", help=text)
    add("--slots", type=int, default=16, help="questions that are answered at a time (16)")
    add("--queue", type=int, default=128, help="questions that may wait besides (128)")
    add("--longest_prompt", type=int, default=128, help="tokens of a question, at most (128)")
    add("--seconds", type=float, default=60.0, help="that an answer may take (60)")
    add("--drain_seconds", type=int, default=30, help="that answers have at SIGTERM (30)")
    add("--max_megabytes", type=int, default=50, help="of a request (50)")
    add("--image_cache_megabytes", type=int, default=512, help="of images that were read (512)")
    flags = parser.parse_args(argv)
    for name in ("slots", "queue", "longest_prompt", "seconds", "max_megabytes", "drain_seconds"):
        if not getattr(flags, name) > 0:
            parser.error(f"--{name}={getattr(flags, name)}: expected above 0")
    if flags.image_cache_megabytes < 0:
        parser.error("--image_cache_megabytes: expected 0 or more")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until Ctrl-C or SIGTERM."""
    flags = parse_arguments(argv)
    tokens = read_tokens(flags.token, flags.token_file)
    adapters = _adapters(flags.adapter)
    _check_installed()
    # After the flags: --help stays quick.
    from cxrjax.apps import page_server
    from cxrjax.apps.serving.log import log_event, log_lines
    from cxrjax.apps.serving.named_models import open_served
    from cxrjax.apps.serving.start import Bounds, answer_until_told
    from cxrjax.cli import keep_compiled_programs

    begun = time.monotonic()
    with page_server.listen(flags.host, flags.port) as listening:
        _check_token(flags.host, listening.getsockname()[0], tokens)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        keep_compiled_programs()
        log_lines()
        directory = flags.workdir or flags.checkpoint
        served = open_served(
            directory,
            flags.name or directory.resolve().name,
            adapters,
            slots=flags.slots,
            longest_prompt=flags.longest_prompt,
            decoding=_decoding(flags),
            step=flags.step,
            source=flags.source,
            prompt=flags.prompt,
            margins=_margins(flags) if flags.conformal else None,
            mesh=_mesh(flags.mesh) if flags.mesh else None,
        )
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
            flags.allowed_host or (),
            lambda: log_event("ready", seconds=round(time.monotonic() - begun, 1)),
        )
        log_event("ended", questions=dict(engine.counts.questions))


def read_tokens(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Tokens by the name of who has them.

    Raises:
        UserError: the file is not as it must be, or a token can be guessed.
    """
    from cxrjax.files import reading
    from cxrjax.untrusted.foreign_files import read_text

    tokens = {f"token{number}": token for number, token in enumerate(given, 1)}
    if file is not None:
        with reading(file):
            lines = read_text(file, 2**20).splitlines()
        for number, line in enumerate(lines, 1):
            name, equals, token = (part.strip() for part in line.partition("="))
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not equals or not re.fullmatch(r"[\w.-]{1,40}", name) or name in tokens:
                raise UserError(f"{file}:{number}: expected NAME=TOKEN, each name once")
            tokens[name] = token
        if not tokens:
            raise UserError(f"{file}: no token; expected lines NAME=TOKEN")
    for name, token in tokens.items():
        if not re.fullmatch(rf"[!-~]{{{_SHORTEST_TOKEN},200}}", token):
            raise UserError(
                f"{name}: a token of {len(token)} characters; expected {_SHORTEST_TOKEN} to 200 "
                'visible ones, as of `python -c "import secrets; print(secrets.token_hex())"`'
            )
    return tokens


def _check_token(host: str, address: str, tokens: dict[str, str]) -> None:
    import ipaddress

    if not tokens and not ipaddress.ip_address(address).is_loopback:
        raise UserError(
            f"--host={host}: others can reach it; give --token_file=FILE, or leave --host out"
        )


def _adapters(given: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not equals or not re.fullmatch(r"[\w./-]{1,100}", name) or not folder or name in found:
            raise UserError(f"--adapter={one}: expected NAME=DIR, each name once")
        found[name] = Path(folder)
    return found


def _mesh(text: str) -> Any:
    """Devices that the model is split over.

    Raises:
        UserError: there are too few, or copies are asked for.
    """
    import dataclasses

    import jax

    from cxrjax.distributed.meshes import make_mesh
    from cxrjax.evaluation.systems.model_flags import mesh_config

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


def _decoding(flags: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(flags, name) for name in ("grammar", "boxes", "max_answer_tokens")}
    if flags.names:
        given["names"] = tuple(name.strip() for name in flags.names.split(","))
    return {name: value for name, value in given.items() if value is not None}


def _margins(flags: argparse.Namespace) -> Any:
    """Margins of boxes, found on answers of this model, asked as it will be.

    Raises:
        UserError: unusable files, or answers of another model.
    """
    from cxrjax.evaluation.conformal import PREDICTIONS, calibrate
    from cxrjax.evaluation.run_record import made_otherwise
    from cxrjax.evaluation.systems import resolved_settings
    from cxrjax.evaluation.systems.model_flags import add_model_flags

    # The flags with which `predict` would ask the same model in the same way.
    parser = argparse.ArgumentParser()
    add_model_flags(parser)
    words = [f"--{name}={value}" for name, value in _decoding(flags).items() if name != "names"]
    for name in ("workdir", "checkpoint", "step", "prompt", "source", "names"):
        if getattr(flags, name) is not None:
            words.append(f"--{name}={getattr(flags, name)}")
    asked = parser.parse_args(words)
    found = flags.conformal / PREDICTIONS
    differ = made_otherwise(found, asked, resolved_settings(asked))
    if differ is None or differ:
        raise UserError(
            f"{found}: made by another model or asked otherwise "
            f"({', '.join(differ or ['nothing tells how'])}); predict its questions again with "
            "this model and the same flags"
        )
    margins, _ = calibrate(flags.conformal, flags.cover, ())
    print(margins.describe())
    return margins


def _check_installed() -> None:
    from cxrjax.errors import optional

    for name in ("starlette", "uvicorn", "prometheus_client"):
        optional(name, "serve")
