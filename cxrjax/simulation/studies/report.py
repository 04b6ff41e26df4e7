"""Radiology report in our own words, with the meaning of each of its sentences.

The wordings are in `grammar_v1.json`. The content follows from the rendered findings, sides, zones,
degrees and changes since the study before; its choice, wording and order are random.
"""

import dataclasses
import functools
import random
import textwrap
from collections.abc import Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.radiology_text.english import capital
from cxrjax.simulation.studies.plan import PhantomStudy
from cxrjax.simulation.studies.views import Item, change_since

KINDS = {"full": 0.74, "impression_only": 0.09, "empty_findings": 0.08, "short": 0.09}
_UNCERTAIN = 0.14
_HEDGED_ABSENT = 0.06  # reports that hedge about something that is not there
_LONGITUDINAL = 0.5  # of the studies that have one before
_LUNGS = ("right lung", "left lung")
_ADVERBS = {"mild": "mildly", "moderate": "moderately", "severe": "severely"}
_NEGATABLE = ("pneumothorax", "pleural effusion", "consolidation", "pulmonary edema")
# Terms that look like pulmonary edema or consolidation: neither is denied beside them.
_LIKE_EDEMA = {"interstitial markings", "airspace opacity", "lung opacity"}
_WIDENS = {"tortuous aorta", "hiatal hernia"}
_BASES = (("angles", "costophrenic angle", 0.25), ("domes", "hemidiaphragm", 0.15))
_OUTSIDE_LUNG = {"enlarged cardiac silhouette", "tortuous aorta", "hiatal hernia", "cardiac device"}


@dataclasses.dataclass(frozen=True)
class PhantomFact:
    """A sentence's statement about one finding.

    Attributes:
        finding: a key of the grammar's findings; None for regions reported as normal.
        polarity: positive, negative, uncertain or normal.
        change: new, no change, improved, worsened or None.
    """

    finding: str | None
    polarity: str
    regions: tuple[str, ...]
    severity: str | None = None
    change: str | None = None
    lesions: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class PhantomSentence:
    """A sentence and its meaning."""

    section: str
    text: str
    facts: tuple[PhantomFact, ...]

    @property
    def longitudinal(self) -> bool:
        """Checks if the sentence compares with another study."""
        return any(fact.change for fact in self.facts)


@dataclasses.dataclass(frozen=True)
class PhantomReport:
    """A report and its sentences in order."""

    kind: str
    reason: str
    text: str
    sentences: list[PhantomSentence]


@functools.cache
def grammar() -> dict[str, Any]:
    """Reads the wordings."""
    return read_packaged("cxrjax.simulation.studies", "grammar_v1.json")


def write_report(
    seed: int, study: PhantomStudy, present: Sequence[Item], before: Sequence[Item] | None
) -> PhantomReport:
    """Writes the report of a study.

    Args:
        present: its findings.
        before: findings of the patient's study before; None for a first one.
    """
    draw = random.Random(f"{seed}/{study.study_id}/report")
    kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
    compares = before is not None and draw.random() < _LONGITUDINAL
    said = _Words(draw)
    body = _findings(said, present, (before or []) if compares else None)
    body = body[: {"short": 1, "impression_only": 0, "empty_findings": 0}.get(kind)]
    impression = [] if kind == "short" else _impression(said, present, body)
    sentences = [
        dataclasses.replace(one, section=section)
        for section, of_section in (("findings", body), ("impression", impression))
        for one in of_section
    ]
    reason = _reason(draw, study)
    text = _layout(draw, study, kind, reason, sentences)
    return PhantomReport(kind, reason, text, sentences)


