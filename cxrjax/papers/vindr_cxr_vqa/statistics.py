"""The paper's Tables 1, 2 and 3 and its class distribution, with ours in them, as Markdown."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, NO_FINDING, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.native import FIELDS, to_native
from cxrjax.records import QARecord
from cxrjax.records_io.statistics import Published, load_statistics, ratio

Entries = Mapping[str, Mapping[str, Any]]  # as `cxrjax.records_io.statistics.compare` gives them

# Below this many questions a class's figures say little.
FEW = 10

# Figures of the paper; of an audit of the public box table, which are not the paper's.
_PRINTED = load_statistics(str(__package__))
PAPER: dict[str, Published] = _PRINTED["published"]
SOURCE_TABLE: dict[str, Published] = _PRINTED["published_source"]


def tables(entries: Entries, generator: str, built: str) -> str:
    """All tables.

    Args:
        entries: the content of statistics.json.
        generator: what wrote the questions.
        built: what was built, a line for the head of the page.
    """
    return (
        "\n\n".join(
            [
                "# VinDr-CXR-VQA as built, beside the paper (arXiv 2511.00504v2)",
                built,
                table_1(entries),
                table_2(entries, generator),
                table_3(entries),
                class_distribution(entries),
            ]
        )
        + "\n"
    )


def table_1(entries: Entries) -> str:
    """Data sets of medical questions compared."""
    images, questions = (_thousands(entries[name]["value"]) for name in ("images", "questions"))
    grounded = "yes" if entries["answer_boxes"]["value"] else "no"
    explained = "yes" if entries["reason_words_max"]["value"] else "no"
    ours = ("this build", images, questions, "chest X-ray", grounded, explained)
    heads = ("data set", "images", "questions", "modality", "grounded", "explained")
    note = _PRINTED["table_1"]["note"]
    return f"## Table 1\n\n{_markdown(heads, [*_PRINTED['table_1']['rows'], ours])}\n\n{note}"


def table_2(entries: Entries, generator: str) -> str:
    """The seven fields: where each comes from, and how often it says something."""
    lines = []
    for name, source in _PRINTED["table_2"].items():
        ours = generator if source == "API" else "box table"
        share = _number(_value(entries, f"field_filled_percent/{name}"))
        lines.append((f"`{name}`", source, ours, share))
    heads = ("field", "source (paper)", "source (here)", "filled, %")
    note = "Of questions whose answer is no, both gt_ fields are empty."
    return f"## Table 2\n\n{_markdown(heads, lines)}\n\n{note}"


def table_3(entries: Entries) -> str:
    """The data set in figures, each with the paper's, the difference and what explains it."""
    lines = []
    for title, names in _PRINTED["table_3"].items():
        for name in names:
            entry = entries.get(name)
            if entry:
                label = f"{title} {name.rpartition('/')[2]}" if len(names) > 1 else title
                lines.append(
                    (
                        label,
                        _number(entry["value"]),
                        _number(entry["paper"]),
                        _number(entry["difference"], sign=True),
                        entry["note"],
                    )
                )
    heads = ("attribute", "here", "paper", "difference", "note")
    return f"## Table 3\n\n{_markdown(heads, lines)}"


def class_distribution(entries: Entries) -> str:
    """Each class's share of the questions, and how many boxes, images and questions it rests on."""
    lines = []
    for name in CLASSES:
        share = entries.get(f"finding_percent/{name}", {})
        support = _value(entries, f"finding_questions/{name}") or 0
        mark = f" (fewer than {FEW})" if support < FEW else ""
        lines.append(
            (
                name + mark,
                _number(support),
                _number(share.get("value")),
                _number(share.get("paper")),
                _number(share.get("difference"), sign=True),
                _number(_value(entries, f"source/boxes/{name}")),
                _number(_value(entries, f"source/images/{name}")),
            )
        )
    heads = ("class", "questions", "%", "paper %", "difference", "boxes", "images in the table")
    note = (
        "The paper calls its distribution that of clinical prevalence; its shares are not those of "
        "the boxes or images of its source (Aortic enlargement: 19.8 % of the boxes, 10.4 % of the "
        "questions)."
    )
    return f"## Class distribution\n\n{_markdown(heads, lines)}\n\n{note}"


def _value(entries: Entries, name: str) -> float | None:
    return entries.get(name, {}).get("value")


def _thousands(count: float) -> str:
    return f"{count / 1000:.1f}K"


def _number(value: Any, sign: bool = False) -> str:
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return " to ".join(_number(bound) for bound in value)
    plus = "+" if sign else ""
    if value == int(value):
        return f"{int(value):{plus},}" if value or not sign else "0"
    digits = 3 if abs(value) < 1 else 2
    return f"{value:{plus}.{digits}f}"


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines))


# What a phantom data set imitates; its sizes are free.
PHANTOM_PAPER = {
    name: published
    for name, published in PAPER.items()
    if name in ("classes", "question_types") or name.startswith("polarity_percent/")
}

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


def fill_rates(records: Sequence[QARecord]) -> dict[str, float | None]:
    """Percentages of questions in which each of Table 2's seven fields says something."""
    filled: collections.Counter[str] = collections.Counter()
    questions = 0
    for image in to_native(records):
        for question in image["vqa"]:
            questions += 1
            filled.update(name for name in FIELDS if question[name])
    return {f"field_filled_percent/{name}": ratio(100 * filled[name], questions) for name in FIELDS}
