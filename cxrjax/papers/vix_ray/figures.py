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
* `temporal/...`, `surrogate/weighted_errors`: assertions (`text_scores/assertion_errors.py`); the
  errors, in per cent, are the weight of those in a hundred texts.
* History of stage 3's second turn: predictions say whether it was gold or their own (self).

Stages (Table 5): stage 3's findings minus stage 1's, its impressions minus stage 2's, of the same
system or, where its file lacks them, of the file named last before it that has them: of before,
stage1, stage2 and self, self is compared with stage1 and stage2. Before and after fine-tuning
(Tables 11, 12): every system minus the first one named, kind by kind. Intervals of differences are
of the pair, resampled together.
"""

import functools
from collections.abc import Mapping

from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import Answers, Benchmark, Evaluated, References, read_references
from cxrjax.evaluation.counted import PAPER, STRICT, Counted, Outcome
from cxrjax.evaluation.figure_lines import Figures, make_figures, under
from cxrjax.evaluation.figures import NO_FIGURE, share
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.language_model.judges.judge import metric_name
from cxrjax.metrics import text
from cxrjax.metrics.bootstrap import Figure, Formula
from cxrjax.papers.vix_ray.counts import (
    EARLIER,
    KINDS,
    VixRayCounts,
    VixRayQuestion,
    count_system,
    read_question,
)
from cxrjax.papers.vix_ray.segmenters import load_segmenter, words
from cxrjax.papers.vix_ray.tables import LAYOUT, METRICS, WORDS
from cxrjax.radiology_text.facts import VIETNAMESE, FactLabel, align, is_refusal
from cxrjax.records import QARecord

GT_MODE = "report"
SEGMENTER = "pyvi"


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
    # Differences between systems need the columns of all of them.
    every = {
        f"{name}/{key}": column
        for name, counted in counts.items()
        for key, column in counted.answers.columns.items()
    }
    counted = {
        name: Counted(
            {**own.answers.columns, **every},
            {protocol: _figures(name, counts, options, protocol) for protocol in (PAPER, STRICT)},
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
    """Returns a question's outcome by its facts, compared by rules: correct if all of them are."""
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
    name: str, counts: Mapping[str, VixRayCounts], options: ScoreOptions, protocol: str
) -> Figures:
    """One system's figures under a protocol."""
    own, judge = counts[name], options.judge
    prefix = "" if judge is None else metric_name(judge, "")
    names = {
        "judged": [] if judge is None else [prefix],
        "guessed": [prefix] if prefix else [],
    }
    metrics = make_figures(LAYOUT.lines, None, names, protocols=[protocol])[protocol]
    formulas = {metric: f.formula for metric, f in metrics.items() if isinstance(f, Figure)}
    found: Figures = {}
    for kind in KINDS:
        n = f"{kind}/questions"
        # What a surrogate judge leaves empty, and no judge at all.
        for metric in dict.fromkeys((*formulas, *METRICS)):
            found[f"{kind}/{metric}"] = NO_FIGURE
            if kind in own.kinds and metric in formulas:
                found[f"{kind}/{metric}"] = Figure(under(f"{kind}/", formulas[metric]), n)
        for other, other_kind, label in _beside(name, kind, counts):
            for metric, formula in formulas.items():
                if metric in METRICS or "fact_" in metric:
                    difference = _difference(
                        under(f"{name}/{kind}/", formula), under(f"{other}/{other_kind}/", formula)
                    )
                    found[f"{kind}/{label}/{metric}"] = Figure(difference, n)
    return found | {"parse_failure_rate": share("parse_failures", "questions")}


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


def _difference(one: Formula, two: Formula) -> Formula:
    return lambda sums: one(sums) - two(sums)


VIX_RAY = Benchmark(
    "vix_ray",
    LAYOUT,
    read=lambda records, source, gt_mode: read_references(records, source, read_question),
    count=count,
    outcome=outcome,
    gt_modes=(GT_MODE,),
)
