"""Scores of grounded reports: what sentences say is there, on which side, and in which boxes.

* `grounded`: each box once for every finding that its sentence affirms, matched one to one with
  boxes of the reference of the same finding and side. The side of a bilateral finding is that of
  the box. A sentence whose words the reader does not know is its own finding, by its words.
* `sentences`: pairs of sentences that say the same, whose boxes cover the same region (IoU > 0.5),
  of all sentences with boxes.
* `findings`, `observations`: sets of findings affirmed in a report, and CheXpert's classes of them.

Rules read English, Vietnamese and Chinese; of other languages only words and boxes are compared.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cxrjax.codecs import Codec, get_codec
from cxrjax.evaluation import benchmark
from cxrjax.evaluation.counted import Counted, Outcome
from cxrjax.evaluation.figure_lines import make_figures
from cxrjax.evaluation.matched_boxes import question_columns
from cxrjax.evaluation.predictions import PROBLEMS, Prediction, read_boxes
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.evaluation.tables import load_layout
from cxrjax.evaluation.text_scores import assertion_errors, sentences
from cxrjax.metrics import text
from cxrjax.metrics.classification import set_counts
from cxrjax.metrics.detection import join_images
from cxrjax.metrics.localization import region_areas, region_iou
from cxrjax.papers.grounded_reports.sources import WORDS
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.facts import pair_up, said_of, same
from cxrjax.records import QARecord

LAYOUT = load_layout(str(__package__))
_READ = ("en", "vi", "zh")
_MOST_SENTENCES, _MOST_REPORTS = 12, 400
_SETS = [f"{of}/{part}" for of in ("findings", "observations") for part in ("tp", "fp", "fn")]
_Sentences = Sequence[sentences.GroundedSentence]
_Numbers = dict[tuple[str, str | None], int]  # of findings and sides


class ReportQuestion(NamedTuple):
    """The sentences of a reference, and what is resampled together."""

    cluster: tuple[str, str]
    true: sentences.ReferenceText


def read_answer(
    line: Prediction | None, true: sentences.ReferenceText, codec: Codec | None
) -> _Sentences:
    """Returns the sentences of an answer; boxes in its text go before those beside it."""
    if line is None:
        return ()
    codec = codec or true.codec
    if codec.find(line.text, *true.image_hw):
        line = dataclasses.replace(line, boxes=None, labels=None, box_scores=None)
    return sentences.read_sentences(line, codec, true.image_hw, line.where)


def _units(said: _Sentences, lang: str, known: _Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Returns the boxes, and the number of the finding and side of each."""
    boxes, classes = [np.zeros((0, 4))], []
    for one in said:
        found = [a for a in (said_of(one.text, lang) if lang in _READ else ()) if not a.denies]
        named = dict.fromkeys((a.finding, a.side) for a in found) or {
            (one.text.lower(), None): None
        }
        for (finding, side), box in ((name, box) for name in named for box in one.boxes):
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
    words, reference = map(sentences.plain_text, parts)
    row = {"questions": 1.0, "contentless": float(not words)}
    if lang in _READ:
        here, there = ([a for one in of for a in said_of(one.text, lang)] for of in parts)
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
    row["rougeL"] = text.rouge(words, reference, names=("rougeL",))["rougeL"]
    return row | text.bleu_statistics(words, reference)


def _count(
    references: benchmark.References[ReportQuestion],
    answers: benchmark.Answers,
    codec: Codec | None,
) -> Counted:
    known: _Numbers = {}
    sides: tuple[list[Any], list[Any]] = [], []

    def of_report(
        question: ReportQuestion, line: Prediction | None, counts: benchmark.SystemCounts
    ) -> Mapping[str, float]:
        true, parse = question.true, None
        said = read_answer(line, true, codec)
        if line is not None:
            read = read_boxes(line, codec or true.codec, *true.image_hw, line.where)
            counts.problems.update(read.problems)
            counts.problems["blank_answer"] += not line.text.strip()
            parse = read.parse
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


def count(
    references: benchmark.References[ReportQuestion],
    systems: Mapping[str, benchmark.Answers],
    options: ScoreOptions,
) -> benchmark.Evaluated:
    """Counts all systems."""
    codec = options.box_codec
    found = {name: _count(references, answers, codec) for name, answers in systems.items()}
    return benchmark.Evaluated(found, {"gt_mode": "exact", "codec": codec.name if codec else None})


def _box_counts(
    true: sentences.ReferenceText, line: Prediction, codec: Codec | None
) -> tuple[int, int, int]:
    """Returns how many boxes are right (finding, side, IoU > 0.5), are predicted, and are true."""
    known: _Numbers = {}
    both = read_answer(line, true, codec), true.sentences
    said, reference = (join_images([_units(of, true.lang, known)]) for of in both)
    found = question_columns("g", said, reference, thresholds=(0.5,))
    right, given, there = (int(found[n][0]) for n in ("g@0.5/tp", "g/predicted", "g/truth"))
    return right, given, there


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """Counts the boxes that are where the reference has the same finding."""
    tp, given, there = _box_counts(sentences.reference_text(record), prediction, codec)
    note = f"{tp} of {there} findings with their boxes; {given - tp} without a reference"
    return Outcome(tp == given == there, tp / max(given, there) if given + there else None, note)


def frequent_sentences(reports: Sequence[sentences.ReferenceText]) -> str:
    """Returns frequent sentences with median boxes, as many as find most of some 400 reports."""
    alike: dict[Any, list[sentences.GroundedSentence]] = collections.defaultdict(list)
    for report in reports:
        for one in report.sentences:
            found = (a for a in said_of(one.text, report.lang) if not a.denies)
            named = tuple(dict.fromkeys((a.finding, a.side) for a in found))
            alike[named if len(one.boxes) and named else one.text].append(one)
    said, some = [], reports[:: max(1, len(reports) // _MOST_REPORTS)]
    # Those with boxes first, the most frequent first.
    frequent = sorted(alike.values(), key=lambda every: (not len(every[0].boxes), -len(every)))
    for every in frequent[:_MOST_SENTENCES]:
        most = collections.Counter(len(one.boxes) for one in every).most_common(1)[0][0]
        typical = np.median([one.boxes for one in every if len(one.boxes) == most], axis=0)
        shown = (get_codec("paligemma").encode(box[None], 1, 1) for box in typical)
        said.append(" ".join([every[0].text, *shown]))

    def f1(report: str) -> float:
        line = Prediction("", report, None, None, "ok")
        right, given, there = np.sum([_box_counts(one, line, None) for one in some], axis=0)
        return float(2 * right / max(given + there, 1))

    return max((" ".join(said[: n + 1]) for n in range(len(said))), key=f1)


class _ReportBenchmark(benchmark.Benchmark[benchmark.References[ReportQuestion]]):
    def _floors(
        self, references: benchmark.References[ReportQuestion], floors: Any, options: ScoreOptions
    ) -> Iterator[tuple[str, list[Prediction]]]:
        """Adds the references' own frequent sentences: other baselines have no box of a finding."""
        yield from super()._floors(references, floors, options)
        text = frequent_sentences([one.true for one in references.questions.values()])
        asked = references.questions
        yield "frequent sentences", [Prediction(name, text, None, None, "ok") for name in asked]


def _read(record: QARecord, source: str) -> ReportQuestion:
    return ReportQuestion(benchmark.cluster_of(record), sentences.reference_text(record))


GROUNDED_REPORTS = _ReportBenchmark(
    name="grounded_reports",
    layout=LAYOUT,
    read=lambda records, source, mode: benchmark.read_references(records, source, _read),
    count=count,
    outcome=outcome,
)
