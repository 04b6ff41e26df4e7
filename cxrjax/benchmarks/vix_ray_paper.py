"""What ViX-Ray (arXiv 2603.15513) printed: Table 6, and what in it cannot be right or is not told.

The bodies of Tables 4, 5, 11 and 12 are not available.
"""

from collections.abc import Callable, Mapping

from cxrjax.benchmarks import judge_failures
from cxrjax.benchmarks.tables import Note

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
