"""Reads which options an answer chooses, and scores a set of options (GEMeX's A-score).

The paper matches the answer "from their responses" and does not say how. Here the answer is what
the author settles on:

1. Of JSON, `\\boxed{}`, `<answer>` and behind `</think>`, what they hold is the answer; of a text
   that takes something back ("Wait, ..."), what follows.
2. Letters count before words (`option_letters.py`): those behind "therefore" or "the final answer
   is", else behind "the answer is", else those of a list with marks, else those that are named and
   neither denied nor only considered.
3. The words of options are read by the reader of reports (`option_words.py`): affirmed or denied.

Yes or no: what the answer opens with or comes to, else what `EnglishReader` reads in it beside the
question. Nothing is guessed: where it cannot be told, the failure says why.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cxrjax.evaluation.on_topic import is_about_another
from cxrjax.files import read_packaged
from cxrjax.papers.gemex.dialogue import AnswerFailure, parse_answer
from cxrjax.papers.gemex.option_letters import (
    Group,
    after_own_words,
    find_groups,
    has_letters,
    is_irresolute,
    pattern,
    regex,
    stray_letters,
    with_capital_letters,
)
from cxrjax.papers.gemex.option_words import (
    OptionReader,
    option_reader,
    plain_words,
    without_article,
)
from cxrjax.radiology_text.answers import ANY_FINDING, EnglishReader, without_thoughts
from cxrjax.radiology_text.reading import open_reader

# Whoever answers at greater length than this has not named an option; the work grows with it.
_LONGEST = 20_000


class NamedOptions(NamedTuple):
    """The options that an answer to a closed or choice question chooses."""

    options: frozenset[str] | None  # letters, or "Yes" or "No"; None where it cannot be told
    in_form: bool  # whether it was read as GEMeX's own form has it, and not out of a response
    failure: AnswerFailure | None  # why it cannot be told; None where it can


def named_options(
    text: str, question_type: str, choices: Sequence[str] | None, question: str = ""
) -> NamedOptions:
    """Reads an answer; never raises on what a model wrote.

    Args:
        text: all of it, tags and boxes included.
        question_type: `closed_ended`, `single_choice` or `multi_choice`.
        choices: the options that were offered, `A: words`.
        question: its words; it may ask what is not there.
    """
    in_form = _TAG.search(text) is not None
    tagged = [found[1].strip() for found in _WHOLE_TAG.finditer(without_thoughts(text[:_LONGEST]))]
    if len(set(tagged)) > 1:
        # Several tags are several answers.
        return NamedOptions(None, in_form, "undecided")
    parsed = parse_answer(text[:_LONGEST], question_type, choices)
    response = _plain(_contained(parsed.answer))
    if not response.strip():
        return NamedOptions(None, in_form, "no_answer")
    if question_type == "closed_ended":
        return _closed(response, question, in_form)
    options = {choice[0]: choice.partition(":")[2].strip() for choice in choices or () if choice}
    found = _Choosing(options, question_type, question).choose(response)
    if isinstance(found, str):
        return NamedOptions(None, in_form, found)
    return NamedOptions(found, in_form, None)


def jaccard(named: frozenset[str], truth: frozenset[str]) -> float:
    """Size of the intersection over that of the union; 1 where both are empty."""
    either = named | truth
    return len(named & truth) / len(either) if either else 1.0


def chance(question_type: str, options: int) -> float:
    """Returns the share of blind guesses that are exactly right: the paper's row "Random".

    Of a multi-choice question, a guess is one of the non-empty sets of its options: 1/15 of four,
    1/7 of three.

    Args:
        options: how many there are, at least 1; a closed question has two.
    """
    return 1 / (2**options - 1) if question_type == "multi_choice" else 1 / options


class _Choosing:
    """Reads the choice among options."""

    def __init__(self, options: dict[str, str], question_type: str, question: str) -> None:
        self._options = options
        self._single = question_type == "single_choice"
        self._turned = bool(_ABSENT.search(question))

    @property
    def _words(self) -> OptionReader:
        return option_reader(tuple(self._options.items()))

    def choose(self, response: str) -> frozenset[str] | AnswerFailure:
        """The letters chosen, or why it cannot be told."""
        response = re.sub(r"(?i)(?:\?|\.\.\.|…)\s{0,3}no[,.:;]", "? Wait,", response)  # "C? No, B."
        stretches = pattern(r"(?:(?<=[.!?;,\n:])|(?<=[.!?;,\n:]\s)|\A){retracting}[,:]?").split(
            response
        )
        stretches = [stretch for stretch in stretches if stretch.strip(" \n\t.,:;!")]
        last = stretches[-1] if stretches else ""
        found = self._stretch(last)
        if len(stretches) < 2:
            return found
        if found == "not_an_option":
            said = any(self._stretch(stretch) != found for stretch in stretches[:-1])
            return "undecided" if said else found
        adds = pattern(r"\b[A-H]\b\s{adding}|\balso\s(?:option\s)?[A-H]\b").search(last)
        return "undecided" if adds else found

    def _stretch(self, text: str) -> frozenset[str] | AnswerFailure:
        if re.fullmatch(r"\W*\d\W*", text):
            return "undecided"
        if (mixed := self._mixed(text)) is not None:
            return mixed
        listed = self._words.listed(text)
        if listed is not None and not has_letters(text):
            return self._checked(listed)
        text = with_capital_letters(text, self._options)
        if (every := self._every(text)) is not None:
            return every
        # "I'm not sure. A?", but not "B? I don't know. Final answer: A".
        asks_back = pattern("{unsure}").search(text) and _ASKED_LETTER.search(text)
        decides = asks_back and pattern("(?:{decisive}|{concluding})").search(text)
        if is_irresolute(text) or self._is_another(text) or (asks_back and not decides):
            return "undecided"
        if self._is_article(text):
            by_words = self._by_words(text)
            if isinstance(by_words, frozenset):
                return by_words
        groups = find_groups(text, {x: w.lower() for x, w in self._options.items()})
        of_options = [group for group in groups if group.letters & set(self._options)]
        if pattern("{irresolute}").search(text) and not of_options:
            return "undecided" if stray_letters(text, ()) & set(self._options) else "not_an_option"
        if groups and not of_options:
            return "not_an_option"
        chosen = self._by_letters(text, of_options) if of_options else None
        if chosen is None:
            chosen = self._by_words(text)
            if chosen == "not_an_option" and of_options:
                chosen = "undecided"
        return chosen

    def _is_another(self, text: str) -> bool:
        """Returns whether another option's words follow a letter: "The answer is A pneumonia"
        where pneumonia is C."""
        for match in _LETTER_THEN_WORDS.finditer(text):
            letter, words = match["letter"], match["words"]
            own = self._options.get(letter, "")
            if after_own_words(f" {words}", own) == f" {words}" and not pattern(
                r"(?:{behind}|{denied_behind})"
            ).match(words):
                affirmed = self._words.read(words).affirmed
                if affirmed and letter not in affirmed:
                    return True
        return False

    def _is_article(self, text: str) -> bool:
        """Returns whether the only letter may be the word "A" before option A's words, as in "A
        pacemaker and a chest tube", so that words decide."""
        return not stray_letters(text, ()) and any(
            after_own_words(text[match.end() :], self._options.get("A", "")) != text[match.end() :]
            for match in re.finditer(r"\bA(?=\s[a-z])", text)
        )

    def _mixed(self, text: str) -> frozenset[str] | AnswerFailure | None:
        """The options of a list, some as letters and some as words; None of other texts."""
        lead = pattern(r"\W{0,9}(?:{decisive}|{concluding})(?:\s(?:is|are))?\s?[:,]").match(text)
        rest = text[lead.end() :] if lead else text
        items = list(filter(None, map(plain_words, re.split(r"[,;\n•、]|\band\b", rest))))
        read = [self._item(item) for item in items]
        in_brackets = re.fullmatch(r"\s*\[[^\[\]]*\]\W*", rest) is not None
        if None in read:
            known = any(read) and not _DENIAL.match(items[read.index(None)])
            return "undecided" if in_brackets and known else None
        # "A pacemaker" may be option A and its words.
        in_words = {
            item in self._words.words or self._words.words.get(without_article(item), "A") != "A"
            for item in items
        }
        if len(in_words) < 2:
            return None
        # "B, Atelectasis" may be a letter and its words.
        if not in_brackets and _LETTER_COMMA_WORDS.search(rest):
            return None
        return self._checked({letter for letter in read if letter})

    def _item(self, item: str) -> str | None:
        """The option that an item of a list is: its letter, its words, or both of one."""
        words = item.split()
        for letter, said in ((words[0], words[1:]), (words[-1], words[:-1])):
            named = letter.upper()
            if named in self._options and (
                not said or self._words.words.get(" ".join(said)) == named
            ):
                return named
        return self._words.words.get(without_article(item))

    def _every(self, text: str) -> frozenset[str] | AnswerFailure | None:
        """The options of "all of the above" and "all but A", which may be an option too."""
        match = _EVERY.search(text)
        if match is None:
            return None
        if self._words.every is not None:
            return frozenset([self._words.every])
        if self._single or not re.fullmatch(r"\W*", text[: match.start()]):
            return "undecided" if self._single else None
        left_out = set(re.findall(r"\b[A-H]\b", match["but"] or ""))
        return self._checked(set(self._options) - left_out)

    def _by_letters(self, text: str, groups: list[Group]) -> frozenset[str] | AnswerFailure | None:
        """Returns what the letters tell; None where they tell nothing."""
        decisive = [group for group in groups if group.rank]
        if decisive:
            top = max(group.rank for group in decisive)
            last = [group for group in decisive if group.rank == top]
            last = last[-1:] if top == 2 else last
            if len({group.letters for group in last}) > 1 or last[-1].alternatives:
                return "undecided"
            rivals = [g for g in groups if g.start > last[-1].start and g.stance == "hedged"]
            if pattern("{irresolute}").search(text) or any(
                g.letters - last[-1].letters for g in rivals
            ):
                return "undecided"
            if len(last) == 1:
                last = self._with_items(text, groups, last[0])
            return self._chosen_by(text, last)
        named = {x for group in groups for x in group.letters}
        if (stray_letters(text, groups) & set(self._options)) - named:
            return "undecided"
        if pattern("{irresolute}").search(text) and len({x for g in groups for x in g.letters}) > 1:
            return "undecided"
        affirmed = [group for group in groups if group.stance == "chosen"]
        denied = {x for group in groups if group.stance == "denied" for x in group.letters}
        not_seen = {x for group in groups if group.stance == "not seen" for x in group.letters}
        if self._turned and not_seen:
            affirmed = [group for group in groups if group.stance == "not seen"]
        else:
            denied |= not_seen
        neutral = [group for group in groups if group.stance == "named"]
        hedged = [group for group in groups if group.stance == "hedged"]
        if affirmed:
            # Beside options that are called right, others that are only named are not chosen.
            if hedged and not self._single:
                return "undecided"
            inline = [g for g in neutral if not g.is_item and self._single is False]
            return "undecided" if inline and not denied else self._chosen_by(text, affirmed, denied)
        if (behind := self._behind_list(text, neutral)) is not None:
            return self._chosen_by(text, behind, denied) if behind else "undecided"
        if hedged:
            alone = hedged if not neutral else []
            letters = {x for group in alone for x in group.letters}
            if len(letters) == 1 and not any(group.alternatives for group in alone):
                return self._chosen_by(text, alone, denied)
            return "undecided"
        if not neutral:
            return "undecided" if denied else None
        # Who opens with a letter has answered; others in what follows are not in a list with it.
        opens = neutral[0].is_item and not text[: neutral[0].start].strip(" \n-*•")
        if opens and any(not g.is_item and g.letters - neutral[0].letters for g in neutral):
            return "undecided"
        return self._chosen_by(text, neutral, denied)

    def _with_items(self, text: str, groups: Sequence[Group], first: Group) -> list[Group]:
        """A group and those that go on with it, as in "Final answer: A: Edema, D: Effusion"."""
        run = [first]
        for group in groups:
            if group.start <= first.start:
                continue
            gap = text[run[-1].end : group.start]
            words = self._options.get(next(iter(run[-1].letters)), "")
            rest = after_own_words(gap, words)
            if rest == gap or group.stance != "named" or not _NEXT_ITEM.fullmatch(rest):
                break
            run.append(group)
        return run

    def _behind_list(self, text: str, named: Sequence[Group]) -> Sequence[Group] | None:
        """Groups behind the options where an answer repeats all of them; None where it does not."""
        listed: set[str] = set()
        for n, group in enumerate(named):
            label = re.match(r"[.:)\]\s]", text[group.end : group.end + 1])
            if not (group.is_item and len(group.letters) == 1 and label):
                return None
            listed |= group.letters
            if listed >= set(self._options) and n:
                return named[n + 1 :]
        return None

    def _chosen_by(
        self, text: str, groups: Sequence[Group], denied: Iterable[str] = ()
    ) -> frozenset[str] | AnswerFailure:
        letters = {x for group in groups for x in group.letters}
        if letters & set(denied) or any(self._is_contradicted(text, group) for group in groups):
            return "undecided"
        if not letters <= set(self._options):
            return "undecided"
        return self._checked(letters)

    def _is_contradicted(self, text: str, group: Group) -> bool:
        """Returns whether another option's words, or a list of others, accompany a letter."""
        line = re.split(r"\n|(?<=[a-z])[.;]\s", text[group.end : group.end + 400])[0]
        if len(group.letters) == 1:
            # "Pneumonia (B)".
            ahead = re.search(
                r"([^.;\n()]{1,200})\(\s?(?i:option|choice|answer)?\s?\Z",
                text[: group.start + (text[group.start] == "(")],
            )
            said = f" {plain_words(ahead[1])}" if ahead else ""
            if any(said.endswith(f" {words}") for words in self._words.words if words) and not any(
                said.endswith(f" {words}") and letter in group.letters
                for words, letter in self._words.words.items()
            ):
                return True
            label = re.match(r"\s{0,3}[.:)\]\"'\-–—(]{1,3}\s{0,3}[\"']?(.*)", line)
            if label:
                said = plain_words(label[1]) + " "
                if said.startswith("none of ") and self._words.none not in group.letters:
                    return True
                starts = [
                    (len(w), x) for w, x in self._words.words.items() if said.startswith(w + " ")
                ]
                if starts and max(starts)[1] not in group.letters:
                    return True
        more = re.match(r"\s{0,3}(?:,|;|and|&)\s{0,3}(?:hence\s|so\s|thus\s)?(.*)", line)
        if more and not has_letters(line):
            listed = self._words.listed(more[1])
            return listed is not None and not listed <= group.letters
        return False

    def _by_words(self, text: str) -> frozenset[str] | AnswerFailure:
        marks = list(
            pattern(r"(?:{decisive}|{concluding})(?:\s(?:is|are))?\s?[:,]?").finditer(text)
        )
        if marks:
            behind = self._said(text[marks[-1].end() :])
            if isinstance(behind, frozenset):
                return behind
        return self._said(text)

    def _said(self, text: str) -> frozenset[str] | AnswerFailure:
        said = self._words.read(text)
        asks_for_absent = self._turned and self._words.listed(text) is None
        chosen = said.denied if asks_for_absent else said.affirmed
        if not said.anything:
            return "not_an_option"
        if said.left_open or not chosen:
            return "several_options" if self._single and len(chosen) > 1 else "undecided"
        return self._checked(chosen)

    def _checked(self, letters: set[str]) -> frozenset[str] | AnswerFailure:
        if self._single and len(letters) > 1:
            return "several_options"
        return frozenset(letters) if letters else "not_an_option"


