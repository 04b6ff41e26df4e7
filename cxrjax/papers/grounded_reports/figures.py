"""Scores of grounded reports: what sentences say is there, on which side, and in which boxes.

* `grounded`: each box once for every finding that its sentence affirms, matched one to one with
  boxes of the reference of the same finding and side. The side of a bilateral finding is that of
  the box. A sentence whose words the reader does not know is its own finding, by its words.
* `sentences`: pairs of sentences that say the same, whose boxes cover the same region (IoU > 0.5),
  of all sentences with boxes.
* `findings`, `observations`: sets of findings affirmed in a report, and CheXpert's classes of them.
* `changes`: findings and sides that the reference calls new, worse, better, unchanged or resolved;
  right where the answer uses the same word.

Rules read English, Vietnamese and Chinese; of other languages only words and boxes are compared.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cxrjax.codecs import Codec
from cxrjax.evaluation import benchmark
from cxrjax.evaluation.counted import Counted, Outcome
from cxrjax.evaluation.figure_lines import make_figures
from cxrjax.evaluation.layout import load_layout
from cxrjax.evaluation.matched_boxes import question_columns
from cxrjax.evaluation.predictions import PROBLEMS, Prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.evaluation.text_scores import assertion_errors, report_floors, sentences
from cxrjax.metrics import text
from cxrjax.metrics.classification import set_counts
from cxrjax.metrics.detection import join_images
from cxrjax.metrics.localization import region_areas, region_iou
from cxrjax.papers.grounded_reports.sources import WORDS
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.facts import pair_up, same
from cxrjax.records import QARecord

LAYOUT = load_layout(str(__package__))
_SETS = [f"{of}/{part}" for of in ("findings", "observations") for part in ("tp", "fp", "fn")]
_Sentences = Sequence[sentences.GroundedSentence]
_References = benchmark.References[sentences.ReferenceText]


def _units(said: _Sentences, lang: str, known: dict[Any, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the boxes, and the number of the finding and side of each."""
    boxes, classes = [np.zeros((0, 4))], []
    for one in said:
        for (finding, side), box in itertools.product(
            report_floors.named_findings(one, lang), one.boxes
        ):
            own = ("right" if box[0] + box[2] < 1 else "left") if side == "bilateral" else side
            classes.append(known.setdefault((finding, own), len(known)))
            boxes.append(box[None])
    return np.concatenate(boxes), np.array(classes, np.int64)


def _findings(said: Iterable[Assertion]) -> tuple[set[str], set[str]]:
    """Returns the findings that are affirmed, and CheXpert's observations among them."""
    names = {one.finding for one in said if not one.denies}
    above = load_definitions().finding_ancestors
    every = {up for name in names for up in (name, *above(name))}
    return names, {name for name, of in WORDS["observations"].items() if every & set(of)}


def _in_words(said: _Sentences, true: sentences.ReferenceText) -> dict[str, float]:
    """Returns the columns of a report beside those of its boxes."""
    lang, parts = true.lang, (said, true.sentences)
    row = text.likeness(*map(sentences.plain_text, parts))
    row |= {"questions": 1.0, "contentless": float(not said)}
    if lang in report_floors.READ:
        here, there = (report_floors.assertions_of(of, lang) for of in parts)
        both = zip(_findings(here), _findings(there), strict=True)
        counts = [count for pair in both for count in set_counts(*pair)]
        row |= dict(zip(_SETS, map(float, counts), strict=True))
        row |= assertion_errors.count_said(here, there) | {"contentless": not here, "read": 1.0}
    pairs = pair_up([one.text for one in said], [one.text for one in true.sentences], lang)
    alike = [(said[p], true.sentences[t]) for p, t in pairs]
    areas = [region_areas(p.boxes, t.boxes) for p, t in alike if same(p.text, t.text, lang)]
    row["sentences/tp"] = sum(float(region_iou(*one)) > 0.5 for one in areas)
    for name, of in zip(("predicted", "truth"), parts, strict=True):
        row[f"sentences/{name}"] = sum(len(one.boxes) > 0 for one in of)
    return row


def _count(references: _References, answers: benchmark.Answers, options: ScoreOptions) -> Counted:
    known: dict[Any, int] = {}
    sides: tuple[list[Any], list[Any]] = [], []

    def of_report(
        true: sentences.ReferenceText, line: Prediction | None, counts: benchmark.SystemCounts
    ) -> Mapping[str, float]:
        said, parse = tuple[sentences.GroundedSentence, ...](), "missing"
        if line is not None:
            codec = options.box_codec or true.codec
            said = sentences.read_sentences(line, codec, true.image_hw, line.where)
            parse = counts.read_boxes(line, codec, true.image_hw, line.where).parse
        for side, of in zip(sides, (said, true.sentences), strict=True):
            side.append(_units(of, true.lang, known))
        return _in_words(said, true) | {"parse_failures": parse not in ("ok", "no_box")}

    columns = ("read", *_SETS, *assertion_errors.COLUMNS)
    asked = references.questions
    counts = benchmark.count_answers(asked, answers, of_report, PROBLEMS, columns=columns)
    given, there = map(join_images, sides)
    placed = question_columns("grounded", given, there)
    given, there = (dataclasses.replace(of, classes=0 * of.classes) for of in (given, there))
    placed |= question_columns("anything", given, there)
    figures = {name: of | counts.figures() for name, of in make_figures(LAYOUT.lines).items()}
    return Counted({**counts.columns, **placed}, figures, dict(counts.problems))


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """Counts the boxes that are where the reference has the same finding."""
    true, known = sentences.reference_text(record), dict[Any, int]()
    how = codec or true.codec, true.image_hw, prediction.where
    both = sentences.read_sentences(prediction, *how), true.sentences
    answer, reference = (join_images([_units(of, true.lang, known)]) for of in both)
    found = question_columns("g", answer, reference, (0.5,))
    tp, given, there = (int(found[name][0]) for name in ("g@0.5/tp", "g/predicted", "g/truth"))
    note = f"{tp} of {there} findings with their boxes; {given - tp} without a reference"
    return Outcome(tp == given == there, tp / max(given, there) if given + there else None, note)


GROUNDED_REPORTS = benchmark.Benchmark(
    name="grounded_reports",
    layout=LAYOUT,
    read=lambda records, source, mode: benchmark.read_references(
        records, source, lambda record, _: sentences.reference_text(record)
    ),
    count=benchmark.count_each(_count),
    outcome=outcome,
)
