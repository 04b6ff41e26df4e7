"""Reads answers back against the report's sentences, by another reader than the one that read them.

The reading is by cues and their windows, as NegEx has it (Chapman et al. 2001): words that deny or
doubt hold from where they stand to the next word that ends them. It shares the names of findings
with the extractor, and neither its rules of scope nor its cues, so that a slip of the one is rarely
one of the other. It says where both differ, not which is right.
"""

import functools
import re
from collections.abc import Sequence
from typing import Literal

from cxrjax.files import read_packaged, read_patterns
from cxrjax.papers.cxr_qba.construct.checks import overlap
from cxrjax.papers.cxr_qba.construct.phrases import NOT_MENTIONED
from cxrjax.papers.cxr_qba.native import NativeAnswer, StudySceneGraph
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import split_words

Reading = Literal["present", "denied", "doubted"]
OBSERVED = ("findings", "impression")
_COUNTS = ("NONE", "ONE", "SEVERAL")  # of inferences; the last is two or more
_STEM = 5  # letters that forms of a word share


_CUES = read_packaged(str(__package__), "reference/read_back.toml")
_WORDS = {name: re.compile(rf"\b(?:{'|'.join(words)})\b") for name, words in _CUES["words"].items()}
_RE = read_patterns(str(__package__), "reference/read_back.toml")
# Finding -> words that it is read from and that tell of less, and words that tell of it itself.
_LESS = {
    name: tuple(re.compile(rf"\b(?:{words})\b") for words in pair)
    for name, pair in _CUES["tells_of_less"].items()
}


@functools.lru_cache(maxsize=1 << 15)
def _readings(
    sentence: str, wordings: tuple[str, ...], said_otherwise: bool = True
) -> frozenset[Reading]:
    """Returns what a sentence in lower case says wherever one of the wordings is.

    Args:
        said_otherwise: take an organ and its state for the finding where no wording stands.
    """
    found: set[Reading] = set()
    words = split_words(sentence)
    forms = [word.lemma for word in words]
    for wording in wordings:
        key = [word.lemma for word in split_words(wording)]
        for first in range(len(forms) - len(key) + 1):
            if key and forms[first : first + len(key)] == key:
                last = words[first + len(key) - 1].end
                found.add(_status(sentence, words[first].start, last))
    said = _CUES["said_otherwise"].get(wordings[0])
    if not found and said_otherwise and said and (match := re.search(rf"\b(?:{said})\b", sentence)):
        # What denies may stand between the organ and its state.
        found.add(_status(sentence, match.end(), match.end()))
    return frozenset(found)


def _status(sentence: str, start: int, end: int) -> Reading:
    before = sentence[:start]
    for pattern in (_RE["stop"], _WORDS["ends"]):
        ends = [match.end() for match in pattern.finditer(before)]
        before = before[ends[-1] :] if ends else before
    behind = _RE["stop"].split(sentence[end:])[0]
    without = _RE["no_denial"].sub(" ", before)
    if _RE["doubts_behind"].search(behind) or (
        _RE["no_denial"].search(before) and "exclude" in before
    ):
        return "doubted"
    if _WORDS["denies"].search(without) or _RE["denies_behind"].search(
        _RE["no_denial"].sub(" ", behind)
    ):
        return "denied"
    return "doubted" if _WORDS["doubts"].search(before) else "present"


