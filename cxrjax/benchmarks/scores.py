"""What scoring takes and gives, and the files it is written to."""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cxrjax.benchmarks.outcomes import Outcome
from cxrjax.benchmarks.predictions import Prediction
from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.judges.judge import Judge
from cxrjax.metrics.bootstrap import (
    Attributes,
    Bootstrap,
    Columns,
    Estimate,
    Figure,
    estimate,
)
from cxrjax.records import QARecord

PAPER, STRICT = "paper", "strict"
GT_MODE_HELP = (
    "which boxes are true: exact (the answers' own, the default), or of the readers: raw, "
    "per_reader, reader:ID, majority, lesion_majority, wbf, nms, components (the last four also "
    "with their IoU, as in wbf:0.4)"
)

# {system: {protocol: {metric: figure}}}
Figures = Mapping[str, Mapping[str, Mapping[str, Estimate]]]


# {curve: {"x": [...], "y": [...], "x_label": ..., "y_label": ...}}
Curves = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ScoreOptions:
    """How to score.

    Attributes:
        gt_mode: one of the benchmark's ground-truth modes.
        codec: name of the convention in which predictions without boxes write them in their text.
        bootstrap: how intervals are made.
        judge: a language model or its stand-in, for benchmarks that ask one.
    """

    gt_mode: str
    codec: str | None = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    judge: Judge | None = None


@dataclass(frozen=True)
class Counted:
    """What a benchmark counted of one system: all that its figures are made of.

    Attributes:
        columns: name -> a number for each unit (image or question), the same units for all systems.
        figures: {protocol: {metric: figure}}; an `Estimate` is taken as it is.
        problems: category -> how often, every category named, zeros too.
        curves: name -> points, for the page.
    """

    columns: Columns
    figures: Mapping[str, Mapping[str, Figure | Estimate]]
    problems: Mapping[str, int]
    curves: Curves = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """Results of several systems on one set of references.

    Attributes:
        figures: {system: {protocol: {metric: figure}}}.
        problems: {system: {category: how often}}, every category named, zeros too.
        settings: how the figures came about: ground-truth mode, seed, hashes.
        curves: {system: {curve: points}}.
        comparisons: two systems on one metric each, as of comparisons.json.
    """

    figures: Figures
    problems: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any]
    curves: Mapping[str, Curves] = field(default_factory=dict)
    comparisons: Sequence[Mapping[str, Any]] = ()

    def metrics(self) -> dict[str, dict[str, dict[str, dict[str, float | int | None]]]]:
        """The content of metrics.json."""
        return {
            system: {
                protocol: {name: figure.to_json() for name, figure in named.items()}
                for protocol, named in protocols.items()
            }
            for system, protocols in self.figures.items()
        }

    def with_files(self, references: Path, predictions: Mapping[str, Path]) -> "Scores":
        """The same with the names and hashes of what was scored among the settings."""
        files = {
            "references": _file(references),
            "predictions": {name: _file(path) for name, path in predictions.items()},
        }
        return replace(self, settings={**self.settings, **files})


@dataclass(frozen=True)
class Benchmark:
    """One paper's benchmark.

    Attributes:
        score_files: (references, {system: predictions}, options) -> scores.
        gt_modes: ground-truth modes it knows, the default first.
        markdown: scores -> the tables for people.
        rows: scores -> the tables for programs, a mapping per cell.
        uses_judge: whether it asks `ScoreOptions.judge`.
        outcome: what came of one question, for the page: (record, prediction, codec or None) ->
            outcome. None where the benchmark has no such thing.
    """

    score_files: Callable[[Path, Mapping[str, Path], ScoreOptions], Scores]
    gt_modes: tuple[str, ...]
    markdown: Callable[[Scores], str]
    rows: Callable[[Scores], list[dict[str, Any]]]
    outcome: Callable[[QARecord, Prediction, Codec | None], Outcome] | None = None
    uses_judge: bool = False


def make_scores(
    systems: Mapping[str, Counted],
    clusters: Sequence[tuple[str, Hashable]],
    settings: Mapping[str, Any],
    options: ScoreOptions,
    attributes: Attributes | None = None,
) -> Scores:
    """Figures with intervals from what was counted of each system.

    Args:
        systems: name -> its counts.
        clusters: of each unit: ("patient", id), or ("image", id) where no patient is known. The
            same resamples of them serve all systems.
        settings: what the benchmark says of itself; how the intervals are made is added.
        attributes: what figures are broken down by, attribute -> its value for each unit.
    """
    figures = {
        name: estimate(counted.columns, clusters, counted.figures, options.bootstrap, attributes)
        for name, counted in systems.items()
    }
    bootstrap = {
        "method": "percentile",
        "resamples": options.bootstrap.resamples,
        "seed": options.bootstrap.seed,
        "confidence": options.bootstrap.confidence,
        "clusters": len(set(clusters)),
        "clustered_by": sorted({kind for kind, _ in clusters}),
    }
    judge = {} if options.judge is None else {"judge": options.judge.name}
    return Scores(
        figures=figures,
        problems={name: counted.problems for name, counted in systems.items()},
        settings={**settings, **judge, "bootstrap": bootstrap},
        curves={name: counted.curves for name, counted in systems.items() if counted.curves},
    )


def write_scores(out: Path, benchmark: Benchmark, scores: Scores) -> None:
    """Writes metrics.json, tables.md, tables.csv and score.json (settings and problems).

    Beside them curves.json and comparisons.json, where there are any.

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
        "curves.json": _json(scores.curves) if scores.curves else None,
        "comparisons.json": _json(scores.comparisons) if scores.comparisons else None,
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            if content is None:
                (out / name).unlink(missing_ok=True)  # of an earlier run
            else:
                (out / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot write scores: {error.strerror}") from None


def _file(path: Path) -> dict[str, str]:
    with open(path, "rb") as content:
        return {"name": path.name, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def _json(content: Any) -> str:
    # NaN is no JSON. Undefined figures are None by now, so one that slips through is our bug.
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
