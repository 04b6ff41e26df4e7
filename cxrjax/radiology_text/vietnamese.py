"""Vietnamese of reports and answers in the English that the reader knows, phrase by phrase.

    sentence -> syllables -> findings, organs' states -> cues, changes, places -> English phrases

Every syllable is a token. A place stays where it is ("tràn dịch màng phổi trái": "pleural effusion
on the left"); a degree goes before its finding. The class of a cue in cues_vi.toml gives its
English. A sentence that is written without diacritics is looked up among words without theirs.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from cxrjax.files import read_packaged
from cxrjax.radiology_text.assertions import Time
from cxrjax.radiology_text.changes import blanked, former_degree
from cxrjax.radiology_text.definitions import SIDES, Definitions
from cxrjax.radiology_text.english import Match
from cxrjax.radiology_text.lexicon import (
    Cue,
    load_english,
    pattern,
    plain_text,
    split_sentences,
    with_ticks,
)
from cxrjax.radiology_text.vietnamese_items import (
    Spot,
    VietnameseItem,
    VietnameseSentence,
    reach_of,
)
from cxrjax.radiology_text.vietnamese_places import NO_PLACE, find_spots
from cxrjax.radiology_text.vietnamese_words import composed

_SENTENCE_END = pattern("sentence_end_vi")
_SIZE = pattern("size_vi")
_ENGLISH: Mapping[str, Mapping[str, str]] = read_packaged(
    str(__package__), "reference/cues_vi.toml"
)["english"]
# Organs of which a normal part is named.
_IN_PARTS = ("lungs", "side", "costophrenic angle", "diaphragm", "hilar contour", "aorta")
# "Khó đánh giá màng phổi do bóng tim to", "phân biệt u với lao", "đã cắt thùy vì u"
_BEHIND = {"do": ("đánh", "because of"), "với": ("biệt", "versus"), "vì": ("cắt", "due to")}
_CAUSED = ("mediastinal shift", "tracheal deviation")
_PLEURAL = ("pleural effusion", "pneumothorax", "hemothorax", "pleural thickening")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_CLOSES = ("", ",", ".")
_NEAR, _BACK_REACH = 4, 12  # syllables between a finding and what is said behind it
# Piece of English, and the characters that it stands for.
Piece = tuple[str, int, int]


def in_english(text: str) -> tuple[str, Sequence[int]]:
    """The text in English, and for each of its characters and its end the place in the original."""
    whole, places = composed(text)
    plain = plain_text(whole)
    pieces: list[str] = []
    at: list[int] = []
    for start, end in split_sentences(plain, _SENTENCE_END):
        for said, first, last in _sentence(plain[start:end], plain.isascii()):
            asked = said == "?" and pieces and pieces[-1][-1] == " "
            if asked:  # close behind what it asks, as English has it
                pieces[-1] = f"{pieces[-1][:-1]}?"
            pieces.append("   " if asked else f" {said} ")
            at += [start + first] * (len(said) + 1) + [start + last]
        tail = plain[start:end].rstrip()[-1:]
        stop = "." if tail and tail not in "?;:,()" and (end < len(plain) or tail in ".!") else ""
        pieces.append(stop + ("\n" if "\n" in plain[end - 1 : end + 1] else " "))
        at += [end] * len(pieces[-1])
    return "".join(pieces), [places[n] for n in (*at, len(plain))]


@functools.lru_cache(maxsize=1 << 14)
def _sentence(text: str, is_bare: bool) -> tuple[Piece, ...]:
    # "Lao? U?" of a text with diacritics has them.
    bare = text.isascii() and (is_bare or len(text.split()) > 2)
    return tuple(_Gloss(text, bare).pieces())


class _Gloss:
    """English of a sentence, phrase by phrase.

    Attributes:
        said: first token, rank among what begins there, English, and end of each phrase.
        taken: tokens that are said already, or mean nothing.
    """

    def __init__(self, text: str, bare: bool) -> None:
        self.sentence = VietnameseSentence(with_ticks(text), bare)
        self.former = self._former()
        if self.former is not None:
            kept = blanked(self.sentence.text, self.sentence.tokens, self.former[0])
            self.sentence = VietnameseSentence(kept, bare)
        self.items, self.forms = self.sentence.items, self.sentence.forms
        self.sets = self.sentence.sets
        self.said: list[tuple[int, int, str, int]] = []
        self.taken = set(self.sentence.void)
        after = self.sentence.find("not_findings")  # "sau rút dẫn lưu"
        self.taken |= {p for m in after for p in reach_of(m) if m.last - m.first > 2}
        last = [form for form in self.forms if form[0].isalnum()][-3:]
        self.asks = self.forms[-1:] == ["?"]
        self.counts = self.sentence.find("count_asked") if self.asks else []
        self.inquires = self.asks and bool(self.sets["interrogative"] & {*last} or self.counts)

    def pieces(self) -> Iterator[Piece]:
        """The English of the sentence in the order of its words."""
        if not self.forms:
            return
        self._ends()
        self._answer()
        self._degrees()
        self._measures()
        self._items()
        self._changes()
        self._cues()
        self._places()
        for place, form in enumerate(self.forms):
            if place not in self.taken:
                is_english = form.isascii() and len(form) > 3 and form in load_english().known
                known = form if is_english or not form[0].isalnum() else ""
                for said, (before, meant) in _BEHIND.items():
                    if form == said and before in self.forms[:place]:
                        known, form = meant, ""
                self._say(place, place + 1, _ENGLISH["words"].get(form, known))
        tokens = self.sentence.tokens
        for first, _, word, last in sorted(self.said):
            if word:
                yield word, tokens[first].start, tokens[last - 1].end

    def _say(self, first: int, last: int, word: str, rank: int = 2) -> None:
        self.said.append((first, rank, word, last))
        self.taken.update(range(first, last))

    def _former(self) -> tuple[set[int], Time] | None:
        """A degree of former times and how now compares: "trước ít, nay nhiều"."""
        one = self.sentence
        then, now = one.sets["then"], one.sets["now_again"]
        return former_degree(one.forms, then, now, one.words.degrees, reach=8)

    def _ends(self) -> None:
        """Gives a question its end: one that inquires asks, another one doubts."""
        end = len(self.forms) - 1
        if not self.asks:
            return
        if self.inquires:
            for place in range(max(0, end - 3), end):
                if self.forms[place] in self.sets["interrogative"]:
                    self._say(place, place + 1, "")
            normal = self.items[:1] and self.items[0].is_normal
            opens = "are" if normal else "is there" if self.items else "is this"
            if self.counts:
                opens = "how many"
                self._say(self.counts[0].first, self.counts[0].last, "")
            self.said.append((0, -1, opens, 1))
            return
        colon = max((n for n, form in enumerate(self.forms) if form == ":"), default=-1)
        behind = [item for item in self.items if item.first > colon]
        self._say(end, end + 1, "" if behind else "?")
        if behind:
            self.said.append((behind[0].begin, 0, "possible", behind[0].last))
            if colon >= 0:
                self._say(colon, colon + 1, ",")

    def _answer(self) -> None:
        """The verdict that opens an answer, and verdicts of a text that names nothing."""
        sentence, end = self.sentence, len(self.forms)
        preambles = {match.first: match for match in sentence.find("preamble")}
        first = 0
        while first in preambles or (first < end and not self.forms[first][0].isalnum()):
            if (match := preambles.get(first)) is None:
                first += 1
                continue
            self._say(match.first, match.last, _ENGLISH["words"].get(match.payload, ""))
            first = match.last
        cues = {(cue.last, cue.payload.after): cue.first for cue in sentence.cues}
        within = {p for (last, said), first in cues.items() if said for p in range(first, last)}
        for match in sentence.find("reason"):
            # "Thay vì" and "lý do chụp" give no reason.
            if "cắt" in self.forms[: match.first] and sentence.form(match.first) == "vì":
                continue
            if self.taken.isdisjoint(reach_of(match)) and within.isdisjoint(reach_of(match)):
                is_heading = sentence.form(match.last) == ":"
                self._say(match.first, match.last, "reason" if is_heading else "because")
        found = sentence.words.answers.find(sentence.tokens[first : first + 100])
        for match in found:
            a, b = match.first + first, match.last + first
            alone = b >= end or not self.forms[b][0].isalnum() or not self.taken.isdisjoint([b])
            is_state = match.payload in ("normal", "abnormal")
            heads = sentence.form(b) == ":"  # "không có: tràn dịch, tràn khí"
            if self.items and (self.inquires or match.first or heads or not alone):
                continue
            if self.inquires and not is_state:
                continue
            if self.taken.isdisjoint(range(a, b)):
                self._say(a, b, _ENGLISH["answers"][match.payload])
                if self.items and sentence.form(b) == ",":
                    self._say(b, b + 1, ".")

        opens = sentence.tokens[first : first + 3]
        if not (self.items or self.asks or first in self.taken) and opens:
            number = sentence.words.numbers.get(opens[0].lemma)
            several = sentence.words.phrases["several"].find(opens)
            if number or (several and several[0].first == 0):
                last = first + (1 if number else several[0].last)
                word = opens[0].lemma
                if not word.isdigit():
                    word = _NUMBERS[number] if number and number <= 10 else "several"
                self._say(first, last, word)

    def _degrees(self) -> None:
        sentence = self.sentence
        taken = sentence.named | sentence.compared | self.taken
        for part in (*sentence.cues, *sentence.times):
            taken = taken.union(reach_of(part))
        for match in sentence.outside(sentence.words.severity, taken):
            inside = [i for i in self.items if i.begin < match.first < max(i.own)]
            near = match.payload != "large"  # "nhiều nốt" counts them
            right = [i for i in self.items if near and i.begin == match.last]
            left = [i for i in self.items if i.last <= match.first]
            self.taken.update(reach_of(match))
            excepts = any(
                c.payload.after == "except" and c.first < match.first for c in sentence.cues
            )
            if excepts and not inside and not any(i.last > match.first for i in self.items):
                self._say(match.first, match.last, f"a {match.payload} amount")
                continue  # "ngoại trừ một ít ở đỉnh phải"
            for item in (inside or right or left[-1:])[:1]:
                self.said.append((item.first, 1, match.payload, item.last))

    def _measures(self) -> None:
        """Sizes, and distances from a landmark, which is no place."""
        sentence = self.sentence
        self.landmarks: set[int] = set()
        for match in _SIZE.finditer(sentence.text):
            if "m" not in match.group():
                continue
            at = sum(token.start < match.start() for token in sentence.tokens)
            end = sum(token.start < match.end() for token in sentence.tokens)
            said = " ".join(match.group().replace(",", ".").split())
            said = re.sub(r"(?<=\d)(?=[mc]m)", " ", said)
            before = [m for m in sentence.regions if 0 <= at - m.last <= 3][-1:]
            behind = [m for m in sentence.regions if m.first == end + 1]
            marks = [(m, m.first - 1) for m in before] + [(m, end) for m in behind]
            for mark, place in marks:
                relation = sentence.words.relations.get(sentence.form(place))
                if relation and place not in sentence.within:
                    said += f" {relation} the {mark.payload}"
                    self.landmarks.update(reach_of(mark))
                    break
            self._say(at, end, said)
        self.taken |= self.landmarks

    def _items(self) -> None:
        told: set[int] = set()
        for n, item in enumerate(self.items):
            again = any(one.names == item.names for one in self.items[:n])
            if again and self.sentence.form(item.begin - 1) == "đầu":
                self.taken.update(item.own)  # "catheter ..., đầu catheter ở nhĩ phải"
                continue
            if item.statement is None:
                if item.first in self.taken:
                    continue  # "không thấy bất thường"
                place = item.first - 1
                number = self.sentence.words.numbers.get(self.sentence.form(place))
                if number and place not in self.taken:
                    self._say(place, item.first, _NUMBERS[number] if number < 11 else "")
                caused = item.names[0] in _CAUSED and self._runs_on(item)
                self._say(item.first, item.last, "with " * caused + " and ".join(item.names))
                continue
            self.taken.update(item.own)
            if not item.is_normal:
                nearly = "possible " * item.is_borderline
                self.said.append((item.first, 2, nearly + item.names[0], item.last))
                continue
            mark = item.begin - 1
            parted = self.sentence.form(mark) == "," or self.forms[mark] in self.sets["joint"]
            before = [i for i in self.items if i.last <= mark]
            if parted and before and mark not in self.taken and not told & {item.first}:
                self._say(mark, mark + 1, ";")
            if item.begin not in told:
                organ = _ENGLISH["organs"][item.statement.name]
                self.said.append((item.begin, 2, organ, max(item.subject) + 1))
            if item.first not in told:
                state = "normal" if self.inquires else "are normal"
                self.said.append((item.first, 3, state, item.last))
            told |= {item.begin, item.first}

    def _runs_on(self, item: VietnameseItem) -> bool:
        """Returns whether an item follows another without a mark: "tràn dịch đẩy lệch trung
        thất"."""
        begin = max((one.last for one in self.items if one.last <= item.begin), default=-1)
        gap = range(begin, item.begin) if begin >= 0 else range(0)
        marked = any(self.forms[n] in self.sets["list"] for n in gap)
        return begin >= 0 and not marked and not any(c.first in gap for c in self.sentence.cues)

    def _changes(self) -> None:
        sentence, sets = self.sentence, self.sets
        for match in sentence.times:
            cues = [c for c in sentence.cues if c.first <= match.first < c.last]
            longer = [c for c in cues if c.payload.after != "neutral" and c.last >= match.last]
            longer = [c for c in longer if c.last - c.first > match.last - match.first]
            if not self.taken.isdisjoint(reach_of(match)) or (
                longer and match.payload != "resolved"
            ):
                continue
            right = [item for item in self.items if item.begin >= match.last]
            left = [item for item in self.items if item.last <= match.first]
            gap = self.forms[match.last : right[0].begin] if right else []
            if match.payload == "new" and left and left[-1].last == match.first:
                one = left[-1]  # "đám mờ mới"
                self._say(match.first, match.last, "")
                self.said.append((one.first, 1, "new", one.last))
                continue
            most = sentence.form(match.first) in sets["most"]
            both = sets["both_before"] & {*self.forms[: match.first]}
            if most and both and sentence.side_at(match.first - 1):
                self._say(match.first, match.last, "more")  # "hai bên, bên phải nhiều hơn"
                continue
            ahead = bool(right) and {*gap} <= sets["before_item"]
            ahead = ahead or (not left and "," not in gap)
            self._say(
                match.first, match.last, _ENGLISH["ahead" if ahead else "behind"][match.payload]
            )
        if self.former is not None and self.items:
            last = self.items[-1]
            self.said.append((last.last - 1, 9, _ENGLISH["behind"][self.former[1]], last.last))

    def _cues(self) -> None:
        begin = 0
        self.last = (-1, "", 0)  # the last cue: in `said`, class, end
        for n, cue in enumerate(self.sentence.cues):
            if not self.taken.isdisjoint(reach_of(cue)):
                continue
            reach = begin if self.items and self.items[-1].first >= begin else 0
            left = [i for i in self.items if reach <= i.first and i.last <= cue.first]
            ahead = [i for i in self.items if i.begin >= cue.last]
            begin = cue.first if cue.payload.after == "contrast" else begin
            said = self._ends_plainly(cue, left, bool(ahead))
            said = self._said_back(cue, left, bool(ahead)) if said is None else said
            if said is None:
                self._cue_ahead(n, cue, ahead)
            else:
                self._say(cue.first, cue.last, said)

    def _said_back(
        self, cue: Match[Cue], left: Sequence[VietnameseItem], ahead: bool
    ) -> str | None:
        """English of a cue that applies to what stands before it; None of any other."""
        before, gap = cue.payload.before, self.forms[left[-1].last : cue.first] if left else []
        if _looks_back(self.sentence, cue, left):
            self._join(left, gap)
            changed = _ENGLISH["changed"].get(f"{self.last[1]} {before}")
            if changed and len(gap) <= _BACK_REACH:
                self._reword(_ENGLISH["after"][changed])
            is_far = changed or len(gap) > _BACK_REACH
            return "" if is_far else _ENGLISH["before"].get(before, "")
        if left and not ahead and cue.payload.after == "past":
            return _ENGLISH["before"]["past"]
        if behind := _default_back(self.sentence, cue, left):
            self._join(left, gap)
            return _ENGLISH["before"][behind]
        return None

    def _reword(self, english: str) -> None:
        """Gives the last cue other words."""
        first, rank, _, end = self.said[self.last[0]]
        self.said[self.last[0]] = (first, rank, english, end)

    def _cue_ahead(self, n: int, cue: Match[Cue], ahead: Sequence[VietnameseItem]) -> None:
        """Adds the English of a cue that applies to what stands behind it."""
        form, after, (_, before, end) = self.sentence.form, cue.payload.after, self.last
        fresh = before and not any(end <= i.first < cue.first for i in self.items)
        if fresh and before.startswith("hedged") and after.startswith("denied"):
            self._reword("")
            after = "denied likely"
        following = [later.first for later in self.sentence.cues[n + 1 :]]
        idle = not ahead or bool(following and following[0] < ahead[0].begin)
        fresh = fresh and "," not in self.forms[end : cue.first]
        said = _ENGLISH["after"].get(after, "")
        if after == "past" and cue.first == 0 and self.forms[0] == "sau" and "," in self.forms:
            mark = self.forms.index(",")  # "sau điều trị lao, thâm nhiễm giảm"
            self._say(mark, mark + 1, ";")
        if after == "affirms":
            named = _ENGLISH["words"].get(self.forms[cue.first])
            if named:  # "không tràn khí, kèm nốt mờ"
                said = ", but there is" if before.startswith("denied") else named
            if form(cue.first - 1) == ":" and form(cue.last) in _CLOSES:
                said = "present"
            elif fresh or idle or self.inquires:
                said = ""
        elif self.inquires and after.startswith("hedged"):
            said = ""
        elif said == "no" and (
            self.sentence.side_at(cue.first - 1) or form(cue.first - 1) in self.sets["both_after"]
        ):
            said = "there is no"  # "phổi phải không thấy nốt, đám mờ"
        self._say(cue.first, cue.last, said)
        if form(cue.last) == ":" and ahead:
            self._say(cue.last, cue.last + 1, "")  # "không thấy: tràn dịch, tràn khí"
        if after in _ENGLISH["before"]:
            self.last = len(self.said) - 1, after, cue.last

    def _ends_plainly(
        self, cue: Match[Cue], left: Sequence[VietnameseItem], ahead: bool
    ) -> str | None:
        """English of a cue that says nothing, or no more than "present", of what stands before it;
        None of any other."""
        said, stated = cue.payload.after, any(item.first >= cue.last for item in self.items)
        if left and left[-1].is_normal and not stated:
            return ""  # "góc sườn hoành sáng, không có dịch"
        if said == "contrast" and not stated and self.forms[cue.last - 1] == "có":
            # "Không tràn dịch bên trái nhưng có bên phải"
            return ", but present" if self.sentence.side_at(len(self.forms) - 1) else None
        if ahead or not left or not said.startswith("hedged") or self.last[1].startswith("hedged"):
            return None
        # "Nốt mờ, nghi do mỡ": a doubt of something that has no name here.
        opens = self.sentence.form(cue.first - 1) in (",", "(", ":")
        opens = opens or self.forms[cue.last - 1] == "do"
        rest = itertools.takewhile(lambda form: form not in ",:)?", self.forms[cue.last :])
        return "" if opens and any(map(str.isalpha, {*rest} - self.sets["loose"])) else None

    def _join(self, left: Sequence[VietnameseItem], gap: Sequence[str]) -> None:
        """Puts an "and" in a list of which all is said behind it: "nốt, khối đều không thấy"."""
        gaps = [self.forms[a.last : b.begin] for a, b in itertools.pairwise(left[-3:])]
        if not gaps or ("đều" not in gap and (len(gaps) < 2 or gaps[0] != [","])):
            return
        mark = left[-1].begin - 1
        if self.forms[left[-2].last : left[-1].begin] == [","] and mark not in self.taken:
            self._say(mark, mark + 1, "and")

    def _places(self) -> None:
        definitions = self.sentence.words.definitions
        alone = {item.first for item in self.items if len(item.own) == 1}
        spots = find_spots(self.sentence, alone)
        self.placed = {place for spot in spots for place in reach_of(spot)}
        for spot in spots:
            if not self.landmarks.isdisjoint(reach_of(spot)):
                continue
            own = next((i for i in self.items if i.own.intersection(reach_of(spot))), None)
            self.taken.update(reach_of(spot))
            if own is None and self._is_apart(spot):
                continue
            side = {"pair": "both"}.get(spot.side, spot.side)
            names = list(spot.regions)
            if own is not None and own.statement is None:
                finding = definitions.findings.get(own.names[0])
                device = finding is not None and finding.category == "device"
                sided = side and not device
                names = [
                    n
                    for n in names
                    if (n not in NO_PLACE and not device) or (sided and n in definitions.sides)
                ]
                names = [n for n in names if n != "pleural spaces"]
            exact = [n for n in names if n not in NO_PLACE]
            names = exact if len(names) > 1 and exact else names
            if own is not None and own.is_normal:
                self._of_normal(own, names, side, spot.side == "pair")
                continue
            said = self._place(names, side)
            self.said.append((spot.first, 3, said, spot.last))
            n = self.items.index(own) if own is not None else 0
            if (
                n
                and own is not None
                and own.names[0] in _PLEURAL
                and "pleural spaces" in spot.regions
            ):
                one = self.items[n - 1]  # "có tràn dịch nhưng không tràn khí màng phổi phải"
                turns = {
                    self.sentence.form(c - 1) for c in self.sentence.contrasts if c > one.first
                }
                if one.names[0] in _PLEURAL and one.last - one.first == 2 and "," not in turns:
                    self.said.append((one.first, 3, said, one.last))

    def _is_apart(self, spot: Spot) -> bool:
        """Returns whether a place is of something unread: "u phổi phải, xâm lấn trung thất"."""
        commas = [n for n, form in enumerate(self.forms) if form == ","]
        begin = max((n for n in commas if n < spot.first), default=-1)
        end = min((n for n in commas if n > spot.first), default=len(self.forms))
        named = any(begin < item.first < end for item in self.items)
        gap = [n for n in range(begin + 1, spot.first) if n not in self.placed | self.taken]
        passed = [self.sets[name] for name in ("place_gap", "at_place", "list", "fronts")]
        unread = {self.forms[n] for n in gap}.difference(*passed)
        return begin >= 0 and not named and bool(unread)

    def _place(self, names: Sequence[str], side: str) -> str:
        if side in ("same", "other"):
            return f"on the {side} side"
        on = _on_side(self.sentence.words.definitions, names, side)
        said = "in the " + " and ".join(on) if on else ""
        if on == ["left lung", "right lung"]:
            return "in both lungs"
        if not side or any(word in SIDES for name in on for word in name.split()):
            return said
        return f"{said} on both sides" if side == "both" else f"{said} on the {side}"

    def _of_normal(
        self, item: VietnameseItem, names: Sequence[str], side: str, is_pair: bool
    ) -> None:
        """Names the part of a normal organ: "right lung", "aortic arch"."""
        assert item.statement is not None
        if item.statement.name not in _IN_PARTS:
            return
        on = _on_side(self.sentence.words.definitions, names, "" if side == "both" else side)
        both = "both " * (side == "both" and not is_pair)
        for n, (first, rank, word, last) in enumerate(self.said):
            if first == item.begin and word in _ENGLISH["organs"].values():
                self.said[n] = (first, rank, both + (" and ".join(on) or word), last)


