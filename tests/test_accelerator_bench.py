"""The accelerator's benchmark on a CPU: it runs, with what it says it needs and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import accelerator_cases as cases

ROOT = Path(__file__).resolve().parents[1]
# What `train` and the data need, and a machine with an accelerator for the benchmark may lack.
ABSENT = (
    *("tensorflow", "tensorflow_datasets", "grain", "clu", "tyro", "ml_collections", "PIL"),
    *("orbax", "tomlkit"),
)


def run(*arguments, absent=(), folder=None):
    """The benchmark's JSON, in an environment that lacks some packages."""
    paths = [str(ROOT)]
    if absent:
        for name in absent:
            (folder / f"{name}.py").write_text(f"raise ImportError('{name} is not here')\n")
        paths.insert(0, str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "bench.accelerator", "--minutes=20", *arguments],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)},
    )
    return json.loads(done.stdout.splitlines()[-1])


def check_side(side):
    assert "stopped" not in side
    assert [case for case in side["cases"] if "left_out" in case] == []
    kinds = {case["case"].split(",")[0] for case in side["cases"]}
    assert kinds - {"compile"} == {"train", "generate", "rollout"}
    assert all(case["seconds"] > 0 and case["peak_gb"] > 0 for case in side["cases"])
    trained = [case for case in side["cases"] if case["case"].startswith("train")]
    assert all(case["mfu"] > 0 and case["profile"] for case in trained)


@pytest.mark.slow
def test_ours_runs_without_the_packages_of_data(tmp_path):
    out = tmp_path / "found.json"
    sides = ("--sides", "ours", "--peak_flops=1e11", f"--out={out}")
    found = run(*sides, absent=ABSENT, folder=tmp_path)
    assert (found["shape"], found["device"]) == ("tiny", "cpu")
    check_side(found["sides"]["ours"])
    compiled, *ran = found["sides"]["ours"]["cases"]
    assert compiled["case"] == "compile"
    assert [case["share"] for case in ran] == ["image", *["tower"] * 5]
    assert found["sides"]["ours"]["attention"] == "cudnn_interpreted"
    assert json.loads(out.read_text())["sides"] == found["sides"]
    # What was compiled beforehand is not compiled again.
    trained = [case for case in ran if case["case"].startswith("train")]
    assert sum(case["first_seconds"] for case in trained) < 3 * compiled["seconds"]


def test_cases_are_chosen_by_parts_of_their_names():
    names = [case.name for case in cases.chosen("medgemma_4b", "train, 4 x 1|rollout")]
    assert names[:2] == ["train, 4 x 1", "train, 4 x 1, scanned"] and names[-1] == "rollout, 2 x 2"
    theirs = cases.chosen("medgemma_4b", "", theirs=True)
    assert theirs and not any(case.ways for case in theirs)
    assert cases.chosen("tiny", "") == list(cases.CASES["tiny"])


@pytest.mark.parity
def test_both_sides_have_the_same_model_and_cases():
    sides = ["ours", "theirs (eager)"]
    found = run("--sides", *sides, "--peak_flops=1e11")
    assert found["same_parameters"]
    for name in sides:
        check_side(found["sides"][name])
    plain = [c for c in found["sides"]["ours"]["cases"] if c["case"].count(",") == 1]
    assert plain and all("times_theirs" in case for case in plain)
