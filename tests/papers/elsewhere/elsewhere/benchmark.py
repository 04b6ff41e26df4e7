"""The share of right answers to yes-or-no questions."""

from typing import NamedTuple

from cxrjax.evaluation import benchmark
from cxrjax.evaluation.counted import Counted
from cxrjax.evaluation.figure_lines import make_figures
from cxrjax.evaluation.layout import load_layout
from cxrjax.evaluation.predictions import PROBLEMS

LAYOUT = load_layout("elsewhere")


class Presence(NamedTuple):
    """A question with its key."""

    cluster: tuple[str, str]
    key: str


def read_presence(record, source):
    return Presence(benchmark.cluster_of(record), record.answer_key)


def count(references, systems, options):
    return benchmark.Evaluated({name: _count(references, a) for name, a in systems.items()}, {})


def _count(references, answers):
    def of_question(question, prediction, counts):
        said = prediction.text.lower() if prediction else ""
        right = said.startswith("yes") == (question.key == "yes")
        return {"questions": 1.0, "right": float(right), "parse_failures": float(not said)}

    counts = benchmark.count_answers(
        references.questions, answers, of_question, PROBLEMS, columns=("parse_failures",)
    )
    return Counted(counts.columns, make_figures(LAYOUT.lines), dict(counts.problems))


ELSEWHERE = benchmark.Benchmark(
    name="elsewhere",
    gt_modes=("exact",),
    layout=LAYOUT,
    read=lambda records, source, mode: benchmark.read_references(records, source, read_presence),
    count=count,
)
