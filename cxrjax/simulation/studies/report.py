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
    """A sentence's statement about one finding."""

    finding: str | None  # a key of the grammar's findings; None for regions reported as normal
    polarity: str  # positive, negative, uncertain or normal
    regions: tuple[str, ...]
    severity: str | None = None
    change: str | None = None  # new, no change, improved, worsened or None
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
    said = _Words(draw, present, (before or []) if compares else None)
    body = said.findings()[: {"short": 1, "impression_only": 0, "empty_findings": 0}.get(kind)]
    impression = [] if kind == "short" else said.impression(body)
    sentences = [
        dataclasses.replace(one, section=section)
        for section, of_section in (("findings", body), ("impression", impression))
        for one in of_section
    ]
    reason = _reason(draw, study)
    text = _layout(draw, study, kind, reason, sentences)
    return PhantomReport(kind, reason, text, sentences)


class _Words:
    """Sentences of one report, with randomly chosen wordings of the grammar.

    Attributes:
        present: findings of the study.
        before: findings of the study that it is compared with; None: with none.
        mentioned: terms in the sentences so far.
    """

    def __init__(
        self, draw: random.Random, present: Sequence[Item], before: Sequence[Item] | None
    ) -> None:
        self.draw, self.present, self.before = draw, present, before
        self.mentioned: set[str | None] = set()

    def say(self, templates: Sequence[str], *facts: PhantomFact, **slots: str) -> PhantomSentence:
        """Returns a sentence with the meaning of the facts."""
        slots |= {name.capitalize(): capital(value) for name, value in slots.items()}
        text = capital(self.draw.choice(templates).format(**slots))
        return PhantomSentence("", text, facts)

    def _slots(self, item: Item) -> dict[str, str]:
        severity, adverb = item.severity or "", _ADVERBS.get(item.severity or "", "")
        where = self.draw.choice(item.places)
        return {"side": item.side, "where": where, "severity": severity, "severity_adverb": adverb}

    def _noun(self, item: Item) -> str:
        nouns = grammar()["findings"][item.term]["noun"]
        return self.draw.choice(nouns).format(**self._slots(item))

    def _positive(self, item: Item) -> PhantomSentence:
        entry = grammar()["findings"][item.term]
        several = len(item.lesions) > 1 and "plural" in entry
        templates = entry["plural" if several else "positive"]
        return self.say(templates, _fact(item, "positive"), **self._slots(item))

    def _finding(self, item: Item) -> PhantomSentence:
        if self.before is not None and self.draw.random() < 0.7:
            change = change_since(item, self.before)
            fact = _fact(item, "positive", change)
            return self.say(grammar()["change"][change], fact, noun=self._noun(item))
        if self.draw.random() < _UNCERTAIN and item.term not in _OUTSIDE_LUNG:
            return self._uncertain(item)
        return self._positive(item)

    def _uncertain(self, item: Item) -> PhantomSentence:
        fact = _fact(item, "uncertain")
        return self.say(grammar()["uncertain"], fact, noun=self._noun(item))

    def _resolved(self, item: Item) -> PhantomSentence:
        fact = PhantomFact(item.term, "negative", item.regions, change="improved")
        return self.say(grammar()["change"]["resolved"], fact, noun=self._noun(item))

    def _normal(self, what: str, *regions: str, side: str = "") -> PhantomSentence:
        return self.say(grammar()["normal"][what], PhantomFact(None, "normal", regions), side=side)

    def findings(self) -> list[PhantomSentence]:
        """Returns all sentences of the findings, abnormal ones first or among the normal ones."""
        draw, before = self.draw, self.before
        pair = [item for item in self.present if item.term == "pleural effusion"]
        shared = len(pair) == 2 and pair[0].severity == pair[1].severity and before is None
        sentences = []
        if shared:
            templates = grammar()["findings"]["pleural effusion"]["bilateral"]
            facts = [_fact(item, "positive") for item in pair]
            sentences.append(self.say(templates, *facts, severity=pair[0].severity or ""))
        alone = [item for item in self.present if not (shared and item in pair)]
        sentences += [self._finding(item) for item in alone]
        there = {(item.term, item.side) for item in self.present}
        gone = [
            item
            for item in before or []
            if item.term != "cardiac device" and (item.term, item.side) not in there
        ]
        sentences += [self._resolved(item) for item in gone if draw.random() < 0.5]
        self.mentioned = {fact.finding for sentence in sentences for fact in sentence.facts}
        if draw.random() < _HEDGED_ABSENT and "pleural effusion" not in self.mentioned:
            side = draw.choice(("right", "left"))
            regions = (f"{side} lower lung zone", f"{side} costophrenic angle")
            doubtful = Item("pleural effusion", side, regions, ("",), "small", 0.0, ())
            sentences.append(self._uncertain(doubtful))
            self.mentioned.add("pleural effusion")
        sentences += self._normals() + self._negatives()
        if draw.random() >= 0.5:
            draw.shuffle(sentences)
        return sentences

    def _normals(self) -> list[PhantomSentence]:
        """Names some of the structures without findings."""
        draw, mentioned = self.draw, self.mentioned
        terms = {item.term for item in self.present} | mentioned
        lung_sides = {item.side for item in self.present if item.term not in _OUTSIDE_LUNG}
        hidden = terms & {"pleural effusion", "consolidation", "lobar collapse"}
        sentences = []
        heart, middle = "cardiac silhouette", "mediastinum"
        large, wide = "enlarged cardiac silhouette" in terms, terms & _WIDENS
        if not large and not wide and draw.random() < 0.5:
            sentences.append(self._normal("heart and mediastinum", heart, middle))
        else:
            if not large:
                sentences.append(self._normal("heart", heart))
            if not wide and draw.random() < 0.5:
                sentences.append(self._normal("mediastinum", middle))
        if draw.random() < 0.5:
            sentences.append(self._normal("hila", *_both("hilar structures")))
        if not lung_sides and not mentioned - _OUTSIDE_LUNG - {None}:
            sentences.append(self._normal("both lungs", *_LUNGS))
        elif len(lung_sides) == 1 and "pleural effusion" not in mentioned and draw.random() < 0.5:
            # An effusion in doubt may be on the side that looks clear.
            other = "left" if "right" in lung_sides else "right"
            sentences.append(self._normal("one lung", f"{other} lung", side=other))
        if draw.random() < 0.25:
            sentences.append(self._normal("trachea", "trachea"))
        if draw.random() < 0.35:
            if draw.random() < 0.5:
                sentences.append(self._normal("spine", "spine"))
            else:
                sentences.append(self._normal("bones", "spine", *_both("clavicle")))
        for name, part, share in _BASES:
            if not hidden and draw.random() < share:
                sentences.append(self._normal(name, *_both(part)))
        return sentences

    def _negatives(self) -> list[PhantomSentence]:
        """Denies findings that are absent, of both lungs or of the other side."""
        draw, said = self.draw, grammar()["negative"]
        terms = {item.term for item in self.present} | self.mentioned
        if terms & _LIKE_EDEMA:
            terms |= {"consolidation", "pulmonary edema"}
        absent = [term for term in _NEGATABLE if term not in terms]
        sentences = []
        if absent:
            listed = draw.sample(absent, draw.randint(1, min(3, len(absent))))
            words = ["focal consolidation" if one == "consolidation" else one for one in listed]
            facts = [PhantomFact(term, "negative", _LUNGS) for term in listed]
            sentences.append(self.say(said["both"], *facts, list=_enumeration(words)))
        for term in ("pleural effusion", "pneumothorax"):
            sides = {item.side for item in self.present if item.term == term}
            if len(sides) == 1 and draw.random() < 0.35:
                other = "left" if "right" in sides else "right"
                fact = PhantomFact(term, "negative", (f"{other} lung",))
                sentences.append(self.say(said["side"], fact, side=other, list=term))
        if draw.random() < 0.12:
            fact = PhantomFact("subdiaphragmatic air", "negative", ("abdomen",))
            sentences.append(self.say(said["abdomen"], fact))
        return sentences

    def impression(self, body: Sequence[PhantomSentence]) -> list[PhantomSentence]:
        """Phrases the most important findings, as certain as in the body."""
        if not self.present:
            fact = PhantomFact(None, "normal", _LUNGS)
            return [self.say(grammar()["summary of a normal study"], fact)]
        many = self.draw.choice((1, 2, 2, 3))
        facts = [fact for sentence in body for fact in sentence.facts]
        doubted = {fact.lesions for fact in facts if fact.polarity == "uncertain"}
        sentences = []
        for item in sorted(self.present, key=lambda item: -item.area)[:many]:
            doubtful, noun = item.lesions in doubted, self._noun(item)
            text = f"Possible {noun}." if doubtful else f"{capital(noun)}."
            fact = _fact(item, "uncertain" if doubtful else "positive")
            sentences.append(PhantomSentence("", text, (fact,)))
        return sentences


def _fact(item: Item, polarity: str, change: str | None = None) -> PhantomFact:
    return PhantomFact(item.term, polarity, item.regions, item.severity, change, item.lesions)


def _both(part: str) -> tuple[str, str]:
    return f"right {part}", f"left {part}"


def _enumeration(words: Sequence[str]) -> str:
    if len(words) < 3:
        return " or ".join(words)
    return f"{', '.join(words[:-1])}, or {words[-1]}"


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
