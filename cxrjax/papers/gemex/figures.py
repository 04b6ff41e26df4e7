"""GEMeX (arXiv 2411.16778): Tables 5 and 6 under two protocols.

Answers are text, `<answer> ... <reason> ... <location> [[...]]` or any other; boxes are a line's
own, else those that the codec (default: `gemex`) finds in its text.

* A-score of closed, single-choice and multi-choice questions (section 4.2): the share whose
  options are named exactly. Of answers in another form they are matched from the response
  (`choices.py`). Who names none is wrong. `paper`: null where no answer of the type
  could be matched, the paper's blank cell; that unmatched answers are wrong there too is read from
  its closed questions, where several models stand far below the 50 % of a coin. `strict`: 0 then.
  Beside it `jaccard` and `micro_f1` of the options, `answer_failure_rate`, and `chance`, what a
  blind guess gets: the paper's row "Random".
* V-score (section 4.2): mean over questions of `cxrjax.metrics.localization`. The paper leaves the
  denominator open: `paper` is the lenient one, null where a system gives no box in the type,
  `strict` the larger number of boxes; `v_score_strict`, `_lenient` and `_truth` stand in both.
* ROUGE-L (mean), BLEU-1 (corpus) and, with a model at hand, BERTScore (mean F1) of answer and
  reason without tags and boxes (Table 6). The paper names neither what it compares nor its words.
* AR-score (section 4.2), with a judge: mean over questions of the answer's marks by the
  reference's, above 1 where the judge likes it better, and `ar_score_capped` with 1 at most.
  `paper`: the reference is read first, and what the judge failed at is left out; `strict`: both
  orders, and a failure at either counts as 0 (judge_failures.py). `judge_failure_rate` says how
  often. `ar_score` is the unweighted mean of the four types, as in Table 5. Of a surrogate judge
  all of this is called `surrogate/...`.

A prediction that is missing is wrong everywhere. `n`: questions; of A-scores, those with options.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.codecs import get_codec
from cxrjax.errors import UserError
from cxrjax.files import hash_lines
from cxrjax.language_model.judges import metric_name
from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Attributes, Columns, Estimate, Figure, Formula, Sums
from cxrjax.metrics.text import bleu
from cxrjax.papers.gemex.cases import outcome
from cxrjax.papers.gemex.counts import (
    BLEU_1,
    BOTH_ORDERS,
    GEMEX_PROBLEMS,
    REFERENCE_FIRST,
    SystemCounts,
    count_system,
)
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES
from cxrjax.papers.gemex.tables import BROKEN_DOWN_BY, TABLES, markdown, rows
from cxrjax.papers.gemex.truth import GemexReferences, read_references
from cxrjax.papers.sources.regions import load_regions
from cxrjax.records import read_records
from cxrjax.scoring.bert_score import BertScorer
from cxrjax.scoring.figures import answer_calibration, break_down, of, quotient
from cxrjax.scoring.judge_failures import judge_failure_rate, judged_mean
from cxrjax.scoring.predictions import Prediction, read_predictions
from cxrjax.scoring.scores import (
    PAPER,
    STRICT,
    Benchmark,
    Counted,
    ScoreOptions,
    Scores,
    make_scores,
)
from cxrjax.scoring.tables import table_metrics

GT_MODE = "exact"
# What a training run logs.
LOGGED = (
    "a_score",
    "v_score",
    "rouge_l",
    "bleu_1",
    *(f"by_question_type/a_score/{kind}" for kind in QUESTION_TYPES if kind != "open_ended"),
    *(f"by_question_type/v_score/{kind}" for kind in QUESTION_TYPES),
    "parse_failure_rate",
    "in_form_rate",
)
KEYED_TYPES = tuple(kind for kind in QUESTION_TYPES if kind != "open_ended")
_NO_FIGURE = Estimate(None, None, None, 0)

Named = dict[str, Figure | Estimate]


def score(
    references: GemexReferences,
    systems: Mapping[str, Iterable[Prediction]],
    options: ScoreOptions,
    sources: Mapping[str, str] | None = None,
) -> Scores:
    """Figures of several systems on one set of references.

    Args:
        systems: name -> predictions, at most one per question.
        sources: system -> what its predictions are called in error messages; default: its name.

    Raises:
        UserError: predictions for unknown questions, or options that cannot be used.
    """
    if options.gt_mode != GT_MODE:
        raise UserError(
            f"--gt_mode={options.gt_mode}: expected '{GT_MODE}', the answers' own boxes"
        )
    codec = get_codec(options.codec) if options.codec else None
    bert_score = BertScorer(options.bert_score) if options.bert_score else None
    judge = options.judge
    attributes = _attributes(references)
    counted = {}
    for name, predictions in systems.items():
        counts = count_system(
            references,
            predictions,
            codec,
            (sources or {}).get(name, name),
            system=name,
            judge=judge,
            bert_score=bert_score,
        )
        figures = _figures(references, counts, attributes)
        calibrated, calibration, curves = _calibration(counts)
        figures[STRICT] |= calibration
        if judge is not None:
            ratings = _ratings(counts)
            for protocol, named in ratings.items():
                figures[protocol] |= {metric_name(judge, n): f for n, f in named.items()}
        counted[name] = Counted(
            {**counts.columns, **calibrated}, figures, dict(counts.problems), curves
        )
    settings = {
        "benchmark": "gemex",
        "datasets": references.datasets,
        "splits": references.splits,
        "split_sha256": hash_lines(references.images),
        "images": len(references.images),
        "questions": len(references.questions),
        "questions_without_key": references.without_key,
        "gt_mode": GT_MODE,
        "codec": (codec.name if codec else "gemex") + ", where a line has no boxes",
        "bert_score": bert_score.name if bert_score else None,
        "surrogate_judge": judge is not None and judge.surrogate,
    }
    clusters = [question.cluster for question in references.questions.values()]
    return make_scores(
        counted, clusters, settings, options, attributes, compared=table_metrics(TABLES)
    )


def score_files(references: Path, predictions: Mapping[str, Path], options: ScoreOptions) -> Scores:
    """`score` on files; the settings carry the files' hashes.

    Raises:
        UserError: a file is unusable; the message names file and line or question.
    """
    true = read_references(read_records(references), str(references))
    systems = {name: read_predictions(path) for name, path in predictions.items()}
    sources = {name: str(path) for name, path in predictions.items()}
    return score(true, systems, options, sources).with_files(references, predictions)


def _attributes(references: GemexReferences) -> Attributes:
    questions = references.questions.values()
    named = {region for question in questions for region in question.regions}
    return {
        "question_type": [question.kind for question in questions],
        **{name: [q.attributes[name] for q in questions] for name in BROKEN_DOWN_BY},
        # A question may be about several regions, and then counts in each.
        **{
            f"region/{region}": ["yes" if region in q.regions else None for q in questions]
            for region in load_regions().regions
            if region in named
        },
    }


def _figures(
    references: GemexReferences, counts: SystemCounts, attributes: Attributes
) -> dict[str, Named]:
    n = len(references.questions)
    shared: Named = {
        "parse_failure_rate": Figure(quotient("failed", "questions"), "questions"),
        **{
            f"parse_failure_rate/{name}": Estimate(count / n, None, None, n)
            for name, count in counts.failures.items()
        },
        **{
            f"problems/{name}": Estimate(counts.problems[name], None, None, n)
            for name in GEMEX_PROBLEMS
        },
        "in_form_rate": Figure(quotient("in_form", "questions"), "questions"),
        **dict.fromkeys(_rating_names(), _NO_FIGURE),
    }
    if "bert_score" not in counts.columns:
        kinds = ["", *(f"/{kind}" for kind in QUESTION_TYPES)]
        shared |= {f"{_by_type(kind)}bert_score{kind}": _NO_FIGURE for kind in kinds}
    figures: dict[str, Named] = {}
    kinds_of = attributes["question_type"]
    for protocol in (PAPER, STRICT):
        options, others = _option_figures(protocol), _other_figures(protocol, counts)
        figures[protocol] = {
            **shared,
            **options,
            **others,
            **break_down(options, "question_type", kinds_of, keys=KEYED_TYPES),
            **break_down(others, "question_type", kinds_of, keys=QUESTION_TYPES),
        }
    both = {"a_score": options["a_score"], "v_score": others["v_score"]}
    for name in BROKEN_DOWN_BY:
        figures[STRICT] |= break_down(both, name, attributes[name])
    for attribute in attributes:
        if attribute.startswith("region/"):
            region = attribute.removeprefix("region/")
            figures[STRICT] |= {
                f"by_region/{name}/{region}": replace(figure, within=(attribute, "yes"))
                for name, figure in both.items()
            }
    return figures


def _by_type(kind: str) -> str:
    return "by_question_type/" if kind else ""


def _option_figures(protocol: str) -> dict[str, Figure]:
    """Of questions that have options, and references that name some of them."""
    right = quotient("right", "keyed")
    formulas: dict[str, Formula] = {
        "a_score": _unless_none("named", right) if protocol == PAPER else right,
        "jaccard": quotient("jaccard", "keyed"),
        "micro_f1": of(classification.f1, "found", "wrong", "missed"),
        "answer_failure_rate": lambda sums: 1 - classification.ratio(sums["named"], sums["keyed"]),
        "chance": quotient("chance", "keyed"),
    }
    return {name: Figure(formula, "keyed") for name, formula in formulas.items()}


def _other_figures(protocol: str, counts: SystemCounts) -> dict[str, Figure]:
    """Of all questions."""
    strict, lenient = quotient("v_strict", "questions"), quotient("v_lenient", "questions")
    formulas: dict[str, Formula] = {
        "v_score": _unless_none("boxed", lenient) if protocol == PAPER else strict,
        "v_score_strict": strict,
        "v_score_lenient": lenient,
        "v_score_truth": quotient("v_truth", "questions"),
        "boxes_on_neither_side": quotient("no_boxes_at_all", "questions"),
        "parse_failure_rate": quotient("failed", "questions"),
        "rouge_l": quotient("rouge_l", "questions"),
        "bleu_1": lambda sums: bleu({name: sums[name] for name in BLEU_1}, order=1),
    }
    if "bert_score" in counts.columns:
        formulas["bert_score"] = quotient("bert_score", "questions")
    return {name: Figure(formula, "questions") for name, formula in formulas.items()}


def _calibration(counts: SystemCounts) -> tuple[Columns, Named, dict[str, Any]]:
    """How sure answers with options are, by the probability of their whole text, against A."""
    known = np.flatnonzero(np.isfinite(counts.confidence) & (counts.columns["keyed"] > 0))
    return answer_calibration(
        counts.confidence[known], counts.columns["right"][known], known, len(counts.confidence)
    )


def _ratings(counts: SystemCounts) -> dict[str, Named]:
    """What the judge said, by protocol."""
    figures: dict[str, Named] = {}
    for protocol, rating in ((PAPER, REFERENCE_FIRST), (STRICT, BOTH_ORDERS)):
        failed = judge_failure_rate(f"{rating}/judged", "questions")
        named = figures[protocol] = {"judge_failure_rate": Figure(failed, "questions")}
        for name, part in (("ar_score", "ratio"), ("ar_score_capped", "capped")):
            means = {}
            for kind in QUESTION_TYPES:
                total, judged = f"{rating}/{part}/{kind}", f"{rating}/judged/{kind}"
                asked = f"asked/{kind}"
                if asked in counts.columns:
                    means[kind] = judged_mean(total, judged, asked, protocol)
                    n = judged if protocol == PAPER else asked
                    named[f"by_question_type/{name}/{kind}"] = Figure(means[kind], n)
            named[name] = (
                Figure(_mean_of(list(means.values())), "questions")
                if len(means) == len(QUESTION_TYPES)
                else _NO_FIGURE
            )
    return {
        protocol: {**dict.fromkeys(_rating_names(), _NO_FIGURE), **named}
        for protocol, named in figures.items()
    }


def _rating_names() -> list[str]:
    return [
        name
        for score_name in ("ar_score", "ar_score_capped")
        for name in (
            score_name,
            *(f"by_question_type/{score_name}/{kind}" for kind in QUESTION_TYPES),
        )
    ]


def _unless_none(column: str, formula: Formula) -> Formula:
    """Undefined where the column is 0: the paper's blank cells."""
    return lambda sums: np.where(sums[column] > 0, formula(sums), np.nan)


def _mean_of(formulas: list[Formula]) -> Formula:
    def mean(sums: Sums) -> np.ndarray:
        return np.mean([formula(sums) for formula in formulas], axis=0)

    return mean


GEMEX = Benchmark(
    score_files=score_files,
    gt_modes=(GT_MODE,),
    markdown=markdown,
    rows=rows,
    outcome=outcome,
    uses_judge=True,
    uses_bert_score=True,
    logged={STRICT: LOGGED},
)
