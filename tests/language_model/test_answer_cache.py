"""The cache: a process killed half-way loses and repays nothing; wrong files are left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.errors import UserError
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.answer import Completion

QUESTIONS = 60
CONCURRENCY = 4


def _start(url, path):
    command = [sys.executable, Path(__file__).with_name("asker.py"), url, path, "map"]
    return subprocess.Popen([*command, str(QUESTIONS)], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow  # two processes
def test_kill_9_loses_and_repays_nothing(chat, tmp_path):
    def script(body, number):
        return chat.Text(json.dumps({"city": body["messages"][0]["content"]}))

    path = tmp_path / "answers.jsonl"
    with chat.Server(script, delay=0.02) as there:
        first = _start(there.url, path)
        deadline = time.monotonic() + 60
        while len(there.bodies) < QUESTIONS // 2:
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.002)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        sent = len(there.bodies)
        kept = path.read_bytes().count(b"\n")
        # All but what was under way at that moment had been kept.
        assert sent - CONCURRENCY <= kept < QUESTIONS
        second = _start(there.url, path)
        out, _ = second.communicate(timeout=60)
        assert second.returncode == 0
    answers, requests = out.splitlines()
    assert answers == str([f"city {n}" for n in range(QUESTIONS)])
    assert int(requests) == QUESTIONS - kept == len(there.bodies) - sent


reasons, tokens = st.sampled_from(["stop", "length"]), st.none() | st.integers(0, 10**6)
texts = st.text()
completions = st.builds(Completion, texts, reasons, st.none() | texts, texts, tokens, tokens)


@settings(max_examples=50)  # the disk syncs when it likes
@given(answers=st.lists(completions, max_size=4), lost=st.integers(0, 400))
def test_what_was_kept_comes_back_up_to_where_the_file_was_cut(tmp_path_factory, answers, lost):
    path = tmp_path_factory.mktemp("cache") / "answers.jsonl"
    cache = AnswerCache(path)
    ends = []
    for number, answer in enumerate(answers):
        cache.put(f"key {number}", answer)
        ends.append(path.stat().st_size)
        assert cache.get(f"key {number}") == answer
    cache.close()
    size = max(path.stat().st_size - lost, 0)
    os.truncate(path, size)
    whole = sum(end <= size for end in ends)
    cache = AnswerCache(path)
    assert len(cache) == whole
    assert [cache.get(f"key {n}") for n in range(whole)] == answers[:whole]
    cache.put("later", Completion("x", "stop", None, "m", 1, 2))
    cache.close()
    cache = AnswerCache(path)
    assert len(cache) == whole + 1 and cache.get("later").text == "x"
    assert cache.get("unknown") is None and "unknown" not in cache
    cache.close()


def test_one_process_writes_a_whole_file_at_a_time(tmp_path):
    cache = AnswerCache(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="another process"):
        AnswerCache(tmp_path / "a.jsonl")
    cache.close()
    AnswerCache(tmp_path / "a.jsonl").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        AnswerCache(tmp_path / "file" / "a.jsonl")
    path = tmp_path / "other"
    fields = {"key": 5, "text": "", "finish_reason": "", "refusal": None, "model": ""}
    number = json.dumps(fields | {"input_tokens": 1, "output_tokens": 1}).encode() + b"\n"
    others = [number, b"image_id,class_name\n1,2\n", b'{"key": "a", "text": "b"}\n', b"[1]\n"]
    for content in (*others, b"notes without an end of line", b"\xff\xfe\n"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"other:1: no cached answer"):
            AnswerCache(path)
        assert path.read_bytes() == content
    path = tmp_path / "a.jsonl"
    cache = AnswerCache(path)
    for key in "abc":
        cache.put(key, Completion("x", "stop", None, "m", 1, 2))
    cache.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{damaged\n" + lines[2])
    with pytest.raises(UserError, match=r"a\.jsonl:2: no cached answer"):
        AnswerCache(path)
