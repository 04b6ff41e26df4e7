"""The wordings of questions, answers and reasons: data, read from a versioned file.

The paper has one manually designed template per category and prints none (section 2.1); these are
the project's own.
"""

import dataclasses
import functools
import importlib.resources
import json
import random
from collections.abc import Sequence

from cxrjax.datasets.quality import PixelBox

# The six categories of the paper's section 2.1.
QUESTION_TYPES = ("Where", "What", "Is_there", "How_many", "Which", "Yes_No")

VERSION = "1"


@dataclasses.dataclass(frozen=True)
class Templates:
    """One version of the wordings.

    Attributes:
        questions: category -> phrasings with `{finding}`. "What" asks for all findings, "What_one"
            for one of them and its box.
        answers: mode -> category -> form ("one", "many", "none") -> wordings.
        reasons: name -> wording.
    """

    version: str
    questions: dict[str, list[str]]
    answers: dict[str, dict[str, dict[str, list[str]]]]
    reasons: dict[str, str]

    def question(self, category: str, rng: random.Random, finding: str = "") -> tuple[str, str]:
        """(question, template id), one of the category's phrasings."""
        number = rng.randrange(len(self.questions[category]))
        text = self.questions[category][number].format(finding=finding)
        return _sentence(text), f"v{self.version}/{category}/{number}"

    def answer(
        self,
        mode: str,
        category: str,
        rng: random.Random,
        finding: str = "",
        findings: Sequence[str] = (),
        boxes: Sequence[PixelBox] = (),
        count: int = 0,
    ) -> str:
        """An answer in the form (none, one, many) that `count` asks for, `boxes` written out."""
        form = "none" if count == 0 else "one" if count == 1 else "many"
        forms = self.answers[mode][category]
        written = [format_box(box) for box in boxes]
        # An answer that shows one box of several words them alike, unless it counts them.
        text = rng.choice(forms.get(form, forms["one"])).format(
            finding=finding,
            findings=join(findings),
            boxes=" ".join(written),
            boxes_and=join(written),
            count=count,
        )
        return _sentence(text)

    def reason(self, name: str, **values: object) -> str:
        """The wording of this name, filled."""
        return _sentence(self.reasons[name].format(**values))


@functools.cache
def load_templates(version: str = VERSION) -> Templates:
    """The wordings of a version, from the package's data file."""
    file = importlib.resources.files(__package__).joinpath(f"templates_v{version}.json")
    data = json.loads(file.read_text(encoding="utf-8"))
    return Templates(data["version"], data["questions"], data["answers"], data["reasons"])


def format_box(box: PixelBox) -> str:
    """The box as VinDr-CXR-VQA writes it: whole pixels of the original, `<loc_x0_y0_x1_y1>`.

    The codec `vindr_px` reads the same notation; it needs the image's size, which the box table
    lacks, and the pixels here are copied, not computed.
    """
    return "<loc_" + "_".join(str(round(value)) for value in box) + ">"


def join(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _sentence(text: str) -> str:
    """The text with a capital first letter (class names are capitalised already)."""
    return text[:1].upper() + text[1:]
