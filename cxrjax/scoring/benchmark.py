"""The protocol of a benchmark: references and predictions are read, counted, scored and written.

A paper gives three things: how its references are read (truth), how one system's answers are
counted (counts), and what is printed (tables.toml). The rest is here, once for all of them.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.files import hash_lines, replace_text, writing
from cxrjax.metrics.bootstrap import Attributes, Columns, Estimate, Figure
from cxrjax.records import QARecord, read_records
from cxrjax.scoring.figures import JUDGE_PROBLEMS, answer_calibration, share
from cxrjax.scoring.predictions import PROBLEMS, Prediction, check_known, read_predictions
from cxrjax.scoring.scores import (
    STRICT,
    Counted,
    Outcome,
    ScoreOptions,
    Scores,
    make_scores,
    named_file,
)
from cxrjax.scoring.tables import Layout, comparison_tables
from cxrjax.scoring.text_tables import to_latex

# Boxes of these benchmarks have no classes.
CLASSLESS_PROBLEMS = {
    name: told for name, told in PROBLEMS.items() if name not in ("unknown_label", "unclassed_box")
}


@runtime_checkable
class ScoredQuestion(Protocol):
    """A paper's question; those of one `cluster` are resampled together."""

    @property
    def cluster(self) -> tuple[str, str]: ...


Q = TypeVar("Q", bound=ScoredQuestion)
R = TypeVar("R", bound="References[Any]")


@dataclass(frozen=True)
class References(Generic[Q]):
    """The questions of a references file, by id in the file's order, and where they come from."""

    questions: Mapping[str, Q]
    image_ids: tuple[str, ...]
    datasets: tuple[str, ...]
    splits: tuple[str, ...]

    @property
    def clusters(self) -> list[tuple[str, str]]:
        """The cluster of each question."""
        return [question.cluster for question in self.questions.values()]


def read_references(
    records: Iterable[QARecord], source: str, read_question: Callable[[QARecord, str], Q]
) -> References[Q]:
    """The questions of the records.

    Args:
        records: of one split, answers included.
        source: names the file, for error messages.
        read_question: (record, source) -> its truth.

    Raises:
        UserError: no records, a repeated question, or one that `read_question` refuses.
    """
    questions: dict[str, Q] = {}
    images: dict[str, None] = {}
    datasets, splits = set(), set()
    for record in records:
        if record.question_id in questions:
            raise UserError(f"{source}: question_id {record.question_id!r} stands there twice")
        questions[record.question_id] = read_question(record, source)
        images[record.image_id] = None
        datasets.add(record.dataset)
        splits.add(record.split)
    if not questions:
        raise UserError(f"{source}: holds no records: nothing to score against")
    return References(questions, tuple(images), tuple(sorted(datasets)), tuple(sorted(splits)))


def cluster_of(record: QARecord) -> tuple[str, str]:
    """The cluster of a record: its patient, or its image where no patient is known."""
    return ("patient", record.patient_id) if record.patient_id else ("image", record.image_id)


class Answers(NamedTuple):
    """One system's predictions, and what they are called in error messages."""

    predictions: Iterable[Prediction]
    source: str


@dataclass
class SystemCounts:
    """Counts of one system's answers.

    Attributes:
        columns: name -> a number for each question, in the references' order.
        confidence: probability of each question's answer, NaN where it is not known.
        problems: category -> how often, every category named.
        failures: category of parse failures -> how many answers.
    """

    columns: dict[str, Float[np.ndarray, " questions"]]
    confidence: Float[np.ndarray, " questions"]
    problems: Counter[str]
    failures: Counter[str]

    def add(self, row: int, counted: Mapping[str, float]) -> None:
        """Notes numbers of one question."""
        for name, amount in counted.items():
            if name not in self.columns:
                self.columns[name] = np.zeros(len(self.confidence))
            self.columns[name][row] = amount

    def calibration(
        self, right: str, among: str
    ) -> tuple[Columns, dict[str, Figure | Estimate], dict[str, dict[str, Any]]]:
        """Holds how sure answers are against whether they are right; as of `answer_calibration`.

        Args:
            right, among: columns, 1 where an answer is right and where it counts.
        """
        known = np.flatnonzero(np.isfinite(self.confidence) & (self.columns[among] > 0))
        sure, correct = self.confidence[known], self.columns[right][known]
        return answer_calibration(sure, correct, known, len(self.confidence))

    def figures(self) -> dict[str, Figure | Estimate]:
        """Parse failures (column `parse_failures`) and problems, as both protocols have them."""
        n = len(self.confidence)
        return {
            "parse_failure_rate": share("parse_failures", "questions"),
            **{
                f"parse_failure_rate/{name}": Estimate(count / n, None, None, n)
                for name, count in self.failures.items()
            },
            **{
                f"problems/{name}": Estimate(count, None, None, n)
                for name, count in self.problems.items()
                if name not in JUDGE_PROBLEMS
            },
        }


