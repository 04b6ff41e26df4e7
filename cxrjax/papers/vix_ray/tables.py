"""The tables of ViX-Ray (arXiv 2603.15513): 6, and 4, 5, 11 and 12 without the paper's values.

The bodies of Tables 4, 5, 11 and 12 are not available; ours stand alone there. Tables of our own
follow: BLEU's orders and segmented words, facts, and what is wrong with them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cxrjax.metrics.bootstrap import Estimate
from cxrjax.papers.vix_ray.counts import BLANK, EARLIER, HISTORY_KIND, MISSING
from cxrjax.scoring import judge_failures
from cxrjax.scoring.scores import PAPER, STRICT, Scores
from cxrjax.scoring.tables import (
    FEW,
    NOT_THE_PAPERS,
    Column,
    Note,
    PaperTable,
    about_intervals,
    about_references,
    failures_markdown,
    table_markdown,
    table_rows,
    with_interval,
)
from cxrjax.scoring.text_tables import UNDEFINED, grid

Row = Mapping[str, float]

TUNED = "Qwen2.5VL-7B"
SPLITS = ("validation", "test")
COLUMNS = ("ROUGE-1", "ROUGE-2", "ROUGE-L", "BLEU", "Precision", "Recall")
# Table 6: kind -> model -> split -> its columns, in per cent.
TABLE_6: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {
    "stage1/findings": {
        "Gemini": {
            "validation": (44.07, 34.01, 34.49, 22.79, 12.10, 11.20),
            "test": (62.51, 35.12, 44.12, 32.31, 10.20, 11.10),
        },
        "GPT-4v": {
            "validation": (47.79, 17.57, 29.40, 11.54, 0.27, 0.34),
            "test": (46.51, 18.54, 31.02, 15.21, 0.51, 0.41),
        },
        TUNED: {
            "validation": (84.09, 76.77, 81.11, 70.11, 68.91, 69.94),
            "test": (84.30, 76.10, 81.21, 71.22, 70.51, 70.21),
        },
    },
    "stage2/impression": {
        "Gemini": {
            "validation": (39.22, 14.16, 26.72, 30.76, 0.91, 0.75),
            "test": (38.75, 15.13, 27.15, 31.54, 0.83, 0.79),
        },
        "GPT-4v": {
            "validation": (35.83, 8.39, 23.35, 11.66, 0.01, 0.02),
            "test": (35.54, 15.12, 25.41, 12.55, 0.02, 0.01),
        },
        TUNED: {
            "validation": (74.17, 65.75, 71.81, 60.11, 60.58, 61.94),
            "test": (73.89, 64.66, 71.11, 59.56, 61.25, 62.14),
        },
    },
    "stage3/findings": {
        "Gemini": {
            "validation": (60.97, 21.67, 35.99, 41.32, 0.37, 0.12),
            "test": (61.25, 22.15, 33.25, 40.12, 0.38, 0.15),
        },
        "GPT-4v": {
            "validation": (47.63, 13.50, 28.16, 34.52, 0.20, 0.01),
            "test": (46.52, 11.25, 25.41, 31.52, 0.25, 0.01),
        },
        TUNED: {
            "validation": (84.81, 76.97, 80.47, 71.35, 70.34, 72.28),
            "test": (84.40, 75.90, 79.60, 69.85, 69.78, 70.60),
        },
    },
    "stage3/impression": {
        "Gemini": {
            "validation": (31.96, 10.03, 25.69, 42.21, 0.33, 0.42),
            "test": (32.21, 9.51, 21.54, 42.51, 0.41, 0.35),
        },
        "GPT-4v": {
            "validation": (31.75, 6.94, 18.59, 21.51, 0.30, 0.01),
            "test": (32.15, 11.25, 20.12, 20.52, 0.21, 0.02),
        },
        TUNED: {
            "validation": (95.93, 94.34, 95.08, 92.04, 92.14, 92.11),
            "test": (95.20, 93.80, 94.68, 89.75, 89.95, 90.88),
        },
    },
}


def notes(kind: str, split: str) -> tuple[Note, ...]:
    """Footnotes to Table 6 of one kind of question, by what its own numbers show."""
    printed = {
        model: dict(zip(COLUMNS, values[split], strict=True))
        for model, values in TABLE_6[kind].items()
    }
    found = [
        Note(
            "BLEU",
            _rows(printed, lambda row: row["BLEU"] > row["ROUGE-L"]),
            "Above ROUGE-L, which corpus BLEU-4 hardly reaches: BLEU-1, it seems. The paper states "
            "neither order nor smoothing; ours in this column is BLEU-4, and BLEU-1 to 4 follow.",
        ),
        Note(
            "ROUGE-2",
            _rows(printed, lambda row: row["ROUGE-2"] > 0.95 * row["ROUGE-L"] and row["BLEU"] < 60),
            "Nearly ROUGE-L, as in no other row of a model that was not fine-tuned.",
        ),
        *(
            Note(
                column,
                tuple(model for model, row in printed.items() if row[column] < 1),
                "Below 1 in a table of per cent: a share, or a percentage that is that low.",
            )
            for column in ("Precision", "Recall")
        ),
    ]
    if kind == "stage2/impression":
        found.append(
            Note(
                "BLEU",
                _rows(printed, lambda row: 50 < row["BLEU"] < 60),
                "The text says that all metrics are above 60 %.",
            )
        )
    if kind == "stage3/impression":
        found.append(
            Note(
                "ROUGE-1",
                (TUNED,),
                "Some 20 points above stage 2, which asks for the same text: as if the "
                "radiologist's findings had stood in the history (gold); the text says that the "
                "generated ones did (self).",
            )
        )
    odd = [note for note in found if note.rows]
    judged = [Note(c, (), judge_failures.NOTE, ours=True) for c in ("Precision", "Recall")]
    return (*odd, *judged)


def _rows(printed: Mapping[str, Row], is_odd: Callable[[Row], bool]) -> tuple[str, ...]:
    return tuple(model for model, row in printed.items() if is_odd(row))


# Metric -> heading, the columns of the paper's tables.
METRICS = dict(
    zip(
        ("rouge_1", "rouge_2", "rouge_l", "bleu_4", "fact_precision", "fact_recall"),
        COLUMNS,
        strict=True,
    )
)
# Before the names of metrics on a segmenter's words.
WORDS = "words/"
TITLES = {
    "stage1/findings": "Stage 1, findings",
    "stage2/impression": "Stage 2, impression",
    "stage3/findings": "Stage 3, findings",
    "stage3/impression": "Stage 3, impression",
}
_LOST = "the paper's values are not available"
_UNIT = Column("", {}, percent=True, decimals=2)
_ORDERS = {f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)}
_LEXICAL = {
    **_ORDERS,
    **{f"{WORDS}{m}": f"{METRICS[m]}, words" for m in ("rouge_1", "rouge_2", "rouge_l")},
    **{f"{WORDS}{metric}": f"{heading}, words" for metric, heading in _ORDERS.items()},
    "refusal_rate": "Refusals",
}
_FACTS = {
    "fact_precision": "Precision",
    "fact_recall": "Recall",
    "fact_precision_micro": "Precision, micro",
    "fact_recall_micro": "Recall, micro",
    "judge_failure_rate": "Judge failed",
}
_ERRORS = {
    f"surrogate/{label}_rate": label.capitalize()
    for label in ("correct", "incorrect", "hallucinated", "redundant", "missing")
}
_PROBLEMS = {
    MISSING: "question without a line in the predictions file; scored as an empty text",
    BLANK: "answer without text",
}


def paper_tables(split: str) -> tuple[PaperTable, ...]:
    """Table 6, one table for each kind of question; the test split's values but for validation."""
    split = split if split in SPLITS else SPLITS[-1]
    return tuple(
        PaperTable(
            key=f"table_6/{kind}",
            title=f"Table 6, {split}. {title}",
            columns=tuple(
                Column(
                    heading,
                    {PAPER: f"{kind}/{metric}", STRICT: f"{kind}/{metric}"},
                    percent=True,
                    decimals=2,
                )
                for metric, heading in METRICS.items()
            ),
            printed={model: values[split] for model, values in TABLE_6[kind].items()},
            notes=notes(kind, split),
        )
        for kind, title in TITLES.items()
    )


