"""Radiographs with lung masks: Kermany's chest X-rays with V7's masks, or any folder of such."""

from cxrjax.paper import Paper

LUNGS = Paper(
    "lungs",
    title="lungs in Kermany's chest X-rays",
    licence="CC BY 4.0: images Kermany, Zhang, Goldbaum (doi 10.17632/rscbjbr9sj); masks V7 "
    "(v7labs/covid-19-xray-dataset)",
    terms="data/lungs/README.md",
    credentialed=False,
    help="radiographs with lung masks",
    builder="cxrjax.papers.lungs.build:LungsBuilder",
    benchmarks={"lungs": "cxrjax.papers.lungs.figures:LUNGS"},
    check_record="cxrjax.papers.lungs.record_checks:check_record",
)
