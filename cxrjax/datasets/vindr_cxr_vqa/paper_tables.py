"""The paper's Tables 1, 2 and 3 and its class distribution, with ours in them, as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from cxrjax.datasets.vindr_cxr_vqa.classes import CLASSES

Entries = Mapping[str, Mapping[str, Any]]  # as `cxrjax.datasets.statistics.compare` gives them

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
_TABLE_3 = {
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
    for title, names in _TABLE_3.items():
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
