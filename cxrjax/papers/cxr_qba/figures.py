"""Question answering on CXR-QBA: a benchmark of our own.

The paper publishes questions with answers and no benchmark of models on them, so that everything
under `paper` is null; what is measured under `strict` is defined here. (What the authors do
measure, how good tags and boxes of the data set are, is in `validation/`.)

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
* `temporal/...`, `surrogate/weighted_errors`: of the sentences (`scoring/said_errors.py`); what
  other parts of the reference say is there is no false finding.

`n`: questions, but claims, statements and the like where a figure is a share of those.
"""

from collections.abc import Mapping

import numpy as np

from cxrjax.evaluation.benchmark import Answers, Benchmark, Evaluated, SystemCounts, read_references
from cxrjax.evaluation.figures import break_down, of, share
from cxrjax.evaluation.matched_boxes import ScoredAnswers, question_figures
from cxrjax.evaluation.said_errors import said_figures
from cxrjax.evaluation.scores import PAPER, STRICT, Counted, ScoreOptions
from cxrjax.evaluation.tables import all_figures, load_layout
from cxrjax.files import hash_lines
from cxrjax.metrics import classification, text
from cxrjax.metrics.bootstrap import Estimate, Figure, Formula, Sums
from cxrjax.papers.cxr_qba.answers import CLAIMS, STATEMENTS, outcome
from cxrjax.papers.cxr_qba.counts import ceiling_columns, count_system
from cxrjax.papers.cxr_qba.truth import CxrQbaReferences, read_question

GT_MODE = "exact"
# What figures are broken down by, and the figures that are.
ATTRIBUTES = ("strategy", "question_type", "grade", "region", "view")
BROKEN_DOWN = ("findings/f1", "yes_no/balanced_accuracy", "boxes/f1@0.3", "text/rouge_l")


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
        "split_sha256": hash_lines(references.questions),
        "gt_mode": GT_MODE,
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
) -> dict[str, dict[str, Figure | Estimate]]:
    shared = counts.figures()
    headline = {**_findings(), **_yes_no(), **_boxes(), **_text()}
    measured = {**headline, **_errors(), **said_figures()}
    strict: dict[str, Figure | Estimate] = {
        **measured,
        "parse_failure_rate": shared["parse_failure_rate"],
    }
    for attribute, values in attributes.items():
        strict |= break_down({name: headline[name] for name in BROKEN_DOWN}, attribute, values)
    nothing = Estimate(None, None, None, 0)
    return {PAPER: {**dict.fromkeys(measured, nothing), **shared}, STRICT: {**strict, **shared}}


def _harmonic(prefix: str) -> Formula:
    """F1 of precision over claims and recall over statements."""

    def f1(sums: Sums) -> np.ndarray:
        return classification.harmonic_mean(
            classification.ratio(sums[f"{prefix}supported"], sums[f"{prefix}claims"]),
            classification.ratio(sums[f"{prefix}found"], sums[f"{prefix}stated"]),
        )

    return f1


def _findings() -> dict[str, Figure]:
    return {
        "findings/precision": share("supported", "claims"),
        "findings/recall": share("found", "stated"),
        "findings/f1": Figure(_harmonic(""), "questions"),
        "findings/ceiling_precision": share("ceiling/supported", "ceiling/claims"),
        "findings/ceiling_recall": share("ceiling/found", "ceiling/stated"),
        "findings/ceiling_f1": Figure(_harmonic("ceiling/"), "questions"),
        "denials/precision": share("denied/right", "denied/stated"),
        "sides/swapped": share("sides/swapped", "sides/compared"),
        "sides/partial": share("sides/partial", "sides/compared"),
        "severity/accuracy": share("severity/right", "severity/compared"),
        "certainty/accuracy": share("certainty/right", "certainty/compared"),
    }


def _yes_no() -> dict[str, Figure]:
    counts = tuple(f"yes_no/{name}" for name in ("tp", "fp", "fn", "tn"))
    tp, fp, fn, tn = counts
    asked = "yes_no/questions"
    ceiling = tuple(f"ceiling/{name}" for name in counts)

    def predicted(sums: Sums) -> np.ndarray:
        return classification.ratio(sums[tp] + sums[fp], sums[asked])

    def true(sums: Sums) -> np.ndarray:
        return classification.ratio(sums[tp] + sums[fn], sums[asked])

    return {
        "yes_no/accuracy": Figure(of(classification.accuracy, *counts), asked),
        "yes_no/balanced_accuracy": Figure(of(classification.balanced_accuracy, *counts), asked),
        "yes_no/sensitivity": Figure(of(classification.recall, tp, fn), asked),
        "yes_no/specificity": Figure(of(classification.specificity, tn, fp), asked),
        "yes_no/mcc": Figure(of(classification.matthews, *counts), asked),
        "yes_no/predicted_yes": Figure(predicted, asked),
        "yes_no/true_yes": Figure(true, asked),
        "yes_no/undecided": share("yes_no/undecided", asked),
        "yes_no/ceiling_balanced_accuracy": Figure(
            of(classification.balanced_accuracy, *ceiling), asked
        ),
    }


def _boxes() -> dict[str, Figure]:
    figures = question_figures()
    for name in ("iou", "iop", "iot"):
        column = f"region/{name}"
        figures |= {
            f"boxes/{name}": share(column, f"{column}/n"),
            f"boxes/{name}@0.3": share(f"{column}@0.3", f"{column}/n"),
        }
    return figures


def _text() -> dict[str, Figure]:
    return {
        "text/rouge_l": share("rougeL", "texts"),
        "text/bleu": Figure(text.bleu, "texts"),
    }


def _errors() -> dict[str, Figure]:
    return {
        **{f"errors/{name}": share(f"claim/{name}", "claims") for name in CLAIMS},
        **{f"errors/statement_{name}": share(f"statement/{name}", "stated") for name in STATEMENTS},
        "hallucination/rate": share("normal/hallucinated", "normal/questions"),
        "hallucination/claims_per_question": share("normal/claims", "normal/questions"),
    }


CXR_QBA = Benchmark(
    name="cxr_qba",
    gt_modes=(GT_MODE,),
    layout=load_layout(str(__package__)),
    read=lambda records, source, gt_mode: read_references(records, source, read_question),
    count=count,
    outcome=outcome,
    free_text=lambda record: True,
    uses=frozenset({"codec", "judge", "radeval"}),
    own_rows=lambda scores: [
        {name: cell for name, cell in row.items() if name not in ("small", "difference")}
        for row in all_figures(scores, lambda metric: metric.split("/")[0])
    ],
)
