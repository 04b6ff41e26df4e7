"""A page to try models in: an X-ray and a question in; answers, boxes and probabilities out.

    python -m cxrjax.demo_app [--base=data/real_base] [--tuned=runs/demo/train] [--port=7860]

Shows what a base and a tuned model say, side by side: the answer, its boxes on the picture and in
pixels, its confidence, and the probability of every token. PNG, JPEG and DICOM files; synthetic
radiographs to begin with. Serves who opens the link that it prints, on this machine alone unless
--host says otherwise, and asks nothing of the network. `make demo` makes the models that it shows;
`make try` installs what it needs and starts it. For research: not a medical device.
"""

import argparse
import contextlib
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cxrjax.cli import command_parser, run
from cxrjax.files import shipped


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
    add("--host", default="127.0.0.1", help="default 127.0.0.1: this machine alone")
    add("--allowed_host", action="append", metavar="NAME", help="name of a proxy before the page")
    add("--port", type=int, default=7860, help="default 7860; 0: any free one")
    add("--max_megabytes", type=int, default=200, help="of an upload (default 200)")
    flags = parser.parse_args(argv)
    if flags.max_megabytes < 1:
        parser.error(f"--max_megabytes={flags.max_megabytes}: expected at least 1")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Serves the page until Ctrl-C."""
    flags = parse_arguments(argv)
    # Each where it is needed: --help stays quick, and so does what is said without Gradio.
    from cxrjax.pages.demo.page import import_gradio

    # Uploads are removed however the process is asked to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import_gradio(folder / "uploads")
        from cxrjax.pages import serving
        from cxrjax.pages.demo import answers, page

        with serving.listen(flags.host, flags.port) as listening:
            models = answers.open_models(flags.base, flags.tuned)
            hosts = flags.allowed_host or [flags.host]
            page.serve(models, listening, folder, flags.max_megabytes, hosts)


if __name__ == "__main__":
    run(main)
