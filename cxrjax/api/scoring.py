"""Records and predictions in, a table of figures out."""

import difflib
import json
import tempfile
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.paths import to_path
from cxrjax.records import QARecord, write_records
from cxrjax.records import read_records as _read_records

Predictions = str | Path | Iterable[Mapping[str, Any]]


def read_records(source: str | Path, split: str = "train") -> list[QARecord]:
    """The records of a file, or of one split of a build's folder.

    Raises:
        UserError: it cannot be read, or has a line that is no record.
    """
    path = to_path(source)
    return list(_read_records(path / "records" / f"{split}.jsonl" if path.is_dir() else path))


class ScoreTable(list[dict[str, Any]]):
    """Figures, a row each: system, protocol, metric, value, ci_low, ci_high, n.

    `pandas.DataFrame(table)` takes it as it is.
    """

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

    def to_pandas(self) -> Any:
        """A DataFrame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("no pandas here: pip install pandas, or take the rows") from None
        return pandas.DataFrame(self)

    def _repr_html_(self) -> str:
        columns = ("system", "protocol", "metric", "value", "ci_low", "ci_high", "n")
        head = "".join(f"<th>{name}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(row[name]))}</td>" for name in columns) + "</tr>"
            for row in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def score(
    references: str | Path | Iterable[QARecord],
    predictions: Predictions | Mapping[str, Predictions],
    *,
    benchmark: str = "own",
    resamples: int = 1000,
    seed: int = 0,
    floors: bool = False,
) -> ScoreTable:
    """Scores predictions as `python -m cxrjax.score` does.

    Args:
        references: a records file, or records.
        predictions: a file or lines of predictions (of `Model.predict`), or several by their
            systems' names.
        benchmark: whose figures, as --benchmark has it.
        resamples: of the intervals; 0: none.
        floors: also of systems that look at no image, named "floor: ...".

    Raises:
        UserError: something cannot be read, or no such benchmark.
    """
    from cxrjax.evaluation.scores import ScoreOptions
    from cxrjax.metrics.bootstrap import Bootstrap
    from cxrjax.paper import load_benchmark

    chosen = load_benchmark(benchmark)
    systems = predictions if isinstance(predictions, Mapping) else {"model": predictions}
    with tempfile.TemporaryDirectory() as name:
        folder = to_path(name)
        if not isinstance(references, str | Path):
            write_records(folder / "references.jsonl", references)
            references = folder / "references.jsonl"
        files = {
            system: _predictions_file(folder / f"{number}.jsonl", given)
            for number, (system, given) in enumerate(systems.items())
        }
        options = ScoreOptions(
            gt_mode=chosen.gt_modes[0],
            bootstrap=Bootstrap(resamples=resamples, seed=seed),
            floors=floors,
        )
        scores = chosen.score_files(to_path(references), files, options)
    return ScoreTable(
        {"system": system, "protocol": protocol, "metric": metric, **_interval(figure.to_json())}
        for system, named in (scores.rows if floors else scores.figures).items()
        for protocol, metrics in named.items()
        for metric, figure in metrics.items()
    )


def _interval(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cell.get(name) for name in ("value", "ci_low", "ci_high", "n")}


def _predictions_file(path: Path, given: Predictions) -> Path:
    if isinstance(given, str | Path):
        return to_path(given)
    path.write_text("".join(json.dumps(dict(line)) + "\n" for line in given), encoding="utf-8")
    return path
