"""VinDr-CXR-VQA (arXiv 2511.00504): its table of boxes, its questions, its native file."""

from cxrjax.paper import Paper

# VinDr's classes and forms, which simulated radiographs have too.
VINDR_CXR_VQA = Paper(
    "vindr_cxr_vqa",
    title="VinDr-CXR-VQA",
    licence="questions CC BY 4.0; images PhysioNet Credentialed Health Data License 1.5.0, "
    "or VinBigData's terms on Kaggle",
    terms="https://physionet.org/content/vindr-cxr/",
    help="VinDr-CXR's box table, or VinDr-CXR-VQA's release",
    builder="cxrjax.papers.vindr_cxr_vqa.build:VinDrBuilder",
    benchmarks={"vindr_cxr_vqa": "cxrjax.papers.vindr_cxr_vqa.figures:VINDR_CXR_VQA"},
    classes="cxrjax.papers.vindr_cxr_vqa.annotation:CLASSES",
    related="cxrjax.papers.vindr_cxr_vqa.annotation:related",
    check_record="cxrjax.papers.vindr_cxr_vqa.record_checks:check_record",
    check_file="cxrjax.papers.vindr_cxr_vqa.construct.verify:verify_structure",
    review="cxrjax.papers.vindr_cxr_vqa.review",
    tfds="VinDr-CXR-VQA: questions on chest radiographs, answered with boxes (arXiv 2511.00504).",
)
