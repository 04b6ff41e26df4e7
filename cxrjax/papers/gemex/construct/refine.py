"""Refines reports: complete sentences that are each about one region (section 3.1, Table 9).

The rules: (1) no region, left out; (2) an overall description is of both lungs; (3) one sentence,
one region, else split into complete sentences; (4) an effusion's region by its size; (5) pulmonary
veins are seen at the hila; (6) atria and ventricles are the heart.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from cxrjax.papers.gemex.construct.facts import CHEST, SentenceFact, find_facts, words_of
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import ImageReport, RefinedSentence, ReportSentence
from cxrjax.radiology_text.english import capital, join, load_vocabulary

SEVERITY_OF_SIZE = {"minimal": "tiny", "mild": "small", "moderate": "moderate", "severe": "large"}


class Refinement(NamedTuple):
    """The refined sentences of a report, and counts of those left out."""

    sentences: list[RefinedSentence]
    left_out: collections.Counter[str]


class Refiner(Protocol):
    """Refines reports."""

    name: str
    version: str

    def refine(self, reports: Iterable[ImageReport]) -> Iterator[tuple[ImageReport, Refinement]]:
        """Each report with its refined sentences, in order."""
        ...


class RuleRefiner:
    """Refines by rules on words; offline and the same every time."""

    name = "rules"
    version = "1"

    def refine(self, reports: Iterable[ImageReport]) -> Iterator[tuple[ImageReport, Refinement]]:
        """Each report with its refined sentences, in order."""
        for report in reports:
            left_out: collections.Counter[str] = collections.Counter()
            refined: list[RefinedSentence] = []
            for number, sentence in enumerate(report.sentences):
                result = refine_sentence(sentence)
                if isinstance(result, str):
                    left_out[result] += 1
                    continue
                # Findings and impression often say the same twice.
                known = {(one.text, one.region) for one in refined}
                refined += [
                    RefinedSentence(text, region, number)
                    for text, region in result
                    if (text, region) not in known
                ]
            yield report, Refinement(refined, left_out)


# Of a sentence: the longest of OpenI has 276, and time grows with the square.
_MOST_CHARACTERS = 1_000


# Reports say the same in the same words: of 22,824 sentences of OpenI, 8,300 are different.
@functools.lru_cache(maxsize=1 << 16)
def refine_sentence(sentence: ReportSentence) -> list[tuple[str, str]] | str:
    """Returns a complete sentence for each region of a sentence, or why it is left out."""
    words = load_vocabulary()
    text = sentence.text
    if len(text) > _MOST_CHARACTERS:
        return "report_too_long"
    lowered = text.lower()
    comparing = words.cues["longitudinal"].search(words.cues["droppable"].sub("", lowered))
    if comparing:
        return "longitudinal"
    facts = [
        fact for fact in find_facts(text, sentence.regions) if fact.regions or fact.subject == CHEST
    ]
    viewed = words.cues["view"].search(lowered)
    if not facts:
        if viewed:
            return "view_wording"
        known = load_regions().combine(sentence.regions)
        if len(known) == 1 and _is_complete(text):
            return [(_tidy(text), known[0])]
        return "no_region"
    by_region: dict[str, list[SentenceFact]] = {}
    for fact in facts:
        for region in fact.regions:
            by_region.setdefault(region, []).append(fact)
    clean = not (viewed or words.cues["droppable"].search(lowered) or _PLACEHOLDER.search(text))
    if len(by_region) == 1 and clean and (complete := _complete(text)):
        return [(complete, next(iter(by_region)))]
    return [
        (sentence_text, region)
        for region, group in by_region.items()
        for sentence_text in write_facts(group, region)
    ]


_PLACEHOLDER = re.compile(r"XXXX|___")
_VERB = re.compile(
    r"\b(?:is|are|was|were|appears?|shows?|demonstrates?|has|have|contains?|lies|projects?"
    r"|overl(?:y|ies)|extends?|suggests?|represents?|terminates?|ends)\b"
)
_PLURAL = re.compile(r"(?:s|ces|ta)$")
_SINGULAR_S = re.compile(r"(?:ss|sis|us|is|thorax|process|mass)$")


def _is_complete(text: str) -> bool:
    return _VERB.search(text.lower()) is not None


def _tidy(text: str) -> str:
    text = text.strip().rstrip(".;,: ")
    return capital(text) + "."


def _complete(text: str) -> str | None:
    """Completes the text with subject and predicate; None where words alone cannot tell how."""
    if _is_complete(text):
        return _tidy(text)
    absent = re.match(r"(?:no|without) (?:evidence of |evidence for )?(?P<what>.+)", text, re.I)
    if absent is None:
        return None
    what = absent["what"].rstrip(".;,: ")
    head = re.split(r",| or | and | in | of | on | at ", what)[0].split()[-1].lower()
    plural = _PLURAL.search(head) and not _SINGULAR_S.search(head)
    return f"There {'are' if plural else 'is'} no {what}."


def write_facts(facts: Sequence[SentenceFact], region: str) -> list[str]:
    """Words complete sentences that say these facts of one region."""
    sentences = []
    for fact in facts:
        if fact.polarity == "normal":
            sentences.append(_normal_sentence(fact, region))
        elif fact.polarity == "pos":
            one = dataclasses.replace(fact, regions=(region,))
            verb = "are" if is_several(one) else "is"
            start = f"There {verb}" if fact.certain else "There may be"
            # Where no place was told, the sentence tells none.
            place = f" in {spoken(region)}" if is_placed(one) else ""
            named = fact.cause and not _PLACEHOLDER.search(fact.cause.upper())
            cause = f" due to {fact.cause}" if named else ""
            sentences.append(f"{start} {phrase(one)}{place}{cause}.")
    absent = list(dict.fromkeys(fact.subject for fact in facts if fact.polarity == "neg"))
    if absent:
        listed = join([words_of(name).noun for name in absent], "or")
        sentences.append(f"There {'are' if is_many_of(absent[0]) else 'is'} no {listed}.")
    return list(dict.fromkeys(sentences))


BY_PLACE = ("lung", "side", "effusion", "hilar")
# Of the cardiomediastinum each part is spoken of by itself.
_PART_SUBJECTS = {
    "mediastinum": "mediastinal silhouette",
    "cardiac silhouette": "cardiac silhouette",
}


def is_placed(fact: SentenceFact) -> bool:
    """Returns true where a sentence names the place beside the finding."""
    named = fact.words.region in BY_PLACE
    return named and fact.located and fact.subject != "hilar_enlargement"


def has_one_place(fact: SentenceFact) -> bool:
    """Returns true for a finding that may be in several places, and is said to be in one."""
    return fact.words.region in BY_PLACE and fact.located and len(fact.regions) == 1


def _normal_sentence(fact: SentenceFact, region: str) -> str:
    if fact.subject == CHEST:
        return "The lungs show no acute abnormality."
    structure = load_vocabulary().structures[fact.subject]
    subject, verb = structure.subject, structure.verb
    if fact.subject == "cardiomediastinum":
        subject = _PART_SUBJECTS.get(region, subject)
    elif (fact.subject == "lungs" and region != "bilateral lung") or (
        fact.subject in ("diaphragm", "hila") and not region.startswith("bilateral")
    ):
        verb = "are" if is_many(spoken(region)) else "is"
        return f"{capital(spoken(region))} {verb} {structure.condition}."
    return f"The {subject} {verb} {structure.condition}."


def spoken(region: str) -> str:
    """Returns a region as a sentence has it, article included."""
    side, _, part = region.partition(" ")
    if part == "hilar structures":
        return "both hila" if side == "bilateral" else f"the {side} hilum"
    if side == "bilateral" and part.endswith(" lung zone"):
        return f"the {part.removesuffix(' lung zone')} zones of both lungs"
    if side == "bilateral":
        return f"both {part}s"
    return "the superior vena cava" if region == "svc" else f"the {region}"


def is_many(spoken_region: str) -> bool:
    """Returns true for a region, as a sentence has it, that takes a plural verb."""
    both = spoken_region.startswith("both ") or spoken_region.endswith("lungs")
    return both or " and " in spoken_region


def is_many_of(finding: str) -> bool:
    """Returns true for a finding whose noun takes "are"."""
    words = words_of(finding)
    return bool(words.plural) and words.plural == words.noun


def is_several(fact: SentenceFact) -> bool:
    """Returns true for a finding in the plural: its noun or its sentence is, or it is in two
    places that it cannot join."""
    apart = bool(fact.words.plural) and _is_apart(fact)
    return is_many_of(fact.subject) or fact.several or apart


def _is_apart(fact: SentenceFact) -> bool:
    apart = len(fact.regions) > 1 or fact.regions[0].startswith("bilateral")
    return fact.located and apart


def phrase(fact: SentenceFact) -> str:
    """Words a finding with article and severity: "a small pleural effusion", "mild cardiomegaly",
    "nodules"; that of a hilum or a hemidiaphragm has its side, if one is told."""
    words = fact.words
    adjective = severity_word(fact)
    noun = words.plural if is_several(fact) else words.noun
    if fact.located and fact.subject == "hilar_enlargement":
        noun = f"enlargement of {spoken(fact.regions[0])}"
    elif fact.located and words.region == "hemidiaphragm":
        noun = noun.replace("the hemidiaphragm", spoken(fact.regions[0]))
    text = f"{adjective} {noun}" if adjective else noun
    if not words.article or _is_apart(fact) or is_several(fact):  # "pneumothorax in both lungs"
        return text
    return f"{'an' if text[0] in 'aeiou' else 'a'} {text}"


def severity_word(fact: SentenceFact) -> str | None:
    """Returns the fact's severity in the word that suits its finding."""
    if fact.severity is None or not fact.words.sized:
        return fact.severity
    return SEVERITY_OF_SIZE[fact.severity]
