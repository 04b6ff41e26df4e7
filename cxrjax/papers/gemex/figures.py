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
  denominator open: `paper` is the lenient one over questions with a reference box, null where a
  system gives no box in the type, `strict` the larger number of boxes, over questions with a box on
  either side; `v_score_strict`, `_lenient` and `_truth`, of questions with a reference box, are in
  both. References without any box have no V-score.
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
from jaxtyping import Float

from cxrjax.evaluation.benchmark import Answers, Benchmark, Evaluated, SystemCounts, read_references
from cxrjax.evaluation.counted import STRICT, Counted
from cxrjax.evaluation.figure_lines import Figures, make_figures
from cxrjax.evaluation.figures import NO_FIGURE
from cxrjax.evaluation.layout import Layout, load_layout
from cxrjax.evaluation.matched_boxes import ScoredAnswers
from cxrjax.evaluation.scores import ScoreOptions, Scores
from cxrjax.evaluation.text_scores.bert_score import BertScorer
from cxrjax.language_model.judges.judge import Judge, metric_name
from cxrjax.metrics.bootstrap import Attributes, Figure, Sums
from cxrjax.metrics.classification import ratio
from cxrjax.papers.gemex.counts import (
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


class _Layout(Layout):
    """Tables whose heading tells of BERTScore and of references without a key."""

    def words(self, scores: Scores) -> Mapping[str, str]:
        without = scores.settings["questions_without_key"]
        return {
            "bert_score": scores.settings["bert_score"] or "no model was given (--bertscore_model)",
            "unkeyed": f"\n{without:,} references name no option: no A-score is taken of them.\n"
            if without
            else "",
        }


LAYOUT = load_layout(str(__package__), _Layout)


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
        figures = _figures(counts, attributes, judge)
        boxes = scored.counted(references.clusters, options.bootstrap)
        figures[STRICT] |= boxes.figures
        # Of answers with options.
        calibrated, calibration, curves = counts.calibration(
            "right", "keyed", references.clusters, options.bootstrap
        )
        figures[STRICT] |= calibration
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


def _figures(
    counts: SystemCounts, attributes: Attributes, judge: Judge | None
) -> dict[str, Figures]:
    with_bert = "bert_score" in counts.columns
    kinds = [kind for kind in QUESTION_TYPES if f"asked/{kind}" in counts.columns]
    rated = [line for line in LAYOUT.lines if "ar_score" in line.name or "judge" in line.name]
    others = [
        line
        for line in LAYOUT.lines
        if line not in rated and (with_bert or line.name != "bert_score")
    ]
    names = {"question_type": QUESTION_TYPES, "keyed": KEYED_TYPES, "judged_type": kinds}
    figures = make_figures(others, attributes, names)
    undefined: Figures = dict.fromkeys(_RATINGS, NO_FIGURE)
    undefined |= {} if with_bert else dict.fromkeys(_of_types("bert_score"), NO_FIGURE)
    for protocol, named in figures.items():
        figures[protocol] = {**undefined, **named, **counts.figures()}
        if judge is not None:
            found = make_figures(rated, None, names, {"mean_rating": _mean_rating}, [protocol])
            marks = {**dict.fromkeys(_RATINGS, NO_FIGURE), **found[protocol]}
            if len(kinds) < len(QUESTION_TYPES):
                marks |= dict.fromkeys(("ar_score", "ar_score_capped"), NO_FIGURE)
            figures[protocol] |= {metric_name(judge, n): f for n, f in marks.items()}
    both = {name: figures[STRICT][name] for name in ("a_score", "v_score")}
    for attribute in attributes:
        if attribute.startswith("region/"):
            region = attribute.removeprefix("region/")
            figures[STRICT] |= {
                f"by_region/{name}/{region}": replace(figure, within=(attribute, "yes"))
                for name, figure in both.items()
                if isinstance(figure, Figure)
            }
    return figures


def _of_types(name: str) -> list[str]:
    return [name, *(f"by_question_type/{name}/{kind}" for kind in QUESTION_TYPES)]


_RATINGS = [*_of_types("ar_score"), *_of_types("ar_score_capped")]


def _mean_rating(sums: Sums, rating: str, part: str, whole: str) -> Float[np.ndarray, " sums"]:
    """Mean of the question types' marks; undefined where the judge failed at all of a type."""
    means = [
        np.where(
            sums[f"{rating}/judged/{kind}"] > 0,
            ratio(sums[f"{rating}/{part}/{kind}"], sums[f"{whole}/{kind}"]),
            np.nan,
        )
        for kind in QUESTION_TYPES
    ]
    return np.mean(means, axis=0)


GEMEX = Benchmark(
    "gemex",
    LAYOUT,
    read=lambda records, source, gt_mode: read_references(records, source, read_question),
    count=count,
    outcome=outcome,
)
