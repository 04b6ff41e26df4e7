"""Table 3 recomputed, beside the paper's."""

from collections.abc import Mapping, Sequence
from typing import Any

from cxrjax.papers.vix_ray.records import VixRayStudy
from cxrjax.papers.vix_ray.segmenters import Segment, words
from cxrjax.records_io.row_files import SPLITS
from cxrjax.records_io.statistics import Published, load_statistics, ratio, tables_markdown

_PRINTED = load_statistics(str(__package__))
PAPER: dict[str, Published] = _PRINTED["published"]


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


def tables(comparison: Mapping[str, Mapping[str, Any]], segmenter: str, synthetic: bool) -> str:
    """tables.md: Table 3 beside the paper's."""
    about = ["Synthetic: phantoms and reports of our own grammar, not the paper's data."]
    rows = {
        f"{title}, {split}": f"{split}_{name}"
        for name, title in _PRINTED["rows"].items()
        for split in SPLITS
    }
    heading = f"Table 3 (words by {segmenter})"
    return tables_markdown("ViX-Ray", about if synthetic else (), comparison, {heading: rows})
