"""The tables of GEMeX as the paper prints them (arXiv 2411.16778, Tables 5 and 6)."""

from typing import Any

from cxrjax.papers.gemex.counts import GEMEX_PROBLEMS
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES
from cxrjax.papers.sources.regions import load_regions
from cxrjax.scoring import judge_failures
from cxrjax.scoring.scores import PAPER, STRICT, Scores
from cxrjax.scoring.tables import (
    NOT_THE_PAPERS,
    Breakdown,
    Column,
    Note,
    PaperTable,
    about_intervals,
    about_references,
    breakdown_markdown,
    failures_markdown,
    keys_after,
    table_markdown,
    table_rows,
    with_interval,
)
from cxrjax.scoring.text_tables import grid

RANDOM, FINE_TUNED = "Random", "LLaVA-Med-GEMeX"
TYPES = dict(zip(QUESTION_TYPES, ("Open", "Closed", "Single", "Multi"), strict=True))
# Table 5 as printed; None: a blank cell.
_TABLE_5: dict[str, tuple[float | None, ...]] = {
    RANDOM: (None, None, 48.80, None, None, 25.85, None, None, 7.50, None, None, None),
    "GPT-4o-mini": (
        *(97.68, 18.05, 59.30, 71.14, 28.64),
        *(59.00, 71.47, 23.62, 49.13, 82.91, 19.19, 82.30),
    ),
    "LLaVA-v1": (
        *(76.14, None, 30.76, 38.02, None),
        *(None, 50.47, None, None, 66.52, None, 57.79),
    ),
    "LLaVA-v1.5": (
        *(77.62, None, 58.93, 57.00, None),
        *(47.00, 57.05, None, None, 65.17, None, 64.21),
    ),
    "Mini-GPT4-v1": (
        *(55.32, None, 26.33, 31.09, None),
        *(None, 37.63, None, None, 46.65, None, 42.67),
    ),
    "mPLUG-Owl": (
        *(76.73, None, 27.26, 36.70, None),
        *(32.00, 46.89, None, None, 67.92, None, 57.06),
    ),
    "LLaVA-Med-v1": (
        *(90.34, None, 62.62, 69.91, None),
        *(None, 61.74, None, None, 68.14, None, 72.53),
    ),
    "LLaVA-Med-v1.5": (
        *(94.43, None, 71.82, 76.54, None),
        *(None, 66.04, None, None, 67.28, None, 76.07),
    ),
    "MiniGPT-Med": (
        *(86.12, None, 55.24, 65.25, None),
        *(None, 55.61, None, None, 64.33, None, 67.83),
    ),
    "XrayGPT": (
        *(81.17, None, None, 68.17, None),
        *(None, 48.33, None, None, 55.10, None, 63.19),
    ),
    "RadFM": (
        *(88.57, None, 58.01, 67.91, None),
        *(None, 57.82, None, None, 62.41, None, 69.18),
    ),
    FINE_TUNED: (
        *(97.05, 51.47, 77.35, 80.72, 53.20),
        *(73.08, 81.42, 54.57, 67.42, 84.98, 47.99, 86.04),
    ),
}
# Table 6 as printed: BERTScore, ROUGE-L, BLEU-1 of each type.
_TABLE_6: dict[str, tuple[float | None, ...]] = {
    "GPT-4o-mini": (
        *(30.43, 22.67, 18.25, 40.02, 25.63, 19.10),
        *(48.34, 39.17, 30.82, 46.58, 39.20, 28.65),
    ),
    "LLaVA-v1": (
        *(20.09, 15.22, 11.57, 22.42, 13.10, 8.01),
        *(20.25, 14.97, 10.61, 19.69, 17.35, 11.15),
    ),
    "LLaVA-v1.5": (
        *(21.49, 16.11, 12.20, 32.59, 15.37, 6.69),
        *(17.42, 17.53, 1.49, 23.74, 21.20, 8.95),
    ),
    "Mini-GPT4-v1": (
        *(15.03, 14.66, 11.46, 13.83, 9.65, 6.31),
        *(6.50, 6.79, 4.60, 5.31, 5.79, 3.22),
    ),
    "mPLUG-Owl": (
        *(22.52, 17.03, 13.22, 32.23, 20.20, 13.92),
        *(39.64, 33.69, 30.32, 26.09, 24.97, 16.68),
    ),
    "LLaVA-Med-v1": (
        *(25.14, 19.63, 15.93, 38.04, 29.08, 19.74),
        *(34.89, 30.10, 25.84, 28.63, 26.51, 20.99),
    ),
    "LLaVA-Med-v1.5": (
        *(26.42, 21.38, 17.28, 44.48, 36.73, 26.35),
        *(36.62, 30.32, 25.44, 28.11, 24.49, 16.53),
    ),
    "MiniGPT-Med": (
        *(23.47, 19.20, 16.03, 34.31, 29.47, 19.13),
        *(30.11, 28.51, 22.13, 26.51, 24.42, 15.98),
    ),
    "XrayGPT": (
        *(22.57, 18.30, 15.73, 21.35, 14.55, 10.17),
        *(16.31, 12.17, 9.23, 12.15, 10.30, 6.22),
    ),
    "RadFM": (
        *(24.96, 20.71, 17.73, 37.43, 27.95, 20.56),
        *(32.30, 27.02, 24.39, 25.81, 20.02, 13.80),
    ),
    FINE_TUNED: (
        *(42.69, 32.75, 25.28, 54.44, 38.39, 33.99),
        *(56.35, 53.23, 47.31, 54.95, 50.85, 43.99),
    ),
}


