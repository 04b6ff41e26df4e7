"""Small words of Chinese within English answers, in English: verdicts, denials, doubt, sides.

"没有 pneumothorax" denies what it would assert without its Chinese. Names of findings
stay: an answer in Chinese alone is read no further than its yes or no.
"""

import functools
import re

from cxrjax.files import read_packaged

_RUN = re.compile(r"[\u4e00-\u9fff]+")
_MARKS = str.maketrans("，。：；！？、（）“”【】", ',.:;!?,()""()')
# Alone, or behind what they are said of, these are verdicts.
_ALONE = {"is": "yes", "there is": "yes"}
_BEHIND = {"no": "is absent", "there is": "is present", "is": ""}


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

    def add(piece: str, start: int, step: int) -> None:
        pieces.append(piece)
        places.extend(start + step * k for k in range(len(piece)))

    done = 0
    for run in _RUN.finditer(text):
        add(text[done : run.start()].translate(_MARKS), done, 1)
        done = run.end()
        read = _translated(run[0], _is_english(text[: run.start()]), _is_english(text[done:][::-1]))
        add(run[0] if read is None else f" {read} ", run.start(), 1 if read is None else 0)
    add(text[done:].translate(_MARKS), done, 1)
    return "".join(pieces), [*places, len(text)]


def _is_english(before: str) -> bool:
    """Returns whether a text ends with a Latin word, apart from punctuation."""
    return re.search(r"[A-Za-z][\s)\"'*]{0,3}\Z", before[-10:]) is not None


def _translated(run: str, behind: bool, ahead: bool) -> str | None:
    """Translates a run of Chinese, or of one next to English as much as is known beside it."""
    for start in range(len(run) if ahead else 1):
        if (words := _words(run[start:])) is not None:
            if not ahead and len(words) == 1:
                return (_BEHIND if behind else _ALONE).get(words[0], words[0])
            return " ".join(words)
    for end in range(len(run) - 1, 0, -1) if behind else ():
        if (words := _words(run[:end])) is not None:
            return " ".join(_BEHIND.get(word, word) for word in words)
    return None


def _words(run: str) -> list[str] | None:
    """The English of all words that a run is made of; None where one is not known."""
    english, pattern = _lexicon()
    found, place = [], 0
    while place < len(run):
        word = pattern.match(run, place)
        if word is None:
            return None
        found.append(english[word[0]])
        place = word.end()
    return [word for word in found if word]


@functools.cache
def _lexicon() -> tuple[dict[str, str], re.Pattern[str]]:
    """Chinese word -> English, and what finds the longest of them."""
    words = read_packaged(str(__package__), "reference/cues_en.toml")["chinese"]
    english = {said: meant for meant, all_said in words.items() for said in all_said}
    return english, re.compile("|".join(sorted(english, key=len, reverse=True)))
