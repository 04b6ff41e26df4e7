"""GEMeX (arXiv 2411.16778): grounded, explained questions out of reports and regions."""

from cxrjax.paper import Paper

GEMEX = Paper(
    "gemex",
    title="GEMeX",
    licence="PhysioNet Credentialed Health Data License 1.5.0",
    terms="https://physionet.org/content/gemex/",
    help="GEMeX's files, scene graphs or reports",
    builder="cxrjax.papers.gemex.build:GemexBuilder",
    benchmarks={"gemex": "cxrjax.papers.gemex.figures:GEMEX"},
    record_codec="gemex",
    check_record="cxrjax.papers.gemex.record_checks:check_record",
)
