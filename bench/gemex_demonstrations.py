"""Thirty images of our own, drawn phantoms and grafts, with one GEMeX record each.

    python -m bench.gemex_demonstrations FOLDER

draws the images by their seeds, asks, and writes FOLDER/demonstrations.jsonl, which somebody looks
through before it goes into the package, where a language model is shown it, and FOLDER/sheet.png
for that: each image with its boxes (yellow), the simulated lesions (red), and below it the record.
"""

import csv
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw

from cxrjax.images.decode import image_size, read_image
from cxrjax.papers.gemex.build import GemexBuilder, GemexOptions
from cxrjax.papers.gemex.construct import language_model
from cxrjax.papers.gemex.construct.construction import GemexConstruction
from cxrjax.papers.gemex.construct.questions import RefinedReport
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from cxrjax.papers.gemex.construct.template_generator import TemplateGenerator
from cxrjax.papers.sources.regions import Box, enclosing
from cxrjax.papers.sources.report import ImageReport, ReportSentence
from cxrjax.records import QARecord, read_records
from cxrjax.records_io.quality import QualityLog
from cxrjax.simulation.lesions import LesionBuilder, LesionOptions
from cxrjax.simulation.studies.build import TRUTH, StudiesBuilder, StudiesOptions

RECORDS = Path(str(language_model.__file__)).with_name(language_model.DEMONSTRATIONS)
RADIOGRAPHS = Path(__file__).parents[1] / "data" / "radiographs"
PHANTOMS, GRAFTS = 18, 12
SEED = 2024
KINDS = ("open_ended", "closed_ended", "single_choice", "multi_choice")
# What a class of lesions is called in a report; of the others a report would say less for certain.
NOUNS = {
    "Atelectasis": "atelectasis", "Consolidation": "consolidation", "Lung Opacity": "opacity",
    "Nodule/Mass": "nodule", "Pleural effusion": "pleural effusion", "Pneumothorax": "pneumothorax",
    "Pleural thickening": "pleural thickening", "Pulmonary fibrosis": "scarring",
    "Calcification": "calcified granuloma", "ILD": "interstitial thickening",
    "Cardiomegaly": "cardiomegaly", "Aortic enlargement": "tortuous aorta",
}  # fmt: skip
# Classes without a side: what is said of them, and the region that has their box.
WHOLE = {
    "Cardiomegaly": ("There is cardiomegaly.", "cardiac silhouette"),
    "Aortic enlargement": ("The aorta is tortuous.", "mediastinum"),
    "ILD": ("There is interstitial thickening.", None),
}


def make(folder: Path) -> list[dict[str, Any]]:
    """Thirty entries: what a line of `demonstrations.jsonl` has, with `path` and `lesions`."""
    phantoms, grafts = [*_phantoms(folder / "phantoms")], [*_grafts(folder / "grafts")]
    asked: dict[str, list[QARecord]] = {}
    refined = [one for one, _, _ in (*phantoms, *grafts)]
    for record in GemexConstruction(RuleRefiner(), TemplateGenerator(SEED), QualityLog()).records(
        refined, "test"
    ):
        asked.setdefault(record.image_id, []).append(record)
    made = []
    for some, count in ((phantoms, PHANTOMS), (grafts, GRAFTS)):
        made += [one for one in some if one[0].report.image_id in asked][:count]
    return [_entry(n, asked[one[0].report.image_id], *one) for n, one in enumerate(made)]


Made = tuple[RefinedReport, Path, list[tuple[str, Box]]]  # boxes in fractions


