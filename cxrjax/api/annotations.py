"""Boxes of any annotation tool in, records out."""

from pathlib import Path
from typing import Any

from cxrjax.api.scoring import read_records
from cxrjax.lock import folder_lock
from cxrjax.paths import to_path
from cxrjax.records import QARecord


def import_boxes(
    source: str | Path, out: str | Path = "runs/own/data", **flags: Any
) -> dict[str, list[QARecord]]:
    """Imports annotations as `cxrjax import` does.

    Args:
        source: folder with images and annotations, one file of annotations, or a zip.
        out: folder to write, with the page that shows what was read.
        flags: of `cxrjax import`, such as readers="majority" or accept=True.

    Returns:
        Split -> its records.

    Raises:
        UserError: nothing can be used, or something is doubtful and `accept` is not set.
        TypeError: there is no such flag.
    """
    from cxrjax.apps.annotations.build import BoxesBuilder, BoxesOptions

    builder = BoxesBuilder(BoxesOptions(to_path(source), to_path(out), **flags))
    with folder_lock(builder.options.out):
        builder.build()
    return {split: read_records(builder.options.out, split) for split in builder.splits}
