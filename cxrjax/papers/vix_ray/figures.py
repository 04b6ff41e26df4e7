"""ViX-Ray (arXiv 2603.15513): texts of the three stages beside the references (Tables 4 to 6).

A predictions file may answer any of the four kinds of question (stage 1 findings, stage 2
impression, stage 3 both); kinds that it answers none of are null for it, a question that it leaves
out of a kind that it answers is scored as an empty text.

What the paper leaves open, and what is done here:

* Words and BLEU's order: ROUGE's F-measure as a mean over the reports, BLEU-1 to BLEU-4 over the
  corpus (sacrebleu), on syllables and, under `words/`, on the words of a segmenter. One definition
  for both protocols.
* Facts, with a judge: matched one to one. Precision and recall are means over the reports (macro),
  and, under `_micro`, of all facts together. What the judge failed at is left out under `paper`,
  and is 0 in means under `strict`; `judge_failure_rate` says how often. Of a surrogate judge all of
  this is called `surrogate/...`, as are the shares of facts by what is wrong with them (appendix
  D).
* `temporal/...`, `surrogate/weighted_errors`: what texts assert (`scoring/said_errors.py`); the
  errors, in per cent, are the weight of those in a hundred texts.
* History of stage 3's second turn: predictions say whether it was gold or their own (self).

Stages (Table 5): stage 3's findings minus stage 1's, its impressions minus stage 2's, of the same
system or, where its file lacks them, of the file named last before it that has them: of before,
stage1, stage2 and self, self is compared with stage1 and stage2. Before and after fine-tuning
(Tables 11, 12): every system minus the first one named, kind by kind. Intervals of differences are
of the pair, resampled together.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import Answers, Benchmark, Evaluated, References, read_references
from cxrjax.evaluation.figures import judge_failure_rate, judged_mean, quotient
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.said_errors import said_figures
from cxrjax.evaluation.scores import PAPER, STRICT, Counted, Outcome, ScoreOptions
from cxrjax.language_model.judges import metric_name
from cxrjax.metrics import classification, text
from cxrjax.metrics.bootstrap import Estimate, Figure, Formula, Sums
from cxrjax.papers.vix_ray.counts import (
    EARLIER,
    KINDS,
    VixRayCounts,
    VixRayQuestion,
    count_system,
    read_question,
)
from cxrjax.papers.vix_ray.noun_phrases import load_segmenter, words
from cxrjax.papers.vix_ray.tables import LAYOUT, METRICS, WORDS, markdown, rows
from cxrjax.radiology_text.facts import VIETNAMESE, FactLabel, align, is_refusal
from cxrjax.records import QARecord

GT_MODE = "report"
SEGMENTER = "pyvi"
NOTHING = Estimate(None, None, None, 0)
# Metric -> the part whose mean over the questions it is.
_MEANS = {
    "rouge_1": "rouge1",
    "rouge_2": "rouge2",
    "rouge_l": "rougeL",
    "parse_failure_rate": "blank",
    "refusal_rate": "refusals",
}
_JUDGED = ("fact_precision", "fact_recall")
# What is wrong with facts -> whose facts it is a share of: the answer's or the reference's.
_ERRORS = {
    FactLabel.CORRECT: "said",
    FactLabel.INCORRECT: "said",
    FactLabel.HALLUCINATED: "said",
    FactLabel.REDUNDANT: "said",
    FactLabel.MISSING: "true",
}


def count(
    references: References[VixRayQuestion], systems: Mapping[str, Answers], options: ScoreOptions
) -> Evaluated:
    """All systems counted; the first is what the others are compared with."""
    segmenter, judge = options.segmenter or SEGMENTER, options.judge
    tokenizers = {"": text.tokens, WORDS: _word_tokenizer(segmenter)}
    questions = references.questions
    counts = {
        name: count_system(name, questions, answers, tokenizers, judge)
        for name, answers in systems.items()
    }
    if not any(counted.kinds for counted in counts.values()):
        raise UserError("the predictions files hold no prediction")
    asked = {kind: sum(q.kind == kind for q in questions.values()) for kind in KINDS}
    # Differences between systems need the columns of all of them.
    every = {
        f"{name}/{key}": column
        for name, counted in counts.items()
        for key, column in counted.answers.columns.items()
    }
    counted = {
        name: Counted(
            {**own.answers.columns, **every},
            {
                protocol: _figures(name, counts, asked, options, protocol)
                for protocol in (PAPER, STRICT)
            },
            dict(own.answers.problems),
        )
        for name, own in counts.items()
    }
    settings = {
        "gt_mode": GT_MODE,
        "words": "runs of letters and digits, lower case, NFC: syllables",
        "segmenter": segmenter,
        "surrogate_judge": judge is not None and judge.surrogate,
        "histories": {name: own.history for name, own in counts.items()},
    }
    return Evaluated(counted, settings)


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """Says what came of a question by its facts, told apart by rules: right if all of them are."""
    if not prediction.text.strip():
        return Outcome(False, None, "no answer")
    if is_refusal(prediction.text):
        return Outcome(False, None, "declines to answer")
    labels = [part.label for part in align(prediction.text, record.answer_text, VIETNAMESE)]
    counts = {label: labels.count(label) for label in FactLabel}
    right = counts.pop(FactLabel.CORRECT)
    true = right + counts[FactLabel.INCORRECT] + counts[FactLabel.MISSING]
    wrong = ", ".join(f"{count} {label}" for label, count in counts.items() if count)
    note = f"{right} of {true} facts by rules" + (f"; {wrong}" if wrong else "")
    return Outcome(not wrong if labels else None, None, note)


def _word_tokenizer(segmenter: str) -> text.Tokenize:
    """Words of a segmenter in lower case, their syllables joined, marks left out."""
    segment = load_segmenter(segmenter)

    # Each text is cut for ROUGE and for BLEU, and a reference again for each system.
    @functools.lru_cache(maxsize=1 << 14)
    def tokenize(content: str) -> list[str]:
        return [word.lower() for word in words(segment, content)]

    return tokenize


def _figures(
    name: str,
    counts: Mapping[str, VixRayCounts],
    asked: Mapping[str, int],
    options: ScoreOptions,
    protocol: str,
) -> dict[str, Figure | Estimate]:
    """One system's figures under a protocol."""
    own = counts[name]
    named: dict[str, Figure | Estimate] = {}
    for kind in KINDS:
        formulas = _formulas(options, protocol)
        for metric, formula in formulas.items():
            key = f"{kind}/{metric}"
            named[key] = NOTHING
            if kind in own.kinds:
                named[key] = Figure(_at(formula, f"{kind}/"), asked[kind])
        # What a surrogate judge leaves empty, and no judge at all.
        for metric in METRICS:
            named.setdefault(f"{kind}/{metric}", NOTHING)
        for other, other_kind, label in _beside(name, kind, counts):
            for metric, formula in formulas.items():
                if metric not in METRICS and "fact_" not in metric:
                    continue
                difference = _difference(
                    _at(formula, f"{name}/{kind}/"), _at(formula, f"{other}/{other_kind}/")
                )
                named[f"{kind}/{label}/{metric}"] = Figure(difference, asked[kind])
    kinds = [kind for kind in KINDS if kind in own.kinds]
    named["parse_failure_rate"] = Figure(_blank_rate(kinds), sum(asked[kind] for kind in kinds))
    return named


