"""The folder that people point at: its images by whatever name, and the files beside them."""

import collections
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import open_foreign, read_text
from cxrjax.untrusted.json_text import parse_json
from cxrjax.untrusted.names import shown

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")
# Told as unreadable rather than as missing.
_OTHER_PICTURES = (".tif", ".tiff", ".bmp", ".webp", ".gif")
MASK_FOLDERS = ("masks", "mask", "segmentations", "segmentation")
_MOST_FILES = 2_000_000
_MAGIC = b"DICM"


class Folder:
    """The images and the other files of a folder, found once.

    Attributes:
        root: the folder.
        files: what is no image, in the order of names.
        images: files of images.

    Args:
        source: a folder, or one file of annotations in it, which is the only one then.
        images: where images lie, if not there.

    Raises:
        UserError: one of them is not there.
    """

    def __init__(self, source: Path, images: Path | None = None) -> None:
        if not source.exists() or (images and not images.is_dir()):
            missing = images if images and source.exists() else source
            raise UserError(f"{missing}: not there; expected a folder of images and annotations")
        self.root = source if source.is_dir() else source.parent
        found = list(_walk(self.root))
        self.files = [path for path in found if path.suffix.lower() not in IMAGE_ENDINGS]
        self.files += [path for path in found if path.suffix.lower() in (".dcm", ".dicom")]
        if source.is_file():
            self.files = [source]
        self.masks = [path for path in found if mask_folder(path, self.root)]
        pictures = (*IMAGE_ENDINGS, *_OTHER_PICTURES)
        everything = list(_walk(images)) if images else found
        self._image_root = images or self.root
        self.images = [
            path
            for path in everything
            if (path.suffix.lower() in pictures or (not path.suffix and _is_dicom(path)))
            and not mask_folder(path, self.root)
        ]
        self._by_name: dict[str, list[Path]] = collections.defaultdict(list)
        for path in self.images:
            for name in (path.name.lower(), path.stem.lower()):
                if path not in self._by_name[name]:
                    self._by_name[name].append(path)
        self._json: dict[Path, Any] = {}
        self._sizes: dict[Path, tuple[int, int]] = {}

    def image(self, name: str) -> Path:
        """The file of an image by its path, its name, or its name without ending.

        Raises:
            Unusable: there is none, or more than one.
        """
        plain = name.strip().replace("\\", "/")
        last = PurePosixPath(plain).name
        found: list[Path] = []
        for wanted in dict.fromkeys((last, unquote(last), PurePosixPath(last).stem)):
            found = self._by_name.get(wanted.lower(), [])
            if found:
                break
        if len(found) > 1:  # the same name in several folders: the longest common end decides
            ends = [_common_end(plain, path.relative_to(self._image_root)) for path in found]
            best = max(ends)
            if ends.count(best) > 1:
                told = f"{shown(name)} may be {found[0]} or {found[1]}; expected a name with folder"
                raise Unusable("duplicate_id", told)
            return found[ends.index(best)]
        if not found:
            told = f"no image named {shown(name)} in {self._image_root}; pass --images=FOLDER"
            raise Unusable("missing_image", told)
        return found[0]

    def has(self, name: str) -> bool:
        """Returns whether a name refers to exactly one image."""
        try:
            self.image(name)
        except Unusable:
            return False
        return True

    def size(self, name: str) -> tuple[int, int]:
        """(height, width) of an image's file, as displayed.

        Raises:
            Unusable: it is not there, or is no image.
        """
        from cxrjax.images.decode import image_size
        from cxrjax.images.files import ImageError

        path = self.image(name)
        if path not in self._sizes:
            try:
                self._sizes[path] = image_size(path)
            except ImageError as error:
                raise Unusable("unreadable_image", str(error)) from None
        return self._sizes[path]

    def size_or_none(self, name: str) -> tuple[int, int] | None:
        """Returns `size`, or None for an image that is missing or unreadable."""
        try:
            return self.size(name)
        except Unusable:
            return None

    def json(self, path: Path) -> Any:
        """Reads and caches a JSON file.

        Raises:
            UserError: it cannot be read.
        """
        if path not in self._json:
            with reading(path):
                self._json[path] = parse_json(read_text(path))
        return self._json[path]

    def where(self, path: Path) -> str:
        """A file as messages name it."""
        return (
            path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        )


def _walk(root: Path) -> Iterator[Path]:
    """Files below a folder, by their names; hidden ones are left out, links are followed once."""
    count = 0
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        if os.path.realpath(folder) in seen:
            folders[:] = []
            continue
        seen.add(os.path.realpath(folder))
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        for name in sorted(names):
            if not name.startswith("."):
                count += 1
                if count > _MOST_FILES:
                    raise UserError(
                        f"{root}: more than {_MOST_FILES:,} files; choose a folder in it"
                    )
                yield Path(folder) / name


def mask_folder(path: Path, root: Path) -> bool:
    """Returns whether a file is in a folder of masks."""
    if not path.is_relative_to(root):
        return False
    return any(part.lower() in MASK_FOLDERS for part in path.relative_to(root).parts[:-1])


def _is_dicom(path: Path) -> bool:
    try:
        with open_foreign(path) as file:
            return file.read(132)[128:] == _MAGIC
    except (OSError, ForeignError):
        return False


def _common_end(name: str, path: Path) -> int:
    """Counts the folders directly above a file that have the same names."""
    ours, theirs = path.parts[-2::-1], PurePosixPath(name).parts[-2::-1]
    count = 0
    for left, right in zip(ours, theirs, strict=False):
        if left.lower() != right.lower():
            break
        count += 1
    return count
