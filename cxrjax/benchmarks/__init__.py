"""The papers' benchmarks: their tables in their own layout, `paper` and `strict` side by side."""

from cxrjax.benchmarks.gemex import GEMEX
from cxrjax.benchmarks.scores import Benchmark
from cxrjax.benchmarks.vindr_cxr_vqa import VINDR_CXR_VQA
from cxrjax.benchmarks.vix_ray import VIX_RAY

BENCHMARKS: dict[str, Benchmark] = {
    "vindr_cxr_vqa": VINDR_CXR_VQA,
    "gemex": GEMEX,
    "vix_ray": VIX_RAY,
}
