"""The folder that people point at: its images by whatever name, and the files beside them."""

import collections
import contextlib
import functools
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import Element

from cxrjax.apps.annotations.annotation import WORDS, plain
from cxrjax.errors import ForeignError, UserError
from cxrjax.paths import to_path, walk
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.dicom_reports import head
from cxrjax.untrusted.foreign_files import open_foreign, read_bytes, read_text
from cxrjax.untrusted.json_text import parse_json
from cxrjax.untrusted.names import plain_name, shown
from cxrjax.untrusted.xml_text import decode_xml, parse_xml

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")
# Told as unreadable rather than as missing.
_OTHER_PICTURES = (".tif", ".tiff", ".bmp", ".webp", ".gif")
# Parts of the names of folders that hold masks.
MASK_WORDS = ("mask", "segmentation")
_SPLITS = {word: split for split, words in WORDS["splits"].items() for word in words}
# Of a name: a split's word with at most a year behind it, such as "instances_train2017".
_SPLIT_WORD = re.compile(rf"(?:^|[^a-z])({'|'.join(_SPLITS)})(?:20\d\d)?(?=$|[^a-z])")
_FLAG = re.compile(WORDS["flags"]["names"] % "|".join(_SPLITS))
_FLAGS: dict[str, bool] = WORDS["flags"]["values"]
_MOST_FILES = 2_000_000
_MAGIC = b"DICM"
_UID = re.compile(r"[0-9]+(?:\.[0-9]+){3,}")