class _Words:
    """Randomly chosen templates of the grammar, filled in."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def fill(self, templates: Sequence[str], **slots: str) -> str:
        slots |= {name.capitalize(): capital(value) for name, value in slots.items()}
        return capital(self.draw.choice(templates).format(**slots))

    def _slots(self, item: Item) -> dict[str, str]:
        severity = item.severity or ""
        return {
            "side": item.side,
            "where": self.draw.choice(item.places),
            "severity": severity,
            "severity_adverb": _ADVERBS.get(severity, ""),
        }

    def noun(self, item: Item) -> str:
        nouns = grammar()["findings"][item.term]["noun"]
        return self.draw.choice(nouns).format(**self._slots(item))

    def positive(self, item: Item) -> PhantomSentence:
        entry = grammar()["findings"][item.term]
        several = len(item.lesions) > 1 and "plural" in entry
        text = self.fill(entry["plural" if several else "positive"], **self._slots(item))
        return _sentence(text, _fact(item, "positive"))

    def uncertain(self, item: Item) -> PhantomSentence:
        text = self.fill(grammar()["uncertain"], noun=self.noun(item))
        return _sentence(text, _fact(item, "uncertain"))

    def changed(self, item: Item, change: str) -> PhantomSentence:
        text = self.fill(grammar()["change"][change], noun=self.noun(item))
        return _sentence(text, _fact(item, "positive", change))

    def resolved(self, item: Item) -> PhantomSentence:
        text = self.fill(grammar()["change"]["resolved"], noun=self.noun(item))
        fact = PhantomFact(item.term, "negative", item.regions, change="improved")
        return _sentence(text, fact)

    def normal(self, what: str, *regions: str, side: str = "") -> PhantomSentence:
        text = self.fill(grammar()["normal"][what], side=side)
        return _sentence(text, PhantomFact(None, "normal", regions))


def _sentence(text: str, *facts: PhantomFact) -> PhantomSentence:
    return PhantomSentence("", text, facts)


def _fact(item: Item, polarity: str, change: str | None = None) -> PhantomFact:
    return PhantomFact(item.term, polarity, item.regions, item.severity, change, item.lesions)


def _findings(
    said: _Words, present: Sequence[Item], before: Sequence[Item] | None
) -> list[PhantomSentence]:
    """Returns all sentences of the findings, abnormal ones first or among the normal ones."""
    draw = said.draw
    abnormal = []
    both_sides = _bilateral(present)
    if both_sides and before is None:
        abnormal.append(_bilateral_sentence(said, both_sides))
    for item in present:
        if before is None and item in both_sides:
            continue
        if before is not None and draw.random() < 0.7:
            abnormal.append(said.changed(item, change_since(item, before)))
        elif draw.random() < _UNCERTAIN and item.term not in _OUTSIDE_LUNG:
            abnormal.append(said.uncertain(item))
        else:
            abnormal.append(said.positive(item))
    gone = [
        item
        for item in before or []
        if item.term != "cardiac device"
        and all((item.term, item.side) != (other.term, other.side) for other in present)
    ]
    abnormal += [said.resolved(item) for item in gone if draw.random() < 0.5]
    mentioned = {fact.finding for sentence in abnormal for fact in sentence.facts}
    if draw.random() < _HEDGED_ABSENT and "pleural effusion" not in mentioned:
        side = draw.choice(("right", "left"))
        regions = (f"{side} lower lung zone", f"{side} costophrenic angle")
        doubtful = Item("pleural effusion", side, regions, ("",), "small", 0.0, ())
        abnormal.append(said.uncertain(doubtful))
        mentioned.add("pleural effusion")
    normal = _normals(said, present, mentioned) + _negatives(said, present, mentioned)
    sentences = [*abnormal, *normal]
    if draw.random() >= 0.5:
        draw.shuffle(sentences)
    return sentences


def _bilateral(present: Sequence[Item]) -> list[Item]:
    """Returns effusions of both sides where they can share a sentence."""
    pair = [item for item in present if item.term == "pleural effusion"]
    return pair if len(pair) == 2 and pair[0].severity == pair[1].severity else []


def _bilateral_sentence(said: _Words, pair: Sequence[Item]) -> PhantomSentence:
    severity = pair[0].severity or ""
    text = said.fill(grammar()["findings"]["pleural effusion"]["bilateral"], severity=severity)
    return _sentence(text, *(_fact(item, "positive") for item in pair))


def _normals(
    said: _Words, present: Sequence[Item], mentioned: set[str | None]
) -> list[PhantomSentence]:
    """Names some of the structures without findings."""
    draw = said.draw
    terms = {item.term for item in present} | mentioned
    lung_sides = {item.side for item in present if item.term not in _OUTSIDE_LUNG}
    hidden = terms & {"pleural effusion", "consolidation", "lobar collapse"}
    sentences = []
    heart, middle = "cardiac silhouette", "mediastinum"
    large, wide = "enlarged cardiac silhouette" in terms, terms & _WIDENS
    if not large and not wide and draw.random() < 0.5:
        sentences.append(said.normal("heart and mediastinum", heart, middle))
    else:
        if not large:
            sentences.append(said.normal("heart", heart))
        if not wide and draw.random() < 0.5:
            sentences.append(said.normal("mediastinum", middle))
    if draw.random() < 0.5:
        sentences.append(said.normal("hila", *_both("hilar structures")))
    if not lung_sides and not mentioned - _OUTSIDE_LUNG - {None}:
        sentences.append(said.normal("both lungs", *_LUNGS))
    elif len(lung_sides) == 1 and "pleural effusion" not in mentioned and draw.random() < 0.5:
        # An effusion in doubt may be on the side that looks clear.
        other = "left" if "right" in lung_sides else "right"
        sentences.append(said.normal("one lung", f"{other} lung", side=other))
    if draw.random() < 0.25:
        sentences.append(said.normal("trachea", "trachea"))
    if draw.random() < 0.35:
        if draw.random() < 0.5:
            sentences.append(said.normal("spine", "spine"))
        else:
            sentences.append(said.normal("bones", "spine", *_both("clavicle")))
    for name, part, share in _BASES:
        if not hidden and draw.random() < share:
            sentences.append(said.normal(name, *_both(part)))
    return sentences


def _both(part: str) -> tuple[str, str]:
    return f"right {part}", f"left {part}"


def _negatives(
    said: _Words, present: Sequence[Item], mentioned: set[str | None]
) -> list[PhantomSentence]:
    """Denies findings that are absent, of both lungs or of the other side."""
    draw = said.draw
    terms = {item.term for item in present} | mentioned
    similar = bool(terms & _LIKE_EDEMA)
    absent = [
        term
        for term in _NEGATABLE
        if term not in terms and not (similar and term in ("consolidation", "pulmonary edema"))
    ]
    sentences = []
    if absent:
        listed = draw.sample(absent, draw.randint(1, min(3, len(absent))))
        words = ["focal consolidation" if one == "consolidation" else one for one in listed]
        text = said.fill(grammar()["negative"]["both"], list=_enumeration(words))
        facts = [PhantomFact(term, "negative", _LUNGS) for term in listed]
        sentences.append(_sentence(text, *facts))
    for term in ("pleural effusion", "pneumothorax"):
        sides = {item.side for item in present if item.term == term}
        if len(sides) == 1 and draw.random() < 0.35:
            other = "left" if "right" in sides else "right"
            text = said.fill(grammar()["negative"]["side"], side=other, list=term)
            sentences.append(_sentence(text, PhantomFact(term, "negative", (f"{other} lung",))))
    if draw.random() < 0.12:
        text = said.fill(grammar()["negative"]["abdomen"])
        fact = PhantomFact("subdiaphragmatic air", "negative", ("abdomen",))
        sentences.append(_sentence(text, fact))
    return sentences


def _enumeration(words: Sequence[str]) -> str:
    if len(words) < 3:
        return " or ".join(words)
    return f"{', '.join(words[:-1])}, or {words[-1]}"


def _impression(
    said: _Words, present: Sequence[Item], body: Sequence[PhantomSentence]
) -> list[PhantomSentence]:
    """Phrases the most important findings, as certain as before."""
    if not present:
        text = said.fill(grammar()["summary of a normal study"])
        return [_sentence(text, PhantomFact(None, "normal", _LUNGS))]
    ranked = sorted(present, key=lambda item: -item.area)[: said.draw.choice((1, 2, 2, 3))]
    facts = [fact for sentence in body for fact in sentence.facts]
    doubted = {fact.lesions for fact in facts if fact.polarity == "uncertain"}
    return [
        _sentence(f"Possible {said.noun(item)}.", _fact(item, "uncertain"))
        if item.lesions in doubted
        else _sentence(f"{capital(said.noun(item))}.", _fact(item, "positive"))
        for item in ranked
    ]


def _reason(draw: random.Random, study: PhantomStudy) -> str:
    words = grammar()
    question = draw.choice(words["question"])
    return draw.choice(words["indication"]).format(
        age=study.age,
        person="woman" if study.body.female else "man",
        complaint=draw.choice(words["complaint"]),
        question=question,
        Question=capital(question),
    )


def _layout(
    draw: random.Random,
    study: PhantomStudy,
    kind: str,
    reason: str,
    sentences: Sequence[PhantomSentence],
) -> str:
    """Lays out the report's file as MIMIC-CXR: indented, wrapped, sections in capitals."""
    words = grammar()
    positions = [view.position for view in study.views]
    views = positions[0] if "LATERAL" not in positions else f"{positions[0]} LATERAL"
    order = "first" if study.order == 1 else "later"
    parts = [
        ("EXAMINATION", draw.choice(words["examination"][views])),
        ("INDICATION", reason),
        ("TECHNIQUE", draw.choice(words["technique"][views])),
        ("COMPARISON", draw.choice(words["comparison"][order])),
    ]
    blocks = [f"{name}:  {text}" for name, text in parts]
    for section in ("findings", "impression"):
        text = " ".join(one.text for one in sentences if one.section == section)
        if (section, kind) in (("findings", "impression_only"), ("impression", "short")):
            continue
        blocks += [f"{section.upper()}:", *([text] if text else [])]
    # A line that ended within "mid-to-lower" would read as two words once the lines are joined.
    wrapper = textwrap.TextWrapper(
        78, initial_indent=" ", subsequent_indent=" ", break_on_hyphens=False
    )
    lines = [" " * 33 + "FINAL REPORT"]
    for block in blocks:
        lines += [*wrapper.wrap(block), " "]
    return "\n".join(lines) + "\n"
