"""Cost of a records file before the first step: the first time, and at a resume.

    python -m bench.start [--records=100000]

Writes records without meaning of one image in ten questions, a third of them with a box, and prints
milliseconds of processor time a record of opening, checking and comparing with a validation set.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from cxrjax.cli import run
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.records import Answer, QARecord, write_records

_QUESTIONS_OF_AN_IMAGE = 10


def write_synthetic(folder: Path, count: int) -> Path:
    """A records file with its images, each file a link to the same pixels."""
    (folder / "images").mkdir()
    Image.fromarray(np.zeros((512, 400), np.uint8)).save(folder / "image.png")
    for number in range(-(-count // _QUESTIONS_OF_AN_IMAGE)):
        os.link(folder / "image.png", folder / "images" / f"{number}.png")
    write_records(path := folder / "records" / "train.jsonl", map(_record, range(count)))
    return path


def _record(number: int) -> QARecord:
    image = str(number // _QUESTIONS_OF_AN_IMAGE)
    box = [40.0, 50.0, 200.0, 300.0]
    text = "Yes, there is a nodule in the left upper zone at <loc_40_50_200_300>."
    answer = Answer(text="No, there is no nodule in this image.", polarity="neg")
    if number % 3 == 0:
        answer = Answer(text=text, polarity="pos", labels=["Nodule"], boxes_by_image={image: [box]})
    return QARecord(
        dataset="custom",
        split="train",
        patient_id=f"patient{image}",
        image_id=image,
        image_path=f"images/{image}.png",
        image_hw=(512, 400),
        question_id=str(number),
        question="Is there a nodule in this image, and where is it?",
        question_type="where",
        variables={"finding": "Nodule"},
        answers=[answer],
        reason="Nothing rounder than a rib's end is seen in either lung. " * 4,
    )


def measure(path: Path, validation: RecordSource) -> float:
    """Milliseconds of processor time a record before a run's first step."""
    start = time.process_time()
    source = RecordSource(path, record_codec="vindr_px")
    check_records(source)
    validation.identities().shared_with([source.identities()])
    return 1000 * (time.process_time() - start) / source.num_records


def main() -> None:
    """Prints a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000, help="default 100,000")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        path = write_synthetic(Path(folder), flags.records)
        validation = RecordSource(path).regrouped(1, range(flags.records // 10, flags.records))
        names = ("first_ms", "resume_ms")
        found = {name: round(measure(path, validation), 4) for name in names}
    print(json.dumps({"records": flags.records, **found}))


if __name__ == "__main__":
    run(main)
