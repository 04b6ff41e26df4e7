"""Images for the benchmark of input pipelines: phantoms 1024 x 1024, with questions."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian

from bench.process import HERE
from cxrjax.records import Answer, QARecord, write_records
from cxrjax.records_io.tfds_builders import CxrRecords

SIDE = 1024
# Of the large files that hospitals have; detectors give 12 bits.
DICOM_SIDE, DICOM_BITS = 2048, 12
JPEG_QUALITY = 95
# Each of its own element, so that the order is one of some thousand elements: Grain shuffles a few
# dozen a hundred times slower than as many as there are in training.
QUESTIONS = 100
KINDS = ("jpeg", "colour_jpeg", "dicom")


def make(folder: Path, count: int) -> None:
    """Writes `folder/{jpeg,colour_jpeg,dicom}/` with records, and the first as a TFDS data set in
    `folder/array_record`, unless they are there."""
    if (folder / "array_record").is_dir():
        return
    build = ["cxrjax.build", "--dataset=phantom", "--seed=0", f"--images={count}"]
    build += ["--validation_images=1", f"--long_side={SIDE}", f"--out={folder / 'phantoms'}"]
    shutil.rmtree(folder / "phantoms", ignore_errors=True)
    subprocess.run([sys.executable, "-m", *build], check=True, capture_output=True, cwd=HERE.parent)
    files = sorted((folder / "phantoms" / "images").glob("*train*"))
    for kind in KINDS:
        (folder / kind / "images").mkdir(parents=True, exist_ok=True)
        suffix = "dcm" if kind == "dicom" else "jpg"
        for number, file in enumerate(files):
            with Image.open(file) as image:
                _write(
                    image.convert("L"), folder / kind / "images" / f"{number:03d}.{suffix}", kind
                )
        side = DICOM_SIDE if kind == "dicom" else SIDE
        numbers = [(n, question) for n in range(len(files)) for question in range(QUESTIONS)]
        records = (_record(n, question, suffix, side) for n, question in numbers)
        write_records(folder / kind / "records" / "train.jsonl", records)
        (folder / kind / "manifest.json").write_text("{}", encoding="utf-8")
    builder = CxrRecords(source=str(folder / "jpeg"), data_dir=str(folder / "tfds"))
    builder.download_and_prepare()
    Path(builder.data_dir).rename(folder / "array_record")


def _write(image: Image.Image, file: Path, kind: str) -> None:
    if kind != "dicom":
        square = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        square = square if kind == "jpeg" else square.convert("RGB")
        square.save(file, quality=JPEG_QUALITY)
        return
    square = image.resize((DICOM_SIDE, DICOM_SIDE), Image.Resampling.BICUBIC)
    levels = 2**DICOM_BITS
    grey = np.asarray(square, np.float32) * (levels / 256)
    grey += np.random.default_rng(0).normal(0, levels / 256, grey.shape)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    dataset = Dataset()
    dataset.file_meta = meta
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3"
    dataset.Rows = dataset.Columns = DICOM_SIDE
    dataset.SamplesPerPixel, dataset.PixelRepresentation = 1, 0
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, DICOM_BITS, DICOM_BITS - 1
    dataset.RescaleSlope, dataset.RescaleIntercept = 1, 0
    dataset.WindowCenter, dataset.WindowWidth = levels // 2, levels
    dataset.PixelData = np.clip(grey, 0, levels - 1).astype(np.uint16).tobytes()
    dataset.save_as(file, enforce_file_format=True)


def _record(number: int, question: int, suffix: str, side: int) -> QARecord:
    return QARecord(
        dataset="synthetic",
        split="train",
        image_id=f"{number:03d}",
        image_path=f"images/{number:03d}.{suffix}",
        image_hw=(side, side),
        question_id=f"q{number:03d}-{question}",
        question="Is there a nodule?",
        question_type="presence",
        answers=[Answer(answer_id="a", text="No.", polarity="neg")],
    )
