"""The input and output of scoring, and the files that it is written to."""

import csv
import io
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.files import file_sha256
from cxrjax.language_model.judges.judge import Judge
from cxrjax.metrics.bootstrap import (
    Attributes,
    Bootstrap,
    Columns,
    Estimate,
    Figure,
    Resampled,
    estimate_all,
    needed_columns,
    resample,
)
from cxrjax.metrics.comparison import compare
from cxrjax.records import QARecord
from cxrjax.scoring.bert_score import BertScoreSettings
from cxrjax.scoring.outcomes import Outcome
from cxrjax.scoring.predictions import Prediction
from cxrjax.scoring.text_tables import UNDEFINED, grid, to_latex

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
        segmenter: cuts Vietnamese words, for benchmarks in that language; None: their own default.
        bert_score: the model that BERTScore is taken with, for benchmarks that have it.
        compare_to: the system that all others are compared with; None: the first.
    """

    gt_mode: str
    codec: str | None = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    judge: Judge | None = None
    segmenter: str | None = None
    bert_score: BertScoreSettings | None = None
    compare_to: str | None = None


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
            "references": named_file(references),
            "predictions": {name: named_file(path) for name, path in predictions.items()},
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
        uses_bert_score: whether it takes BERTScores.
        logged: protocol -> the metrics that a training run logs; None: all of `strict`.
        outcome: what came of one question, for the page: (record, prediction, codec or None) ->
            outcome. None where the benchmark has no such thing.
    """

    score_files: Callable[[Path, Mapping[str, Path], ScoreOptions], Scores]
    gt_modes: tuple[str, ...]
    markdown: Callable[[Scores], str]
    rows: Callable[[Scores], list[dict[str, Any]]]
    outcome: Callable[[QARecord, Prediction, Codec | None], Outcome] | None = None
    uses_judge: bool = False
    uses_bert_score: bool = False
    logged: Mapping[str, Sequence[str]] | None = None

    def logged_figures(
        self, figures: Mapping[str, Mapping[str, Estimate]]
    ) -> list[tuple[str, str, float | None]]:
        """(protocol, metric, value) of what a training run logs of one system's figures."""
        logged = self.logged or {STRICT: list(figures[STRICT])}
        return [(p, name, figures[p][name].value) for p, names in logged.items() for name in names]


def make_scores(
    systems: Mapping[str, Counted],
    clusters: Sequence[tuple[str, Hashable]],
    settings: Mapping[str, Any],
    options: ScoreOptions,
    attributes: Attributes | None = None,
    compared: Mapping[str, Iterable[str]] | None = None,
) -> Scores:
    """Figures with intervals from what was counted of each system.

    Args:
        systems: name -> its counts.
        clusters: of each unit: ("patient", id), or ("image", id) where no patient is known. The
            same resamples of them serve all systems.
        settings: what the benchmark says of itself; how the intervals are made is added.
        attributes: what figures are broken down by, attribute -> its value for each unit.
        compared: protocol -> the metrics of the paper's tables (`tables.table_metrics`), in which
            systems are compared; P-values are corrected for them together.

    Raises:
        UserError: no system is called `options.compare_to`.
    """
    reference = options.compare_to or next(iter(systems))
    if reference not in systems:
        raise UserError(f"--compare_to={reference}: expected one of {', '.join(systems)}")
    resampled = {
        name: resample(
            counted.columns,
            clusters,
            options.bootstrap,
            attributes,
            needed_columns(counted.figures, list(counted.columns)),
        )
        for name, counted in systems.items()
    }
    figures = {
        name: estimate_all(resampled[name], counted.figures) for name, counted in systems.items()
    }
    comparisons: list[dict[str, Any]] = []
    for name in systems:
        if name != reference:
            for protocol, metrics in (compared or {}).items():
                comparisons += _compared(systems, resampled, (name, reference), protocol, metrics)
    judge = {} if options.judge is None else {"judge": options.judge.name}
    bootstrap = _bootstrap(options.bootstrap, clusters, figures)
    return Scores(
        figures=figures,
        problems={name: counted.problems for name, counted in systems.items()},
        settings={**settings, **judge, "bootstrap": bootstrap},
        curves={name: counted.curves for name, counted in systems.items() if counted.curves},
        comparisons=comparisons,
    )


