"""The command: flags, what is missing, and the address."""

import sys
import tempfile
from types import SimpleNamespace

import pytest

from cxrjax import cli
from cxrjax.apps.demo import run
from cxrjax.apps.demo.gate import Gate
from cxrjax.commands import demo_app


@pytest.mark.parametrize(
    "words", [["--port=x"], ["--max_megabytes=0"], ["--no_such"], ["--models=a"]]
)
def test_unusable_flags_end_with_code_2(words, capsys):
    with pytest.raises(SystemExit) as end:
        demo_app.parse_arguments(words)
    assert end.value.code == 2
    assert words[0].split("=")[0] in capsys.readouterr().err


def test_this_machine_alone_and_without_gradio_one_line(monkeypatch, capsys):
    flags = demo_app.parse_arguments([])
    assert flags.host == "127.0.0.1" and not flags.allowed_host
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(SystemExit) as end:
        cli.run(lambda: demo_app.main(["--port=0"]))
    told = capsys.readouterr()
    assert end.value.code == 2 and told.out == ""
    (line,) = [line for line in told.err.splitlines() if line.startswith("error: ")]
    assert "gradio cannot be imported" in line and "`make try` installs it" in line


def test_gradio_keeps_the_latest_sessions_and_outlives_those_that_have_gone(tmp_path):
    holder = SimpleNamespace(capacity=10_000)
    queue = SimpleNamespace(pending_messages_per_session={}, pending_event_ids_session={})
    Gate(None, SimpleNamespace(_queue=queue, state_holder=holder), tmp_path, 1)
    assert holder.capacity == 64
    for kept in (queue.pending_messages_per_session, queue.pending_event_ids_session):
        for number in range(100):
            kept[f"s{number}"] = [number]
        assert list(kept) == [f"s{number}" for number in range(36, 100)]
        del kept["s0"]
        assert "s0" not in kept and kept.get("s0") is None
    queue.pending_messages_per_session["s0"].put_nowait("a message for nobody")
    queue.pending_event_ids_session["s0"].add("an event of nobody")
    assert "s0" not in queue.pending_messages_per_session


def test_uploads_of_a_killed_page_are_removed_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / "cxrjax-demo-old"
    (killed / "uploads").mkdir(parents=True)
    with run.uploads_folder() as first:
        assert not killed.exists()
        with run.uploads_folder() as second:
            assert first.is_dir() and second != first
    assert not any(tmp_path.iterdir())
