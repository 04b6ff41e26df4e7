"""Reads findings from Vietnamese text: there or not, how sure, where, how severe.

The classes of VinDr-CXR-VQA in the words of chest radiology reports; our own rules and words.
Vietnamese puts what qualifies a finding after it ("tràn dịch màng phổi trái lượng ít"), and says
what is normal of organs ("bóng tim không to"). Text is read in Unicode's form NFC, which is what
the positions of mentions refer to.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from cxrjax.files import read_packaged
from cxrjax.radiology_text.mention_details import (
    CERTAIN,
    LIKELY,
    UNCERTAIN,
    DetailedMention,
    joined_side,
)
from cxrjax.radiology_text.negation import SENTENCE, blank, phrase_pattern

_KEPT_SENTENCES = 1 << 14

# Class -> regular expressions on lower-case text; a space stands for any run of spaces.
VINDR_VOCABULARY: dict[str, tuple[str, ...]] = {
    name: tuple(words)
    for name, words in read_packaged(str(__package__), "reference/vindr_classes.toml")["vi"].items()
}

# Organs, the class that a state of theirs means, and the states: those of disease and of health.
_STATEMENTS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"(?:bóng (?:mờ )?tim|diện tim|kích thước(?: và hình dạng)?(?: bóng)? tim|tim)",
        "Cardiomegaly",
        r"to|rộng|lớn",
        r"bình thường|trong giới hạn",
    ),
    (
        r"(?:(?:bóng mờ )?(?:quai |cung )?động mạch chủ|(?:quai|cung) đmc)",
        "Aortic enlargement",
        r"giãn|phình|vồng|rộng|nổi rõ",
        r"bình thường|trong giới hạn",
    ),
    (r"màng phổi", "Pleural thickening", r"dày|dầy", r"bình thường"),
    (r"góc sườn hoành", "Pleural effusion", r"tù|mờ|mất|có dịch", r"nhọn|sáng|bình thường|tự do"),
)

# None of these denies: they describe, or leave open.
_NOT_NEGATION = phrase_pattern(
    r"\bkhông (?:đều|đồng nhất|đồng đều|thuần nhất|đối xứng|cân đối|thay đổi|hoàn toàn|chỉ|những|"
    r"điển hình|đặc hiệu)\b|\b(?:bờ|giới hạn|ranh giới|bản chất|đường bờ|nguyên nhân) không rõ\b|"
    r"\bchưa rõ (?:bản chất|nguyên nhân)\b"
)
_OPEN = r"(?:không|chưa)(?: thể)? loại trừ"
_SEEN = (
    r"(?:có|thấy|phát hiện|ghi nhận|quan sát thấy|tìm thấy|nghĩ đến|kèm|bị|còn|nhận thấy|xác định)"
)
_DENIES = phrase_pattern(
    rf"\b(?:không|chưa)(?: (?:được|hề|còn))? {_SEEN}(?: (?:thấy|rõ|được))?\b|\bâm tính với\b|"
    r"\bđã hết\b|\bhết\b|\bkhông rõ\b|(?<!không\s)(?<!chưa\s)(?<!thể\s)\bloại trừ\b|\bvắng\b"
)
# Denies only what comes right after it, and a list of its like.
_BARE = phrase_pattern(r"\b(?:không|chưa)(?: (?:hình ảnh|dấu hiệu))?\s*$")
_VALUE_AFTER = phrase_pattern(r"\s*[:=]\s*(?:không|âm tính)\b|^ không\s*(?=$|[,.;])")
_CONTRAST = phrase_pattern(
    r"\b(?:nhưng|tuy nhiên|song|ngoại trừ|(?<!loại\s)trừ|ngoài ra|còn|nhất là)\b"
)
_ORGANS = (
    r"(?:bóng (?:mờ )?tim|diện tim|tim|(?:quai|cung) động mạch chủ|trung thất|rốn phổi|góc sườn|"
    r"vòm hoành|cơ hoành|khung xương|xương|nhu mô|hai phổi|hai trường|phổi (?:phải|trái))"
)
_STATEMENT_AFTER = phrase_pattern(
    rf"(?:,|\bvà\b)\s*(?=(?:có|thấy|ghi nhận|theo dõi|nghi|không|chưa|kèm theo|{_ORGANS})\b)"
)
_SEPARATOR = phrase_pattern(r"[,:]|\b(?:và|hoặc|hay|kèm(?: theo)?|có|cùng)\b|/")
_LINK = phrase_pattern(r"[\s,]*(?:và|hoặc|hay|kèm(?: theo)?|,|/)?[\s,]*")

_SIDES = {
    "right": phrase_pattern(r"\bphải\b"),
    "left": phrase_pattern(r"\btrái\b"),
    "both": phrase_pattern(r"\b(?:hai|2) (?:bên|phổi|đáy|đỉnh|trường|phế trường|rốn)\b"),
}
# "Phải" is also "must"; chambers and borders of the heart have sides of their own.
_NOT_SIDES = phrase_pattern(
    r"\b(?:tâm )?(?:thất|nhĩ) (?:phải|trái)|\btim (?:phải|trái)\b|\bcung (?:dưới|giữa|trên) "
    r"(?:phải|trái)|\b(?:cần|có|không) phải\b|\bphải (?:chụp|theo|làm|được|là)\b|"
    r"\btừ (?:phải|trái) sang (?:phải|trái)\b|\btrái tim\b"
)
_SEVERITIES = {
    "small": phrase_pattern(r"\bít\b|\bnhỏ\b|\bkín đáo\b"),
    "large": phrase_pattern(r"\b(?:lượng|số lượng) (?:nhiều|lớn)\b|\blớn\b|\blượng rất nhiều\b"),
    "mild": phrase_pattern(r"\bnhẹ\b"),
    "moderate": phrase_pattern(r"\b(?:mức độ |lượng )?(?:vừa|trung bình)\b"),
    "severe": phrase_pattern(r"\bnặng\b|\bnhiều\b(?! khả năng)"),
}
_SURE = {
    LIKELY: phrase_pattern(
        r"\b(?:nhiều khả năng|khả năng cao|khả năng nhiều|nghĩ nhiều(?: đến| tới)?)\b"
    ),
    UNCERTAIN: phrase_pattern(
        rf"\b(?:theo dõi|td|nghi ngờ|nghi|có thể|(?:có )?khả năng|nghĩ (?:đến|tới)|"
        rf"hướng (?:đến|tới)|gợi ý|{_OPEN})\b"
    ),
}
_OPEN_AFTER = phrase_pattern(rf"{_OPEN}|nghi ngờ|\(\?\)")
_IS_QUESTION = phrase_pattern(r"\b(?:không|chưa|nào|gì|đâu|bao nhiêu)\s*\?|^\W*có (?:phải|thấy)\b")


class _Spot(NamedTuple):
    """A class named in a clause; `is_well`: by an organ that is said to be free of it."""

    begin: int
    stop: int
    name: str
    is_well: bool = False


class VietnameseReader:
    """Reads Vietnamese text; see the module."""

    def __init__(self) -> None:
        self._names = list(VINDR_VOCABULARY)
        alternatives = [
            rf"(?P<c{n}>{'|'.join(words)})" for n, words in enumerate(VINDR_VOCABULARY.values())
        ]
        self._pattern = phrase_pattern(rf"\b(?:{'|'.join(alternatives)})\b")
        self._statements = [
            (
                name,
                phrase_pattern(
                    rf"\b{organ}\b(?P<between>(?: (?!không|chưa|và|kèm|có dịch)[^\s,.;]+){{0,4}}?)"
                    rf"(?P<not> (?:không|chưa))?(?: thấy)? "
                    rf"(?:(?P<ill>{ill})|(?P<well>{well}))\b"
                ),
            )
            for organ, name, ill, well in _STATEMENTS
        ]
        self._in_sentence = functools.lru_cache(maxsize=_KEPT_SENTENCES)(self._read_sentence)

    def read(self, text: str) -> list[DetailedMention]:
        """Every finding named, in order; questions are passed over."""
        plain = unicodedata.normalize("NFC", text).lower()
        found = []
        for sentence in SENTENCE.finditer(plain):
            found += [
                mention._replace(
                    start=mention.start + sentence.start(), end=mention.end + sentence.start()
                )
                for mention in self._in_sentence(sentence.group())
            ]
        return found

    def _read_sentence(self, sentence: str) -> tuple[DetailedMention, ...]:
        asks = sentence.rstrip().endswith("?")
        if asks and _IS_QUESTION.search(sentence):
            return ()
        mentions: list[DetailedMention] = []
        for start, end in _clauses(sentence):
            mentions += self._read_clause(sentence, start, end)
        if asks:  # "U phổi?": a suspicion
            mentions = [m._replace(certainty=UNCERTAIN) for m in mentions]
        return tuple(sorted(mentions, key=lambda mention: mention.start))

    def _read_clause(self, sentence: str, start: int, end: int) -> list[DetailedMention]:
        clause = blank(_NOT_NEGATION, sentence[start:end])
        spots: list[_Spot] = []
        for name, pattern in self._statements:
            for match in pattern.finditer(clause):
                if match["well"] and match["not"]:
                    continue  # "not normal" says nothing that can be named
                is_well = match["well"] is not None or match["not"] is not None
                if not _taken(match, spots):
                    spots.append(_Spot(match.start(), match.end(), name, is_well))
        spots += [
            _Spot(match.start(), match.end(), self._names[int((match.lastgroup or "c0")[1:])])
            for match in self._pattern.finditer(clause)
            if not _taken(match, spots)
        ]
        if not spots:
            return []
        spots.sort()
        owned = _owned(clause, spots)
        sides = _shared_sides(clause, spots, [_side(clause, parts) for parts in owned])
        covered = _denied_stretch(clause, spots)
        mentions = []
        for spot, parts, side in zip(spots, owned, sides, strict=True):
            negated = spot.is_well or _is_denied(clause, spot, covered, spots)
            mentions.append(
                DetailedMention(
                    spot.name,
                    start + spot.begin,
                    start + spot.stop,
                    negated,
                    CERTAIN if negated else _certainty(clause, spot.begin, parts),
                    side,
                    "" if negated else _severity(clause, parts),
                )
            )
        return mentions


def _taken(match: re.Match[str], spots: Sequence[_Spot]) -> bool:
    return any(spot.begin < match.end() and match.start() < spot.stop for spot in spots)


def _clauses(sentence: str) -> list[tuple[int, int]]:
    """A sentence cut where a statement of its own begins: the reach of a denial ends there."""
    cuts = {m.start() for m in _CONTRAST.finditer(sentence)}
    cuts |= {m.start() for m in _STATEMENT_AFTER.finditer(sentence)}
    return list(itertools.pairwise(sorted({0, *cuts, len(sentence)})))


def _owned(clause: str, spots: Sequence[_Spot]) -> list[tuple[tuple[int, int], ...]]:
    """Returns for each spot the stretches that qualify it: before it, itself, after it."""
    borders = [0]
    for left, right in itertools.pairwise(spots):
        gap = clause[left.stop : right.begin]
        cut = _SEPARATOR.search(gap)
        borders.append(left.stop + (cut.start() if cut else len(gap)))
    borders.append(len(clause))
    return [
        ((low, spot.begin), (spot.begin, spot.stop), (spot.stop, high))
        for spot, (low, high) in zip(spots, itertools.pairwise(borders), strict=True)
    ]


def _side(clause: str, parts: Sequence[tuple[int, int]]) -> str:
    """The side that stands after a finding, else in its name, else before it."""
    usable = blank(_NOT_SIDES, clause)
    before, itself, after = parts
    for low, high in ((itself[0], after[1]), before):
        found = [side for side, word in _SIDES.items() if word.search(usable, low, high)]
        if found:
            return joined_side(found)
    return ""


def _shared_sides(clause: str, spots: Sequence[_Spot], sides: Sequence[str]) -> list[str]:
    """One side for a list: "đám mờ và nốt phổi phải", "phổi phải có đám mờ, nốt"."""
    shared = list(sides)
    linked = [
        _LINK.fullmatch(clause[left.stop : right.begin]) is not None
        for left, right in itertools.pairwise(spots)
    ]
    for number in reversed(range(len(linked))):
        if linked[number] and not shared[number]:
            shared[number] = shared[number + 1]
    for number, is_linked in enumerate(linked):
        if is_linked and not shared[number + 1]:
            shared[number + 1] = shared[number]
    return shared


def _denied_stretch(clause: str, spots: Sequence[_Spot]) -> tuple[int, int] | None:
    """The stretch of a clause that its denial covers; None where it denies nothing."""
    if (match := _DENIES.search(clause)) is None:
        return None
    if any(spot.begin >= match.end() for spot in spots):
        return match.end(), len(clause)
    return 0, match.start()  # "tràn dịch màng phổi không thấy"


def _is_denied(
    clause: str, spot: _Spot, covered: tuple[int, int] | None, spots: Sequence[_Spot]
) -> bool:
    if covered is not None and covered[0] <= spot.begin < covered[1]:
        return True
    if _VALUE_AFTER.match(clause[spot.stop :]) is not None:
        return True
    # "Không tràn dịch, tràn khí": a bare denial, through the list that begins with it.
    first = spot.begin
    for other in reversed([other for other in spots if other.stop <= spot.begin]):
        if not _LINK.fullmatch(clause[other.stop : first]):
            break
        first = other.begin
    return _BARE.search(clause[:first]) is not None


def _certainty(clause: str, begin: int, parts: Sequence[tuple[int, int]]) -> str:
    for certainty, cue in _SURE.items():
        if cue.search(clause[:begin]) is not None:
            return certainty
    return UNCERTAIN if _OPEN_AFTER.search(clause[slice(*parts[2])]) else CERTAIN


def _severity(clause: str, parts: Sequence[tuple[int, int]]) -> str:
    _, _, (low, high) = parts
    return next((name for name, word in _SEVERITIES.items() if word.search(clause, low, high)), "")
