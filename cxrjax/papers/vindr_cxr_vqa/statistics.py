"""The paper's Tables 1, 2 and 3 and its class distribution, with ours in them, as Markdown."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, NO_FINDING, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.native import FIELDS, to_native
from cxrjax.records import QARecord
from cxrjax.records_io.statistics import Published, ratio

Entries = Mapping[str, Mapping[str, Any]]  # as `cxrjax.records_io.statistics.compare` gives them

# Below this many questions a class's figures say little.
FEW = 10

# Table 1: images, question-answer pairs (thousands, as printed), modalities, grounded, explained.
_OTHERS = (
    ("VQA-RAD", "0.3K", "3.5K", "diverse", "no", "no"),
    ("SLAKE", "0.6K", "14K", "diverse", "no", "no"),
    ("PathVQA", "149K [1]", "33K", "pathology", "no", "no"),
    ("MIMIC-CXR-VQA", "143K", "377K", "chest X-ray", "no", "no"),
    ("VinDr-CXR-VQA (paper)", "4.4K", "17.6K", "chest X-ray", "yes", "yes"),
)
_TABLE_1_NOTE = "[1] So printed; PathVQA's own paper has 4,998 images."

# Table 2: the paper's source of each field.
_FIELDS = {
    "question": "API",
    "answer": "API",
    "reason": "API",
    "type": "API",
    "difficulty": "API",
    "gt_finding": "VinDr-CXR",
    "gt_location": "VinDr-CXR",
}

# Table 3: attribute -> names of statistics.json.
_TABLE_3_ROWS = {
    "Source images": ("images",),
    "Questions": ("questions",),
    "Questions an image": ("questions_per_image",),
    "Classes": ("classes",),
    "Question types": ("question_types",),
    "Training images": ("train_images",),
    "Training questions": ("train_questions",),
    "Validation images": ("validation_images",),
    "Test images": ("test_images",),
    "Easy %": ("difficulty_percent/Easy",),
    "Medium %": ("difficulty_percent/Medium",),
    "Type %": tuple(
        f"question_type_percent/{name}"
        for name in ("Where", "What", "Is_there", "How_many", "Which", "Yes_No")
    ),
    "Positive %": ("polarity_percent/pos",),
    "Negative %": ("polarity_percent/neg",),
    "Validation: more than two pathologies %": ("validation_multi_lesion_percent",),
    "Validation: the same, of two readers %": ("validation_multi_lesion_percent/two_readers",),
    "Validation: boxes an image": ("validation_boxes_per_image",),
    "Validation: boxes": ("validation_boxes",),
    "Validation: recall ceiling": ("validation_recall_ceiling",),
    "Reasons: fewest words": ("reason_words_min",),
    "Reasons: most words": ("reason_words_max",),
}


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
    return f"## Table 1\n\n{_markdown(heads, [*_OTHERS, ours])}\n\n{_TABLE_1_NOTE}"


def table_2(entries: Entries, generator: str) -> str:
    """The seven fields: where each comes from, and how often it says something."""
    lines = []
    for name, source in _FIELDS.items():
        ours = generator if source == "API" else "box table"
        share = _number(_value(entries, f"field_filled_percent/{name}"))
        lines.append((f"`{name}`", source, ours, share))
    heads = ("field", "source (paper)", "source (here)", "filled, %")
    note = "Of questions whose answer is no, both gt_ fields are empty."
    return f"## Table 2\n\n{_markdown(heads, lines)}\n\n{note}"


def table_3(entries: Entries) -> str:
    """The data set in figures, each with the paper's, the difference and what explains it."""
    lines = []
    for title, names in _TABLE_3_ROWS.items():
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


