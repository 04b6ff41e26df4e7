"""A language model in shards: read, rated, and nothing that was paid for asked again."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.language_model.flags import ClientFlags
from cxrjax.papers.cxr_qba.build import QbaOptions
from cxrjax.papers.cxr_qba.construct.construction import merge_facts
from cxrjax.papers.cxr_qba.construct.pipeline import graphs_of, main, questions_of
from cxrjax.papers.cxr_qba.construct.shards import ShardedBuild, finish, prepare
from cxrjax.records_io.shards import read_elements

_path = Path(__file__).with_name("scripted_model.py")
_spec = importlib.util.spec_from_file_location("scripted_model", _path)
scripted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scripted)


def run(job):
    prepare(job)
    numbers = range(job.shards)
    facts = merge_facts([graphs_of(number, job, ()) for number in numbers])
    for number in numbers:
        questions_of(number, facts, job, ())
    finish(job)


def grades(out):
    files = (out / "records").glob("*.array_record")
    return [b'"grade": "' in line for file in files for line in read_elements(file)]


@pytest.fixture
def source(sample, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    lines = (sample / "reports" / "studies.jsonl").read_text().splitlines()
    (folder / "studies.jsonl").write_text(lines[1] + "\n")
    return folder


def test_shards_ask_once(chat, source, tmp_path):
    out = tmp_path / "out"

    def job(where, **flags):
        client = ClientFlags(base_url=where.url, model="m", **flags)
        options = QbaOptions(
            source, out, generator="language_model", rate_with="language_model", client=client
        )
        return ShardedBuild(options, 2)

    with chat.Server(scripted.Rules(chat)) as where:
        run(job(where))
        asked = len(where.bodies)
        assert asked and len(list((out / "answers").glob("*.jsonl"))) == 2
        assert grades(out) and all(grades(out))
        # As after a run that was killed: what was answered is not asked again.
        shutil.rmtree(out / "parts")
        run(job(where))
        assert len(where.bodies) == asked


def test_a_dry_run_sends_nothing_and_a_server_must_be_named(chat, source, tmp_path, capsys):
    flags = [f"--source={source}", f"--out={tmp_path / 'out'}", "--rate_with=language_model"]
    with chat.Server(scripted.Rules(chat)) as where:
        main([*flags, f"--base_url={where.url}", "--model=m", "--dry_run"])
        assert not where.bodies and not (tmp_path / "out" / "parts").exists()
    assert "requests" in capsys.readouterr().out
    with pytest.raises(UserError, match="no server named"):
        main([*flags, "--dry_run"])
