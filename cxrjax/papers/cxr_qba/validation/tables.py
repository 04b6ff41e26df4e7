"""The release's tables of MCC of tags and of overlap of boxes, with ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from cxrjax.metrics.bootstrap import Estimate
from cxrjax.scoring.scores import PAPER, STRICT, Scores
from cxrjax.scoring.tables import FEW, Column, about_intervals, cell_with_n, signed
from cxrjax.scoring.text_tables import UNDEFINED, grid

OURS, IMAGENOME = "CXR-QBA", "Chest ImaGenome"
# Label set -> the page's row -> group or overlap -> value as printed.
PRINTED: dict[str, dict[str, dict[str, float]]] = {
    "MIMIC-CXR-JPG": {
        OURS: {"CXP-5": 0.80, "CXP-7": 0.81, "CXP-13": 0.69, "micro": 0.71},
        IMAGENOME: {"CXP-5": 0.78, "CXP-7": 0.80, "CXP-13": 0.66, "micro": 0.67},
    },
    "CXR-LT 2024": {
        OURS: {"CXP-7": 0.65, "CXP-13": 0.57, "LT-only": 0.71, "CXR-LT": 0.64, "micro": 0.67},
        IMAGENOME: {"CXP-7": 0.65, "CXP-13": 0.56, "LT-only": 0.59, "CXR-LT": 0.58, "micro": 0.64},
    },
    "MS-CXR": {
        OURS: {"iou@0.3": 0.51, "iop@0.3": 0.56, "iot@0.3": 0.94},
        IMAGENOME: {"iou@0.3": 0.45, "iop@0.3": 0.48, "iot@0.3": 0.98},
    },
    "REFLACX": {
        OURS: {"iou@0.3": 0.45, "iop@0.3": 0.54, "iot@0.3": 0.87},
        IMAGENOME: {"iou@0.3": 0.42, "iop@0.3": 0.46, "iot@0.3": 0.95},
    },
}
_OVERLAPS = {"iou@0.3": "IoU ≥ 0.3", "iop@0.3": "IoP ≥ 0.3", "iot@0.3": "IoT ≥ 0.3"}
_UNIT = Column("", {}, decimals=2)  # as the page prints them
_BY_CLASS = ("mcc", "sensitivity", "specificity", "ppv", "prevalence")


def tags_markdown(scores: Scores) -> str:
    """tables.md of the tags."""
    settings = scores.settings
    columns = {name: f"tags/mcc/{name}" for name in PRINTED[settings["labels"]][OURS]}
    uncertain = {
        "exclude": "left out for that class",
        "positive": "counted as there",
        "negative": "counted as not there",
    }[settings["uncertain"]]
    about = (
        f"Labels: {settings['labels']}, {len(settings['classes'])} classes; what they call "
        f"uncertain is {uncertain}. Groups are means over classes. The authors publish neither "
        "their map of classes nor what became of uncertain labels."
    )
    classes = settings["classes"]
    return "\n".join(
        [
            f"# CXR-QBA's tags\n\n{about} {_how(scores)}\n",
            f"## Matthews correlation\n\n{_beside(scores, columns, (PAPER,))}",
            *(
                f"## By class, {system}\n\n{_tags_by_class(scores, system, classes)}"
                for system in scores.figures
            ),
            _problems(scores),
        ]
    )


def boxes_markdown(scores: Scores) -> str:
    """tables.md of the boxes."""
    settings = scores.settings
    columns = {overlap: f"boxes/{overlap}/micro" for overlap in _OVERLAPS}
    about = (
        f"Labels: {settings['labels']}, {len(settings['classes'])} classes. Paper: pairs of study "
        "and class with boxes on both sides; strict: a tag without a box counts as one that "
        "overlaps nothing. The authors leave classes out and don't say which."
    )
    lines = [["", *(f"{title}, {s}" for title in _OVERLAPS.values() for s in scores.figures)]]
    for name in settings["classes"]:
        cells = [
            _with_n(scores.figures[system][PAPER][f"boxes/{overlap}/{name}"])
            for overlap in _OVERLAPS
            for system in scores.figures
        ]
        lines.append([name, *cells])
    return "\n".join(
        [
            f"# CXR-QBA's boxes\n\n{about} {_how(scores)}\n",
            f"## Overlap of unions of boxes\n\n{_beside(scores, columns, (PAPER, STRICT))}",
            f"## By class, paper\n\n{grid(lines)}\nIn italics: fewer than {FEW}.\n",
            _problems(scores),
        ]
    )


def tags_rows(scores: Scores) -> list[dict[str, Any]]:
    """The cells of tables.csv of the tags."""
    return _rows(scores, "tags/mcc/{}")


def boxes_rows(scores: Scores) -> list[dict[str, Any]]:
    """The cells of tables.csv of the boxes."""
    return _rows(scores, "boxes/{}/micro")


def _rows(scores: Scores, metric_of: str) -> list[dict[str, Any]]:
    printed = {
        metric_of.format(name): value
        for name, value in PRINTED[scores.settings["labels"]][OURS].items()
    }
    listed = []
    for system, protocols in scores.figures.items():
        for protocol, figures in protocols.items():
            for metric, figure in figures.items():
                paper = printed.get(metric) if protocol == PAPER else None
                listed.append(
                    {
                        "table": scores.settings["labels"],
                        "system": system,
                        "protocol": protocol,
                        "metric": metric,
                        "ours": figure.value,
                        "ci_low": figure.ci_low,
                        "ci_high": figure.ci_high,
                        "n": figure.n,
                        "small": str(figure.n < FEW).lower(),
                        "paper": paper,
                        "difference": (
                            None if paper is None or figure.value is None else figure.value - paper
                        ),
                    }
                )
    return listed


def _beside(scores: Scores, columns: Mapping[str, str], protocols: Sequence[str]) -> str:
    """The page's rows, ours, and the difference from its own scene graphs' row."""
    printed = PRINTED[scores.settings["labels"]]
    lines = [["Scene graphs", "Protocol", *(_OVERLAPS.get(name, name) for name in columns)]]
    for row, values in printed.items():
        lines.append([f"{row} (the page)", "as printed", *(f"{values[n]:.2f}" for n in columns)])
    for system, figures in scores.figures.items():
        for protocol in protocols:
            ours = {name: figures[protocol].get(metric) for name, metric in columns.items()}
            lines.append([system, protocol, *(_with_n(figure) for figure in ours.values())])
            if protocol == PAPER:
                differences = [_difference(f, printed[OURS][name]) for name, f in ours.items()]
                lines.append([f"{system} − {OURS}", "difference", *differences])
    return grid(lines)


def _tags_by_class(scores: Scores, system: str, classes: Sequence[str]) -> str:
    figures = scores.figures[system][PAPER]
    lines = [["Class", *_BY_CLASS]]
    for name in (*classes, "micro"):
        lines.append([name, *(_with_n(figures.get(f"tags/{m}/{name}")) for m in _BY_CLASS)])
    return grid(lines)


def _how(scores: Scores) -> str:
    studies = ", ".join(f"{n:,} ({name})" for name, n in scores.settings["studies"].items())
    return (
        "The page's figures are of the release's scene graphs and of MIMIC-CXR's studies; where "
        "those scored here are others, a difference is no reproduction. "
        f"Studies with labels: {studies}. {about_intervals(scores.settings)}"
    )


def _problems(scores: Scores) -> str:
    lines = [["What was set aside or is missing", *scores.problems]]
    for name in dict.fromkeys(name for counts in scores.problems.values() for name in counts):
        lines.append([name, *(str(counts.get(name, 0)) for counts in scores.problems.values())])
    for name, count in scores.settings["labels_set_aside"].items():
        lines.append([f"labels: {name}", *(str(count) for _ in scores.problems)])
    return f"## Problems\n\n{grid(lines)}"


def _with_n(figure: Estimate | None) -> str:
    if figure is None or figure.value is None:
        return UNDEFINED
    return cell_with_n(_UNIT, figure)


def _difference(figure: Estimate | None, printed: float) -> str:
    value = None if figure is None else figure.value
    return signed(_UNIT, None if value is None else value - printed)
