"""Metadata tables on seven levels, each as csv.gz and as parquet.

<level>_metadata.csv.gz, <level>_metadata.parquet for the levels of `COLUMNS`. Tables are written
row by row while a data set is built, and read in parts: the release's largest has 151 million rows.
Columns are the project's own where the release's are not published.
"""

import contextlib
import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cxrjax.errors import UserError, first_line
from cxrjax.papers.cxr_qba.construct import ratings
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.native import StudyQuestions, StudySceneGraph
from cxrjax.paths import to_path
from cxrjax.records_io.csv_table import read_table as read_csv_table
from cxrjax.untrusted.parquet import open_parquet, read_batches

_STUDY = ("patient_id", "study_id")
_QUESTION = (*_STUDY, "question_id")
_ANSWER = (*_QUESTION, "answer_id")
_WHOLE = ("height", "width", "answer_level", "studies", "questions", "images", "frontal_images")
_FLAGS = ("frontal", "from_report", "contains_report_answers", "contains_template_answers")
COLUMNS: dict[str, tuple[str, ...]] = {
    "patient": ("patient_id", "split", "studies"),
    "study": (*_STUDY, "split", "images", "frontal_images", "questions"),
    "image": (
        *(*_STUDY, "image_id", "view_position", "patient_orientation", "frontal"),
        *("height", "width", "localization_quality"),
    ),
    "question": (
        *(*_QUESTION, "split", "question_type", "question_strategy", "extraction_grade"),
        *("surrogate_grade", "grade", "contains_report_answers", "contains_template_answers"),
    ),
    "question_image": (*_QUESTION, "image_id", "frontal", "localization_quality"),
    "answer": (*_ANSWER, "answer_type", "answer_level", "positiveness", "certainty", "from_report"),
    "answer_image": (*_ANSWER, "image_id", "frontal", "localization_quality"),
}
_BATCH = 50_000
# Fixed, so that the same rows give the same bytes.
_NO_TIME = 0


