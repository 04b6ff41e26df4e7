"""Boxes that people drew with any tool: one small reader a format, one table, records out of it."""

from cxrjax.paper import Paper

BOXES = Paper(
    "boxes",
    help="images and boxes from any annotation tool",
    builder="cxrjax.apps.annotations.build:BoxesBuilder",
)

# Nothing is known of users' records, so nothing is taken to be allowed.
CUSTOM = Paper(
    "custom",
    title="own records",
    licence="known to whoever holds them",
    terms="data/README.md",
    benchmarks={"own": "cxrjax.papers.vindr_cxr_vqa.own:OWN"},
    related="cxrjax.papers.vindr_cxr_vqa.annotation:related",
    check_record="cxrjax.papers.vindr_cxr_vqa.record_checks:check_record",
)
