"""People's own images and records: validated, sizes filled in, divided by patient.

FOLDER/records.jsonl     records as data/README.md documents them; image_hw and split may miss
FOLDER/...               the images, where image_path says (relative to FOLDER, or absolute)
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.files import file_sha256
from cxrjax.records import FIELDS_HELP, QARecord
from cxrjax.records_io.builder import finish_build, prepare_folder, write_split
from cxrjax.records_io.image_check import check_images
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.record_problems import (
    Problem,
    RecordLine,
    group_of,
    original_size,
    read_lines,
    record_problems,
    records_file,
    split_problems,
)
from cxrjax.records_io.split import validation_groups
from cxrjax.records_io.statistics import RecordStatistics, compare


@dataclasses.dataclass(frozen=True)
class OwnBuild:
    """What to build, from what.

    Attributes:
        source: a folder with records.jsonl, or such a file.
        closed_classes: data set -> the only labels that its records may have.
    """

    source: Path
    out: Path
    seed: int = 0
    processes: int = 1
    closed_classes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The records file."""
        return records_file(self.source)


def build_own_records(build: OwnBuild) -> None:
    """Writes the usable records by split, with statistics and everything set aside.

    Raises:
        UserError: the file cannot be read, no record in it can be used, some records have a split
            and others not, a patient is in two splits, or the folder cannot be written.
    """
    quality = QualityLog()
    problems: list[Problem] = []
    lines = list(read_lines(build.file, build.file.parent, problems))
    # The lines that were read, and of the others each once.
    quality.examined["questions"] = len(lines) + len({problem.where for problem in problems})
    checks = check_images((line.image for line in lines), quality, build.out, build.processes)
    kept = []
    for line in lines:
        found = next(record_problems(line, checks[line.image], build.closed_classes), None)
        if found:
            problems.append(found)
            continue
        image_hw = original_size(line.record, checks[line.image].size())
        image_path = os.path.relpath(line.image, build.out)
        update = {"image_hw": image_hw, "image_path": image_path}
        kept.append(dataclasses.replace(line, record=line.record.model_copy(update=update)))
    _set_aside(problems, quality)
    if not kept:
        first = quality.entries[0] if quality.entries else None
        reason = f"; the first: {first.where}: {first.reason}: {first.found}" if first else ""
        raise UserError(f"{build.file}: no usable record{reason}")
    _write(build, _by_split(kept, build.seed), quality)


def _set_aside(problems: Iterable[Problem], quality: QualityLog) -> None:
    """Each record under the first of its problems."""
    seen = set()
    for problem in problems:
        if problem.where in seen:
            continue
        seen.add(problem.where)
        found = problem.found
        if problem.reason == "invalid_record":
            found = f"{problem.field}: {found} ({FIELDS_HELP})"
        quality.set_aside(problem.reason, problem.item, problem.where, found)


def _write(build: OwnBuild, splits: dict[str, list[QARecord]], quality: QualityLog) -> None:
    prepare_folder(build.out, splits)
    statistics = RecordStatistics()
    entries = {
        split: write_split(build.out, split, records, statistics)
        for split, records in splits.items()
    }
    finish_build(
        build.out,
        quality,
        compare(statistics.values(), {}),
        {
            "dataset": "records",
            "seed": build.seed,
            "source": {"path": build.file.name, "sha256": file_sha256(build.file)},
            "splits": entries,
        },
    )


def _by_split(lines: Sequence[RecordLine], seed: int) -> dict[str, list[QARecord]]:
    """Records by split: as they say, or 85 % and 15 % of the patients where none says."""
    for line, found in split_problems(lines):
        raise UserError(f"{line.where}: {found}")
    if lines[0].record.split:
        splits: dict[str, list[QARecord]] = collections.defaultdict(list)
        for line in lines:
            splits[line.record.split].append(line.record)
        return dict(sorted(splits.items()))
    validation = validation_groups({group_of(line.record) for line in lines}, seed)
    if not validation:
        raise UserError(
            f"{lines[0].where}: all records are of one patient ({group_of(lines[0].record)}), "
            "which cannot be divided; give every record a split"
        )
    divided: dict[str, list[QARecord]] = {"train": [], "validation": []}
    for line in lines:
        split = "validation" if group_of(line.record) in validation else "train"
        divided[split].append(line.record.model_copy(update={"split": split}))
    return divided
