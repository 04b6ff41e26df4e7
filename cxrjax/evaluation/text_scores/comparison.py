"""Free text of answers against that of references: RadFact by a judge, RadEval's metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cxrjax.evaluation.counted import PAPER, STRICT, Counted
from cxrjax.evaluation.figures import count_judge_failures
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.scores import ScoreOptions, Scores
from cxrjax.evaluation.tables import FigureList
from cxrjax.evaluation.text_scores.radeval import figure_titles
from cxrjax.evaluation.text_scores.radfact import TextPair, radfact_columns, radfact_figures
from cxrjax.evaluation.text_scores.sentences import ReferenceText, plain_text, read_sentences
from cxrjax.files import read_packaged
from cxrjax.metrics.bootstrap import Columns, Estimate, Figure
from cxrjax.radiology_text.error_rates import about_reading

# A surrogate judge reads sentences of reports more than answers to a question.
_READ_AS = "openi_en"


def compare_texts(
    systems: Mapping[str, Counted],
    questions: Sequence[str],
    answers: Mapping[str, Iterable[Prediction]],
    texts: Mapping[str, ReferenceText],
    options: ScoreOptions,
) -> tuple[dict[str, Counted], dict[str, Any]]:
    """Adds these figures to the systems; returns settings that explain them, too.

    Args:
        questions: the last units of the counts, in order.
        texts: question -> its reference, of those that are compared.

    Raises:
        UserError: the judge cannot be asked.
    """
    judge, scorer = options.judge, options.radeval
    about: dict[str, Any] = {}
    if judge is not None:
        about["radfact"] = ("surrogate" if judge.surrogate else "judged") * judge.entails
    if scorer is not None:
        about["radeval"] = {"metrics": scorer.names, "version": scorer.version}
    row = {question: number for number, question in enumerate(questions)}
    rows = np.array([row[question] for question in texts], np.int64) - len(questions)
    found = dict(systems)
    for system in systems:
        by_question = {line.question_id: line for line in answers[system]}
        pairs = [
            _pair(by_question.get(question), question, true, options)
            for question, true in texts.items()
        ]
        if judge is not None and judge.entails:
            columns, failures = radfact_columns(judge, system, pairs)
            problems = count_judge_failures(failures)
            figures = radfact_figures(judge)
            found[system] = _added(found[system], columns, figures, problems, rows)
        if scorer is not None:
            words = [(plain_text(pair.predicted), plain_text(pair.true)) for pair in pairs]
            columns, named = scorer(words)
            found[system] = _added(found[system], columns, {PAPER: named, STRICT: named}, {}, rows)
    return found, about


def text_tables(scores: Scores) -> list[str]:
    """Returns tables of free text; none where none was compared."""
    settings = scores.settings
    content = read_packaged(str(__package__), "titles.toml")
    notes, of_systems = content["notes"], replace(scores, floors={})

    tables = []
    if settings.get("radfact"):
        note = notes["radfact"].format(**settings)
        if settings["radfact"] == "surrogate":
            note += " " + notes["surrogate"].format(reading=about_reading(_READ_AS))
        title = "RadFact: facts and their boxes"
        listed = FigureList(title=title, metrics=content["radfact"], corner="", known_only=True)
        tables += [listed.markdown(of_systems), f"{note}\n"]
    elif "radfact" in settings:
        tables.append(f"{notes['no_verdicts']}\n")
    if "radeval" in settings:
        version = settings["radeval"]["version"] or "of unknown version"
        listed = FigureList(title="RadEval", metrics=figure_titles(), known_only=True)
        note = notes["radeval"].format(version=version)
        tables += [listed.markdown(of_systems), f"{note}\n"]
    return tables


def _pair(
    line: Prediction | None, question: str, true: ReferenceText, options: ScoreOptions
) -> TextPair:
    codec = options.box_codec or true.codec
    said = () if line is None else read_sentences(line, codec, true.image_hw, line.where)
    return TextPair(question, said, true.sentences, true.lang)


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
