"""ViX-Ray (arXiv 2603.15513): texts of the three stages beside the references (Tables 5, 6).

A predictions file may answer any of the four kinds of question (stage 1 findings, stage 2
impression, stage 3 both); kinds that it answers none of are null for it, a question that it leaves
out of a kind that it answers is scored as an empty text.

The paper does not state how it cut words for ROUGE and BLEU, nor BLEU's order (A23): both protocols
have one definition so far (cxrjax/metrics/text.py), ROUGE's F-measure as a mean over the reports
and BLEU-4 over the corpus, on syllables. Fact precision and recall are not there yet.

Stages (Table 5): stage 3's findings minus stage 1's and its impressions minus stage 2's, for every
two systems that answered them. Before and after fine-tuning (Tables 11, 12): every system minus the
first one named, kind by kind. Intervals of differences are of the pair, resampled together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.benchmarks.predictions import Prediction, check_known, read_predictions
from cxrjax.benchmarks.scores import (
    PAPER,
    STRICT,
    Benchmark,
    Counted,
    ScoreOptions,
    Scores,
    make_scores,
)
from cxrjax.benchmarks.vix_ray_layout import KINDS, METRICS, markdown, rows
from cxrjax.errors import UserError
from cxrjax.metrics import text
from cxrjax.metrics.bootstrap import Estimate, Figure, Formula, Sums
from cxrjax.records import QARecord, read_records

Column = Float[np.ndarray, "images"]  # what a figure is a sum of, image by image

# How a problem is counted in score.json.
MISSING, BLANK = "missing_prediction", "blank_answer"
GT_MODE = "report"


@dataclass(frozen=True)
class Reference:
    """One question with its true text."""

    image_id: str
    kind: str
    text: str


def score(
    references: Mapping[str, Reference],
    systems: Mapping[str, Iterable[Prediction]],
    options: ScoreOptions | None = None,
    sources: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Scores:
    """Figures of several systems on one set of references.

    Args:
        references: question id -> its reference.
        systems: name -> predictions; the first is what the others are compared with.
        sources: system -> what its predictions are called in error messages.
        settings: what else is known of how the figures come about.

    Raises:
        UserError: a prediction for a question that is not in the references.
    """
    image_ids = dict.fromkeys(reference.image_id for reference in references.values())
    images = {image_id: number for number, image_id in enumerate(image_ids)}
    columns: dict[str, Column] = {}
    problems, answered = {}, {}
    for name, predictions in systems.items():
        texts = _texts(references, predictions, (sources or {}).get(name, name))
        kinds = {references[question_id].kind for question_id in texts}
        answered[name] = kinds
        problems[name] = {MISSING: 0, BLANK: 0}
        for question_id, reference in references.items():
            if reference.kind not in kinds:
                continue
            predicted = texts.get(question_id, "")
            if question_id not in texts:
                problems[name][MISSING] += 1
            elif not predicted.strip():
                problems[name][BLANK] += 1
            for part, value in _parts(predicted, reference.text).items():
                key = f"{name}/{reference.kind}/{part}"
                column = columns.setdefault(key, np.zeros(len(images)))
                column[images[reference.image_id]] += value
    if not columns:
        raise UserError("the predictions files hold no prediction")
    counts = {kind: sum(r.kind == kind for r in references.values()) for kind in KINDS}
    counted = {}
    for name, named in _figures(answered, counts).items():
        own = {
            key.removeprefix(f"{name}/"): column
            for key, column in columns.items()
            if key.startswith(f"{name}/")
        }
        # Differences between systems need the columns of all of them.
        counted[name] = Counted({**own, **columns}, {PAPER: named, STRICT: named}, problems[name])
    clusters = [("image", image_id) for image_id in images]
    return make_scores(
        counted,
        clusters,
        settings or {},
        options or ScoreOptions(gt_mode=GT_MODE),
        # Both protocols have one definition.
        compared={PAPER: [f"{kind}/{metric}" for kind in KINDS for metric in METRICS]},
    )


def score_files(references: Path, predictions: Mapping[str, Path], options: ScoreOptions) -> Scores:
    """`score` on files; the settings carry the files' hashes.

    Raises:
        UserError: a file is unusable; the message names file and line or question.
    """
    if options.codec is not None:
        raise UserError(f"--codec={options.codec}: ViX-Ray's answers have no boxes; leave it out")
    if options.gt_mode != GT_MODE:
        raise UserError(
            f"--gt_mode={options.gt_mode}: expected '{GT_MODE}', the texts of the references"
        )
    records = list(read_records(references))
    true = read_references(records, str(references))
    settings = {
        "benchmark": "vix_ray",
        "datasets": sorted({record.dataset for record in records}),
        "splits": sorted({record.split for record in records}),
        "images": len({reference.image_id for reference in true.values()}),
        "questions": len(true),
        "gt_mode": GT_MODE,
        "words": "runs of letters and digits, lower case, NFC: syllables",
    }
    systems = {name: read_predictions(path) for name, path in predictions.items()}
    sources = {name: str(path) for name, path in predictions.items()}
    scores = score(true, systems, options, sources, settings)
    return scores.with_files(references, predictions)


def read_references(records: Iterable[QARecord], where: str) -> dict[str, Reference]:
    """Question id -> true text, of records of any stages.

    Raises:
        UserError: a record without an answer or of no stage, or none at all.
    """
    true = {}
    for record in records:
        kind = f"{record.question_strategy}/{record.question_type}"
        if kind not in KINDS:
            raise UserError(
                f"{where}: question {record.question_id} is of {kind}, expected question_strategy "
                f"and question_type among {', '.join(KINDS)}"
            )
        if not record.answers:
            raise UserError(
                f"{where}: question {record.question_id} has no answer; give a file of records/"
            )
        if record.question_id in true:
            raise UserError(f"{where}: question_id {record.question_id} stands there twice")
        true[record.question_id] = Reference(record.image_id, kind, record.answer_text)
    if not true:
        raise UserError(f"{where}: no records")
    return true


def _texts(
    references: Mapping[str, Reference], predictions: Iterable[Prediction], where: str
) -> dict[str, str]:
    predictions = list(predictions)
    check_known(predictions, references, where)
    return {prediction.question_id: prediction.text for prediction in predictions}


def _parts(predicted: str, reference: str) -> dict[str, float]:
    """What the figures are sums of, of one question."""
    blank = float(not predicted.strip())
    return {
        "questions": 1.0,
        "blank": blank,
        **text.rouge(predicted, reference),
        **text.bleu_statistics(predicted, reference),
    }


def _figures(
    answered: Mapping[str, set[str]], counts: Mapping[str, int]
) -> dict[str, dict[str, Figure | Estimate]]:
    first = next(iter(answered))
    figures: dict[str, dict[str, Figure | Estimate]] = {}
    for name, kinds in answered.items():
        named = figures[name] = {}
        for kind in KINDS:
            for metric in (*METRICS, "parse_failure_rate"):
                named[f"{kind}/{metric}"] = (
                    Figure(_formula(metric, f"{kind}/"), counts[kind])
                    if kind in kinds
                    else Estimate(None, None, None, 0)
                )
                if kind in kinds and metric in METRICS:
                    pairs = [(first, kind, f"minus/{first}")] if name != first else []
                    pairs += _stages_before(kind, answered)
                    for other, other_kind, label in pairs:
                        if other_kind in answered[other]:
                            formula = _difference(
                                metric, f"{name}/{kind}/", f"{other}/{other_kind}/"
                            )
                            key = f"{kind}/{label}/{metric}"
                            named[key] = Figure(formula, counts[kind])
        named["parse_failure_rate"] = Figure(
            _blank_share([f"{name}/{kind}/" for kind in kinds]),
            sum(counts[kind] for kind in kinds),
        )
    return figures


def _stages_before(kind: str, answered: Mapping[str, set[str]]) -> list[tuple[str, str, str]]:
    """(system, kind, label) of the single-turn answers that a stage-3 answer is compared with."""
    earlier = {"stage3/findings": "stage1/findings", "stage3/impression": "stage2/impression"}
    if kind not in earlier:
        return []
    stage = earlier[kind].split("/")[0]
    return [(other, earlier[kind], f"minus_{stage}/{other}") for other in answered]


def _formula(metric: str, prefix: str) -> Formula:
    def formula(sums: Sums) -> Float[np.ndarray, "sums"]:
        here = {key.removeprefix(prefix): v for key, v in sums.items() if key.startswith(prefix)}
        if metric == "bleu":
            return text.bleu(here)
        part = {"parse_failure_rate": "blank"}.get(metric, _ROUGE.get(metric, metric))
        with np.errstate(divide="ignore", invalid="ignore"):
            return here[part] / here["questions"]

    return formula


_ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}


def _difference(metric: str, prefix: str, other: str) -> Formula:
    one, two = _formula(metric, prefix), _formula(metric, other)
    return lambda sums: one(sums) - two(sums)


def _blank_share(prefixes: Sequence[str]) -> Formula:
    def formula(sums: Sums) -> Float[np.ndarray, "sums"]:
        blank = np.sum([sums[f"{prefix}blank"] for prefix in prefixes], axis=0)
        asked = np.sum([sums[f"{prefix}questions"] for prefix in prefixes], axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return blank / asked

    return formula


VIX_RAY = Benchmark(score_files=score_files, gt_modes=(GT_MODE,), markdown=markdown, rows=rows)
