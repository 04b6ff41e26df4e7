"""Builds and ratings by a language model, against a server on this machine."""

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
from cxrjax.papers.cxr_qba.construct import language_model_rater as rating
from cxrjax.papers.cxr_qba.construct.construction import construct_questions
from cxrjax.papers.cxr_qba.construct.extraction import ReportSections
from cxrjax.papers.cxr_qba.construct.language_model_extractor import LanguageModelExtractor
from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater, verdict_form
from cxrjax.papers.cxr_qba.construct.ratings import QUESTION_CRITERIA, overall_grade
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


@pytest.fixture
def some(graph_of, how):
    """A graph and four of its questions, one with several answers."""
    graph = graph_of("Small left effusion. Heart size is normal.", indication="Fever.")
    made = construct_questions(graph, MentionCounts(), how)
    length = {q.question_id: len(list(q.all_answers())) for q in made.questions}
    longest = sorted(made.questions, key=lambda q: -length[q.question_id])
    made.questions = [*longest[:2], *[q for q in made.questions if length[q.question_id] == 1][:2]]
    assert length[made.questions[0].question_id] > 2
    return graph, made


@pytest.fixture
def rate(chat, client, some):
    """`rate(wrong, count)`: rates the first questions; (they, the quality log, the requests)."""
    graph, made = some

    def run(wrong=None, count=4):
        made.questions, quality = made.questions[:count], QualityLog()
        with chat.Server(scripted.judge(chat, wrong)) as where:
            LanguageModelRater(client(where)).rate(graph, made, quality)
        return made.questions, quality, where.bodies

    return run


def test_each_criterion_is_asked_with_its_context(rate):
    questions, quality, bodies = rate()
    # A question is asked about its wording once, wherever it stands.
    assert quality.examined["verdicts of a language model"] == 5 * len(questions)
    contexts = {}
    for body in bodies:
        text = scripted.asked(body)
        report = "FINDINGS: Small left effusion. Heart size is normal." in text
        found = report, "Question: " in text, bool(scripted.numbers(text))
        contexts[scripted.stage_of(body)] = found
    assert contexts == {
        "entailment": (True, True, True),
        "relevance": (False, True, True),
        "completeness": (False, True, True),
        "question_clarity": (False, True, False),
        "answer_clarity": (False, False, True),
    }
    best = {"entailment": "ALIGNED_MENTIONED", "relevance": "RELEVANT_MAIN_ANSWER"}
    best["answer_clarity"] = "OPTIMAL"
    for question in questions:
        own = [question.question_quality[criterion] for criterion in QUESTION_CRITERIA]
        assert own == ["FULLY_COMPLETE", "OPTIMAL"]
        assert all(answer.answer_quality == best for answer in question.all_answers())
        assert overall_grade(question) != "unrated"
    assert not quality.warnings


def test_verdicts_go_to_their_answers(rate, some):
    target = some[1].questions[0]

    def one_bad(stage, text, turns):
        if stage == "entailment" and target.question in text:
            verdicts = ["ALIGNED_MENTIONED", "NON_ALIGNED_CONTRADICTING"]
            rows = [{"number": n, "verdict": verdicts[n == 2]} for n in scripted.numbers(text)]
            return {"verdicts": rows}

    rate(one_bad)
    found = [a.answer_quality["entailment"] for a in target.all_answers()]
    assert [n for n, verdict in enumerate(found) if "CONTRADICTING" in verdict] == [1]
    assert overall_grade(target) == "D"


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdicts": []},
        {"verdicts": [{"number": 1, "verdict": "ALIGNED_MENTIONED"}] * 2},
        {"verdicts": [{"number": 1, "verdict": "FINE"}]},
        {"verdict": "ALIGNED_MENTIONED"},
        '{"verdicts": [{"number": 1, "verd',
    ],
)
def test_wrong_verdicts_are_asked_for_again(rate, wrong):
    first = 2 + 2 * len(scripted.RATE["entailment"]["demonstrations"])

    def once(stage, text, turns):
        return wrong if stage == "entailment" and turns == first else None

    (question,), quality, bodies = rate(once, count=1)
    assert len(bodies) == 6 and not quality.warnings
    assert overall_grade(question) != "unrated"


def test_failures_are_counted_and_leave_the_question_unrated(chat, rate):
    def failing(stage, text, turns):
        if stage == "relevance":
            return chat.Text(None, refusal="no")
        return "never json" if stage == "question_clarity" else None

    (question,), quality, _ = rate(failing, count=1)
    assert quality.warnings == {
        "relevance left unrated: refusal": 1,
        "question_clarity left unrated: invalid_json": 1,
    }
    assert overall_grade(question) == "unrated"
    assert "completeness" in question.question_quality
    assert all("relevance" not in answer.answer_quality for answer in question.all_answers())


@pytest.mark.parametrize("criterion", list(rating.CRITERIA))
def test_criteria_name_all_verdicts_and_show_valid_ones(criterion):
    stage = scripted.RATE[criterion]
    named = re.findall(r"^- ([A-Z_]+):", stage["system"], re.M)
    assert named == list(rating.CRITERIA[criterion])
    for shown in stage["demonstrations"]:
        read = verdict_form(criterion).model_validate_json(shown["assistant"])
        if criterion not in QUESTION_CRITERIA:
            assert [one.number for one in read.verdicts] == scripted.numbers(shown["user"])
