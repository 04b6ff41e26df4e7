"""The same boxes on the same small images in every format that is read, and broken ones."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

SIZE = (60, 80)  # (height, width)
# Image -> (class, box); the last one shows nothing.
BOXES = {
    "a.png": [("Effusion", (10, 20, 40, 50)), ("Nodule", (50, 5, 62, 17))],
    "b.png": [("Effusion", (8, 22, 36, 58))],
    "c.png": [("Nodule", (44, 30, 56, 41)), ("Nodule", (12, 6, 22, 16))],
    "d.png": [("Effusion", (30, 24, 74, 55))],
    "e.png": [],
    "f.png": [],
}
CLASSES = ("Effusion", "Nodule")


def ramp(number: int = 0, size=SIZE) -> np.ndarray:
    rows = (np.arange(size[0])[:, None] * 3 + np.arange(size[1]) + number * 7) % 251
    return rows.astype(np.uint8)


def draw_images(folder: Path, names=tuple(BOXES), size=SIZE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        PIL.Image.fromarray(ramp(number, size)).save(folder / name)
    return folder


def coco(boxes=BOXES, **fields) -> dict:
    images = [
        {"id": number, "file_name": name, "height": SIZE[0], "width": SIZE[1]}
        for number, name in enumerate(boxes)
    ]
    marked = [
        {
            "id": 100 * number + place,
            "image_id": number,
            "category_id": 1 + CLASSES.index(label),
            "bbox": [x0, y0, x1 - x0, y1 - y0],
        }
        for number, of in enumerate(boxes.values())
        for place, (label, (x0, y0, x1, y1)) in enumerate(of)
    ]
    names = [{"id": 1 + number, "name": name} for number, name in enumerate(CLASSES)]
    return {"images": images, "annotations": marked, "categories": names} | fields


def write_coco(folder: Path) -> None:
    (folder / "instances.json").write_text(json.dumps(coco()))


def write_voc(folder: Path) -> None:
    (folder / "annotations").mkdir()
    for name, of in BOXES.items():
        objects = "".join(
            f"<object><name>{label}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin>"
            f"<xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
            for label, (x0, y0, x1, y1) in of
        )
        (folder / "annotations" / f"{Path(name).stem}.xml").write_text(
            f"<annotation><filename>{name}</filename><size><width>{SIZE[1]}</width>"
            f"<height>{SIZE[0]}</height><depth>1</depth></size>{objects}</annotation>"
        )


def write_yolo(folder: Path) -> None:
    (folder / "labels").mkdir()
    height, width = SIZE
    for name, of in BOXES.items():
        lines = [
            f"{CLASSES.index(label)} {(x0 + x1) / 2 / width:.6f} {(y0 + y1) / 2 / height:.6f} "
            f"{(x1 - x0) / width:.6f} {(y1 - y0) / height:.6f}\n"
            for label, (x0, y0, x1, y1) in of
        ]
        (folder / "labels" / f"{Path(name).stem}.txt").write_text("".join(lines))
    (folder / "data.yaml").write_text("nc: 2\nnames:\n  0: Effusion\n  1: 'Nodule'\n")


def write_cvat(folder: Path) -> None:
    images = "".join(
        f'<image id="{number}" name="{name}" width="{SIZE[1]}" height="{SIZE[0]}">'
        + "".join(
            f'<box label="{label}" occluded="0" xtl="{x0}" ytl="{y0}" xbr="{x1}" ybr="{y1}"></box>'
            for label, (x0, y0, x1, y1) in of
        )
        + "</image>"
        for number, (name, of) in enumerate(BOXES.items())
    )
    text = f'<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version>{images}'
    (folder / "annotations.xml").write_text(text + "</annotations>")


def label_studio_task(name: str, of, **fields) -> dict:
    height, width = SIZE
    result = [
        {
            "type": "rectanglelabels",
            "to_name": "image",
            "original_width": width,
            "original_height": height,
            "value": {
                "x": 100 * x0 / width,
                "y": 100 * y0 / height,
                "width": 100 * (x1 - x0) / width,
                "height": 100 * (y1 - y0) / height,
                "rectanglelabels": [label],
            },
        }
        for label, (x0, y0, x1, y1) in of
    ]
    address = f"/data/upload/3/0123abcd-{name}"
    return {"data": {"image": address}, "annotations": [{"result": result}]} | fields


def write_label_studio(folder: Path) -> None:
    tasks = [label_studio_task(name, of) for name, of in BOXES.items()]
    (folder / "project.json").write_text(json.dumps(tasks))


def csv_text(header="image_id,class_name,x_min,y_min,x_max,y_max", sep=",", row=None) -> str:
    row = row or (lambda name, label, box: [Path(name).stem, label, *box])
    lines = [header]
    for name, of in BOXES.items():
        lines += [sep.join(map(str, row(name, label, box))) for label, box in of]
        if not of:
            lines.append(sep.join(map(str, row(name, "No finding", ("",) * 4))))
    return "\n".join(lines) + "\n"


def write_csv(folder: Path) -> None:
    (folder / "boxes.csv").write_text(csv_text())


def _dataset(path: Path, kind: str, uid: str) -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = f"1.2.840.10008.5.1.4.1.1.{kind}"
    meta.MediaStorageSOPInstanceUID = uid
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, uid
    return dataset


def dicom_image(path: Path, uid: str, number: int = 0, pixels=None, **elements) -> Path:
    """A grey image of those stored values, of a patient by number; elements are set in the end."""
    stored = ramp(number) if pixels is None else pixels
    image = _dataset(path, "1.1", uid)
    image.PatientID = f"patient {number}"
    image.Rows, image.Columns = stored.shape
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
    image.BitsAllocated = image.BitsStored = 8 * stored.itemsize
    image.HighBit, image.PixelRepresentation = image.BitsStored - 1, 0
    image.PixelData = stored.tobytes()
    for name, value in elements.items():
        setattr(image, name, value)
    image.save_as(path, enforce_file_format=True)
    return path


def content(kind: str, concept: tuple[str, str], items=(), **fields):
    item = Dataset()
    item.ValueType, item.ConceptNameCodeSequence = kind, _code(*concept)
    for name, value in fields.items():
        setattr(item, name, value)
    if items:
        item.ContentSequence = list(items)
    return item


def _code(value: str, meaning: str) -> list[Dataset]:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, "DCM", meaning
    return [item]


def report(path: Path, groups, patient: str = "7", kind: str = "SCOORD") -> None:
    """A report of TID 1500's form; `groups` are (uid, label, corners or None)."""
    measured = []
    for uid, label, box in groups:
        reference = Dataset()
        reference.ReferencedSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
        reference.ReferencedSOPInstanceUID = uid
        image = content("IMAGE", ("260753009", "Source"), ReferencedSOPSequence=[reference])
        if box is None:
            measured.append(image)
            continue
        x0, y0, x1, y1 = box
        shape = {"GraphicType": "POLYLINE", "GraphicData": [x0, y0, x1, y0, x1, y1, x0, y1, x0, y0]}
        region = content(kind, ("111030", "Image Region"), [image], **shape)
        finding = content("CODE", ("121071", "Finding"), ConceptCodeSequence=_code("1", label))
        measured.append(content("CONTAINER", ("125007", "Measurement Group"), [finding, region]))
    root = _dataset(path, "88.33", "1.2.3.99")
    root.PatientID, root.Modality, root.ValueType = patient, "SR", "CONTAINER"
    root.ConceptNameCodeSequence = _code("126000", "Imaging Measurement Report")
    root.ContentSequence = [content("CONTAINER", ("126010", "Imaging Measurements"), measured)]
    root.save_as(path, enforce_file_format=True)


def write_dicom_sr(folder: Path) -> None:
    for number, (name, of) in enumerate(BOXES.items()):
        (folder / "images" / name).unlink()
        uid = f"1.2.3.{number + 1}"
        dicom_image(folder / "images" / f"{Path(name).stem}.dcm", uid, number)
        groups = [(uid, label, box) for label, box in of] or [(uid, "", None)]
        report(folder / f"report{number}.dcm", groups, f"patient {number}")


def write_masks(folder: Path) -> None:
    for label in CLASSES:
        (folder / "masks" / label).mkdir(parents=True)
        for name, of in BOXES.items():
            mask = np.zeros(SIZE, np.uint8)
            for other, (x0, y0, x1, y1) in of:
                if other == label:
                    mask[y0:y1, x0:x1] = 255
            PIL.Image.fromarray(mask).save(folder / "masks" / label / name)


WRITERS: dict[str, Callable[[Path], None]] = {
    "coco": write_coco,
    "pascal_voc": write_voc,
    "yolo": write_yolo,
    "cvat": write_cvat,
    "label_studio": write_label_studio,
    "csv": write_csv,
    "dicom_sr": write_dicom_sr,
    "masks": write_masks,
}