def _entry(
    number: int, records: list[QARecord], refined: RefinedReport, path: Path, lesions: list
) -> dict[str, Any]:
    """One of an image's records: of each type in turn, of findings before normal parts."""
    kind = KINDS[number % len(KINDS)]
    own = [one for one in records if one.question_type == kind] or records
    named = [one for one in own if "/condition/" not in str(one.template_id)] or own
    record = named[number // len(KINDS) % len(named)]
    height, width = record.image_hw or (1, 1)
    sides = np.array([width, height, width, height])
    names = {"image": "image_id", "question": "question", "type": "question_type"}
    names |= {"content": "content_type", "choices": "choices", "key": "answer_key"}
    told = {name: getattr(record, field) for name, field in names.items()}
    told["reason"] = record.reason
    told["sentences"] = [[one.text, one.region] for one in refined.refinement.sentences]
    told["regions"] = record.answers[0].regions
    told["boxes"] = (np.array(record.boxes) / sides).round(3).tolist()
    return told | {"path": path, "lesions": lesions, "record": record}


def _phantoms(folder: Path) -> Iterator[Made]:
    options = StudiesOptions(folder, seed=SEED, studies=PHANTOMS + 10, long_side=320, processes=1)
    StudiesBuilder(options).build()
    lesions = {}
    for line in (folder / TRUTH).read_text(encoding="utf-8").splitlines():
        for image in json.loads(line)["images"]:
            hw, own = (image["height"], image["width"]), image.get("lesions", ())
            lesions[image["dicom_id"]] = [(one["finding"], _part(one["box"], hw)) for one in own]
    refined = GemexBuilder(GemexOptions(folder, folder / "out", processes=1)).plan()
    for one in sorted(refined, key=lambda one: one.report.image_id):
        image_id = one.report.image_id
        yield one, next(folder.glob(f"files/**/{image_id}.jpg")), lesions[image_id]


def _part(box: Iterable[float], hw: tuple[int, int]) -> Box:
    """A box in fractions of its image."""
    height, width = hw
    return tuple(np.divide(box, [width, height, width, height]).tolist())


def _grafts(folder: Path) -> Iterator[Made]:
    with open(RADIOGRAPHS / "lungs.csv", encoding="utf-8", newline="") as table:
        rows = [row for row in csv.DictReader(table) if row["finding"] == "normal"][: GRAFTS + 4]
    for part, ending in (("images", ".jpeg"), ("masks", ".png")):
        (folder / "in" / part).mkdir(parents=True)
        for row in rows:
            name = Path(row["file"]).stem + ending
            shutil.copy(RADIOGRAPHS / part / name, folder / "in" / part / name)
    with open(folder / "in" / "lungs.csv", "w", encoding="utf-8", newline="") as table:
        writer = csv.DictWriter(table, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    options = LesionOptions(
        folder / "in", folder / "out", seed=SEED, normal_percent=0, contrast=1.6, processes=1,
        long_side=384, ask_lungs=True,
    )  # fmt: skip
    LesionBuilder(options).build()
    records: dict[str, list[QARecord]] = {}
    for file in sorted((folder / "out" / "records").glob("*.jsonl")):
        for record in read_records(file):
            records.setdefault(record.image_id, []).append(record)
    for image_id, own in sorted(records.items()):
        path = folder / "out" / own[0].image_path
        report, lesions = _graft_report(image_id, own, image_size(path))
        refinement = next(iter(RuleRefiner().refine([report])))
        yield RefinedReport(*refinement), path, lesions


def _graft_report(
    image_id: str, own: list[QARecord], hw: tuple[int, int]
) -> tuple[ImageReport, list[tuple[str, Box]]]:
    """A report of what was grafted, on the side where its box lies, and boxes of its regions."""
    lungs = {one.finding: one.boxes[0] for one in own if one.finding in ("right lung", "left lung")}
    readings = [marks for one in own for marks in (one.readers or {}).values()]
    marked = {mark.label: mark.box for marks in readings for mark in marks}
    boxes: dict[str, Box] = {name: _part(box, hw) for name, box in lungs.items()}
    lesions = [(label, _part(box, hw)) for label, box in marked.items()]
    middle = (boxes["right lung"][2] + boxes["left lung"][0]) / 2
    sentences, wide = [], enclosing(boxes.values())
    for label, box in lesions:
        side = "right" if (box[0] + box[2]) / 2 < middle else "left"
        if label in WHOLE:
            sentence, region = WHOLE[label]
            sentences.append(sentence)
            boxes |= {region: box} if region else {}
        elif label in NOUNS:
            article = "" if NOUNS[label].endswith(("ing", "sis", "ion")) else "a "
            article = {"pleural effusion": "a large ", "opacity": "an "}.get(NOUNS[label], article)
            sentences.append(f"There is {article}{NOUNS[label]} in the {side} lung.")
    sentences.append("The trachea is midline.")
    said, common = " ".join(sentences), ("pneumothorax", "pleural effusion", "consolidation")
    denied = [noun for noun in (*common, "cardiomegaly") if noun not in said]
    sentences += [f"There is no {noun}." for noun in denied]
    boxes["bilateral lung"] = wide
    told = tuple(ReportSentence(one) for one in sentences)
    return ImageReport(image_id, image_id, "", told, boxes, image_hw=hw), lesions


def line(entry: dict[str, Any]) -> str:
    """An entry as it stands in the file."""
    kept = {key: value for key, value in entry.items() if key not in ("path", "lesions", "record")}
    return json.dumps(kept, ensure_ascii=False)


def draw_sheet(entries: list[dict[str, Any]], out: Path, columns: int = 5) -> None:
    """The pictures in a grid, each with boxes and record."""
    side, text = 380, 150
    rows = -(-len(entries) // columns)
    sheet = PIL.Image.new("RGB", (columns * side, rows * (side + text)), "white")
    draw = PIL.ImageDraw.Draw(sheet)
    for number, entry in enumerate(entries):
        x, y = number % columns * side, number // columns * (side + text)
        picture = PIL.Image.fromarray(read_image(entry["path"])).convert("RGB")
        sheet.paste(picture.resize((side - 6, side - 6)), (x, y))
        drawn = {"red": [box for _, box in entry["lesions"]], "yellow": entry["boxes"]}
        for colour, boxes in drawn.items():
            for box in boxes:
                corners = np.multiply(box, side - 6) + [x, y, x, y]
                draw.rectangle(corners.tolist(), outline=colour, width=2)
        told = [f"{number}  " + ", ".join(label for label, _ in entry["lesions"])]
        told += [entry["question"], *(entry["choices"] or ())]
        told += [f"-> {entry['key']}  {entry['regions']}", entry["reason"]]
        written = [one[i : i + 62] for one in told for i in range(0, len(one), 62)]
        draw.multiline_text((x + 2, y + side - 4), "\n".join(written[:11]), fill="black", spacing=1)
    sheet.save(out)


def main(folder: Path) -> None:
    """Writes the records and the sheet."""
    entries = make(folder)
    with open(folder / RECORDS.name, "w", encoding="utf-8") as file:
        file.writelines(line(entry) + "\n" for entry in entries)
    draw_sheet(entries, folder / "sheet.png")
    print(f"{folder}: {RECORDS.name}, sheet.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