def _closed(response: str, question: str, in_form: bool) -> NamedOptions:
    stretches = pattern(r"(?:(?<=[.!?;,\n:])|(?<=[.!?;,\n:]\s)|\A){retracting}[,:]?").split(
        response
    )
    for stretch in reversed(stretches):
        outcome = _yes_or_no(stretch, question)
        if outcome in ("yes", "no") and _is_off_topic(stretch, question):
            continue
        if outcome in ("yes", "no"):
            return NamedOptions(frozenset([outcome.capitalize()]), in_form, None)
        if outcome == "undecided":
            return NamedOptions(None, in_form, "undecided")
    return NamedOptions(None, in_form, "not_yes_or_no")


def _is_off_topic(text: str, question: str) -> bool:
    """Returns whether a yes or no goes with a statement on something else than the question."""
    reader = open_reader("en")
    assert isinstance(reader, EnglishReader)
    asked = {*reader.asked(question).findings} - {ANY_FINDING} if question else set()
    return bool(question) and is_about_another(text, asked, question)


def _yes_or_no(text: str, question: str) -> str | None:
    """Returns what is answered: yes, no, undecided, or nothing that bears on the question."""
    word = plain_words(text)
    for outcome, words in _OTHER_LANGUAGES.items():
        if word in words or word.split(" ")[0] in words:
            return outcome.lower()
    final = {match[1].lower() for match in _FINAL.finditer(text)}
    said = final or {match[1].lower() for match in _VERDICT.finditer(text)}
    if len(said) > 1:
        return "undecided"
    if said and not re.match(r"\W*(?:yes and no|yes or no)\b", text, re.IGNORECASE):
        return said.pop()
    reader = open_reader("en")
    assert isinstance(reader, EnglishReader)
    opened = reader.opening(text, *([reader.asked(question)] if question else ()))
    if opened or not question:
        return opened
    outcome = reader.read(text, question).outcome
    return outcome if outcome in ("yes", "no", "undecided") else None


