"""Records and predictions as files of annotation tools: COCO, CVAT, Label Studio, YOLO.

Images are named, not copied. What no format can hold is counted: answers whose boxes are of
several classes without a class each, and, but for COCO and Label Studio, confidences.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

from cxrjax.errors import UserError
from cxrjax.files import replace_text, writing
from cxrjax.records import QARecord
from cxrjax.records_io.quality import PixelBox

Box = tuple[str, PixelBox, float | None]


@dataclasses.dataclass
class ExportedImage:
    """An image with its boxes: class, corners in pixels, and a prediction's confidence."""

    name: str
    image_hw: tuple[int, int]
    split: str
    patient: str
    boxes: list[Box] = dataclasses.field(default_factory=list)


def boxed_images(
    records: Iterable[QARecord], predictions: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[ExportedImage], int]:
    """The images of records with their boxes, each box once, and the number of boxes left out.

    Args:
        predictions: question id -> a line of `predict`, whose boxes are taken instead.

    Raises:
        UserError: a record has no image size.
    """
    images: dict[str, ExportedImage] = {}
    left_out = 0
    for record in records:
        if record.image_hw is None:
            raise UserError(f"question {record.question_id}: no image size; join a size table")
        name = PurePosixPath(*(p for p in PurePosixPath(record.image_path).parts if p != ".."))
        image = images.setdefault(
            record.image_id,
            ExportedImage(str(name), record.image_hw, record.split, record.patient_id or ""),
        )
        for label, box, score in _boxes(record, predictions):
            if not label:
                left_out += 1
            elif (label, box) not in [one[:2] for one in image.boxes]:
                image.boxes.append((label, box, score))
    return list(images.values()), left_out


def _boxes(record: QARecord, predictions: Mapping[str, Mapping[str, Any]] | None) -> Iterable[Box]:
    if predictions is None:
        for answer in record.answers:
            boxes = answer.boxes_by_image.get(record.image_id, [])
            labels = _labels(answer.labels, len(boxes), record.finding)
            for label, (x0, y0, x1, y1) in zip(labels, boxes, strict=True):
                yield label, (x0, y0, x1, y1), None
        return
    line = predictions.get(record.question_id, {})
    boxes, (height, width) = line.get("boxes") or [], record.image_hw or (1, 1)
    scores = line.get("box_scores") or [None] * len(boxes)
    labels = _labels(line.get("labels") or (), len(boxes), record.finding)
    for label, box, score in zip(labels, boxes, scores, strict=True):
        x0, y0, x1, y1 = (round(v * s, 2) for v, s in zip(box, (width, height) * 2, strict=True))
        yield label, (x0, y0, x1, y1), score


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
            entry = {"id": len(listed) + 1, "file_name": image.name}
            entry |= {"height": height, "width": width}
            listed.append(entry | ({"patient_id": image.patient} if image.patient else {}))
            for label, (x0, y0, x1, y1), score in image.boxes:
                box: dict[str, Any] = {"id": len(marked) + 1, "image_id": len(listed), "iscrowd": 0}
                box |= {"category_id": classes.index(label) + 1, "area": (x1 - x0) * (y1 - y0)}
                box |= {"bbox": [x0, y0, x1 - x0, y1 - y0]}
                marked.append(box | ({} if score is None else {"score": score}))
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
            more = {"label": label, "source": "manual", "occluded": "0", "z_order": "0"}
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
        predicted = any(score is not None for _, _, score in image.boxes)
        data = {"image": f"/data/local-files/?d={image.name}", "split": image.split}
        data |= {"patient_id": image.patient} if image.patient else {}
        kind = "predictions" if predicted else "annotations"
        tasks.append({"data": data, kind: [{"result": results}]})
    _write(out / "project.json", json.dumps(tasks, indent=1))


def _yolo(images: Sequence[ExportedImage], classes: Sequence[str], out: Path) -> None:
    for image in images:
        height, width = image.image_hw
        lines = []
        for label, (x0, y0, x1, y1), _ in image.boxes:
            centre = ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height)
            four = (*centre, (x1 - x0) / width, (y1 - y0) / height)
            lines.append(" ".join([str(classes.index(label)), *(f"{v:.10g}" for v in four)]))
        name = PurePosixPath(image.name).with_suffix(".txt").name
        _write(out / "labels" / image.split / name, "".join(f"{line}\n" for line in lines))
    found = [f"{split}: images/{split}" for split in sorted({one.split for one in images})]
    names = [f"  {number}: {json.dumps(name)}" for number, name in enumerate(classes)]
    _write(out / "data.yaml", "\n".join([*found, "names:", *names, ""]))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, text)


TOOLS: dict[str, Callable[[Sequence[ExportedImage], Sequence[str], Path], None]] = {
    "coco": _coco,
    "cvat": _cvat,
    "label_studio": _label_studio,
    "yolo": _yolo,
}


def export_boxes(images: Sequence[ExportedImage], tool: str, out: Path) -> str:
    """Writes images and boxes as a tool imports them.

    Returns:
        Counts, for people.

    Raises:
        UserError: the folder cannot be written, or names of images collide.
    """
    stems = {PurePosixPath(image.name).stem for image in images}
    if tool == "yolo" and len(stems) < len(images):
        raise UserError(f"{out}: images of the same name in several folders; YOLO has one of each")
    classes = sorted({label for image in images for label, _, _ in image.boxes})
    with writing(out):
        TOOLS[tool](images, classes, out)
    boxes = sum(len(image.boxes) for image in images)
    return f"{out}: {len(images):,} images, {boxes:,} boxes of {len(classes):,} classes for {tool}"
