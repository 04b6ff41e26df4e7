"""A page to try models in: an X-ray and a question in; answers, boxes and probabilities out.

    python -m cxrjax.demo_app [--base=data/real_base] [--tuned=runs/demo/train] [--port=7860]
    python -m cxrjax.demo_app --server=http://127.0.0.1:8000 [--models=vindr,other]

Shows what a base and a tuned model say, side by side: the answer, its boxes on the image and in
pixels, its confidence, and the probability of every token. PNG, JPEG and DICOM files; synthetic
radiographs to begin with. It asks a server of models (`cxrjax.serve`): one that it starts for
itself on this machine, or the one that --server names, with the token in CXRJAX_LM_API_KEY where it
wants one. Serves who opens the link that it prints, on this machine alone unless --host says
otherwise, and asks nothing else of the network. `make demo` makes the models that it shows; `make
try` installs what it needs and starts it. For research: not a medical device.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import command_parser
from cxrjax.files import shipped
from cxrjax.paths import in_path


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("demo_app", __doc__)
    add = parser.add_argument
    add(
        "--base",
        type=shipped,
        default="data/real_base",
        metavar="DIR",
        help="base directory, or a run (default data/real_base)",
    )
    add(
        "--tuned",
        type=in_path,
        default=Path("runs/demo/train"),
        metavar="DIR",
        help="workdir of a training run (default runs/demo/train, which `make demo` leaves)",
    )
    text = "address of a server of models to ask, in place of --base and --tuned"
    add("--server", metavar="URL", help=text)
    add("--models", default="", metavar="A,B", help="of --server, by name (default: the first two)")
    add("--allow_sending", action="store_true", help="pictures may go to a server elsewhere")
    add("--host", default="127.0.0.1", help="default 127.0.0.1: this machine alone")
    add("--allowed_host", action="append", metavar="NAME", help="name of a proxy before the page")
    add("--port", type=int, default=7860, help="default 7860; 0: any free one")
    add("--max_megabytes", type=int, default=200, help="of an upload (default 200)")
    flags = parser.parse_args(argv)
    if flags.max_megabytes < 1:
        parser.error(f"--max_megabytes={flags.max_megabytes}: expected at least 1")
    if flags.models and not flags.server:
        parser.error(f"--models={flags.models}: names models of a --server, and there is none")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Serves the page until Ctrl-C."""
    flags = parse_arguments(argv)
    from cxrjax.apps.demo.run import serve

    serve(flags)