def _compared(
    systems: Mapping[str, Counted],
    resampled: Mapping[str, Resampled],
    pair: tuple[str, str],
    protocol: str,
    metrics: Iterable[str],
) -> list[dict[str, Any]]:
    """Lines of comparisons.json: the first of the pair minus the second."""
    first, second = (systems[name].figures[protocol] for name in pair)
    figures = {}
    for metric in dict.fromkeys(metrics):
        one, two = first.get(metric), second.get(metric)
        if isinstance(one, Figure) and isinstance(two, Figure):
            figures[metric] = (one, two)
    found = compare(resampled[pair[0]], resampled[pair[1]], figures)
    return [
        {
            "system": pair[0],
            "compared_to": pair[1],
            "protocol": protocol,
            "metric": metric,
            **asdict(comparison),
        }
        for metric, comparison in found.items()
    ]


def _bootstrap(
    bootstrap: Bootstrap, clusters: Sequence[tuple[str, Hashable]], figures: Figures
) -> dict[str, Any]:
    """How the intervals were made, and which figures' are not by the method asked for."""
    fallbacks = {
        system: {
            protocol: [name for name, figure in named.items() if figure.fallback]
            for protocol, named in protocols.items()
        }
        for system, protocols in figures.items()
    }
    return {
        "method": bootstrap.method,
        "percentile_instead": fallbacks if bootstrap.method != "percentile" else {},
        "resamples": bootstrap.resamples,
        "seed": bootstrap.seed,
        "confidence": bootstrap.confidence,
        "clusters": len(set(clusters)),
        "clustered_by": sorted({kind for kind, _ in clusters}),
    }


def full_markdown(benchmark: Benchmark, scores: Scores) -> str:
    """tables.md: the benchmark's tables, then its systems compared."""
    return "\n".join([benchmark.markdown(scores), *_comparison_tables(scores)])


def _comparison_tables(scores: Scores) -> list[str]:
    if not scores.comparisons:
        return []
    header = ["System", "Protocol", "Metric", "Difference", "p", "p (Holm)", "n"]
    lines = [header]
    for row in scores.comparisons:
        lines.append(
            [
                f"{row['system']} − {row['compared_to']}",
                row["protocol"],
                f"`{row['metric']}`",
                _difference(row),
                *(UNDEFINED if p is None else f"{p:.3g}" for p in (row["p"], row["p_holm"])),
                f"{row['n']:,}",
            ]
        )
    bootstrap = scores.settings["bootstrap"]
    return [
        "## Systems compared\n",
        grid(lines),
        f"Both systems resampled together ({bootstrap['method']} intervals); p of a two-sided "
        f"paired permutation test, {bootstrap['resamples']:,} permutations that swap whole "
        f"clusters; corrected (Holm) for the metrics of one protocol and pair.\n",
    ]


def _difference(row: Mapping[str, Any]) -> str:
    if row["difference"] is None:
        return UNDEFINED
    text = f"{row['difference']:+.3f}"
    if row["ci_low"] is None:
        return text
    return f"{text} ({row['ci_low']:+.3f} to {row['ci_high']:+.3f})"


def write_scores(out: Path, benchmark: Benchmark, scores: Scores) -> None:
    """Writes metrics.json, tables.md, .tex and .csv, and score.json (settings and problems).

    Beside them curves.json and comparisons.json, where there are any.

    Raises:
        UserError: the folder cannot be written to.
    """
    rows = benchmark.rows(scores)
    markdown = full_markdown(benchmark, scores)
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    contents = {
        "metrics.json": _json(scores.metrics()),
        "tables.md": markdown,
        "tables.tex": to_latex(markdown),
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


def named_file(path: Path) -> dict[str, str]:
    """A file as records of runs tell it: its name without the folder, and its hash."""
    return {"name": path.name, "sha256": file_sha256(path)}


def _json(content: Any) -> str:
    # NaN is no JSON. Undefined figures are None by now, so one that slips through is our bug.
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
