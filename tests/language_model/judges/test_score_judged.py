"""`score` with a judge: asked, killed, taken up again and replayed, with the same figures."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cxrjax.commands import score
from cxrjax.errors import UserError
from cxrjax.papers.vix_ray.records import VixRayStudy, records
from cxrjax.records import write_records

STUDIES = 24


@pytest.fixture
def files(tmp_path):
    """(references, predictions) of stage 1; every other answer has one fact of two right."""
    common = {"split": "test", "where": "", "impression": "Tim to.", "view": "PA", "sex": "M"}
    common |= {"image_path": "x.png", "image_sha256": "", "image_hw": (10, 10)}
    common |= {"age": 60, "note": ""}
    studies = [
        VixRayStudy(
            image_id=f"vixray-test-{n:05d}",
            findings=f"Bóng tim to độ {n}. Xơ phổi trái.",
            native={"file": "test.parquet", "row": n, "columns": {}},
            **common,
        )
        for n in range(STUDIES)
    ]
    references = tmp_path / "test.jsonl"
    write_records(references, [next(iter(records(study))) for study in studies])
    predictions = tmp_path / "model.jsonl"
    with open(predictions, "w") as file:
        for n, study in enumerate(studies):
            text = study.findings if n % 2 else f"Bóng tim to độ {n}. Gãy xương."
            line = {"question_id": f"{study.image_id}-stage1-findings", "text": text}
            file.write(json.dumps(line) + "\n")
    return references, predictions


def flags(files, out, *more):
    given = [f"--references={files[0]}", f"--predictions={files[1]}", f"--out={out}"]
    how = ["--benchmark=vix_ray", "--resamples=20", "--segmenter=syllables", "--floors=never"]
    return [*how, *given, *more]


def ask(there, *more):
    return ["--judge=language_model", f"--base_url={there.url}", "--model=m", *more]


def metrics(out):
    return (out / "metrics.json").read_bytes()


@pytest.mark.slow  # two processes
def test_kill_9_between_verdicts_costs_nothing_twice(chat, files, reply, tmp_path):
    verdicts = tmp_path / "verdicts.jsonl"
    kept = [f"--verdicts={verdicts}", f"--cache={tmp_path / 'answers.jsonl'}", "--concurrency=2"]
    with chat.Server(reply, delay=0.02) as there:
        command = [sys.executable, "-m", "cxrjax.score"]
        run = command + flags(files, tmp_path / "one", *ask(there), *kept)
        first = subprocess.Popen(run, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while len(there.bodies) < STUDIES:
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.002)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert 0 < verdicts.read_bytes().count(b"\n") < STUDIES
        assert os.listdir(tmp_path / "one") == [".lock"]
        # What a kill in the midst of a write leaves behind.
        with open(verdicts, "ab") as file:
            file.write(b'{"key": "abc", "jud')
        score.main(flags(files, tmp_path / "one", *ask(there), *kept))
        sent = len(there.bodies)
        score.main(flags(files, tmp_path / "whole", *ask(there)))
        whole = len(there.bodies) - sent
    # Nothing but what was under way at the kill is asked twice.
    assert whole <= sent <= whole + 2
    assert metrics(tmp_path / "one") == metrics(tmp_path / "whole")
    score.main(flags(files, tmp_path / "two", "--judge=replay", f"--verdicts={verdicts}"))
    assert metrics(tmp_path / "two") == metrics(tmp_path / "one")
    named = json.loads(metrics(tmp_path / "two"))["model"]["paper"]
    assert named["stage1/findings/fact_precision"]["value"] == pytest.approx(3 / 4)
    assert named["stage1/findings/fact_recall_micro"]["value"] == pytest.approx(3 / 4)
    assert named["stage1/findings/judge_failure_rate"]["value"] == 0
    about = json.loads((tmp_path / "whole" / "judge.json").read_text())
    assert about["name"] == "m" and about["account"]["requests"] == whole
    assert "api_key" not in about["settings"]


def test_what_the_judge_fails_at_is_counted_and_wrong_under_strict(chat, files, reply, tmp_path):
    def script(body, _):
        if "độ 3." in body["messages"][-1]["content"]:
            return chat.Text(None, refusal="no")
        return reply(body)

    with chat.Server(script) as there:
        score.main(flags(files, tmp_path / "out", *ask(there)))
    found = json.loads(metrics(tmp_path / "out"))["model"]
    right = STUDIES / 2 - 1 + STUDIES / 4
    name = "stage1/findings/fact_precision"
    assert found["paper"][name]["value"] == pytest.approx(right / (STUDIES - 1))
    assert found["strict"][name]["value"] == pytest.approx(right / STUDIES)
    rate = found["strict"]["stage1/findings/judge_failure_rate"]["value"]
    assert rate == pytest.approx(1 / STUDIES)
    problems = json.loads((tmp_path / "out" / "score.json").read_text())["problems"]["model"]
    assert problems["judge_failure/refusal"] == 1 and problems["judge_failure/service"] == 0
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "judge_failure/refusal: the judge declined" in tables


def test_a_replay_without_every_verdict_is_refused(chat, files, reply, tmp_path):
    with chat.Server(reply) as there:
        score.main(flags(files, tmp_path / "out", *ask(there)))
    verdicts = tmp_path / "out" / "verdicts.jsonl"
    lines = verdicts.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(line for line in lines if '"fact_matching"' not in line))
    with pytest.raises(UserError, match="24 of fact_matching are missing"):
        score.main(flags(files, tmp_path / "x", "--judge=replay", f"--verdicts={cut}"))
    cut.write_text("".join(lines + [lines[0].replace('"m"', '"other"').replace("0", "1")]))
    with pytest.raises(UserError, match=r"2 judges \(m, other\); expected one; pass --model=NAME"):
        score.main(flags(files, tmp_path / "x", "--judge=replay", f"--verdicts={cut}"))
    chosen = ["--judge=replay", f"--verdicts={cut}", "--model=m"]
    score.main(flags(files, tmp_path / "x", *chosen))
    assert metrics(tmp_path / "x") == metrics(tmp_path / "out")
    with pytest.raises(UserError, match="no verdict of 'nobody', only of m, other"):
        score.main(flags(files, tmp_path / "x", *chosen[:-1], "--model=nobody"))
    cut.write_text('{"question_id": "q1"}\n')
    with pytest.raises(UserError, match=r"cut.jsonl:1: no verdict; if this is the right file"):
        score.main(flags(files, tmp_path / "x", "--judge=replay", f"--verdicts={cut}"))


def test_a_dry_run_or_a_benchmark_without_free_text_writes_no_scores(chat, files, tmp_path, capsys):
    with chat.Server(chat.Text("{}")) as there:
        score.main(flags(files, tmp_path / "out", *ask(there, "--dry_run")))
        assert not there.bodies
    assert "facts: 36 requests to send with 0 images" in capsys.readouterr().out
    assert not (tmp_path / "out" / "metrics.json").exists()
    other = ("--benchmark=vindr_cxr_vqa", "--judge=surrogate")  # the last one counts
    with pytest.raises(UserError, match="--judge: vindr_cxr_vqa has no use for one"):
        score.main(flags(files, tmp_path, *other))
