"""The systems that the papers list and some besides: how each is asked, and how its answer is read.

A preset holds for the model wherever it runs. What differs by place is the conversation around the
question: a server, or the template of a transformers folder, adds it; `template` is for folders of
converted weights that have none.

| reading     | what counts as the answer                                                         |
|-------------|-----------------------------------------------------------------------------------|
| `whole`     | all of the text                                                                   |
| `final`     | what follows thinking and the last "Final Answer:"                                |
| `turn`      | the text up to `###` or the next speaker's name, without the own one before it    |

`parse` is `ok`, or the first that applies: why there is no answer (a failure of the service, the
image, the question), `refusal`, `truncated`, or why a box in it could not be read.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from cxrjax.codecs import CODECS
from cxrjax.codecs.base import declines
from cxrjax.codecs.reading import without_thinking
from cxrjax.decoding import confidence
from cxrjax.errors import UserError
from cxrjax.files import read_packaged
from cxrjax.input_pipeline.prompts import MEDGEMMA_LOCATE
from cxrjax.language_model.answer import Completion
from cxrjax.records import QARecord


@dataclasses.dataclass(frozen=True)
class System:
    """One system."""

    title: str  # as the papers print it
    listed: str  # the papers whose tables have it
    source: str  # the weights, or the service
    # Those of ours that can ask it as it is; `openai` wants a server that runs it.
    runners: list[str]
    reading: str = "whole"  # what of its text is the answer, a key of `READINGS`
    # How it writes boxes, a key of `cxrjax.codecs.CODECS`; None: it writes none.
    codec: str | None = None
    # What follows a question to have boxes in the answer; "": nothing would help.
    box_request: str = ""
    locate: str = ""  # its request to find one thing, {finding} in the thing's place
    # Show it images padded to a square with black, centred, as its boxes count.
    pad_square: bool = False
    # Of the conversation, for transformers folders without one; {image} and {question}.
    template: str = "{image}{question}"
    unknown: str = ""  # what is not public, not supported here, or in our words, and why


def _read_systems() -> dict[str, System]:
    rows = read_packaged(str(__package__), "systems.toml")
    rows = rows | {"medgemma_1.5": rows["medgemma_1.5"] | {"locate": MEDGEMMA_LOCATE}}
    return {name: System(**row) for name, row in rows.items()}


SYSTEMS = _read_systems()


def get_system(name: str) -> System:
    """The system of that name.

    Raises:
        UserError: there is none; suggests the nearest.
    """
    if name not in SYSTEMS:
        nearest = difflib.get_close_matches(name, SYSTEMS, n=1, cutoff=0.0)[0]
        raise UserError(
            f"--system={name}: not known, did you mean {nearest}? (--list_systems lists all)"
        )
    return SYSTEMS[name]


def describe_systems() -> str:
    """The table as lines of text: a system's name and values, below them what is unknown."""
    rows = [("--system", "title", "listed by", "runners", "boxes", "wordings with boxes")]
    for name, system in SYSTEMS.items():
        asked = [
            word
            for word, has in (("grounded", system.box_request), ("locate", system.locate))
            if has
        ]
        rows.append(
            (
                name,
                system.title,
                system.listed,
                ",".join(system.runners),
                system.codec or "-",
                ",".join(asked) or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, details in zip(rows, (None, *SYSTEMS.values()), strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
        if details is not None:
            lines += [f"    {part}" for part in (details.source, details.unknown) if part]
    return "\n".join(lines)


_ENDLESS = re.compile(r"<unused94>.*\Z", re.DOTALL)
_FINAL = re.compile(r"(?<!\*)\**final answer\**\s{0,9}:\**", re.IGNORECASE)
_SPEAKER = "(?:Human|Patient|USER|User|Assistant|ASSISTANT|Doctor|AI)"
_OWN_NAME = re.compile(rf"\s*(?:#{{2,3}}\s*)?{_SPEAKER}\s?:")
_NEXT_TURN = re.compile(rf"#{{2,3}}|\n[^\S\n]*{_SPEAKER}\s?:")


def _whole(text: str) -> str:
    return text.strip()


def _final(text: str) -> str:
    text = _ENDLESS.sub("", without_thinking(text))
    return _FINAL.split(text)[-1].strip()


def _turn(text: str) -> str:
    own = _OWN_NAME.match(text)
    text = text[own.end() :] if own else text
    return _NEXT_TURN.split(text, maxsplit=1)[0].strip()


READINGS: dict[str, Callable[[str], str]] = {"whole": _whole, "final": _final, "turn": _turn}


def read_answer(
    record: QARecord,
    written: str,
    reading: str,
    codec: str | None,
    *,
    failure: str | None = None,
    logprob: float | None = None,
    spelled: confidence.Spelled | None = None,
    box_score: float = 1.0,
) -> dict[str, Any]:
    """One line of predictions.

    Args:
        written: all that the model wrote.
        codec: how it writes boxes; None: it writes none.
        failure: why there is no whole answer, for `parse`.
        logprob: sum over the answer's tokens.
        spelled: all that the model wrote, token by token, where that is known.
        box_score: of every box where `spelled` tells none of its own.
    """
    text = READINGS[reading](written)
    line: dict[str, Any] = {"question_id": record.question_id, "text": text}
    if text != written.strip():
        line["written"] = written
    finding = record.finding
    boxes, labels, repaired, places = [], [], 0, []
    parse = "refusal" if codec is None and declines(text) else "ok"
    if codec is not None and text:
        # Fractions are of the whole image; without any size they can only be of a square.
        height, width = record.image_hw or (1000, 1000)
        notation = CODECS[codec]
        geometry = notation.makers_geometry(height, width)
        read = notation.read_as_written(text, height, width, geometry)
        boxes = [[round(float(value), 6) for value in span.as_written] for span in read.spans]
        labels = [span.label or finding for span in read.spans]
        repaired, parse = read.repaired, read.parse
        places = [(span.start, span.end) for span in read.spans]
    sure, scores = confidence.AnswerConfidence(), [box_score] * len(boxes)
    # Where thinking was cut out of its middle, the answer is no part of what was written.
    if spelled is not None and text and (start := spelled.text.find(text)) >= 0:
        answer = spelled.within(start, start + len(text))
        sure = confidence.answer_confidence(answer, places)
        scores = [found.score for found in confidence.box_confidences(answer, places)]
    return line | {
        "boxes": boxes,
        "labels": labels,
        "box_scores": [round(score, 6) for score in scores],
        "answer_logprob": None if logprob is None else round(logprob, 6),
        **sure.fields(),
        "parse": failure or parse,
        **({"repaired_boxes": repaired} if repaired else {}),
    }


def spelled_completion(completion: Completion) -> confidence.Spelled | None:
    """The answer token by token; None where the server did not tell."""
    texts, logprobs = completion.token_texts, completion.token_logprobs
    if completion.refusal or not texts or not logprobs or len(texts) != len(logprobs):
        return None
    return confidence.Spelled(texts, np.array(logprobs, np.float64))


def no_answer(record: QARecord, failure: str) -> dict[str, Any]:
    """The line of a question that has no answer, and why."""
    return read_answer(record, "", "whole", None, failure=failure)


WORDINGS = ("plain", "typed", "grounded", "locate")


def default_wording(system: System) -> str:
    """The wording with boxes where the system has a form for them, else the plain one."""
    return "grounded" if system.box_request else "plain"


def check_wording(wording: str, system: System) -> None:
    """Refuses a wording that the system has no words for.

    Raises:
        UserError: it has no request for boxes, or none for one finding.
    """
    missing = {"grounded": not system.box_request, "locate": not system.locate}
    if missing.get(wording):
        known = [name for name in WORDINGS if not missing.get(name)]
        raise UserError(
            f"--wording={wording}: nothing is published of how {system.title} is asked for boxes "
            f"in that way; use one of {', '.join(known)}"
        )


def question_text(record: QARecord, wording: str, system: System) -> str | None:
    """The words to ask; None where the record cannot be asked in this wording."""
    if wording == "locate":
        finding = record.finding
        return system.locate.replace("{finding}", finding) if finding else None
    question = record.question
    if record.choices:
        question += f" <choices>: [{', '.join(record.choices)}]"
    if wording == "typed":
        return f"{record.type_prompt}\n{question}" if record.type_prompt else None
    return f"{question}\n{system.box_request}" if wording == "grounded" else question


def earlier_turns(record: QARecord) -> list[tuple[str, str]]:
    """(question, answer) of the turns before this question; "" for an answer not there yet."""
    return [(turn.question, turn.answer or "") for turn in record.history]
