"""A page to try models in: an X-ray and a question in; answers, boxes and probabilities out.

    python -m cxrjax.demo_app [--base=data/real_base] [--tuned=runs/demo/train] [--port=7860]
    python -m cxrjax.demo_app --server=http://127.0.0.1:8000 [--models=vindr,other]

Shows what a base and a tuned model say, side by side: the answer, its boxes on the picture and in
pixels, its confidence, and the probability of every token. PNG, JPEG and DICOM files; synthetic
radiographs to begin with. It asks a server of models (`cxrjax.serve`): one that it starts for
itself on this machine, or the one that --server names, with the token in CXRJAX_LM_API_KEY where it
wants one. Serves who opens the link that it prints, on this machine alone unless --host says
otherwise, and asks nothing else of the network. `make demo` makes the models that it shows; `make
try` installs what it needs and starts it. For research: not a medical device.
"""

import argparse
import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cxrjax.cli import command_parser
from cxrjax.files import shipped

if TYPE_CHECKING:
    from cxrjax.apps.demo import answers

# Few programs: somebody waits for the page.
_SHAPES = {"slots": 2, "longest_prompt": 128, "least_bucket": 64}


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
        type=Path,
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
    # Each where it is needed: --help stays quick, and so does what is said without Gradio.
    from cxrjax.apps.demo.page import import_gradio

    # Uploads are removed however the process is asked to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import_gradio(folder / "uploads")
        from cxrjax.apps import page_server
        from cxrjax.apps.demo import page

        with page_server.listen(flags.host, flags.port) as listening, _models(flags) as models:
            hosts = flags.allowed_host or [flags.host]
            page.serve(models, listening, folder, flags.max_megabytes, hosts)


@contextlib.contextmanager
def _models(flags: argparse.Namespace) -> Iterator["answers.Models"]:
    """The models that are asked, and the servers of this process where they are none elsewhere.

    Raises:
        UserError: no such server or models.
    """
    from cxrjax.apps.demo import answers

    if flags.server:
        token = os.environ.get("CXRJAX_LM_API_KEY", "")
        server = answers.ServerAddress(flags.server, token, flags.allow_sending)
        yield answers.models_of(server, [name for name in flags.models.split(",") if name])
        return
    from cxrjax.apps.page_server import MIB
    from cxrjax.apps.serving.pair import open_pair
    from cxrjax.apps.serving.start import Bounds, answering_beside
    from cxrjax.cli import keep_compiled_programs

    keep_compiled_programs()
    # A picture is a third longer in a request than on disk.
    bounds = Bounds(seconds=600, body_bytes=(flags.max_megabytes * 4 // 3 + 1) * MIB)
    with contextlib.ExitStack() as running:
        asked: dict[str, answers.AskedModel] = {}
        for served in open_pair(flags.base, flags.tuned, **_SHAPES):
            server = answers.ServerAddress(*running.enter_context(answering_beside(served, bounds)))
            asked |= {name: answers.AskedModel(server, name) for name in served.by_name}
        yield answers.Models(asked)
