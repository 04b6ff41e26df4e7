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

from collections.abc import Sequence

from cxrjax.apps.serving.flags import NOT_SERVED, ServeFlags
from cxrjax.cli import command_parser
from cxrjax.errors import optional
from cxrjax.flags import parse_options


def parse_arguments(argv: Sequence[str] | None = None) -> ServeFlags:
    """Returns the options; leaves with code 2 where they are unusable."""
    return parse_options(
        command_parser("serve", __doc__),
        ServeFlags,
        argv,
        one_of=("workdir", "checkpoint"),
        without=NOT_SERVED,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until Ctrl-C or SIGTERM."""
    flags = parse_arguments(argv)
    for name in ("starlette", "uvicorn", "prometheus_client"):
        optional(name, "serve")
    from cxrjax.apps.serving.run import serve

    serve(flags)
