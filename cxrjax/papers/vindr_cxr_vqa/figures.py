"""VinDr-CXR-VQA (arXiv 2511.00504v2): Tables 4, 5 and 6 under two protocols.

`paper` is the paper's wording; `strict` is what the wording should have been.

Question answering (section 3.2), over the classes that answers say are there:

* both: micro precision, recall and F1 of each question's set of classes;
* `paper`: accuracy is null; `accuracy_as_printed` is F1, as in the paper's column;
* `strict`: accuracy, balanced accuracy, Matthews correlation, sensitivity and specificity over the
  (image, class) pairs that questions ask about, absent ones too (a pair asked about twice counts
  twice), `exact_set`, the share of questions whose whole set is right, and `hallucination_rate`,
  the share whose answer names a class that is not there. `yes_bias` is how much more often "yes" is
  said than true (`yes_rate`, `prevalence`); `negative/...` are the questions about a class that is
  absent, apart by whether the image has other findings (`absent_class`, `no_finding_image`).

Boxes (section 3.2):

* `paper`: all boxes of all answers about an image; right if they overlap any true box, class
  ignored. Precision is of predicted boxes, recall of true ones, F1 the harmonic mean.
* `strict`: their union (`truth.union`: a box that several answers give is one, copies within
  one answer are copies), matched one to one within a class; `detection_agnostic/...` ignores it.
  `ap/...` and `froc/...` rank it by the boxes' scores (`metrics.ranking`).
* `grounding/...` (`strict`): each question's boxes against those of its own reference answer, in
  every ground-truth mode. In the union, two right answers about one finding that differ by a pixel
  are a hit and an error; here they are two hits.
* localization, of all boxes or of their union: Table 6 over all images, class ignored. An image
  without true boxes cannot come out well there (`localization/ceiling`);
  `localization_with_lesion/...` (`strict`) leaves such images out.

In both, negation is understood ("no pneumothorax" is no mention), overlap means IoU > 0.3 unless a
metric names another (`@0.5`; `f1_area` and the curves are of all: `boxes.py`), and a missing
or blank answer is wrong, also about something absent. A failure to parse adds no box: what it
should have found is missed. The class of a box is its label (the line's, or the notation's in its
text), else the class asked about, else the class that its answer names with it.

How sure a system is (`strict`): the probabilities of what answers decide, coordinates apart,
against whether their set of classes is right (`calibration/...`), boxes' scores against their
highest IoU with a true box.

Figures are broken down by class, question type and difficulty, and by view, sex, age and number of
true boxes of the image, where records say (`by_.../<metric>/<value>`).

`n`: images for detection and localization (by class: images that have the class), questions
otherwise (accuracy and its kin: questions that ask about a class).
"""

import functools
from collections.abc import Mapping
from typing import Any

from cxrjax.evaluation.benchmark import Answers, Benchmark, Evaluated
from cxrjax.evaluation.counted import PAPER, STRICT, Counted
from cxrjax.evaluation.figure_lines import make_figures
from cxrjax.evaluation.figures import box_calibration, joined_columns
from cxrjax.evaluation.layout import load_layout
from cxrjax.evaluation.matched_boxes import sweep_curves
from cxrjax.evaluation.ranked_boxes import constant_within_answers, ranked_figures
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.papers.vindr_cxr_vqa import truth
from cxrjax.papers.vindr_cxr_vqa.boxes import (
    IOU,
    BoxGroups,
    PackedColumns,
    Views,
    any_f1_area,
    ceiling_columns,
    group_true_boxes,
    make_views,
)
from cxrjax.papers.vindr_cxr_vqa.counts import count_system, outcome

LAYOUT = load_layout(str(__package__))
IMAGE_ATTRIBUTES = ("view", "sex", "age", "true_boxes")


