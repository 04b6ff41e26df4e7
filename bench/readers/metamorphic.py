"""Changes of a text that change what is read of it in a known way, over all open sentences.

Whatever a text says, it says in capitals too, after a sentence that says nothing, or with left and
right exchanged throughout; and a bare finding ("Small left effusion.") can be denied, doubted, said
of the past, put on a side, joined with another, or listed in any order. The first reading is taken
as it is: labels have no part in this.
"""

import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.readers.sentences import files, language, read_file
from cxrjax.radiology_text.assertions import NOT_NOW
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.reading import AnyReader, open_reader

HERE = Path(__file__).parent
NOT_YET = HERE / "not_yet.toml"
# Template -> what it says of the finding or text, and of the finding beside it.
TEMPLATES = {
    template: [meant.split(" ", 2) for meant in key.split(" / ")]
    for key, templates in tomllib.loads((HERE / "changes.toml").read_text(encoding="utf-8")).items()
    for template in templates
}
AROUND = {template: meant for template, meant in TEMPLATES.items() if meant[0] == ["any"]}
BARE = {template: meant for template, meant in TEMPLATES.items() if template not in AROUND}
RELATIONS = ("upper", "lower", "spaces", "before", "after", "twice", "mirror", "side")
RELATIONS += ("answer upper", "answer lower", "question upper", "answer spaces", "answer mirror")
RELATIONS += ("list", "asked", *TEMPLATES)
NEUTRAL = {"en": "The images were reviewed.", "vi": "Đã xem phim."}
_ONE_SIDED = re.compile(
    r"\b(lingula\w*|middle|rml|ventric\w*|atri\w*|aort\w*|heart|cardi\w*|svc|carina|arch|stomach|gastric|"
    r"azygos|jugular|rll|lll|rul|lul|trachea\w*|right-handed|all right|right (?:after|away|now)|"
    r"left (?:with|behind)|l|r|rt|lt)\b",
    re.IGNORECASE,
)
_NOT_BARE = re.compile(
    r"\b(?:is|are|was|were|has|have|no|not|with|and|or|in|the|there|new|of|at|on|to|from|by|due|"
    r"\w+ly|a|an|without|seen|noted|old|chronic|prior|post|status|than)\b|[^\w\s.-]|\d|\.\s",
    re.IGNORECASE,
)
# What one has a history of, and still has.
_LASTING = ("scarring", "granuloma", "granulomatous disease", "pleural thickening", "mastectomy")
_LASTING += ("postsurgical change",)
OTHER = "pneumomediastinum"
Key = tuple[str, str, str, str, str | None, tuple[str, ...]]


class Checked(NamedTuple):
    """A changed text with what was expected of it."""

    relation: str
    id: str
    text: str
    changed: str
    expected: list[Key]
    read: list[Key]

    @property
    def broken(self) -> str:
        """Deviation: "" for none, "place" if only sides or regions differ, else "reading"."""
        if Counter(self.read) == Counter(self.expected):
            return ""
        said, meant = (Counter(key[:4] for key in keys) for keys in (self.read, self.expected))
        return "place" if said == meant else "reading"


def checks() -> Iterator[Checked]:
    """Every change of every open sentence, and of the findings' names as bare findings."""
    bare: list[tuple[str, str, list[Key]]] = []
    for path in files():
        if path.stem.startswith("answers"):
            yield from _answers(open_reader(language(path)), language(path), path.stem)
            continue
        reader = open_reader(language(path))
        for row in read_file(path):
            first = _read(reader, row.text)
            for relation, changed, expected in _of_any(row.text, first, language(path)):
                yield _check(reader, relation, row.id, row.text, changed, expected)
            if language(path) == "en" and _is_bare(row.text, first):
                bare.append((row.id, row.text, first))
    english = open_reader("en")
    for finding in load_definitions().findings.values():
        if _is_bare(finding.name, first := _read(english, finding.name)):
            bare.append((f"finding:{finding.name}", finding.name, first))
    for identity, text, first in bare:
        for relation, changed, expected in _of_bare(text.rstrip(". "), first):
            yield _check(english, relation, identity, text, changed, expected)
    yield from _asked(english, [(identity, text) for identity, text, _ in bare])
    for three in zip(bare[::3], bare[1::3], bare[2::3], strict=False):
        phrases = [text.rstrip(". ").lower() for _, text, _ in three]
        if len({key[0] for _, _, first in three for key in first}) == len(phrases) == 3:
            expected = _with(
                list(itertools.chain(*(first for *_, first in three))), status="absent"
            )
            for a, b, c in itertools.permutations(phrases):
                changed = f"No {a}, {b}, or {c}."
                yield _check(english, "list", three[0][0], " / ".join(phrases), changed, expected)


def count_broken(checked: Iterable[Checked]) -> dict[str, int]:
    """Relation and what breaks -> how often it does."""
    return dict(
        sorted(Counter(f"{one.relation} [{one.broken}]" for one in checked if one.broken).items())
    )


def write_not_yet(checked: Iterable[Checked]) -> None:
    """Keeps how often each relation does not hold, which the tests hold it to."""
    lines = [f"{json.dumps(name)} = {count}" for name, count in count_broken(checked).items()]
    NOT_YET.write_text("# Relation -> how often it does not hold.\n" + "\n".join(lines) + "\n")