def _beside(name: str, kind: str, counts: Mapping[str, VixRayCounts]) -> list[tuple[str, str, str]]:
    """(system, kind, label) of what this kind of a system's answers is compared with."""
    if kind not in counts[name].kinds:
        return []
    first = next(iter(counts))
    pairs = [(first, kind, f"minus/{first}")] if name != first else []
    if kind in EARLIER:
        earlier = EARLIER[kind]
        stage = earlier.split("/")[0]
        names = list(counts)
        nearest = [*names[names.index(name) :: -1], *names[names.index(name) :]]
        other = next((other for other in nearest if earlier in counts[other].kinds), None)
        pairs += [(other, earlier, f"minus_{stage}/{other}")] if other else []
    return [pair for pair in pairs if pair[1] in counts[pair[0]].kinds]


def _formulas(options: ScoreOptions, protocol: str) -> dict[str, Formula]:
    """Metric of one kind of question -> its formula, of sums without the kind in their names."""
    formulas: dict[str, Formula] = {}
    for prefix in ("", WORDS):
        for order in range(1, text.BLEU_ORDER + 1):
            formulas[f"{prefix}bleu_{order}"] = _at(_bleu(order), prefix)
        for metric in ("rouge_1", "rouge_2", "rouge_l"):
            formulas[prefix + metric] = quotient(prefix + _MEANS[metric], "questions")
    for metric in ("parse_failure_rate", "refusal_rate"):
        formulas[metric] = quotient(_MEANS[metric], "questions")
    formulas |= {metric: figure.formula for metric, figure in said_figures().items()}
    if (judge := options.judge) is not None:
        judged = {
            **{m: judged_mean(m, "judged", "questions", protocol) for m in _JUDGED},
            "fact_precision_micro": quotient("facts_matched", "facts_predicted"),
            "fact_recall_micro": quotient("facts_matched", "facts_true"),
            "judge_failure_rate": judge_failure_rate("judged", "questions"),
        }
        formulas |= {metric_name(judge, metric): formula for metric, formula in judged.items()}
        if judge.surrogate:
            for label, whole in _ERRORS.items():
                formulas[f"surrogate/{label}_rate"] = quotient(f"errors/{label}", f"errors/{whole}")
    return formulas


def _at(formula: Formula, prefix: str) -> Formula:
    """The formula on the sums whose names begin so."""
    if not prefix:
        return formula

    def inner(sums: Sums) -> Float[np.ndarray, " sums"]:
        return formula(
            {key.removeprefix(prefix): v for key, v in sums.items() if key.startswith(prefix)}
        )

    return inner


def _bleu(order: int) -> Formula:
    return lambda sums: text.bleu(sums, order)


def _blank_rate(kinds: Sequence[str]) -> Formula:
    """Figures over all kinds together."""
    return lambda sums: classification.ratio(
        sum(sums[f"{kind}/blank"] for kind in kinds),
        sum(sums[f"{kind}/questions"] for kind in kinds),
    )


def _difference(one: Formula, two: Formula) -> Formula:
    return lambda sums: one(sums) - two(sums)


VIX_RAY = Benchmark(
    name="vix_ray",
    gt_modes=(GT_MODE,),
    has_floors=False,
    layout=LAYOUT,
    read=lambda records, source, gt_mode: read_references(records, source, read_question),
    count=count,
    outcome=outcome,
    own_markdown=markdown,
    own_rows=rows,
    uses=frozenset({"judge", "segmenter"}),
)
