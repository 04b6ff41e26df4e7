"""Reads the wordings of questions, answers and reasons from versioned files.

The paper has one manually designed template per category and prints none (section 2.1); these are
the project's own. Version 1 words the phantoms' dense questions, version 4 those about the box
table.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.radiology_text.english import capital
from cxrjax.records_io.quality import PixelBox

# The six categories of the paper's section 2.1.
QUESTION_TYPES = ("Where", "What", "Is_there", "How_many", "Which", "Yes_No")


@dataclasses.dataclass(frozen=True)
class VindrTemplates:
    """One version of the wordings."""

    version: str
    questions: dict[str, list[str]]
    # Style -> category -> form ("one", "many", "none") -> wordings.
    answers: dict[str, dict[str, dict[str, list[str]]]]
    reasons: dict[str, list[str]]
    others: Sequence[str] = ()  # sentences that name further findings
    # Share of questions that depart from the wording, by how they do.
    variation: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def question(
        self, category: str, rng: random.Random, place: str | None = None, /, **values: str
    ) -> tuple[str, str]:
        """Fills one of the category's phrasings; returns question and template id.

        Args:
            place: what the answer can say of it; a phrasing that asks for a side or a zone is taken
                only where there is one. None: it says nothing of a place.
        """
        wordings = enumerate(self.questions[category])
        number = rng.choice([n for n, text in wordings if place is None or _asks(text, place)])
        text = self.questions[category][number].format(**values)
        return capital(text), f"v{self.version}/{category}/{number}"

    def answer(
        self, style: str, category: str, rng: random.Random, count: int, /, **values: str
    ) -> str:
        """Fills an answer in the form (none, one, many) for `count`."""
        form = "none" if count == 0 else "one" if count == 1 else "many"
        forms = self.answers[style][category]
        # Most answers word one box and several alike.
        return capital(rng.choice(forms.get(form, forms["one"])).format(**values))

    def reason(self, name: str, rng: random.Random, **values: str) -> str:
        """Fills one of the reason's wordings."""
        return capital(rng.choice(self.reasons[name]).format(**values))


_SIDE = re.compile(r"\b(?:right|left|both)\b")
_ZONE = re.compile(r"\b(?:upper|mid|middle|lower|apex|apices|base|bases|angles?)\b")


def _asks(wording: str, place: str) -> bool:
    """Returns whether a place has all that a wording asks for: a side, a zone."""
    asks_zone = re.search(r"\b(?:zone|level)\b", wording, re.IGNORECASE)
    asks_side = re.search(r"\bside\b", wording, re.IGNORECASE)
    return bool(_ZONE.search(place) or not asks_zone) and bool(_SIDE.search(place) or not asks_side)


@functools.cache
def load_templates(version: str) -> VindrTemplates:
    """Returns the wordings of a version, from the package's data file."""
    data = read_packaged(__package__, f"templates_v{version}.json")
    return VindrTemplates(**{name: words for name, words in data.items() if name != "about"})


def format_box(box: PixelBox) -> str:
    """Formats a box as VinDr-CXR-VQA does: whole pixels of the original, `<loc_x0_y0_x1_y1>`.

    The codec `vindr_px` reads the same format; it needs the image's size, which the box table
    lacks, and the pixels here are copied, not computed.
    """
    return "<loc_" + "_".join(str(round(value)) for value in box) + ">"


@dataclasses.dataclass(frozen=True)
class ClassWords:
    """Words about one class, general knowledge that is never claimed of an image."""

    name: str
    prose: str  # the name within a sentence
    article: str  # indefinite, "" for a mass noun
    synonyms: Sequence[str]  # each with its article
    would: str  # how it would show, after "would"
    looks_like: Sequence[str]
    # `definition`, `sign`, `care`: sentences: what it is, how it shows, what to beware of.
    definition: Sequence[str]
    sign: Sequence[str]
    care: Sequence[str]
    follows: Sequence[str]  # sentences on what comes next for a patient who has it
    # zone, or "both" for both sides -> a sentence about the class at that place.
    fits: Mapping[str, str]

    @property
    def with_article(self) -> str:
        """`a Pleural effusion`, `Cardiomegaly`; "an Other lesion" is not English."""
        return self.name if self.name[0] in "AEIOU" else f"{self.article} {self.name}".strip()

    @property
    def prose_with_article(self) -> str:
        """`a pleural effusion`, `cardiomegaly`."""
        return f"{self.article} {self.prose}".strip()


@functools.cache
def class_words() -> dict[str, ClassWords]:
    """Returns class -> its words."""
    words = read_packaged(__package__, "class_vocabulary.json")["classes"]
    return {name: ClassWords(name, **of_class) for name, of_class in words.items()}


@functools.cache
def vocabulary(name: str) -> tuple[Any, ...]:
    """Returns a list of words that belong to no class: `reading`, sentences on reading chest
    radiographs; `together`, classes that are denied in one sentence; `numbers` in words."""
    return tuple(read_packaged(__package__, "class_vocabulary.json")[name])
