"""Boxes that people drew with any tool, to a folder of records.

look/index.html         20 images, the doubtful first, written before anything else
records/, questions/    is it there, where, how many; splits of the source, or 85 % and 15 %
quality.json            what was rejected, and how questions with yes and with no were balanced
unpacked/               of an export that is a zip

The format is detected (data/README.md lists them; a zip may hold it); a form of boxes that is not
clear is requested by a flag. Where something is doubtful nothing is written but the page, until
--accept confirms that somebody has inspected it.
"""

import collections
import dataclasses
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from cxrjax.apps.annotations import checks, splits
from cxrjax.apps.annotations.annotation import ANY, Annotation, Annotations, Stated, counted
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.formats import ONE_IMAGE_A_FILE, read_annotations
from cxrjax.apps.annotations.options import BoxesOptions
from cxrjax.apps.annotations.patients import patients_of
from cxrjax.apps.annotations.questions import MOST_BOXES, BoxedImage, ask, choose_balanced
from cxrjax.apps.annotations.zips import UNPACKED, unpack, unpack_rows, zips_of
from cxrjax.errors import UserError
from cxrjax.files import file_sha256, hash_lines, writing
from cxrjax.images.decode import MOSTLY_BLACK, MOSTLY_WHITE, NEARLY_FLAT
from cxrjax.images.geometry import is_resize
from cxrjax.paths import relative
from cxrjax.progress import progress_bar, waiting
from cxrjax.records import QARecord, class_in_words
from cxrjax.records_io.builder import Builder
from cxrjax.records_io.image_check import ImageCheck, check_images
from cxrjax.records_io.quality import ROUNDING, PixelBox, Unusable, cut_box
from cxrjax.records_io.row_files import find_shards
from cxrjax.records_io.split import stratified_validation

PAGE = Path("look") / "index.html"
# Shares beyond which somebody has to look.
_MANY_LOST = 0.05
_MANY_CUT = 0.05
# Of the image's area: boxes that few findings have.
_TINY, _HUGE = 1e-4, 0.95
_MANY_ODD = 0.2
_MOST_TRIED = 1_000  # boxes of one class on an image that are compared with others
_SAME = 0.95  # IoU of two boxes of one class that are one
_PER_IMAGE = ("yolo", *ONE_IMAGE_A_FILE)