def _of_any(text: str, first: list[Key], tongue: str) -> Iterator[tuple[str, str, list[Key]]]:
    closed = text if text.rstrip().endswith((".", "!", "?")) else f"{text.rstrip()}."
    yield "upper", text.upper(), first
    yield "lower", text.lower(), first
    yield "spaces", text.replace(" ", "  "), first
    yield "before", f"{NEUTRAL[tongue]} {text}", first
    yield "after", f"{closed} {NEUTRAL[tongue]}", first
    yield "twice", f"{closed} {text}", first * 2
    if tongue == "en":
        words = {"t": closed.rstrip(" .!?"), "T": closed, "o": OTHER, "O": OTHER.capitalize()}
        for template, (_, *others) in AROUND.items():
            if OTHER not in {key[0] for key in first} and not text.rstrip().endswith("?"):
                yield template, template.format(**words), [*first, *_beside(others)]
        if re.search(r"\b(?:left|right)", text, re.IGNORECASE) and not _ONE_SIDED.search(text):
            mirrored = [
                (
                    *key[:4],
                    _mirrored(key[4]) if key[4] else None,
                    tuple(sorted(map(_mirrored, key[5]))),
                )
                for key in first
            ]
            yield "mirror", _mirrored(text), mirrored


def _of_bare(text: str, first: list[Key]) -> Iterator[tuple[str, str, list[Key]]]:
    words = _words(text)
    finding = load_definitions().findings[first[0][0]]
    lasts = finding.category == "device" or finding.name in _LASTING
    for template, (mine, *others) in BARE.items():
        if not ((lasts and "past" in mine) or (others and finding.name == OTHER)):
            yield template, template.format(**words), [*_with(first, *mine), *_beside(others)]
    if finding.subcategory in ("lungs", "pleura") and first[0][4] is None and not first[0][5]:
        yield "side", f"Left {words['x']}.", [(*key[:4], "left", ()) for key in first]


def _beside(others: list[list[str]]) -> list[Key]:
    return [(OTHER, said[0], said[1], said[2], None, ()) for said in others]


def _answers(reader: AnyReader, tongue: str, stem: str) -> Iterator[Checked]:
    """Checks that an outcome is invariant to capitals, politeness and mirroring."""
    for path in files():
        for row in read_file(path) if path.stem == stem else ():
            question, text = row.question or "", row.text
            first = reader.read(text, question).outcome
            changes = {
                "answer upper": (question, text.upper()),
                "answer lower": (question, text.lower()),
                "question upper": (question.upper(), text),
                "answer spaces": (question, f"\n {text} \n"),
            }
            if not _ONE_SIDED.search(question + text) and tongue == "en":
                changes["answer mirror"] = (_mirrored(question), _mirrored(text))
            for relation, (asked, said) in changes.items():
                outcomes = (first, reader.read(said, asked).outcome)
                keys = [[(str(one), "", "", "", None, ())] for one in outcomes]
                yield Checked(relation, row.id, f"{question} {text}", said, *keys)


def _asked(reader: AnyReader, bare: Iterable[tuple[str, str]]) -> Iterator[Checked]:
    """A statement on a finding answers the question whether there is one."""
    decided = {"present": "yes", "absent": "no", "uncertain": "undecided"}
    definitions = load_definitions()
    for identity, text in bare:
        finding = definitions.findings.get(text)
        if finding is None or text == OTHER:
            continue
        words = _words(text)
        asked = [
            (f"Is there {text}?", template.format(**words), decided[mine[0]])
            for template, (mine, *_) in BARE.items()
            if mine[2] not in NOT_NOW
        ]
        asked.append((f"Is there {OTHER}?", f"There is {text}.", "off_topic"))
        if finding.subcategory in ("lungs", "pleura"):
            for side, other in (("left", "right"), ("right", "left")):
                question = f"Is there {text} on the {side}?"
                asked.append((question, f"There is {text} on the {other}.", "off_topic"))
                asked.append((question, f"No {text} on the {side}.", "no"))
                asked.append((question, f"There is {text} on both sides.", "yes"))
        for question, said, meant in asked:
            outcome = reader.read(said, question).outcome
            keys = [[(str(one), "", "", "", None, ())] for one in (meant, outcome)]
            yield Checked("asked", identity, question, said, *keys)


def _words(text: str) -> dict[str, str]:
    said = text if text[:2].isupper() else text[0].lower() + text[1:]
    return {"x": said, "X": said[0].upper() + said[1:], "o": OTHER, "O": OTHER.capitalize()}


def _check(
    reader: AnyReader, relation: str, identity: str, text: str, changed: str, expected: list[Key]
) -> Checked:
    read = _read(reader, changed)
    if relation in (
        "deny",
        "deny after",
        "list",
    ):  # "no large effusion" is less sure: not the point
        read, expected = _with(read, certainty=""), _with(expected, certainty="")
    if relation == "side":  # which of its regions is named is another matter
        read = [(*key[:5], ()) for key in read]
    return Checked(relation, identity, text, changed, expected, read)


def _read(reader: AnyReader, text: str) -> list[Key]:
    return [
        (one.finding, one.status, one.certainty, one.time, one.side, tuple(sorted(one.regions)))
        for one in reader.read(text).assertions
    ]


def _is_bare(text: str, first: list[Key]) -> bool:
    stated = len(first) == 1 and first[0][1:4] == ("present", "certain", "current")
    return stated and len(text.split()) <= 6 and not _NOT_BARE.search(text.rstrip(". "))


def _with(
    keys: list[Key],
    status: str | None = None,
    certainty: str | None = None,
    time: str | None = None,
) -> list[Key]:
    return [
        (
            name,
            was if status is None else status,
            sure if certainty is None else certainty,
            then if time is None else time,
            *place,
        )
        for name, was, sure, then, *place in keys
    ]


def _mirrored(text: str) -> str:
    return re.sub(
        r"\b(?:left|right|Left|Right|LEFT|RIGHT)|左|右", lambda match: _SIDES[match.group()], text
    )


_SIDES = {"left": "right", "Left": "Right", "LEFT": "RIGHT", "左": "右"}
_SIDES |= {right: left for left, right in _SIDES.items()}
