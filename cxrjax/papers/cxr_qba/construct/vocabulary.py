"""Lists the regions and findings that reports are read into, beside the release's numbers.

    python -m cxrjax.papers.cxr_qba.construct.vocabulary [--source=REPORTS]

The release says how many it has and publishes no names, so that what differs can be named of ours
alone: what has no box, and with --source the boxes and masks there that are no region's, which the
construction leaves unused.
"""

import collections
from collections.abc import Iterator, Sequence
from pathlib import Path

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.statistics import RELEASE_DEFINITIONS, definition_counts
from cxrjax.radiology_text.definitions import Definitions, load_definitions
from cxrjax.records_io.quality import QualityLog

_HOW = {
    None: "given by a box or mask of its own",
    "part": "a part of another one's box",
    "union": "several masks together",
    "super": "the box around several",
    "grow": "another one's box, enlarged",
    "intersection": "where two masks meet",
}


def table(definitions: Definitions) -> str:
    """Ours, the release's, the difference and its reason; then how regions get their boxes."""
    lines = ["| | ours | release | difference | why |", "|---|---|---|---|---|"]
    for name, count in definition_counts(definitions).items():
        theirs, why = RELEASE_DEFINITIONS[name]
        shown = name.replace("_", " ")
        lines.append(f"| {shown} | {count} | {theirs} | {count - theirs:+} | {why} |")
    found = [one for one in definitions.regions.values() if one.localized]
    how = collections.Counter((one.derive or {}).get("op") for one in found)
    lines += ["", "| a region's box is | regions |", "|---|---|"]
    lines += [f"| {_HOW.get(op, op)} | {count} |" for op, count in how.most_common()]
    without = [one.name for one in definitions.regions.values() if not one.localized]
    lines += ["", f"No box ({len(without)}): {', '.join(without)}."]
    return "\n".join(lines)


def unused_names(source: Path, definitions: Definitions) -> collections.Counter[str]:
    """Names of boxes and masks in a source that are no region's -> images that have them.

    Raises:
        UserError: the source cannot be read.
    """
    known = definitions.regions.keys() | definitions.source_names.keys()

    def names() -> Iterator[str]:
        for study in read_studies(source, QualityLog()):
            for image in study.images:
                yield from {*image.boxes, *image.masks} - known

    return collections.Counter(names())


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the list."""
    parser = command_parser("papers.cxr_qba.construct.vocabulary", __doc__)
    parser.add_argument("--source", type=Path, help="reports with boxes or masks")
    flags = parser.parse_args(argv)
    definitions = load_definitions()
    print(table(definitions))
    if flags.source:
        unused = unused_names(flags.source, definitions)
        print(f"\nGiven there and no region's ({len(unused)}):")
        for name, images in unused.most_common():
            print(f"{name} ({images} images)")


if __name__ == "__main__":
    cli.run(main)
