"""Builds with a language model, whole and in shards, against a server on this machine."""

import collections
import json
import re
import shutil
import zipfile

import pytest

from cxrjax.commands.build import main, parse_arguments
from cxrjax.errors import UserError
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.flags import ClientFlags
from cxrjax.language_model.settings import Settings
from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions
from cxrjax.papers.cxr_qba.commands import build_cxr_qba_shards
from cxrjax.papers.cxr_qba.construct.construction import construct_questions
from cxrjax.papers.cxr_qba.construct.extraction import ReportSections
from cxrjax.papers.cxr_qba.construct.language_model_extractor import LanguageModelExtractor
from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.papers.cxr_qba.construct.shards import ShardedBuild
from cxrjax.papers.cxr_qba.study_files import StudyFiles
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.shards import read_elements
from tests.papers.cxr_qba import scripted_model as scripted
from tests.papers.cxr_qba.builds import Built
from tests.papers.cxr_qba.builds import run_shards as run


def entities(folder):
    found = {}
    with StudyFiles(folder / "native", QualityLog()) as files:
        for key in files.members:
            nodes = files.read(key)[0].observations.values()
            found[key] = {(entity, o.positiveness) for o in nodes for entity in o.obs_entities}
    return found


def test_the_build_command_reads_and_rates(chat, sample, tmp_path, capsys):
    # One study, to keep the rating small.
    source = tmp_path / "in"
    source.mkdir()
    line = (sample / "reports" / "studies.jsonl").read_text().splitlines()[1]
    (source / "studies.jsonl").write_text(line + "\n")
    QbaBuilder(QbaOptions(source, tmp_path / "rules")).build()
    out = tmp_path / "out"
    with chat.Server(scripted.Rules(chat)) as where:
        flags = ["--dataset=cxr_qba", f"--source={source}", f"--out={out}"]
        flags += ["--generator=language_model", "--rate_with=language_model"]
        flags += [f"--base_url={where.url}", "--model=m", "--least_grade=B"]
        main([*flags, "--dry_run"])
        printed = capsys.readouterr().out
        assert not where.bodies and not (out / "records").exists()
        planned, verdicts = (
            int(re.search(rf"{what}: ([\d,]+) requests", printed)[1].replace(",", ""))
            for what in ("reading", "rating, repetitions included")
        )
        main(flags)
        stages = collections.Counter(map(scripted.stage_of, where.bodies))
        # Four sentences of findings and one of the impression.
        assert planned == stages["sentences"] + stages["observations"] == 6
        account = json.loads(capsys.readouterr().out.splitlines()[0])["m"]
        assert account["requests"] == len(where.bodies)
        sent = len(where.bodies)
        main(flags)
        assert len(where.bodies) == sent  # all is in the cache
    assert entities(out) == entities(tmp_path / "rules")
    made = Built(out)
    records = made.splits["train"]
    assert records and all(r.grade in ("A++", "A+", "A", "B") for r in records)
    assert not any(r.generator for r in records)  # the manifest says it once
    assert not any("surrogate_grade" in r.quality for r in records)
    manifest = made.manifest
    assert manifest["grades"] == "language_model"
    assert manifest["rater"] == manifest["extractor"] == {"name": "m", "version": "prompt 1"}
    assert made.quality["examined"]["verdicts of a language model"] == verdicts
    assert made.statistics["grade/unrated"]["value"] == 0
    with zipfile.ZipFile(out / "native" / "qa.zip") as archive:
        native = json.loads(archive.read(archive.namelist()[0]))
    assert "entailment" in native["questions"][0]["answers"][0]["answer_quality"]
    assert "completeness" in native["questions"][0]["question_quality"]


def test_a_study_that_the_model_refuses_is_set_aside(chat, sample, tmp_path):
    rules = scripted.Rules(chat)

    def script(body, number):
        if "granulomas" in scripted.asked(body) and scripted.stage_of(body) == "observations":
            return chat.Text(None, refusal="no")
        return rules(body, number)

    with chat.Server(script) as where:
        flags = ["--dataset=cxr_qba", f"--source={sample / 'reports'}", f"--out={tmp_path}"]
        main([*flags, "--generator=language_model", f"--base_url={where.url}", "--model=m"])
    made = Built(tmp_path)
    (entry,) = (e for e in made.quality["set_aside"] if e["reason"] == "generator_failed")
    assert (entry["item"], entry["found"]) == ("s59990003", "observations: refusal")
    manifest = made.manifest
    assert manifest["grades"] == "unrated" and "rater" not in manifest


def test_raters_exclude_each_other_and_a_release_is_read_as_it_is(
    chat, client, sample, tmp_path, capsys
):
    for flags in (["--surrogate"], ["--rate_with=both"]):
        with pytest.raises(SystemExit):
            parse_arguments(["--dataset=cxr_qba", "--source=x", "--out=y", *flags])
    with chat.Server(scripted.judge(chat)) as where:
        rater = LanguageModelRater(client(where))
        for source, options, given, message in (
            ("reports", {"rate_with": "surrogate"}, {"rater": rater}, "not by both"),
            ("release", {}, {"rater": rater}, "the release is read as it is"),
            ("release", {"rate_with": "surrogate"}, {}, "the release is read as it is"),
        ):
            chosen = QbaOptions(sample / source, tmp_path / "out", **options)
            with pytest.raises(UserError, match=message):
                QbaBuilder(chosen, **given).build()
    assert not where.bodies and not (tmp_path / "out").exists()


def test_nothing_leaves_the_machine_unasked(tmp_path, graph_of, how):
    settings = Settings(base_url="https://example.invalid/v1", model="m")
    away = Client(settings, AnswerCache(tmp_path / "answers.jsonl"))
    with pytest.raises(UserError, match=r"1 requests with text of radiology reports"):
        LanguageModelExtractor(away).require_permission([scripted.REPORT, ReportSections({})])
    graph = graph_of("Small left effusion.")
    made = construct_questions(graph, MentionCounts(), how)
    with pytest.raises(UserError, match=r"requests with text of radiology reports to example"):
        LanguageModelRater(away).require_permission_for([(graph, made)])
    with pytest.raises(UserError, match=r"requests with text of radiology reports to example"):
        LanguageModelRater(away).rate(graph, made, QualityLog())
    with pytest.raises(UserError, match=r"sending to example\.invalid is not allowed"):
        LanguageModelExtractor(away).extract(scripted.REPORT)


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
        build_cxr_qba_shards.main([*flags, f"--base_url={where.url}", "--model=m", "--dry_run"])
        assert not where.bodies and not (tmp_path / "out" / "parts").exists()
    assert "requests" in capsys.readouterr().out
    with pytest.raises(UserError, match="no server named"):
        build_cxr_qba_shards.main([*flags, "--dry_run"])