def count_answers(
    questions: Mapping[str, Q],
    answers: Answers,
    count: Callable[[Q, Prediction | None, SystemCounts], Mapping[str, float] | None],
    problems: Iterable[str],
    failures: Iterable[str] = (),
    columns: Iterable[str] = (),
) -> SystemCounts:
    """Counts a system's answers one by one.

    Args:
        count: (question, its prediction, counts so far) -> the question's numbers by column; may
            note problems and failures in the counts. None: not asked of this system.
        problems, failures: all that there are, so that what never happens is a zero.
        columns: those that `count` may never name.

    Raises:
        UserError: a prediction is for an unknown question, or cannot be read.
    """
    by_id = {prediction.question_id: prediction for prediction in answers.predictions}
    check_known(by_id.values(), questions, answers.source)
    counts = SystemCounts(
        {name: np.zeros(len(questions)) for name in columns},
        np.full(len(questions), np.nan),
        Counter(dict.fromkeys(problems, 0)),
        Counter(dict.fromkeys(failures, 0)),
    )
    # Minutes for a hundred thousand long answers. None: quiet unless a terminal watches.
    progress = tqdm(questions.items(), desc=f"scoring {answers.source}", disable=None)
    for row, (name, question) in enumerate(progress):
        prediction = by_id.get(name)
        counted = count(question, prediction, counts)
        if counted is None:
            continue
        counts.problems["missing_prediction"] += prediction is None
        counts.add(row, counted)
        if prediction is not None and prediction.answer_probability is not None:
            counts.confidence[row] = prediction.answer_probability
    return counts


@dataclass(frozen=True)
class Evaluated:
    """All systems counted, ready for `make_scores`.

    Attributes:
        settings: what the benchmark says of itself beside what all say.
        clusters: of each unit; None: units are the questions.
    """

    systems: Mapping[str, Counted]
    settings: Mapping[str, Any]
    attributes: Attributes | None = None
    clusters: Sequence[tuple[str, str]] | None = None