def _on_side(definitions: Definitions, names: Sequence[str], side: str) -> list[str]:
    """The regions on a side; a numbered rib has no name without one."""
    found: list[str] = []
    for name in names:
        if name in definitions.regions:
            both = definitions.on_side(name, side or "both")
            found += both if side else [both[0].removeprefix("left ")] if len(both) > 1 else [name]
        else:
            sides = SIDES if side == "both" else (side,) if side else ()
            found += [f"{one} {name}" for one in sides] or ["ribs"]
    return list(dict.fromkeys(found))


def _looks_back(
    sentence: VietnameseSentence, cue: Match[Cue], left: Sequence[VietnameseItem]
) -> bool:
    """Returns whether a cue applies to the words before it."""
    if not left or not cue.payload.before:
        return False
    behind = sentence.form(cue.last)
    if sentence.forms[cue.first - 1] == ":":
        return behind in ("", ",", ")", "/", ";")
    if behind in sentence.sets["than"]:
        return True  # "ít khả năng hơn xẹp phổi"
    ahead = next((item for item in sentence.items if item.first >= cue.last), None)
    if ahead is None:  # "vôi hóa quai động mạch chủ, không bóc tách" denies something unnamed
        apart = cue.last - cue.first == 1 and sentence.forms[cue.first - 1] == ","
        return not (apart and behind.isalpha() and behind not in sentence.sets["loose"])
    gap = sentence.forms[cue.last : ahead.begin]
    turns = any(cue.last <= place < ahead.first for place in sentence.contrasts)
    return turns or "," in gap or ":" in gap


def _default_back(
    sentence: VietnameseSentence, cue: Match[Cue], left: Sequence[VietnameseItem]
) -> str:
    """Returns what a denial with nothing named behind it says of what stands before: "không được
    tìm thấy"; in doubt where its predicate is unknown; "" where it says nothing of it."""
    said = cue.payload.after
    ahead = any(item.first >= cue.last for item in sentence.items)
    gap = sentence.forms[left[-1].last : cue.first] if left else []
    if not said.startswith("denied") or ahead or not left or "," in gap or len(gap) > _NEAR:
        return ""
    is_open = cue.last - cue.first == 1 and sentence.form(cue.last) not in ("", ",", ":", ")")
    known = any(match.first == cue.last for match in sentence.times)
    return "" if known else "hedged possible" if is_open else said
