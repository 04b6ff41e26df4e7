"""The classes' meaning in radiology, from the data file `class_vocabulary.json`."""

import dataclasses
import functools

from cxrjax.papers.vindr_cxr_vqa.construct.templates import read_data


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
        for name, words in read_data("class_vocabulary.json")["classes"].items()
    }


@functools.cache
def reading_remarks() -> tuple[str, ...]:
    """Sentences on reading chest radiographs that belong to no class."""
    return tuple(read_data("class_vocabulary.json")["reading"])
