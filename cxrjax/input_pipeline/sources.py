"""Random access to the questions of a records file, an image at a time."""

import copy
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32, UInt64

from cxrjax.errors import UserError
from cxrjax.images.files import AnyFile
from cxrjax.input_pipeline.record_index import RecordIndex, identity_hash, read_index
from cxrjax.input_pipeline.stored_images import StoredImage, StoredImages
from cxrjax.paths import inside, local_copy, to_path
from cxrjax.progress import waiting
from cxrjax.records import QARecord, parse_record


class ImageQuestions(NamedTuple):
    """One image and the questions that go with it into one sequence."""

    image_path: AnyFile  # where the image is
    indices: tuple[int, ...]  # positions of the records in the file, ascending
    records: tuple[QARecord, ...]  # the records, in the same order
    # Where the earlier image is that all of them compare with; None: with none.
    earlier_path: AnyFile | None = None


class Identities(NamedTuple):
    """`identity_hash` of what rows are about; 0 where that is not known."""

    # `question`, `image`, `patient`: of their ids, the data set's name included.
    question: UInt64[np.ndarray, " n"]
    image: UInt64[np.ndarray, " n"]
    file: UInt64[np.ndarray, " n"]  # of the path of the image's file
    patient: UInt64[np.ndarray, " n"]

    def shared_with(self, others: Sequence["Identities"]) -> dict[str, int]:
        """Counts the questions, images and patients that any of the others has too.

        An image is shared by its id or by its file.
        """

        def met(name: str) -> np.ndarray:
            own = getattr(self, name)
            return (own != 0) & np.isin(own, np.concatenate([getattr(o, name) for o in others]))

        hits = {name: met(name) for name in ("question", "image", "patient")}
        hits["image"] |= met("file")
        counts = {n: len(np.unique(getattr(self, n)[rows])) for n, rows in hits.items()}
        return {name: count for name, count in counts.items() if count}


@runtime_checkable
class QuestionSource(Protocol):
    """Questions grouped by image, as loaders and loops need them, wherever they are stored."""

    questions_per_image: int
    fingerprint: str

    @property
    def num_records(self) -> int:
        """All that are stored, also those that no element holds."""
        ...

    @property
    def num_questions(self) -> int:
        """Records that the elements hold."""
        ...

    @property
    def num_images(self) -> int:
        """Images that these records are about; one of many questions is several elements."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, element: int) -> ImageQuestions: ...

    def record(self, index: int) -> QARecord:
        """The record at this position of what is stored."""
        ...

    def records(self) -> Iterator[tuple[int, QARecord]]:
        """(position, record) of all, in the order of the elements."""
        ...

    def image_sizes(self) -> Int32[np.ndarray, "elements 2"]:
        """(height, width) of each element's image, zeros where its record does not tell."""
        ...


@runtime_checkable
class StoredQuestions(QuestionSource, Protocol):
    """Questions on a disk, of which a run wants more than their elements before it starts."""

    @property
    def findings(self) -> frozenset[str]:
        """Findings that any of what is stored asks about."""
        ...

    def identities(self) -> Identities:
        """Whom and what the elements are about."""
        ...

    def image_files(self) -> list[AnyFile]:
        """The images of the elements, each once."""
        ...

    def answer_lengths(self) -> Int[np.ndarray, " elements"] | None:
        """Letters of each element's longest answer; None where that takes reading all of them."""
        ...


