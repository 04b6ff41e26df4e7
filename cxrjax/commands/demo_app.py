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

from collections.abc import Sequence

from cxrjax.apps.demo.flags import DemoFlags
from cxrjax.cli import command_parser
from cxrjax.flags import parse_options


def parse_arguments(argv: Sequence[str] | None = None) -> DemoFlags:
    """Returns the options; leaves with code 2 where they are unusable."""
    return parse_options(command_parser("demo_app", __doc__), DemoFlags, argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Serves the page until Ctrl-C."""
    flags = parse_arguments(argv)
    from cxrjax.apps.demo.run import serve

    serve(flags)
