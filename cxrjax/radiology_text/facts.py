"""Facts of texts by rules, and the facts that two texts have in common (ViX-Ray, section 4.2).

The paper has a language model take texts apart and match the facts; this does both without one, in
English and Vietnamese. It knows words, not medicine: what comes of it is labelled a surrogate
wherever it is printed.

Facts are matched one to one: with many-to-many matches the paper's |T ∩ G| would have two sizes.
"""

import enum
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cxrjax.files import read_packaged
from cxrjax.metrics.text import tokens
from cxrjax.radiology_text.assertions import Assertion, Side, joined_side
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.reading import said_now

VIETNAMESE = "vi"
# Facts with at least this share of words in common (F1) say the same; with at least the second,
# something else about the same thing.
SAME, RELATED = 0.75, 0.35
# Of a text, which grow in the time they take by more than their length. No answer that says
# something has as many.
_MOST_CHARACTERS, _MOST_FACTS = 20_000, 200
_KEPT = 1 << 14  # facts and texts; models answer in templates

_DATA = read_packaged(str(__package__), "reference/facts.toml")
_NEGATIONS = frozenset(_DATA["negations"])
_GROUPS = tuple(
    {word: number for number, group in enumerate(line) for word in group.split()}
    for line in _DATA["lines"]
)
_SENTENCE, _COMMA, _AND, _ADVICE, _UNFINISHED, _BARE_ANSWER, _REFUSALS = map(
    re.compile, _DATA["patterns"].values()
)


@dataclass(frozen=True)
class Fact:
    """One statement.

    Attributes:
        text: understood by itself: a denial that stands earlier in the sentence is put before it.
        start, end: its own words in the text, in Unicode's form NFC.
    """

    text: str
    start: int
    end: int


def is_refusal(text: str) -> bool:
    """Returns whether the text declines to answer, as some models do with medical images."""
    return bool(_REFUSALS.search(text))


@functools.lru_cache(maxsize=_KEPT)
def decompose(text: str, lang: str) -> tuple[Fact, ...]:
    """The statements of a text, in order, repetitions included; none of a refusal.

    Sentences are cut at commas and contrasts, and at "and" and "or" between two named findings.
    Questions and advice hold no facts, and neither does a "yes" beside what it affirms. What comes
    after 20,000 characters or 200 statements is not read.

    Args:
        lang: "vi", else read as English.
    """
    text = text[:_MOST_CHARACTERS]
    if is_refusal(text):
        return ()
    plain = unicodedata.normalize("NFC", text)
    said = said_of(plain, lang)
    facts = []
    for sentence in _SENTENCE.finditer(plain):
        if sentence.group().rstrip().endswith("?"):
            continue
        for start, end in _pieces(plain, *sentence.span(), said):
            words = plain[start:end]
            if tokens(words) and not _ADVICE.match(words):
                facts.append(Fact(_denied(words, start, end, said, lang), start, end))
    facts = facts[:_MOST_FACTS]
    affirmed = [fact for fact in facts if not _BARE_ANSWER.fullmatch(fact.text)]
    return tuple(affirmed or facts)


@functools.lru_cache(maxsize=_KEPT)
def said_of(text: str, lang: str) -> tuple[Assertion, ...]:
    """Returns a text's present assertions about findings; `lang` as in `decompose`."""
    return said_now(text, VIETNAMESE if lang == VIETNAMESE else "en")


def similarity(first: str, second: str) -> float:
    """F1 of the words that two facts have in common, 0 to 1."""
    one, two = _words(first), _words(second)
    common = (one & two).total()
    return 2 * common / (one.total() + two.total()) if common else 0.0


