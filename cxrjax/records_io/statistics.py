"""Counts of what was built, in the form that statistics.json has."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.records import QARecord


@dataclasses.dataclass(frozen=True)
class Published:
    """A published figure that a count is compared with."""

    # The figure, or (lowest, highest) where a range is printed; None where the note alone
    # matters.
    value: float | tuple[float, float] | None
    note: str  # where it is printed, and what to know about the comparison


def load_statistics(package: str) -> dict[str, Any]:
    """The statistics.toml of a paper's folder: its sections, of them `published...` as `Published`.

    An entry of those is [value, note]; a note may be a key of the section `notes`, and "" is no
    value.
    """
    content: dict[str, Any] = dict(read_packaged(package, "statistics.toml"))
    notes = content.get("notes", {})
    for section in [name for name in content if name.startswith("published")]:
        content[section] = {
            name: Published(
                None if value == "" else tuple(value) if isinstance(value, list) else value,
                notes.get(note, note),
            )
            for name, (value, note) in content[section].items()
        }
    return content


class RecordStatistics:
    """Counts over records that are added one by one."""

    def __init__(self) -> None:
        self._questions: collections.Counter[str] = collections.Counter()
        self._images: dict[str, set[str]] = collections.defaultdict(set)
        self._boxes: dict[str, set[tuple]] = collections.defaultdict(set)
        self._types: collections.Counter[str] = collections.Counter()
        self._difficulties: collections.Counter[str] = collections.Counter()
        self._polarities: collections.Counter[str] = collections.Counter()
        self._findings: collections.Counter[str] = collections.Counter()
        self._negatives: collections.Counter[str] = collections.Counter()
        self._labels: set[str] = set()
        self._answer_boxes = 0
        self._reason_words: list[int] = []

    def add(self, record: QARecord) -> None:
        """Counts one record."""
        split = record.split
        self._questions[split] += 1
        self._images[split].add(record.image_id)
        self._types[record.question_type] += 1
        if record.difficulty:
            self._difficulties[record.difficulty] += 1
        if record.answers:
            self._polarities[record.answers[0].polarity] += 1
        if record.gt_finding:
            self._findings[record.gt_finding] += 1
        if record.negative_kind:
            self._negatives[record.negative_kind] += 1
        if record.reason:
            self._reason_words.append(len(record.reason.split()))
        for answer in record.answers:
            self._labels.update(answer.labels)
            for image_id, boxes in answer.boxes_by_image.items():
                self._answer_boxes += len(boxes)
                self._boxes[split].update((image_id, *box) for box in boxes)

    def values(self) -> dict[str, float | None]:
        """Name -> count or share in percent; None where there is nothing to divide by."""
        questions = self._questions.total()
        images = sum(map(len, self._images.values()))
        values: dict[str, float | None] = {
            "images": images,
            "boxes": sum(map(len, self._boxes.values())),
            "questions": questions,
            "questions_per_image": ratio(questions, images),
            "classes": len(self._labels),
            "question_types": len(self._types),
            "answer_boxes": self._answer_boxes,
            "reason_words_mean": ratio(sum(self._reason_words), len(self._reason_words)),
            "reason_words_min": min(self._reason_words, default=None),
            "reason_words_max": max(self._reason_words, default=None),
        }
        for split in sorted(self._questions):
            values[f"{split}_images"] = len(self._images[split])
            values[f"{split}_questions"] = self._questions[split]
        for name, counts in (
            ("finding_questions", self._findings),
            ("negative_questions", self._negatives),
        ):
            for key, count in sorted(counts.items()):
                values[f"{name}/{key}"] = count
        shares = {
            "difficulty_percent": self._difficulties,
            "question_type_percent": self._types,
            "polarity_percent": self._polarities,
            "finding_percent": self._findings,
        }
        for name, counts in shares.items():
            for key, count in sorted(counts.items()):
                values[f"{name}/{key}"] = ratio(100 * count, counts.total())
        return values


def ratio(numerator: float, denominator: float) -> float | None:
    """The quotient to six decimals, None where there is nothing to divide by."""
    return round(numerator / denominator, 6) if denominator else None


def compare(
    values: Mapping[str, float | None], published: Mapping[str, Published], made: str = ""
) -> dict[str, dict[str, Any]]:
    """The content of statistics.json: {name: {value, paper, difference, note}}.

    `difference` is value - paper, and for a range the distance to its nearest bound (0 inside).
    A published figure without a count of ours has the value None. `made`, what of the records is
    simulated, is noted beside each figure.
    """
    table = {}
    for name in _in_order(values, published):
        value, known = values.get(name), published.get(name, Published(None, ""))
        table[name] = {
            "value": value,
            "paper": list(known.value) if isinstance(known.value, tuple) else known.value,
            "difference": _difference(value, known.value),
            "note": "; ".join(filter(None, [known.note, made])),
        }
    return table


def tables_markdown(
    title: str,
    about: Iterable[str],
    comparison: Mapping[str, Mapping[str, Any]],
    tables: Mapping[str, Mapping[str, str]],
) -> str:
    """Returns tables.md of a build: a row for each figure, with the published one beside it.

    Args:
        about: paragraphs below the title.
        comparison: of `compare`.
        tables: heading -> label of a row -> its figure; one that was not compared has no row.
    """
    parts = [f"# {title}", *about]
    for heading, names in tables.items():
        lines = ["| | here | published | difference | note |", "|---|---:|---:|---:|---|"]
        for label, name in names.items():
            if entry := comparison.get(name):
                both = [_shown(entry["value"]), _shown(entry["paper"])]
                cells = [label, *both, _shown(entry["difference"], "+"), entry["note"]]
                lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join([f"## {heading}", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _shown(value: Any, sign: str = "") -> str:
    """Returns a figure, or a range of some, with as many decimals as it needs."""
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return " to ".join(_shown(bound) for bound in value)
    if value == int(value):
        return f"{int(value):{sign},}" if value else "0"
    return f"{value:{sign}.{3 if abs(value) < 1 else 2}f}"


def _difference(value: float | None, published: float | tuple[float, float] | None) -> float | None:
    if value is None or published is None:
        return None
    if isinstance(published, tuple):
        low, high = published
        return round(min(value - low, 0) + max(value - high, 0), 6)
    return round(value - published, 6)


def _in_order(first: Iterable[str], second: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))
