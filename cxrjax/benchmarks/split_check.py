"""Whether references are of the split that they should be, by the hash of its image ids."""

import json
from pathlib import Path

from cxrjax.datasets.output import hash_lines
from cxrjax.errors import UserError
from cxrjax.json_file import read_json_object


def split_hashes(records: Path) -> dict[str, str]:
    """Split -> hash of its image ids, as `build` writes it to manifest.json.

    Raises:
        UserError: the file cannot be read, or a line has no split and image_id.
    """
    images: dict[str, set[str]] = {}
    try:
        with open(records, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    split, image_id = _read(line, f"{records}:{number}")
                    images.setdefault(split, set()).add(image_id)
    except OSError as error:
        raise UserError(f"{records}: cannot read records: {error.strerror}") from None
    return {split: hash_lines(ids) for split, ids in sorted(images.items())}


def check_split(
    references: Path, split_sha256: str | None = None, manifest: Path | None = None
) -> None:
    """Refuses references of another split.

    Args:
        split_sha256: the hash that the one split of the references must have.
        manifest: manifest.json of a build, which has the hash of each of its splits.

    Raises:
        UserError: another hash, a split that the manifest does not have, or unusable files.
    """
    if split_sha256 is None and manifest is None:
        return
    found = split_hashes(references)
    if split_sha256 is not None:
        if len(found) != 1:
            raise UserError(
                f"{references}: holds the splits {', '.join(found)}; --split_sha256 is of one"
            )
        ((split, sha256),) = found.items()
        _compare(references, split, sha256, split_sha256, "--split_sha256")
    if manifest is not None:
        splits = read_json_object(manifest).get("splits", {})
        for split, sha256 in found.items():
            known = splits.get(split, {}).get("split_sha256")
            if known is None:
                raise UserError(
                    f"{manifest}: knows no split {split!r}, which {references} is of; expected one "
                    f"of {', '.join(splits) or 'none'}"
                )
            _compare(references, split, sha256, known, str(manifest))


def _compare(references: Path, split: str, found: str, expected: str, source: str) -> None:
    if found != expected:
        raise UserError(
            f"{references}: the images of {split!r} have the hash {found}, expected {expected} "
            f"({source}): score against the split that the predictions were made for"
        )


def _read(line: bytes, where: str) -> tuple[str, str]:
    try:
        fields = json.loads(line)
        split, image_id = fields["split"], fields["image_id"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise UserError(f"{where}: not a record with split and image_id") from None
    return str(split), str(image_id)
