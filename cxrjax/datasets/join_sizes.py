"""Sizes of images joined to records that were built without them, by a table, without a pixel."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tqdm

from cxrjax.datasets import output
from cxrjax.datasets.quality import QualityLog, Unusable, check_box
from cxrjax.datasets.size_table import ImageSizes, read_size_table, size_of
from cxrjax.datasets.statistics import RecordStatistics, compare
from cxrjax.errors import UserError
from cxrjax.records import QARecord, read_records


def join_sizes(source: Path, table: Path, out: Path) -> None:
    """Writes a build's records again, each with the size of its image's original.

    Set aside are records whose image the table does not have, whose `image_hw` is another, or with
    a box that reaches beyond the image.

    Args:
        source: folder of a build.
        table: sizes, as `read_size_table` reads them.
        out: folder to write to, not the source's.

    Raises:
        UserError: something cannot be read or written, or no record is left.
    """
    files = {path.stem: path for path in sorted((source / "records").glob("*.jsonl"))}
    if not files:
        raise UserError(f"{source}: no records/*.jsonl there; expected the folder of a build")
    if out.resolve() == source.resolve():
        raise UserError(f"{out}: --out is the folder that is read; choose another")
    quality = QualityLog()
    sizes = read_size_table(table, quality)
    output.prepare(out, files)
    statistics = RecordStatistics()
    splits: dict[str, Any] = {}
    for split, path in files.items():
        records = tqdm.tqdm(_joined(path, sizes, source, out, quality), split, unit="question")
        splits[split] = output.write_split(out, split, records, statistics)
    if not any(split["questions"] for split in splits.values()):
        counts = {reason: n for reason, n in quality.counts().items() if n}
        raise UserError(f"{source}: no record left to write; set aside: {counts}")
    pieces = {f"records/{name}": path for name, path in files.items()} | {"sizes": table}
    output.finish(
        out,
        quality,
        compare(statistics.values(), {}),
        {
            "dataset": "sizes",
            "source": {
                name: {"path": path.name, "sha256": output.hash_file(path)}
                for name, path in pieces.items()
            },
            "splits": splits,
        },
    )


def _joined(
    path: Path, sizes: ImageSizes, source: Path, out: Path, quality: QualityLog
) -> Iterator[QARecord]:
    for record in read_records(path):
        quality.examined["questions"] += 1
        try:
            size = size_of(sizes, record.image_id)
            if record.image_hw not in (None, size):
                found = f"image_hw is {list(record.image_hw or ())}, the table has {list(size)}"
                raise Unusable("size_mismatch", found)
            for x_min, y_min, x_max, y_max in record.boxes:
                check_box((x_min, y_min, x_max, y_max), size)
        except Unusable as verdict:
            quality.set_aside(verdict.reason, record.question_id, path.name, verdict.found)
            continue
        image_path = os.path.relpath(source / record.image_path, out)
        yield record.model_copy(update={"image_hw": size, "image_path": image_path})
