"""Refining and asking by a language model: what is sent, checked, asked again and set aside."""

import json
import re
import shutil

import pytest
import tenacity

from bench.gemex_refiner import LabelledSentence, measure
from bench.gemex_refiner import main as accuracy
from cxrjax.commands.build import main
from cxrjax.errors import UserError
from cxrjax.language_model import completion as server
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.settings import Settings
from cxrjax.papers.gemex.construct.language_model import LanguageModelGenerator as Generator
from cxrjax.papers.gemex.construct.language_model import LanguageModelRefiner as Refiner
from cxrjax.papers.gemex.construct.language_model import load_prompt, read_demonstrations
from cxrjax.papers.gemex.construct.questions import QUESTIONS_PER_REPORT, RefinedReport, check
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from cxrjax.papers.sources.report import ImageReport, ReportSentence
from cxrjax.records import read_records
from cxrjax.records_io.quality import QualityLog
from tests.papers.cases import cases, data


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(server, "_backoff", tenacity.wait_exponential_jitter(0.01, 0.05, jitter=0))


def client(where, tmp_path, **settings):
    terms = {"base_url": where.url, "model": "m", "timeout": 5.0, "concurrency": 2} | settings
    return Client(Settings(**terms), AnswerCache(tmp_path / "answers.jsonl"))


def report(*texts, name="r"):
    sentences = tuple(ReportSentence(text) for text in texts)
    return ImageReport(name, name, "", sentences, {}, where=f"{name}.json")


REPORT = report("The heart is normal.", "Small left effusion.", "Compared to prior, better.")


def pairs(*rows):
    keys = ("source", "sentence", "region")
    return json.dumps({"pairs": [dict(zip(keys, row, strict=True)) for row in rows]})


HEART = (1, "The heart is normal.", "cardiac region")


def asked(kind, number):
    fluid, choice = "Fluid on the left", kind.endswith("choice")
    answer = "yes" if kind == "closed_ended" else fluid if choice else "A veil at the left base."
    return {
        "question_type": kind,
        "content_type": "abnormality",
        "question": f"What is there to say, number {number}?",
        "choices": [fluid, "Air under the diaphragm", "A broken rib"] if choice else [],
        "answer": [answer],
        "reason": "The left base is veiled.",
        "regions": ["left lower lung zone"],
    }


def eleven(**changes):
    rows = [asked(kind, n) for kind, count in QUESTIONS_PER_REPORT.items() for n in range(count)]
    rows[-1] |= changes
    return json.dumps({"questions": rows})


@pytest.fixture
def ask(chat, tmp_path):
    """`ask(stage, items, *answers)`: its results on these, and the requests.

    The last answer is given from then on.
    """

    def run(stage, items, *answers):
        said = [chat.Text(answer) for answer in answers]
        with chat.Server(lambda body, n: said[min(n, len(said) - 1)]) as where:
            asking = stage(client(where, tmp_path), QualityLog())
            run_on = asking.refine if stage is Refiner else asking.generate
            results = list(run_on(items))
            sent = len(where.bodies)
            assert list(run_on(items)) == results and len(where.bodies) == sent  # paid for once
        return results, where.bodies

    return run


def test_a_refiner_sends_sentences_and_rules_and_gets_regions(ask):
    answer = pairs(
        HEART,
        (2, "There is a small effusion at the left base.", "left lower lung zone"),
        (3, "Compared to the prior study it is better.", "left lower lung zone"),
    )
    ((_, refinement),), (body,) = ask(Refiner, [REPORT], answer)
    assert [(s.text, s.region, s.source) for s in refinement.sentences] == [
        ("The heart is normal.", "cardiac silhouette", 0),
        ("There is a small effusion at the left base.", "left lower lung zone", 1),
    ]
    assert refinement.left_out == {"longitudinal": 1}
    system, user = (turn["content"] for turn in body["messages"])
    assert "bilateral mid-to-upper lung zone" in system and "Rules:" in system
    assert user.splitlines()[1] == "2: Small left effusion."


