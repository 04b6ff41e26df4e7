"""Boxes that people drew with any tool, to a folder of records.

look/index.html         20 pictures, the doubtful first, written before anything else
records/, questions/    is it there, where, how many; splits by patient, train 85 %, validation 15 %
quality.json            what was set aside, and how questions with yes and with no were balanced

The format is told by the files (COCO, Pascal VOC, YOLO, CVAT, Label Studio, CSV, DICOM SR, masks);
a form of boxes that is not clear is asked for by name. Where something is doubtful nothing is
written but the page, until --accept says that somebody has looked.
"""

import collections
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from cxrjax.apps.annotations.coordinates import Form, Units
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.formats import read_annotations
from cxrjax.apps.annotations.patients import patients_of
from cxrjax.apps.annotations.questions import (
    MOST_BOXES,
    BoxedImage,
    ask,
    choose_balanced,
)
from cxrjax.apps.annotations.table import Annotations, MarkedBox, Stated, plain
from cxrjax.errors import UserError
from cxrjax.files import file_sha256, hash_lines, writing
from cxrjax.images.geometry import is_resize
from cxrjax.progress import progress_bar, waiting
from cxrjax.records import QARecord, class_in_words
from cxrjax.records_io.builder import Builder, SourceOptions
from cxrjax.records_io.image_check import ImageCheck, check_images
from cxrjax.records_io.quality import ROUNDING, PixelBox, Unusable, cut_box
from cxrjax.records_io.split import stratified_validation

FormatName = Literal[
    "auto", "coco", "pascal_voc", "yolo", "cvat", "label_studio", "csv", "dicom_sr", "masks"
]
PAGE = Path("look") / "index.html"
# Shares beyond which somebody has to look.
_MANY_LOST = 0.05
_MANY_CUT = 0.05
# Of the image's area: boxes that few findings have.
_TINY, _HUGE = 1e-4, 0.95
_MANY_ODD = 0.2
_SAME = 0.95  # IoU of two boxes of one class that are one


@dataclasses.dataclass(frozen=True)
class BoxesOptions(SourceOptions):
    """Flags of boxes from any tool: `source` is a folder with images and annotations, or the one
    file of annotations in it. --input is another word for --source.

    Attributes:
        format: of the annotations; auto: told by the files.
        images: folder of the images, where they do not lie in the source.
        columns: of a table, such as image=file,label=finding,box=x1+y1+x2+y2,patient=id.
        box_form: what four numbers are, where the files do not tell.
        units: of the boxes, where the files do not tell.
        label: class of all boxes, where the files name none.
        classes: names by number, separated by commas (YOLO from 0, masks from 1).
        patient: pattern of which the first group is the patient in an image's path.
        negatives: ask if a class is there, as often of images without it as of others; none: where
            not everything was marked, do not ask.
        unlisted: images that the annotations do not name: left out, or nothing is there.
        accept: write, in spite of doubts; somebody has looked at the page.
    """

    format: FormatName = "auto"
    images: Path | None = None
    columns: str = ""
    box_form: Form | None = None
    units: Units | None = None
    label: str = ""
    classes: str = ""
    patient: str = ""
    negatives: Literal["balanced", "none"] = "balanced"
    unlisted: Literal["skip", "negative"] = "skip"
    accept: bool = False

    def said(self) -> Stated:
        """Returns the flags that readers of annotations use.

        Raises:
            UserError: --columns is not NAME=COLUMN,NAME=COLUMN.
        """
        columns = {}
        for pair in filter(None, self.columns.split(",")):
            role, sign, name = pair.partition("=")
            known = ("image", "label", "box", "patient", "image_height", "image_width")
            if not sign or role not in known:
                raise UserError(f"--columns={self.columns}: {pair!r}; expected {', '.join(known)}")
            columns[role] = name
        classes = tuple(name.strip() for name in self.classes.split(",") if name.strip())
        return Stated(self.box_form, self.units, columns, self.label, classes)


@dataclasses.dataclass(frozen=True)
class Looked:
    """An image after its boxes were checked.

    Attributes:
        image: as it is asked about.
        file: of the picture.
        odd: what is doubtful of it.
    """

    image: BoxedImage
    file: Path
    odd: tuple[str, ...]


