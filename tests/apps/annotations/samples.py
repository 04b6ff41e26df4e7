"""The same boxes on the same small images in every format that is read, and broken ones."""

import json
import shutil
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
CORNERS = "{stem},{label},{x0},{y0},{x1},{y1}"
FORMATS = Path(__file__).with_name("formats")


def ramp(number: int = 0, size=SIZE) -> np.ndarray:
    rows = (np.arange(size[0])[:, None] * 3 + np.arange(size[1]) + number * 7) % 251
    return rows.astype(np.uint8)


def draw_images(folder: Path, names=tuple(BOXES), size=SIZE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        PIL.Image.fromarray(ramp(number, size)).save(folder / name)
    return folder


def write_format(kind: str, folder: Path) -> None:
    """The boxes in a format, beside `images` in the folder."""
    if kind in ("dicom_sr", "masks"):
        {"dicom_sr": _write_dicom_sr, "masks": _write_masks}[kind](folder)
    else:
        shutil.copytree(FORMATS / kind, folder, dirs_exist_ok=True)


def coco(**fields) -> dict:
    return json.loads((FORMATS / "coco" / "instances.json").read_text()) | fields


def label_studio_task(number: int, regions: int | None = None, **fields) -> dict:
    """Of the image by number, with so many of its regions."""
    task = json.loads((FORMATS / "label_studio" / "project.json").read_text())[number]
    task["annotations"][0]["result"] = task["annotations"][0]["result"][:regions]
    return task | fields


def csv_text(header="image_id,class_name,x_min,y_min,x_max,y_max", row=CORNERS) -> str:
    """A table of all boxes; fx0 to fy1 are fractions of the image's size."""
    names = ["x0", "y0", "x1", "y1", "w", "h", "cx", "cy", "fx0", "fy0", "fx1", "fy1"]
    lines = [header]
    for name, of in BOXES.items():
        for label, box in of or [("No finding", None)]:
            told = dict.fromkeys(names, "")
            if box is not None:
                x0, y0, x1, y1 = box
                fractions = np.round(np.divide(box, SIZE[::-1] * 2), 5)
                sides = x1 - x0, y1 - y0, (x0 + x1) / 2, (y0 + y1) / 2
                told = dict(zip(names, (*box, *sides, *fractions), strict=True))
            lines.append(row.format(name=name, stem=Path(name).stem, label=label, **told))
    return "\n".join(lines) + "\n"


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


def _write_dicom_sr(folder: Path) -> None:
    for number, (name, of) in enumerate(BOXES.items()):
        (folder / "images" / name).unlink()
        uid = f"1.2.3.{number + 1}"
        dicom_image(folder / "images" / f"{Path(name).stem}.dcm", uid, number)
        groups = [(uid, label, box) for label, box in of] or [(uid, "", None)]
        report(folder / f"report{number}.dcm", groups, f"patient {number}")


def _write_masks(folder: Path) -> None:
    for label in CLASSES:
        (folder / "masks" / label).mkdir(parents=True)
        for name, of in BOXES.items():
            mask = np.zeros(SIZE, np.uint8)
            for other, (x0, y0, x1, y1) in of:
                if other == label:
                    mask[y0:y1, x0:x1] = 255
            PIL.Image.fromarray(mask).save(folder / "masks" / label / name)
