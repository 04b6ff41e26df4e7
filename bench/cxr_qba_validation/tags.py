"""CXR-QBA's tags against label tables: Matthews correlation by class and group.

    python -m bench.cxr_qba_validation --of=tags --out=DIR --name=ours \\
        --labels=mimic-cxr-2.1.0-test-set-labeled.csv --graphs=BUILD/native

A study has a class where a node that says "there" carries one of the class's tags
(reference/label_classes.json; our map, for the authors' is not public), or a more
special finding; it lacks it otherwise. In the table 1 is there; 0 and blank are not. What becomes
of "uncertain" the authors don't say: `--uncertain=exclude` (the default) leaves the study out for
that class, `positive` and `negative` count it so.

`tags/mcc/<class>`, its mean over a group's classes where it is defined, and `micro` over the
decisions of all classes together; sensitivity, specificity, PPV, NPV and F1 beside it. Which
classes make "CXP-7" is our reading. Both protocols are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bench.cxr_qba_validation.human_labels import load_label_classes, read_label_table
from bench.cxr_qba_validation.studies import PROTOCOLS, DataValidation, Labels, Row, tagged
from cxrjax.evaluation.counted import PAPER
from cxrjax.evaluation.figures import of
from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Estimate, Figure, Formula, Sums
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.records_io.quality import QualityLog

# What a mode makes of uncertain labels.
UNCERTAIN = {
    "exclude": "left out for that class",
    "positive": "counted as there",
    "negative": "counted as not there",
}
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


def read_tags(path: Path, uncertain: str, quality: QualityLog) -> Labels:
    """Reads a label table, and counts tags of scene graphs against it.

    Raises:
        UserError: the file is unusable.
    """
    known = load_label_classes()
    table = read_label_table(path, quality)
    classes = list(table.classes)
    groups = {name: list(g) for name, g in known.groups.items() if set(g) <= set(classes)}
    if _CHEXPERT in groups and _LONG_TAIL in groups:
        groups[_ALL] = groups[_CHEXPERT] + groups[_LONG_TAIL]

    def count(study: str, graph: StudySceneGraph) -> Row:
        row: Row = {}
        for which in classes:
            label = table.studies[study].get(which, 0)
            if label == -1 and uncertain == "exclude":
                continue
            true = uncertain == "positive" if label == -1 else bool(label)
            there = bool(tagged(graph, known.classes[which]))
            row[f"{which}/{('tp' if there else 'fn') if true else ('fp' if there else 'tn')}"] = 1.0
        return row

    pooled = {f"micro/{d}": [f"{which}/{d}" for which in classes] for d in _DECISIONS}
    for name, members in {**{c: [c] for c in classes}, **groups, "micro": classes}.items():
        pooled[f"n/{name}"] = [f"{which}/{d}" for which in members for d in _DECISIONS]
    settings = {
        "labels": "CXR-LT 2024" if _ALL in groups else "MIMIC-CXR-JPG",
        "classes": classes,
        "groups": groups,
        "uncertain": uncertain,
        "version_of_classes": known.version,
        "labels_joined": dict(quality.warnings),
    }
    figures = dict.fromkeys(PROTOCOLS, _figures(classes, groups))
    return Labels(count, figures, pooled, settings, table.studies.keys())


def _figures(
    classes: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> dict[str, Figure | Estimate]:
    formulas = {
        f"{metric}/{which}": of(function, *(f"{which}/{part}" for part in parts))
        for metric, (function, parts) in _METRICS.items()
        for which in (*classes, "micro")
    }
    formulas |= {f"prevalence/{which}": _prevalence(which) for which in classes}
    formulas |= {f"mcc/{group}": _mean_mcc(members) for group, members in groups.items()}
    return {f"tags/{name}": Figure(f, f"n/{name.split('/')[1]}") for name, f in formulas.items()}


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


def _about(settings: Mapping[str, Any]) -> str:
    return (
        f"; what they call uncertain is {UNCERTAIN[settings['uncertain']]}. Groups are means over "
        "classes. The authors publish neither their map of classes nor what became of uncertain "
        "labels."
    )


CXR_QBA_TAGS = DataValidation(
    "cxr_qba_tags",
    "CXR-QBA's tags",
    "Matthews correlation",
    tuple(UNCERTAIN),
    read_tags,
    "tags/mcc/{}",
    {f"tags/{m}/{{}}": m for m in ("mcc", "sensitivity", "specificity", "ppv", "prevalence")},
    (PAPER,),
    _about,
)