class ReadBack:
    """Compares a study's answers with the sentences that they were read from."""

    def __init__(self, graph: StudySceneGraph) -> None:
        self._findings = load_definitions().findings
        self._observed = [
            sentence.sentence.lower()
            for sentence in graph.sentences.values()
            if sentence.section in OBSERVED
        ]
        texts = {name: one.sentence.lower() for name, one in graph.sentences.items()}
        self._sources: dict[str, list[str]] = {}
        for edge in graph.obs_sent_relations:
            node = graph.observations[edge.observation_id]
            self._sources.setdefault(node.name, []).append(texts[edge.sentence_id])

    def verdicts(self, answer: NativeAnswer) -> dict[str, str]:
        """Returns the verdicts on entailment and inferences; none without a sentence."""
        if answer.certainty == NOT_MENTIONED:
            return {"entailment": self._on_silence(answer)}
        sources = self._sources.get(answer.name_tag or "")
        if not answer.from_report or not sources:
            return {}
        inferences = _COUNTS[min(2, *(_inferences(answer, source) for source in sources))]
        return {"entailment": self._entailment(answer, sources), "inferences": inferences}

    def _entailment(self, answer: NativeAnswer, sources: Sequence[str]) -> str:
        if self._is_misplaced(answer):
            return "NON_ALIGNED_MISLEADING"
        verdicts = [self._on_sentence(answer, source) for source in sources]
        # A sentence that says so is enough; the others are of the same observation.
        order = ("ALIGNED_MENTIONED", "NON_ALIGNED_CONTRADICTING", "NON_ALIGNED_MISLEADING")
        return next((one for one in order if one in verdicts), "NON_ALIGNED_NON_INFERABLE")

    def _is_misplaced(self, answer: NativeAnswer) -> bool:
        """Returns true for a finding in a region where none of its kind can be."""
        found = [self._findings[name] for name in answer.obs_entities if name in self._findings]
        if len(found) != 1 or found[0].category == "device" or not found[0].regions:
            return False
        also = _CUES["also_in"]
        (one,) = found
        at_home = (*one.regions, *also.get(one.name, ()), *also.get(one.subcategory, ()))
        names = [region for region in answer.regions if isinstance(region, str)]
        return any(not overlap([region], at_home) for region in names)

    def _on_silence(self, answer: NativeAnswer) -> str:
        """Returns the verdict on what is said not to be mentioned: no sentence may have it."""
        for name in answer.obs_entities:
            wordings = (name, *self._findings[name].synonyms)
            if any(_readings(sentence, wordings, False) for sentence in self._observed):
                return "NON_ALIGNED_CONTRADICTING"
        return "ALIGNED_NEGATIVE_NOT_MENTIONED"

    def _on_sentence(self, answer: NativeAnswer, source: str) -> str:
        text = answer.text.lower()
        if not {*_RE["number"].findall(text)} <= {*_RE["number"].findall(source)}:
            return "NON_ALIGNED_CONTRADICTING"
        if _RE["normal_text"].match(answer.text):
            said = _WORDS["normal"].search(source)
            return "ALIGNED_MENTIONED" if said else "NON_ALIGNED_NON_INFERABLE"
        readings: set[Reading] = set()
        for name in answer.obs_entities:
            if finding := self._findings.get(name):
                readings |= _readings(source, (name, *finding.synonyms))
            less, itself = _LESS.get(name, (None, None))
            if less and itself and less.search(source) and not itself.search(source):
                return "NON_ALIGNED_MISLEADING"
        if not readings:
            return "NON_ALIGNED_NON_INFERABLE"
        opposite = {"denied" if answer.positiveness == "pos" else "present"}
        if readings == opposite or _other_place(text, source):
            return "NON_ALIGNED_CONTRADICTING"
        if answer.certainty == "certain" and answer.positiveness == "pos":
            return "ALIGNED_MENTIONED" if "present" in readings else "NON_ALIGNED_MISLEADING"
        return "ALIGNED_MENTIONED"


def _inferences(answer: NativeAnswer, source: str) -> int:
    """Counts why an answer is less than a plain statement of its sentence: it is in doubt, a word
    was removed from the sentence, an answer's word is not there, several words qualify it."""
    there = answer.positiveness == "pos"
    added = {*_RE["word"].findall(answer.text.lower())} - {*_CUES["of_any_answer"]}
    reasons = (
        answer.certainty != "certain",
        _RE["removed"].search(source),
        there and any(word[:_STEM] not in source for word in added),
        len(answer.modifiers) > there,
    )
    return sum(map(bool, reasons))


def _other_place(text: str, source: str) -> bool:
    """Returns true for an answer that has the other side or height than its sentence."""
    sides = {side for side in ("left", "right") if re.search(rf"\b{side}\b", text)}
    there = {side for side in ("left", "right") if _WORDS[side].search(source)}
    if sides and there and not sides & there and not _WORDS["both"].search(source):
        return True
    heights, said = (
        {height for height in ("upper", "lower") if _WORDS[height].search(one)}
        for one in (text, source)
    )
    return len(heights) == 1 and bool(said) and not heights & said
