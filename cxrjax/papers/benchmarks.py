"""The papers' benchmarks: their tables in their own layout, `paper` and `strict` side by side."""

from cxrjax.papers.cxr_qba.figures import CXR_QBA
from cxrjax.papers.cxr_qba.validation.boxes import CXR_QBA_BOXES
from cxrjax.papers.cxr_qba.validation.tags import CXR_QBA_TAGS
from cxrjax.papers.gemex.figures import GEMEX
from cxrjax.papers.ms_cxr.figures import MS_CXR
from cxrjax.papers.vindr_cxr_vqa.classes import CLASSES
from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA
from cxrjax.papers.vix_ray.figures import VIX_RAY
from cxrjax.scoring.scores import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    "vindr_cxr_vqa": VINDR_CXR_VQA,
    "gemex": GEMEX,
    "cxr_qba": CXR_QBA,
    "vix_ray": VIX_RAY,
    "ms_cxr": MS_CXR,
}

# Data set -> the only labels that its records may have; another is a fault of the record.
CLOSED_CLASSES = {"vindr_cxr_vqa": CLASSES, "synthetic": CLASSES}

# What scores a data set against people's labels, and no model: references are those labels, and
# "predictions" a folder of scene graphs.
DATA_VALIDATIONS: dict[str, Benchmark] = {
    "cxr_qba_boxes": CXR_QBA_BOXES,
    "cxr_qba_tags": CXR_QBA_TAGS,
}
