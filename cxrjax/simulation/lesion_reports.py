"""Reports on simulated lesions in the layout of PadChest-GR's release (arXiv 2411.05085)."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from cxrjax.files import read_packaged, write_json

BOX = ("x_min", "y_min", "x_max", "y_max")
# (class, side of the patient) -> boxes, fractions of the image.
Lesions = Mapping[tuple[str, str], list[list[float]]]


def write_reports(
    out: Path, split_of: Mapping[str, str], images: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes grounded_reports.json and master_table.csv.

    Args:
        images: id -> the entry of an image, with the id of the study that it `follows` or "".
    """
    lesions = {name: lesions_by_side(**images[name]) for name in images}
    studies, rows = [], [("StudyID", "PatientID", "split", "StudyDate_DICOM")]
    for name, split in split_of.items():
        before = images[name]["follows"]
        study = {"StudyID": name, "ImageID": PurePosixPath(images[name]["image_path"]).name}
        if before:
            shown = PurePosixPath(images[before]["image_path"]).name
            study |= {"PreviousStudyID": before, "PreviousImageID": shown}
        found = lesion_findings(lesions[name], lesions[before] if before else None)
        studies.append(study | {"findings": list(found)})
        rows.append((name, images[name]["patient"], split, ""))
    write_json(out / "grounded_reports.json", studies)
    with (out / "master_table.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def lesions_by_side(
    lesions: list[Mapping[str, Any]], image_hw: tuple[int, int], **_: Any
) -> Lesions:
    """Groups the lesions of an image; organs have no side."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for row in lesions:
        box = [row[side] / image_hw[number % 2 == 0] for number, side in enumerate(BOX)]
        side = "left" if box[0] + box[2] >= 1 else "right"
        alone = _words()["classes"][row["label"]]["form"] == "alone"
        found.setdefault((row["label"], "" if alone else side), []).append(box)
    return found


def lesion_findings(lesions: Lesions, before: Lesions | None) -> Iterator[dict[str, Any]]:
    """Yields the sentences of a report with their boxes.

    Args:
        before: lesions of the study before; None: nothing is compared.
    """
    words, old = _words(), before or {}
    forms, classes = words["forms"], words["classes"]

    def finding(kind: str, labels: list[str], boxes: Any = (), **fill: Any) -> dict[str, Any]:
        several = fill.pop("lesions", 1) > 1 and "plural" in fill
        fill |= {"noun": fill["plural"], "article": ""} if several else {}
        fill |= {verb: both[several] for verb, both in words["verbs"].items()}
        said = {"sentence_en": forms[kind].format(**fill), "abnormal": bool(boxes)}
        change = {"progression": kind} if kind in (*words["growth"], "resolved") else {}
        return said | {"boxes": list(boxes), "labels": labels, **change}

    for (label, side), boxes in sorted(lesions.items()):
        about, share = classes[label], _area(boxes) / len(boxes)
        sizes = words["sizes"].items() if about["article"] else ()
        size = next((name for name, (low, high) in sizes if low <= share < high), "")
        form = "several" if len(boxes) > 1 and "plural" in about else about["form"]
        if before is not None and side:
            growth = _area(boxes) / _area(old[label, side]) if (label, side) in old else 0.0
            form = next(name for name, high in words["growth"].items() if growth <= high)
        fill = {"size": size, "side": side, "count": words["counts"].get(str(len(boxes)))}
        yield finding(form, [label], boxes, lesions=len(boxes), **fill, **about)
    for label, side in sorted(key for key in old.keys() - lesions.keys() if key[1]):
        count = len(old[label, side])
        yield finding("resolved", [label], side=side, lesions=count, **classes[label])
    if not lesions:
        yield finding("normal", [])
    named = {label for label, _ in (*lesions, *old)}
    if absent := [label for label in words["denied"] if label not in named]:
        yield finding("absent", absent, nouns=" or ".join(classes[one]["noun"] for one in absent))


def _area(boxes: list[list[float]]) -> float:
    return sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes)


def _words() -> dict[str, Any]:
    return read_packaged("cxrjax.simulation", "lesion_reports.toml")