def _contained(answer: str) -> str:
    """Returns what JSON, a box of LaTeX or a tag holds; the answer itself without them."""
    answer = without_thoughts(answer).partition("<think>")[0]
    answer = re.sub(r"</\s?answer\s?>(?s:.*)", "", answer)
    fields = list(_JSON_FIELD.finditer(answer)) if "{" in answer else []
    if fields:
        # What is called the answer goes before a list of choices, which may be those offered.
        called = [field for field in fields if "answer" in field["name"].lower()] or fields
        same = [field for field in called if field["name"] == called[0]["name"]]
        return ", ".join(
            field["value"].strip("[ ]")
            if "[" in field["value"][:1]
            else field["value"].strip("\"' ")
            for field in same
        )
    if by_letter := _LETTERS_JUDGED.fullmatch(answer):
        return by_letter[1].replace('"', "").replace("'", "")
    said: list[str] = []
    for boxed in _BOXED.finditer(answer):
        # Several in a row are one answer; of others the last is.
        before = answer[: boxed.start()]
        said = [*(said if _AFTER_BOX.search(before) else []), boxed[1]]
    return re.sub(r"\\[a-z]{1,20}|[{}$]", " ", ", ".join(said)) if said else answer


def _plain(answer: str) -> str:
    """Removes Markdown's emphasis; unifies check marks and crosses into one sign each."""
    text = unicodedata.normalize("NFKC", answer)
    text = re.sub(r"[*`]|(?<!\w)_+|_+(?!\w)", "", text)
    text = re.sub(r"[✔✅☑🗸]\ufe0f?|(?i:\[x\])", "✓", text)
    return re.sub(r"[✘❌☐✖🗶]\ufe0f?|\[ ?\](?=\s?[A-H])", "✗", text)


