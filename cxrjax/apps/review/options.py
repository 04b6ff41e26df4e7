"""Options that an answer has chosen: told apart from its other words, and put back among them."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from cxrjax.apps.review.wording import in_words
from cxrjax.records import QARecord

# How answers name options, by letter -> "A: Air"; a full one begins with its letter.
_STYLES: tuple[Callable[[Sequence[str], Mapping[str, str]], str], ...] = (
    lambda chosen, options: str(list(chosen)),
    lambda chosen, options: ", ".join(options[letter] for letter in chosen),
    lambda chosen, options: ", ".join(chosen),
    lambda chosen, options: ", ".join(_words(options[letter]) for letter in chosen),
)


@dataclasses.dataclass(frozen=True)
class ChosenOptions:
    """An answer's text in words: `before`, the options as `style` writes them, `between`, `words`.

    Attributes:
        options: letter -> the option as it is offered, `A: Air`.
        chosen: letters, in the order of the text.
        several: whether more or less than one may be chosen.
        words: what follows the options, such as the reason.
    """

    options: Mapping[str, str]
    chosen: Sequence[str]
    several: bool
    before: str
    style: Callable[[Sequence[str], Mapping[str, str]], str]
    between: str
    words: str

    def text(self, chosen: Sequence[str], words: str) -> str:
        """The whole answer with other options and words."""
        return f"{self.before}{self.style(chosen, self.options)}{self.between}{words}"


def chosen_options(record: QARecord) -> ChosenOptions | None:
    """The options of an answer; None where there are none, or its text does not begin with them."""
    key = record.answer_key
    options = {choice.partition(":")[0].strip(): choice for choice in record.choices or ()}
    chosen = [key] if isinstance(key, str) else list(key or ())
    if not chosen or not set(chosen) <= set(options):
        return None
    text = in_words(record.answer_text, record)
    for style in _STYLES:
        written = re.escape(style(chosen, options))
        found = re.match(rf"((?:<answer>\s*)?){written}(?![\w:])([.\s]*(?:<reason>\s*)?)", text)
        if found:
            several = not isinstance(key, str)
            rest = text[found.end() :]
            return ChosenOptions(options, chosen, several, found[1], style, found[2], rest)
    return None


def chosen_letters(text: str, record: QARecord) -> str | list[str] | None:
    """Letters of the options that a model's answer names, by letter or in full; None if none."""
    options = {choice.partition(":")[0].strip(): choice for choice in record.choices or ()}
    said = text.strip().rstrip(".").lower()
    found = [letter for letter, option in options.items() if _words(option).lower() == said] or [
        letter
        for letter in options
        if re.search(rf"(?<!\w){re.escape(letter)}\s*(?:[:.,]|$)", text)
    ]
    if len(found) < 2 and not isinstance(record.answer_key, list):
        return found[0] if found else None
    return found or None


def _words(option: str) -> str:
    return option.partition(":")[2].strip()
