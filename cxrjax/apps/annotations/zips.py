"""Zip archives and Parquet files of boxes, unpacked beside the records."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading, writing
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.records_io.row_files import UNPACKED, RowFolder, Shard, read_rows
from cxrjax.untrusted.archives import ZipArchive
from cxrjax.untrusted.foreign_files import MIB

_MOST_MEMBER = 512 * MIB
_MOST_RATIO, _FREE = 50, 1024 * MIB


def unpack(archives: list[Path], out: Path) -> tuple[Path, list[tuple[str, str]]]:
    """Unpacks archives into folders of their names.

    Returns:
        The folder, and (name, why) of members that were refused.

    Raises:
        UserError: one is damaged, or unpacks to more than 1 GiB and 50 times its size.
    """
    refused: list[tuple[str, str]] = []
    place = out / UNPACKED
    for path in archives:
        left = max(_FREE, _MOST_RATIO * path.stat().st_size)
        folder = place / path.stem if len(archives) > 1 else place
        with reading(path), writing(out), ZipArchive(path, _MOST_MEMBER) as archive:
            refused += [(f"{path.name}/{ascii(name)[1:-1]}", why) for name, why in archive.refused]
            for name in archive.names:
                parts = name.replace("\\", "/").split("/")
                if any(part.startswith((".", "__MACOSX")) for part in parts):
                    continue
                try:
                    content = archive.read(name)
                except ForeignError as error:
                    refused.append((f"{path.name}/{name}", str(error)))
                    continue
                left -= len(content)
                if left < 0:
                    raise UserError(
                        f"{path}: unpacks to more than {_MOST_RATIO} times its size; unpack it "
                        "yourself if you trust it"
                    )
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    return place, refused


def unpack_rows(shards: Sequence[Shard], folder: Path, quality: QualityLog) -> None:
    """Writes rows of Parquet as folders of images are: SPLIT/metadata.jsonl names each image.

    Raises:
        UserError: a file cannot be read, or the folder not be written.
    """
    with RowFolder(folder) as out:
        for number, row in enumerate(read_rows(shards, quality)):
            with quality.rejecting("", row.where):
                if not row.image:
                    raise Unusable("missing_image", "no image in this row; expected a column")
                name = PurePosixPath(row.image_name).name or f"{number:06d}"
                split = row.split or "train"
                name = out.image(f"{split}/{name}", row.image).partition("/")[2]
                out.add(f"{split}/metadata.jsonl", {"file_name": name, **row.cells})


def zips_of(source: Path) -> list[Path]:
    """The archives that a source is, or that lie in it."""
    if source.is_file():
        return [source] if source.suffix.lower() == ".zip" else []
    return sorted(path for path in source.glob("*.zip") if path.is_file())