class MetadataWriter:
    """Writes the tables. Use as a context.

    Args:
        folder: made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._tables = {level: _Table(folder, level) for level in COLUMNS}
        self._files = contextlib.ExitStack()
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "MetadataWriter":
        for table in self._tables.values():
            self._files.enter_context(table)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._files.__exit__(*exception)

    def patient(self, patient_id: str, split: str, studies: int) -> None:
        """A row of the patient table."""
        self._add("patient", {"patient_id": patient_id}, split=split, studies=studies)

    def study(
        self,
        graph: StudySceneGraph,
        questions: StudyQuestions,
        images: Sequence[StudyImage],
        split: str,
    ) -> None:
        """A study's rows in all tables below the patient's."""
        ids = {"patient_id": graph.patient_id, "study_id": graph.study_id}
        frontal = {image.image_id: image.frontal for image in images}
        self._add(
            *("study", ids),
            split=split,
            images=len(images),
            frontal_images=sum(frontal.values()),
            questions=len(questions.questions),
        )
        qualities = graph.study_img_localization_quality
        for image in images:
            height, width = image.image_hw or (None, None)
            self._add(
                *("image", ids, image),
                view_position=image.view or None,
                patient_orientation=image.orientation or None,
                height=height,
                width=width,
                localization_quality=qualities.get(image.image_id),
            )
        for question in questions.questions:
            own = {**ids, "question_id": question.question_id}
            rated = question.question_quality
            self._add(
                *("question", own, question),
                split=split,
                extraction_grade=rated.get("extraction_grade"),
                surrogate_grade=rated.get("surrogate", {}).get("grade"),
                grade=ratings.overall_grade(question),
            )
            for image_id, value in question.question_img_localization_quality.items():
                shown = {"image_id": image_id, "frontal": frontal.get(image_id, False)}
                self._add("question_image", own | shown, localization_quality=value)
            for answer in question.all_answers():
                part = {**own, "answer_id": answer.answer_id}
                self._add("answer", part, answer)
                for image_id, place in answer.localization.items():
                    shown = {"image_id": image_id, "frontal": frontal.get(image_id, False)}
                    self._add("answer_image", part | shown, place)

    def _add(self, level: str, ids: Mapping[str, Any], of: Any = None, **values: Any) -> None:
        """Adds a row: the cells given, and for other columns the attributes of this name."""
        given = {**ids, **values}
        self._tables[level].add(
            {n: given[n] if n in given else getattr(of, n) for n in COLUMNS[level]}
        )


class _Table:
    """One level's two files."""

    def __init__(self, folder: Path, level: str) -> None:
        self._stem = folder / f"{level}_metadata"
        self._columns = COLUMNS[level]
        self._schema = pa.schema([(name, _type(name)) for name in self._columns])
        self._rows: list[Mapping[str, Any]] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "_Table":
        raw = self._open.enter_context(to_path(f"{self._stem}.csv.gz").open("wb"))
        packed = self._open.enter_context(
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=_NO_TIME, compresslevel=6)
        )
        text = self._open.enter_context(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
        self._csv = csv.DictWriter(text, self._columns, lineterminator="\n")
        self._csv.writeheader()
        table = self._open.enter_context(to_path(f"{self._stem}.parquet").open("wb"))
        self._parquet = self._open.enter_context(pq.ParquetWriter(table, self._schema))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._flush()
        self._open.__exit__(*exception)

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._csv.writerows(self._rows)
            self._parquet.write_table(pa.Table.from_pylist(list(self._rows), self._schema))
            self._rows.clear()


def _type(column: str) -> pa.DataType:
    return pa.int64() if column in _WHOLE else pa.bool_() if column in _FLAGS else pa.string()


def read_table(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a metadata table, .csv.gz or .parquet, a part of it in memory at a time.

    In both, numbers are int, flags bool, and what is missing None.

    Args:
        columns: those wanted; all where not given.

    Raises:
        UserError: the file cannot be read or lacks a column.
    """
    try:
        rows = _read_parquet(path, columns) if path.suffix == ".parquet" else _read_csv(path)
        for row in rows:
            for name, value in row.items():
                _check_plain(name, value)
            yield {name: row[name] for name in columns} if columns else row
    except KeyError as error:
        raise UserError(f"{path}: has no column {error.args[0]!r}") from None
    # ValueError: a cell that is no number, or text that is not UTF-8; OverflowError: infinity.
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot read the table: {first_line(error)}") from None


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    with open_parquet(path) as file:
        for name in columns or ():
            if name not in file.schema_arrow.names:
                raise KeyError(name)
        for batch in read_batches(file, _BATCH, list(columns) if columns else None):
            yield from batch.to_pylist()


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    for row in read_csv_table(path, ()):
        if row.fault:
            raise ValueError(f"{row.where}: {row.fault.found}")
        yield {name: _value(name, text) for name, text in row.cells.items()}


def _value(column: str, text: str) -> Any:
    if not text:
        return None
    if column in _WHOLE:
        return int(float(text))
    return text in ("True", "true", "1") if column in _FLAGS else text


def _check_plain(column: str, value: Any) -> None:
    """Refuses what no table of the release has in a column."""
    expected = (int, float) if column in _WHOLE else (str, int, float)
    if value is not None and not isinstance(value, expected):
        raise ValueError(f"column {column} holds {type(value).__name__}; expected {expected}")


def quality_mappings() -> Iterator[tuple[str, str, str]]:
    """(criterion, value, best grade that it allows) of quality_mappings.csv.

    The release's file also has a number for each; those are not published.
    """
    for table in (ratings.SCENE_GRAPH_CRITERIA, ratings.ANSWER_CRITERIA, ratings.QUESTION_CRITERIA):
        for criterion, values in table.items():
            for value in values:
                yield criterion, value, ratings.rating(criterion, value)


def write_quality_mappings(path: Path) -> None:
    """Writes quality_mappings.csv."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("criterion", "value", "grade"))
        writer.writerows(quality_mappings())
