"""MS-CXR's file to a folder of records: the file's split where it has one, else 85 % and 15 % of
the patients."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.files import file_sha256
from cxrjax.papers.ms_cxr.native import FINDINGS, find_file, read_native
from cxrjax.records import QARecord
from cxrjax.records_io.builder import finish_build, prepare_folder, write_split
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.record_problems import group_of
from cxrjax.records_io.split import validation_groups
from cxrjax.records_io.statistics import Published, RecordStatistics, compare

_PAGE = "PhysioNet's page of MS-CXR: image-sentence pairs"
PAPER = {
    "questions": Published(1162, _PAGE),
    "classes": Published(8, "PhysioNet's page of MS-CXR"),
    **{
        f"finding_questions/{name}": Published(pairs, f"{_PAGE} of this finding")
        for name, pairs in zip(FINDINGS, (61, 333, 117, 46, 82, 96, 182, 245), strict=True)
    },
}


def build_ms_cxr(source: Path, out: Path, seed: int = 0) -> None:
    """Writes records, questions, statistics and everything set aside.

    Args:
        source: the CSV, the JSON, or a folder with one of them.

    Raises:
        UserError: the file cannot be read, no phrase of it can be used, all phrases are of one
            patient and without a split, or the folder cannot be written.
    """
    file, quality = find_file(source), QualityLog()
    splits = _divide(list(read_native(file, quality)), file, seed, quality)
    prepare_folder(out, splits)
    statistics = RecordStatistics()
    entries = {
        split: write_split(out, split, records, statistics) for split, records in splits.items()
    }
    manifest = {
        "dataset": "ms_cxr",
        "seed": seed,
        "source": {"path": file.name, "sha256": file_sha256(file)},
        "splits": entries,
    }
    finish_build(out, quality, compare(statistics.values(), PAPER), manifest)


def _divide(
    records: Sequence[QARecord], file: Path, seed: int, quality: QualityLog
) -> dict[str, list[QARecord]]:
    if not records:
        why = [f"; the first: {e.where}: {e.reason}: {e.found}" for e in quality.entries[:1]]
        raise UserError(f"{file}: no usable phrase{''.join(why)}; expected MS-CXR's rows")
    given = any(record.split for record in records)
    drawn = set() if given else validation_groups({group_of(r) for r in records}, seed)
    if not given and not drawn:
        raise UserError(
            f"{file}: all phrases are of one patient, who cannot be divided, and there is no "
            "split; add a column split (train, val, test)"
        )
    first_split: dict[str, str] = {}
    splits: dict[str, list[QARecord]] = defaultdict(list)
    for record in records:
        group = group_of(record)
        split = record.split if given else "validation" if group in drawn else "train"
        if not split or split != first_split.setdefault(group, split):
            where = f"{file.name}: question {record.question_id}"
            found = f"split is {split!r}; expected one for all rows of {group}, as others have it"
            quality.set_aside("split_conflict", record.image_id, where, found)
        else:
            splits[split].append(record.model_copy(update={"split": split}))
    return dict(sorted(splits.items()))
