"""Readers of what others wrote hold against the corpus and some seconds of new attacks."""

import os
import random
import subprocess
import sys

import pytest

from bench.fuzz.mutate import BY_ENDING, mutated
from bench.fuzz.worker import ROOT


def fuzz(*words, **variables):
    command = [sys.executable, "-m", "bench.fuzz", "--processes=2", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--replay", "--seconds=20"])
def test_the_corpus_and_some_seconds_of_attacks_find_nothing(flag):
    found = fuzz(flag)
    assert found.returncode == 0, found.stdout[-6_000:] + found.stderr[-2_000:]


PLANTED = {
    "exception": "UnicodeDecodeError at planted.py",
    "hang": "slow",
    "memory": "memory",
    "death": "died",
    "write": "Fault at worker.py:watched outside of its folder",
    "silent_write": "Fault at worker.py:watched a file appeared beside",
    "read": "Fault at worker.py:_check_message a message quotes another file",
    "loss": "Fault at planted.py:planted_loss silent loss",
}


@pytest.mark.slow
def test_planted_faults_are_found():
    found = fuzz(
        "--seconds=15", "--slice_seconds=0.3", "--target=planted", CXRJAX_FUZZ_PLANTED="1"
    ).stdout
    for name, fault in PLANTED.items():
        assert f"## planted_{name} case" in found and fault in found, f"{name}\n{found}"
    assert "## planted_sound" not in found


@pytest.mark.parametrize("ending", sorted(BY_ENDING))
def test_cases_are_the_same_in_every_run(ending):
    def cases():
        rng = random.Random(3)
        return [mutated(rng, f"a.{ending}", b'{"a": [1, "x"]}\n1,2\n', [b"b"]) for _ in range(60)]

    assert cases() == cases()
    assert len(set(cases())) > 20
