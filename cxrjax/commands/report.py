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

from collections.abc import Sequence

from cxrjax.apps.results.flags import ReportFlags
from cxrjax.cli import command_parser
from cxrjax.flags import parse_options
from cxrjax.paper import benchmark_places


def parse_arguments(argv: Sequence[str] | None = None) -> ReportFlags:
    """Returns the options; leaves with code 2 where they are unusable."""
    choices = {"benchmark": benchmark_places()}
    return parse_options(command_parser("report", __doc__), ReportFlags, argv, choices=choices)


def main(argv: Sequence[str] | None = None) -> None:
    """Collects what there is and writes the page."""
    flags = parse_arguments(argv)
    from cxrjax.apps.results.collect import write_report

    print(write_report(flags))
