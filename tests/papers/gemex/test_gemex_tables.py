"""The paper's Tables 5 and 6 as data: its own arithmetic (arXiv 2411.16778, section 4.3)."""

from types import SimpleNamespace

import numpy as np
import pytest

from cxrjax.papers.gemex.figures import GEMEX
from cxrjax.scoring.scores import PAPER, STRICT

TABLE_5, TABLE_6 = (GEMEX.layout.table(key) for key in ("table_5", "table_6"))
paper_row = GEMEX.layout.paper_row
TITLES = [column.title for column in TABLE_5.columns]
AR = ["Open AR", "Closed AR", "Single AR", "Multi AR"]
# Test questions of each type (Table 3).
QUESTIONS = {"Open AR": 1144, "Closed AR": 543, "Single AR": 1300, "Multi AR": 973}


def printed(row):
    return dict(zip(TITLES, TABLE_5.printed[row], strict=True))


@pytest.mark.parametrize("row", [row for row in TABLE_5.printed if row != "Random"])
def test_averages_are_unweighted_means_of_the_types(row):
    cells = printed(row)
    if row == "GPT-4o-mini":
        assert np.mean([cells[title] for title in AR]) == pytest.approx(80.80, abs=0.005)
        cells["Closed AR"] = 77.14  # what the footnote says
    assert np.mean([cells[title] for title in AR]) == pytest.approx(cells["Avg. AR"], abs=0.0051)


def test_weighted_by_questions_the_last_row_would_be_another():
    cells = printed("LLaVA-Med-GEMeX")
    weights = list(QUESTIONS.values())
    values = [cells[title] for title in QUESTIONS]
    assert np.average(values, weights=weights) == pytest.approx(86.71, abs=0.005)


def test_claims_of_the_text():
    ours = printed("LLaVA-Med-GEMeX")["Avg. AR"]
    assert ours - printed("LLaVA-Med-v1")["Avg. AR"] == pytest.approx(13.51)
    assert ours - printed("GPT-4o-mini")["Avg. AR"] == pytest.approx(3.74)
    tuned, base = (np.array(TABLE_6.printed[r]) for r in ("LLaVA-Med-GEMeX", "GPT-4o-mini"))
    assert np.mean(tuned - base) == pytest.approx(12.11, abs=0.005)
    single = [column.title for column in TABLE_6.columns].index("Single BLEU-1")
    better, worse = (TABLE_6.printed[r][single] for r in ("mPLUG-Owl", "LLaVA-v1.5"))
    assert better - worse == pytest.approx(28.83)


def test_the_random_row_is_near_chance():
    random = printed("Random")
    assert random["Closed A"] == pytest.approx(50, abs=2)
    assert random["Single A"] == pytest.approx(25, abs=1)
    assert random["Multi A"] == pytest.approx(100 / 15, abs=1)


def test_blanks_are_where_the_paper_has_them():
    blank = {row: sum(v is None for v in values) for row, values in TABLE_5.printed.items()}
    assert blank["LLaVA-Med-GEMeX"] == blank["GPT-4o-mini"] == 0
    assert blank["Random"] == 9
    assert blank["XrayGPT"] == 7
    assert blank["LLaVA-v1.5"] == blank["mPLUG-Owl"] == 5
    assert all(None not in values for values in TABLE_6.printed.values())
    assert len(TABLE_5.columns) == len(TABLE_6.columns) == 12


def test_every_column_has_a_metric_of_its_own_type():
    for table in (TABLE_5, TABLE_6):
        for column in table.columns:
            kind = column.title.split()[0].lower()
            for protocol in (PAPER, STRICT):
                metric = column.metrics[protocol]
                assert metric == "ar_score" or metric.split("/")[-1].startswith(kind)


def test_systems_are_compared_with_their_own_row():
    assert paper_row("llava_med_v1.5") == "LLaVA-Med-v1.5"
    assert paper_row("llava-v1.5-7b") == "LLaVA-v1.5"
    assert paper_row("gpt-4o-mini-2024") == "GPT-4o-mini"
    assert paper_row("random") == "Random"
    assert paper_row("tuned") == "LLaVA-Med-GEMeX"


@pytest.mark.parametrize(
    ("datasets", "splits", "are"),
    [
        (("gemex",), ("test",), True),
        (("gemex",), ("train",), False),
        (("gemex",), ("test", "train"), False),
        (("synthetic",), ("test",), False),
    ],
)
def test_images_that_were_trained_on_are_not_the_papers(datasets, splits, are):
    scores = SimpleNamespace(settings={"datasets": datasets, "splits": splits})
    assert GEMEX.layout.has_papers_images(scores) is are