class RecordSource:
    """Questions grouped by image, read from the file when they are asked for.

    An element is one image with at most `questions_per_image` questions; an image that has more
    makes several elements. Elements stand in the order in which their images first appear,
    questions in the order of the file. The file is read through once, to validate every record
    and to note where it starts; only such columns are kept. Can be pickled.

    Attributes:
        sha256: of the file.
        index: columns of all records, those left out included; None in a copy that was pickled.
        fingerprint: of the file and of which records make which element.

    Args:
        path: JSON Lines of records.
        image_root: folder that `image_path` is relative to; by default the one that holds the
            file's `records/` or `questions/` folder, else the file's own.
        questions_per_image: most questions in an element.
        exclude: positions of records to leave out (`usable_records.RecordCheck.indices`).
        images: read images from here instead of files.
        record_codec: find records' faults too, their answers in this box format.

    Raises:
        UserError: the file cannot be read, has a line that is not a record, or has none.
    """

    def __init__(
        self,
        path: str | Path,
        image_root: str | Path | None = None,
        questions_per_image: int = 8,
        exclude: Collection[int] = (),
        images: StoredImages | None = None,
        record_codec: str | None = None,
    ) -> None:
        if questions_per_image < 1:
            raise UserError(f"questions_per_image is {questions_per_image}, expected at least 1")
        self.path = to_path(path)
        self.image_root = (
            default_image_root(self.path) if image_root is None else to_path(image_root)
        )
        self.questions_per_image = questions_per_image
        self.exclude = frozenset(exclude)
        self.images = images
        self._instead: Callable[[QARecord], AnyFile] | None = None
        self._descriptor: int | None = None
        with waiting(f"reading {path}"):
            index = read_index(self.path, record_codec)
        self.index: RecordIndex | None = index
        self.sha256 = index.sha256
        self._starts, self._lengths, self._lines = index.starts, index.lengths, index.lines
        self._images, self._sizes = index.images, index.sizes
        self._group()

    def _group(self) -> None:
        """Makes the elements of what the index holds."""
        groups: dict[int, list[int]] = {}
        for index, image in enumerate(self._images.tolist()):
            if index not in self.exclude:
                groups.setdefault(image, []).append(index)
        self._elements = [
            tuple(group[start : start + self.questions_per_image])
            for group in groups.values()
            for start in range(0, len(group), self.questions_per_image)
        ]
        if not self._elements:
            raise UserError(
                f"{self.path}: no records to read"
                + (f" ({len(self.exclude)} were rejected)" if self.exclude else "")
            )
        self.num_images = len(groups)
        # Same file, same grouping, same exclusions: the same elements under the same numbers.
        elements = json.dumps([self.sha256, self._elements])
        self.fingerprint = hashlib.sha256(elements.encode()).hexdigest()

    def without(self, indices: Collection[int]) -> "RecordSource":
        """Returns a copy of the source that also leaves out these records."""
        return self.regrouped(self.questions_per_image, indices)

    def regrouped(self, questions_per_image: int, without: Collection[int] = ()) -> "RecordSource":
        """Returns a copy with `questions_per_image` changed that also leaves out these records."""
        source = copy.copy(self)
        source._descriptor = None  # each closes its own
        source.index = self.index
        source.questions_per_image = questions_per_image
        source.exclude = self.exclude | set(without)
        source._group()
        return source

    def showing(self, instead: Callable[[QARecord], AnyFile], name: str) -> "RecordSource":
        """Returns a copy whose elements show other images than the records' own.

        Args:
            instead: gives the image in the place of a record's.
            name: of these images, for the fingerprint.
        """
        source = copy.copy(self)
        source.index = self.index
        source._instead = instead
        source.fingerprint = f"{self.fingerprint}/{name}"
        return source

    def __len__(self) -> int:
        return len(self._elements)

    def __getitem__(self, element: int) -> ImageQuestions:
        indices = self._elements[element]
        records = tuple(self.record(index) for index in indices)
        image, earlier = self.image_of(records[0]), self.earlier_of(records[0])
        if self._instead is None:
            return ImageQuestions(image, indices, records, earlier)
        other = self._instead(records[0])
        return ImageQuestions(other, indices, records, None if earlier is None else other)

    def file_of(self, image_id: str, image_path: str) -> Path | StoredImage:
        """The place of an image; of a file, whether it is there or not."""
        if self.images is None:
            return inside(self.image_root, image_path)
        return self.images[image_id, image_path]

    def image_of(self, record: QARecord) -> Path | StoredImage:
        """The place of the record's image."""
        return self.file_of(record.image_id, record.image_path)

    def earlier_of(self, record: QARecord) -> Path | StoredImage | None:
        """The place of the earlier image that the record compares with; None: with none."""
        if record.earlier is None:
            return None
        return self.file_of(record.earlier.image_id, record.earlier.image_path)

    def columns(self) -> RecordIndex:
        """Columns of all records, those left out included.

        Raises:
            ValueError: this is a copy that was pickled.
        """
        if self.index is None:
            raise ValueError(f"{self.path}: a pickled source has no columns; open the file again")
        return self.index

    @property
    def findings(self) -> frozenset[str]:
        """Findings that any of the records asks about, those left out included."""
        return frozenset(self.columns().finding_names)

    def identities(self) -> Identities:
        """Whom and what the records that are not left out are about, for `shared_with`."""
        index, rows = self.columns(), np.fromiter(self.positions(), np.int64)
        files = [self.file_of(*shown[:2]) for shown in index.shown]
        hashes = [identity_hash(str(f)) if isinstance(f, Path) else 0 for f in files]
        return Identities(
            question=index.questions[rows],
            image=index.image_ids[rows],
            file=np.array(hashes, np.uint64)[index.images[rows]],
            patient=index.patients[rows],
        )

    def answer_lengths(self) -> Int[np.ndarray, " elements"]:
        """Letters of each element's longest answer, its reason included."""
        letters = self.columns().answers
        longest = (letters[list(indices)].max() for indices in self._elements)
        return np.fromiter(longest, np.int64, len(self._elements))

    def image_files(self) -> list[AnyFile]:
        """The images of the elements, each once."""
        shown = self.columns().shown
        images = dict.fromkeys(self._images[[indices[0] for indices in self._elements]].tolist())
        return list(dict.fromkeys(self.file_of(*shown[image][:2]) for image in images))

    @property
    def num_records(self) -> int:
        """Records in the file, those left out included."""
        return len(self._starts)

    @property
    def num_questions(self) -> int:
        """Records that the elements hold."""
        return sum(len(indices) for indices in self._elements)

    def record(self, index: int) -> QARecord:
        """The record at this position of the file, blank lines not counted."""
        if self._descriptor is None:
            self._descriptor = os.open(local_copy(self.path), os.O_RDONLY)
        # pread moves no file position, so threads may share the descriptor.
        line = os.pread(self._descriptor, int(self._lengths[index]), int(self._starts[index]))
        return parse_record(line, self.where(index))

    def where(self, index: int) -> str:
        """File and line of the record at this position, for messages."""
        return f"{self.path}:{self._lines[index]}"

    def positions(self) -> Iterator[int]:
        """Positions of all records that are not left out, in the order of the elements."""
        return itertools.chain.from_iterable(self._elements)

    def records(self) -> Iterator[tuple[int, QARecord]]:
        """(position, record) of all that are not left out, in the order of the elements."""
        for index in self.positions():
            yield index, self.record(index)

    def image_sizes(self) -> Int32[np.ndarray, "elements 2"]:
        """(height, width) of each element's image, zeros where its record does not tell."""
        return self._sizes[[indices[0] for indices in self._elements]]

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_descriptor": None, "index": None}

    def __del__(self) -> None:
        descriptor = self.__dict__.get("_descriptor")
        if descriptor is not None and os is not None:  # None where the interpreter ends
            os.close(descriptor)


def open_tfds(
    directory: Path, split: str, questions_per_image: int = 8, record_codec: str | None = None
) -> RecordSource:
    """Opens a TFDS data set; its elements equal those of the records file that it was written from.

    Args:
        directory: of the data set's version (`cxrjax.records_io.tfds_builders`).

    Raises:
        UserError: there is no such data set or split.
    """
    images = StoredImages(directory, split)
    return RecordSource(
        images.records_file, directory, questions_per_image, (), images, record_codec
    )


def default_image_root(path: Path) -> Path:
    """The folder a records file's image paths are relative to (`data/README.md`)."""
    folder = path.parent
    return folder.parent if folder.name in ("records", "questions") else folder
