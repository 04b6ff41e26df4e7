"""Table (image, split, finding, box or nothing) to records."""

import csv
import os

from cxrjax.codecs import get_codec
from cxrjax.images.decode import image_size
from cxrjax.records import Answer, QARecord
from cxrjax.records_io.builder import Builder, SourceOptions
from cxrjax.records_io.quality import Unusable, check_box

CLASSES = ("nodule", "effusion")


class ElsewhereBuilder(Builder[SourceOptions]):
    """Reads table.csv and the images beside it."""

    dataset = "elsewhere"
    options_class = SourceOptions

    def read(self) -> dict[str, list[QARecord]]:
        splits: dict[str, list[QARecord]] = {}
        with open(self.options.source / "table.csv", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file)):
                try:
                    record = self._record(number, row)
                except Unusable as fault:
                    where = f"table.csv:{number + 2}"
                    self.quality.set_aside(fault.reason, row["image"], where, fault.found)
                    continue
                splits.setdefault(record.split, []).append(record)
        return splits

    def _record(self, number: int, row: dict[str, str]) -> QARecord:
        finding, image = row["finding"], self.options.source / row["image"]
        height, width = image_size(image)
        boxes = [[float(side) for side in row["box"].split()]] if row["box"] else []
        text = f"There is no {finding}."
        for x_min, y_min, x_max, y_max in boxes:
            check_box((x_min, y_min, x_max, y_max), (height, width))
            fractions = [[x_min / width, y_min / height, x_max / width, y_max / height]]
            text = f"Yes, a {finding} {get_codec('llava').encode(fractions, height, width)}"
        shown = {row["image"]: boxes} if boxes else {}
        said = "pos" if boxes else "neg"
        answer = Answer(text=text, labels=[finding], polarity=said, boxes_by_image=shown)
        return QARecord(
            dataset="elsewhere",
            split=row["split"],
            image_id=row["image"],
            image_path=os.path.relpath(image, self.options.out),
            image_hw=(height, width),
            question_id=f"e{number}",
            question=f"Is there a {finding}?",
            question_type="presence",
            variables={"finding": finding},
            answers=[answer],
            answer_key="yes" if boxes else "no",
        )


def check_record(record: QARecord) -> list[str]:
    """Lists contradictions between key and boxes."""
    same = (record.answer_key == "yes") == bool(record.boxes)
    return [] if same else [f"key {record.answer_key!r} with {len(record.boxes)} boxes"]
