"""Common steps of every data set's build, and the folder that a build writes.

records/<split>.jsonl     questions with answers
questions/<split>.jsonl   the same without anything that tells the answer
quality.json              what was rejected, by reason, and how yes and no were balanced
statistics.json           counts beside published figures
manifest.json             what it was made from, and hashes; written last
"""

import abc
import collections
import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import cxrjax
from cxrjax.errors import UserError
from cxrjax.files import file_sha256, hash_lines, write_json, writing
from cxrjax.paper import what_is_made
from cxrjax.paths import in_path, on_hub, out_path
from cxrjax.paths.hub import origin
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord, format_record, strip_answers
from cxrjax.records_io import gate
from cxrjax.records_io.quality import BY_RULE, QualityLog
from cxrjax.records_io.statistics import Published, RecordStatistics, compare


@dataclasses.dataclass(frozen=True)
class BuildOptions:
    """Flags of every data set.

    Attributes:
        out: folder to write to.
        seed: decides wordings, splits and phantoms.
        processes: workers.
        strict: end with code 2 if anything was rejected.
    """

    out: Path
    seed: int = dataclasses.field(default=0, kw_only=True)
    processes: int = dataclasses.field(default=1, kw_only=True)
    strict: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UserError(f"--seed={self.seed}: expected 0 or more")
        if self.processes < 1:
            raise UserError(f"--processes={self.processes}: expected at least 1")
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        paths = [(name, path) for name, path in named.items() if isinstance(path, Path)]
        for name, path in sorted(paths, key=lambda one: on_hub(one[1])):  # what is fetched, last
            checked = out_path(path) if name == "out" else in_path(path)
            object.__setattr__(self, name, checked)


@dataclasses.dataclass(frozen=True)
class _Source:
    source: Path


@dataclasses.dataclass(frozen=True)
class SourceOptions(BuildOptions, _Source):
    """Flags of a data set that is read from somewhere; `source` comes before `out`.

    Attributes:
        source: file or folder to read.
    """