@pytest.mark.parametrize(
    "wrong",
    [
        pairs((1, "The liver is large.", "liver")),
        pairs((9, "The heart is normal.", "cardiac region")),
        pairs((1, "Heart.", "cardiac region")),
        "no json",
    ],
)
def test_a_wrong_refinement_is_asked_for_again(ask, wrong):
    ((_, refinement),), bodies = ask(Refiner, [REPORT], wrong, pairs(HEART))
    assert len(bodies) == 2
    assert len(refinement.sentences) == 1 and refinement.left_out == {"no_region": 2}


def test_what_never_gets_right_is_set_aside(chat, tmp_path):
    def script(body, number):
        refused = "Heart" in str(body["messages"][-1])
        return chat.Text(None, refusal="no") if refused else chat.Text("no json")

    reports = [report("Heart is big.", name="a"), report("Lungs are clear.", name="b")]
    with chat.Server(script) as where:
        quality = QualityLog()
        results = list(Refiner(client(where, tmp_path), quality).refine(reports))
    assert [one.sentences for _, one in results] == [[], []]
    found = [(e.reason, e.item, e.found) for e in quality.entries]
    failed = {"a": "refusal", "b": "invalid_json"}
    assert found == [("generator_failed", name, why) for name, why in failed.items()]


def refined():
    ((one, refinement),) = RuleRefiner().refine([REPORT])
    return RefinedReport(one, refinement)


def test_a_generator_gives_questions_that_pass_the_filters(ask):
    ((_, drafts),), (body,) = ask(Generator, [refined()], eleven())
    assert len(drafts) == 11
    for draft in drafts:
        check(draft)
        if draft.choices:
            assert draft.answer_words == ["Fluid on the left"]
    system, user = (turn["content"] for turn in body["messages"])
    assert "3 open_ended, 2 closed_ended, 3 single_choice, 3 multi_choice questions" in system
    assert "The heart is normal. (cardiac silhouette)" in user.splitlines()


def test_a_generator_is_shown_demonstrations(ask, tmp_path):
    _, (body,) = ask(Generator, [refined()], eleven())
    assert body["messages"][0]["content"].count("Reason: ") >= 30
    row = {"sentences": [["The heart is large.", "cardiac region"]], "type": "single_choice"}
    row |= {"content": "disease", "question": "What is it?", "choices": ["A: Mass", "B: Oedema"]}
    row |= {"key": "B", "reason": "It is seen.", "regions": ["cardiac region"]}
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps(row))
    assert read_demonstrations(own) == (
        'For "The heart is large." (cardiac silhouette)\nsingle_choice, disease: What is it? '
        "Choices: Mass; Oedema. Answer: Oedema. Reason: It is seen. Regions: cardiac silhouette."
    )
    for wrong in ({"key": "C"}, {"regions": ["liver"]}, {"content": "colour"}, {"question": None}):
        own.write_text(f"{json.dumps(row)}\n{json.dumps(row | wrong)}")
        with pytest.raises(UserError, match=r"own\.jsonl:2: .* expected a demonstration as"):
            read_demonstrations(own)
    own.write_text("")
    with pytest.raises(UserError, match="no demonstration in it"):
        read_demonstrations(own)


@cases("change")
def test_wrong_questions_are_asked_for_again(ask, change):
    ((_, drafts),), bodies = ask(Generator, [refined()], eleven(**change), eleven())
    assert len(bodies) == 2 and len(drafts) == 11


def test_prompts_fit_their_places_and_the_harness_measures_this_refiner_too(chat, tmp_path):
    labels = [LabelledSentence("a", "Heart normal.", frozenset({"cardiac silhouette"}), 0)]
    with chat.Server(lambda body, n: chat.Text(pairs(HEART))) as where:
        accuracies, _ = measure(Refiner(client(where, tmp_path), QualityLog()), labels)
    assert accuracies[0].value == 1
    prompt = load_prompt()
    assert "{regions}" in prompt["refine"]["system"]
    assert {"{counts}", "{contents}"} <= set(re.findall(r"\{\w+\}", prompt["generate"]["system"]))


