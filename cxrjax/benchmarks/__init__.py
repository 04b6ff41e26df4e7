"""The papers' benchmarks: their tables in their own layout, `paper` and `strict` side by side."""

from cxrjax.benchmarks.cxr_qba import CXR_QBA
from cxrjax.benchmarks.cxr_qba_boxes import CXR_QBA_BOXES
from cxrjax.benchmarks.cxr_qba_tags import CXR_QBA_TAGS
from cxrjax.benchmarks.gemex import GEMEX
from cxrjax.benchmarks.scores import Benchmark
from cxrjax.benchmarks.vindr_cxr_vqa import VINDR_CXR_VQA
from cxrjax.benchmarks.vix_ray import VIX_RAY

BENCHMARKS: dict[str, Benchmark] = {
    "vindr_cxr_vqa": VINDR_CXR_VQA,
    "gemex": GEMEX,
    "cxr_qba": CXR_QBA,
    "vix_ray": VIX_RAY,
}

# What scores a data set against people's labels, and no model: references are those labels, and
# "predictions" a folder of scene graphs.
DATA_VALIDATIONS: dict[str, Benchmark] = {
    "cxr_qba_boxes": CXR_QBA_BOXES,
    "cxr_qba_tags": CXR_QBA_TAGS,
}
