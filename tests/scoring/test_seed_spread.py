"""Mean and spread over seeds against the standard library's."""

import statistics

import pytest

from cxrjax.metrics.bootstrap import Estimate
from cxrjax.scoring.scores import seed_spread, spread_markdown


def _figures(**values):
    return {
        name.replace("_seed", ".seed"): {
            "strict": {"vqa/f1": Estimate(value, None, None, 9), "by/type/x": _undefined()}
        }
        for name, value in values.items()
    }


def _undefined():
    return Estimate(None, None, None, 0)


def test_runs_of_one_system_are_summed_up():
    values = [0.5, 0.75, 0.25]
    figures = _figures(m_seed0=values[0], m_seed1=values[1], m_seed12=values[2], base=0.9)
    spread = seed_spread(figures | _figures(one_seed0=0.1))
    assert set(spread) == {"m"}
    found = spread["m"]["strict"]["vqa/f1"]
    assert found["mean"] == pytest.approx(statistics.mean(values))
    assert found["sd"] == pytest.approx(statistics.stdev(values))
    assert (found["low"], found["high"], found["runs"]) == (0.25, 0.75, 3)


def test_undefined_figures_stay_undefined():
    figures = _figures(m_seed0=0.5, m_seed1=None, m_seed2=float("nan"))
    found = seed_spread(figures)["m"]["strict"]
    assert found["vqa/f1"] == {"mean": None, "sd": None, "low": None, "high": None, "runs": 1}
    assert found["by/type/x"]["runs"] == 0


def test_the_table_has_what_is_of_all_questions():
    table = spread_markdown(seed_spread(_figures(m_seed0=0.5, m_seed1=0.7, m_seed2=0.9)))
    assert "| strict | vqa/f1 | 0.7000 | 0.2000 | 0.5000 | 0.9000 | 3 |" in table
    assert "by/type" not in table
    assert seed_spread(_figures(a=0.1, b=0.2)) == {} and spread_markdown({}) == ""
