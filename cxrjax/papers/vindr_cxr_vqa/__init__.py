"""VinDr-CXR-VQA (arXiv 2511.00504): its table of boxes, its questions, its native file."""
