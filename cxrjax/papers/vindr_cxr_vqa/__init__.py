"""VinDr-CXR-VQA (arXiv 2511.00504): its table of boxes, its questions, its native file."""

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, NO_FINDING, FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import read_box_table, write_box_table

__all__ = [
    "CLASSES",
    "NO_FINDING",
    "FindingBox",
    "ImageAnnotation",
    "read_box_table",
    "write_box_table",
]
