"""Splits of a source's images: its own, or new ones; copies and patients stay on one side."""

import collections
import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from cxrjax.apps.annotations.annotation import WORDS, Annotation, plain
from cxrjax.apps.annotations.folder import Folder, names_split, split_of
from cxrjax.apps.annotations.tables import table
from cxrjax.apps.annotations.yaml_lists import lists_of
from cxrjax.errors import ForeignError
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.records_io.leakage import close_pairs, hash_images
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import MIB, read_text

SPLITS = ("train", "validation", "test")
_WORDS = "|".join(word for words in WORDS["splits"].values() for word in words)
_LISTS = (".txt",)
_BOTH = re.compile("train[_-]?val")
_LIST = re.compile(rf"(?:{_WORDS}|lists?|images?|imgs?|ids?|files?|names?|set|splits?|[_ -])+")
_YAML = (".yaml", ".yml")
_KEYS = ("train", "val", "valid", "validation", "test")  # of data.yaml
_CHANGED, _CHANGED_BEFORE, _NUMBERED = (
    re.compile(WORDS["patterns"][key]) for key in ("changed", "changed_before", "numbered")
)
_ALIKE = 0.98  # correlation of thumbnails
_SIDE = 48


def own_splits(
    folder: Folder, entries: Mapping[Path, Sequence[Annotation]]
) -> tuple[dict[Path, str], dict[Path, Unusable], str]:
    """File of an image -> its split in the source, faults of images, and how for people.

    A column or attribute decides, then lists of images (data.yaml, ImageSets), then folders of
    images and of annotations, then names of files that annotate several images. Splits are the
    source's where there are at least two; else the mapping is empty. Names of images decide where
    all of them have one and nothing else does.
    """
    listed = {} if all(any(one.split for one in of) for of in entries.values()) else _listed(folder)
    about: dict[str, set[str]] = collections.defaultdict(set)
    for of in entries.values():
        for one in of:
            about[one.file].add(one.image)
    splits: dict[Path, str] = {}
    faults: dict[Path, Unusable] = {}
    by_name = all(split_of(path.stem) for path in entries)
    for path, of in entries.items():
        given = {one.split for one in of} - {""}
        given = given or listed.get(path.stem.lower(), set())
        given = given or ({split_of(folder.inside(path).parent.as_posix())} - {""})
        for one in of if not given else ():
            parent, _, name = one.file.rpartition("/")
            # A file of one image may be named like it, such as val_1.xml.
            of_several = len(about[one.file]) > 1 or not name.startswith(
                PurePosixPath(one.image).stem
            )
            found = split_of(parent) or (split_of(name) if of_several else "")
            given |= {found} - {""}
        given = given or ({split_of(path.stem)} if by_name else set())
        if len(given) > 1:
            told = f"in {' and '.join(sorted(given))} of the source; expected one"
            faults[path] = Unusable("split_conflict", told)
        elif given:
            splits[path] = next(iter(given))
    if len({*splits.values()}) < 2 or "train" not in splits.values():
        return {}, {}, ""
    for path in entries:
        if path not in splits and path not in faults:
            faults[path] = Unusable("not_in_split", "in no split of the source; --split=again")
    counts = collections.Counter(splits.values())
    told = ", ".join(f"{split} {counts[split]:,}" for split in SPLITS if counts[split])
    return splits, faults, f"splits of the source are kept: {told} images (--split=again: new ones)"


def _listed(folder: Folder) -> dict[str, set[str]]:
    """Stem of an image -> splits, by lists such as ImageSets/Main/train.txt and by data.yaml.

    Of an image that another list has, VOC's trainval says nothing.
    """
    found: dict[str, set[str]] = collections.defaultdict(set)
    names = sorted(folder.files, key=lambda path: _BOTH.search(path.stem.lower()) is not None)
    lists = {path: split_of(path.stem) for path in names if _LIST.fullmatch(path.stem.lower())}
    for path in folder.files:
        with contextlib.suppress(OSError, ForeignError):
            for split, name in _stated(folder, path):
                found[PurePosixPath(name).stem.lower()].add(split)
                if path.suffix.lower() not in _YAML:
                    continue
                last = PurePosixPath(name).name if name.endswith(_LISTS) else None
                lists |= {one: split for one in folder.files if one.name == last}
                for image in folder.images:
                    if f"/{name}/" in f"/{folder.inside(image).as_posix()}":
                        found[image.stem.lower()].add(split)
    for path, split in lists.items():
        others = {*found} if _BOTH.search(path.stem.lower()) else set()
        with contextlib.suppress(OSError, ForeignError):
            text = read_text(path, 64 * MIB) if split and path.suffix.lower() in _LISTS else ""
            for words in map(str.split, text.splitlines()):
                # VOC's lists by class have a second word, -1 where the class is absent.
                stem = PurePosixPath(words[0]).stem.lower() if words else ""
                if 0 < len(words) <= 2 and stem not in others:
                    found[stem].add(split)
    return found


