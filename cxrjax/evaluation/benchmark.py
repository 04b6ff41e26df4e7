"""The protocol of a benchmark: references and predictions are read, counted, scored and written.

A paper gives three things: how its references are read (truth), how one system's answers are
counted (counts), and what is printed (tables.toml). The rest is here, once for all of them.
"""

import csv
import functools
import io
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.evaluation.counted import WORDS, Counted, Outcome, code
from cxrjax.evaluation.figures import JUDGE_PROBLEMS, answer_calibration, share
from cxrjax.evaluation.layout import Layout
from cxrjax.evaluation.predictions import (
    LINE_PROBLEMS,
    PROBLEMS,
    Prediction,
    ReadBoxes,
    check_images,
    check_known,
    read_boxes,
    read_predictions,
)
from cxrjax.evaluation.scores import (
    MOST_FOR_FLOORS,
    ScoreOptions,
    Scores,
    figures_json,
    make_scores,
    named_file,
)
from cxrjax.evaluation.tables import comparison_tables, floor_tables, reliance_tables
from cxrjax.evaluation.text_scores.sentences import ReferenceText, reference_text
from cxrjax.evaluation.text_scores.sentences import cluster_of as cluster_of
from cxrjax.evaluation.text_tables import to_latex
from cxrjax.files import cell, hash_lines, replace_text, writing
from cxrjax.metrics.bootstrap import Attributes, Bootstrap, Columns, Estimate, Figure
from cxrjax.paper import about_terms, load_part, terms_json
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord, read_records
from cxrjax.untrusted.names import shown

# Only scores have these, and load much: baselines that see no image, and the comparison of texts.
_BASELINES = "cxrjax.evaluation.baselines:Baselines"
_FREE_TEXT = "cxrjax.evaluation.text_scores.comparison"
_REPORT_FLOORS = "cxrjax.evaluation.text_scores.report_floors:report_floors"

# Boxes of these benchmarks have no classes.
CLASSLESS_PROBLEMS = {
    name: told for name, told in PROBLEMS.items() if name not in ("unknown_label", "unclassed_box")
}


@runtime_checkable
class ScoredQuestion(Protocol):
    """A paper's question; those of one `cluster` are resampled together."""

    @property
    def cluster(self) -> tuple[str, str]: ...


# Of a system's lines; more are counted, not named.
_NAMED_PROBLEMS = 20

Q = TypeVar("Q", bound=ScoredQuestion)
R = TypeVar("R", bound="References[Any]")


@dataclass(frozen=True, eq=False)
class References(Generic[Q]):
    """The questions of a references file, by id in the file's order, and where they come from.

    `left_out` are ids of questions without a truth, predictions for which are not read.

    A subclass may have `classes`, which an answer to an open question may name, and
    `asked(question id)`, the class asked about where records do not name it.
    """

    questions: Mapping[str, Q]
    image_ids: tuple[str, ...]
    datasets: tuple[str, ...]
    splits: tuple[str, ...]
    left_out: frozenset[str] = field(default=frozenset(), kw_only=True)

    @cached_property
    def clusters(self) -> list[tuple[str, str]]:
        """The cluster of each question."""
        return [question.cluster for question in self.questions.values()]


def read_references(
    records: Iterable[QARecord], source: str, read_question: Callable[[QARecord, str], Q | None]
) -> References[Q]:
    """The questions of the records.

    Args:
        records: of one split, answers included.
        source: names the file, for error messages.
        read_question: (record, source) -> its truth; None: the question is left out.

    Raises:
        UserError: no records, a repeated question, or one that `read_question` refuses.
    """
    questions: dict[str, Q] = {}
    left_out: set[str] = set()
    images: dict[str, None] = {}
    datasets, splits = set(), set()
    for record in records:
        if record.question_id in questions or record.question_id in left_out:
            raise UserError(f"{source}: question_id {record.question_id!r} stands there twice")
        question = read_question(record, source)
        if question is None:
            left_out.add(record.question_id)
            continue
        questions[record.question_id] = question
        images[record.image_id] = None
        datasets.add(record.dataset)
        splits.add(record.split)
    if not questions:
        none = "no question with a truth" if left_out else "no records"
        raise UserError(f"{source}: holds {none}: nothing to score against")
    where = tuple(images), tuple(sorted(datasets)), tuple(sorted(splits))
    return References(questions, *where, left_out=frozenset(left_out))


class Answers(NamedTuple):
    """One system's predictions, and what they are called in error messages."""

    predictions: Iterable[Prediction]  # read once: a large file's may be gone then
    source: str


