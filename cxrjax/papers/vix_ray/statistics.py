"""Table 3 recomputed, beside the paper's; the phrases counted, with plots (sections 3.2, 3.3)."""

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.papers.vix_ray.native import SPLITS
from cxrjax.papers.vix_ray.noun_phrases import Segment, body_parts, diagnoses, words
from cxrjax.papers.vix_ray.records import VixRayStudy
from cxrjax.records_io.statistics import Published, load_statistics, ratio

_PRINTED = load_statistics(str(__package__))
PAPER: dict[str, Published] = _PRINTED["published"]
_LISTED = 30  # phrases in tables and plots


def table_values(
    studies: Mapping[str, Sequence[VixRayStudy]], segment: Segment
) -> dict[str, float | None]:
    """Our figures of Table 3, `<split>_<statistic>`; None where there is nothing to count."""
    values: dict[str, float | None] = {}
    for split, here in studies.items():
        ages = [study.age for study in here if study.age is not None]
        values[f"{split}_images"] = len(here)
        values[f"{split}_age_mean"] = ratio(sum(ages), len(ages))
        for kind in ("findings", "impression"):
            lengths = [len(words(segment, getattr(study, kind))) for study in here]
            values[f"{split}_{kind}_words_min"] = min(lengths, default=None)
            values[f"{split}_{kind}_words_mean"] = ratio(sum(lengths), len(lengths))
            values[f"{split}_{kind}_words_max"] = max(lengths, default=None)
    return values


def count_phrases(studies: Sequence[VixRayStudy]) -> dict[str, dict[str, int]]:
    """`body_parts` of findings and `diagnoses` of impressions -> phrase -> how often, in order."""
    counts = {
        "body_parts": body_parts(study.findings for study in studies),
        "diagnoses": diagnoses(study.impression for study in studies),
    }
    return {name: dict(_ordered(counter)) for name, counter in counts.items()}


def _ordered(counter: collections.Counter[str]) -> list[tuple[str, int]]:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def tables_markdown(
    comparison: Mapping[str, Mapping[str, Any]],
    phrases: Mapping[str, Mapping[str, int]],
    segmenter: str,
    synthetic: bool,
) -> str:
    """tables.md: Table 3 beside the paper's, and the commonest phrases."""
    lines = ["# ViX-Ray", ""]
    if synthetic:
        lines += ["Synthetic: phantoms and reports of our own grammar, not the paper's data.", ""]
    lines += [
        f"## Table 3 (words by {segmenter})",
        "",
        "| | " + " | ".join(f"{s}: ours | paper | difference" for s in SPLITS) + " |",
        "|---|" + "---|" * (3 * len(SPLITS)),
    ]
    for name, title in _PRINTED["rows"].items():
        cells = []
        for split in SPLITS:
            row = comparison[f"{split}_{name}"]
            cells += [_number(row["value"]), _number(row["paper"]), _number(row["difference"])]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += ["", *(PAPER[name].note for name in ("test_images", "test_findings_words_min")), ""]
    for name, title in (
        ("body_parts", "Body parts in findings (section 3.2)"),
        ("diagnoses", "Diagnoses in impressions (section 3.2)"),
    ):
        listed = list(phrases[name].items())[:_LISTED]
        lines += [f"## {title}", "", "| phrase | count |", "|---|---|"]
        lines += [f"| {phrase} | {count:,} |" for phrase, count in listed]
        lines.append("")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}" if abs(value) < 1e4 else f"{value:,}"


def plot_phrases(phrases: Mapping[str, Mapping[str, int]], out: Path) -> list[Path]:
    """`body_parts.png` and `diagnoses.png` in a folder: the commonest as bars."""
    from matplotlib.figure import Figure  # seconds to import; no display is needed

    paths = []
    for name, counts in phrases.items():
        listed = list(counts.items())[:_LISTED]
        figure = Figure(figsize=(8, 1 + 0.25 * len(listed)), layout="constrained")
        axes = figure.subplots()
        axes.barh([phrase for phrase, _ in listed], [count for _, count in listed])
        axes.invert_yaxis()
        axes.set_xlabel("count")
        axes.set_title(name.replace("_", " "))
        paths.append(out / f"{name}.png")
        with paths[-1].open("wb") as file:
            figure.savefig(file, dpi=100, format="png")
    return paths