_TABLE_3 = "Table 3"
_ABSTRACT = (
    "abstract; the released file has no negative question, 5/12 to 7/12 is a training mix's share"
)
_RULE = (
    "the rule is ours: Easy asks whether or where, of a class that the reader drew at most twice"
)
_CARD = (
    "data card of the release; neither of the boxes nor of the images are these the shares. Ours "
    "rotates over the classes of an image"
)
# Average 4.0 in Table 3; 17,597 is 21 more than four on each image.
PAPER = {
    "images": Published(4394, f"{_TABLE_3}; a mix adds images without findings"),
    "boxes": Published(None, "not printed for all images; see source/boxes"),
    "questions": Published(17597, f"{_TABLE_3}; four an image are 17,576"),
    "questions_per_image": Published(4.0, _TABLE_3),
    "classes": Published(14, _TABLE_3),
    "question_types": Published(6, _TABLE_3),
    "train_images": Published(3735, f"{_TABLE_3}; a mix adds images without findings"),
    "validation_images": Published(659, _TABLE_3),
    "test_images": Published(300, f"{_TABLE_3}; of the official test part, if the source has it"),
    "train_questions": Published(
        20880, "section 3.1; more than the whole data set has (17,597): --mix=paper"
    ),
    "validation_boxes": Published(5471, "section 3.2; all readers' boxes of other 659 images"),
    "validation_boxes_per_image": Published(8.3, f"{_TABLE_3}; all readers' boxes, unfused"),
    "validation_multi_lesion_percent": Published(
        54.8,
        f"{_TABLE_3}, more than two pathologies; ours counts classes that any reader marked: 65.5 "
        "% of the 4,394 images, so about 65 % of any stratified split. With at least two readers "
        "(next line) it is fewer; no count of ours gives 54.8, whose rule is not stated",
    ),
    "validation_multi_lesion_percent/two_readers": Published(
        54.8, f"{_TABLE_3}; counts classes that at least two readers marked"
    ),
    "validation_recall_ceiling": Published(
        0.482,
        "2,639 questions with a box each on 5,471 boxes (arithmetic on Table 3 and section 3.2): "
        "the most that one-to-one matching against all readers' boxes can find. Lower here where "
        "two questions show the same box; 1 with --questions=dense",
    ),
    "reason_words_min": Published(150, "Table 2"),
    "reason_words_max": Published(250, "Table 2"),
    "difficulty_percent/Easy": Published(49.1, f"{_TABLE_3}; {_RULE}"),
    "difficulty_percent/Medium": Published(50.9, f"{_TABLE_3}; {_RULE}"),
    "polarity_percent/pos": Published(41.7, _ABSTRACT),
    "polarity_percent/neg": Published(58.3, _ABSTRACT),
    **{
        f"question_type_percent/{name}": Published((16.4, 17.0), _TABLE_3)
        for name in ("Where", "What", "Is_there", "How_many", "Which", "Yes_No")
    },
    **{
        f"finding_percent/{name}": Published(share, _CARD)
        for name, share in {
            "Cardiomegaly": 28.0,
            "Pulmonary fibrosis": 14.0,
            "Lung Opacity": 13.3,
            "Pleural effusion": 13.2,
            "Aortic enlargement": 10.4,
            "Calcification": 8.1,
            "Other lesion": 3.7,
            "Pleural thickening": 2.9,
            "Infiltration": 1.8,
            "Pneumothorax": 1.7,
            "Nodule/Mass": 1.2,
            "ILD": 1.1,
            "Consolidation": 0.3,
            "Atelectasis": 0.1,
        }.items()
    },
}

# What a phantom data set imitates; its sizes are free.
PHANTOM_PAPER = {
    name: published
    for name, published in PAPER.items()
    if name in ("classes", "question_types") or name.startswith("polarity_percent/")
}

_AUDIT = "audit of the public box table, not a figure of the paper"
# class: boxes, images with at least one vote, images with exactly 1, 2 and 3 votes
_AUDITED = {
    "Aortic enlargement": (7162, 3067, 721, 602, 1744),
    "Cardiomegaly": (5427, 2300, 483, 520, 1297),
    "Pleural thickening": (4842, 1981, 1099, 517, 365),
    "Pulmonary fibrosis": (4655, 1617, 600, 384, 633),
    "Nodule/Mass": (2580, 826, 421, 224, 181),
    "Lung Opacity": (2483, 1322, 775, 380, 167),
    "Pleural effusion": (2476, 1032, 398, 195, 439),
    "Other lesion": (2203, 1134, 772, 235, 127),
    "Infiltration": (1247, 613, 368, 154, 91),
    "ILD": (1000, 386, 234, 81, 71),
    "Calcification": (960, 452, 275, 120, 57),
    "Consolidation": (556, 353, 232, 90, 31),
    "Atelectasis": (279, 186, 124, 44, 18),
    "Pneumothorax": (226, 96, 38, 13, 45),
}
_PER_CLASS = ("boxes", "images", "images_1_vote", "images_2_votes", "images_3_votes")
SOURCE_TABLE = {
    "source/rows": Published(67914, _AUDIT),
    "source/images": Published(15000, _AUDIT),
    "source/images_all_normal": Published(10606, _AUDIT),
    "source/images_abnormal": Published(4394, "also the paper's number of images (Table 3)"),
    "source/readers": Published(17, _AUDIT),
    "source/readers_per_image": Published(3, _AUDIT),
    "source/boxes": Published(36096, _AUDIT),
    "source/boxes_per_abnormal_image": Published(8.21, _AUDIT),
    **{
        f"source/{kind}/{label}": Published(count, _AUDIT)
        for label, counts in _AUDITED.items()
        for kind, count in zip(_PER_CLASS, counts, strict=True)
    },
}


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
    shown: dict[str, set[tuple[str, tuple[float, ...]]]] = collections.defaultdict(set)
    for record in records:
        for answer in record.answers:
            for box in answer.boxes_by_image.get(record.image_id, []):
                shown[record.image_id].add((answer.labels[0], tuple(box)))
    found = total = 0
    for image in images:
        total += len(image.findings)
        found += sum((f.label, f.box) in shown[image.image_id] for f in image.findings)
    return ratio(found, total)


def fill_rates(records: Sequence[QARecord]) -> dict[str, float | None]:
    """Of each of Table 2's seven fields, the percentage of questions in which it says something."""
    filled: collections.Counter[str] = collections.Counter()
    questions = 0
    for image in to_native(records):
        for question in image["vqa"]:
            questions += 1
            filled.update(name for name in FIELDS if question[name])
    return {f"field_filled_percent/{name}": ratio(100 * filled[name], questions) for name in FIELDS}
