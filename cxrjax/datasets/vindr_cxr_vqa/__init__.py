"""VinDr-CXR-VQA (arXiv 2511.00504): its table of boxes, its questions, its native file."""

from cxrjax.datasets.vindr_cxr_vqa.annotation import Finding, ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.box_table import read_box_table, write_box_table
from cxrjax.datasets.vindr_cxr_vqa.classes import CLASSES, NO_FINDING
from cxrjax.datasets.vindr_cxr_vqa.construct import (
    Construction,
    construct_dense,
    construct_vqa,
)

__all__ = [
    "CLASSES",
    "NO_FINDING",
    "Construction",
    "Finding",
    "ImageAnnotation",
    "construct_dense",
    "construct_vqa",
    "read_box_table",
    "write_box_table",
]