class Polarities:
    """Questions by split, class and whether the answer says that it is there."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, collections.Counter[str]]] = {}

    def add(self, split: str, record: QARecord) -> None:
        said = {answer.polarity for answer in record.answers if answer.answer_type == "main"}
        polarity = next(iter(said)) if len(said) == 1 else "unk"
        if polarity == "unk":
            return
        names = [record.finding] if record.finding else sorted(_labels(record))
        of_split = self._counts.setdefault(split, {})
        for name in names:
            of_split.setdefault(name, collections.Counter())[_POLARITIES[polarity]] += 1

    def merge(self, content: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
        """Adds what `to_json` gave of another part of the same build."""
        for split, classes in content.items():
            of_split = self._counts.setdefault(split, {})
            for name, counted in classes.items():
                of_split.setdefault(name, collections.Counter()).update(counted)

    def to_json(self) -> dict[str, dict[str, dict[str, int]]]:
        return {
            split: {name: {kind: of[kind] for kind in _POLARITIES.values()} for name, of in named}
            for split, counts in self._counts.items()
            for named in [sorted(counts.items())]
        }


_POLARITIES = {"pos": "yes", "neg": "no"}


def _labels(record: QARecord) -> set[str]:
    return {label for answer in record.answers for label in answer.labels}


Chosen = TypeVar("Chosen", bound=BuildOptions)


class Builder(abc.ABC, Generic[Chosen]):
    """Makes the folder of a data set, which gives what is its own: at least `read`.

    Attributes:
        dataset: what the manifest calls it.
        options_class: its flags.
        leaves: what lies in the folder at the end, for people.
        unheeded: flags that decide nothing here, and are refused.
        other_words: other name of a flag -> the flag.
        quality: becomes quality.json.
        counts: of all records written so far.
        splits: split -> its entry of the manifest, of those that are written.
        published: name -> the figure that a count is compared with.
    """

    dataset: ClassVar[str]
    options_class: ClassVar[type[BuildOptions]]
    leaves: ClassVar[str] = "records/, questions/, statistics.json, quality.json, manifest.json"
    unheeded: ClassVar[tuple[str, ...]] = ()
    other_words: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Chosen) -> None:
        self.options = options
        self.quality = QualityLog()
        self.counts = RecordStatistics()
        self.splits: dict[str, dict[str, Any]] = {}
        self.published: Mapping[str, Published] = {}
        self._polarities = Polarities()

    @abc.abstractmethod
    def read(self) -> Mapping[str, Iterable[QARecord]]:
        """Split -> its records, which may be made while they are written.

        Raises:
            UserError: the source cannot be read, or nothing in it can be used.
        """

    def values(self) -> dict[str, float | None]:
        """Counts for statistics.json, once all records are written."""
        return self.counts.values()

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        """Writes what this data set alone leaves; `comparison` is that of statistics.json."""

    def balance_rule(self) -> str:
        """Describes for quality.json how questions answered no and yes are balanced."""
        return "none: questions are those of the source"

    def describe(self) -> dict[str, Any]:
        """Fields of the manifest between the data set's name and its splits."""
        return {"seed": self.options.seed}

    def tidy(self) -> None:
        """Removes what an interrupted build would have gone on from."""

    def report(self) -> Iterator[str]:
        """Lines to print when all is written."""
        return iter(())

    def estimate(self) -> str | None:
        """Returns a cost estimate if the flags request one instead of a build."""
        return None

    def build(self) -> str:
        """Makes the folder.

        Returns:
            A line that says where it is.

        Raises:
            UserError: as `read`, nothing was left to write, the folder cannot be written or holds
                another build, or something was rejected in spite of `strict`.
        """
        out = self.options.out
        records = self.read()
        self._refuse_repeats(
            record for of in records.values() if isinstance(of, Sequence) for record in of
        )
        self.prepare(records)
        with writing(out):
            for split, of_split in records.items():
                self.splits[split] = self.write_split(split, self.admitted(split, of_split))
            if self.splits and not any(entry["questions"] for entry in self.splits.values()):
                raise self.nothing_left()
            comparison = compare(self.values(), self.published, what_is_made([self.dataset]))
            self.write_files(comparison)
        if self.splits and not self.quality.balance:
            self.quality.balance = {"rule": self.balance_rule(), **self._polarities.to_json()}
        manifest = {"dataset": self.dataset, **self.describe()}
        if address := origin(getattr(self.options, "source", None) or out):
            manifest["hub"] = address
        if self.splits:
            manifest["splits"] = self.splits
        finish_build(out, self.quality, comparison, manifest)
        self.tidy()
        for line in self.report():
            print(line)
        if self.options.strict:
            self._refuse_defects()
        return f"{out}: {self.leaves}"

    def _refuse_repeats(self, records: Iterable[QARecord]) -> None:
        """Refuses questions of one id before anything is written.

        Raises:
            UserError: an id occurs twice.
        """
        seen: set[str] = set()
        for record in records:
            if record.question_id in seen:
                raise UserError(
                    f"{getattr(self.options, 'source', self.options.out)}: two questions have the "
                    f"id {record.question_id!r}; give each its own"
                )
            seen.add(record.question_id)

    def prepare(self, splits: Collection[str]) -> None:
        """Makes the folder, which is unfinished from here on; may be called twice.

        Raises:
            UserError: as `prepare_folder`.
        """
        prepare_folder(self.options.out, splits)

    def write_split(self, split: str, records: Iterable[QARecord]) -> dict[str, Any]:
        """Writes a split's files; returns its entry of the manifest."""
        return write_split(self.options.out, split, self.counted(split, records), self.counts)

    def admitted(self, split: str, records: Iterable[QARecord]) -> Iterable[QARecord]:
        """Returns the records that pass the gate; the others are rejected in `quality`."""
        passed = gate.admit(records, self.quality, f"records/{split}.jsonl")
        return list(passed) if isinstance(records, Sequence) else passed

    def counted(self, split: str, records: Iterable[QARecord]) -> Iterator[QARecord]:
        """Yields the records and counts them by class and polarity for quality.json."""
        if isinstance(records, Sequence):  # what is made only now tells how far it is by itself
            records = progress_bar(records, desc=f"writing {split}", unit="question")
        for record in records:
            self._polarities.add(split, record)
            yield record

    def nothing_left(self, what: str = "question", remedy: str = "") -> UserError:
        """Returns the error for a build without usable records: counts and the first rejection."""
        counts = {reason: n for reason, n in self.quality.counts().items() if n}
        first = [f"; the first: {e.where}: {e.reason}: {e.found}" for e in self.quality.entries[:1]]
        where = getattr(self.options, "source", self.options.out)
        return UserError(
            f"{where}: no {what} left; rejected: {counts or 'none'}{''.join(first)}{remedy}"
        )

    def _refuse_defects(self) -> None:
        defects = {r: n for r, n in self.quality.counts().items() if n and r not in BY_RULE}
        if defects:
            raise UserError(
                f"{self.options.out / 'quality.json'}: found with --strict: {defects}; "
                "expected no rejections; fix the source, or build without --strict"
            )


