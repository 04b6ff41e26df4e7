"""CXR-QBA (MIMIC-Ext-CXR-QBA): scene graphs from reports, questions from scene graphs."""

from cxrjax.paper import Paper

CXR_QBA = Paper(
    "cxr_qba",
    title="MIMIC-Ext-CXR-QBA",
    licence="PhysioNet Credentialed Health Data License 1.5.0",
    terms="https://physionet.org/content/mimic-ext-cxr-qba/",
    help="CXR-QBA's release, or reports",
    builder="cxrjax.papers.cxr_qba.build:QbaBuilder",
    benchmarks={"cxr_qba": "cxrjax.papers.cxr_qba.figures:CXR_QBA"},
    boxes_in_text=False,
    related="cxrjax.papers.cxr_qba.record_checks:above",
    check_record="cxrjax.papers.cxr_qba.record_checks:check_record",
    check_study="cxrjax.papers.cxr_qba.record_checks:check_study",
    write_shards_tfds="cxrjax.papers.cxr_qba.construct.tfds_builder:write_qba_tfds",
)
