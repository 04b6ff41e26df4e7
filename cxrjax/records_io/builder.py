"""The folder that a build leaves behind, the same for every dataset.

records/<split>.jsonl     questions with answers
questions/<split>.jsonl   the same without anything that tells the answer
quality.json              what was set aside, by reason
statistics.json           counts beside published figures
manifest.json             what it was made from, and hashes; written last
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import cxrjax
from cxrjax.errors import UserError
from cxrjax.files import hash_lines, write_json, writing
from cxrjax.records import QARecord, format_record, strip_answers
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.statistics import RecordStatistics


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
        open(out / "records" / f"{split}.jsonl", "wb") as with_answers,
        open(out / "questions" / f"{split}.jsonl", "wb") as without,
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