def same(first: str, second: str, lang: str) -> bool:
    """Returns whether two facts are equal, in words or in findings.

    Those that deny or doubt what the other affirms, or differ in side, level or degree, do not.
    """
    one, two = _words(first), _words(second)
    said, meant = _statements(first, lang), _statements(second, lang)
    # The reader tells the side of a finding.
    for groups in _GROUPS[bool(said and meant) :]:
        here, there = ({groups[word] for word in words if word in groups} for words in (one, two))
        if here and there and here != there:
            return False
    if said and meant:
        return said.keys() == meant.keys() and all(
            not (side and meant[key] and side != meant[key]) for key, side in said.items()
        )
    agree = bool(one.keys() & _NEGATIONS) == bool(two.keys() & _NEGATIONS)
    return agree and similarity(first, second) >= SAME


def entails(premise: str, fact: str, lang: str) -> bool:
    """Returns whether a fact follows from one other, by rules.

    A finding follows from a more special one, its denial from a more general one's; of a side, from
    both sides. A detail that the premise does not give does not follow. A fact that names no
    finding follows from one that says the same.
    """
    said, known = (_statements(text, lang) for text in (fact, premise))
    if not said:
        return not known and same(premise, fact, lang)
    here, there = _words(fact), _words(premise)
    detailed = all(
        {groups[word] for word in here if word in groups}
        <= {groups[word] for word in there if word in groups}
        for groups in _GROUPS[1:]  # the reader tells the side
    )
    ancestors = load_definitions().finding_ancestors

    def follows(finding: str, status: str, side: Side | None) -> bool:
        for (other, its_status), its_side in known.items():
            special, general = (finding, other) if status == "no" else (other, finding)
            # What is denied without a side is denied on both.
            least, most = (side, its_side) if status == "no" else (its_side, side)
            if (
                status == its_status
                and (special == general or general in ancestors(special))
                and (most in (None, least) or its_side == "bilateral")
            ):
                return detailed or status == "no"
        return False

    return all(follows(*key, side) for key, side in said.items())


def is_denial(text: str, lang: str) -> bool:
    """Returns whether a text names findings and denies all of them."""
    said = said_of(text, lang)
    return bool(said) and all(one.denies for one in said)


def pair_up(predicted: Sequence[str], true: Sequence[str], lang: str) -> list[tuple[int, int]]:
    """Facts that belong together, one to one: those that say the same before all others, then so
    that similarities (F1 of words) sum to the most; pairs that are hardly alike are left out.

    Returns:
        (index of a predicted fact, index of a true one), in the order of the predicted.
    """
    if not predicted or not true:
        return []
    from scipy.optimize import linear_sum_assignment  # here: it takes long to load

    scores = np.array([[similarity(p, t) + same(p, t, lang) for t in true] for p in predicted])
    rows, columns = linear_sum_assignment(np.where(scores >= RELATED, scores, 0.0), maximize=True)
    return [
        (int(row), int(column))
        for row, column in zip(rows, columns, strict=True)
        if scores[row, column] >= RELATED
    ]