class BoxesBuilder(Builder[BoxesOptions]):
    """Reads annotations of any format and asks what they answer."""

    dataset = "boxes"
    options_class = BoxesOptions
    leaves = f"{PAGE.parent}/, {Builder.leaves}"
    other_words: ClassVar[Mapping[str, str]] = {"input": "source"}

    def read(self) -> dict[str, list[QARecord]]:
        options = self.options
        with waiting("reading the annotations"):
            folder, found = self._open()

            def size_of(one: Annotation) -> tuple[int, int] | None:
                return one.image_hw or folder.size_or_none(one.image)

            checks.check_predictions(found, options.predictions_as_labels)
            checks.drop_normal(found, size_of)
            checks.spell_classes(found)
            found.doubts += checks.class_doubts(found)
        looked = list(self._look(folder, found))
        if not looked or not any(one.boxes for one in looked):
            raise self.nothing_left("box", "; " + "; ".join(found.told))
        with waiting("dividing the images and wording the questions"):
            divided = self._split(folder, looked, found)
            records = {split: self._ask(images, split) for split, images in divided.items()}
        self.found, self.looked = found, looked
        doubts = [*found.doubts, *self._doubts(looked)]
        print(*found.told, sep="\n")
        from cxrjax.apps.annotations.page import write_page

        questions = {split: len(of) for split, of in records.items()}
        with writing(options.out):
            ruled = dataclasses.replace(found, told=[*found.told, self._rule()])
            write_page(options.out / PAGE, looked, ruled, doubts, questions, options.seed)
        if doubts and not options.accept:
            raise UserError(
                f"{doubts[0]}{f', and {len(doubts) - 1} more' * (len(doubts) > 1)}; wrote "
                f"only {options.out / PAGE}: inspect it, then pass --accept"
            )
        return records

    def _open(self) -> tuple[Folder, Annotations]:
        """The source, unpacked where it is a zip or has nothing but a zip."""
        options, said = self.options, self.options.said()
        archives = zips_of(options.source)
        try:
            if options.source in archives:
                raise UserError("packed")
            folder, found = self._read(Folder(options.source, options.images), said)
            if archives:
                found.told.append(f"{archives[0].name} is not read: annotations lie beside it")
            return folder, found
        except UserError:
            shards = [] if archives or self.quality.entries else find_shards(options.source)
            if shards:
                unpack_rows(shards, options.out / UNPACKED, self.quality)
                return self._read(Folder(options.out / UNPACKED, options.images), said)
            if not archives or self.quality.entries:
                raise
        place, refused = unpack(archives, options.out)
        beside = None if options.source in archives else options.source
        folder = Folder(place, options.images or beside, both=True)
        folder.refused += refused
        return self._read(folder, said)

    def _read(self, folder: Folder, said: Stated) -> tuple[Folder, Annotations]:
        self._format, found = read_annotations(folder, said, self.quality, self.options.format)
        return folder, found

    def _look(self, folder: Folder, found: Annotations) -> Iterator[BoxedImage]:
        """Opens every image that is named, and puts its boxes on it."""
        paths = {one.image: folder.image(one.image) for one in found.kept}
        checks.name_readers(found, paths, self._format in _PER_IMAGE)
        fusion = checks.Fusion(self.options.readers, found)
        entries: dict[Path, list[Annotation]] = collections.defaultdict(list)
        for one in found.kept:
            entries[paths[one.image]].append(one)
        self._sources = entries
        unnamed = [path for path in folder.images if path not in entries]
        if unnamed and self.options.unlisted == "negative":
            entries.update({path: [] for path in unnamed})
            self.quality.warnings["images without annotations, used as normal"] += len(unnamed)
        elif unnamed:
            self.quality.warnings["images that no annotation names, left out"] += len(unnamed)
        files = check_images(entries, self.quality, self.options.out, self.options.processes)
        names = {path: folder.inside(path).with_suffix("").as_posix() for path in entries}
        ids = _ids(names)
        given = {
            path: next((one.patient for one in of if one.patient), "")
            for path, of in entries.items()
        }
        if not any(given.values()):
            given = splits.patients_beside(folder, entries)
        patients, told = patients_of(names, given, self.options.patient)
        found.told.append(told)
        kept: list[Annotation] = []
        for path, of in progress_bar(sorted(entries.items()), "boxes", unit="image"):
            where = of[0].where if of else folder.where(path)
            try:
                size = _size(of, files[path])
            except Unusable as why:
                for one in of:
                    found.reject(one, why)
                continue
            odd: list[str] = []
            on_image = self._distinct(self._fit(of, size, found, odd), found, by_reader=True)
            fitted = fusion.of_image(on_image)
            if fitted is None:
                continue
            fitted = self._distinct(fitted, found)
            kept += fitted
            by_class: dict[str, list[PixelBox]] = {}
            for one in fitted:
                if one.shape:
                    by_class.setdefault(one.label, []).append(one.box)
            unlocated = {label for one in of for label in found.unlocated.get(one.image, ())}
            yield BoxedImage(
                image_id=ids[path],
                path=relative(path, self.options.out),
                image_hw=size,
                patient=patients[path],
                boxes=by_class,
                where=where,
                unlocated=frozenset(unlocated - by_class.keys()),
                file=path,
                odd=tuple(odd),
                entries=tuple(fitted),
            )
        found.kept = kept
        found.told += fusion.told()
        if rare := sorted(label for label, of in found.images_by_class.items() if len(of) == 1):
            found.told.append(f"classes of a single image: {', '.join(rare[:20])}")

    def _fit(
        self,
        marked: Sequence[Annotation],
        size: tuple[int, int],
        found: Annotations,
        odd: list[str],
    ) -> list[Annotation]:
        """Entries of an image with boxes as they lie on it; adds what is doubtful to `odd`."""
        kept = []
        area = size[0] * size[1]
        for one in marked:
            if one.shape is None:
                kept.append(one)
                continue
            label = one.label
            try:
                box = cut_box(one.box, size, label)
                if max(box) <= 1:
                    raise Unusable("wrong_frame", f"{list(box)} looks like fractions among pixels")
            except Unusable as why:
                found.reject(one, why)
                odd.append(f"{label}: {why.found}")
                continue
            beyond = max(abs(old - new) for old, new in zip(one.box, box, strict=True))
            if beyond:
                self.quality.warnings["boxes cut at an edge of their image"] += 1
            if beyond > ROUNDING:
                odd.append(f"{label}: reached {beyond:,.0f} pixels beyond the image")
                self._cut += 1
            share = (box[2] - box[0]) * (box[3] - box[1]) / area
            if not _TINY <= share <= _HUGE:
                odd.append(f"{label}: a box of {share:.2%} of the image")
                self._odd_sizes += 1
            if box != one.box:
                one = dataclasses.replace(one, shape=one.shape._replace(numbers=box))
            kept.append(one)
        return kept

    def _distinct(
        self, fitted: Sequence[Annotation], found: Annotations, by_reader: bool = False
    ) -> list[Annotation]:
        """Leaves out boxes that another of the same class covers, and those beyond the limit."""
        kept: list[Annotation] = []
        boxes: dict[Any, list[PixelBox]] = collections.defaultdict(list)
        tried: collections.Counter[Any] = collections.Counter()
        for one in fitted:
            if one.shape is not None:
                here = boxes[key := (one.label, one.reader if by_reader else "")]
                tried[key] += 1
                if tried[key] <= _MOST_TRIED and any(_is_same(one.box, box) for box in here):
                    told = f"{one.label} {list(one.box)}: another box covers it"
                    found.reject(one, Unusable("repeated_box", told))
                    continue
                if len(here) == MOST_BOXES or tried[key] > _MOST_TRIED:
                    told = f"more than {MOST_BOXES} boxes of {one.label}; the others are left out"
                    found.reject(one, Unusable("too_many_boxes", told))
                    continue
                here.append(one.box)
            kept.append(one)
        return kept

    _cut = _odd_sizes = 0

    def _doubts(self, looked: Sequence[BoxedImage]) -> Iterator[str]:
        """Yields signs that boxes were misread, taken over all boxes."""
        counts, images = self.quality.counts(), len(looked)
        kept = sum(len(boxes) for one in looked for boxes in one.boxes.values())
        total = kept + sum(counts.values())
        lost = counts["bad_box"] + counts["box_outside_image"] + counts["wrong_frame"]
        absent = {one.item for one in self.quality.entries if one.reason == "missing_image"}
        unread = ("malformed_row", "unknown_class", "bad_encoding", "invalid_record")
        rows = sum(counts[reason] for reason in (*unread, "unreadable_file"))
        signs = [
            (lost, kept + lost, _MANY_LOST, "boxes do not fit their images"),
            (self._cut, total, _MANY_CUT, "boxes reach beyond their images"),
            (self._odd_sizes, total, _MANY_ODD, "boxes are tiny, or all of the image"),
            (len(absent), len(absent) + images, _MANY_LOST, "annotated images are missing"),
            (rows, total + rows, _MANY_LOST, "entries cannot be read or have no class"),
            *(
                (self.quality.warnings[what], images, _MANY_LOST, f"images are {what}")
                for what in (NEARLY_FLAT, MOSTLY_WHITE, MOSTLY_BLACK)
            ),
            (counts["size_mismatch"], images, _MANY_LOST, "images differ in size from annotations"),
        ]
        for count, of, share, told in signs:
            if count > share * of:
                yield f"{count:,} of {of:,} {told}"

    def _split(
        self, folder: Folder, looked: list[BoxedImage], found: Annotations
    ) -> dict[str, list[BoxedImage]]:
        """Images by split; no patient and no image with a copy is in two.

        Images that have no place are taken out of `looked`.
        """
        entries = {one.file: one.entries for one in looked}
        patients = {one.file: one.patient for one in looked}
        groups, told = splits.one_side(entries, patients, self.options.processes)
        found.told += told
        own: dict[Path, str] = {}
        if self.options.split == "keep":
            sources = {path: self._sources[path] for path in entries}
            own, faults, how = splits.own_splits(folder, sources)
            found.told += [how] * bool(how)
            faults |= _divided(own, groups)
            for one in looked:
                for entry in one.entries if one.file in faults else ():
                    found.reject(entry, faults[one.file])
            looked[:] = [one for one in looked if one.file not in faults]
            found.kept = [entry for one in looked for entry in one.entries]
        held_out = set() if own else self._held_out(looked, groups)
        divided: dict[str, list[BoxedImage]] = {"train": [], "validation": []}
        for one in looked:
            split = own.get(one.file) or ("validation" if groups[one.file] in held_out else "train")
            divided.setdefault(split, []).append(one)
        return {split: images for split, images in divided.items() if images or not own}

    def _held_out(self, looked: Sequence[BoxedImage], groups: Mapping[Path, str]) -> set[str]:
        """Groups for validation, in which each class is at its share."""
        labels: dict[str, set[str]] = collections.defaultdict(set)
        for one in looked:
            labels[groups[one.file]] |= {*one.boxes}
        if len(labels) < 2:
            raise UserError(
                f"{self.options.source}: all images are of one patient "
                f"({looked[0].patient}), which cannot be divided into training and "
                "validation; pass --patient=PATTERN if that is wrong"
            )
        # Patients with boxes and without are divided each by themselves: of few the one that is
        # held out should have something to ask about.
        held_out: set[str] = set()
        for marked in (True, False):
            of_kind = {who: found for who, found in labels.items() if bool(found) == marked}
            held_out |= stratified_validation(of_kind, self.options.seed)
        return held_out

    def _ask(self, images: Sequence[BoxedImage], split: str) -> list[QARecord]:
        classes = sorted({label for image in images for label in image.boxes})
        balanced = self.options.negatives == "balanced"
        if_there = choose_balanced(images, classes, self.options.seed) if balanced else {}
        several = {
            label for image in images for label, boxes in image.boxes.items() if len(boxes) > 1
        }
        records = list(ask(images, split, if_there, several, self.options.seed))
        kinds = collections.Counter(
            (record.finding, record.question_type, bool(record.boxes)) for record in records
        )
        self.quality.balance[split] = {
            label: {
                "images_with": sum(label in image.boxes for image in images),
                "images_without": sum(
                    label not in image.boxes and not {label, ANY} & image.unlocated
                    for image in images
                ),
                "is_there_yes": kinds[label, "Is_there", True],
                "is_there_no": kinds[label, "Is_there", False],
                "where": kinds[label, "Where", True],
                "how_many": kinds[label, "How_many", True],
            }
            for label in classes
        }
        return records

    def _rule(self) -> str:
        if self.options.negatives == "none":
            return "no presence questions, only where and how many (--negatives=none)"
        return (
            "presence questions are balanced in each split: as many images with the class as "
            "without; every instance must be annotated (otherwise use --negatives=none)"
        )

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        self.quality.balance["rule"] = self._rule()

    def values(self) -> dict[str, float | None]:
        patients = {one.patient for one in self.looked}
        return {**self.counts.values(), "patients": len(patients)}

    def describe(self) -> dict[str, Any]:
        files = sorted(f"{one.image_id} {file_sha256(one.file)}" for one in self.looked)
        return {
            "seed": self.options.seed,
            "format": self._format,
            "read": self.found.told,
            "entries": self.found.account(),
            "images_sha256": hash_lines(files),
        }

    def _never_denied(self) -> list[str]:
        """Classes that all images of every split show, of which a yes would say nothing."""
        if self.options.negatives == "none":
            return []
        counts = [of for split, of in self.quality.balance.items() if split in self.splits]
        labels = {label for of in counts for label in of}
        without = {label for of in counts for label in of if of[label]["images_without"]}
        return sorted(labels - without)

    def report(self) -> Iterator[str]:
        yield "; ".join(
            f"{split}: {counted(of['questions'], 'question')} about "
            f"{counted(of['images'], 'image')}"
            for split, of in self.splits.items()
        )
        counts = self.quality.counts()
        odd = [f"{count:,} x {reason}" for reason, count in counts.items() if count]
        odd += [f"{count:,} x {told}" for told, count in self.quality.warnings.items()]
        if odd:
            yield f"not as the annotations have it: {'; '.join(odd)} (quality.json)"
        if never := self._never_denied():
            words = ", ".join(map(class_in_words, never))
            yield (
                f"no presence questions on {words}: every image has it (images without boxes in "
                "the source count as images without)"
            )
        yield f"{self.options.out / PAGE}: overlays of the boxes"