@dataclass(frozen=True)
class Benchmark(Generic[R]):
    """One paper's benchmark.

    Attributes:
        name: as --benchmark has it.
        gt_modes: ground-truth modes it knows, the default first.
        gt_arguments: whether a mode may have an argument, as in wbf:0.4.
        layout: what is printed, of tables.toml.
        read: (records, source, ground-truth mode) -> references.
        count: (references, {system: answers}, options) -> all systems counted.
        outcome: what came of one question, for the page: (record, prediction, codec or None) ->
            outcome. None where the benchmark has no such thing.
        words: what the heading of tables.md says beside the settings.
        own_score: in place of reading and counting, for what is no file of records.
        own_markdown, own_rows: in place of the layout's.
        uses: the options that it takes, of "codec", "judge", "segmenter" and "bert_score".
    """

    name: str
    gt_modes: tuple[str, ...]
    gt_arguments: bool = field(default=False, kw_only=True)
    layout: Layout
    read: Callable[[Iterable[QARecord], str, str], R]
    count: Callable[[R, Mapping[str, Answers], ScoreOptions], Evaluated]
    outcome: Callable[[QARecord, Prediction, Codec | None], Outcome] | None = None
    words: Callable[[Scores], Mapping[str, str]] = field(default=lambda scores: {})
    own_score: Callable[[Path, Mapping[str, Path], ScoreOptions], Scores] | None = None
    own_markdown: Callable[[Scores], str] | None = None
    own_rows: Callable[[Scores], list[dict[str, Any]]] | None = None
    uses: frozenset[str] = frozenset({"codec"})

    def score_files(
        self, references: Path, predictions: Mapping[str, Path], options: ScoreOptions
    ) -> Scores:
        """Scores of several systems' files; the settings carry the files' hashes.

        Raises:
            UserError: a file or an option is unusable; the message names file and line or question.
        """
        self._check(options)
        if self.own_score is not None:
            return self.own_score(references, predictions, options)
        truth = self.read(read_records(references), str(references), options.gt_mode)
        answers = {
            name: Answers(read_predictions(path), str(path)) for name, path in predictions.items()
        }
        files = {
            "references": named_file(references),
            "predictions": {name: named_file(path) for name, path in predictions.items()},
        }
        return self.score(truth, answers, options, files)

    def score(
        self,
        references: R,
        systems: Mapping[str, Answers],
        options: ScoreOptions,
        settings: Mapping[str, Any] | None = None,
    ) -> Scores:
        """Figures of several systems on one set of references.

        Args:
            settings: what else is known of how the figures come about.

        Raises:
            UserError: predictions for unknown questions, or without boxes and codec; a judge that
                cannot be asked.
        """
        found = self.count(references, systems, options)
        about = {
            "benchmark": self.name,
            "datasets": references.datasets,
            "splits": references.splits,
            "split_sha256": hash_lines(references.image_ids),
            "images": len(references.image_ids),
            "questions": len(references.questions),
            **found.settings,
        }
        scores = make_scores(
            found.systems,
            found.clusters or references.clusters,
            about,
            options,
            found.attributes,
            compared=self.layout.compared(),
        )
        return scores.with_settings(settings or {})

    def _check(self, options: ScoreOptions) -> None:
        mode, with_argument, _ = options.gt_mode.partition(":")
        if mode not in self.gt_modes or (with_argument and not self.gt_arguments):
            expected = ", ".join(map(repr, self.gt_modes))
            raise UserError(f"--gt_mode={options.gt_mode}: expected {expected} ({self.name})")
        for name in ("codec", "judge", "segmenter", "bert_score"):
            if getattr(options, name) is not None and name not in self.uses:
                flag = "bertscore_model" if name == "bert_score" else name
                raise UserError(f"--{flag}: {self.name} has no use for one; leave it out")

    def markdown(self, scores: Scores) -> str:
        """tables.md: the benchmark's tables, then its systems compared."""
        if self.own_markdown is not None:
            tables = self.own_markdown(scores)
        else:
            tables = self.layout.markdown(scores, self.words(scores))
        return "\n".join([tables, *comparison_tables(scores)])

    def rows(self, scores: Scores) -> list[dict[str, Any]]:
        """The cells of tables.csv."""
        return (self.own_rows or self.layout.rows)(scores)

    def logged_figures(
        self, figures: Mapping[str, Mapping[str, Estimate]]
    ) -> list[tuple[str, str, float | None]]:
        """(protocol, metric, value) of what a training run logs of one system's figures."""
        logged = self.layout.logged or {STRICT: list(figures[STRICT])}
        return [(p, name, figures[p][name].value) for p, names in logged.items() for name in names]


def write_scores(out: Path, benchmark: Benchmark[Any], scores: Scores) -> str:
    """Writes metrics.json, tables.md, .tex and .csv, and score.json (settings and problems).

    Beside them curves.json and comparisons.json, where there are any.

    Returns:
        The content of tables.md.

    Raises:
        UserError: the folder cannot be written to.
    """
    rows = benchmark.rows(scores)
    markdown = benchmark.markdown(scores)
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
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            if content is None:
                (out / name).unlink(missing_ok=True)  # of an earlier run
            else:
                replace_text(out / name, content)
    return markdown


def _json(content: Any) -> str:
    # NaN is no JSON. Undefined figures are None by now, so one that slips through is our bug.
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
