"""VinDr-CXR-VQA (arXiv 2511.00504v2): Tables 4, 5 and 6 under two protocols.

`paper` is the paper's wording; `strict` is what the wording should have been.

Question answering (V28, A9), over the classes that answers say are there:

* both: micro precision, recall and F1 of each question's set of classes;
* `paper`: accuracy is null; `accuracy_as_printed` is F1, as in the paper's column;
* `strict`: accuracy, balanced accuracy, Matthews correlation, sensitivity and specificity over the
  (image, class) pairs that questions ask about, absent ones too (a pair asked about twice counts
  twice), and `exact_set`, the share of questions whose whole set is right.

Boxes (V29, V30, A10, A11):

* `paper`: all boxes of all answers about an image; right if they overlap any true box, class
  ignored. Precision is of predicted boxes, recall of true ones, F1 the harmonic mean.
* `strict`: their union (`vindr_truth.union`: a box that several answers give is one, copies within
  one answer are copies), matched one to one within a class; `detection_agnostic/...` ignores it.
* localization, of all boxes or of their union: Table 6 over all images, class ignored. An image
  without true boxes cannot come out well there (`localization/ceiling`);
  `localization_with_lesion/...` (`strict`) leaves such images out.

In both, negation is understood ("no pneumothorax" is no mention), overlap means IoU > 0.3, and a
missing or blank answer is wrong, also about something absent. A failure to parse adds no box: what
it should have found is missed. The class of a box is its label, else the class asked about, else
the class that its answer names with it.

`n`: images for detection and localization (by class: images that have the class), questions
otherwise (accuracy and its kin: questions that ask about a class).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

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
from cxrjax.benchmarks.vindr_counts import (
    IOU,
    SystemCounts,
    ceiling_tally,
    count_by_group,
    count_system,
)
from cxrjax.benchmarks.vindr_layout import TABLES, markdown, rows
from cxrjax.benchmarks.vindr_truth import GT_MODES, References, read_references
from cxrjax.codecs import Codec, get_codec
from cxrjax.datasets.output import hash_lines
from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Estimate, Figure, Formula, Sums
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
    ceiling = ceiling_tally(references)
    counted = {}
    for name, predictions in systems.items():
        counts = count_system(references, predictions, codec, (sources or {}).get(name, name))
        columns = {**counts.tally.columns, **ceiling.columns}
        counted[name] = Counted(columns, _figures(references, counts), dict(counts.problems))
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
        "codec": codec.name if codec else None,
    }
    return make_scores(
        counted,
        [image.cluster for image in references.images],
        settings,
        options or ScoreOptions(gt_mode=references.gt_mode),
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
    questions, images = len(references.questions), references.images_with_truth
    shared: dict[str, Figure | Estimate] = {
        "parse_failure_rate": Figure(_quotient("parse_failures", "questions"), questions),
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
        **_named("vqa", mentions),
        **_paper_detection(references),
        **_named("localization", _placed(PAPER, "views", images)),
        **shared,
    }
    strict: dict[str, Figure | Estimate] = {
        **_named("vqa", _decisions("", asked["class"].total())),
        "vqa/exact_set": Figure(_quotient("exact_set", "questions"), questions),
        **_named("vqa", mentions),
        **_strict_detection(references),
        **_named("localization", _placed(STRICT, "views", images)),
        **shared,
        **_by_class(references, asked["class"]),
        **_by_question_type(asked),
    }
    return {PAPER: paper, STRICT: strict}


def _quotient(numerator: str, denominator: str) -> Formula:
    return lambda sums: classification.ratio(sums[numerator], sums[denominator])


def _of(function: Callable[..., np.ndarray], *columns: str) -> Formula:
    return lambda sums: function(*(sums[column] for column in columns))


def _named(prefix: str, figures: Named, suffix: str = "") -> Named:
    return {f"{prefix}/{name}{suffix}": figure for name, figure in figures.items()}


def _mentions(group: str, n: int) -> Named:
    """Micro figures of the classes that answers say are there."""
    tp, fp, fn = (f"mentions{group}/{count}" for count in ("tp", "fp", "fn"))
    return {
        "precision": Figure(_of(classification.precision, tp, fp), n),
        "recall": Figure(_of(classification.recall, tp, fn), n),
        "f1": Figure(_of(classification.f1, tp, fp, fn), n),
    }


def _decisions(group: str, n: int) -> Named:
    """Figures of there-or-not over the (image, class) pairs asked about."""
    tp, fp, fn, tn = (f"asked{group}/{count}" for count in ("tp", "fp", "fn", "tn"))
    return {
        "accuracy": Figure(_of(classification.accuracy, tp, fp, fn, tn), n),
        "balanced_accuracy": Figure(_of(classification.balanced_accuracy, tp, fp, fn, tn), n),
        "mcc": Figure(_of(classification.matthews, tp, fp, fn, tn), n),
        "sensitivity": Figure(_of(classification.recall, tp, fn), n),
        "specificity": Figure(_of(classification.specificity, tn, fp), n),
    }


def _matched(prefix: str, n: int) -> Named:
    """Figures of one-to-one matched boxes."""
    tp, fp, fn, iou = (f"{prefix}/{count}" for count in ("tp", "fp", "fn", "iou"))
    return {
        f"precision@{IOU}": Figure(_of(classification.precision, tp, fp), n),
        f"recall@{IOU}": Figure(_of(classification.recall, tp, fn), n),
        f"f1@{IOU}": Figure(_of(classification.f1, tp, fp, fn), n),
        f"miou_tp@{IOU}": Figure(_above_threshold(_quotient(iou, tp)), n),
    }


def _above_threshold(mean: Formula) -> Formula:
    """Refuses a mean over true positives that no true positives can have (A10): Table 5 has one."""

    def checked(sums: Sums) -> np.ndarray:
        values = mean(sums)
        if (values <= IOU).any():
            raise AssertionError(f"mean IoU of true positives {values.min()} is not above {IOU}")
        return values

    return checked


def _strict_detection(references: References) -> Named:
    images = references.images_with_truth
    normal = sum(any(not len(t.boxes) for t in image.truths) for image in references.images)
    lesion = sum(any(len(t.boxes) for t in image.truths) for image in references.images)
    return {
        **_named("detection", _matched("one_to_one", images)),
        **_named("detection_agnostic", _matched("agnostic", images)),
        **_named(
            "detection",
            {
                f"recall_ceiling@{IOU}": Figure(
                    _of(classification.recall, "ceiling/found", "ceiling/lost"), images
                ),
                "recall_ceiling_one_box": Figure(
                    _quotient("ceiling_one_box/found", "truth_boxes"), images
                ),
                "boxes_per_image": Figure(_quotient("boxes", "images"), images),
                "truth_boxes_per_image": Figure(_quotient("truth_boxes", "views"), images),
                "duplicate_share": Figure(_quotient("duplicates", "boxes"), images),
                "boxes_per_normal_image": Figure(_quotient("normal/boxes", "normal/views"), normal),
            },
        ),
        **_named("localization_with_lesion", _placed("lesion", "lesion/views", lesion)),
        "localization/ceiling": Figure(_quotient("lesion/views", "views"), images),
    }


def _paper_detection(references: References) -> Named:
    images = references.images_with_truth

    def f1(named: Sums) -> np.ndarray:
        # Hits are predicted boxes and found are true boxes: their numbers differ, so that only the
        # harmonic mean makes an F1 of the two. The paper's own figures agree with it.
        return classification.harmonic_mean(
            classification.precision(named["any/hits"], named["any/misses"]),
            classification.recall(named["any/found"], named["any/lost"]),
        )

    return _named(
        "detection",
        {
            f"precision@{IOU}": Figure(
                _of(classification.precision, "any/hits", "any/misses"), images
            ),
            f"recall@{IOU}": Figure(_of(classification.recall, "any/found", "any/lost"), images),
            f"f1@{IOU}": Figure(f1, images),
            f"miou_tp@{IOU}": Figure(_above_threshold(_quotient("any/iou", "any/hits")), images),
            f"recall_ceiling@{IOU}": Figure(
                _of(classification.recall, "ceiling_any/found", "ceiling_any/lost"), images
            ),
            "boxes_per_image": Figure(_quotient("boxes", "images"), images),
            "truth_boxes_per_image": Figure(_quotient("truth_boxes", "views"), images),
        },
    )


def _placed(prefix: str, views: str, n: int) -> Named:
    """The rows of Table 6."""
    return {
        "good@0.5": Figure(_quotient(f"{prefix}/good", views), n),
        "acceptable@0.3": Figure(_quotient(f"{prefix}/acceptable", views), n),
        "mean_iou": Figure(_quotient(f"{prefix}/iou", f"{prefix}/boxes"), n),
    }


def _by_class(references: References, asked: Mapping[str, int]) -> Named:
    having = Counter(
        number
        for image in references.images
        for number in {int(c) for truth in image.truths for c in truth.classes}
    )
    figures: Named = {}
    for number, name in enumerate(references.classes):
        matched = _matched(f"one_to_one/class/{name}", having[number])
        decided = _decisions(f"/class/{name}", asked[name])
        figures |= _named("by_class/detection", matched, suffix=f"/{name}")
        figures |= _named("by_class/vqa", decided, suffix=f"/{name}")
    return figures


def _by_question_type(asked: Mapping[str, Mapping[str, int]]) -> Named:
    figures: Named = {}
    for kind, n in sorted(asked["kind"].items()):
        group = f"/kind/{kind}"
        here = {
            **_decisions(group, asked["kind_asking"][kind]),
            **_mentions(group, n),
            "exact_set": Figure(_quotient(f"exact_set{group}", f"questions{group}"), n),
        }
        figures |= _named("by_question_type/vqa", here, suffix=f"/{kind}")
        figures[f"by_question_type/parse_failure_rate/{kind}"] = Figure(
            _quotient(f"parse_failures{group}", f"questions{group}"), n
        )
    return figures


# What a training run logs: the paper's figures and the strict headline.
LOGGED = {
    PAPER: ("vqa/f1", "vqa/precision", "vqa/recall"),
    STRICT: (
        "vqa/balanced_accuracy",
        "detection/f1@0.3",
        "detection/precision@0.3",
        "detection/recall@0.3",
        "detection/miou_tp@0.3",
        "detection_agnostic/f1@0.3",
        "localization/mean_iou",
        "parse_failure_rate",
    ),
}

VINDR_CXR_VQA = Benchmark(
    score_files=score_files, gt_modes=GT_MODES, markdown=markdown, rows=rows, logged=LOGGED
)
