"""Making VinDr-CXR-VQA's questions out of readers' boxes."""
