"""The results page: tables, curves and every single answer with its image, for people to look at.

    python -m cxrjax.report --workdir=runs/demo --out=runs/demo

Reads what `score`, `predict` and `train` left in the work directory (below, DIR); an option names
another place for any of it:

    DIR/metrics.json                    --metrics       required
    DIR/predictions/*.jsonl             --predictions   required; a system is called by the stem
    DIR/data/records/validation.jsonl   --references    required
    the folder above records/           --image_root    what image_path in the records starts from
    tables.md, curves.json, comparisons.json, score.json beside metrics.json
                                        --score         another score.json
    DIR/train/metrics.jsonl             --training_log  else DIR/metrics.jsonl
    DIR/train/run.json                  --run           else DIR/run.json
    DIR/notes.json                      --notes         keys: classes_seen_by_base, remarks

What of the lines from tables.md to notes.json is not there is said on the page. score.json says
which benchmark it is.

Up to 300 images the page is one file, beyond that a file and a folder beside it (--pictures); the
folder also has the radiographs with all their pixels, which are loaded when one looks closely. It
opens from a disk and loads nothing else; `#q=QUESTION_ID` behind its address opens one answer. With
--compare, which may be repeated, the systems of further work directories, scored on the same
references, stand beside the first's as `<its name>/<system>`; and `tuned` of each, or else its last
system, is compared with that of the first by a paired test, as `score` compares.
"""

import argparse
from collections.abc import Sequence

from cxrjax import choices
from cxrjax.cli import command_parser
from cxrjax.paper import benchmark_places
from cxrjax.paths import in_path, out_path

_FILES = ("metrics", "references", "training_log", "run", "score", "notes")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the flags; leaves with code 2 where they are unusable."""
    parser = command_parser("report", __doc__)
    add = parser.add_argument
    add("--workdir", type=in_path, required=True, metavar="DIR")
    text = "a further work directory; may be repeated"
    add("--compare", type=in_path, action="append", default=[], metavar="DIR2", help=text)
    add("--out", type=out_path, required=True, metavar="DIR", help="for index.html")
    add("--title", help="default: the work directory's name")
    add("--predictions", type=in_path, action="append", metavar="FILE", help="may be repeated")
    add("--name", action="append", help="the system's, once for each --predictions, in order")
    for name in _FILES:
        add(f"--{name}", type=in_path, metavar="FILE")
    add("--image_root", type=in_path, metavar="DIR")
    add("--codec", choices=choices.CODECS, help="reads boxes of predictions that are only text")
    text = "default: the one that score.json names"
    add("--benchmark", choices=sorted(benchmark_places()), help=text)
    add("--max_images", type=int, default=5000, help="radiographs shown at most (5000)")
    text = "in the page's file, in a folder beside it, or none: only boxes (no image is read)"
    add("--pictures", choices=choices.PICTURES, default="auto", help=text)
    text = "radiographs stored beside the page with all their pixels, at most (1000)"
    add("--full_pictures", type=int, default=1000, metavar="N", help=text)
    flags = parser.parse_args(argv)
    if flags.max_images < 1:
        parser.error(f"--max_images={flags.max_images}: expected at least 1")
    if flags.full_pictures < 0:
        parser.error(f"--full_pictures={flags.full_pictures}: expected at least 0")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Collects what there is and writes the page."""
    flags = parse_arguments(argv)
    from cxrjax.apps.results.collect import ReportFiles, write_report

    files = ReportFiles(
        flags.workdir,
        predictions=flags.predictions,
        names=flags.name,
        image_root=flags.image_root,
        compare=flags.compare,
        **{name: getattr(flags, name) for name in _FILES},
    )
    page = write_report(
        files,
        flags.out,
        title=flags.title,
        benchmark=flags.benchmark,
        codec=flags.codec,
        max_images=flags.max_images,
        pictures=flags.pictures,
        full_pictures=flags.full_pictures,
    )
    print(page)