def _is_same(one: PixelBox, other: PixelBox) -> bool:
    """Returns whether the IoU of two boxes is that of one drawn twice, without arrays' cost."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    if wide <= 0 or high <= 0:
        return False
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return wide * high > _SAME * (areas - wide * high)


def _divided(own: Mapping[Path, str], groups: Mapping[Path, str]) -> dict[Path, Unusable]:
    """Faults of images that share a patient or a copy with a split that is held out of theirs."""
    held_out: dict[str, str] = {}
    for path, split in own.items():
        best = max(held_out.get(groups[path], "train"), split, key=splits.SPLITS.index)
        held_out[groups[path]] = best
    return {
        path: Unusable(
            "split_conflict",
            f"in {split}, and its patient or a copy of it in {held_out[groups[path]]}",
        )
        for path, split in own.items()
        if held_out[groups[path]] != split
    }


def _ids(names: Mapping[Path, str]) -> dict[Path, str]:
    """File -> id: its name without ending, with its folders where that is not enough."""
    counts = collections.Counter(path.stem for path in names)
    found: dict[Path, str] = {}
    used: set[str] = set()
    for path in sorted(names):
        name = names[path] if counts[path.stem] > 1 else path.stem
        name = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", name))
        while name in used:
            name += "_"
        used.add(name)
        found[path] = name
    return found


def _size(entries: Sequence[Annotation], check: ImageCheck) -> tuple[int, int]:
    """The size that boxes refer to: the stated one, of which the file may be a smaller copy."""
    file_hw = check.size()
    stated = next((one.image_hw for one in entries if one.image_hw), None)
    if stated is None or is_resize(file_hw, stated):
        return stated or file_hw
    told = f"annotations have {list(stated)} (height, width), the file has {list(file_hw)}"
    if is_resize((file_hw[1], file_hw[0]), stated):
        told += (
            " (rotated by EXIF)"
            if any(note.startswith("EXIF") for note in check.warnings)
            else ": height and width are exchanged, and the file has no EXIF rotation; exchange "
            "them in the annotations"
        )
    raise Unusable("size_mismatch", told)
