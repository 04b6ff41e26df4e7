"""Checks of annotations from any source: predictions, normal classes, names of classes, readers."""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import Annotation, Annotations, counted, is_normal
from cxrjax.apps.annotations.folder import names_split, split_of
from cxrjax.boxes import pairwise_iou
from cxrjax.errors import UserError
from cxrjax.records import ReaderBox
from cxrjax.records_io.quality import Unusable
from cxrjax.records_io.readers import MergeMode, merge_readers, parse_mode
from cxrjax.untrusted.names import shown

# --readers -> the mode of `cxrjax.records_io.readers`, and what it does.
_MODES = {
    "fuse": ("wbf", "boxes of one lesion were fused into one"),
    "majority": ("lesion_majority", "lesions that more than half of an image's readers boxed"),
    "any": ("raw", "every reader's boxes, unmerged"),
}
_PREDICTED = re.compile(r"(?:^|[/_-])(?:pred|inference)")  # of a path
_WHOLE = 0.98  # of an image's area
_UNNAMED = "(unnamed)"
_UNLOCATED = "classes of an image without a region (tags, rows): neither located nor denied"
_SAME_LESION = 0.25  # IoU at which a box is one of those that were fused
# Signs that a column of something else was read as classes.
_NUMBERS = re.compile(r"\d+\.\d+|\d+\D+\d+")
_MOST_CLASSES = 0.8
_FEW = 5
# Highest confidences of a file: of fractions with their rounding, and of grades at most.
_ABOUT_ONE, _FEW_PERCENT = 1.05, 10

Size = Callable[[Annotation], tuple[int, int] | None]


def check_predictions(found: Annotations, least: float | None) -> None:
    """Refuses a model's boxes as ground truth, or those under a confidence.

    Args:
        least: confidence from which on predictions are used as labels; None: they are not.

    Raises:
        UserError: most boxes are predictions.
    """
    # A confidence of 1, or of 100 percent, beside each box is a column that everybody fills in.
    sure = {one.file for one in found.boxes if one.confidence not in (None, 1, 100)}

    files = {one.file for one in found.boxes}
    of_models = {file for file in files if _PREDICTED.search(file.lower())}
    models = of_models if of_models != files else set()  # beside others

    def is_predicted(one: Annotation) -> bool:
        sides = one.shape is not None and one.confidence is not None
        by_name = one.file in models or an.by_model(one.reader)
        return one.prediction or by_name or (sides and one.file in sure)

    predicted = [one for one in found.boxes if is_predicted(one)]
    # Of boxes that name a model the source is not in doubt, so that the others are reference boxes.
    named = sum(one.prediction or one.file in models for one in predicted)
    rest = len(found.boxes) - named
    if least is None and predicted and (not rest or 2 * (len(predicted) - named) > rest):
        raise UserError(
            f"{predicted[0].where}: {len(predicted):,} of {len(found.boxes):,} boxes "
            f"{'name a model' if predicted[0].confidence is None else 'have a confidence'}: "
            "predictions of a model, no reference; pass --predictions_as_labels=0.5 to use those "
            "of at least this confidence"
        )
    ordered = sorted(predicted, key=lambda one: one.confidence or 0)
    highest = {one.file: one for one in ordered} if least is not None else {}
    scales = {file: _scale(one) for file, one in highest.items()}
    kept = []
    for one in found.kept:
        confidence = (one.confidence or 0) / scales.get(one.file, 1)
        if not is_predicted(one):
            kept.append(one)
        elif least is None:
            found.reject(one, Unusable("prediction", "made by a model; no reference"))
        elif confidence < least:
            told = f"confidence {confidence:g}, expected at least {least:g}"
            found.reject(one, Unusable("low_confidence", told))
        else:
            kept.append(one)
    found.kept = kept
    if predicted and least is not None:
        found.told.append(
            f"{len(predicted):,} boxes are predictions of a model, used as labels from a "
            f"confidence of {least:g} on (--predictions_as_labels)"
        )


def _scale(highest: Annotation) -> int:
    """1 of fractions, 100 of percent, by the highest of a file; UserError of neither."""
    confidence = highest.confidence or 0
    if confidence <= _ABOUT_ONE:
        return 1
    if _FEW_PERCENT < confidence <= 100:
        return 100
    raise UserError(
        f"{highest.where}: a confidence of {confidence:g}, the highest of its file; expected "
        "fractions up to 1 or percent up to 100; write confidences as fractions"
    )


