"""Predictions and records in, a table of figures out."""

import difflib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cxrjax.api.builds import records_of
from cxrjax.api.model import as_model
from cxrjax.api.tables import Table
from cxrjax.choices import BoxFormat
from cxrjax.errors import UserError
from cxrjax.paths import AnyPath, to_path
from cxrjax.records import QARecord, write_records

if TYPE_CHECKING:
    from cxrjax.api.model import Model

Predictions: TypeAlias = AnyPath | Iterable[Mapping[str, Any]]


class ScoreTable(Table):
    """Figures, a row each: system, protocol, metric, value, ci_low, ci_high, n."""

    def value(self, metric: str, system: str | None = None, protocol: str = "strict") -> Any:
        """One figure, None where it is undefined.

        Args:
            system: None: the only one, or the first.

        Raises:
            UserError: there is no such figure.
        """
        for row in self:
            if (row["metric"], row["protocol"]) == (metric, protocol) and system in (
                None,
                row["system"],
            ):
                return row["value"]
        known = sorted({row["metric"] for row in self if row["protocol"] == protocol})
        near = difflib.get_close_matches(metric, known, n=3, cutoff=0)
        raise UserError(f"no figure {metric!r} under {protocol!r}; the nearest: {', '.join(near)}")

    def only(self, *metrics: str, protocol: str = "strict") -> "ScoreTable":
        """The rows of these metrics."""
        return ScoreTable(
            row for row in self if row["metric"] in metrics and row["protocol"] == protocol
        )


def score(
    references: AnyPath | Iterable[QARecord],
    predictions: Predictions | Mapping[str, Predictions],
    *,
    split: str = "validation",
    benchmark: str = "own",
    box_format: BoxFormat | str | None = None,
    resamples: int = 1000,
    seed: int = 0,
    floors: bool = False,
) -> ScoreTable:
    """Scores predictions against records, as `cxrjax score` does.

    Args:
        references: a records file, a build, or records.
        predictions: a file or lines of predictions (of `predict`), or several by the names of
            their systems.
        split: of a build.
        benchmark: whose figures (`cxrjax score --help` lists them); "own": of your own records.
        box_format: reads boxes from the text of predictions that have no boxes.
        resamples: bootstrap resamples of the intervals; 0: no intervals.
        seed: of the bootstrap.
        floors: adds baselines that see no image, named "baseline: ...".

    Raises:
        UserError: something cannot be read, or there is no such benchmark.
    """
    from cxrjax.evaluation.scores import ScoreOptions
    from cxrjax.metrics.bootstrap import Bootstrap
    from cxrjax.paper import load_benchmark

    chosen = load_benchmark(benchmark)
    systems = predictions if isinstance(predictions, Mapping) else {"model": predictions}
    with tempfile.TemporaryDirectory() as name:
        folder = to_path(name)
        if isinstance(references, str | os.PathLike):
            answers = records_of(references, split)
        else:
            answers = folder / "references.jsonl"
            write_records(answers, references)
        files = {
            system: _predictions_file(folder / f"{number}.jsonl", given)
            for number, (system, given) in enumerate(systems.items())
        }
        options = ScoreOptions(
            codec=None if box_format is None else BoxFormat(box_format).value,
            gt_mode=chosen.gt_modes[0],
            bootstrap=Bootstrap(resamples=resamples, seed=seed),
            floors=floors,
        )
        scores = chosen.score_files(answers, files, options)
    return ScoreTable(
        {"system": system, "protocol": protocol, "metric": metric, **_interval(figure.to_json())}
        for system, named in (scores.rows if floors else scores.figures).items()
        for protocol, metrics in named.items()
        for metric, figure in metrics.items()
    )


def evaluate(
    source: "Model | AnyPath",
    references: AnyPath | Iterable[QARecord],
    *,
    split: str = "validation",
    image_root: AnyPath | None = None,
    benchmark: str = "own",
    resamples: int = 1000,
    seed: int = 0,
    floors: bool = False,
) -> ScoreTable:
    """Predicts and scores: a model answers the questions of records.

    Args:
        source: a model, or what `load` takes.
        references: a records file, a build, or records; the model is given the questions only.
        split: of a build.
        image_root: what image_path is relative to, as of `predict`.
        benchmark, resamples, seed, floors: as of `score`.

    Returns:
        The figures of the system "model".

    Raises:
        UserError: the model or the records cannot be read, or there is no such benchmark.
    """
    if not isinstance(references, str | os.PathLike):
        references = list(references)
    lines = as_model(source).predict(references, split=split, image_root=image_root)
    return score(
        references,
        lines,
        split=split,
        benchmark=benchmark,
        resamples=resamples,
        seed=seed,
        floors=floors,
    )


def _interval(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cell.get(name) for name in ("value", "ci_low", "ci_high", "n")}


def _predictions_file(path: Path, given: Predictions) -> Path:
    if isinstance(given, str | os.PathLike):
        return to_path(given)
    path.write_text("".join(json.dumps(dict(line)) + "\n" for line in given), encoding="utf-8")
    return path