def markdown(scores: Scores) -> str:
    """tables.md."""
    stages = list(TITLES)
    title = f"Table 4. Stages 1 and 2 ({_LOST})"
    parts = [_heading(scores), _own_table(scores, title, METRICS, stages[:2])]
    title = f"Table 5. Stage 3 beside stages 1 and 2 ({_LOST})"
    parts.append(_differences(scores, "minus_stage", title, stages[2:]))
    for table in paper_tables(scores.settings["splits"][0]):
        answering = _answering(scores, table.key.removeprefix("table_6/"))
        if answering.figures:
            parts.append(table_markdown(table, answering, _paper_row))
    parts.append(_histories(scores))
    for number, kinds in (("11", stages[:1]), ("12", stages[1:2])):
        title = f"Table {number}. {TITLES[kinds[0]]}: against the first system named ({_LOST})"
        parts.append(_differences(scores, "minus", title, kinds))
    title = "Table 6, stage 3: against the first system named"
    parts.append(_differences(scores, "minus", title, stages[2:]))
    segmenter = scores.settings["segmenter"]
    title = f"BLEU of each order, and words cut by {segmenter} in place of syllables"
    parts.append(_own_table(scores, title, _LEXICAL, stages))
    if "judge" in scores.settings:
        parts += _judged_tables(scores, stages)
    parts.append(failures_markdown(scores, _problems(scores)))
    return "\n".join(part for part in parts if part)