def drop_normal(found: Annotations, size_of: Size) -> None:
    """Turns classes that mean "normal" into images without findings, and drops boxes of theirs.

    A class whose every box is the whole image is a label of images too, and located nowhere.
    """
    whole: dict[str, list[bool]] = collections.defaultdict(list)
    for one in found.boxes:
        whole[one.label].append(_is_whole(one, size_of(one)))
    labels = {label for label, of in whole.items() if all(of) and not is_normal(label)}
    marked = {one.image for one in found.boxes if not is_normal(one.label)}
    kept, normal = [], collections.Counter[str]()
    for one in found.kept:
        if one.shape is None and names_split(one.label):  # a tag of the image
            one = dataclasses.replace(one, label="", split=split_of(one.label))
        if one.label and is_normal(one.label):
            normal[one.label] += 1
            if one.image in marked and one.shape is None:
                told = f"{shown(one.label)} beside a finding on the same image"
                found.reject(one, Unusable("contradictory_rows", told))
                continue
            one = dataclasses.replace(one, label="", shape=None)
        elif one.label and (one.shape is None or one.label in labels):
            if one.shape is None:
                found.quality.warnings[_UNLOCATED] += 1
            found.unlocated.setdefault(one.image, set()).add(one.label)
            one = dataclasses.replace(one, label="", shape=None)
        kept.append(one)
    found.kept = kept
    for label, count in normal.items():
        found.told.append(
            f"{shown(label)} is no class: {counted(count, 'entry')} used as images "
            "without a finding"
        )
    for label in sorted(labels):
        found.told.append(f"{shown(label)} is no class: its every box is the whole image")


def _is_whole(one: Annotation, size: tuple[int, int] | None) -> bool:
    if size is None:
        return False
    x_min, y_min, x_max, y_max = one.box
    wide = min(x_max, size[1]) - max(x_min, 0)
    high = min(y_max, size[0]) - max(y_min, 0)
    return wide > 0 and high > 0 and wide * high >= _WHOLE * size[0] * size[1]


def spell_classes(found: Annotations) -> None:
    """Gives each class one spelling, the commonest; others differ in case and separators only."""
    counts = collections.Counter(one.label for one in found.boxes)
    best: dict[str, str] = {}
    for label, _ in counts.most_common():
        best.setdefault(_spelling(label), label)
    for label, count in counts.items():
        ours = best[_spelling(label)]
        if label != ours:
            found.quality.warnings[f"boxes of class {label} counted as {ours}"] += count
    found.kept = [
        dataclasses.replace(one, label=best[_spelling(one.label)]) if one.label else one
        for one in found.kept
    ]
    found.unlocated = {
        image: {best.get(_spelling(label), label) for label in labels}
        for image, labels in found.unlocated.items()
    }


def _spelling(label: str) -> str:
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)|_", "", label.casefold())


def class_doubts(found: Annotations) -> Iterator[str]:
    """Yields signs that something else than names of classes was read as one."""
    images, total = found.images_by_class, len(found.boxes)
    for label in sorted(images):
        if _NUMBERS.search(label) or an.plain(label).isdigit():
            yield f"the class {shown(label)} contains numbers: is it the right column?"
            break
    if len(images) > _FEW and len(images) > _MOST_CLASSES * total:
        yield f"{len(images):,} classes of {total:,} boxes: is it the right column?"
    sides = [label for label in images if an.plain(label) in ("left", "right")]
    if sides:
        yield f"the class {shown(sides[0])} names a side and no finding; rename its folder or class"


def name_readers(found: Annotations, paths: Mapping[str, Path], per_image: bool) -> None:
    """Names readers where several files annotate the same images with the same classes.

    Args:
        paths: image -> its file.
        per_image: a file of annotations is about one image, so that a reader has a folder.
    """
    beside: dict[tuple[Path, PurePosixPath], set[str]] = collections.defaultdict(set)
    for one in found.kept if per_image else ():
        beside[paths[one.image], PurePosixPath(one.file).parent].add(one.file)

    def source(one: Annotation) -> str:
        if not per_image:
            return one.file
        file = PurePosixPath(one.file)
        if len(beside[paths[one.image], file.parent]) < 2:
            return file.parent.as_posix()
        # Of several files of an image in one folder, what their names have beyond the image's.
        return file.stem.removeprefix(paths[one.image].stem).strip("_-. ") or file.stem

    classes: dict[str, set[str]] = collections.defaultdict(set)
    together: dict[Path, set[str]] = collections.defaultdict(set)
    for one in found.kept:
        together[paths[one.image]].add(source(one))
        if one.shape:
            classes[source(one)].add(_spelling(one.label))
    readers: set[str] = set()
    for sources in together.values():
        for name in sources if len(sources) > 1 else ():
            others = (one for one in sources - {name} if split_of(one) == split_of(name))
            if any(classes[name] & classes[other] for other in others):
                readers.add(name)
    found.kept = [
        dataclasses.replace(one, reader=one.reader or source(one))
        if source(one) in readers
        else one
        for one in found.kept
    ]


