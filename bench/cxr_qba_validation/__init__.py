"""Compares CXR-QBA's tags and boxes with what people said of the same studies.

    python -m bench.cxr_qba_validation --of=tags --labels=LABELS.csv --graphs=GRAPHS --out=DIR
    python -m bench.cxr_qba_validation --of=boxes --labels=MS_CXR.csv --graphs=GRAPHS --out=DIR

This scores a data set, not a model: the graphs are the release's, or `native/` of a build. The
labels are a label table (tags.py), MS-CXR's file or REFLACX's folder (boxes.py). Writes what
`score` writes: metrics.json, tables.md, tables.csv, score.json.
"""

import argparse
from collections.abc import Sequence

from bench.cxr_qba_validation.boxes import CXR_QBA_BOXES
from bench.cxr_qba_validation.tags import CXR_QBA_TAGS, UNCERTAIN
from cxrjax.evaluation.benchmark import write_scores
from cxrjax.evaluation.run_record import check_folder
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.evaluation.scoring_run import system_names
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.paths import in_path, out_path


def main(argv: Sequence[str] | None = None) -> None:
    """Compares, writes the files and prints the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cxr_qba_validation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--of", required=True, choices=("tags", "boxes"), help="what is compared")
    add("--labels", required=True, type=in_path, help="label table or set of boxes")
    add("--graphs", required=True, type=in_path, action="append", help="folder or zip; repeatable")
    add("--name", action="append", help="of each --graphs (default: its folder's)")
    add("--uncertain", choices=tuple(UNCERTAIN), help="of --of=tags (default: exclude)")
    add("--resamples", type=int, default=1000, help="of the bootstrap (default 1000)")
    add("--seed", type=int, default=0, help="of the bootstrap (default 0)")
    add("--out", required=True, type=out_path, help="folder to write to")
    flags = parser.parse_args(argv)
    if flags.uncertain and flags.of == "boxes":
        parser.error("--uncertain is of --of=tags: boxes have no uncertain labels")
    validation = {"tags": CXR_QBA_TAGS, "boxes": CXR_QBA_BOXES}[flags.of]
    check_folder(flags.out)
    mode = flags.uncertain or validation.gt_modes[0]
    options = ScoreOptions(gt_mode=mode, bootstrap=Bootstrap(flags.resamples, flags.seed))
    graphs = system_names(flags.graphs, flags.name)
    scores = validation.score_files(flags.labels, graphs, options)
    print(write_scores(flags.out, validation, scores))
