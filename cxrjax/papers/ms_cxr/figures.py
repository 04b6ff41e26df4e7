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
"""

import collections
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec, get_codec
from cxrjax.errors import UserError
from cxrjax.metrics.bootstrap import Estimate, Figure, Formula, Sums
from cxrjax.metrics.classification import ratio
from cxrjax.metrics.localization import contrast_to_noise, region_areas, region_iou, region_mask
from cxrjax.papers.ms_cxr.native import FINDINGS
from cxrjax.records import QARecord, read_records
from cxrjax.scoring import tables
from cxrjax.scoring.figures import quotient
from cxrjax.scoring.predictions import PROBLEMS, check_known, read_boxes, read_predictions
from cxrjax.scoring.scores import (
    PAPER,
    STRICT,
    Benchmark,
    Counted,
    ScoreOptions,
    Scores,
    make_scores,
)

GT_MODE = "exact"
MS_CXR_PROBLEMS = {
    **PROBLEMS,
    "unusable_map": "heat map with numbers that are not finite, or no cell in or none out of the "
    "true boxes; as if there were none",
    "noiseless_map": "heat map of one number inside and another outside; no finite CNR, left out",
}
# Metric -> its column, and under each protocol the column of what it is the mean over.
_METRICS = {
    "miou": ("iou", {PAPER: "answered", STRICT: "asked"}),
    **{name: (name, {PAPER: "mapped", STRICT: "to_map"}) for name in ("cnr", "cnr_signed")},
}


def _table(metric: str, title: str) -> tables.PaperTable:
    columns = [
        tables.Column(name, dict.fromkeys((PAPER, STRICT), f"{metric}/{name}")) for name in FINDINGS
    ]
    mean = tables.Column("Mean", dict.fromkeys((PAPER, STRICT), metric))
    # The paper's values are of other systems on heat maps, and none is copied here unverified.
    return tables.PaperTable(metric, title, (*columns, mean), {})


TABLES = (
    _table("miou", "mIoU of the regions of boxes"),
    _table("cnr", "CNR of heat maps, unsigned"),
    _table("cnr_signed", "CNR of heat maps, signed"),
)


def score_files(references: Path, predictions: Mapping[str, Path], options: ScoreOptions) -> Scores:
    """Figures of several systems on one set of references.

    Raises:
        UserError: a file is unusable; the message names file and line or question.
    """
    if options.gt_mode != GT_MODE:
        raise UserError(f"--gt_mode={options.gt_mode}: expected '{GT_MODE}', the phrases' boxes")
    records = list(read_records(references))
    for record in records:
        _check(record, references)
    codec = get_codec(options.codec) if options.codec else None
    counted = {name: _count(records, path, codec) for name, path in predictions.items()}
    settings = {
        "benchmark": "ms_cxr",
        **{f"{k}s": sorted({getattr(r, k) for r in records}) for k in ("dataset", "split")},
        "images": len({record.image_id for record in records}),
        "questions": len(records),
        "gt_mode": GT_MODE,
        "codec": codec.name if codec else None,
    }
    clusters = [
        ("patient", r.patient_id) if r.patient_id else ("image", r.image_id) for r in records
    ]
    compared = tables.table_metrics(TABLES)
    scores = make_scores(counted, clusters, settings, options, compared=compared)
    return scores.with_files(references, predictions)


def _check(record: QARecord, source: Path) -> None:
    if record.gt_finding not in FINDINGS or not record.boxes or not record.image_hw:
        raise UserError(
            f"{source}: question {record.question_id} has gt_finding {record.gt_finding!r}, "
            f"{len(record.boxes)} boxes and image_hw {record.image_hw}; expected one of MS-CXR's "
            "findings, boxes and a size: give records/<split>.jsonl of --dataset=ms_cxr"
        )


def _count(records: Sequence[QARecord], path: Path, codec: Codec | None) -> Counted:
    predictions = {prediction.question_id: prediction for prediction in read_predictions(path)}
    check_known(predictions.values(), {r.question_id: r for r in records}, str(path))
    maps = _heat_maps(path)
    problems = collections.Counter(dict.fromkeys(MS_CXR_PROBLEMS, 0))
    rows = []
    for record in records:
        rows.append(row := {"asked": 1.0, "to_map": float(bool(maps)), "failed": 1.0})
        prediction = predictions.get(record.question_id)
        if prediction is None:
            problems["missing_prediction"] += 1
            continue
        named = maps.get(record.question_id)
        if prediction.boxes is None and named:
            prediction = replace(prediction, boxes=np.zeros((0, 4)))
        height, width = record.image_hw or (0, 0)
        true = np.array(record.boxes, np.float64)
        read = read_boxes(prediction, codec, height, width, str(path))
        areas = region_areas(read.boxes * [width, height, width, height], true)
        problems.update(read.problems)
        problems["blank_answer"] += not (prediction.text.strip() or len(read.boxes) or named)
        row["failed"] = float(read.parse != "ok")
        row |= {"iou": float(region_iou(*areas)), "answered": float(len(read.boxes) > 0)}
        if named:
            _add_contrast(row, _load_map(*named), true, (height, width), problems)
    if maps and not any(row.get("answered") for row in rows):
        for row in rows:  # a system of heat maps alone
            row["asked"] = 0.0
    return Counted(*_figures([record.gt_finding for record in records], rows), problems)


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


def _heat_maps(path: Path) -> dict[str, tuple[Path, str]]:
    """Question id -> heat map and the line that names it; the lines are checked already."""
    maps = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        fields = json.loads(line) if line.strip() else {}
        if (name := fields.get("heat_map")) is not None:
            where = f"{path}:{number}"
            if not isinstance(name, str):
                raise UserError(f"{where}: heat_map is {name!r}; expected the path of a .npy file")
            maps[fields["question_id"]] = (path.parent / name, where)
    return maps


def _load_map(file: Path, where: str) -> Float[np.ndarray, "h w"]:
    expected = "expected [h, w] real numbers by numpy.save, at a path relative to the predictions"
    try:
        heat = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "no .npy file of numbers"
        raise UserError(f"{where}: heat map {file}: {reason}; {expected}") from None
    if getattr(heat, "ndim", 0) != 2 or heat.dtype.kind not in "fiu":
        found = getattr(heat, "shape", "a .npz")
        raise UserError(f"{where}: heat map {file}: {found}; {expected}")
    return heat.astype(np.float64)


def _figures(
    findings: Sequence[str | None], rows: Sequence[Mapping[str, float]]
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Figure | Estimate]]]:
    """Columns over the phrases, `<column>` and `<finding>/<column>`, and what is made of them."""
    used = ("iou", "cnr", "cnr_signed", "asked", "answered", "mapped", "to_map", "failed")
    columns = {key: np.array([row.get(key, 0.0) for row in rows]) for key in used}
    columns["phrases"] = np.ones(len(rows))
    for finding in FINDINGS:
        here = np.array([name == finding for name in findings])
        columns |= {f"{finding}/{key}": columns[key] * here for key in used}
    figures: dict[str, dict[str, Figure | Estimate]] = {}
    for protocol in (PAPER, STRICT):
        named: dict[str, Figure | Estimate] = {}
        for metric, (top, bottoms) in _METRICS.items():
            bottom = bottoms[protocol]
            for finding in FINDINGS:
                of_finding = f"{finding}/{bottom}"
                formula = quotient(f"{finding}/{top}", of_finding)
                named[f"{metric}/{finding}"] = Figure(formula, of_finding)
            named[metric] = Figure(_mean_of_findings(top, bottom), bottom)
        bottom = _METRICS["miou"][1][protocol]
        named["miou_phrases"] = Figure(quotient("iou", bottom), bottom)
        named["parse_failure_rate"] = Figure(quotient("failed", "phrases"), "phrases")
        figures[protocol] = named
    return columns, figures


def _mean_of_findings(top: str, bottom: str) -> Formula:
    """The mean over the findings that there are."""

    def formula(sums: Sums) -> Float[np.ndarray, " sums"]:
        means = np.stack([ratio(sums[f"{f}/{top}"], sums[f"{f}/{bottom}"]) for f in FINDINGS])
        known = np.isfinite(means)
        return np.asarray(ratio(np.where(known, means, 0.0).sum(axis=0), known.sum(axis=0)))

    return formula


def markdown(scores: Scores) -> str:
    """tables.md."""
    about = scores.settings
    return "\n".join(
        [
            "# MS-CXR\n",
            f"{tables.about_references(about)} {tables.about_intervals(about)}\n",
            "Means over phrases; Mean: of the findings' means. `paper`: of phrases with boxes "
            "(CNR: a usable heat map); `strict`: of all, 0 without.\n",
            *(tables.table_markdown(table, scores, str) for table in TABLES),
            tables.failures_markdown(scores, MS_CXR_PROBLEMS),
        ]
    )


MS_CXR = Benchmark(
    score_files=score_files,
    gt_modes=(GT_MODE,),
    markdown=markdown,
    rows=lambda scores: tables.table_rows(TABLES, (), scores, str),
    logged={STRICT: ("miou", "miou_phrases", "parse_failure_rate")},
)