class Fusion:
    """Boxes of several readers of an image as one set.

    Args:
        wanted: "fuse", "majority", "any" or a reader's name.
    """

    def __init__(self, wanted: str, found: Annotations) -> None:
        self._wanted, self._found = wanted, found
        names = {one.reader for one in found.kept} - {""}
        self._mode: MergeMode | None = None
        if wanted in _MODES:
            self._mode = parse_mode(_MODES[wanted][0])
        elif wanted not in names:
            raise UserError(
                f"--readers={wanted}: expected fuse, majority, any or one of "
                f"{', '.join(sorted(names)[:20]) or 'the readers, and the source names none'}"
            )
        self._images = self._alone = self._boxes = 0
        self._names: set[str] = set()

    def of_image(self, on_image: Sequence[Annotation]) -> list[Annotation] | None:
        """The entries of an image that remain; None where the wanted reader did not read it."""
        named = {one.reader for one in on_image} - {""}
        if self._mode is None:
            return self._of_reader(on_image)
        readers = {(one.reader or _UNNAMED) if one.shape else one.reader for one in on_image} - {""}
        boxes = [one for one in on_image if one.shape]
        if not named or len(readers) < 2:
            return list(on_image)
        self._images += 1
        self._names |= readers
        marks: dict[str, list[ReaderBox]] = {reader: [] for reader in readers}
        for one in boxes:
            marks[one.reader or _UNNAMED].append(ReaderBox(label=one.label, box=list(one.box)))
        merged = merge_readers(marks, self._mode)
        kept = [one for one in on_image if not one.shape]
        ours: dict[str, list[Annotation]] = collections.defaultdict(list)
        theirs: dict[str, list[Sequence[float]]] = collections.defaultdict(list)
        for one in boxes:
            ours[one.label].append(one)
        for label, box in merged:
            theirs[label].append(box)
        for label, of in ours.items():
            kept += self._assigned(of, theirs[label])
        return kept

    def _of_reader(self, on_image: Sequence[Annotation]) -> list[Annotation] | None:
        theirs = [one for one in on_image if one.reader == self._wanted]
        for one in on_image:
            if one.reader != self._wanted:
                told = f"of reader {one.reader or _UNNAMED}; --readers={self._wanted}"
                self._found.reject(one, Unusable("other_reader", told))
        return theirs or None

    def _assigned(
        self, ours: list[Annotation], boxes: Iterable[Sequence[float]]
    ) -> list[Annotation]:
        """Fused boxes, each in the place of the nearest box that it came from."""
        targets = np.array(list(boxes), np.float64).reshape(-1, 4)
        overlap = np.asarray(pairwise_iou(np.array([one.box for one in ours]), targets))
        left = list(range(len(ours)))
        kept = []
        for number, target in enumerate(targets.tolist()):
            nearest = max(left, key=lambda index: overlap[index, number])
            left.remove(nearest)
            one = ours[nearest]
            assert one.shape is not None
            kept.append(dataclasses.replace(one, shape=one.shape._replace(numbers=tuple(target))))
            agreeing = {
                ours[index].reader for index in np.flatnonzero(overlap[:, number] > _SAME_LESION)
            }
            self._boxes += 1
            self._alone += len(agreeing) < 2
        for index in left:
            fused = targets.size and overlap[index].max() > _SAME_LESION
            reason = "fused_reader" if fused else "minority_reader"
            told = f"{ours[index].label} of reader {ours[index].reader or _UNNAMED}"
            self._found.reject(ours[index], Unusable(reason, told))
        return kept

    def told(self) -> Iterator[str]:
        """Yields what was done, once all images are through."""
        if self._mode is None:
            yield f"boxes of reader {self._wanted} only (--readers={self._wanted})"
        elif self._images:
            names = ", ".join(sorted(self._names)[:10])
            yield (
                f"{counted(self._images, 'image')} with several readers ({names}): "
                f"{_MODES[self._wanted][1]} (--readers={self._wanted}); "
                f"{self._alone:,} of {self._boxes:,} boxes are of one reader only; "
                "--readers=majority, any or a name choose otherwise"
            )
