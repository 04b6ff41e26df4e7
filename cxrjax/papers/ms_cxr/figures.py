"""MS-CXR (arXiv 2204.09817): how well a phrase's region is found, by finding.

* mIoU: of each phrase, the region that its predicted boxes cover together and that of the true
  ones, their intersection by their union, exactly. (The paper's is of thresholded heat maps.)
* CNR: of a line's heat map (`heat_map`: a .npy of [h, w] numbers over the whole image, its path
  relative to the predictions file), |mean inside - mean outside| / sqrt(variance inside + variance
  outside) of the true boxes together; a cell is inside where its centre is. `cnr_signed`: the same
  without the bars, below 0 where the map is darker inside.

Both are means over the phrases of a finding, and without a finding in their names the mean of the
findings' means. `miou_phrases` is over all phrases alike. `paper`: of the phrases that the system
gave boxes (a usable heat map) for, as in the paper it does for all; `strict`: of all, 0 without.
A map without any noise has an infinite CNR where its means differ; it is left out, and counted.
Only a system of heat maps alone, no line of which has `boxes`, has no mIoU.
"""

import collections
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cxrjax.errors import ForeignError, UserError
from cxrjax.evaluation import benchmark
from cxrjax.evaluation.counted import STRICT, Counted
from cxrjax.evaluation.figure_lines import make_figures
from cxrjax.evaluation.figures import named
from cxrjax.evaluation.layout import load_layout
from cxrjax.evaluation.matched_boxes import ScoredAnswers
from cxrjax.evaluation.predictions import PROBLEMS, Prediction, read_boxes
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.metrics.bootstrap import Sums
from cxrjax.metrics.classification import ratio
from cxrjax.metrics.localization import contrast_to_noise, region_areas, region_iou, region_mask
from cxrjax.papers.ms_cxr.native import FINDINGS
from cxrjax.paths import to_path
from cxrjax.records import QARecord
from cxrjax.untrusted.arrays import read_array
from cxrjax.untrusted.names import path_inside, shown

LAYOUT = load_layout(str(__package__))
_MOST_CELLS = 2**24  # of a heat map: 4,096 a side


@dataclass(frozen=True)
class Phrase:
    """A phrase with its finding, and its true boxes in pixels of an image of `image_hw`."""

    question_id: str
    cluster: tuple[str, str]
    finding: str
    boxes: Float[np.ndarray, "n 4"]
    image_hw: tuple[int, int]


def read_phrase(record: QARecord, source: str) -> Phrase:
    """The truth of one record.

    Raises:
        UserError: a record without a finding of MS-CXR, boxes or size.
    """
    if record.gt_finding not in FINDINGS or not record.boxes or not record.image_hw:
        raise UserError(
            f"{source}: question {record.question_id} has gt_finding {record.gt_finding!r}, "
            f"{len(record.boxes)} boxes and image_hw {record.image_hw}; expected one of MS-CXR's "
            "findings, boxes and a size: give records/<split>.jsonl of --dataset=ms_cxr"
        )
    boxes = np.array(record.boxes, np.float64)
    cluster = benchmark.cluster_of(record)
    return Phrase(record.question_id, cluster, record.gt_finding, boxes, record.image_hw)