class SharedCounts(dict[str, float]):
    """Numbers by column, one object for all questions that have them."""


@functools.lru_cache(maxsize=1 << 12)
def _words(text: str) -> tuple[str, float]:
    """A text in lower case, its blanks as one, and the number that stands for it."""
    words = " ".join(text.lower().split())
    return words, code(words)


@dataclass
class SystemCounts:
    """Counts of one system's answers."""

    columns: dict[str, Any]  # name -> a number for each question, in the references' order
    # Probability of what each answer decides, NaN where it is not known.
    confidence: Float[np.ndarray, " questions"]
    problems: Counter[str]  # category -> how often, every category named
    failures: Counter[str]  # category of parse failures -> how many answers
    # Answer in lower case, its blanks as one -> how often.
    texts: Counter[str] = field(default_factory=Counter)

    def add(self, row: int | list[int], counted: Mapping[str, float]) -> None:
        """Notes numbers of one question, or of several that have the same."""
        for name, amount in counted.items():
            if name not in self.columns:
                self.columns[name] = np.zeros(len(self.confidence))
            if amount:
                self.columns[name][row] = amount

    def read_boxes(
        self, line: Prediction, codec: Codec | None, image_hw: tuple[int, int], source: str
    ) -> ReadBoxes:
        """Reads a line's boxes as `predictions.read_boxes`; counts its problems and a blank one."""
        read = read_boxes(line, codec, *image_hw, source)
        self.problems.update(read.problems)
        self.problems["blank_answer"] += not (line.text.strip() or len(read.boxes))
        return read

    def calibration(
        self, right: str, among: str, clusters: Sequence[Hashable], bootstrap: Bootstrap
    ) -> tuple[Columns, dict[str, Figure | Estimate], dict[str, dict[str, Any]]]:
        """Holds how sure answers are against whether they are right; as of `answer_calibration`.

        Args:
            right, among: columns, 1 where an answer is right and where it counts.
            clusters: of each question.
        """
        counted = np.asarray(self.columns[among]) > 0
        known = np.flatnonzero(np.isfinite(self.confidence) & counted)
        sure, correct = self.confidence[known], np.asarray(self.columns[right])[known]
        return answer_calibration(sure, correct, known, clusters, bootstrap)

    def most_common_share(self) -> Estimate:
        """The share of questions that get the most frequent answer, which no interval goes with."""
        most = self.texts.most_common(1)
        n = len(self.confidence)
        return Estimate(most[0][1] / n if most else None, None, None, n)

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
        Counter(dict.fromkeys((*problems, *LINE_PROBLEMS), 0)),
        Counter(dict.fromkeys(failures, 0)),
    )
    # Minutes for a hundred thousand long answers. None: quiet unless a terminal watches.
    shared: dict[int, tuple[SharedCounts, list[int]]] = {}
    progress = progress_bar(questions.items(), desc=f"scoring {answers.source}")
    for row, (name, question) in enumerate(progress):
        prediction = by_id.pop(name, None)
        counted = count(question, prediction, counts)
        if counted is None:
            continue
        counts.problems["missing_prediction"] += prediction is None
        if isinstance(counted, SharedCounts):
            shared.setdefault(id(counted), (counted, []))[1].append(row)
        else:
            counts.add(row, counted)
        if prediction is not None:
            words, number = _words(prediction.text)
            counts.texts[words] += 1
            counts.add(row, {WORDS: number})
            if prediction.problems:
                counts.problems.update(category for category, _ in prediction.problems)
        if prediction is not None and prediction.decision_probability is not None:
            counts.confidence[row] = prediction.decision_probability
    for counted, rows in shared.values():
        counts.add(rows, counted)
    return counts


@dataclass(frozen=True)
class Evaluated:
    """All systems counted, ready for `make_scores`."""

    systems: Mapping[str, Counted]
    settings: Mapping[str, Any]  # what the benchmark says of itself beside what all say
    attributes: Attributes | None = None
    clusters: Sequence[tuple[str, str]] | None = None  # of each unit; None: units are the questions


def count_each(
    count_system: Callable[[R, Answers, ScoreOptions], Counted],
) -> Callable[[R, Mapping[str, Answers], ScoreOptions], Evaluated]:
    """Returns a `Benchmark.count` that counts each system without the others."""

    def count(references: R, systems: Mapping[str, Answers], options: ScoreOptions) -> Evaluated:
        counted = {name: count_system(references, of, options) for name, of in systems.items()}
        codec = options.box_codec.name if options.box_codec else None
        return Evaluated(counted, {"gt_mode": options.gt_mode, "codec": codec})

    return count