class Folder:
    """The images and the other files of a folder, found once.

    Attributes:
        root: the folder.
        files: those that are not images, in the order of names.
        images: files of images.
        masks: images in folders of masks.
        refused: (name, why) of files that are not used.
        cache: what importers keep of a source.

    Args:
        source: a folder, or one file of annotations in it, which is the only one then.
        images: where images lie, if not there.
        both: images lie in the source too.

    Raises:
        UserError: one of them is not there.
    """

    def __init__(self, source: Path, images: Path | None = None, both: bool = False) -> None:
        if not source.exists() or (images and not images.is_dir()):
            missing = images if images and source.exists() else source
            raise UserError(
                f"{printable(missing)}: not there; expected a folder of images and annotations"
            )
        if not str(source).isprintable():
            raise UserError(f"{printable(source)}: not printable UTF-8; rename the folder")
        self.root = source if source.is_dir() else source.parent
        self.refused: list[tuple[str, str]] = []
        found = list(self._walk(self.root))
        self.files = [path for path in found if path.suffix.lower() not in IMAGE_ENDINGS]
        self.files += [path for path in found if path.suffix.lower() in (".dcm", ".dicom")]
        if source.is_file():
            self.files = [source]
        pictures = (*IMAGE_ENDINGS, *_OTHER_PICTURES)
        everything = [*self._walk(images), *(found if both else ())] if images else found
        self._image_root = images or self.root
        self.images = [
            path
            for path in everything
            if path.suffix.lower() in pictures or (not path.suffix and _is_dicom(path))
        ]
        of_masks = _mask_folders({path.parent for path in found}, self.root)
        self.masks = [path for path in self.images if of_masks & {*path.parents}]
        self.masks += [path for path in found if images and of_masks & {*path.parents}]
        self.leave_out(self.masks)
        self._strip: tuple[str, str, str, str] = ("", "", "", "")
        self._sizes: dict[Path, tuple[int, int]] = {}
        self.cache: dict[Any, Any] = {}

    def leave_out(self, masks: Iterable[Path]) -> None:
        """Files that turn out to be masks are no images."""
        masks = set(masks)
        self.images = [path for path in self.images if path not in masks]
        self._by_name: dict[str, list[Path]] = collections.defaultdict(list)
        self._by_number: dict[str, list[Path]] = collections.defaultdict(list)
        self._known: dict[str, Path] = {}
        for path in self.images:
            for name in {_key(path.name), _key(path.stem)}:
                self._by_name[name].append(path)
            if path.stem.isdecimal() and path.stem.startswith("0"):
                self._by_number[path.stem.lstrip("0")].append(path)

    def _walk(self, root: Path) -> Iterator[Path]:
        """Files below a folder, by their names; hidden ones are left out, links that lead out too.

        Names that are not UTF-8 or hold a control character are refused.
        """
        count = 0
        inside = str(root.resolve())
        seen: set[str] = set()
        for folder, folders, names in walk(root, followlinks=True):
            place = str(to_path(folder).resolve())
            if place in seen:
                folders[:] = []
                continue
            seen.add(place)
            shown_names = [name for name in folders if not name.startswith((".", "__MACOSX"))]
            folders[:] = sorted(n for n in shown_names if self._usable(folder, n, inside))
            for name in sorted(names):
                if name.startswith(".") or not self._usable(folder, name, inside):
                    continue
                count += 1
                if count > _MOST_FILES:
                    raise UserError(
                        f"{root}: more than {_MOST_FILES:,} files; choose a folder in it"
                    )
                yield to_path(folder) / name

    def _usable(self, folder: str, name: str, inside: str) -> bool:
        path = to_path(folder) / name
        try:
            plain_name(name, 255)
        except ForeignError as error:
            self.refused.append((printable(path), str(error)))
            return False
        if path.is_symlink() and not f"{os.path.realpath(path)}/".startswith(f"{inside}/"):
            told = "a link that leads out of the folder; pass --images=FOLDER or copy the file"
            self.refused.append((printable(path), told))
            return False
        return True

    def image(self, name: str) -> Path:
        """The file of an image by its path, its name, or its name without ending.

        Raises:
            Unusable: there is none, or more than one.
        """
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> Path:
        plain = name.strip().replace("\\", "/")
        plain = _path_of_url(plain) if "://" in plain[:12] else plain
        last = PurePosixPath(plain).name
        stem = last if last.rpartition(".")[2].isdigit() else PurePosixPath(last).stem
        found: list[Path] = []
        for wanted in dict.fromkeys((last, unquote(last), stem)):
            found = self._by_name.get(_key(wanted), [])
            if found:
                break
        if not found:  # spreadsheets drop the zeros in front of a number
            found = self._by_number.get(stem, [])
        if not found and any(self._strip):
            found = self._by_name.get(self._stripped(_key(stem)), [])
        if not found and _UID.fullmatch(last):
            found = [path for path in [self.by_uid.get(last)] if path]
        if len(found) > 1:  # the same name in several folders: the longest common end decides
            ends = [_common_end(plain, self.inside(path)) for path in found]
            best = max(ends)
            if ends.count(best) > 1:
                told = f"{shown(name)} may be {found[0]} or {found[1]}; expected a name with folder"
                raise Unusable("duplicate_id", told)
            return found[ends.index(best)]
        if not found:
            told = f"no image named {shown(name)} in {self._image_root}; pass --images=FOLDER"
            raise Unusable("missing_image", told)
        return found[0]

    @functools.cached_property
    def by_uid(self) -> dict[str, Path]:
        """SOP Instance UID -> the DICOM file that has it."""
        found: dict[str, Path] = {}
        for path in self.images:
            with contextlib.suppress(OSError, ForeignError):  # PNG and JPEG have none
                found.setdefault(head(path, "SOPInstanceUID"), path)
        return found

    def inside(self, path: Path) -> Path:
        """The path of an image within its folder."""
        root = self._image_root if path.is_relative_to(self._image_root) else self.root
        return path.relative_to(root) if path.is_relative_to(root) else to_path(path.name)

    def has(self, name: str) -> bool:
        """Returns whether a name refers to exactly one image."""
        with contextlib.suppress(Unusable):
            return bool(self.image(name))
        return False

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
        with contextlib.suppress(Unusable):
            return self.size(name)
        return None

    def _stripped(self, stem: str) -> str:
        """The stem of the file of an image whose name and file differ in what is common to all."""
        before, after, file_before, file_after = self._strip
        return file_before + stem[len(before) : len(stem) - len(after)] + file_after

    def match_affixes(self, names: Iterable[str]) -> str:
        """Matches names to files that all differ from them in the same beginning or end.

        Returns:
            How, for people; "" where names already match or no common part explains it.
        """
        missing = [name for name in names if not self.has(name)]
        stems = [_key(PurePosixPath(name.replace("\\", "/")).stem) for name in missing]
        files = [_key(path.stem) for path in self.images]
        if len(stems) < 2 or not files or any(self.has(name) for name in names):
            return ""
        self._strip = (*_common_ends(stems), *_common_ends(files))
        if sum(self.has(name) for name in missing) > len(missing) // 2:
            before, after, file_before, file_after = self._strip
            told = f"names of images are {shown(f'{before}...{after}')}, their files "
            return f"{told}{shown(f'{file_before}...{file_after}')}: matched by what lies between"
        self._strip, self._known = ("", "", "", ""), {}
        return ""

    def json(self, path: Path) -> Any:
        """Reads and caches a JSON file; raises OSError or ForeignError."""
        if path not in self.cache:
            self.cache[path] = parse_json(read_text(path))
        return self.cache[path]

    def xml(self, path: Path) -> Element:
        """Reads the root of an XML file; raises OSError or ForeignError."""
        return parse_xml(decode_xml(read_bytes(path)))

    def where(self, path: Path) -> str:
        """A file as messages name it."""
        inside = path.is_relative_to(self.root)
        return path.relative_to(self.root).as_posix() if inside else printable(path)


