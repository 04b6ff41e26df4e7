"""Error rates of the readers on frames of sentences, each filled with every finding and side.

A frame is a line of `tests/radiology_text/frames_LANGUAGE.tsv`: part (shown or held: a third, drawn
by hash, that nobody tuned the grammar on), code of what it says, text.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.readers.grading import level
from bench.readers.systems import OURS, Read
from cxrjax.radiology_text.assertions import Assertion, Certainty, Status, Time
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.lexicon import word_set
from cxrjax.radiology_text.reading import open_reader

FOLDER = Path(__file__).parents[2] / "tests/radiology_text"
# Code of a frame -> what it says of its finding; S says nothing.
CODES: dict[str, tuple[Status, Certainty, Time] | None] = {
    "P": ("present", "certain", "current"),
    "PL": ("present", "likely", "current"),
    "PN": ("present", "certain", "new"),
    "PW": ("present", "certain", "worse"),
    "PB": ("present", "certain", "better"),
    "PU": ("present", "certain", "unchanged"),
    "A": ("absent", "certain", "current"),
    "AL": ("absent", "likely", "current"),
    "R": ("absent", "certain", "resolved"),
    "U": ("uncertain", "possible", "current"),
    "UL": ("uncertain", "unlikely", "current"),
    "Q": ("uncertain", "possible", "to be ruled out"),
    "H": ("uncertain", "possible", "past"),
    "S": None,
}
_WORDINGS = {
    "vi": {
        "pleural effusion": "tràn dịch màng phổi",
        "pneumothorax": "tràn khí màng phổi",
        "consolidation": "đông đặc phổi",
        "pneumonia": "viêm phổi",
        "atelectasis": "xẹp phổi",
        "pulmonary edema": "phù phổi",
        "lung nodule": "nốt mờ",
        "lung opacity": "đám mờ",
        "pleural thickening": "dày màng phổi",
        "tuberculosis": "lao phổi",
        "lymphadenopathy": "hạch trung thất",
        "fracture": "gãy xương sườn",
    },
    "zh": {
        "pleural effusion": "胸腔积液",
        "pneumothorax": "气胸",
        "consolidation": "实变",
        "pneumonia": "肺炎",
        "atelectasis": "肺不张",
        "pulmonary edema": "肺水肿",
        "lung nodule": "结节",
        "fracture": "骨折",
    },
}
_SIDED = {
    "pleural effusion", "pneumothorax", "consolidation", "pneumonia", "atelectasis",
    "lung nodule", "lung mass", "lung opacity", "fracture", "infiltrate", "empyema", "hemothorax",
}  # fmt: skip
# Findings that no frame is sensibly said of: processes of the past, shifts with a direction.
_UNFIT = ("postsurgical change", "mastectomy", "mediastinal shift", "tracheal deviation")
# For readers that know no synonyms and take long.
_FEW = ("pleural effusion", "pneumonia", "pneumothorax", "consolidation", "fracture")
GRADES = ("right", "inverted", "asserted", "invented", "unread", "other")


class Frame(NamedTuple):
    """One frame; `tolerant` accepts the neighbouring status too."""

    is_held: bool
    code: str
    text: str

    @property
    def tolerant(self) -> bool:
        return self.code.startswith("~")


class Filled(NamedTuple):
    """A frame with a finding and a side."""

    frame: Frame
    finding: str
    side: str | None
    text: str


@functools.cache
def read_frames(language: str) -> tuple[Frame, ...]:
    """All frames of a language.

    Raises:
        ValueError: a line has an unknown part or code, or no finding.
    """
    found = []
    path = FOLDER / f"frames_{language}.tsv"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        part, code, text = line.split("\t")
        if part not in ("shown", "held") or code.lstrip("~") not in CODES or "{" not in text:
            raise ValueError(f"{path.name}:{number}: expected part, code and frame: {line!r}")
        found.append(Frame(part == "held", code, text.replace("\\n", "\n")))
    return tuple(found)


@functools.cache
def wordings(language: str) -> dict[str, str]:
    """Finding -> its words."""
    if language != "en":
        return _WORDINGS[language]
    return {
        name: name
        for name, finding in load_definitions().findings.items()
        if finding.category == "abnormality" and name not in {*word_set("lasting"), *_UNFIT}
    }


def fill(frame: Frame, language: str, findings: Sequence[str] = ()) -> Iterator[Filled]:
    """The frame's sentences; with every finding, or these, and every side that it can have."""
    countable = load_definitions().findings
    for finding, words in wordings(language).items():
        if (findings and finding not in findings) or _names(frame.text, words):
            continue
        for side in (None, "left", "right") if finding in _SIDED else (None,):
            said = _with_side(words, side, language)
            article = ("an " if said[0] in "aeiou" else "a ") * countable[finding].countable
            text = frame.text.replace("{a}", article + said).replace("{x}", said)
            yield Filled(frame, finding, side, text[:1].upper() + text[1:])