def count(
    references: truth.VindrReferences, systems: Mapping[str, Answers], options: ScoreOptions
) -> Evaluated:
    """All systems counted; units are the images, then the questions."""
    views, groups, ceiling, attributes = _prepared(references)
    codec = options.box_codec
    names = {"class": references.classes, "negative": truth.NEGATIVE_KINDS, **groups.names}
    counted = {}
    for name, answers in systems.items():
        counts = count_system(references, views, groups, answers, codec)
        images = counts.images | ceiling
        calibrated, calibration, curves = counts.answers.calibration(
            "exact_set", "questions", references.clusters, options.bootstrap
        )
        figures = make_figures(LAYOUT.lines, attributes, names, {"any_f1_area": any_f1_area})
        for protocol in figures:
            figures[protocol] |= counts.answers.figures()
        figures[STRICT]["vqa/most_common_answer_share"] = counts.answers.most_common_share()
        having = references.images_by_class
        ranked, ranking_curves, boxes = ranked_figures(
            counts.boxes,
            counts.box_scores,
            [references.images[image].cluster for image in references.image_of_truth.tolist()],
            references.images_with_truth,
            options.bootstrap,
            {name: having[name] for name in references.classes},
        )
        ranked["ap/constant_within_answers"] = constant_within_answers(
            counts.constant, len(references.questions)
        )
        by_score, placed, score_curves = box_calibration(
            counts.box_scores,
            counts.boxes.best_of_predicted,
            references.image_of_truth[counts.boxes.predicted.image],
            len(references.images),
        )
        figures[STRICT] |= {**calibration, **placed, **ranked}
        counted[name] = Counted(
            joined_columns(images | by_score, {**counts.answers.columns, **calibrated}),
            figures,
            dict(counts.answers.problems),
            _image_curves(images) | ranking_curves | curves | score_curves,
            boxes,
        )
    settings = {
        "images_with_truth": references.images_with_truth,
        "gt_mode": references.gt_mode,
        "iou_threshold": IOU,
        "box_size_limits": groups.size_limits,
        "codec": codec.name if codec else None,
    }
    clusters = [image.cluster for image in references.images] + references.clusters
    return Evaluated(counted, settings, attributes, clusters)


def _image_curves(columns: PackedColumns) -> dict[str, Any]:
    """Curves over the IoU threshold, of each way of counting."""
    return {
        name: curve
        for title, prefix, protocol in (
            ("strict", "detection", STRICT),
            ("strict_agnostic", "detection_agnostic", STRICT),
            ("paper", "detection", PAPER),
        )
        for name, curve in sweep_curves(title, LAYOUT.lines, prefix, protocol, columns).items()
    }


@functools.lru_cache(maxsize=1)
def _prepared(
    references: truth.VindrReferences,
) -> tuple[Views, BoxGroups, PackedColumns, dict[str, list[str | None]]]:
    """All that is of the references alone, kept for the next systems: a floor at a time comes."""
    views = make_views(references)
    groups = group_true_boxes(views.truth)
    return views, groups, ceiling_columns(references, views, groups), _attributes(references)


def _attributes(references: truth.VindrReferences) -> dict[str, list[str | None]]:
    """Attribute -> its value for every image, then for every question."""
    images, questions = references.images, references.questions.values()
    attributes = {
        name: [image.attributes[name] for image in images]
        + [images[question.image].attributes[name] for question in questions]
        for name in IMAGE_ATTRIBUTES
    }
    of_questions: dict[str, list[str | None]] = {
        "question_type": [question.kind for question in questions],
        "class": [question.asked for question in questions],
        "difficulty": [question.difficulty for question in questions],
        "negative": [question.negative_kind for question in questions],
    }
    return attributes | {
        name: [*([None] * len(images)), *values] for name, values in of_questions.items()
    }


VINDR_CXR_VQA = Benchmark(
    "vindr_cxr_vqa",
    LAYOUT,
    read=lambda records, source, gt_mode: truth.read_references(records, gt_mode, source),
    count=count,
    outcome=outcome,
    gt_modes=truth.GT_MODES,
    mode_arguments=True,
)