def rows(scores: Scores) -> list[dict[str, Any]]:
    """The cells of tables.csv."""
    listed = table_rows(paper_tables(scores.settings["splits"][0]), (), scores, _paper_row)
    tables = {"table_4": (METRICS, list(TITLES)[:2]), "words": (_LEXICAL, list(TITLES))}
    facts = _named_facts(scores)
    tables |= {"facts": (facts, list(TITLES)), "errors": (_ERRORS, list(TITLES))}
    for system, protocols in scores.figures.items():
        for protocol, named in protocols.items():
            for table, (metrics, kinds) in tables.items():
                for metric, heading in metrics.items():
                    for kind in kinds:
                        if (figure := named.get(f"{kind}/{metric}")) is not None:
                            cell = (table, system, protocol, f"{TITLES[kind]}, {heading}")
                            listed.append(_row(listed[0], *cell, f"{kind}/{metric}", figure))
        for name, figure in protocols[PAPER].items():
            if "/minus" in name:
                heading = _heading_of(name, scores)
                cell = ("differences", system, PAPER, heading)
                listed.append(_row(listed[0], *cell, name, figure))
    return listed


def _row(
    like: Mapping[str, Any],
    table: str,
    system: str,
    protocol: str,
    column: str,
    metric: str,
    figure: Estimate,
) -> dict[str, Any]:
    return dict.fromkeys(like) | {
        "table": table,
        "system": system,
        "protocol": protocol,
        "column": column,
        "metric": metric,
        "unit": "%",
        "ours": _UNIT.scale(figure.value),
        "ci_low": _UNIT.scale(figure.ci_low),
        "ci_high": _UNIT.scale(figure.ci_high),
        "n": figure.n,
        "small": str(figure.n < FEW).lower(),
    }


def _paper_row(system: str) -> str:
    """The paper's row that a system is compared with: its fine-tuned model."""
    return next((model for model in ("Gemini", "GPT-4v") if model.lower() in system.lower()), TUNED)


def _answering(scores: Scores, kind: str) -> Scores:
    """The systems that answered this kind of question; second turns say on which history."""
    figures = {
        _with_history(scores, name, kind): protocols
        for name, protocols in scores.figures.items()
        if protocols[PAPER][f"{kind}/bleu_4"].n
    }
    return dataclasses.replace(scores, figures=figures)


def _with_history(scores: Scores, system: str, kind: str) -> str:
    if kind != HISTORY_KIND:
        return system
    return f"{system}, history={scores.settings['histories'][system] or 'not stated'}"


def _histories(scores: Scores) -> str:
    """Which systems had which history in stage 3's second turn, and which history nobody had."""
    answering = [n for n, p in scores.figures.items() if p[PAPER][f"{HISTORY_KIND}/bleu_4"].n]
    if not answering:
        return ""
    found = {scores.settings["histories"][name] for name in answering}
    lines = [
        f"No system with history={history} is here; both belong side by side (data/vix_ray)."
        for history in ("gold", "self")
        if history not in found
    ]
    return "\n".join([*lines, ""]) if lines else ""


def _heading(scores: Scores) -> str:
    settings = scores.settings
    judged = "none, since no judge was asked (--judge)"
    if "judge" in settings:
        judged = f"by {settings['judge']}"
        if settings["surrogate_judge"]:
            judged += ", in a judge's place: they are not the paper's precision and recall"
    text = (
        f"# ViX-Ray\n\n{about_references(settings)} Words: {settings['words']}. The paper states "
        "neither its words nor BLEU's order, so that both protocols have one definition; BLEU is "
        f"BLEU-4. Facts: {judged}. {about_intervals(settings)} Parse failures: answers left out or "
        "empty. All in per cent.\n"
    )
    return text + ("" if "vix_ray" in settings["datasets"] else NOT_THE_PAPERS)


def _own_table(
    scores: Scores,
    title: str,
    metrics: Mapping[str, str],
    kinds: Iterable[str],
    protocol: str = PAPER,
) -> str:
    """A row for each system and kind that it answered; "" without any."""
    lines = [["System", "Text", *metrics.values()]]
    for kind in kinds:
        for system, protocols in _answering(scores, kind).figures.items():
            figures = (protocols[protocol].get(f"{kind}/{metric}") for metric in metrics)
            cells = [with_interval(_UNIT, f) if f is not None else UNDEFINED for f in figures]
            lines.append([system, TITLES[kind], *cells])
    return f"## {title}\n\n{grid(lines)}" if len(lines) > 1 else ""


