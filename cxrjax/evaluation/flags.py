"""Flags that say how answers are scored; importing them loads no library."""

import argparse
from collections.abc import Iterable

from cxrjax.paths import in_path

_GT_MODE = (
    "which boxes are true: by_protocol (the default: of VinDr-CXR's readers raw under paper and "
    "wbf under strict, else exact), exact (the answers' own), or of the readers: raw, per_reader, "
    "reader:ID, majority, unanimous, lesion_majority, wbf, nms, components (the last four also "
    "with their IoU, as in wbf:0.4)"
)


def add_benchmark_flags(parser: argparse.ArgumentParser, benchmarks: Iterable[str]) -> None:
    """Declares the flags of `score` and `evaluate` alike, but for --references."""
    add = parser.add_argument
    add("--benchmark", required=True, choices=sorted(benchmarks), help="whose tables")
    add("--gt_mode", metavar="MODE", help=_GT_MODE)
    add("--title", help="of tables and page (default: the benchmark's)")
    add("--resamples", type=int, default=1000, help="bootstrap resamples; 0: none (default 1000)")
    add("--split_sha256", metavar="HASH", help="refuse references whose image ids hash otherwise")
    text = "a build's manifest.json, to check that hash"
    add("--manifest", type=in_path, metavar="FILE", help=text)


def add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of scores that models and packages compute of free text."""
    add = parser.add_argument
    text = (
        "folder of the encoder that BERTScore is computed with, such as roberta-large (needs "
        "PyTorch: the extra bertscore)"
    )
    add("--bertscore_model", type=in_path, metavar="DIR", help=text)
    add("--bertscore_layer", type=int, metavar="N", help="its layer (default: the best known one)")
    text = "LAYER,P,R,F of the package bert-score: rescale by it, as papers mostly do"
    add("--bertscore_baseline", type=in_path, metavar="FILE", help=text)
    text = (
        "metrics of the package radeval, with commas: radgraph, f1chexbert, ratescore, green, "
        "srrbert (benchmarks with free text; their weights must lie on this machine)"
    )
    add("--radeval", type=lambda names: names.split(","), metavar="NAMES", help=text)
    text = "splits Vietnamese text into words: pyvi (default), syllables or vncorenlp"
    add("--segmenter", metavar="NAME", help=text)
