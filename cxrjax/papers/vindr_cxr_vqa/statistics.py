"""The paper's Table 3 and its class distribution, with ours in them."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, NO_FINDING, ImageAnnotation
from cxrjax.records import QARecord
from cxrjax.records_io.statistics import Published, load_statistics, ratio, tables_markdown

# Figures of the paper; of an audit of the public box table, which are not the paper's.
_PRINTED = load_statistics(str(__package__))
PAPER: dict[str, Published] = _PRINTED["published"]
SOURCE_TABLE: dict[str, Published] = _PRINTED["published_source"]
BALANCES: Mapping[str, str] = _PRINTED["balances"]
TABLE_3: Mapping[str, Mapping[str, str]] = {"Table 3": _PRINTED["table_3"]}
# Each class's share of the questions, and what it rests on.
_CLASSES = {
    f"{name}: {what}": f"{key}/{name}"
    for name in CLASSES
    for what, key in (
        ("% of the questions", "finding_percent"),
        ("questions", "finding_questions"),
        ("boxes in the table", "source/boxes"),
        ("images in the table", "source/images"),
    )
}


def tables(entries: Mapping[str, Mapping[str, Any]], built: str) -> str:
    """tables.md.

    Args:
        entries: the content of statistics.json.
        built: what was built, a line for the head of the page.
    """
    title = "VinDr-CXR-VQA as built, beside the paper (arXiv 2511.00504v2)"
    about = [built, _PRINTED["notes"]["class_distribution"]]
    return tables_markdown(title, about, entries, {**TABLE_3, "Class distribution": _CLASSES})


_PER_CLASS = ("boxes", "images", "images_1_vote", "images_2_votes", "images_3_votes")


def table_values(images: Sequence[ImageAnnotation]) -> dict[str, float | None]:
    """Counts of a box table: rows, images, readers; boxes and votes of each class."""
    abnormal = sum(bool(image.findings) for image in images)
    boxes = sum(len(image.findings) for image in images)
    blank = sum(not marked for image in images for marked in image.readers.values())
    panels = {len(image.readers) for image in images}
    values: dict[str, float | None] = {
        "source/rows": boxes + blank,
        "source/images": len(images),
        "source/images_all_normal": sum(image.normal for image in images),
        "source/images_abnormal": abnormal,
        "source/readers": len({rad_id for image in images for rad_id in image.readers}),
        "source/readers_per_image": panels.pop() if len(panels) == 1 else None,
        "source/boxes": boxes,
        "source/boxes_per_abnormal_image": ratio(boxes, abnormal),
    }
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for image in images:
        counts.update(("boxes", finding.label) for finding in image.findings)
        for label in image.present:
            votes = image.votes(label)
            counts["images", label] += 1
            counts[f"images_{votes}_vote{'s' if votes > 1 else ''}", label] += 1
    for label in CLASSES:
        for kind in _PER_CLASS:
            values[f"source/{kind}/{label}"] = counts[kind, label]
    return values


def annotation_values(
    splits: Mapping[str, Iterable[ImageAnnotation]],
) -> dict[str, float | None]:
    """Counts of the ground truth of what was built: boxes, classes, lesions an image."""
    values: dict[str, float | None] = {}
    classes: set[str] = set()
    total = 0
    for split, images in splits.items():
        images = list(images)
        boxes = sum(len(image.findings) for image in images)
        crowded = sum(len(image.present) > 2 for image in images)
        classes.update(label for image in images for label in image.present)
        total += boxes
        values[f"{split}_images"] = len(images)
        values[f"{split}_boxes"] = boxes
        values[f"{split}_boxes_per_image"] = ratio(boxes, len(images))
        values[f"{split}_multi_lesion_percent"] = ratio(100 * crowded, len(images))
        agreed = sum(sum(image.votes(name) > 1 for name in image.present) > 2 for image in images)
        values[f"{split}_multi_lesion_percent/two_readers"] = ratio(100 * agreed, len(images))
    return {"boxes": total, "classes": len(classes - {NO_FINDING}), **values}


def recall_ceiling(images: Iterable[ImageAnnotation], records: Iterable[QARecord]) -> float | None:
    """Share of all boxes of the images that some answer shows.

    The most that a model can find which answers every question exactly, where each box of the truth
    wants a box of its own. Two readers' boxes of one lesion count as two here.
    """
    shown: dict[str, set[tuple[object, ...]]] = collections.defaultdict(set)
    for record in records:
        for answer in record.answers:
            for box in answer.boxes_by_image.get(record.image_id, []):
                shown[record.image_id].add((*answer.labels[:1], tuple(box)))
    found = total = 0
    for image in images:
        total += len(image.findings)
        found += sum((f.label, f.box) in shown[image.image_id] for f in image.findings)
    return ratio(found, total)