def _judged_tables(scores: Scores, kinds: Sequence[str]) -> list[str]:
    """Facts under both protocols and, of a surrogate, what is wrong with them."""
    judge = scores.settings["judge"]
    facts = _named_facts(scores)
    tables = [
        _own_table(scores, f"Facts, {how} ({judge})", facts, kinds, protocol)
        for protocol, how in (
            (PAPER, "what the judge failed at left out"),
            (STRICT, "what the judge failed at counted as 0"),
        )
        # Rules do not fail.
        if protocol == PAPER or not scores.settings["surrogate_judge"]
    ]
    if scores.settings["surrogate_judge"]:
        title = f"What is wrong with the facts ({judge})"
        about = (
            "\nOf the answer's facts; missing: of the reference's. Guessed, where the paper marked "
            "by hand (appendix D).\n"
        )
        table = _own_table(scores, title, _ERRORS, kinds)
        tables.append(table and table + about)
    return tables


def _named_facts(scores: Scores) -> dict[str, str]:
    prefix = "surrogate/" if scores.settings["surrogate_judge"] else ""
    return {prefix + metric: heading for metric, heading in _FACTS.items()}


def _problems(scores: Scores) -> dict[str, str]:
    if "judge" not in scores.settings:
        return _PROBLEMS
    return _PROBLEMS | judge_failures.JUDGE_PROBLEMS


def _compared_metrics(scores: Scores) -> dict[str, str]:
    """Metric -> heading, in tables of differences."""
    if not scores.settings["surrogate_judge"]:
        return METRICS
    lexical = {metric: heading for metric, heading in METRICS.items() if "fact_" not in metric}
    facts = {f"surrogate/{m}": f"{METRICS[m]} (surrogate)" for m in METRICS if "fact_" in m}
    return lexical | facts


def _heading_of(name: str, scores: Scores) -> str:
    known = {**_compared_metrics(scores), **_named_facts(scores)}
    metric = next(m for m in sorted(known, key=len, reverse=True) if name.endswith(f"/{m}"))
    return known[metric]


def _differences(scores: Scores, label: str, title: str, kinds: Sequence[str]) -> str:
    """Both values and their difference, for each pair of this label; "" where there are none."""
    metrics = _compared_metrics(scores)
    lines = [["", *metrics.values()]]
    for system, protocols in scores.figures.items():
        named = protocols[PAPER]
        for kind in kinds:
            for other, other_kind, prefix in _pairs(scores, named, kind, label):
                before = scores.figures[other][PAPER]
                if system != other or kind != other_kind:
                    cells = [_value(before, f"{other_kind}/{metric}") for metric in metrics]
                    lines.append([_who(scores, other, other_kind), *cells])
                    cells = [_value(named, f"{kind}/{metric}") for metric in metrics]
                    lines.append([_who(scores, system, kind), *cells])
                    differences = (named.get(f"{prefix}/{metric}") for metric in metrics)
                    lines.append(["difference", *map(_arrow, differences)])
    return f"## {title}\n\n{grid(lines)}" if len(lines) > 1 else ""


def _pairs(
    scores: Scores, named: Mapping[str, Estimate], kind: str, label: str
) -> list[tuple[str, str, str]]:
    """(system, its kind, prefix of the differences' names) of those that are subtracted."""
    if label == "minus":
        found = [(other, kind, f"{kind}/minus/{other}") for other in scores.figures]
    else:
        before = EARLIER[kind]
        stage = before.split("/")[0]
        found = [(other, before, f"{kind}/minus_{stage}/{other}") for other in scores.figures]
    return [pair for pair in found if f"{pair[2]}/bleu_4" in named]


def _who(scores: Scores, system: str, kind: str) -> str:
    return f"{TITLES[kind]}: {_with_history(scores, system, kind)}"


def _value(named: Mapping[str, Estimate], name: str) -> str:
    figure = named.get(name)
    return UNDEFINED if figure is None else _UNIT.format(_UNIT.scale(figure.value))


def _arrow(figure: Estimate | None) -> str:
    if figure is None or figure.value is None:
        return UNDEFINED
    sign = "↑" if figure.value > 0 else "↓" if figure.value < 0 else "="
    cell = f"{sign} {abs(100 * figure.value):.2f}"
    if figure.ci_low is None or figure.ci_high is None:
        return cell
    return f"{cell} ({100 * figure.ci_low:+.2f} to {100 * figure.ci_high:+.2f})"
