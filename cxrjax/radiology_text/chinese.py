"""Chinese of answers and reports in the English that the reader knows, word by word.

"没有 pneumothorax" denies what it would assert without its Chinese, and so does "未见气胸".
"""

import functools
import re

from cxrjax.files import read_packaged
from cxrjax.radiology_text.definitions import load_definitions

_RUN = re.compile(r"[\u4e00-\u9fff]+(?:(?:CT|MRI|X)[\u4e00-\u9fff]+)*")
_MARKS = str.maketrans("，。：；！？、（）“”【】", ',.:;!?,()""()')
# Alone, or behind what they are said of, these are verdicts.
_ALONE = {"is": "yes", "there is": "yes"}
_BEHIND = {"no": "is absent", "there is": "is present", "is": ""}
# At the end of a run, of what stands before.
_LAST = {"no mention of": "is not mentioned", "未见异常": "normal"}
# A run with one of these that is part of no known word is not read.
_DENYING = frozenset("不未无没非否勿莫")

Piece = tuple[str, int, int]


def in_english(text: str) -> tuple[str, list[int] | None]:
    """The text with what is known of its Chinese in English.

    Returns:
        The text, and for each of its characters and its end the place in the original; None where
        nothing has changed.
    """
    if not _RUN.search(text):
        return text, None
    pieces: list[str] = []
    places: list[int] = []
    done = 0
    for run in [*_RUN.finditer(text), None]:
        for place in range(done, run.start() if run else len(text)):
            # A line that ends with a word is a sentence.
            ends = text[place] == "\n" and (
                text[place - 1 : place].isalpha() or text[place - 1] in ")）"
            )
            mark = "；" if text[place] == "，" and _names_side(text, place + 1) else text[place]
            pieces.append(". \n" if ends else mark.translate(_MARKS))
            places.extend([place] * len(pieces[-1]))
        if run is None:
            break
        done = run.end()
        ahead, behind = _is_english(text[: run.start()]), _is_english(text[done:][::-1])
        for word, start, end in _translated(run[0], ahead, behind):
            said = word if (start, end) == (0, len(run[0])) and word == run[0] else f" {word} "
            said = said.rstrip() if text[done : done + 1] in ("?", "？") else said
            pieces.append(said)
            steps = range(len(said)) if said == run[0] else [start] * (len(said) - 1) + [end]
            places.extend(run.start() + step for step in steps)
    return "".join(pieces), [*places, len(text)]


def _names_side(text: str, place: int) -> bool:
    """Returns whether a clause opens with a side and names a finding: "右侧胸膜增厚"."""
    run = _RUN.match(text, place)
    words = (
        {word for word, *_ in _words(run[0]) or ()} if run and run[0][0] in "左右双两" else set()
    )
    return not words.isdisjoint(load_definitions().findings)


def _is_english(before: str) -> bool:
    """Returns whether a text ends with a Latin word, apart from punctuation."""
    return re.search(r"[A-Za-z][\s)\"'*]{0,3}\Z", before[-10:]) is not None


def _translated(run: str, behind: bool, ahead: bool) -> list[Piece]:
    """English of a run of Chinese; the run itself where too little of it is known."""
    words = _words(run)
    if words is None:
        return [(run, 0, len(run))]
    if len(words) == 1 and not ahead:
        word, start, end = words[0]
        word = _LAST.get(run, (_BEHIND if behind else _ALONE).get(word, word))
        return [(word, start, end)]
    last, start, end = words[-1]
    if not ahead and len(words) > 1:
        last = _LAST.get(run[start:end], _LAST.get(last, last))
    if last == "no" and not ahead and words[-2][0] in ("left", "right"):
        last = "none"  # "右侧胸腔积液，左侧未见"
    words[-1] = last, start, end
    return [word for word in words if word[0]]


def _words(run: str) -> list[Piece] | None:
    """The English words of a run with their places; None where a denial may be unknown, or none
    of it is known."""
    english, pattern = _lexicon()
    found: list[Piece] = []
    known = place = 0
    while place < len(run):
        word = pattern.match(run, place)
        if word is None:
            if run[place] in _DENYING or (found and found[-1][::2] == ("no", place)):
                return None
            place += 1
            continue
        known += word.end() - place
        found.append((english[word[0]], place, word.end()))
        place = word.end()
    return found if 2 * known > len(run) else None


@functools.cache
def _lexicon() -> tuple[dict[str, str], re.Pattern[str]]:
    """Chinese word -> English, and what finds the longest of them."""
    data = read_packaged(str(__package__), "reference/words_zh.toml")
    groups = (data["cues"], data["findings"], data["places"])
    english = {said: meant for group in groups for meant, words in group.items() for said in words}
    return english, re.compile("|".join(sorted(english, key=len, reverse=True)))