def one_to_one(equal: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Returns as many of these pairs as go together without using an index twice on its side."""
    edges = sorted(set(equal))
    if not edges:
        return ()
    # Here: they take long to load.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    rows, columns = np.array(edges).T
    graph = coo_array((np.ones(len(edges), bool), (rows, columns))).tocsr()
    partners = maximum_bipartite_matching(graph, perm_type="column")
    return tuple((row, int(column)) for row, column in enumerate(partners) if column >= 0)


def fact_ratio(matched: int, facts: int, others: int) -> float:
    """Precision of one text, of its own facts against the other's; or recall, the other way round.

    A text without facts has 1 beside another without facts, and 0 beside one with some.
    """
    return matched / facts if facts else float(not others)


@functools.lru_cache(maxsize=_KEPT)
def _words(text: str) -> Counter[str]:
    return Counter(tokens(text))


def _statements(text: str, lang: str) -> dict[tuple[str, str], Side | None]:
    """(finding, whether it is there: yes, no or open) -> its side."""
    found: dict[tuple[str, str], Side | None] = {}
    for one in said_of(unicodedata.normalize("NFC", text), lang):
        said = "no" if one.denies else "open" if one.status == "uncertain" else "yes"
        sides = (found.get((one.finding, said)), one.side)
        found[one.finding, said] = joined_side(sides)
    return found


def _pieces(text: str, start: int, end: int, said: Sequence[Assertion]) -> list[tuple[int, int]]:
    """Parts of a sentence that state something each, without blanks and marks around them."""
    cuts = [(m.start(), m.end()) for m in _COMMA.finditer(text, start, end)]
    for match in _AND.finditer(text, start, end):
        left = max((stop for _, stop in cuts if stop <= match.start()), default=start)
        right = min((begin for begin, _ in cuts if begin >= match.end()), default=end)
        before = any(left <= one.span[0] < match.start() for one in said)
        after = any(match.end() <= one.span[0] < right for one in said)
        if before and after:
            cuts.append(match.span())
    pieces = []
    begin = start
    for cut, resume in [*sorted(cuts), (end, end)]:
        words = text[begin:cut]
        lead = len(words) - len(words.lstrip(" \t,;:-"))
        stop = begin + len(words.rstrip(" \t,;.!"))
        if cut < end and _UNFINISHED.fullmatch(words):
            continue
        if begin + lead < stop:
            pieces.append((begin + lead, stop))
        begin = resume
    return pieces


def _denied(words: str, start: int, end: int, said: Sequence[Assertion], lang: str) -> str:
    """The piece with a denial before it where one further up in the sentence reaches it."""
    here = {one.finding for one in said if start <= one.span[0] < end and one.denies}
    alone = {one.finding for one in said_of(words, lang) if not one.denies}
    if not here & alone:
        return words
    return f"không thấy {words}" if lang == VIETNAMESE else f"no {words}"


Span = tuple[int, int]


class FactLabel(enum.StrEnum):
    """Classes of facts: the paper's four colours, the last one in two."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    MISSING = "missing"
    HALLUCINATED = "hallucinated"
    REDUNDANT = "redundant"


@dataclass(frozen=True)
class Aligned:
    """A fact of the prediction, of the reference, or one of each.

    Attributes:
        predicted, reference: the facts; "" where there is none.
        similarity: F1 of their words.
        predicted_span, reference_span: (start, end) of their words in each text, in Unicode's form
            NFC; None where there is no fact.
    """

    label: FactLabel
    predicted: str
    reference: str
    similarity: float
    predicted_span: Span | None
    reference_span: Span | None


def align(prediction: str, reference: str, lang: str) -> list[Aligned]:
    """Every fact of both texts once: those of the prediction in order, then the missing ones.

    Facts are matched one to one. A pair that says the same is correct, one that is related
    incorrect. Of what is left in the prediction, a fact that repeats an earlier one of it is
    redundant, any other hallucinated; in the reference, missing, unless it repeats an earlier one
    of it.
    """
    predicted, true = decompose(prediction, lang), decompose(reference, lang)
    pairs = dict(pair_up([f.text for f in predicted], [f.text for f in true], lang))
    aligned = []
    for index, fact in enumerate(predicted):
        if index in pairs:
            other = true[pairs[index]]
            right = same(fact.text, other.text, lang)
            aligned.append(_pair(FactLabel.CORRECT if right else FactLabel.INCORRECT, fact, other))
        else:
            repeated = _repeats(fact, predicted[:index], lang)
            aligned.append(
                _pair(FactLabel.REDUNDANT if repeated else FactLabel.HALLUCINATED, fact, None)
            )
    found = set(pairs.values())
    aligned += [
        _pair(FactLabel.MISSING, None, fact)
        for index, fact in enumerate(true)
        if index not in found and not _repeats(fact, true[:index], lang)
    ]
    return aligned


def _repeats(fact: Fact, earlier: tuple[Fact, ...], lang: str) -> bool:
    return any(same(fact.text, other.text, lang) for other in earlier)


def _pair(label: FactLabel, predicted: Fact | None, true: Fact | None) -> Aligned:
    return Aligned(
        label,
        predicted.text if predicted else "",
        true.text if true else "",
        similarity(predicted.text, true.text) if predicted and true else 0.0,
        (predicted.start, predicted.end) if predicted else None,
        (true.start, true.end) if true else None,
    )
