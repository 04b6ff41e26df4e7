"""The record: one question about one study, as a line of JSON.

Every dataset is read into records and written back from them; everything after that sees records
alone. `data/README.md` documents the fields for people who bring their own images.

Boxes in a record are pixels of the original image, (x_min, y_min, x_max, y_max), as the sources
have them. Every other module works on fractions; `Answer.boxes_by_image` is the border.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading, replacing
from cxrjax.paper import find_paper, record_dataset
from cxrjax.paths import to_path
from cxrjax.untrusted.foreign_files import read_lines
from cxrjax.untrusted.json_text import check_json
from cxrjax.untrusted.names import file_name, path_anywhere

SCHEMA_VERSION = 1
FIELDS_HELP = "data/README.md lists the fields of a record"

LARGEST_SIDE = 1_000_000  # pixels; DICOM and JPEG end at 65,535

PixelBox = Annotated[list[float], pydantic.Field(min_length=4, max_length=4)]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class Answer(_Strict):
    """One statement of an answer, with where it can be seen.

    Attributes:
        boxes_by_image: `image_id` -> boxes in pixels of that original image, xyxy.
        text: the answer as its source wrote it, box notation included.
    """

    answer_id: str = "a0"
    answer_type: Literal["main", "details", "related"] = "main"
    level: int = 0
    text: str
    name_tag: str | None = None
    labels: list[str] = []
    regions: list[str] = []
    polarity: Literal["pos", "neg", "unk"] = "unk"
    certainty: str | None = None
    modifiers: list[tuple[str, str]] = []
    boxes_by_image: dict[str, list[PixelBox]] = {}
    sub_answers: list["Answer"] = []


class Fused(_Strict):
    """Boxes of several readers merged into one set, and how. `labels`: the class of each box."""

    method: str
    params: dict[str, float] = {}
    boxes: list[PixelBox]
    labels: list[str] = []


class GeneratorInfo(_Strict):
    """The writer of the question and its answer."""

    name: str
    version: str


class Provenance(_Strict):
    """The file a record was made from."""

    source_file: str
    source_sha256: str | None = None


class ReaderBox(_Strict):
    """One reader's box and its class, pixels of the original image."""

    label: str
    box: PixelBox


class EarlierImage(_Strict):
    """An image of an earlier study that the question compares with, shown behind the record's own.

    Attributes:
        image_path: relative to the same folder as the record's own.
        image_hw: (height, width) in pixels, null where nobody knows it.
    """

    image_id: str
    image_path: str
    image_hw: tuple[int, int] | None = None

    _path = pydantic.field_validator("image_path")(path_anywhere)


class Turn(_Strict):
    """An earlier question of the same dialogue; `answer` is null until one is joined."""

    question_id: str
    question: str
    answer: str | None = None


