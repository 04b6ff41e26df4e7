"""Question answering on CXR-QBA: a benchmark of our own.

The paper publishes questions with answers and no benchmark of models on them, so that everything
under `paper` is null; what is measured under `strict` is defined here. (What the authors do
measure, how good tags and boxes of the data set are, is in `bench/cxr_qba_validation`.)

A system answers in sentences with boxes. Its text is read by rules (`radiology_text`: negation,
doubt, side, severity, region), and held against the structured parts of the reference:

* `findings/...`: precision is the share of findings said to be there that the reference bears out
  (any of its parts, or something more special); recall the share of those that the reference's main
  answers state that the answer names too; F1 their harmonic mean. Micro, over all questions.
  `findings/ceiling_...` is what the reference's own sentences get: what reading by rules costs.
* `denials/precision`: of findings said to be absent of which the reference speaks, the share that
  it calls absent.
* `sides/swapped`: of findings borne out for which both name a side, those on the opposite one.
  `severity/accuracy`: where both name one. `certainty/accuracy`: of findings that both name.
* `yes_no/...`: yes-or-no questions (is_..., has_...). "Is it normal?" counts as asked. Who says
  neither is wrong, and counted in `undecided`. `predicted_yes` beside `true_yes` shows a bias.
* `boxes/...`: boxes of the answer one to one with those of the main answers, without classes, IoU >
  0.3 and 0.5; `boxes/iou` and its kin: of the unions of boxes, mean over the questions where they
  are defined, and the share above 0.3.
* `text/...`: ROUGE-L and BLEU-4 of the sentences without boxes. They reward form; "no effusion" is
  near "effusion".
* `parse_failure_rate`: answers whose boxes cannot be read; that there is none is a failure only
  where the reference has some.
* `errors/...`: claims by what is wrong with them, and statements that were missed or contradicted
  (`answers.py`). `hallucination/...`: claims on questions where the reference finds nothing.
* `temporal/...`, `surrogate/weighted_errors`: of the sentences
  (`text_scores/assertion_errors.py`); a finding that other parts of the reference affirm is not
  false.

`n`: questions, but claims, statements and the like where a figure is a share of those.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from cxrjax.evaluation.benchmark import Answers, Benchmark, Evaluated, SystemCounts, read_references
from cxrjax.evaluation.counted import PAPER, STRICT, Counted
from cxrjax.evaluation.figure_lines import Figures, make_figures
from cxrjax.evaluation.figures import NO_FIGURE
from cxrjax.evaluation.layout import Layout, all_figures, load_layout
from cxrjax.evaluation.matched_boxes import ScoredAnswers
from cxrjax.evaluation.scores import ScoreOptions, Scores
from cxrjax.files import hash_lines
from cxrjax.papers.cxr_qba.answers import outcome
from cxrjax.papers.cxr_qba.counts import ceiling_columns, count_system
from cxrjax.papers.cxr_qba.truth import CxrQbaReferences, read_question
from cxrjax.records import QARecord

# What the report does not mention has no truth: such questions are left out, or asked for.
GT_MODES = ("exact", "with_unmentioned")


class _Layout(Layout):
    """Lists, and a line of tables.csv for every figure: no paper has tables to follow."""

    def rows(self, scores: Scores) -> list[dict[str, Any]]:
        return [
            {name: cell for name, cell in row.items() if name not in ("small", "difference")}
            for row in all_figures(scores, lambda metric: metric.split("/")[0])
        ]


LAYOUT = load_layout(str(__package__), _Layout)
ATTRIBUTES = ("strategy", "question_type", "grade", "region", "view")


def count(
    references: CxrQbaReferences, systems: Mapping[str, Answers], options: ScoreOptions
) -> Evaluated:
    """All systems counted."""
    questions = references.questions.values()
    ceiling = ceiling_columns(references)
    attributes = {name: [q.attributes[name] for q in questions] for name in ATTRIBUTES}
    counted = {}
    for name, answers in systems.items():
        scored = ScoredAnswers()
        counts = count_system(references, answers, options.box_codec, scored)
        figures = _figures(counts, attributes)
        boxes = scored.counted(references.clusters, options.bootstrap)
        figures[STRICT] |= boxes.figures
        counted[name] = Counted(
            {**counts.columns, **ceiling, **boxes.columns},
            figures,
            dict(counts.problems),
            boxes.curves,
            boxes.ranked,
        )
    settings = {
        "gt_mode": options.gt_mode,
        "questions_left_out": len(references.left_out),
        "split_sha256": hash_lines(references.questions),
        "codec": options.box_codec.name if options.box_codec else None,
        "findings_without_definition": sum(q.unknown_findings for q in questions),
        "breakdowns": {
            name: sorted({value for value in values if value is not None})
            for name, values in attributes.items()
        },
    }
    return Evaluated(counted, settings, attributes)


def _figures(
    counts: SystemCounts, attributes: Mapping[str, list[str | None]]
) -> dict[str, Figures]:
    shared = counts.figures()
    strict = make_figures(LAYOUT.lines, attributes, protocols=[STRICT])[STRICT]
    measured = [name for name in strict if not name.startswith("by_")]
    return {PAPER: {**dict.fromkeys(measured, NO_FIGURE), **shared}, STRICT: {**strict, **shared}}


def _read(records: Iterable[QARecord], source: str, gt_mode: str) -> CxrQbaReferences:
    unmentioned = gt_mode == "with_unmentioned"
    reader = functools.partial(read_question, unmentioned=unmentioned)
    return read_references(records, source, reader)


CXR_QBA = Benchmark(
    "cxr_qba",
    LAYOUT,
    read=_read,
    count=count,
    outcome=outcome,
    gt_modes=GT_MODES,
)
