"""Findings of grounded sentences, and reports written from the references without an image.

* `medoid`: the report that shares most words with the others.
* `frequent sentences`: with median boxes, as many as find most boxes of their finding; without
  boxes, as many as a report has.
* `true findings, <word>`: every finding of which a reference says what became of it, always with
  the most frequent word. It knows what is there, and does not compare.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cxrjax.boxes import iou
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.question_priors import word_likeness
from cxrjax.evaluation.text_scores.assertion_errors import COMPARED
from cxrjax.evaluation.text_scores.sentences import GroundedSentence, ReferenceText
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.facts import said_of

READ = ("en", "vi", "zh")
_NEAR = 0.5  # IoU
_MOST_REPORTS = 200  # among which the medoid is searched


def assertions_of(sentences: Sequence[GroundedSentence], lang: str) -> list[Assertion]:
    """Returns what sentences assert; nothing in a language without rules."""
    return [one for s in sentences for one in said_of(s.text, lang)] if lang in READ else []


def named_findings(sentence: GroundedSentence, lang: str) -> tuple[tuple[str, str | None], ...]:
    """Returns (finding, side) of what a sentence affirms; its words where that is nothing."""
    said = (one for one in assertions_of([sentence], lang) if not one.denies)
    return tuple({(one.finding, one.side): None for one in said}) or (
        (sentence.text.lower(), None),
    )


def report_floors(reports: Mapping[str, ReferenceText]) -> Iterator[tuple[str, list[Prediction]]]:
    """Yields name and answers of each baseline; `reports` by question."""
    changed = {
        name: [one for one in assertions_of(of.sentences, of.lang) if one.time in COMPARED]
        for name, of in reports.items()
    }
    texts = {
        "medoid": dict.fromkeys(reports, _medoid([*reports.values()])),
        "frequent sentences": dict.fromkeys(reports, _frequent([*reports.values()])),
    }
    if times := collections.Counter(one.time for of in changed.values() for one in of):
        word = times.most_common(1)[0][0]
        texts[f"true findings, {word}"] = {
            name: " ".join(f"The {one.side or ''} {one.finding} is {word}." for one in of)
            for name, of in changed.items()
        }
    for floor, answers in texts.items():
        yield floor, [Prediction(name, text, None, None, "ok") for name, text in answers.items()]


def _written(text: str, boxes: Any, codec: Any) -> str:
    return " ".join([text, *(codec.encode(box[None], 1, 1) for box in boxes)])


def _medoid(reports: Sequence[ReferenceText]) -> str:
    some = reports[:: max(1, len(reports) // _MOST_REPORTS)]
    report = some[int(np.argmax(word_likeness([one.text for one in some]).sum(axis=0)))]
    return " ".join(_written(one.text, one.boxes, report.codec) for one in report.sentences)


def _frequent(reports: Sequence[ReferenceText]) -> str:
    alike: dict[Any, list[GroundedSentence]] = collections.defaultdict(list)
    for one, lang in ((one, report.lang) for report in reports for one in report.sentences):
        alike[named_findings(one, lang), len(one.boxes)].append(one)
    groups: dict[bool, list[tuple[int, int, str]]] = {
        False: [],
        True: [],
    }  # by boxes: (boxes that are near, boxes, sentence)
    for (_, boxes), every in alike.items():
        typical = np.median([one.boxes for one in every], axis=0)
        near = sum(int((iou(typical, one.boxes) > _NEAR).sum()) for one in every)
        written = _written(every[0].text, typical, reports[0].codec)
        groups[boxes > 0].append((near if boxes else len(every), boxes, written))
    boxed = sorted(groups[True], key=lambda one: (-one[0] / one[1], one[2]))
    there = sum(len(one.boxes) for report in reports for one in report.sentences)
    hits, given = (np.cumsum([one[part] for one in boxed]) for part in (0, 1))
    best = int(np.argmax(hits / (given * len(reports) + there))) + 1 if boxed else 0
    others = sorted(groups[False], reverse=True)
    most = round(sum(count for count, *_ in others) / len(reports))
    return " ".join(text for *_, text in boxed[:best] + others[:most])
