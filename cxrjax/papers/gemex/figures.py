"""GEMeX (arXiv 2411.16778): Tables 5 and 6 under two protocols.

Answers are text, `<answer> ... <reason> ... <location> [[...]]` or any other; boxes are a line's
own, else those that the codec (default: `gemex`) finds in its text.

* A-score of closed, single-choice and multi-choice questions (section 4.2): the share whose
  options are named exactly. Of answers in another form they are matched from the response
  (`choices.py`). Who names none is wrong. `paper`: null where no answer of the type
  could be matched, the paper's blank cell; that unmatched answers are wrong there too is read from
  its closed questions, where several models stand far below the 50 % of a coin. `strict`: 0 then.
  Beside it `jaccard` and `micro_f1` of the options, `answer_failure_rate`, and `chance`, what a
  blind guess gets: the paper's row "Random"; `ceiling`, what the references' own words get.
* V-score (section 4.2): mean over questions of `cxrjax.metrics.localization`. The paper leaves the
  denominator open: `paper` is the lenient one, null where a system gives no box in the type,
  `strict` the larger number of boxes; `v_score_strict`, `_lenient` and `_truth` stand in both.
* ROUGE-L (mean), BLEU-1 (corpus) and, with a model at hand, BERTScore (mean F1) of answer and
  reason without tags and boxes (Table 6). The paper names neither what it compares nor its words.
* AR-score (section 4.2), with a judge: mean over questions of the answer's marks by the
  reference's, above 1 where the judge likes it better, and `ar_score_capped` with 1 at most.
  `paper`: the reference is read first, and what the judge failed at is left out; `strict`: both
  orders, and a failure at either counts as 0. `judge_failure_rate` says how
  often. `ar_score` is the unweighted mean of the four types, as in Table 5. Of a surrogate judge
  all of this is called `surrogate/...`.

A prediction that is missing is wrong everywhere. `n`: questions; of A-scores, those with options.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cxrjax.evaluation.benchmark import Answers, Benchmark, Evaluated, SystemCounts, read_references
from cxrjax.evaluation.bert_score import BertScorer
from cxrjax.evaluation.figures import (
    break_down,
    judge_failure_rate,
    judged_mean,
    of,
    quotient,
    share,
)
from cxrjax.evaluation.matched_boxes import ScoredAnswers, question_figures
from cxrjax.evaluation.said_errors import said_figures
from cxrjax.evaluation.scores import PAPER, STRICT, Counted, ScoreOptions, Scores
from cxrjax.evaluation.tables import load_layout
from cxrjax.language_model.judges import metric_name
from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Attributes, Estimate, Figure, Formula, Sums
from cxrjax.metrics.text import bleu
from cxrjax.papers.gemex.counts import (
    BLEU_1,
    BOTH_ORDERS,
    REFERENCE_FIRST,
    ceiling_columns,
    count_system,
    outcome,
)
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES
from cxrjax.papers.gemex.truth import GemexReferences, read_question
from cxrjax.papers.sources.regions import load_regions

GT_MODE = "exact"
BROKEN_DOWN_BY = ("content_type", "view", "sex", "age")
KEYED_TYPES = tuple(kind for kind in QUESTION_TYPES if kind != "open_ended")
_NO_FIGURE = Estimate(None, None, None, 0)

Named = dict[str, Figure | Estimate]


def count(
    references: GemexReferences, systems: Mapping[str, Answers], options: ScoreOptions
) -> Evaluated:
    """All systems counted."""
    codec, judge = options.box_codec, options.judge
    bert_score = BertScorer(options.bert_score) if options.bert_score else None
    attributes, ceiling = _attributes(references), ceiling_columns(references)
    counted = {}
    for name, answers in systems.items():
        scored = ScoredAnswers()
        counts = count_system(
            references,
            answers,
            codec,
            system=name,
            judge=judge,
            bert_score=bert_score,
            scored=scored,
        )
        figures = _figures(counts, attributes)
        boxes = scored.counted(references.clusters, options.bootstrap)
        figures[STRICT] |= {**question_figures(), **boxes.figures}
        # Of answers with options.
        calibrated, calibration, curves = counts.calibration(
            "right", "keyed", references.clusters, options.bootstrap
        )
        figures[STRICT] |= calibration
        if judge is not None:
            for protocol, named in _ratings(counts).items():
                figures[protocol] |= {metric_name(judge, n): f for n, f in named.items()}
        counted[name] = Counted(
            {**counts.columns, **calibrated, **boxes.columns, **ceiling},
            figures,
            dict(counts.problems),
            curves | boxes.curves,
            boxes.ranked,
        )
    questions = references.questions.values()
    settings = {
        "questions_without_key": sum(q.kind in KEYED_TYPES and q.key is None for q in questions),
        "gt_mode": GT_MODE,
        "codec": (codec.name if codec else "gemex") + ", where a line has no boxes",
        "bert_score": bert_score.name if bert_score else None,
        "surrogate_judge": judge is not None and judge.surrogate,
    }
    return Evaluated(counted, settings, attributes)


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


def _figures(counts: SystemCounts, attributes: Attributes) -> dict[str, Named]:
    shared: Named = {
        **counts.figures(),
        "in_form_rate": share("in_form", "questions"),
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
            **said_figures(),
            "fact_f1": Figure(
                of(classification.f1, "facts/tp", "facts/fp", "facts/fn"), "facts/asked"
            ),
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
    """Figures over questions that have options, and references that name some of them."""
    right = quotient("right", "keyed")
    formulas: dict[str, Formula] = {
        "a_score": _unless_none("named", right) if protocol == PAPER else right,
        "jaccard": quotient("jaccard", "keyed"),
        "micro_f1": of(classification.f1, "found", "wrong", "missed"),
        "answer_failure_rate": lambda sums: 1 - classification.ratio(sums["named"], sums["keyed"]),
        "chance": quotient("chance", "keyed"),
        "ceiling": quotient("ceiling/right", "keyed"),
    }
    return {name: Figure(formula, "keyed") for name, formula in formulas.items()}


def _other_figures(protocol: str, counts: SystemCounts) -> dict[str, Figure]:
    """Figures over all questions."""
    strict, lenient = quotient("v_strict", "questions"), quotient("v_lenient", "questions")
    formulas: dict[str, Formula] = {
        "v_score": _unless_none("boxed", lenient) if protocol == PAPER else strict,
        "v_score_strict": strict,
        "v_score_lenient": lenient,
        "v_score_truth": quotient("v_truth", "questions"),
        "boxes_on_neither_side": quotient("no_boxes_at_all", "questions"),
        "parse_failure_rate": quotient("parse_failures", "questions"),
        "rouge_l": quotient("rouge_l", "questions"),
        "bleu_1": lambda sums: bleu({name: sums[name] for name in BLEU_1}, order=1),
    }
    if "bert_score" in counts.columns:
        formulas["bert_score"] = quotient("bert_score", "questions")
    return {name: Figure(formula, "questions") for name, formula in formulas.items()}


def _ratings(counts: SystemCounts) -> dict[str, Named]:
    """The judge's figures, by protocol."""
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


def _words(scores: Scores) -> dict[str, str]:
    """Words of the heading on BERTScore and keys."""
    without = scores.settings["questions_without_key"]
    return {
        "bert_score": scores.settings["bert_score"] or "no model was given (--bertscore_model)",
        "unkeyed": f"\n{without:,} references name no option: no A-score is taken of them.\n"
        if without
        else "",
    }


GEMEX = Benchmark(
    name="gemex",
    gt_modes=(GT_MODE,),
    layout=load_layout(str(__package__)),
    read=lambda records, source, gt_mode: read_references(records, source, read_question),
    count=count,
    outcome=outcome,
    words=_words,
    free_text=lambda record: record.question_type == "open_ended",
    uses=frozenset({"codec", "judge", "bert_score", "radeval"}),
)