def _stated(folder: Folder, path: Path) -> Iterator[tuple[str, str]]:
    """Yields (split, image, list or folder): of data.yaml, of tables with a column for each, and of
    JSON with a list of images a split."""
    kind = path.suffix.lower()
    if kind in _YAML:
        for key, items in lists_of(read_text(path, MIB)).items():
            for _, place in items if key in _KEYS else ():
                place = place.removeprefix("../").removeprefix("./").strip("/")
                if len(place) > 1:
                    yield split_of(key), place
    elif (
        kind == ".json" and isinstance(of := folder.json(path), dict) and all(map(names_split, of))
    ):
        for key, names in of.items():
            for name in names if isinstance(names, list) else ():
                if isinstance(name, str):
                    yield split_of(key), name
    else:
        for name, text in beside(folder, path, "split"):
            if split := split_of(text):
                yield split, name


def beside(folder: Folder, path: Path, role: str) -> Iterator[tuple[str, str]]:
    """Yields (image, cell) of a table that has a column for images and one of a role."""
    if path.suffix.lower() in (".csv", ".tsv"):
        header = [plain(name) for name in table(path, folder, 1).header]
        roles = (WORDS["columns"][one] for one in ("image", role))
        found = [next((header.index(n) for n in of if n in header), -1) for of in roles]
        if found[0] != found[1] and min(found) >= 0:
            for _, cells in table(path, folder).rows:
                if max(found) < len(cells):
                    yield cells[found[0]], cells[found[1]]


def patients_beside(folder: Folder, images: Iterable[Path]) -> dict[Path, str]:
    """File of an image -> patient, by tables that name both."""
    given: dict[str, str] = {}
    for path in folder.files:
        with contextlib.suppress(OSError, ForeignError):
            for name, patient in beside(folder, path, "patient"):
                given.setdefault(PurePosixPath(name).stem.lower(), patient)
    return {path: given.get(path.stem.lower(), "") for path in images}


def one_side(
    files: Iterable[Path], patients: Mapping[Path, str], processes: int
) -> tuple[dict[Path, str], list[str]]:
    """File -> the group that no split divides: its patient, joined with copies of its images.

    Returns:
        The groups, and what was found, for people.
    """
    files = sorted(files)
    names = [path.stem.lower() for path in files]
    stems = {*names}
    by_key: dict[str, list[int]] = collections.defaultdict(list)
    for number, name in enumerate(names):
        base = _CHANGED_BEFORE.sub("", _CHANGED.sub("", name))
        numbered = _NUMBERED.sub("", base)
        if numbered in stems:  # NAME (1) beside NAME; alone it is a number like others
            base = numbered
        by_key[base].append(number)
    # Of names that nobody changed, such as view1_frontal in many folders, the pixels decide.
    copies = [of for base, of in by_key.items() if base and {names[n] for n in of} != {base}]
    pairs = [(of[0], number) for of in copies for number in of]
    alone = len({*_roots(len(files), pairs)})
    by_name = len(files) - alone
    pairs += _copies(files, processes)
    by_picture = alone - len({*_roots(len(files), pairs)})
    first: dict[str, int] = {}
    pairs += [(first.setdefault(patients[path], n), n) for n, path in enumerate(files)]
    roots = _roots(len(files), pairs)
    told = []
    if len(files) > 1 and len({*roots}) < 2:
        if len({*patients.values()}) < 2:
            return dict(patients), []
        told.append("all images look like copies of one, so that copies are not held together")
        return dict(patients), told
    if by_name or by_picture:
        told.append(
            f"copies on one side: {by_name:,} by the names of their files, {by_picture:,} by their "
            "pixels"
        )
    return {path: patients[files[root]] for path, root in zip(files, roots, strict=True)}, told


def _copies(files: Sequence[Path], processes: int) -> list[tuple[int, int]]:
    """Pairs of images that show the same, by perceptual hash and then by their thumbnails."""
    hashes, _ = hash_images(files, processes)
    known = [number for number, path in enumerate(files) if path in hashes]
    of = [hashes[files[number]] for number in known]
    pairs = [(known[i], known[j]) for i, j, _ in close_pairs(of, of) if i < j]
    shown = {number: _thumbnail(files[number]) for number in {*itertools.chain(*pairs)}}
    return [(i, j) for i, j in pairs if float((shown[i] * shown[j]).sum()) >= _ALIKE]


def _thumbnail(path: Path) -> np.ndarray:
    """Grey levels of a small copy without their mean, of length 1."""
    from PIL import Image

    try:
        grey = Image.fromarray(read_image(path)).convert("L").resize((_SIDE, _SIDE))
    except ImageError:
        return np.zeros((_SIDE, _SIDE))
    levels = np.asarray(grey, np.float64)
    levels -= levels.mean()
    length = float(np.linalg.norm(levels))
    return levels / length if length else levels


def _roots(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """The first of its group for each number, of groups that pairs join."""
    ends = np.array(pairs, np.int64).reshape(-1, 2).T
    linked = csr_array((np.ones(ends.shape[1]), tuple(ends)), shape=(count, count))
    _, group = connected_components(linked, directed=False)
    return np.unique(group, return_index=True)[1][group].tolist()
