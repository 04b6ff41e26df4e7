"""The tables of ViX-Ray (arXiv 2603.15513): Table 6, and Tables 5, 11 and 12 without the paper's.

The bodies of Tables 4, 5, 11 and 12 are not available; ours stand alone there.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cxrjax.benchmarks.scores import PAPER, STRICT, Scores
from cxrjax.benchmarks.tables import UNDEFINED, Column, PaperTable, grid, table_markdown, table_rows
from cxrjax.metrics.bootstrap import Estimate

METRICS = {"rouge_1": "ROUGE-1", "rouge_2": "ROUGE-2", "rouge_l": "ROUGE-L", "bleu": "BLEU"}
# What is asked for: stage/text -> heading in Table 6.
KINDS = {
    "stage1/findings": "Stage 1, findings",
    "stage2/impression": "Stage 2, impression",
    "stage3/findings": "Stage 3, findings",
    "stage3/impression": "Stage 3, impression",
}
_TUNED = "Qwen2.5VL-7B"
# Table 6, ROUGE-1, ROUGE-2, ROUGE-L, BLEU: kind -> model -> split.
_PRINTED: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {
    "stage1/findings": {
        "Gemini": {
            "validation": (44.07, 34.01, 34.49, 22.79),
            "test": (62.51, 35.12, 44.12, 32.31),
        },
        "GPT-4v": {
            "validation": (47.79, 17.57, 29.40, 11.54),
            "test": (46.51, 18.54, 31.02, 15.21),
        },
        _TUNED: {
            "validation": (84.09, 76.77, 81.11, 70.11),
            "test": (84.30, 76.10, 81.21, 71.22),
        },
    },
    "stage2/impression": {
        "Gemini": {
            "validation": (39.22, 14.16, 26.72, 30.76),
            "test": (38.75, 15.13, 27.15, 31.54),
        },
        "GPT-4v": {
            "validation": (35.83, 8.39, 23.35, 11.66),
            "test": (35.54, 15.12, 25.41, 12.55),
        },
        _TUNED: {
            "validation": (74.17, 65.75, 71.81, 60.11),
            "test": (73.89, 64.66, 71.11, 59.56),
        },
    },
    "stage3/findings": {
        "Gemini": {
            "validation": (60.97, 21.67, 35.99, 41.32),
            "test": (61.25, 22.15, 33.25, 40.12),
        },
        "GPT-4v": {
            "validation": (47.63, 13.50, 28.16, 34.52),
            "test": (46.52, 11.25, 25.41, 31.52),
        },
        _TUNED: {
            "validation": (84.81, 76.97, 80.47, 71.35),
            "test": (84.40, 75.90, 79.60, 69.85),
        },
    },
    "stage3/impression": {
        "Gemini": {
            "validation": (31.96, 10.03, 25.69, 42.21),
            "test": (32.21, 9.51, 21.54, 42.51),
        },
        "GPT-4v": {
            "validation": (31.75, 6.94, 18.59, 21.51),
            "test": (32.15, 11.25, 20.12, 20.52),
        },
        _TUNED: {
            "validation": (95.93, 94.34, 95.08, 92.04),
            "test": (95.20, 93.80, 94.68, 89.75),
        },
    },
}


def paper_tables(split: str) -> tuple[PaperTable, ...]:
    """Table 6, one table for each kind of question; the test split's values but for validation."""
    split = split if split == "validation" else "test"
    return tuple(
        PaperTable(
            key=f"table_6/{kind}",
            title=f"Table 6, {split}. {title}",
            columns=tuple(
                Column(
                    heading,
                    {PAPER: f"{kind}/{metric}", STRICT: f"{kind}/{metric}"},
                    percent=True,
                )
                for metric, heading in METRICS.items()
            ),
            printed={model: values[split] for model, values in _PRINTED[kind].items()},
        )
        for kind, title in KINDS.items()
    )


def markdown(scores: Scores) -> str:
    """tables.md."""
    tables = [
        table_markdown(table, _answering(scores, table.key), _paper_row)
        for table in _tables(scores)
        if _answering(scores, table.key).figures
    ]
    differences = [
        _differences(scores, "minus_stage", "Table 5. Stage 3 against stages 1 and 2"),
        _differences(scores, "minus", "Tables 11, 12. Against the first system named"),
    ]
    return "\n".join([_heading(scores), *tables, *filter(None, differences)])


