"""CXR-QBA's tags against label tables: Matthews correlation by class and group.

    python -m cxrjax.score --benchmark=cxr_qba_tags --out=DIR --name=ours \\
        --references=mimic-cxr-2.1.0-test-set-labeled.csv --predictions=BUILD/native

A study has a class where a node that says "there" carries one of the class's tags
(reference/label_classes.json; our map, for the authors' is not public), or a more
special finding; it lacks it otherwise. In the table 1 is there; 0 and blank are not. What becomes
of "uncertain" the authors don't say: `--gt_mode=exclude` (the default) leaves the study out for
that class, `positive` and `negative` count it so.

`tags/mcc/<class>`, its mean over a group's classes where it is defined, and `micro` over the
decisions of all classes together; sensitivity, specificity, PPV, NPV and F1 beside it. Which
classes make "CXP-7" is our reading. Both protocols are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cxrjax.evaluation.counted import PAPER
from cxrjax.evaluation.figures import of
from cxrjax.evaluation.scores import ScoreOptions, Scores
from cxrjax.evaluation.text_tables import grid
from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Figure, Formula, Sums
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.papers.cxr_qba.validation.human_labels import load_label_classes, read_label_table
from cxrjax.papers.cxr_qba.validation.studies import (
    OURS,
    PRINTED,
    PROTOCOLS,
    DataValidation,
    Named,
    Row,
    Tags,
    beside,
    how,
    problems_markdown,
    score_studies,
    with_n,
)
from cxrjax.records_io.quality import QualityLog

UNCERTAIN = ("exclude", "positive", "negative")
_BY_CLASS = ("mcc", "sensitivity", "specificity", "ppv", "prevalence")
_DECISIONS = ("tp", "fp", "fn", "tn")
_CHEXPERT, _LONG_TAIL, _ALL = "CXP-13", "LT-only", "CXR-LT"
# Metric -> its function and what it is of.
_METRICS: dict[str, tuple[Callable[..., np.ndarray], tuple[str, ...]]] = {
    "mcc": (classification.matthews, _DECISIONS),
    "sensitivity": (classification.recall, ("tp", "fn")),
    "specificity": (classification.specificity, ("tn", "fp")),
    "ppv": (classification.precision, ("tp", "fp")),
    "npv": (classification.precision, ("tn", "fn")),
    "f1": (classification.f1, ("tp", "fp", "fn")),
}


def score_tags(labels: Path, graphs: Mapping[str, Path], options: ScoreOptions) -> Scores:
    """Tags of scene graphs against a label table.

    Raises:
        UserError: a file is unusable, or no study is in both.
    """
    known = load_label_classes()
    quality = QualityLog()
    table = read_label_table(labels, quality)
    classes = list(table.classes)
    groups = {name: list(g) for name, g in known.groups.items() if set(g) <= set(classes)}
    if _CHEXPERT in groups and _LONG_TAIL in groups:
        groups[_ALL] = groups[_CHEXPERT] + groups[_LONG_TAIL]

    def count(study: str, graph: StudySceneGraph) -> Row:
        tags = Tags(graph)
        row: Row = {}
        for which in classes:
            label = table.studies[study].get(which, 0)
            if label == -1:
                if options.gt_mode == UNCERTAIN[0]:
                    continue
                label = int(options.gt_mode == "positive")
            there = bool(tags.nodes(known.classes[which]))
            decision = ("tp" if there else "fn") if label else ("fp" if there else "tn")
            row[f"{which}/{decision}"] = 1.0
        return row

    pooled = {f"micro/{d}": [f"{which}/{d}" for which in classes] for d in _DECISIONS}
    for name, members in {**{c: [c] for c in classes}, **groups, "micro": classes}.items():
        pooled[f"n/{name}"] = [f"{which}/{d}" for which in members for d in _DECISIONS]
    settings = {
        "benchmark": "cxr_qba_tags",
        "labels": "CXR-LT 2024" if _ALL in groups else "MIMIC-CXR-JPG",
        "classes": classes,
        "groups": groups,
        "uncertain": options.gt_mode,
        "version_of_classes": known.version,
        "labels_set_aside": {reason: n for reason, n in quality.counts().items() if n},
        "labels_joined": dict(quality.warnings),
    }
    figures = dict.fromkeys(PROTOCOLS, _figures(classes, groups))
    return score_studies(
        labels, graphs, options, count, table.studies.keys(), figures, settings, pooled
    )


def _figures(classes: Sequence[str], groups: Mapping[str, Sequence[str]]) -> Named:
    figures: Named = {}
    for metric, (function, parts) in _METRICS.items():
        for which in (*classes, "micro"):
            columns = (f"{which}/{part}" for part in parts)
            figures[f"tags/{metric}/{which}"] = Figure(of(function, *columns), f"n/{which}")
    for which in classes:
        figures[f"tags/prevalence/{which}"] = Figure(_prevalence(which), f"n/{which}")
    for group, members in groups.items():
        figures[f"tags/mcc/{group}"] = Figure(_mean_mcc(members), f"n/{group}")
    return figures


def _prevalence(which: str) -> Formula:
    return lambda sums: classification.ratio(
        sums[f"{which}/tp"] + sums[f"{which}/fn"], sums[f"n/{which}"]
    )


def _mean_mcc(classes: Sequence[str]) -> Formula:
    """Mean over the classes where it is defined; NaN where it is for none."""

    def mean(sums: Sums) -> Float[np.ndarray, " sums"]:
        each = np.stack(
            [classification.matthews(*(sums[f"{c}/{d}"] for d in _DECISIONS)) for c in classes]
        )
        defined = np.isfinite(each)
        return classification.ratio(np.where(defined, each, 0.0).sum(0), defined.sum(0))

    return mean


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
            f"# CXR-QBA's tags\n\n{about} {how(scores)}\n",
            f"## Matthews correlation\n\n{beside(scores, columns, (PAPER,))}",
            *(
                f"## By class, {system}\n\n{_tags_by_class(scores, system, classes)}"
                for system in scores.figures
            ),
            problems_markdown(scores),
        ]
    )


def _tags_by_class(scores: Scores, system: str, classes: Sequence[str]) -> str:
    figures = scores.figures[system][PAPER]
    lines = [["Class", *_BY_CLASS]]
    for name in (*classes, "micro"):
        lines.append([name, *(with_n(figures.get(f"tags/{m}/{name}")) for m in _BY_CLASS)])
    return grid(lines)


CXR_QBA_TAGS = DataValidation(
    "cxr_qba_tags", UNCERTAIN, score_tags, tags_markdown, printed_as="tags/mcc/{}"
)
