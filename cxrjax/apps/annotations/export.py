"""Records and predictions as files of annotation tools: COCO, CVAT, Label Studio, YOLO.

Images are named, not copied. What no format can hold is counted: boxes without a class of their
own, without an area, or on an image that no record describes, and confidences in CVAT. Predictions
are marked as a model's wherever a format can say so.
"""

import collections
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from cxrjax.apps.annotations.annotation import counted
from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import Prediction, check_known, read_boxes
from cxrjax.files import replace_text, writing
from cxrjax.records import QARecord
from cxrjax.records_io.quality import PixelBox

Box = tuple[str, PixelBox, float | None]
LeftOut = collections.Counter[tuple[str, str]]  # of (what, why)
_NO_CLASS = "box", "several classes for all boxes of an answer"
_NO_IMAGE = "box", "on an earlier image whose size is not known"
_NO_AREA = "box", "without an area"


@dataclasses.dataclass
class ExportedImage:
    """An image with its boxes: class, corners in pixels, and a prediction's confidence."""

    name: str
    image_hw: tuple[int, int]
    split: str
    patient: str
    predicted: bool
    boxes: list[Box] = dataclasses.field(default_factory=list)


def boxed_images(
    records: Iterable[QARecord], predictions: Iterable[Prediction] | None = None
) -> tuple[list[ExportedImage], LeftOut]:
    """The images of records with their boxes, each box once, and counts of what is left out.

    Args:
        predictions: those whose boxes are taken instead; records without one are left out.

    Raises:
        UserError: a record has no image size, or a prediction has no record or no boxes.
    """
    images: dict[str, ExportedImage] = {}
    left_out = LeftOut()
    lines = None if predictions is None else {one.question_id: one for one in predictions}
    asked: set[str] = set()
    for record in records:
        asked.add(record.question_id)
        if lines is not None and record.question_id not in lines:
            left_out["question", "not predicted"] += 1
            continue
        found = list(_answered(record) if lines is None else _predicted(record, lines))
        shown = [(record.image_id, record.image_path, record.image_hw)]
        if one := record.earlier:
            with_size = one.image_hw is not None and any(one.image_id == of[0] for of in found)
            shown += [(one.image_id, one.image_path, one.image_hw)] * with_size
        for image_id, path, size in shown:
            if size is None:
                raise UserError(f"question {record.question_id}: no image size; join a size table")
            parts = (part for part in PurePosixPath(path).parts if part not in ("/", ".."))
            name, patient = str(PurePosixPath(*parts)), record.patient_id or ""
            of = ExportedImage(name, size, record.split, patient, lines is not None)
            images.setdefault(image_id, of)
        for image_id, label, box, score in found:
            if not label or image_id not in images or box[0] >= box[2] or box[1] >= box[3]:
                why = _NO_IMAGE if image_id not in images else _NO_AREA if label else _NO_CLASS
                left_out[why] += 1
            elif (label, box) not in [one[:2] for one in images[image_id].boxes]:
                images[image_id].boxes.append((label, box, score))
    check_known((lines or {}).values(), dict.fromkeys(asked), "predictions")
    return list(images.values()), left_out


def _answered(record: QARecord) -> Iterator[tuple[str, str, PixelBox, None]]:
    for answer in record.answers:
        for image_id, boxes in answer.boxes_by_image.items():
            labels = _labels(answer.labels, len(boxes), record.finding)
            for label, (x0, y0, x1, y1) in zip(labels, boxes, strict=True):
                yield image_id, label, (x0, y0, x1, y1), None


def _predicted(
    record: QARecord, lines: Mapping[str, Prediction]
) -> Iterator[tuple[str, str, PixelBox, float | None]]:
    line, (height, width) = lines[record.question_id], record.image_hw or (1, 1)
    if line.boxes is None:
        told = 'no boxes; expected "boxes" as `predict` writes them, [] of an answer without'
        raise UserError(f"{line.where}: {told}")
    read = read_boxes(line, None, height, width, line.where)
    labels = _labels([one or "" for one in read.labels], len(read.boxes), record.finding)
    scores = [float(score) if score == score else None for score in read.scores]
    for label, box, score in zip(labels, read.boxes.clip(0, 1).tolist(), scores, strict=True):
        x0, y0, x1, y1 = (round(v * s, 2) for v, s in zip(box, (width, height) * 2, strict=True))
        yield record.image_id, label, (x0, y0, x1, y1), score


def _labels(labels: Sequence[str], count: int, finding: str | None) -> Sequence[str]:
    """A class a box; "" where several classes share boxes."""
    if len(labels) == count:
        return labels
    one = labels[0] if len(labels) == 1 else finding if not labels else None
    return [one or ""] * count


def _coco(images: Sequence[ExportedImage], classes: Sequence[str], out: Path) -> None:
    for split in sorted({image.split for image in images}):
        listed: list[dict[str, Any]] = []
        marked: list[dict[str, Any]] = []
        for image in (one for one in images if one.split == split):
            height, width = image.image_hw
            entry = {"id": len(listed) + 1, "file_name": image.name, "height": height}
            listed.append(
                entry | {"width": width} | ({"patient_id": image.patient} if image.patient else {})
            )
            for label, (x0, y0, x1, y1), score in image.boxes:
                box: dict[str, Any] = {"id": len(marked) + 1, "image_id": len(listed), "iscrowd": 0}
                box |= {"category_id": classes.index(label) + 1, "area": (x1 - x0) * (y1 - y0)}
                box |= {"bbox": [x0, y0, x1 - x0, y1 - y0]}
                by_model = {"attributes": {"source": "auto"}} if image.predicted else {}
                marked.append(box | (by_model if score is None else {"score": score}))
        categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
        content = {"images": listed, "categories": categories, "annotations": marked}
        _write(out / "annotations" / f"instances_{split}.json", json.dumps(content, indent=1))