def rows(scores: Scores) -> list[dict[str, Any]]:
    """The cells of tables.csv."""
    listed = table_rows(_tables(scores), (), scores, _paper_row)
    unit = Column("", {}, percent=True)
    for system, protocols in scores.figures.items():
        for name, figure in protocols[PAPER].items():
            if "/minus" in name:
                listed.append(
                    dict.fromkeys(listed[0])
                    | {
                        "table": "differences",
                        "system": system,
                        "protocol": PAPER,
                        "column": METRICS[name.rsplit("/", 1)[1]],
                        "metric": name,
                        "unit": "%",
                        "ours": unit.scale(figure.value),
                        "ci_low": unit.scale(figure.ci_low),
                        "ci_high": unit.scale(figure.ci_high),
                        "n": figure.n,
                    }
                )
    return listed


def _paper_row(system: str) -> str:
    """The paper's row that a system is compared with: its fine-tuned model."""
    return next(
        (model for model in ("Gemini", "GPT-4v") if model.lower() in system.lower()), _TUNED
    )


def _tables(scores: Scores) -> tuple[PaperTable, ...]:
    return paper_tables(scores.settings["splits"][0])


def _answering(scores: Scores, key: str) -> Scores:
    """The systems that answered this table's questions."""
    kind = key.removeprefix("table_6/")
    figures = {
        name: protocols
        for name, protocols in scores.figures.items()
        if protocols[PAPER][f"{kind}/bleu"].n
    }
    return dataclasses.replace(scores, figures=figures)


def _heading(scores: Scores) -> str:
    settings = scores.settings
    bootstrap = settings["bootstrap"]
    text = (
        "# ViX-Ray\n\n"
        f"{settings['images']:,} images, {settings['questions']:,} questions; data set "
        f"{', '.join(settings['datasets'])}, split {', '.join(settings['splits'])}. Words: "
        f"{settings['words']}. The paper states neither its words nor BLEU's order, so that both "
        "protocols have one definition. In brackets: "
        f"{100 * bootstrap['confidence']:g} % intervals ({bootstrap['method']} bootstrap, "
        f"{bootstrap['resamples']:,} resamples by image, seed {bootstrap['seed']}). {UNDEFINED}: "
        "undefined. Parse failures: answers left out or empty.\n"
    )
    if "vix_ray" not in settings["datasets"]:
        text += (
            "\nThese are not the paper's images: its values stand beside ours for orientation, and "
            "the differences are no reproduction.\n"
        )
    return text


def _differences(scores: Scores, label: str, title: str) -> str:
    """A table of the differences with this label; "" where there are none."""
    lines = [["", *METRICS.values()]]
    for system, protocols in scores.figures.items():
        for row, named in _grouped(protocols[PAPER], label).items():
            kind, other = row
            what = f"{KINDS[kind]}: {system} − {other}"
            lines.append([what, *(_arrow(named[metric]) for metric in METRICS)])
    if len(lines) == 1:
        return ""
    return f"## {title} (the paper's is not available)\n\n{grid(lines)}"


def _grouped(
    figures: Mapping[str, Estimate], label: str
) -> dict[tuple[str, str], dict[str, Estimate]]:
    """(kind, what is subtracted) -> metric -> difference, of names `kind/label.../other/metric`."""
    groups: dict[tuple[str, str], dict[str, Estimate]] = {}
    for name, figure in figures.items():
        if "/minus" not in name:
            continue
        stage, text, found, *others, metric = name.split("/")
        other = "/".join(others)
        if label == "minus" and found == "minus":
            groups.setdefault((f"{stage}/{text}", other), {})[metric] = figure
        elif label == "minus_stage" and found.startswith("minus_stage"):
            what = f"{other} (stage {found.removeprefix('minus_stage')})"
            groups.setdefault((f"{stage}/{text}", what), {})[metric] = figure
    return groups


def _arrow(figure: Estimate) -> str:
    if figure.value is None:
        return UNDEFINED
    sign = "↑" if figure.value > 0 else "↓" if figure.value < 0 else "="
    cell = f"{sign} {abs(100 * figure.value):.1f}"
    if figure.ci_low is None or figure.ci_high is None:
        return cell
    return f"{cell} ({100 * figure.ci_low:+.1f} to {100 * figure.ci_high:+.1f})"
