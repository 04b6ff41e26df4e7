"""MS-CXR (arXiv 2204.09817): 1,162 phrases of chest X-ray reports and the boxes that they mean."""