@dataclass(frozen=True)
class Benchmark(Generic[R]):
    """One paper's benchmark."""

    name: str  # as --benchmark has it
    layout: Layout  # title, figures and tables, of tables.toml
    # (records, source, ground-truth mode) -> references.
    read: Callable[[Iterable[QARecord], str, str], R]
    # (references, {system: answers}, options) -> all systems counted.
    count: Callable[[R, Mapping[str, Answers], ScoreOptions], Evaluated]
    # (record, prediction, codec or None) -> what came of one question, for the page.
    outcome: Callable[[QARecord, Prediction, Codec | None], Outcome] = field(
        default=lambda record, prediction, codec: Outcome(None, None, "")
    )
    gt_modes: tuple[str, ...] = ("exact",)  # ground-truth modes, the default first
    mode_arguments: bool = False  # modes may have an argument, as in wbf:0.4

    def score_files(
        self, references: Path, predictions: Mapping[str, Path], options: ScoreOptions
    ) -> Scores:
        """Scores of several systems' files; the settings carry the files' hashes.

        Raises:
            UserError: a file or an option is unusable; the message names file and line or question.
        """
        takes, arguments = self.layout.takes, self.mode_arguments
        check_options(self.name, self.gt_modes, takes, options, arguments)
        images: dict[str, tuple[str, ...]] = {}
        texts: dict[str, ReferenceText] = {}
        compared = self.layout.free_text if options.judge or options.radeval else ()
        floors = self._new_floors(options)

        def noted() -> Iterable[QARecord]:
            for record in read_records(references):
                nonlocal floors
                others = (image for answer in record.answers for image in answer.boxes_by_image)
                images[record.question_id] = tuple({record.image_id, *others})
                if floors is not None:
                    floors.add(record)
                    # Of more questions than there are floors for, none is kept.
                    if len(floors) > MOST_FOR_FLOORS and not options.floors:
                        floors = None
                if {"*", record.question_type}.intersection(compared):
                    texts[record.question_id] = reference_text(record)
                yield record

        truth = self.read(noted(), str(references), options.gt_mode)
        answers = {
            name: Answers(check_images(read_predictions(path), images), str(path))
            for name, path in predictions.items()
        }
        files = {
            "references": named_file(references),
            "predictions": {name: named_file(path) for name, path in predictions.items()},
            **_line_problems(answers),
        }
        count = len(images)
        images.clear()
        if floors is None and options.floors is None and self.layout.floors:
            if not answers:
                raise UserError(f"{references}: {count:,} questions: give --floors=always")
            files["floors_left_out"] = count
        if not texts:  # else they are read once more
            answers = {
                name: Answers(iter(given.predictions), given.source)
                for name, given in answers.items()
            }
        if not answers and floors is not None:
            answers = {
                name: Answers(lines, name) for name, lines in self._floors(truth, floors, options)
            }
            floors = None
        return self.score(truth, answers, options, files, floors, texts)

    def _new_floors(self, options: ScoreOptions) -> Any:
        """Baselines of a score, or None; evaluations during training have none."""
        if not self.layout.floors or options.floors is False:
            return None
        return load_part(_BASELINES)()

    def _floors(
        self, references: R, floors: Any, options: ScoreOptions
    ) -> Iterator[tuple[str, list[Prediction]]]:
        classes = getattr(references, "classes", ())
        asked = getattr(references, "asked", None)
        floors.leave_out(references.left_out)
        yield from floors.systems(asked, options.bootstrap.seed, classes)
        if self.layout.report_floors:
            yield from load_part(_REPORT_FLOORS)(references.questions)

    def score(
        self,
        references: R,
        systems: Mapping[str, Answers],
        options: ScoreOptions,
        settings: Mapping[str, Any] | None = None,
        floors: Any = None,
        texts: Mapping[str, ReferenceText] | None = None,
    ) -> Scores:
        """Figures of several systems on one set of references.

        Args:
            settings: what else is known of how the figures come about.
            floors: of the same records, to stand beside the systems.
            texts: of the questions whose answers are compared as free text.

        Raises:
            UserError: predictions for unknown questions, or without boxes and codec; a judge that
                cannot be asked.
        """
        if options.judge is not None:
            options.judge.datasets = references.datasets
        if references.left_out:
            systems = {
                name: Answers(
                    [p for p in given.predictions if p.question_id not in references.left_out],
                    given.source,
                )
                for name, given in systems.items()
            }
        found = self.count(references, systems, options)
        if texts:
            lines = {name: answers.predictions for name, answers in systems.items()}
            compared, about_texts = load_part(f"{_FREE_TEXT}:compare_texts")(
                found.systems, list(references.questions), lines, texts, options
            )
            found = replace(found, systems=compared, settings={**found.settings, **about_texts})
        about = {
            "benchmark": self.name,
            "title": options.title or self.layout.title,
            "datasets": references.datasets,
            "data_terms": terms_json(references.datasets),
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
            floors=self._counted_floors(references, floors, options) if floors else (),
            beside=self.layout.beside_floors(found.systems.values()) if floors else None,
            headlines=[(protocol, metric) for protocol, metric, *_ in self.layout.headlines],
        )
        return scores.with_settings(settings or {})

    def _counted_floors(
        self, references: R, floors: Any, options: ScoreOptions
    ) -> Iterator[tuple[str, Counted]]:
        """Each floor counted, without what asks a model."""
        plain = replace(options, judge=None, bert_score=None)
        for name, lines in self._floors(references, floors, plain):
            found = self.count(references, {name: Answers(lines, name)}, plain)
            del lines  # else they stay until the next floor is made
            counted = found.systems[name]
            del found
            yield name, counted

    def markdown(self, scores: Scores) -> str:
        """tables.md: the benchmark's tables, then its systems compared."""
        texts = load_part(f"{_FREE_TEXT}:text_tables")(scores)
        added = [*texts, *floor_tables(scores), *reliance_tables(scores)]
        return with_comparisons("\n".join([self.layout.markdown(scores), *added]), scores)

    def rows(self, scores: Scores) -> list[dict[str, Any]]:
        """The cells of tables.csv."""
        return self.layout.rows(scores)


