"""A finished build's records files as ArrayRecord shards, for training on tens of millions.

What training on CXR-QBA's release reads: its JSON Lines would take minutes to scan at every start.
"""

import collections
import contextlib
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cxrjax.datasets import output
from cxrjax.datasets.record_shards import RecordShard, describe_shard, describe_split, shard_name
from cxrjax.errors import UserError
from cxrjax.json_file import read_json_object
from cxrjax.records import QARecord, read_records


def shard_build(source: Path, out: Path, shards: int) -> None:
    """Writes OUT/records/<split>-*.array_record, their tables, and a manifest.

    The studies of a split are dealt to its shards by a hash of the patient's (or else the image's)
    id; questions of one image that stand in one run of a study's questions come to stand together.

    Raises:
        UserError: the source is no finished build, or the folder cannot be written.
    """
    manifest = read_json_object(source / "manifest.json")
    files = [file for file in sorted((source / "records").glob("*.jsonl")) if file.stat().st_size]
    if shards < 1:
        raise UserError(f"--num_shards={shards}: expected at least 1")
    if not files:
        raise UserError(f"{source}: no records in records/*.jsonl; expected the folder of a build")
    splits: dict[str, Any] = {}
    with output.writing(out):
        (out / "manifest.json").unlink(missing_ok=True)
        for file in files:
            names = [shard_name(file.stem, number, shards) for number in range(shards)]
            with contextlib.ExitStack() as opened:
                writers = [opened.enter_context(RecordShard(out, name)) for name in names]
                for record in tqdm(by_image(read_records(file)), file.stem, unit=" questions"):
                    writers[_shard_of(record, shards)].add(record)
            splits[file.stem] = describe_split([describe_shard(out, writer) for writer in writers])
        output.write_json(
            out / "manifest.json", {**manifest, "format": "array_record", "splits": splits}
        )


def by_image(records: Iterable[QARecord]) -> Iterator[QARecord]:
    """The records, of each run with one study (or image) those of one image together."""
    for _, run in itertools.groupby(records, lambda r: r.study_id or r.image_id):
        images: dict[tuple[str, str], list[QARecord]] = collections.defaultdict(list)
        for record in run:
            images[record.image_id, record.image_path].append(record)
        for questions in images.values():
            yield from questions


def _shard_of(record: QARecord, shards: int) -> int:
    digest = hashlib.sha256((record.patient_id or record.image_id).encode()).digest()
    return int.from_bytes(digest[:8], "big") % shards
