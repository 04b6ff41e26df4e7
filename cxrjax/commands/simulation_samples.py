"""Writes a page of simulated images to inspect.

    python -m cxrjax.simulation_samples --dataset=phantom --out=page.html
    python -m cxrjax.simulation_samples --dataset=phantom_studies --source=BUILD --out=page.html
    python -m cxrjax.simulation_samples --dataset=grafts --source=FOLDER --out=page.html

phantom: phantoms with the boxes of their findings. phantom_studies: of each study of a finished
build the first frontal view with the boxes of its scene graph, the last view with its findings, and
the report. grafts: radiographs of FOLDER (as for `build --dataset=lungs`) without and with a
simulated lesion of each class, at each strength.
"""

import argparse
from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.paths import in_path, out_path

_SMALLEST = 64


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the flags of the command."""
    parser = command_parser("simulation_samples", __doc__)
    add = parser.add_argument
    add("--dataset", required=True, choices=("phantom", "phantom_studies", "grafts"))
    add("--out", type=out_path, required=True, metavar="FILE", help="HTML to write")
    add("--count", type=int, default=8, help="images, studies, or radiographs a class (default 8)")
    add("--seed", type=int, default=0)
    add("--long_side", type=int, default=400, help="pixels that are simulated (default 400)")
    add("--source", type=in_path, metavar="FOLDER", help="required but for phantom")
    add("--classes", nargs="+", metavar="CLASS", help="of grafts (default: all)")
    add("--strengths", nargs="+", type=float, default=[0.7, 1.0, 1.4], help="of grafts")
    flags = parser.parse_args(argv)
    if flags.long_side < _SMALLEST or flags.count < 1:
        parser.error(f"--long_side must be at least {_SMALLEST}, --count at least 1")
    if flags.seed < 0 or min(flags.strengths) <= 0:
        parser.error("--seed must not be negative, --strengths positive")
    if (flags.source is None) != (flags.dataset == "phantom"):
        parser.error(
            f"--dataset={flags.dataset} {'takes no' if flags.source else 'needs'} --source"
        )
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the page and prints its path."""
    flags = parse_arguments(argv)

    from cxrjax.evaluation.sample_page import write_sample_page  # --help stays quick
    from cxrjax.files import writing
    from cxrjax.simulation import samples
    from cxrjax.simulation.findings import CLASSES
    from cxrjax.simulation.lesions import SYNTHETIC

    title, notes = "Phantoms", ["Rendered; no image is a patient's."]
    if flags.dataset == "phantom":
        sections = samples.phantom_samples(flags.seed, flags.count, flags.long_side)
    elif flags.dataset == "phantom_studies":
        sections = samples.study_samples(flags.source, flags.count)
    else:
        title, notes = SYNTHETIC.capitalize(), ["Lesions are simulated; none is a patient's."]
        chosen = (flags.classes or list(CLASSES), flags.strengths, flags.count)
        sections = samples.lesion_samples(flags.source, *chosen, flags.seed, flags.long_side)
    with writing(flags.out):
        write_sample_page(flags.out, title, notes, sections)
    print(flags.out)