def check_options(
    name: str,
    gt_modes: Sequence[str],
    takes: Sequence[str],
    options: ScoreOptions,
    arguments: bool = False,
) -> None:
    """Validates the ground-truth mode, and that the benchmark takes the options that are set.

    Raises:
        UserError: names the flag.
    """
    mode, with_argument, _ = options.gt_mode.partition(":")
    if mode not in gt_modes or (with_argument and not arguments):
        expected = ", ".join(map(repr, gt_modes))
        raise UserError(f"--gt_mode={options.gt_mode}: expected {expected} ({name})")
    for option in ("codec", "judge", "segmenter", "bert_score", "radeval"):
        if getattr(options, option) is not None and option not in takes:
            flag = "bertscore_model" if option == "bert_score" else option
            raise UserError(f"--{flag}: {name} has no use for one; leave it out")


def with_comparisons(tables: str, scores: Scores) -> str:
    """Returns tables.md with the comparisons of systems and the terms of the data below it."""
    terms = about_terms(scores.settings.get("datasets", ()))
    return "\n".join([tables, *comparison_tables(scores), *([f"\n{terms}\n"] if terms else [])])


def _line_problems(answers: Mapping[str, Answers]) -> dict[str, Any]:
    """Setting `line_problems`: {system: {category: {key or name: how often}}}, the most frequent.

    Nothing where there are none.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    for system, answered in answers.items():
        counted = Counter(case for line in answered.predictions for case in line.problems)
        for (category, name), amount in counted.most_common(_NAMED_PROBLEMS):
            found.setdefault(system, {}).setdefault(category, {})[shown(name)] = amount
    return {"line_problems": found} if found else {}


def write_scores(out: Path, benchmark: Any, scores: Scores) -> str:
    """Writes metrics.json, tables.md, .tex and .csv, and score.json (settings and problems).

    Beside them curves.json, comparisons.json and image_reliance.json, where there are any.

    Args:
        benchmark: a benchmark, or a data validation.

    Returns:
        The content of tables.md.

    Raises:
        UserError: the folder cannot be written to.
    """
    beside = {"made": scores.made} if scores.made else {}
    rows = [{**row, **beside} for row in benchmark.rows(scores)]
    markdown = benchmark.markdown(scores)
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    floors = {
        "figures": figures_json(scores.floors, scores.made),
        "differences": scores.against_floors,
        "differences_by_group": scores.groups_against_floors,
    }
    contents = {
        "metrics.json": _json(scores.metrics()),
        "tables.md": markdown,
        "tables.tex": to_latex(markdown),
        "tables.csv": table.getvalue(),
        "score.json": _json({**scores.settings, "problems": scores.problems}),
        "curves.json": _json(scores.curves) if scores.curves else None,
        "comparisons.json": _json(scores.comparisons) if scores.comparisons else None,
        "floors.json": _json(floors) if scores.floors else None,
        "image_reliance.json": _json(scores.reliance) if scores.reliance else None,
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
