"""A short bout of chaos for the gate, and the whole of it, which `make chaos` prints as a table."""

import collections
import json
import random
import signal

import pytest

from bench.chaos import chaos


@pytest.mark.slow
def test_killed_in_a_save_and_beside_a_second_process_it_ends_bit_for_bit(tmp_path):
    small = chaos.begin(tmp_path, tmp_path / "ledger.jsonl", random.Random(0))
    small.finish(tmp_path / "alone", "left alone")
    workdir = tmp_path / "killed"
    small.kill(workdir, "save")
    assert (workdir / ".lock").exists()
    chaos.second_process(small, workdir)
    said = [json.loads(line) for line in small.ledger.read_text().splitlines()]
    assert [line["exit_code"] for line in said] == [0, -signal.SIGKILL, 2, 0]
    assert len({line["state"] for line in said if line["state"]}) == 1

    # It would be seen if the end were another one.
    metrics = workdir / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole.replace('"train/loss": ', '"train/loss": 1', 1))
    assert chaos.end_state(workdir) != small.expected
    metrics.write_text(whole)
    largest = max((workdir / "checkpoints/12/optimizer").rglob("*"), key=lambda p: p.stat().st_size)
    largest.write_bytes(b"")
    with pytest.raises(Exception):  # noqa: B017 - whatever the reader says
        chaos.end_state(workdir)


@pytest.mark.heavy
def test_everything(tmp_path):
    entries = chaos.wreak(tmp_path, tmp_path / "ledger.jsonl")
    assert not [entry for entry in entries if entry["result"] == "WRONG"]
    assert collections.Counter(e["did"].split(" in ")[0] for e in entries)["kill -9"] >= 30