def _count(
    references: benchmark.References[Phrase],
    answers: benchmark.Answers,
    options: ScoreOptions,
) -> Counted:
    lines = list(answers.predictions)
    scored = ScoredAnswers()
    maps = any(line.heat_map is not None for line in lines)
    # Without mIoU is only a system of heat maps alone: no line has boxes, be it none, or text.
    boxed = not maps or any(line.boxes is not None or line.heat_map is None for line in lines)
    nothing = {"asked": float(boxed), "to_map": float(maps), "parse_failures": 1.0}
    nothing["questions"] = 1.0

    def of_phrase(
        phrase: Phrase, prediction: Prediction | None, counts: benchmark.SystemCounts
    ) -> Mapping[str, float]:
        row, problems = dict(nothing), counts.problems
        if prediction is None:
            scored.add(np.zeros((0, 4)), np.zeros(0), phrase.boxes)
            return row
        mapped = prediction.heat_map is not None
        if prediction.boxes is None and mapped:
            prediction = replace(prediction, boxes=np.zeros((0, 4)))
        height, width = phrase.image_hw
        read = read_boxes(prediction, options.box_codec, height, width, answers.source)
        areas = region_areas(read.boxes * [width, height, width, height], phrase.boxes)
        scored.add(read.boxes * [width, height, width, height], read.scores, phrase.boxes)
        problems.update(read.problems)
        problems["blank_answer"] += not (prediction.text.strip() or len(read.boxes) or mapped)
        row["parse_failures"] = float(read.parse != "ok")
        row |= {"iou": float(region_iou(*areas)), "answered": float(len(read.boxes) > 0)}
        if mapped:
            heat = _load_map(to_path(answers.source).parent, prediction)
            _add_contrast(row, heat, phrase.boxes, phrase.image_hw, problems)
        return row

    problems = (*PROBLEMS, "unusable_map", "noiseless_map")
    counts = benchmark.count_answers(
        references.questions,
        answers._replace(predictions=lines),
        of_phrase,
        problems,
        columns=("iou", "cnr", "cnr_signed", "answered", "mapped"),
    )
    columns = dict(counts.columns)
    for finding in FINDINGS:
        here = np.array([phrase.finding == finding for phrase in references.questions.values()])
        columns |= named(finding, {name: c * here for name, c in counts.columns.items()})
    wanted = [line for line in LAYOUT.lines if boxed or not line.name.startswith("boxes/")]
    functions = {"mean_of_findings": _mean_of_findings}
    figures = make_figures(wanted, names={"finding": FINDINGS}, functions=functions)
    if not boxed:
        return Counted(columns, figures, dict(counts.problems))
    boxes = scored.counted(references.clusters, options.bootstrap)
    figures[STRICT] |= boxes.figures
    columns |= boxes.columns
    return Counted(columns, figures, dict(counts.problems), boxes.curves, boxes.ranked)


def _add_contrast(
    row: dict[str, float],
    heat: Float[np.ndarray, "h w"],
    true: Float[np.ndarray, "n 4"],
    size: tuple[int, int],
    problems: collections.Counter[str],
) -> None:
    inside = region_mask(true, size, (heat.shape[0], heat.shape[1]))
    if not np.isfinite(heat).all() or inside.all() or not inside.any():
        problems["unusable_map"] += 1
    elif np.isfinite(value := contrast_to_noise(heat, inside)):
        row |= {"mapped": 1.0, "cnr": abs(value), "cnr_signed": value}
    else:
        problems["noiseless_map"] += 1
        row["to_map"] = 0.0


def _load_map(folder: Path, prediction: Prediction) -> Float[np.ndarray, "h w"]:
    where, name = prediction.where, prediction.heat_map
    if not isinstance(name, str):
        raise UserError(f"{where}: heat_map is {name!r}; expected the path of a .npy file")
    expected = "expected [h, w] real numbers by numpy.save, at a path relative to the predictions"
    try:
        heat = read_array(path_inside(folder, name), _MOST_CELLS)
    except (OSError, ForeignError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{where}: heat map {shown(name)}: {reason}; {expected}") from None
    if heat.ndim != 2:
        raise UserError(f"{where}: heat map {shown(name)}: {heat.shape}; {expected}")
    return heat.astype(np.float64)


def _mean_of_findings(sums: Sums, top: str, bottom: str) -> Float[np.ndarray, " sums"]:
    """The mean over the findings that there are."""
    means = np.stack([ratio(sums[f"{f}/{top}"], sums[f"{f}/{bottom}"]) for f in FINDINGS])
    known = np.isfinite(means)
    return np.asarray(ratio(np.where(known, means, 0.0).sum(axis=0), known.sum(axis=0)))


MS_CXR = benchmark.Benchmark(
    "ms_cxr",
    LAYOUT,
    read=lambda records, source, gt_mode: benchmark.read_references(records, source, read_phrase),
    count=benchmark.count_each(_count),
)
