"""A data set of another package: presence of one finding, with its box."""

from cxrjax.paper import Paper

ELSEWHERE = Paper(
    "elsewhere",
    title="Elsewhere",
    licence="CC0",
    terms="https://example.org/elsewhere",
    credentialed=False,
    help="Elsewhere's table and images",
    builder="elsewhere.build:ElsewhereBuilder",
    benchmarks={"elsewhere": "elsewhere.benchmark:ELSEWHERE"},
    record_codec="llava",
    classes="elsewhere.build:CLASSES",
    check_record="elsewhere.build:check_record",
)