def _names(text: str, words: str) -> bool:
    """Returns whether a frame names the finding itself, so that it would be said twice."""
    heart = words == "cardiomegaly" and "heart" in text.lower()
    return heart or any(word in text.lower() for word in words.split() if len(word) > 3)


def _with_side(words: str, side: str | None, language: str) -> str:
    if side is None:
        return words
    if language == "vi":
        return f"{words} {'trái' if side == 'left' else 'phải'}"
    if language == "zh":
        return f"{'左侧' if side == 'left' else '右侧'}{words}"
    return f"{side} {words}"


def grade(one: Filled, read: Sequence[Assertion]) -> str:
    """The grade of a reading, of `GRADES`; `invented` is a firm statement where nothing is said."""
    about = [said for said in read if said.finding == one.finding]
    expected = CODES[one.frame.code.lstrip("~")]
    firm = [said for said in about if level(said) in (0, 1, 4, 5)]
    if expected is None:
        return "invented" if firm else "right"
    if not about:
        return "right" if one.frame.code == "~U" else "unread"
    label = Assertion(one.finding, *expected)
    opposite = (4, 5) if level(label) in (0, 1) else (0, 1) if level(label) in (4, 5) else ()
    turned = {one.side, *(said.side for said in about)} >= {"left", "right"}
    if turned or any(level(said) in opposite for said in about):
        return "inverted"
    if level(label) in (2, 3) and len(firm) == len(about):
        return "right" if one.frame.code == "~U" and level(firm[0]) == 1 else "asserted"
    if one.frame.tolerant:
        return "right" if any(level(said) in (1, 2, 3) for said in about) else "other"
    return "right" if any(said.status == label.status for said in about) else "other"


def table(language: str, systems: Mapping[str, Read]) -> list[list[str]]:
    """Rows of shares by system and part; of ours with every finding too."""
    ours = open_reader("vi" if language == "vi" else "en")
    everything: dict[str, tuple[Read, Sequence[str]]] = {
        f"{OURS}, every finding": (lambda texts: (ours.read(t).assertions for t in texts), ())
    }
    if language == "en":
        everything |= {name: (read, _FEW) for name, read in systems.items()}
    lines = [["", "frames", "sentences", "right", "inverted", "asserted of nothing", "unread"]]
    for held in (False, True):
        frames = [frame for frame in read_frames(language) if frame.is_held == held]
        for name, (read, findings) in everything.items():
            filled = [one for frame in frames for one in fill(frame, language, findings)]
            grades = Counter(map(grade, filled, read([one.text for one in filled])))
            firm = grades["asserted"] + grades["invented"]
            parts = (grades["right"], grades["inverted"], firm, grades["unread"])
            shares = [f"{100 * part / len(filled):.2f} % ({part:,})" for part in parts]
            part = "held aside" if held else "shown"
            lines.append([f"{part}, {name}", str(len(frames)), f"{len(filled):,}", *shares])
    return lines
