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
from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.errors import optional
from cxrjax.evaluation.systems.model_flags import add_decoding_flags, add_source_flags
from cxrjax.paths import in_path


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the flags; leaves with code 2 where they are unusable."""
    parser = command_parser("serve", __doc__)
    add_source_flags(parser)
    add_decoding_flags(parser, "grammar", "names", "boxes", "max_answer_tokens")
    add = parser.add_argument
    add("--name", help="of that model in requests (default: its folder's name)")
    text = "an adapter on --checkpoint: a run, or a PEFT folder; may be repeated"
    add("--adapter", action="append", default=[], metavar="NAME=DIR", help=text)
    text = "of other patients, to widen boxes by, as of predict"
    add("--conformal", type=in_path, metavar="DIR", help=text)
    add("--cover", type=float, default=0.9, metavar="SHARE", help="of true boxes (0.9)")
    group = parser.add_argument_group("server")
    add = group.add_argument
    add("--host", default="127.0.0.1", help="default 127.0.0.1: this machine alone")
    add("--port", type=int, default=8000, help="default 8000; 0: any free one")
    add("--allowed_host", action="append", metavar="NAME", help="name of a proxy before it")
    add("--token", action="append", default=[], help="that a client must have; may be repeated")
    add("--token_file", type=in_path, metavar="FILE", help="lines NAME=TOKEN; # begins a comment")
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
    for name in ("starlette", "uvicorn", "prometheus_client"):
        optional(name, "serve")
    from cxrjax.apps.serving import run

    run.serve(flags)
