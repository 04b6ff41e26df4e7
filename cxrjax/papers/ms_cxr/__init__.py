"""MS-CXR (arXiv 2204.09817): 1,162 phrases of chest X-ray reports and the boxes that they mean."""

from cxrjax.paper import Paper

# Labels and boxes are as published, without words of ours that could contradict them.
MS_CXR = Paper(
    "ms_cxr",
    title="MS-CXR",
    licence="PhysioNet Credentialed Health Data License 1.5.0",
    terms="https://physionet.org/content/ms-cxr/",
    help="MS-CXR's file of phrases",
    builder="cxrjax.papers.ms_cxr.build:MsCxrBuilder",
    benchmarks={"ms_cxr": "cxrjax.papers.ms_cxr.figures:MS_CXR"},
    boxes_in_text=False,
)
