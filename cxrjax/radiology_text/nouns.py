"""Number and articles of the names of classes in sentences; words in `reference/nouns.toml`."""

import re
from typing import Any

from cxrjax.files import read_packaged

_WORDS: dict[str, Any] = read_packaged(f"{__package__}.reference", "nouns.toml")
_HEAD = re.compile(_WORDS["head"])
_PLURALS: dict[str, str] = _WORDS["plurals"]
_VOWEL_SOUND = re.compile(_WORDS["vowel_sound"])


def _parts(words: str) -> tuple[str, str, str]:
    """The words before the noun that decides, this noun, and those behind it."""
    whole = words.split(" or ")[-1] if " of " not in words else words
    found = _HEAD.match(whole)
    head = found[1] if found else whole
    before = words[: len(words) - len(whole)] + head
    start = max(before.rfind(" "), before.rfind("-")) + 1
    return before[:start], before[start:], words[len(before) :]


def is_plural(words: str) -> bool:
    """Returns whether a name takes "are"."""
    noun = _parts(words)[1].lower()
    if noun in _PLURALS.values():
        return True
    is_long = len(noun) > 3 and noun.endswith("s") and not noun.isupper()
    return is_long and not noun.endswith(("ss", "us", "is", "'s", "ax", "lens"))


def is_counted(words: str) -> bool:
    """Returns whether a name is a singular that takes an article; of other scripts none does."""
    noun = _parts(words)[1]
    if not noun.isascii() or not noun[:1].isalpha() or is_plural(words):
        return False
    if noun.isupper():
        return noun not in _WORDS["mass_letters"]
    noun = noun.lower()
    is_mass = noun in _WORDS["mass"] or noun.endswith(tuple(_WORDS["mass_endings"]))
    return noun in _WORDS["counted"] or not is_mass


def with_article(words: str) -> str:
    """A name with its indefinite article, if it takes one: "a nodule", "an ETT", "atelectasis"."""
    if not is_counted(words):
        return words
    first = re.split(r"[\s-]", words)[0]
    if first.lower() in ("other", "another", "a", "an", "any", "no", "one"):
        return f"an{words}" if first.lower() == "other" else words
    spelt = first.isupper() and len(first) > 1
    vowel = first[0] in _WORDS["vowel_letters"] if spelt else _VOWEL_SOUND.match(words.lower())
    return f"{'an' if vowel else 'a'} {words}"


def plural(words: str) -> str:
    """A name in the plural."""
    if " or " in words:
        return " or ".join(map(plural, words.split(" or ")))
    before, noun, behind = _parts(words)
    low = noun.lower()
    if low in _PLURALS:
        noun = _PLURALS[low]
    elif low.endswith("thorax"):
        noun = f"{noun[:-1]}ces"
    elif low.endswith("sis"):
        noun = f"{noun[:-2]}es"
    elif low.endswith(("ss", "x", "sh", "ch", "us", "ns")) and not is_plural(words):
        noun = f"{noun}es"
    elif low.endswith("y") and low[-2:-1] not in "aeiou":
        noun = f"{noun[:-1]}ies"
    elif not is_plural(words) and not low.endswith("itis"):
        noun = f"{noun}s"
    return before + noun + behind


def forms(words: str, count: int = 1) -> dict[str, str]:
    """Fields of a template about a class and so many of its regions.

    Returns:
        `finding`; `a_finding` with its article; `is` or `Is` it; of all regions `found`,
        `some_found` and `are`; `units`, what is counted; `n_units` and `n_are`.
    """
    counted = is_counted(words)
    many = counted and count > 1
    found = plural(words) if many else words
    unit = words if counted else f"region of {words}"
    units = plural(words) if counted else f"regions of {words}"
    verb = "are" if is_plural(words) else "is"
    return {
        "finding": words,
        "a_finding": with_article(words),
        "is": verb,
        "Is": verb.capitalize(),
        "found": found,
        "some_found": found if many else with_article(words),
        "are": "are" if many else verb,
        "units": units,
        "n_units": f"{count} {unit if count == 1 else units}",
        "n_are": "is" if count == 1 else "are",
    }
