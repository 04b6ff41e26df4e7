"""Records of the real radiographs with lung boxes: "Where is the patient's right lung?" and so on.

    python data/real_cxr/make_records.py --source=FOLDER --out=FOLDER2/records.jsonl
    python -m cxrjax.build --dataset=records --source=FOLDER2 --out=DIR

FOLDER holds the radiographs and a records.jsonl of their own kind: a line an image with `image`
(path), `width`, `height`, `patient_id`, `view` and `boxes`, each with `xyxy` in pixels of the
original and `side`. README.md beside this file says where they come from. The images stay where
they are, as they are: image_path in the records is relative to the folder of --out.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.images.decode import image_size
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import format_box
from cxrjax.radiology_text.english import join
from cxrjax.records import Answer, QARecord, write_records
from cxrjax.records_io.split import validation_groups

# As the source writes the side of a box.
_SIDES = {
    "right lung": "patient right (image left)",
    "left lung": "patient left (image right)",
}
_QUESTIONS = {
    "right lung": ("Where is the patient's right lung?", "The right lung is located at {}."),
    "left lung": ("Where is the patient's left lung?", "The left lung is located at {}."),
    "lungs": ("Where are the lungs?", "The lungs are located at {}."),
}


def records_of(image: dict[str, Any], split: str, folder: Path, out: Path) -> Iterator[QARecord]:
    """The three questions about one image.

    Raises:
        UserError: the file's size is not what the line says, so that its boxes would not fit, or
            there is not one box for each side.
    """
    path = folder / image["image"]
    image_id = path.stem
    image_hw = image_size(path)
    if image_hw != (image["height"], image["width"]):
        raise UserError(
            f"{path}: {image_hw[0]}x{image_hw[1]} (height x width) as displayed, but its line says "
            f"{image['height']}x{image['width']}"
        )
    boxes = {}
    for name, side in _SIDES.items():
        found = [box["xyxy"] for box in image["boxes"] if box.get("side") == side]
        if len(found) != 1:
            raise UserError(f"{path}: {len(found)} boxes with side {side!r}, expected one")
        boxes[name] = found
    boxes["lungs"] = boxes["right lung"] + boxes["left lung"]
    for number, (name, (question, answer)) in enumerate(_QUESTIONS.items()):
        yield QARecord(
            dataset="custom",
            split=split,
            patient_id=image["patient_id"],
            image_id=image_id,
            image_path=os.path.relpath(path, out.parent),
            image_hw=image_hw,
            view=image["view"],
            question_id=f"{image_id}-{number}",
            question=question,
            question_type="Where",
            variables={"finding": name},
            answers=[
                Answer(
                    text=answer.format(join([format_box(box) for box in boxes[name]])),
                    labels=[name],
                    polarity="pos",
                    boxes_by_image={image_id: boxes[name]},
                )
            ],
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the source's lines, divides them by patient and writes the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True, type=Path, help="folder of the radiographs")
    parser.add_argument("--out", required=True, type=Path, help="records file to write")
    parser.add_argument("--seed", type=int, default=0, help="decides the split (default 0)")
    flags = parser.parse_args(argv)
    source = flags.source / "records.jsonl"
    try:
        images = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UserError(f"{source}: cannot read: {error.strerror}") from None
    held_out = validation_groups({image["patient_id"] for image in images}, flags.seed)
    count = write_records(
        flags.out,
        (
            record
            for image in images
            for record in records_of(
                image,
                "validation" if image["patient_id"] in held_out else "train",
                flags.source,
                flags.out,
            )
        ),
    )
    print(f"{flags.out}: {count} questions, {len(held_out)} patients held out")


if __name__ == "__main__":
    run(main)
