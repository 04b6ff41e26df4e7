"""The wordings of questions, answers and reasons: data, read from versioned files.

The paper has one manually designed template per category and prints none (section 2.1); these are
the project's own. Version 1 words the phantoms' dense questions, version 2 those about the box
table.
"""

import dataclasses
import functools
import random

from cxrjax.files import read_packaged
from cxrjax.radiology_text.english import capital
from cxrjax.records_io.quality import PixelBox

# The six categories of the paper's section 2.1.
QUESTION_TYPES = ("Where", "What", "Is_there", "How_many", "Which", "Yes_No")


@dataclasses.dataclass(frozen=True)
class VindrTemplates:
    """One version of the wordings.

    Attributes:
        questions: category -> phrasings.
        answers: style -> category -> form ("one", "many", "none") -> wordings.
        reasons: name -> wordings.
    """

    version: str
    questions: dict[str, list[str]]
    answers: dict[str, dict[str, dict[str, list[str]]]]
    reasons: dict[str, list[str]]

    def question(self, category: str, rng: random.Random, **values: str) -> tuple[str, str]:
        """(question, template id), one of the category's phrasings."""
        number = rng.randrange(len(self.questions[category]))
        text = self.questions[category][number].format(**values)
        return capital(text), f"v{self.version}/{category}/{number}"

    def answer(
        self, style: str, category: str, rng: random.Random, count: int, /, **values: str
    ) -> str:
        """An answer in the form (none, one, many) that `count` asks for."""
        form = "none" if count == 0 else "one" if count == 1 else "many"
        forms = self.answers[style][category]
        # An answer that shows one box of several words them alike, unless it counts them.
        return capital(rng.choice(forms.get(form, forms["one"])).format(**values))

    def reason(self, name: str, rng: random.Random, **values: str) -> str:
        """One of the reason's wordings."""
        return capital(rng.choice(self.reasons[name]).format(**values))


@functools.cache
def load_templates(version: str) -> VindrTemplates:
    """The wordings of a version, from the package's data file."""
    data = read_packaged(__package__, f"templates_v{version}.json")
    return VindrTemplates(data["version"], data["questions"], data["answers"], data["reasons"])


def format_box(box: PixelBox) -> str:
    """The box as VinDr-CXR-VQA writes it: whole pixels of the original, `<loc_x0_y0_x1_y1>`.

    The codec `vindr_px` reads the same notation; it needs the image's size, which the box table
    lacks, and the pixels here are copied, not computed.
    """
    return "<loc_" + "_".join(str(round(value)) for value in box) + ">"


@dataclasses.dataclass(frozen=True)
class ClassWords:
    """Words about one class, general knowledge that is never claimed of an image.

    Attributes:
        article: indefinite article of the name, "" for a mass noun.
        structure: the part of the chest that the class belongs to.
        definition, sign, care: sentences: what it is, how it shows, what to beware of.
    """

    name: str
    article: str
    structure: str
    definition: tuple[str, ...]
    sign: tuple[str, ...]
    care: tuple[str, ...]

    @property
    def with_article(self) -> str:
        """`a Pleural effusion`, `Cardiomegaly`."""
        return f"{self.article} {self.name}".strip()


@functools.cache
def class_words() -> dict[str, ClassWords]:
    """Class -> its words."""
    return {
        name: ClassWords(
            name,
            words["article"],
            words["structure"],
            tuple(words["definition"]),
            tuple(words["sign"]),
            tuple(words["care"]),
        )
        for name, words in read_packaged(__package__, "class_vocabulary.json")["classes"].items()
    }


@functools.cache
def reading_remarks() -> tuple[str, ...]:
    """Sentences on reading chest radiographs that belong to no class."""
    return tuple(read_packaged(__package__, "class_vocabulary.json")["reading"])