def _mask_folders(folders: Iterable[Path], root: Path) -> set[Path]:
    """Folders whose name says that they hold masks, but for those that hold another of these."""
    every = {one for folder in folders for one in (folder, *folder.parents) if root in one.parents}
    named = {one for one in every if any(word in one.name.lower() for word in MASK_WORDS)}
    return named - {above for one in named for above in one.parents}


def split_of(text: str) -> str:
    """The split that a name states, such as "train2017" or "images/val/a.png"; "" if none."""
    found = _SPLIT_WORD.findall(re.sub("train[_-]val", "trainval", text.lower()[-1000:]))
    return str(_SPLITS[found[-1]]) if found else ""


def names_split(word: str) -> bool:
    """Returns whether a word is a split's name and nothing more."""
    return word.lower() in _SPLITS


def flagged_split(fields: Mapping[str, Any]) -> str:
    """The split that flags such as "is_test" state; where all are off, the one that none names.

    Raises:
        Unusable: two are on.
    """
    flags: dict[str, bool] = {}
    for name, value in fields.items():
        word = str(value).lower().removesuffix(".0")
        if word in _FLAGS and (flag := _FLAG.fullmatch(plain(name[:100]))):
            flags[_SPLITS[flag[1] or flag[2]]] = _FLAGS[word]
    on = sorted(split for split, is_on in flags.items() if is_on)
    if len(on) > 1:
        raise Unusable("split_conflict", f"flags of {' and '.join(on)}; expected one split")
    off = [split for split in ("train", "test", "validation") if flags and split not in flags]
    return [*on, *off, ""][0]


def printable(path: str | Path) -> str:
    """A path as messages show it: what is not UTF-8 or printable is escaped."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """Counts the items that two sequences begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _common_ends(stems: list[str]) -> tuple[str, str]:
    """Beginning and end that stems have in common, up to a sign that separates words."""
    first, last = min(stems), max(stems)
    before = first[: _alike(first, last)]
    first, last = (end(stem[::-1] for stem in stems) for end in (min, max))
    after = first[: _alike(first, last)][::-1]
    before = before[: max(before.rfind(sign) for sign in "_- .") + 1]
    places = [place for place, sign in enumerate(after) if sign in "_- ."]
    after = after[places[0] :] if places else ""
    return before, after if len(before) + len(after) < len(min(stems, key=len)) else ""


def _key(name: str) -> str:
    """A name by which files are found: macOS stores letters and their accents apart."""
    return unicodedata.normalize("NFC", name).lower()


def _path_of_url(address: str) -> str:
    with contextlib.suppress(ValueError):  # half an address of IPv6
        return unquote(urlsplit(address).path)
    return address


def _is_dicom(path: Path) -> bool:
    with contextlib.suppress(OSError, ForeignError), open_foreign(path) as file:
        return file.read(132)[128:] == _MAGIC
    return False


def _common_end(name: str, path: Path) -> int:
    """Counts the folders directly above a file that have the same names."""
    sides = (path.as_posix().lower(), name.lower())
    return _alike(*(PurePosixPath(one).parts[-2::-1] for one in sides))
