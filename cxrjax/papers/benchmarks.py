"""The papers' benchmarks: their tables in their own layout, `paper` and `strict` side by side."""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES

if TYPE_CHECKING:
    from cxrjax.scoring.scores import Benchmark


class _OnDemand(Mapping[str, "Benchmark"]):
    """Benchmarks by name, each imported when it is looked up: --help needs the names alone."""

    def __init__(self, places: Mapping[str, tuple[str, str]]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> "Benchmark":
        module, variable = self._places[name]
        return getattr(importlib.import_module(f"cxrjax.papers.{module}"), variable)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


BENCHMARKS = _OnDemand(
    {
        "vindr_cxr_vqa": ("vindr_cxr_vqa.figures", "VINDR_CXR_VQA"),
        "gemex": ("gemex.figures", "GEMEX"),
        "cxr_qba": ("cxr_qba.figures", "CXR_QBA"),
        "vix_ray": ("vix_ray.figures", "VIX_RAY"),
        "ms_cxr": ("ms_cxr.figures", "MS_CXR"),
    }
)

# Data set -> the only labels that its records may have; another is a fault of the record.
CLOSED_CLASSES = {"vindr_cxr_vqa": CLASSES, "synthetic": CLASSES}

# What scores a data set against people's labels, and no model: references are those labels, and
# "predictions" a folder of scene graphs.
DATA_VALIDATIONS = _OnDemand(
    {
        "cxr_qba_boxes": ("cxr_qba.validation.boxes", "CXR_QBA_BOXES"),
        "cxr_qba_tags": ("cxr_qba.validation.tags", "CXR_QBA_TAGS"),
    }
)