def test_the_harness_command_tries_another_prompt(chat, tmp_path, capsys):
    labels = tmp_path / "labels.jsonl"
    label = {"id": "a", "rule": 6, "sentence": "Heart normal.", "regions": ["cardiac silhouette"]}
    wrong = {"id": "b", "rule": 4, "sentence": "Small left effusion.", "regions": ["left lung"]}
    labels.write_text("\n".join(map(json.dumps, (label, wrong))))
    tried = tmp_path / "tried.toml"
    tried.write_text('[refine]\nsystem = "Sort these into {regions}."\n')
    with chat.Server(lambda body, n: chat.Text(pairs(HEART))) as where:
        flags = [f"--labels={labels}", "--refiner=language_model", f"--base_url={where.url}"]
        flags += ["--model=m", f"--prompt={tried}"]
        accuracy([*flags, "--dry_run"])
        assert not where.bodies and "2 requests" in capsys.readouterr().out
        accuracy(flags)
        assert where.bodies[0]["messages"][0]["content"].startswith("Sort these into right lung,")
    printed = capsys.readouterr().out
    assert re.search(r"rule 6 .* 1 of    1  100\.0 %", printed)
    assert re.search(r"rule 4 .* 0 of    1    0\.0 %", printed)
    assert "b: expected ['left lung'], given ['cardiac silhouette']" in printed
    for text, message in data(__file__)["the_harness_command_tries_another_prompt"]:
        tried.write_text(text)
        with pytest.raises(UserError, match=message):
            accuracy(flags)
    with pytest.raises(UserError, match="--prompt is a language model's"):
        accuracy([f"--labels={labels}", f"--prompt={tried}"])


def test_nothing_leaves_the_machine_unasked(tmp_path):
    settings = Settings(base_url="https://example.invalid/v1", model="m")
    away = Client(settings, AnswerCache(tmp_path / "answers.jsonl"))
    for stage, items in (
        (Refiner(away, QualityLog()).refine, [REPORT]),
        (Generator(away, QualityLog()).generate, [refined()]),
    ):
        with pytest.raises(UserError, match=r"1 requests with sentences of radiology reports"):
            list(stage(items))


def test_the_build_command_asks_a_model(chat, sample, tmp_path, capsys):
    source = tmp_path / "source"
    shutil.copytree(sample / "scene_graph", source / "scene_graph")
    for name in ("split", "metadata"):
        shutil.copy(sample / f"mimic-cxr-2.0.0-{name}.csv", source)

    def script(body, number):
        if "prepares chest X-ray reports" in body["messages"][0]["content"]:
            return chat.Text(pairs(HEART, (2, "The lungs are clear.", "bilateral lung")))
        return chat.Text(eleven(reason="It is unchanged."))

    with chat.Server(script) as where:
        flags = ["--dataset=gemex", f"--source={source}", f"--out={tmp_path / 'out'}"]
        flags += ["--generator=language_model", f"--base_url={where.url}", "--model=m"]
        flags += ["--test_images=1", "--processes=1"]
        main([*flags, "--dry_run"])
        assert "refining: 2 requests to send" in capsys.readouterr().out and not where.bodies
        main(flags)
        sent = len(where.bodies)
        # Two reports to refine; refined they are the same, so that one answer does for both.
        assert sent == 3
        main(flags)
        assert len(where.bodies) == sent
    records = list(read_records(tmp_path / "out/records/train.jsonl"))
    assert len(records) == 10 and all(record.generator.name == "m" for record in records)
    assert all(record.answers[0].regions == ["left lower lung zone"] for record in records)
    quality = json.loads((tmp_path / "out/quality.json").read_text())
    assert quality["counts"]["longitudinal"] == 2  # the last question of each image
