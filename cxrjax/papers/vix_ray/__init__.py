"""ViX-Ray (arXiv 2603.15513): 5,400 chest radiographs with reports in Vietnamese."""

from cxrjax.paper import Paper

VIX_RAY = Paper(
    "vix_ray",
    title="ViX-Ray",
    licence="not stated",  # in the paper; who holds the data decides
    terms="https://huggingface.co/datasets/MilitaryHospital175/VNMedical_bv175",
    help="ViX-Ray's release",
    builder="cxrjax.papers.vix_ray.build:VixRayBuilder",
    benchmarks={"vix_ray": "cxrjax.papers.vix_ray.figures:VIX_RAY"},
    boxes_in_text=False,
    check_record="cxrjax.papers.vix_ray.record_checks:check_record",
    check_study="cxrjax.papers.vix_ray.record_checks:check_study",
    tfds="ViX-Ray: Vietnamese findings and impressions of chest radiographs.",
)
