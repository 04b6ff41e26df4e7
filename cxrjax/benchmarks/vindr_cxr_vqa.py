"""VinDr-CXR-VQA (arXiv 2511.00504v2): Tables 4, 5 and 6 under two protocols.

`paper` is the paper's wording; `strict` is what the wording should have been.

Question answering (V28, A9), over the classes that answers say are there:

* both: micro precision, recall and F1 of each question's set of classes;
* `paper`: accuracy is null; `accuracy_as_printed` is F1, as in the paper's column;
* `strict`: accuracy, balanced accuracy, Matthews correlation, sensitivity and specificity over the
  (image, class) pairs that questions ask about, absent ones too (a pair asked about twice counts
  twice), `exact_set`, the share of questions whose whole set is right, and `hallucination_rate`,
  the share whose answer names a class that is not there. `yes_bias` is how much more often "yes" is
  said than true (`yes_rate`, `prevalence`); `negative/...` are the questions about a class that is
  absent, apart by whether the image has other findings (`absent_class`, `no_finding_image`).

Boxes (V29, V30, A10, A11):

* `paper`: all boxes of all answers about an image; right if they overlap any true box, class
  ignored. Precision is of predicted boxes, recall of true ones, F1 the harmonic mean.
* `strict`: their union (`vindr_truth.union`: a box that several answers give is one, copies within
  one answer are copies), matched one to one within a class; `detection_agnostic/...` ignores it.
  `ap/...` and `froc/...` rank it by the boxes' scores (`vindr_ranking`).
* localization, of all boxes or of their union: Table 6 over all images, class ignored. An image
  without true boxes cannot come out well there (`localization/ceiling`);
  `localization_with_lesion/...` (`strict`) leaves such images out.

In both, negation is understood ("no pneumothorax" is no mention), overlap means IoU > 0.3 unless a
metric names another (`@0.5`; `f1_area` and the curves are of all: `vindr_detection`), and a missing
or blank answer is wrong, also about something absent. A failure to parse adds no box: what it
should have found is missed. The class of a box is its label, else the class asked about, else the
class that its answer names with it.

`n`: images for detection and localization (by class: images that have the class), questions
otherwise (accuracy and its kin: questions that ask about a class).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from cxrjax.benchmarks.formulas import named, of, quotient
from cxrjax.benchmarks.predictions import PROBLEMS, Prediction, read_predictions
from cxrjax.benchmarks.scores import (
    PAPER,
    STRICT,
    Benchmark,
    Counted,
    ScoreOptions,
    Scores,
    make_scores,
)
from cxrjax.benchmarks.tables import table_metrics
from cxrjax.benchmarks.vindr_boxes import IOU, ceiling_columns, make_views
from cxrjax.benchmarks.vindr_breakdowns import (
    attributes,
    by_attribute,
    by_box_group,
    group_true_boxes,
)
from cxrjax.benchmarks.vindr_counts import (
    NEGATIVE_KINDS,
    SystemCounts,
    count_by_group,
    count_system,
)
from cxrjax.benchmarks.vindr_detection import (
    detection_by_class,
    images_by_class,
    paper_detection,
    strict_detection,
    sweep_curves,
)
from cxrjax.benchmarks.vindr_layout import TABLES, markdown, rows
from cxrjax.benchmarks.vindr_ranking import ranked_figures
from cxrjax.benchmarks.vindr_truth import GT_MODES, References, read_references
from cxrjax.codecs import Codec, get_codec
from cxrjax.datasets.output import hash_lines
from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Estimate, Figure, Sums
from cxrjax.records import read_records

Named = dict[str, Figure]


def score(
    references: References,
    systems: Mapping[str, Iterable[Prediction]],
    codec: Codec | None = None,
    options: ScoreOptions | None = None,
    sources: Mapping[str, str] | None = None,
) -> Scores:
    """Figures of several systems on one set of references.

    Args:
        references: of `vindr_truth.read_references`.
        systems: name -> predictions, at most one per question.
        codec: reads boxes from text where a prediction has none of its own.
        options: how intervals and comparisons are made; by default 1,000 resamples from seed 0.
        sources: system -> what its predictions are called in error messages; default: its name.

    Raises:
        UserError: predictions for unknown questions, or without boxes and codec.
    """
    views = make_views(references)
    groups = group_true_boxes(views.truth)
    ceiling = ceiling_columns(references, views)
    counted = {}
    for name, predictions in systems.items():
        source = (sources or {}).get(name, name)
        counts = count_system(references, views, groups, predictions, codec, source)
        columns = {**counts.tally.columns, **ceiling}
        having = images_by_class(references)
        ranked, curves = ranked_figures(
            counts.boxes,
            counts.box_scores,
            references.classes,
            having,
            references.images_with_truth,
        )
        figures = _figures(references, counts)
        figures[STRICT] |= {**ranked, **by_box_group(groups)}
        curves |= sweep_curves(columns)
        counted[name] = Counted(columns, figures, dict(counts.problems), curves)
    settings = {
        "benchmark": "vindr_cxr_vqa",
        "datasets": references.datasets,
        "splits": references.splits,
        "split_sha256": hash_lines(image.image_id for image in references.images),
        "images": len(references.images),
        "questions": len(references.questions),
        "images_with_truth": references.images_with_truth,
        "gt_mode": references.gt_mode,
        "iou_threshold": IOU,
        "box_size_limits": groups.size_limits,
        "codec": codec.name if codec else None,
    }
    return make_scores(
        counted,
        [image.cluster for image in references.images],
        settings,
        options or ScoreOptions(gt_mode=references.gt_mode),
        attributes=attributes(references),
        compared=table_metrics(TABLES),
    )


def score_files(references: Path, predictions: Mapping[str, Path], options: ScoreOptions) -> Scores:
    """`score` on files; the settings carry the files' hashes.

    Raises:
        UserError: a file is unusable; the message names file and line or question.
    """
    truth = read_references(read_records(references), options.gt_mode, str(references))
    scores = score(
        truth,
        {name: read_predictions(path) for name, path in predictions.items()},
        get_codec(options.codec) if options.codec else None,
        options,
        {name: str(path) for name, path in predictions.items()},
    )
    return scores.with_files(references, predictions)


def _figures(
    references: References, counts: SystemCounts
) -> dict[str, dict[str, Figure | Estimate]]:
    asked = count_by_group(references.questions)
    questions = len(references.questions)
    shared: dict[str, Figure | Estimate] = {
        "parse_failure_rate": Figure(quotient("parse_failures", "questions"), questions),
        **{
            f"parse_failure_rate/{name}": Estimate(count / questions, None, None, questions)
            for name, count in counts.parse_failures.items()
        },
        **{
            f"problems/{name}": Estimate(counts.problems[name], None, None, questions)
            for name in PROBLEMS
        },
    }
    mentions = _mentions("", questions)
    paper: dict[str, Figure | Estimate] = {
        "vqa/accuracy": Estimate(None, None, None, questions),
        "vqa/accuracy_as_printed": mentions["f1"],
        **named("vqa", mentions),
        **paper_detection(references),
        **shared,
    }
    strict: dict[str, Figure | Estimate] = {
        **named("vqa", _decisions("", asked["class"].total())),
        "vqa/exact_set": Figure(quotient("exact_set", "questions"), questions),
        "vqa/hallucination_rate": Figure(quotient("hallucinated", "questions"), questions),
        **named("vqa", mentions),
        **strict_detection(references),
        **shared,
        **detection_by_class(references),
        **_by_class(references, asked["class"]),
        **_by_question_group(asked),
        **_negatives(asked["negative"]),
        **by_attribute(references),
    }
    return {PAPER: paper, STRICT: strict}


def _mentions(group: str, n: int) -> Named:
    """Micro figures of the classes that answers say are there."""
    tp, fp, fn = (f"mentions{group}/{count}" for count in ("tp", "fp", "fn"))
    return {
        "precision": Figure(of(classification.precision, tp, fp), n),
        "recall": Figure(of(classification.recall, tp, fn), n),
        "f1": Figure(of(classification.f1, tp, fp, fn), n),
    }


def _decisions(group: str, n: int) -> Named:
    """Figures of there-or-not over the (image, class) pairs asked about."""
    tp, fp, fn, tn = (f"asked{group}/{count}" for count in ("tp", "fp", "fn", "tn"))
    return {
        "accuracy": Figure(of(classification.accuracy, tp, fp, fn, tn), n),
        "balanced_accuracy": Figure(of(classification.balanced_accuracy, tp, fp, fn, tn), n),
        "mcc": Figure(of(classification.matthews, tp, fp, fn, tn), n),
        "sensitivity": Figure(of(classification.recall, tp, fn), n),
        "specificity": Figure(of(classification.specificity, tn, fp), n),
        **_yes_bias(group, n),
    }


def _yes_bias(group: str, n: int) -> Named:
    """How often "yes" is said, how often it is true, and the one minus the other (H08)."""
    yes, *cells = (f"asked{group}/{count}" for count in ("yes", "tp", "fn", "fp", "tn"))

    def said(sums: Sums) -> np.ndarray:
        return classification.ratio(sums[yes], sum(sums[cell] for cell in cells))

    def true(sums: Sums) -> np.ndarray:
        return classification.ratio(
            sums[cells[0]] + sums[cells[1]], sum(sums[cell] for cell in cells)
        )

    return {
        "yes_rate": Figure(said, n),
        "prevalence": Figure(true, n),
        "yes_bias": Figure(lambda sums: said(sums) - true(sums), n),
    }


def _negatives(asked: Mapping[str, int]) -> Named:
    """Questions about a class that is absent: how often it is said to be there, and how many boxes
    each gets (H08); apart by whether the image has other findings."""
    figures: Named = {}
    for kind in NEGATIVE_KINDS:
        group, n = f"negative/{kind}", asked[kind]
        figures |= {
            f"{group}/false_yes_rate": Figure(quotient(f"{group}/yes", f"{group}/questions"), n),
            f"{group}/boxes_per_question": Figure(
                quotient(f"{group}/boxes", f"{group}/questions"), n
            ),
        }
    return figures


def _by_class(references: References, asked: Mapping[str, int]) -> Named:
    figures: Named = {}
    for name in references.classes:
        decided = _decisions(f"/class/{name}", asked[name])
        figures |= named("by_class/vqa", decided, suffix=f"/{name}")
    return figures


def _by_question_group(asked: Mapping[str, Mapping[str, int]]) -> Named:
    """Figures by question type, and by difficulty where records have one."""
    figures: Named = {}
    for group, n in sorted(asked["all"].items()):
        _, grouping, key = group.split("/", 2) if group else ("", "", "")
        if not grouping:
            continue
        prefix = "by_question_type" if grouping == "kind" else "by_difficulty"
        here = {
            **_decisions(group, asked["asking"][group]),
            **_mentions(group, n),
            "exact_set": Figure(quotient(f"exact_set{group}", f"questions{group}"), n),
            "hallucination_rate": Figure(quotient(f"hallucinated{group}", f"questions{group}"), n),
        }
        figures |= named(f"{prefix}/vqa", here, suffix=f"/{key}")
        figures[f"{prefix}/parse_failure_rate/{key}"] = Figure(
            quotient(f"parse_failures{group}", f"questions{group}"), n
        )
    return figures


VINDR_CXR_VQA = Benchmark(score_files=score_files, gt_modes=GT_MODES, markdown=markdown, rows=rows)