class QARecord(_Strict):
    """One question. `image_hw` is (height, width) in pixels, null until it is known."""

    schema_version: int = SCHEMA_VERSION
    dataset: Annotated[str, pydantic.AfterValidator(record_dataset)]
    split: str
    patient_id: str | None = None
    study_id: str | None = None
    image_id: str
    image_path: str
    image_hw: tuple[int, int] | None = None
    earlier: EarlierImage | None = None
    view: str | None = None
    sex: str | None = None
    age: float | None = None
    question_id: str
    question: str
    question_type: str
    question_strategy: str | None = None
    content_type: str | None = None
    difficulty: str | None = None
    lang: str = "en"
    choices: list[str] | None = None
    type_prompt: str | None = None
    history: list[Turn] = []
    template_id: str | None = None
    variables: dict[str, Any] | None = None
    answers: list[Answer] = []
    answer_key: str | list[str] | None = None
    reason: str | None = None
    gt_finding: str | None = None
    gt_location: str | None = None
    negative_kind: Literal["no_finding_image", "absent_class"] | None = None
    readers: dict[str, list[ReaderBox]] | None = None
    fused: Fused | None = None
    quality: dict[str, Any] = {}
    grade: str | None = None
    generator: GeneratorInfo | None = None
    provenance: Provenance | None = None

    @pydantic.field_validator("schema_version")
    @classmethod
    def _known_version(cls, value: int) -> int:
        if value != SCHEMA_VERSION:
            raise ValueError(
                f"{value} is not the version of records that this code reads: expected "
                f"{SCHEMA_VERSION}; build them again, or update cxrjax"
            )
        return value

    @pydantic.field_validator("split")
    @classmethod
    def _file_of_a_split(cls, value: str) -> str:
        return file_name(value) if value else value

    @pydantic.field_validator("image_path")
    @classmethod
    def _path_of_a_file(cls, value: str) -> str:
        return path_anywhere(value)

    @pydantic.field_validator("image_hw")
    @classmethod
    def _possible_size(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not 1 <= min(value) <= max(value) <= LARGEST_SIDE:
            raise ValueError(
                f"image_hw {str(list(value))[:60]} is not a size: expected [height, width] > 0"
            )
        return value

    @property
    def codec(self) -> str:
        """Box format of the answers' texts, a key of `cxrjax.codecs.CODECS`."""
        return find_paper(self.dataset).record_codec

    @property
    def finding(self) -> str | None:
        """Finding that the question asks about; None if it names none."""
        finding = (self.variables or {}).get("finding")
        return str(finding) if finding else None

    @property
    def shown(self) -> tuple[str, ...]:
        """Identity of the images shown: id and path, and the path of an earlier image."""
        own = (self.image_id, self.image_path)
        return own if self.earlier is None else (*own, self.earlier.image_path)

    @property
    def answer_text(self) -> str:
        """The main answers' text, joined in order; empty where the record carries no answer."""
        return " ".join(a.text for a in self.answers if a.answer_type == "main")

    @property
    def boxes(self) -> list[list[float]]:
        """Boxes of all answers on this record's own image, pixels, in order."""
        return [box for a in self.answers for box in a.boxes_by_image.get(self.image_id, [])]


# What the answer is or was made from; a question file must carry none of it.
ANSWER_FIELDS = (
    "answers",
    "answer_key",
    "reason",
    "gt_finding",
    "gt_location",
    "negative_kind",
    "readers",
    "fused",
    "quality",
    "grade",
)


def class_in_words(label: str) -> str:
    """A class in a sentence: `Pleural_effusion` is "pleural effusion", `ILD` stays."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", re.sub(r"[_\s]+", " ", label))
    return " ".join(word if word.isupper() else word.lower() for word in spaced.split())


def strip_answers(record: QARecord) -> QARecord:
    """Returns the question without its answers or anything that reveals them.

    Earlier turns of a dialogue keep their questions and lose their answers.
    """
    update: dict[str, Any] = {
        name: QARecord.model_fields[name].get_default() for name in ANSWER_FIELDS
    }
    update["history"] = [turn.model_copy(update={"answer": None}) for turn in record.history]
    return record.model_copy(update=update)


def parse_record(line: str | bytes, where: str) -> QARecord:
    """One record from a line of JSON; `where` names it in errors.

    Raises:
        UserError: the line is not JSON or not a record; names the first offending field.
    """
    found = read_record(line)
    if isinstance(found, QARecord):
        return found
    raise UserError(f"{where}: {': '.join(found[0])} ({FIELDS_HELP})")


def read_record(line: str | bytes) -> QARecord | list[tuple[str, str]]:
    """The record of a line of JSON, or (field, what is wrong with it) of all that keep it from it.

    What is wrong with no single field is the field `line`.
    """
    try:
        return QARecord.model_validate_json(check_json(line))
    except ForeignError as error:
        return [("line", str(error))]
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False)
    return [(".".join(str(part) for part in one["loc"]) or "line", one["msg"]) for one in found]


def read_records(path: str | Path) -> Iterator[QARecord]:
    """Records of a JSON Lines file, one at a time.

    Raises:
        UserError: the file cannot be read, or a line is not a record (names file and line).
    """
    with reading(path, "records"):
        for number, line in read_lines(path):
            yield parse_record(line, f"{path}:{number}")


def format_record(record: QARecord) -> str:
    """The record as one line of JSON; fields at their default are left out."""
    fields = record.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({"schema_version": record.schema_version, **fields}, ensure_ascii=False)


def write_records(path: str | Path, records: Iterable[QARecord]) -> int:
    """Writes records as JSON Lines and returns how many."""
    count = 0
    to_path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(to_path(path)) as out:
        for record in records:
            out.write(format_record(record) + "\n")
            count += 1
    return count
