"""The tables of ViX-Ray (arXiv 2603.15513): 6, and 4, 5, 11 and 12 without the paper's values.

The bodies of Tables 4, 5, 11 and 12 are not available; ours stand alone there. Tables of our own
follow: BLEU's orders and segmented words, facts, and what is wrong with them.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.layout import Layout, load_layout
from cxrjax.evaluation.scores import Scores
from cxrjax.evaluation.tables import (
    Column,
    PaperTable,
    csv_row,
    failures_markdown,
    table_markdown,
    with_interval,
)
from cxrjax.evaluation.text_tables import UNDEFINED, grid
from cxrjax.metrics.bootstrap import Estimate
from cxrjax.papers.vix_ray.counts import EARLIER, HISTORY_KIND


class VixRayLayout(Layout):
    """Tables whose values differ by split and kind of question."""

    def markdown(self, scores: Scores) -> str:
        return _markdown(scores)

    def rows(self, scores: Scores) -> list[dict[str, Any]]:
        kept = printed_tables(scores.settings["splits"][0])
        of_split = Layout.rows(dataclasses.replace(self, tables=kept), scores)
        return [*of_split, *_added_rows(scores)]


LAYOUT = load_layout(str(__package__), VixRayLayout)
SPLITS = ("validation", "test")
# Kind of question -> heading; metric -> heading, the columns of the paper's tables and of our own.
TITLES: Mapping[str, str] = LAYOUT.texts["titles"]
METRICS: Mapping[str, str] = LAYOUT.texts["metrics"]
_LEXICAL, _SAID, _FACTS, _ERRORS = (
    LAYOUT.texts[key] for key in ("lexical", "said", "facts", "errors")
)
# Before the names of metrics on a segmenter's words.
WORDS = "words/"
_LOST = "the paper's values are not available"
_UNIT = Column("", {}, percent=True, decimals=2)


def printed_tables(split: str) -> tuple[PaperTable, ...]:
    """Table 6 with a split's values: validation's own, else those of the test."""
    split = split if split in SPLITS else SPLITS[-1]
    return tuple(table for table in LAYOUT.tables if table.split == split)


def _markdown(scores: Scores) -> str:
    stages = list(TITLES)
    title = f"Table 4. Stages 1 and 2 ({_LOST})"
    parts = [LAYOUT.head(scores), _own_table(scores, title, METRICS, stages[:2])]
    title = f"Table 5. Stage 3 beside stages 1 and 2 ({_LOST})"
    parts.append(_differences(scores, "minus_stage", title, stages[2:]))
    for table in printed_tables(scores.settings["splits"][0]):
        answering = _answering(scores, table.key.removeprefix("table_6/"))
        if answering.figures:
            parts.append(table_markdown(table, answering, LAYOUT.paper_row))
    parts.append(_histories(scores))
    for number, kinds in (("11", stages[:1]), ("12", stages[1:2])):
        title = f"Table {number}. {TITLES[kinds[0]]}: against the first system named ({_LOST})"
        parts.append(_differences(scores, "minus", title, kinds))
    title = "Table 6, stage 3: against the first system named"
    parts.append(_differences(scores, "minus", title, stages[2:]))
    segmenter = scores.settings["segmenter"]
    title = f"BLEU of each order, and words cut by {segmenter} in place of syllables"
    parts.append(_own_table(scores, title, _LEXICAL, stages))
    title = "Comparisons with earlier images, and errors by clinical weight (read by rules)"
    parts.append(_own_table(scores, title, _SAID, stages))
    if "judge" in scores.settings:
        parts += _judged_tables(scores, stages)
    parts.append(failures_markdown(scores, LAYOUT.problems))
    return "\n".join(part for part in parts if part)


def _added_rows(scores: Scores) -> list[dict[str, Any]]:
    """Returns the cells of tables of our own."""
    listed: list[dict[str, Any]] = []
    tables = {"table_4": (METRICS, list(TITLES)[:2]), "words": (_LEXICAL, list(TITLES))}
    facts = _named_facts(scores)
    tables |= {"said": (_SAID, list(TITLES))}
    tables |= {"facts": (facts, list(TITLES)), "errors": (_ERRORS, list(TITLES))}
    for system, protocols in scores.figures.items():
        for protocol, named in protocols.items():
            for table, (metrics, kinds) in tables.items():
                for metric, heading in metrics.items():
                    for kind in kinds:
                        if (figure := named.get(f"{kind}/{metric}")) is not None:
                            cell = (table, system, protocol, f"{TITLES[kind]}, {heading}")
                            listed.append(_row(*cell, f"{kind}/{metric}", figure))
        for name, figure in protocols[PAPER].items():
            if "/minus" in name:
                heading = _heading_of(name, scores)
                cell = ("differences", system, PAPER, heading)
                listed.append(_row(*cell, name, figure))
    return listed


def _row(
    table: str, system: str, protocol: str, column: str, metric: str, figure: Estimate
) -> dict[str, Any]:
    return csv_row(table, system, protocol, column, _UNIT, figure) | {"metric": metric}


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
    """Names the histories that no system had in stage 3's second turn."""
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


def _compared_metrics(scores: Scores) -> Mapping[str, str]:
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
