"""Grounded reports: findings as sentences with boxes (arXiv 2406.04449, 2411.05085)."""

import dataclasses

from cxrjax.paper import Paper

GROUNDED_REPORTS = Paper(
    "grounded_reports",
    title="Grounded reports",
    licence="that of the source: PadChest-GR's, PhysioNet's, or known to whoever holds it",
    terms="data/grounded_reports/README.md",
    help="reports with boxes: PadChest-GR, CXR-QBA's scene graphs, simulated lesions",
    builder="cxrjax.papers.grounded_reports.build:GroundedReportsBuilder",
    benchmarks={"grounded_reports": "cxrjax.papers.grounded_reports.figures:GROUNDED_REPORTS"},
    record_codec="paligemma",
)

SIMULATED_REPORTS = Paper(
    "simulated_reports",
    title="Grounded reports of simulated lesions in Kermany's chest X-rays, or of phantoms",
    made="simulated findings and reports",
    licence="CC BY 4.0: images Kermany, Zhang, Goldbaum (doi 10.17632/rscbjbr9sj); masks V7; "
    "changed: lesions are simulated",
    terms=GROUNDED_REPORTS.terms,
    credentialed=False,
    record_codec="paligemma",
)

OWN_SIMULATED_REPORTS = dataclasses.replace(
    SIMULATED_REPORTS,
    name="own_simulated_reports",
    title="Grounded reports of simulated lesions in user radiographs",
    licence="that of the radiographs, known to whoever holds them",
    credentialed=True,
)