_ASKED_LETTER = re.compile(r"(?<![A-Za-z])[A-H][\"')]?\?")
# Between sentences or before small letters "A" may be the article: "A pneumonia is seen."
_LETTER_THEN_WORDS = regex("letter_then_words")
_TAG = re.compile(r"<\s{0,3}answer\s{0,3}>", re.IGNORECASE)
_WHOLE_TAG = re.compile(r"<answer>([^<]{0,2000})</answer>", re.IGNORECASE)
_JSON_FIELD = regex("json_field")
# {"A": true, "B": false}
_LETTERS_JUDGED = regex("letters_judged")
_NEXT_ITEM = re.compile(r"\s{0,3}(?:[,;]|\band\b|,\s?and\b|[.,;]?\s{0,3}\n\s{0,3}[-*•]?)\s{0,3}")
_BOXED = re.compile(r"\\boxed\s?\{((?:[^{}]|\{[^{}]{0,200}\}){0,300})\}")
_AFTER_BOX = re.compile(r"\}[\s$,;&]{0,9}(?:and)?[\s$]{0,9}\Z")
_EVERY = regex("every")
_DENIAL = re.compile(r"(?:no|not|without)\b")
_LETTER_COMMA_WORDS = re.compile(r"\b[A-H]\s{0,3}[,;\n]\s{0,3}\w{2}")
_ABSENT = re.compile(read_packaged(str(__package__), "choices.toml")["asks_for_absent"])
_OTHER_LANGUAGES = {
    outcome: frozenset(plain_words(word) for word in words)
    for outcome, words in read_packaged(str(__package__), "choices.toml")["closed"].items()
}
_FINAL = regex("final")
_VERDICT = regex("verdict")