def describe_file(path: Path) -> dict[str, str]:
    """A file's entry of the manifest: its name and hash.

    Raises:
        UserError: it cannot be read.
    """
    return {"path": path.name, "sha256": file_sha256(path)}


def prepare_folder(out: Path, splits: Collection[str]) -> None:
    """Makes the folder, and takes away the manifest of an earlier build: this one is unfinished.

    Raises:
        UserError: it cannot be written to, or holds another build's splits.
    """
    with writing(out):
        for name in ("records", "questions"):
            (out / name).mkdir(parents=True, exist_ok=True)
            for file in sorted((out / name).glob("*.jsonl")):
                if file.stem not in splits:
                    raise UserError(
                        f"{file}: left by another build, expected only {sorted(splits)}; choose "
                        "another --out or remove it"
                    )
        (out / "manifest.json").unlink(missing_ok=True)


def write_split(
    out: Path, split: str, records: Iterable[QARecord], statistics: RecordStatistics
) -> dict[str, Any]:
    """Writes a split's records and questions while they are made, and counts them.

    Returns:
        The split's entry of the manifest: counts and hashes.

    Raises:
        UserError: the folder cannot be written to.
    """
    hashes = {"records": hashlib.sha256(), "questions": hashlib.sha256()}
    images: set[str] = set()
    count = 0
    with (
        writing(out),
        (out / "records" / f"{split}.jsonl").open("wb") as with_answers,
        (out / "questions" / f"{split}.jsonl").open("wb") as without,
    ):
        for record in records:
            for name, file, one in (
                ("records", with_answers, record),
                ("questions", without, strip_answers(record)),
            ):
                line = format_record(one).encode() + b"\n"
                hashes[name].update(line)
                file.write(line)
            statistics.add(record)
            images.add(record.image_id)
            count += 1
    return {
        "images": len(images),
        "questions": count,
        "split_sha256": hash_lines(images),
        "records_sha256": hashes["records"].hexdigest(),
        "questions_sha256": hashes["questions"].hexdigest(),
    }


def finish_build(
    out: Path,
    quality: QualityLog,
    statistics: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    """Writes quality.json, statistics.json and at last manifest.json.

    Raises:
        UserError: the folder cannot be written to.
    """
    with writing(out):
        write_json(out / "quality.json", quality.to_json())
        write_json(out / "statistics.json", statistics)
        write_json(out / "manifest.json", {"cxrjax_version": cxrjax.__version__, **manifest})


def records_files(build: Path) -> list[Path]:
    """The records files of a build that hold any, a split each.

    Raises:
        UserError: there are none.
    """
    files = [file for file in sorted((build / "records").glob("*.jsonl")) if file.stat().st_size]
    if not files:
        raise UserError(f"{build}: no records in records/*.jsonl; expected the folder of a build")
    return files
