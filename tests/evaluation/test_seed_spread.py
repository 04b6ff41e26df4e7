"""Mean and spread over seeds against the standard library's."""

import statistics

import numpy as np
import pytest

from cxrjax.evaluation.counted import Counted
from cxrjax.evaluation.several_runs import run_differences, seed_spread, spread_markdown
from cxrjax.metrics.bootstrap import Bootstrap, Estimate, Figure, resample

UNDEFINED = Estimate(None, None, None, 0)


def _figures(**values):
    return {
        name.replace("_seed", ".seed"): {
            "strict": {"vqa/f1": Estimate(value, None, None, 9), "by/type/x": UNDEFINED}
        }
        for name, value in values.items()
    }


def test_runs_of_one_system_are_summed_up_undefined_ones_too():
    values = [0.5, 0.75, 0.25]
    figures = _figures(m_seed0=values[0], m_seed1=values[1], m_seed12=values[2], base=0.9)
    spread = seed_spread(figures | _figures(one_seed0=0.1))
    assert set(spread) == {"m"}
    found = spread["m"]["strict"]["vqa/f1"]
    assert found["mean"] == pytest.approx(statistics.mean(values))
    assert found["sd"] == pytest.approx(statistics.stdev(values))
    assert (found["low"], found["high"], found["runs"]) == (0.25, 0.75, 3)
    figures = _figures(m_seed0=0.5, m_seed1=None, m_seed2=float("nan"))
    found = seed_spread(figures)["m"]["strict"]
    assert found["vqa/f1"] == {"mean": None, "sd": None, "low": None, "high": None, "runs": 1}
    assert found["by/type/x"]["runs"] == 0
    table = spread_markdown(seed_spread(_figures(m_seed0=0.5, m_seed1=0.7, m_seed2=0.9)))
    assert "| strict | vqa/f1 | 0.7000 | 0.2000 | 0.5000 | 0.9000 | 3 |  |" in table
    assert "by/type" not in table
    assert seed_spread(_figures(a=0.1, b=0.2)) == {} and spread_markdown({}) == ""


def _counted(rates, clusters, seed):
    """Right or wrong answers, of each cluster one."""
    rng = np.random.default_rng(seed)
    right = (rng.random(len(clusters)) < rates).astype(float)
    figure = Figure(lambda sums: sums["right"] / sums["all"], "all")
    columns = {"right": right, "all": np.ones(len(clusters))}
    return right, Counted(columns, {"strict": {"vqa/accuracy": figure}}, {})


def test_differences_are_of_the_means_over_runs_and_know_patients_and_seeds():
    clusters = [("patient", n) for n in range(400)]
    right, systems = {}, {}
    for name, rate in (("a", 0.5), ("b", 0.6)):
        for seed in range(3):
            at = f"{name}.seed{seed}"
            right[at], systems[at] = _counted(rate, clusters, (ord(name), seed))
    settings = Bootstrap(resamples=2000)
    drawn = {name: resample(c.columns, clusters, settings) for name, c in systems.items()}
    wanted = {"strict": ["vqa/accuracy"]}
    found = run_differences(systems, drawn, "a.seed0", wanted)["b"]["strict"]["vqa/accuracy"]
    means = {n: np.mean([right[f"{n}.seed{s}"].mean() for s in range(3)]) for n in "ab"}
    assert found[0] == pytest.approx(means["b"] - means["a"])
    # Both sources of chance: of answers over patients, and of three runs over seeds.
    runs = np.array([[right[f"{n}.seed{s}"].mean() for s in range(3)] for n in "ab"])
    of_seeds = (runs[1] - runs[0]).var() / 3
    gaps = np.mean([right[f"b.seed{s}"] - right[f"a.seed{s}"] for s in range(3)], axis=0)
    of_patients = gaps.var() / len(gaps)
    # A resample's drawn runs are fewer than three different ones: patients weigh more than once.
    least, most = np.sqrt(of_patients), np.sqrt(3 * of_patients + of_seeds)
    assert 2 * 1.9 * least < found[2] - found[1] < 2 * 2.1 * most
    turned = run_differences(systems, drawn, "b.seed1", wanted)["a"]["strict"]["vqa/accuracy"]
    assert turned[0] == pytest.approx(-found[0])
    fewer = {name: system for name, system in systems.items() if name != "a.seed1"}
    assert run_differences(fewer, drawn, "x", wanted) == {}

    def figures(value):
        return {"strict": {"vqa/accuracy": value}}

    of_runs = {n: figures(Estimate(float(x.mean()), None, None, 400)) for n, x in right.items()}
    spread = seed_spread(of_runs, {"b": figures(found)})
    assert spread["b"]["strict"]["vqa/accuracy"]["difference"] == found[0]
    assert f"| {found[0]:+.4f} ({found[1]:+.4f} to {found[2]:+.4f}) |" in spread_markdown(spread)
