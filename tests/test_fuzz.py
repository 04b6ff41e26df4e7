"""Readers of what others wrote hold against the corpus and some seconds of new attacks."""

import fnmatch
import os
import random
import re
import subprocess
import sys

import pytest

from bench.fuzz.mutate import BY_ENDING, mutated
from bench.fuzz.targets import TARGETS
from bench.fuzz.worker import ROOT
from tests.papers.cases import data

_READS = re.compile(
    r"cxrjax\.untrusted\.(?!names|closed_world)\w+|read_json_(?:object|list|lines)|sqlite3\.connect"
)


def fuzz(*words, **variables):
    command = [sys.executable, "-m", "bench.fuzz", "--processes=2", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--replay", "--seconds=20"])
def test_the_corpus_and_some_seconds_of_attacks_find_nothing(flag):
    found = fuzz(flag)
    assert found.returncode == 0, found.stdout[-6_000:] + found.stderr[-2_000:]


PLANTED = data(__file__)["planted"]


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


def test_every_reader_is_attacked():
    """Every module that reads files is in SECURITY.md's table, and each row's targets are there."""
    table = (ROOT / "SECURITY.md").read_text().partition("## Readers")[2].partition("## Servers")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    patterns = [name for modules, _ in rows for name in re.findall("`([^`]+)`", modules)]
    told = {name for _, targets in rows for name in re.findall("`([^`]+)`", targets)}
    package = ROOT / "cxrjax"
    reading = [p for p in package.rglob("*.py") if _READS.search(p.read_text(encoding="utf-8"))]
    names = [path.relative_to(package).as_posix() for path in reading]
    missing = [n for n in names if not any(fnmatch.fnmatch(n, pattern) for pattern in patterns)]
    assert not missing, f"put them into a row of SECURITY.md, with a target: {missing}"
    assert all(fnmatch.filter(TARGETS, name) for name in told)
    assert all(any(fnmatch.fnmatch(name, one) for one in told) for name in TARGETS)
