"""The cases of the page as JSON: an index of all questions, and parts that are read when shown.

The index has what filters and orders need of every question, in columns; a part has texts, boxes
and pictures of `IMAGES_PER_PART` images. `page_cases.js` reads both.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cxrjax.images.decode import read_image
from cxrjax.pages.results.cases import Case, LabelledBox, Question, SystemAnswer
from cxrjax.scoring.overlays import jpeg, jpeg_data_uri
from cxrjax.scoring.scores import Outcome

IMAGES_PER_PART = 25
# Coordinates are whole numbers, of so many to an image's side.
SCALE = 10_000
_NO_PREDICTION, _UNDECIDED = "n", "u"


class _Names:
    """Strings as numbers, in the order of their first use."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.numbers = {name: number for number, name in enumerate(known)}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


class CaseData:
    """Index and parts of some cases.

    Args:
        cases: in the order in which the page knows them.
        systems: names, in the order of their columns.
    """

    def __init__(self, cases: Sequence[Case], systems: Sequence[str]) -> None:
        self._cases = cases
        self._systems = systems
        asked = [question for case in cases for question in case.questions]
        self._types = _Names(sorted({question.question_type for question in asked}))
        self._subjects = _Names(sorted({name for question in asked for name in question.subjects}))
        self._texts, self._parses, self._labels = _Names(), _Names(["ok"]), _Names()

    def parts(self, pictures: Iterable[tuple[str | None, float]]) -> Iterator[list[dict[str, Any]]]:
        """The parts in order; all are to be taken before `index` is.

        Args:
            pictures: of each case, the address of its picture (None without one) and its height by
                its width.
        """
        part: list[dict[str, Any]] = []
        for case, (address, ratio) in zip(self._cases, pictures, strict=True):
            questions = [self._question(question) for question in case.questions]
            part.append({"src": address, "ratio": round(ratio, 4), "q": questions})
            if len(part) == IMAGES_PER_PART:
                yield part
                part = []
        if part:
            yield part

    def index(self) -> dict[str, Any]:
        """What is needed before anything is shown."""
        asked = [(image, q) for image, case in enumerate(self._cases) for q in case.questions]
        questions = [question for _, question in asked]
        return {
            "perPart": IMAGES_PER_PART,
            "scale": SCALE,
            "images": {
                "id": [case.image_id for case in self._cases],
                "about": [case.about for case in self._cases],
                "sampled": "".join("1" if case.sampled else "0" for case in self._cases),
            },
            "questions": {
                "id": [question.question_id for question in questions],
                "image": [image for image, _ in asked],
                "text": [self._texts.number(question.text) for question in questions],
                "type": [self._types.number(question.question_type) for question in questions],
                "subjects": [
                    [self._subjects.number(name) for name in question.subjects]
                    for question in questions
                ],
                "right": [
                    "".join(_right(q.answers.get(s)) for q in questions) for s in self._systems
                ],
                "iou": [[_iou(q.answers.get(s)) for q in questions] for s in self._systems],
                "parse": [
                    [self._parse(q.answers.get(s)) for q in questions] for s in self._systems
                ],
            },
            "texts": list(self._texts.numbers),
            "types": list(self._types.numbers),
            "subjects": list(self._subjects.numbers),
            "parses": list(self._parses.numbers),
            "labels": list(self._labels.numbers),
        }

    def _question(self, question: Question) -> dict[str, Any]:
        found: dict[str, Any] = {
            "ref": question.reference,
            "boxes": self._boxes(question.boxes),
            "answers": [
                self._answer(question.answers.get(system), question) for system in self._systems
            ],
        }
        return found | ({"choices": question.choices} if question.choices else {})

    def _answer(self, answer: SystemAnswer | None, question: Question) -> dict[str, Any] | None:
        if answer is None:
            return None
        found: dict[str, Any] = {"text": answer.text, "boxes": self._boxes(answer.boxes)}
        if answer.outcome.note:
            found["note"] = answer.outcome.note
        if answer.reference != question.reference:
            found["ref"] = answer.reference
        return found

    def _boxes(self, boxes: Sequence[LabelledBox]) -> list[list[int]]:
        return [
            [*(_whole(value) for value in labelled.box), self._labels.number(labelled.label)]
            for labelled in boxes
        ]

    def _parse(self, answer: SystemAnswer | None) -> int:
        return self._parses.number("ok" if answer is None else answer.parse)


def script_json(content: Any) -> str:
    """JSON that may stand in a <script> element: nothing in it can end the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # As JSON escapes, which no reader can tell from the characters.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _whole(value: float) -> int:
    # A box may lie far outside its image; the picture has only what is near.
    return round(SCALE * min(max(value, -1.0), 2.0))


def _right(answer: SystemAnswer | None) -> str:
    if answer is None:
        return _NO_PREDICTION
    outcome: Outcome = answer.outcome
    return _UNDECIDED if outcome.right is None else "r" if outcome.right else "w"


def _iou(answer: SystemAnswer | None) -> int:
    """In per cent; -1 where there is none."""
    return -1 if answer is None or answer.outcome.iou is None else round(100 * answer.outcome.iou)


# With more images than this, pictures and texts stand in a folder beside the page.
MOST_IN_ONE_FILE = 300
FOLDER = "index_files"
# How pictures come to the page; `auto` is `file` or `folder`, by their number.
PICTURES = ("auto", "file", "folder", "none")
_THREADS = 2

# A case's picture: its address on the page (None without one), and its height by its width.
Picture = tuple[str | None, float]


def no_pictures(cases: Sequence[Case]) -> Iterator[Picture]:
    """Boxes are drawn on a blank of the image's shape."""
    for case in cases:
        height, width = case.image_hw or (1, 1)
        yield None, height / width


def inline_pictures(cases: Sequence[Case], image_root: Path) -> Iterator[Picture]:
    """Pictures as `data:` addresses.

    Raises:
        UserError: an image that cannot be read.
    """

    def shrink(case: Case) -> Picture:
        image = read_image(image_root / case.image_path)
        return jpeg_data_uri(image), image.shape[0] / image.shape[1]

    return _in_threads(shrink, cases)


def picture_files(cases: Sequence[Case], image_root: Path, folder: Path) -> Iterator[Picture]:
    """Pictures as files in `folder`, called by their numbers.

    Raises:
        UserError: an image that cannot be read.
    """
    numbers = {case.image_id: number for number, case in enumerate(cases)}

    def write(case: Case) -> Picture:
        image = read_image(image_root / case.image_path)
        path = folder / f"image-{numbers[case.image_id]}.jpg"
        path.write_bytes(jpeg(image, long_side=768))
        return f"{folder.name}/{path.name}", image.shape[0] / image.shape[1]

    return _in_threads(write, cases)


def empty_folder(out_dir: Path, wanted: bool) -> Path:
    """The folder beside the page, without what an earlier page left in it; gone if not wanted."""
    folder = out_dir / FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    if wanted:
        folder.mkdir(parents=True)
    return folder


def write_part(folder: Path, number: int, content: Any) -> None:
    """A part as a script: a page that is opened from a disk may read scripts and nothing else."""
    text = f"cxrjaxPart({number}, {script_json(content)});\n"
    (folder / f"part-{number}.js").write_text(text, encoding="utf-8")


def _in_threads(make: Callable[[Case], Picture], cases: Sequence[Case]) -> Iterator[Picture]:
    """In order. Decoding leaves Python's lock to others; few at a time are in memory."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(cases), 4 * _THREADS):
            yield from pool.map(make, cases[start : start + 4 * _THREADS])