def _column(metric: str, title: str) -> Column:
    return Column(title, {PAPER: metric, STRICT: metric}, percent=True, decimals=2)


def _columns(metrics: dict[str, str]) -> tuple[Column, ...]:
    return tuple(
        _column(f"by_question_type/{metric}/{kind}", f"{title} {heading}")
        for kind, title in TYPES.items()
        for metric, heading in metrics.items()
        if (metric, kind) != ("a_score", "open_ended")
    )


TABLE_5 = PaperTable(
    key="table_5",
    title="Table 5. AR-score, V-score and A-score (%)",
    columns=(
        *_columns({"a_score": "A", "ar_score": "AR", "v_score": "V"}),
        _column("ar_score", "Avg. AR"),
    ),
    printed=_TABLE_5,
    notes=(
        Note(
            "Closed AR",
            ("GPT-4o-mini",),
            "The paper's text has 71.14; its average of 82.30 needs 77.14.",
        ),
        Note(
            "Avg. AR",
            tuple(row for row, values in _TABLE_5.items() if values[-1] is not None),
            "The unweighted mean of the four types; weighted by their questions, the last row "
            "would be 86.71.",
            ours=True,
        ),
        Note("Avg. AR", (), judge_failures.NOTE, ours=True),
        Note(
            "Multi A",
            (RANDOM,),
            "Near the 1/15 of four options (1/7 of three) with which a random set of them is "
            "right: the score is of exact sets.",
        ),
    ),
)
TABLE_6 = PaperTable(
    key="table_6",
    title="Table 6. BERTScore, ROUGE-L and BLEU-1 (%)",
    columns=_columns({"bert_score": "BERTScore", "rouge_l": "ROUGE-L", "bleu_1": "BLEU-1"}),
    printed=_TABLE_6,
    notes=(
        Note(
            "Open BERTScore",
            tuple(_TABLE_6),
            "Values of 5 to 56 must be rescaled ones, raw BERTScores of English hardly go below "
            "80: ours compare with them only with --bertscore_baseline.",
            ours=True,
        ),
    ),
)
TABLES = (TABLE_5, TABLE_6)


# Attributes of questions and their images -> headings.
BROKEN_DOWN_BY = {"content_type": "content type", "view": "view", "sex": "sex", "age": "age"}
_A_AND_V = {"a_score": "A-score", "v_score": "V-score"}
BREAKDOWNS = (
    Breakdown(
        key="by_question_type_options",
        title="Options by question type (strict; n = questions with a readable reference)",
        prefix="by_question_type",
        metrics={
            "a_score": "A-score",
            "jaccard": "Jaccard",
            "micro_f1": "Micro-F1",
            "answer_failure_rate": "Could not be matched",
            "chance": "Blind guess",
        },
        keys=keys_after("by_question_type/a_score/"),
    ),
    Breakdown(
        key="by_question_type_boxes",
        title="Boxes by question type (strict; n = questions)",
        prefix="by_question_type",
        metrics={
            "v_score_strict": "V-score, by the larger number of boxes",
            "v_score_lenient": "by matched pairs",
            "v_score_truth": "by true boxes",
            "parse_failure_rate": "Parse failures",
        },
        keys=keys_after("by_question_type/v_score/"),
    ),
    *(
        Breakdown(
            key=f"by_{attribute}",
            title=f"By {heading} (strict; n of A-scores = questions with options)",
            prefix=f"by_{attribute}",
            metrics=_A_AND_V,
            keys=keys_after(f"by_{attribute}/a_score/"),
        )
        for attribute, heading in BROKEN_DOWN_BY.items()
    ),
    Breakdown(
        key="by_region",
        title=f"By region, of the {len(load_regions().regions)} (strict; a question may have "
        "several)",
        prefix="by_region",
        metrics=_A_AND_V,
        keys=keys_after("by_region/a_score/"),
    ),
)


