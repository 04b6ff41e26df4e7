"""The share of right answers to yes-or-no questions."""

import dataclasses

from cxrjax.evaluation import benchmark
from cxrjax.evaluation.figures import share
from cxrjax.evaluation.predictions import PROBLEMS
from cxrjax.evaluation.scores import PAPER, STRICT, Counted
from cxrjax.evaluation.tables import load_layout


@dataclasses.dataclass(frozen=True)
class Presence:
    """A question with its key."""

    question_id: str
    cluster: tuple[str, str]
    key: str


def read_presence(record, source):
    return Presence(record.question_id, benchmark.cluster_of(record), record.answer_key)


def count(references, systems, options):
    return benchmark.Evaluated({name: _count(references, a) for name, a in systems.items()}, {})


def _count(references, answers):
    def of_question(question, prediction, counts):
        said = prediction.text.lower() if prediction else ""
        right = said.startswith("yes") == (question.key == "yes")
        return {"asked": 1.0, "right": float(right), "parse_failures": float(not said)}

    counts = benchmark.count_answers(
        references.questions, answers, of_question, PROBLEMS, columns=("parse_failures",)
    )
    failed = share("parse_failures", "asked")
    figures = {"accuracy": share("right", "asked"), "parse_failure_rate": failed}
    return Counted(counts.columns, {PAPER: figures, STRICT: figures}, dict(counts.problems))


ELSEWHERE = benchmark.Benchmark(
    name="elsewhere",
    gt_modes=("exact",),
    layout=load_layout("elsewhere"),
    read=lambda records, source, mode: benchmark.read_references(records, source, read_presence),
    count=count,
)
