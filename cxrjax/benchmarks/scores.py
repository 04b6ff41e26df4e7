"""What scoring gives, and the four files it is written to."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.metrics.bootstrap import Bootstrap, Estimate

PAPER, STRICT = "paper", "strict"
GT_MODE_HELP = (
    "which boxes are true: exact (the answers' own, the default), or of the readers: raw, "
    "per_reader, reader:ID, majority, lesion_majority, wbf, nms, components (the last four also "
    "with their IoU, as in wbf:0.4)"
)

# {system: {protocol: {metric: figure}}}
Figures = Mapping[str, Mapping[str, Mapping[str, Estimate]]]


@dataclass(frozen=True)
class Scores:
    """Results of several systems on one set of references.

    Attributes:
        figures: {system: {protocol: {metric: figure}}}.
        problems: {system: {category: how often}}, every category named, zeros too.
        settings: how the figures came about: ground-truth mode, seed, hashes.
    """

    figures: Figures
    problems: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any]

    def metrics(self) -> dict[str, dict[str, dict[str, dict[str, float | int | None]]]]:
        """The content of metrics.json."""
        return {
            system: {
                protocol: {name: figure.to_json() for name, figure in named.items()}
                for protocol, named in protocols.items()
            }
            for system, protocols in self.figures.items()
        }


@dataclass(frozen=True)
class Benchmark:
    """One paper's benchmark.

    Attributes:
        score_files: (references, {system: predictions}, codec name or None, ground-truth mode,
            bootstrap) -> scores.
        gt_modes: ground-truth modes it knows, the default first.
        markdown: scores -> the tables for people.
        rows: scores -> the tables for programs, a mapping per cell.
    """

    score_files: Callable[[Path, Mapping[str, Path], str | None, str, Bootstrap], Scores]
    gt_modes: tuple[str, ...]
    markdown: Callable[[Scores], str]
    rows: Callable[[Scores], list[dict[str, Any]]]


def write_scores(out: Path, benchmark: Benchmark, scores: Scores) -> None:
    """Writes metrics.json, tables.md, tables.csv and score.json (settings and problems).

    Raises:
        UserError: the folder cannot be written to.
    """
    rows = benchmark.rows(scores)
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    contents = {
        "metrics.json": _json(scores.metrics()),
        "tables.md": benchmark.markdown(scores),
        "tables.csv": table.getvalue(),
        "score.json": _json({**scores.settings, "problems": scores.problems}),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (out / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot write scores: {error.strerror}") from None


def _json(content: Any) -> str:
    # NaN is no JSON. Undefined figures are None by now, so one that slips through is our bug.
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