def paper_row(system: str) -> str:
    """The paper's row that a system is compared with: by its name, else the fine-tuned model."""
    name = "".join(letter for letter in system.lower() if letter.isalnum())
    rows = {"".join(letter for letter in row.lower() if letter.isalnum()): row for row in _TABLE_5}
    fitting = [row for row in rows if row in name]
    return rows[max(fitting, key=len)] if fitting else FINE_TUNED


def markdown(scores: Scores) -> str:
    """tables.md."""
    parts = [
        _heading(scores),
        *(table_markdown(table, scores, paper_row) for table in TABLES),
        _beside(scores),
        failures_markdown(scores, _problems(scores)),
        *(
            breakdown_markdown(breakdown, scores)
            for breakdown in BREAKDOWNS
            if breakdown.keys(scores)
        ),
    ]
    return "\n".join(parts)


def rows(scores: Scores) -> list[dict[str, Any]]:
    """The cells of tables.csv."""
    return table_rows(TABLES, BREAKDOWNS, scores, paper_row)


def _heading(scores: Scores) -> str:
    """What the figures stand on."""
    settings = scores.settings
    judged = "no judge was asked (--judge), so that there is no AR-score"
    if "judge" in settings:
        judged = f"judge: {settings['judge']}"
        if settings["surrogate_judge"]:
            judged += ", in a judge's place, so that there is no AR-score"
    bert_score = settings["bert_score"] or "no model was given (--bertscore_model)"
    text = (
        f"# GEMeX\n\n{about_references(settings)} BERTScore: {bert_score}; {judged}. "
        f"{about_intervals(settings)} So are the paper's blank cells.\n"
    )
    if without := settings["questions_without_key"]:
        text += f"\n{without:,} references name no option: no A-score is taken of them.\n"
    return text + ("" if "gemex" in settings["datasets"] else NOT_THE_PAPERS)


def _problems(scores: Scores) -> dict[str, str]:
    judged = "judge" in scores.settings
    return GEMEX_PROBLEMS | (judge_failures.JUDGE_PROBLEMS if judged else {})


_BESIDE = {
    "a_score": "A-score, all types together",
    "v_score": "V-score, all types together",
    "calibration/ece": "Calibration error of A-score by the text's probability (ECE)",
    "calibration/brier": "Brier score of the same",
    "calibration/aurc": "Area under risk and coverage of the same",
    "in_form_rate": "Answer, reason and location behind their tags",
    "boxes_on_neither_side": "Questions without true and predicted boxes (V-score 1)",
    "ar_score": "AR-score, mean of the types",
    "ar_score_capped": "AR-score, ratios above 1 cut",
    "judge_failure_rate": "Questions that the judge failed at",
    "surrogate/ar_score": "Surrogate of the AR-score, mean of the types",
    "surrogate/ar_score_capped": "Surrogate, ratios above 1 cut",
    "surrogate/judge_failure_rate": "Questions that the surrogate failed at",
}


def _beside(scores: Scores) -> str:
    systems = list(scores.figures)
    lines = [["", *(f"{system}, {p}" for system in systems for p in (PAPER, STRICT))]]
    for metric, title in _BESIDE.items():
        cells = [scores.figures[s][p].get(metric) for s in systems for p in (PAPER, STRICT)]
        if any(cell is not None and cell.value is not None for cell in cells):
            unit = _column(metric, title)
            lines.append([title, *(with_interval(unit, cell) if cell else "" for cell in cells)])
    for kind, title in TYPES.items():
        name = f"surrogate/by_question_type/ar_score/{kind}"
        cells = [scores.figures[s][p].get(name) for s in systems for p in (PAPER, STRICT)]
        if any(cells):
            unit = _column(name, title)
            heading = f"Surrogate of the AR-score, {title.lower()}"
            lines.append([heading, *(with_interval(unit, cell) if cell else "" for cell in cells)])
    return f"## Beside the paper's tables (%)\n\n{grid(lines)}"