class BoxesBuilder(Builder[BoxesOptions]):
    """Reads annotations of any of eight formats and asks what they answer."""

    dataset = "boxes"
    options_class = BoxesOptions
    leaves = f"{PAGE.parent}/, {Builder.leaves}"
    other_words: ClassVar[Mapping[str, str]] = {"input": "source"}

    def read(self) -> dict[str, list[QARecord]]:
        options = self.options
        with waiting("reading the annotations"):
            folder = Folder(options.source, options.images)
            self._format, found = read_annotations(
                folder, options.said(), self.quality, options.format
            )
        looked = list(self._look(folder, found))
        if not looked or not any(one.image.boxes for one in looked):
            raise self.nothing_left("box", "; " + "; ".join(found.told))
        with waiting("dividing the images and wording the questions"):
            splits = self._split([one.image for one in looked])
            records = {split: self._ask(images, split) for split, images in splits.items()}
        self.found, self.looked = found, looked
        doubts = [*found.doubts, *self._doubts(looked)]
        self._write_page(looked, found.told, doubts, records)
        for line in found.told:
            print(line)
        if doubts and not options.accept:
            raise UserError(
                f"{doubts[0]}{f', and {len(doubts) - 1} more' * (len(doubts) > 1)}; wrote "
                f"only {options.out / PAGE}: inspect it, then pass --accept"
            )
        return records

    def _look(self, folder: Folder, found: Annotations) -> Iterator[Looked]:
        """Opens every image that is named, and puts its boxes on it."""
        names: dict[Path, list[str]] = collections.defaultdict(list)
        for image in found.images.values():
            try:
                names[folder.image(image.name)].append(image.name)
            except Unusable as why:
                found.set_aside(why, image.name, image.where)
        unnamed = [path for path in folder.images if path not in names]
        if unnamed and self.options.unlisted == "negative":
            names |= {path: [] for path in unnamed}
            self.quality.warnings["images without annotations, used as normal"] += len(unnamed)
        elif unnamed:
            self.quality.warnings["images that no annotation names, left out"] += len(unnamed)
        checks = check_images(names, self.quality, self.options.out, self.options.processes)
        boxes: dict[str, list[MarkedBox]] = collections.defaultdict(list)
        for box in found.boxes:
            boxes[box.image].append(box)
        labels = self._labels(found.boxes)
        ids = _ids(names, folder)
        given = {
            path: next(
                (found.images[name].patient for name in of if found.images[name].patient), ""
            )
            for path, of in names.items()
        }
        patients, told = patients_of(names, given, self.options.patient, folder.root)
        found.told.append(told)
        for path, of in progress_bar(sorted(names.items()), "boxes", unit="image"):
            marked = [box for name in of for box in boxes[name]]
            where = found.images[of[0]].where if of else folder.where(path)
            try:
                size = _size(found, of, checks[path])
            except Unusable as why:
                found.set_aside(why, ids[path], where)
                continue
            by_class, odd = self._fit(marked, size, labels, ids[path])
            yield Looked(
                BoxedImage(
                    image_id=ids[path],
                    path=os.path.relpath(path, self.options.out),
                    image_hw=size,
                    patient=patients[path],
                    boxes=by_class,
                    where=where,
                ),
                path,
                odd,
            )

    def _labels(self, boxes: Sequence[MarkedBox]) -> dict[str, str]:
        """Spelling of a class -> the commonest one; others differ in case and signs alone."""
        counts = collections.Counter(box.label for box in boxes)
        best: dict[str, str] = {}
        for label, _ in counts.most_common():
            best.setdefault(plain(label) or label, label)
        spelt = {label: best[plain(label) or label] for label in counts}
        for label, ours in spelt.items():
            if label != ours:
                told = f"boxes of class {label} counted as {ours}"
                self.quality.warnings[told] += counts[label]
        return spelt

    def _fit(
        self,
        marked: Sequence[MarkedBox],
        size: tuple[int, int],
        labels: Mapping[str, str],
        image_id: str,
    ) -> tuple[dict[str, list[PixelBox]], tuple[str, ...]]:
        """Boxes by class as they lie on the image, and what is doubtful of them."""
        by_class: dict[str, list[PixelBox]] = {}
        odd: list[str] = []
        area = size[0] * size[1]
        for one in marked:
            label = labels[one.label]
            try:
                box = cut_box(one.box, size, label)
                if max(box) <= 1:
                    raise Unusable("wrong_frame", f"{list(box)} looks like fractions among pixels")
            except Unusable as why:
                self.quality.set_aside(why.reason, image_id, one.where, why.found)
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
            here = by_class.setdefault(label, [])
            if any(_overlap(box, other) > _SAME for other in here):
                self.quality.warnings["boxes that another of the same class covers, left out"] += 1
                continue
            if len(here) == MOST_BOXES:
                told = f"more than {MOST_BOXES} boxes of {label}; the others are left out"
                self.quality.set_aside("too_many_boxes", image_id, one.where, told)
                continue
            here.append(box)
        return by_class, tuple(odd)

    _cut = _odd_sizes = 0

    def _doubts(self, looked: Sequence[Looked]) -> Iterator[str]:
        """Yields signs that boxes were misread, taken over all boxes."""
        counts = self.quality.counts()
        kept = sum(len(boxes) for one in looked for boxes in one.image.boxes.values())
        total = max(self.quality.examined["boxes"], kept)
        lost = counts["bad_box"] + counts["box_outside_image"] + counts["wrong_frame"]
        if lost > _MANY_LOST * (kept + lost):
            yield f"{lost:,} of {kept + lost:,} boxes do not fit their images"
        if self._cut > _MANY_CUT * total:
            yield f"{self._cut:,} of {total:,} boxes reach beyond their images"
        if self._odd_sizes > _MANY_ODD * total:
            yield f"{self._odd_sizes:,} of {total:,} boxes are tiny, or all of the image"
        missing = counts["missing_image"]
        if missing > _MANY_LOST * (missing + len(looked)):
            yield f"{missing:,} of {missing + len(looked):,} annotated images are missing"
        rows = sum(counts[reason] for reason in ("malformed_row", "unknown_class", "bad_encoding"))
        if rows > _MANY_LOST * (total + rows):
            yield f"{rows:,} rows cannot be read or have no class"
        if counts["size_mismatch"] > _MANY_LOST * len(looked):
            yield f"{counts['size_mismatch']:,} images differ in size from their annotations"

    def _split(self, images: Sequence[BoxedImage]) -> dict[str, list[BoxedImage]]:
        """Images by split; no patient is in both, and each class is in both at its share."""
        labels: dict[str, set[str]] = collections.defaultdict(set)
        for image in images:
            labels[image.patient] |= {*image.boxes}
        if len(labels) < 2:
            raise UserError(
                f"{self.options.source}: all images are of one patient ({images[0].patient}), "
                "which cannot be divided into training and validation; pass --patient=PATTERN if "
                "that is wrong"
            )
        # Patients with boxes and without are divided each by themselves: of few the one that is
        # held out should have something to ask about.
        held_out: set[str] = set()
        for marked in (True, False):
            of_kind = {who: found for who, found in labels.items() if bool(found) == marked}
            held_out |= stratified_validation(of_kind, self.options.seed)
        splits: dict[str, list[BoxedImage]] = {"train": [], "validation": []}
        for image in images:
            splits["validation" if image.patient in held_out else "train"].append(image)
        return splits

    def _ask(self, images: Sequence[BoxedImage], split: str) -> list[QARecord]:
        classes = sorted({label for image in images for label in image.boxes})
        if_there: dict[str, set[str]] = {}
        if self.options.negatives == "balanced":
            if_there = choose_balanced(images, classes, self.options.seed)
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
                "images_without": sum(label not in image.boxes for image in images),
                "is_there_yes": kinds[label, "Is_there", True],
                "is_there_no": kinds[label, "Is_there", False],
                "where": kinds[label, "Where", True],
                "how_many": kinds[label, "How_many", True],
            }
            for label in classes
        }
        return records

    def _write_page(
        self,
        looked: Sequence[Looked],
        told: Sequence[str],
        doubts: Sequence[str],
        records: Mapping[str, Sequence[QARecord]],
    ) -> None:
        from cxrjax.apps.annotations.page import write_page

        with writing(self.options.out):
            write_page(
                self.options.out / PAGE,
                looked,
                [*told, self._rule()],
                doubts,
                self.quality,
                {split: len(of) for split, of in records.items()},
                self.options.seed,
            )

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
        patients = {one.image.patient for one in self.looked}
        return {**self.counts.values(), "patients": len(patients)}

    def describe(self) -> dict[str, Any]:
        files = sorted(f"{one.image.image_id} {file_sha256(one.file)}" for one in self.looked)
        return {
            "seed": self.options.seed,
            "format": self._format,
            "read": self.found.told,
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
            f"{split}: {entry['questions']:,} questions about {entry['images']:,} images"
            for split, entry in self.splits.items()
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


def _ids(files: Mapping[Path, Any], folder: Folder) -> dict[Path, str]:
    """File -> id: its name without ending, with its folders where that is not enough."""
    names = collections.Counter(path.stem for path in files)
    found: dict[Path, str] = {}
    used: set[str] = set()
    for path in sorted(files):
        name = path.stem
        if names[name] > 1:
            name = Path(folder.where(path)).with_suffix("").as_posix().strip("/")
        name = re.sub(r"[^\w.-]+", "_", name)
        while name in used:
            name += "_"
        used.add(name)
        found[path] = name
    return found


def _size(found: Annotations, names: Sequence[str], check: ImageCheck) -> tuple[int, int]:
    """The size that boxes refer to: the stated one, of which the file may be a smaller copy.

    Raises:
        Unusable: the file cannot be opened, or is no resize of the stated size.
    """
    file_hw = check.size()
    stated = next(
        (found.images[name].image_hw for name in names if found.images[name].image_hw), None
    )
    if stated is None or is_resize(file_hw, stated):
        return stated or file_hw
    turned = " (rotated by EXIF)" * is_resize((file_hw[1], file_hw[0]), stated)
    told = f"annotations have {list(stated)} (height, width), the file has {list(file_hw)}{turned}"
    raise Unusable("size_mismatch", told)


def _overlap(first: PixelBox, second: PixelBox) -> float:
    from cxrjax.boxes import iou

    return float(iou(*(_row(box) for box in (first, second))))


def _row(box: PixelBox) -> Any:
    import numpy as np

    return np.array(box, np.float32)
