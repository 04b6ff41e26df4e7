"""Sentences and answers with what they say, as people or models labelled them.

`tests/radiology_text/sentences/README.md` says who labelled which file, and by which rules.
"""

import functools
from pathlib import Path
from typing import NamedTuple, get_args

from cxrjax.radiology_text.assertions import Certainty, Outcome, Side, Status, Time
from cxrjax.radiology_text.definitions import load_definitions

FOLDER = Path(__file__).parents[2] / "tests/radiology_text/sentences"
HELD_OUT = "_held_out"


class Label(NamedTuple):
    """Label of a sentence for one finding; the fields are those of `Assertion`.

    `severity` is None where the file doesn't grade it.
    """

    finding: str
    status: Status
    certainty: Certainty
    time: Time
    side: Side | None
    regions: tuple[str, ...] = ()
    severity: str | None = None


class Sentence(NamedTuple):
    """One labelled text; `question` and `outcome` are None where it answers nothing."""

    id: str
    family: str
    text: str
    labels: tuple[Label, ...] = ()
    question: str | None = None
    outcome: Outcome | None = None


def files(held_out: bool = False) -> list[Path]:
    """The files by name: the open ones, or those that nobody tuned on."""
    return sorted(p for p in FOLDER.glob("*.tsv") if p.stem.endswith(HELD_OUT) == held_out)


def language(path: Path) -> str:
    """en or vi, as the file's name has it."""
    return "vi" if "vi" in path.stem.split("_") else "en"


@functools.cache
def read_file(path: Path) -> tuple[Sentence, ...]:
    """All rows of a file.

    Raises:
        ValueError: a row is not as the rules say; the message names it.
    """
    rows: list[Sentence] = []
    parse = _answer if path.stem.startswith("answers") else _sentence
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            try:
                rows.append(parse(line.split("\t")))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path.name}:{number}: {error}") from None
    if len({row.id for row in rows}) < len(rows):
        raise ValueError(f"{path.name}: an id stands twice")
    return tuple(rows)


def _sentence(cells: list[str]) -> Sentence:
    identity, family, text, labels = [*cells, ""][: max(4, len(cells))]
    found = tuple(_label(part) for part in labels.split(" ; ") if part.strip())
    return Sentence(identity, family, text.replace("\\n", "\n"), found)


def _answer(cells: list[str]) -> Sentence:
    identity, family, question, answer, outcome = cells
    _check(outcome, get_args(Outcome))
    return Sentence(identity, family, answer.replace("\\n", "\n"), (), question, outcome)


def _label(text: str) -> Label:
    finding, status, certainty, time, side, *places = (part.strip() for part in text.split("|"))
    graded = [place for place in places if place.startswith("=")]
    places = [place for place in places if place not in graded]
    regions = tuple(name.strip() for place in places for name in place.split("+") if name.strip())
    definitions = load_definitions()
    _check(finding, definitions.findings)
    for value, legal in ((status, Status), (certainty, Certainty), (time, Time)):
        _check(value, get_args(legal))
    _check(side, (*get_args(Side), "-"))
    for region in regions:
        _check(region, definitions.regions)
    severity = graded[0][1:] if graded else None
    return Label(finding, status, certainty, time, None if side == "-" else side, regions, severity)


def _check(value: str, legal) -> None:
    if value not in legal:
        raise ValueError(f"{value!r} is none of {', '.join(list(legal)[:8])} ...")
