"""Free text of answers beside that of references: RadFact by a judge, RadEval's metrics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cxrjax.evaluation.counted import PAPER, STRICT, Counted
from cxrjax.evaluation.figures import count_judge_failures
from cxrjax.evaluation.free_text import GroundedSentence, ReferenceText, plain_text, read_sentences
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.radeval import RadEvalScorer, figure_titles
from cxrjax.evaluation.radfact import TextPair, radfact_columns, radfact_figures
from cxrjax.evaluation.scores import ScoreOptions, Scores
from cxrjax.evaluation.tables import FigureList
from cxrjax.files import read_packaged
from cxrjax.metrics.bootstrap import Columns, Estimate, Figure
from cxrjax.radiology_text.error_rates import about_reading

# What a surrogate judge reads are sentences of reports more than answers to a question.
_READ_AS = "openi_en"

# A system's name and its pairs -> columns of the pairs, {protocol: figures}, and problems.
Measure = Callable[
    [str, Sequence[TextPair]],
    tuple[Columns, Mapping[str, Mapping[str, Figure | Estimate]], Mapping[str, int]],
]


def compare_texts(
    systems: Mapping[str, Counted],
    questions: Sequence[str],
    answers: Mapping[str, Iterable[Prediction]],
    texts: Mapping[str, ReferenceText],
    options: ScoreOptions,
) -> tuple[dict[str, Counted], dict[str, Any]]:
    """The systems with these figures added, and settings that say how they came about.

    Args:
        questions: the last units of the counts, in order.
        texts: question -> its reference, of those that are compared.

    Raises:
        UserError: the judge cannot be asked.
    """
    judge = options.judge
    measures: list[Measure] = []
    about: dict[str, Any] = {}
    if judge is not None:
        about["radfact"] = ("surrogate" if judge.surrogate else "judged") * judge.entails
        if judge.entails:
            measures.append(lambda system, pairs: _radfact(options, system, pairs))
    if (scorer := options.radeval) is not None:
        about["radeval"] = {"metrics": scorer.names, "version": scorer.version}
        measures.append(lambda system, pairs: _radeval(scorer, pairs))
    row = {question: number for number, question in enumerate(questions)}
    rows = np.array([row[question] for question in texts], np.int64)
    found = dict(systems)
    for system in systems if measures else ():
        lines = {line.question_id: line for line in answers[system]}
        pairs = [
            TextPair(question, _said(lines.get(question), true, options), true.sentences, true.lang)
            for question, true in texts.items()
        ]
        for measure in measures:
            found[system] = _added(found[system], *measure(system, pairs), rows - len(questions))
    return found, about


def text_tables(scores: Scores) -> list[str]:
    """The figures of free text; nothing where none was compared."""
    settings = scores.settings
    content = read_packaged("cxrjax.evaluation", "free_text.toml")
    notes, of_systems = content["notes"], replace(scores, floors={})
    tables = []
    if settings.get("radfact"):
        listed = FigureList(
            title="RadFact: facts and their boxes",
            metrics=content["radfact"],
            corner="",
            known_only=True,
        )
        told = notes["radfact"].format(**settings)
        if settings["radfact"] == "surrogate":
            told += " " + notes["surrogate"].format(reading=about_reading(_READ_AS))
        tables += [listed.markdown(of_systems), f"{told}\n"]
    elif "radfact" in settings:
        tables.append(f"{notes['no_verdicts']}\n")
    if "radeval" in settings:
        listed = FigureList(title="RadEval", metrics=figure_titles(), known_only=True)
        version = settings["radeval"]["version"] or "of unknown version"
        told = notes["radeval"].format(version=version)
        tables += [listed.markdown(of_systems), f"{told}\n"]
    return tables


def _radfact(options: ScoreOptions, system: str, pairs: Sequence[TextPair]) -> Any:
    assert options.judge is not None
    columns, failures = radfact_columns(options.judge, system, pairs)
    return columns, radfact_figures(options.judge), count_judge_failures(failures)


def _radeval(scorer: RadEvalScorer, pairs: Sequence[TextPair]) -> Any:
    texts = [(plain_text(pair.predicted), plain_text(pair.true)) for pair in pairs]
    columns, figures = scorer(texts)
    return columns, {PAPER: figures, STRICT: figures}, {}


def _said(
    line: Prediction | None, true: ReferenceText, options: ScoreOptions
) -> Sequence[GroundedSentence]:
    if line is None:
        return ()
    return read_sentences(line, options.box_codec or true.codec, true.image_hw, line.where)


def _added(
    counted: Counted,
    columns: Columns,
    figures: Mapping[str, Mapping[str, Figure | Estimate]],
    problems: Mapping[str, int],
    rows: np.ndarray,
) -> Counted:
    """The counts with columns of the pairs, which are the units `rows`."""
    units = len(next(iter(counted.columns.values())))
    of_units = {name: np.zeros(units) for name in columns}
    for name, column in columns.items():
        of_units[name][rows] = column
    return replace(
        counted,
        columns={**counted.columns, **of_units},
        figures={p: {**named, **figures.get(p, {})} for p, named in counted.figures.items()},
        problems={
            **counted.problems,
            **{name: counted.problems.get(name, 0) + n for name, n in problems.items()},
        },
    )
