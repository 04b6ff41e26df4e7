"""The tables of our question-answering benchmark on CXR-QBA; the paper has none to stand beside."""

from typing import Any

from cxrjax.papers.cxr_qba.claims import CLAIMS, STATEMENTS
from cxrjax.papers.cxr_qba.counts import QBA_PROBLEMS
from cxrjax.papers.cxr_qba.truth import ATTRIBUTES
from cxrjax.scoring.scores import STRICT, Scores
from cxrjax.scoring.tables import (
    FEW,
    PLAIN,
    about_intervals,
    about_references,
    failures_markdown,
    with_interval,
)
from cxrjax.scoring.text_tables import grid

NOTE = (
    "The paper publishes no benchmark of models: every figure here is of our own definition "
    "(cxrjax/papers/cxr_qba/figures.py), and under `paper` all are null."
)
# Table -> metric -> what it is called.
TABLES: dict[str, dict[str, str]] = {
    "Findings": {
        "findings/precision": "Precision: findings said to be there that are borne out",
        "findings/recall": "Recall: stated findings that are named",
        "findings/f1": "F1",
        "findings/ceiling_f1": "F1 of the reference's own sentences (ceiling of reading by rules)",
        "denials/precision": "Denials that the reference shares",
        "sides/swapped": "Sides swapped, of those that both name (lower is better)",
        "sides/partial": "One side for both or both for one",
        "severity/accuracy": "Severity right, where both name one",
        "certainty/accuracy": "Certainty right, of findings that both name",
    },
    "Yes or no": {
        "yes_no/balanced_accuracy": "Balanced accuracy",
        "yes_no/mcc": "Matthews correlation",
        "yes_no/accuracy": "Accuracy",
        "yes_no/predicted_yes": "Share of yes, predicted",
        "yes_no/true_yes": "Share of yes, true",
        "yes_no/undecided": "Neither yes nor no",
        "yes_no/ceiling_balanced_accuracy": "Balanced accuracy of the reference's own sentences",
    },
    "Boxes": {
        "boxes/f1@0.3": "F1, one to one, IoU > 0.3",
        "boxes/precision@0.3": "Precision",
        "boxes/recall@0.3": "Recall",
        "boxes/miou_tp@0.3": "Mean IoU of true positives",
        "boxes/f1@0.5": "F1, one to one, IoU > 0.5",
        "boxes/iou": "Mean IoU of unions",
        "boxes/iop": "Mean share of the predicted union that is right (IoP)",
        "boxes/iot": "Mean share of the true union that is found (IoT)",
        "boxes/iou@0.3": "Questions with IoU of unions > 0.3",
        "boxes/per_question_without": "Boxes per question that has none",
    },
    "Text": {"text/rouge_l": "ROUGE-L", "text/bleu": "BLEU-4"},
    "Errors, share of claims": {f"errors/{name}": text for name, text in CLAIMS.items()},
    "Errors, share of statements": {
        f"errors/statement_{name}": text for name, text in STATEMENTS.items()
    },
    "Where the reference finds nothing": {
        "hallucination/rate": "Answers that claim something",
        "hallucination/claims_per_question": "Claims per answer",
    },
}
BREAKDOWN = {
    "findings/f1": "findings F1",
    "yes_no/balanced_accuracy": "yes or no, balanced accuracy",
    "boxes/f1@0.3": "boxes F1@0.3",
    "text/rouge_l": "ROUGE-L",
}
_ROWS = 40  # of a breakdown that people read; tables.csv has all


def markdown(scores: Scores) -> str:
    """tables.md."""
    systems = list(scores.figures)
    parts = [_heading(scores)]
    for title, metrics in TABLES.items():
        lines = [["Strict", *systems]]
        for metric, name in metrics.items():
            figures = (scores.figures[system][STRICT][metric] for system in systems)
            lines.append([name, *(with_interval(PLAIN, figure) for figure in figures)])
        parts.append(f"## {title}\n\n{grid(lines)}")
    parts += [_breakdown(scores, attribute) for attribute in ATTRIBUTES]
    parts.append(failures_markdown(scores, QBA_PROBLEMS))
    return "\n".join(parts)


def rows(scores: Scores) -> list[dict[str, Any]]:
    """The cells of tables.csv."""
    listed = []
    for system, protocols in scores.figures.items():
        for protocol, figures in protocols.items():
            for metric, figure in figures.items():
                listed.append(
                    {
                        "table": metric.split("/")[0],
                        "system": system,
                        "protocol": protocol,
                        "metric": metric,
                        **{"ours" if k == "value" else k: v for k, v in figure.to_json().items()},
                        "paper": None,
                    }
                )
    return listed


def _heading(scores: Scores) -> str:
    settings = scores.settings
    return (
        f"# CXR-QBA, question answering\n\n{about_references(settings)} {NOTE} "
        f"{about_intervals(settings)} {settings['findings_without_definition']:,} tags of the "
        "references name findings that the definitions do not have, which no answer can be read to "
        "name.\n"
    )


def _breakdown(scores: Scores, attribute: str) -> str:
    systems = list(scores.figures)
    values = scores.settings["breakdowns"][attribute]
    first = scores.figures[systems[0]][STRICT]
    size = {value: first[f"by_{attribute}/text/rouge_l/{value}"].n for value in values}
    shown = sorted(values, key=lambda value: (-size[value], value))[:_ROWS]
    heading = [f"{name}, {s}" for name in BREAKDOWN.values() for s in systems]
    lines = [[ATTRIBUTES[attribute], "questions", *heading]]
    for value in sorted(shown):
        cells = [value, f"{size[value]:,}"]
        for metric in BREAKDOWN:
            for system in systems:
                figure = scores.figures[system][STRICT][f"by_{attribute}/{metric}/{value}"]
                cell = with_interval(PLAIN, figure)
                cells.append(f"*{cell}*" if figure.n < FEW else cell)
        lines.append(cells)
    left_out = len(values) - len(shown)
    more = f" {left_out} smaller groups stand in tables.csv." if left_out else ""
    return f"## By {ATTRIBUTES[attribute]}\n\n{grid(lines)}\nIn italics: fewer than {FEW}.{more}\n"
