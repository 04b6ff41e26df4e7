"""The papers' benchmarks: their tables in their own layout, `paper` and `strict` side by side.

Each has a function that imports it: --help needs the names alone.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES

if TYPE_CHECKING:
    from cxrjax.evaluation.benchmark import Benchmark

    Loader = Callable[[], Benchmark[Any]]


def _vindr_cxr_vqa() -> "Benchmark[Any]":
    from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA

    return VINDR_CXR_VQA


def _gemex() -> "Benchmark[Any]":
    from cxrjax.papers.gemex.figures import GEMEX

    return GEMEX


def _cxr_qba() -> "Benchmark[Any]":
    from cxrjax.papers.cxr_qba.figures import CXR_QBA

    return CXR_QBA


def _vix_ray() -> "Benchmark[Any]":
    from cxrjax.papers.vix_ray.figures import VIX_RAY

    return VIX_RAY


def _ms_cxr() -> "Benchmark[Any]":
    from cxrjax.papers.ms_cxr.figures import MS_CXR

    return MS_CXR


def _lungs() -> "Benchmark[Any]":
    from cxrjax.papers.lungs.figures import LUNGS

    return LUNGS


def _cxr_qba_boxes() -> "Benchmark[Any]":
    from cxrjax.papers.cxr_qba.validation.boxes import CXR_QBA_BOXES

    return CXR_QBA_BOXES


def _cxr_qba_tags() -> "Benchmark[Any]":
    from cxrjax.papers.cxr_qba.validation.tags import CXR_QBA_TAGS

    return CXR_QBA_TAGS


def _own() -> "Benchmark[Any]":
    from cxrjax.papers.vindr_cxr_vqa.own import OWN

    return OWN


BENCHMARKS: dict[str, "Loader"] = {
    "vindr_cxr_vqa": _vindr_cxr_vqa,
    "gemex": _gemex,
    "cxr_qba": _cxr_qba,
    "vix_ray": _vix_ray,
    "ms_cxr": _ms_cxr,
    "lungs": _lungs,
    "own": _own,
}

# What scores a data set against people's labels, and no model: references are those labels, and
# "predictions" a folder of scene graphs.
DATA_VALIDATIONS: dict[str, "Loader"] = {
    "cxr_qba_boxes": _cxr_qba_boxes,
    "cxr_qba_tags": _cxr_qba_tags,
}

# Data set -> the only labels that its records may have; another is a fault of the record.
CLOSED_CLASSES = dict.fromkeys(("vindr_cxr_vqa", "synthetic", "grafts", "own_grafts"), CLASSES)