def _cvat(images: Sequence[ExportedImage], classes: Sequence[str], out: Path) -> None:
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    for number, image in enumerate(images):
        height, width = map(str, image.image_hw)
        names = {"id": str(number), "name": image.name, "subset": image.split}
        entry = ElementTree.SubElement(root, "image", names | {"width": width, "height": height})
        if image.patient:
            tag = ElementTree.SubElement(entry, "tag", {"label": "patient", "source": "manual"})
            ElementTree.SubElement(tag, "attribute", {"name": "patient_id"}).text = image.patient
        for label, box, _ in image.boxes:
            edges = dict(zip(("xtl", "ytl", "xbr", "ybr"), map(str, box), strict=True))
            more = {"label": label, "source": "auto" if image.predicted else "manual"}
            more |= {"occluded": "0", "z_order": "0"}
            ElementTree.SubElement(entry, "box", more | edges)
    ElementTree.indent(root)
    _write(out / "annotations.xml", ElementTree.tostring(root, "unicode"))


def _label_studio(images: Sequence[ExportedImage], classes: Sequence[str], out: Path) -> None:
    tasks = []
    for image in images:
        height, width = image.image_hw
        results = []
        for label, (x0, y0, x1, y1), score in image.boxes:
            value = {"x": 100 * x0 / width, "y": 100 * y0 / height, "rotation": 0}
            value |= {"width": 100 * (x1 - x0) / width, "height": 100 * (y1 - y0) / height}
            region: dict[str, Any] = {"type": "rectanglelabels", "from_name": "label"}
            region |= {"to_name": "image"}
            region |= {"original_width": width, "original_height": height, "image_rotation": 0}
            region["value"] = value | {"rectanglelabels": [label]}
            results.append(region | ({} if score is None else {"score": score}))
        data = {"image": f"/data/local-files/?d={quote(image.name)}", "split": image.split}
        data |= {"patient_id": image.patient} if image.patient else {}
        kind = "predictions" if image.predicted else "annotations"
        tasks.append({"data": data, kind: [{"result": results}]})
    _write(out / "project.json", json.dumps(tasks, indent=1))


def _yolo(images: Sequence[ExportedImage], classes: Sequence[str], out: Path) -> None:
    for image in images:
        height, width = image.image_hw
        lines = []
        for label, (x0, y0, x1, y1), score in image.boxes:
            centre = ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height)
            values = [*centre, (x1 - x0) / width, (y1 - y0) / height]
            values += [] if score is None else [score]
            lines.append(" ".join([str(classes.index(label)), *(f"{v:.10g}" for v in values)]))
        name = PurePosixPath(image.name).with_suffix(".txt")
        _write(out / "labels" / image.split / name, "".join(f"{line}\n" for line in lines))
    splits = sorted({one.split for one in images})
    found = [f"{split.replace('validation', 'val')}: images/{split}" for split in splits]
    names = [
        f"  {number}: {json.dumps(name, ensure_ascii=False)}" for number, name in enumerate(classes)
    ]
    _write(out / "data.yaml", "\n".join([*found, "names:", *names, ""]))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, text)


Writer = Callable[[Sequence[ExportedImage], Sequence[str], Path], None]
TOOLS: dict[str, Writer] = dict(coco=_coco, cvat=_cvat, label_studio=_label_studio, yolo=_yolo)


def export_boxes(images: Sequence[ExportedImage], tool: str, out: Path, left_out: LeftOut) -> str:
    """Writes images and boxes as a tool imports them.

    Returns:
        Counts, also of what is left out, for people.

    Raises:
        UserError: the folder cannot be written, or names of images collide.
    """
    names = collections.Counter(PurePosixPath(one.name).with_suffix("") for one in images)
    if tool == "yolo" and (twice := [str(name) for name, count in names.items() if count > 1]):
        raise UserError(f"{out}: images {twice[0]} of several endings; YOLO has one file for them")
    classes = sorted({label for image in images for label, _, _ in image.boxes})
    with writing(out):
        TOOLS[tool](images, classes, out)
    boxes = [box for image in images for box in image.boxes]
    told = f"{out}: {counted(len(images), 'image')}, {counted(len(boxes), 'box')} of "
    told += f"{counted(len(classes), 'class')} for {tool}"
    sure = sum(score is not None for *_, score in boxes)
    if tool == "cvat":
        left_out["confidence", "CVAT has no place for it"] += sure
    predicted = sum(len(image.boxes) for image in images if image.predicted)
    if tool == "yolo":
        left_out["mark of a prediction", "YOLO has none without a confidence"] += predicted - sure
    rest = [f"{counted(n, what)} left out: {why}" for (what, why), n in left_out.items() if n]
    return "\n".join([told, *rest])
