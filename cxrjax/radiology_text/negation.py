"""Finds the scope of negations in English radiology text.

Rules on lower-case text: a sentence is cut into clauses where the reach of a negation ends, and in
each clause the spots that it denies are found. Finding classes are the caller's; nothing here knows
a vocabulary. Used for the answers of models and for reports.
"""

import itertools
import re
from collections.abc import Sequence


def phrase_pattern(pattern: str) -> re.Pattern[str]:
    """The pattern compiled, a space in it standing for any run of spaces or hyphens."""
    return re.compile(pattern.replace(" ", r"[\s\-]+"))


# Text between these carries one statement. A full stop inside a number ends nothing. The lengths
# are limited because the work on one sentence grows with its square, and a model can ramble.
SENTENCE = re.compile(r"[^.!?;\n]{1,1000}(?:\.(?=\d)[^.!?;\n]{1,1000}){0,8}[.!?;\n]*")

# After these words an earlier "no" no longer holds.
_CONTRAST = phrase_pattern(
    r"\b(?:but|however|although|though|except(?: for)?|apart from|other than|aside from|besides|"
    r"yet|whereas|while|nevertheless|positive for|presence of)\b"
)
_SEPARATOR = re.compile(r",\s*(?:and\b)?|\band\b")
_VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|there|shows?|demonstrates?|reveals?|appears?|remains?|"
    r"measures?|occupies|lies|can)\b"
)

# These look like negations and are none: they speak of change, or leave the question open.
_NOT_NEGATION = phrase_pattern(
    r"\bnot only\b|\b(?:no|without)(?: significant| interval| appreciable)? change\b|"
    r"\bno(?: interval)? (?:increase|decrease|improvement|worsening)\b|"
    r"\b(?:cannot|can not|can't|could not|couldn't)(?: \w+ly)?(?: be)? (?:excluded?|ruled? out)\b|"
    r"\bnot(?: be| been)?(?: \w+ly)? (?:excluded?|ruled? out)\b|\b(?:no|without)(?: a)? doubt\b"
)
_SEEN = (
    r"(?:seen|present|identified|visible|visuali[sz]ed|detected|evident|demonstrated|noted|observed|"
    r"found|appreciated|apparent|recogni[sz]ed|there|shown|suspected|suggested)"
)
_NOT = r"(?:not|never|cannot|(?:is|are|was|were|do|does|did|has|have|ca|could|would|should)n't)"
# Deny what stands before them in the clause.
DENIES_BEFORE = phrase_pattern(
    rf"\b(?:{_NOT}(?: \w+ly)?(?: be| been| being)?(?: \w+ly)? {_SEEN}|absent|ruled out|excluded|"
    r"unlikely|(?:is|are|was|were) (?:negative|no longer \w+))\b"
)
# Deny what stands after them in the clause. "No," as an answer of its own is not among them.
DENIES_AFTER = phrase_pattern(
    rf"\b(?:no\b(?!\s*(?:[,.:;!?)]|$))|{_NOT}\b|without\b|(?:absence|lack|none) of\b|"
    r"lack(?:s|ing)\b|free (?:of|from)\b|negative for\b|neither\b|nor\b|zero\b|0\b(?![.\d])|"
    r"denies\b|rul(?:es?|ing) out\b|exclud(?:es?|ing)\b|unable to\b|rather than\b|"
    r"instead of\b)"
)
_ABSENT_JUST_BEFORE = re.compile(r"\babsent\s+$")
# "Effusion: no, cardiomegaly: yes" and its like: a value for the one class before it.
_VALUE_MARK = re.compile(r"(?:[:=]|\s[-–—])\s*$")
_VALUE_JUST_AFTER = re.compile(
    r"\s*(?:[:=]|\s[-–—]\s)\s*(?:no|none|absent|negative|0)\s*(?=[,.;!)]|$)"
)
# A denial of what stands before it reaches back to here: "cardiomegaly seen, effusion absent".
_AFFIRMS_BEFORE = re.compile(rf"\b{_SEEN}\b")


def clauses(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Splits a sentence where the reach of a negation ends: at a contrast, and where a comma or
    an "and" opens a statement with a verb of its own."""
    cuts = [match.start() for match in _CONTRAST.finditer(text, start, end)]
    separators = list(_SEPARATOR.finditer(text, start, end))
    edges = sorted([*cuts, *(match.start() for match in separators), end])
    begin = start
    commas = 0
    taken = []
    for separator in separators:
        passed = [cut for cut in cuts if begin < cut <= separator.start()]
        if passed:
            begin, commas = passed[-1], 0
        left = text[begin : separator.start()]
        right = text[separator.end() : next(edge for edge in edges if edge >= separator.end())]
        is_comma = separator.group().startswith(",")
        if _VERB.search(right) and not re.match(r"\s*n?or\b", right):
            listed = is_comma and not commas and DENIES_AFTER.search(left) is not None
            if _VERB.search(left) or listed:
                taken.append(separator.start())
                begin, commas = separator.start(), 0
                continue
        commas += is_comma
    borders = sorted({start, *cuts, *taken, end})
    return list(itertools.pairwise(borders))


def denied(text: str, start: int, end: int, spots: Sequence[tuple[int, int]]) -> list[bool]:
    """Tells which spots of a clause are said to be absent.

    Args:
        text: lower case.
        start: where the clause begins in the text.
        end: where it ends.
        spots: (begin, end) in the text of what is named in the clause, in order.
    """
    if not spots:
        return []
    clause = blank(_NOT_NEGATION, text[start:end])
    inside = [(begin - start, stop - start) for begin, stop in spots]
    ranges: list[tuple[int, int]] = []
    rest = clause
    for match in DENIES_BEFORE.finditer(clause):
        reach = max(
            (m.end() for m in _AFFIRMS_BEFORE.finditer(clause, 0, match.start())), default=0
        )
        follows = clause[match.end() :].lstrip()
        if not any(reach <= begin < match.start() for begin, _ in inside) or any(
            clause[begin:] == follows for begin, _ in inside
        ):
            continue  # nothing before it to deny, or it belongs to the class right after it
        rest = rest[: match.start()] + " " * len(match.group()) + rest[match.end() :]
        if not _VALUE_MARK.search(clause[: match.start()]):
            ranges.append((reach, match.start()))
    if forward := DENIES_AFTER.search(rest):
        ranges.append((forward.start(), len(clause)))
    return [
        any(low <= begin < high for low, high in ranges)
        or _ABSENT_JUST_BEFORE.search(clause[:begin]) is not None
        or _VALUE_JUST_AFTER.match(clause, stop) is not None
        for begin, stop in inside
    ]


def blank(pattern: re.Pattern[str], text: str) -> str:
    """The text with spaces in place of what the pattern matches, every character at its place."""
    return pattern.sub(lambda match: " " * len(match.group()), text)
