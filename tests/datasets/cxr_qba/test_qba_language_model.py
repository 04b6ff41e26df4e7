"""Reading reports and rating questions by a language model: sent, checked, asked again, counted."""

import collections
import json
import re

import pytest
import tenacity

from cxrjax.build import main, parse_arguments
from cxrjax.datasets.cxr_qba import language_model_answers as answers
from cxrjax.datasets.cxr_qba import language_model_extractor as extracting
from cxrjax.datasets.cxr_qba import language_model_rater as rating
from cxrjax.datasets.cxr_qba.build import QBABuild, build_cxr_qba
from cxrjax.datasets.cxr_qba.construction import construct_graph, construct_questions
from cxrjax.datasets.cxr_qba.extraction import Report, Sentence
from cxrjax.datasets.cxr_qba.language_model_extractor import LanguageModelExtractor
from cxrjax.datasets.cxr_qba.language_model_rater import LanguageModelRater, verdict_form
from cxrjax.datasets.cxr_qba.negative_sampling import MentionCounts
from cxrjax.datasets.cxr_qba.prompts import load_prompt
from cxrjax.datasets.cxr_qba.ratings import ANSWER_CRITERIA, QUESTION_CRITERIA, overall_grade
from cxrjax.datasets.cxr_qba.rule_extractor import RuleExtractor
from cxrjax.datasets.cxr_qba.sentences import split_report, split_text
from cxrjax.datasets.cxr_qba.study import Study, StudyImage
from cxrjax.datasets.quality import QualityLog, Unusable
from cxrjax.errors import UserError
from cxrjax.language_model import AnswerCache, Client, Settings, server
from cxrjax.records import read_records

REPORT = Report(
    {
        "indication": "Fever, evaluate for pneumonia.",
        "findings": "Stable small left effusion. Heart size is normal. PA view.",
        "impression": "1. Left effusion. 2. The XXXX is unchanged.",
    }
)
EXTRACT = load_prompt(extracting.PROMPT)
RATE = load_prompt(rating.PROMPT)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(server, "_backoff", tenacity.wait_exponential_jitter(0.01, 0.05, jitter=0))


@pytest.fixture
def client(tmp_path):
    """`client(server, **settings)`; all have one cache file, one after the other."""
    caches = []

    def make(where, **settings):
        for cache in caches:
            cache.close()
        caches.append(AnswerCache(tmp_path / "answers.jsonl"))
        terms = {"base_url": where.url, "model": "m", "timeout": 5.0} | settings
        return Client(Settings(**terms), caches[-1])

    yield make
    for cache in caches:
        cache.close()


def stage_of(body):
    """Which prompt of ours a request begins with."""
    system = body["messages"][0]["content"]
    every = {**{k: v for k, v in EXTRACT.items() if k != "version"}, **RATE}
    (found,) = (
        name
        for name, stage in every.items()
        if name != "version" and stage["system"].strip() in system
    )
    return found


def asked(body):
    return body["messages"][-1]["content"]


def sentences(*rows):
    keys = ("section", "sentence", "same")
    return {"sentences": [dict(zip(keys, row, strict=True)) for row in rows]}


GOOD_SENTENCES = sentences(
    ("indication", "Fever, evaluate for pneumonia.", []),
    ("impression", "The XXXX is unchanged.", []),
    ("findings", "Stable small left effusion.", ["Left effusion."]),
    ("findings", "Heart size is normal.", []),
)
GOOD_INDICATION = {
    "indication_summary": "Fever; pneumonia is looked for.",
    "patient_info": "",
    "indication": "fever",
    "evaluation": "pneumonia",
    "answer_sentence_ids": ["S02"],
    "answer_for_indication": "There is a small left pleural effusion.",
}


def observation(**changes):
    return {
        "name": "Small left pleural effusion",
        "summary_sentence": "There is a small left pleural effusion.",
        "entity": ["Pleural Effusion"],
        "regions": ["the left pleural space"],
        "side": "left",
        "probability": 1.0,
        "modifiers": {"temporal": [], "severity": ["small"], "texture": [], "spread": []},
        "change": ["no change"],
        "change_sentence": "The effusion is unchanged.",
        "children": [],
    } | changes


NORMAL_HEART = observation(
    name="Normal heart",
    summary_sentence="The heart is normal.",
    entity=["cardiac enlargement"],
    regions=["heart"],
    side="",
    probability=0,
    modifiers={"temporal": [], "severity": [], "texture": [], "spread": []},
    change=[],
    change_sentence="",
)


def reader(chat, wrong=None):
    """Answers on REPORT; `wrong(stage, text, how often asked)` may give another first."""
    often = collections.Counter()

    def script(body, number):
        stage, text = stage_of(body), asked(body)
        said = wrong and wrong(stage, body["messages"][-1]["content"], often[stage])
        often[stage] += 1
        if said is not None:
            return said if not isinstance(said, str | dict) else _text(chat, said)
        if stage == "sentences":
            return _text(chat, GOOD_SENTENCES)
        if stage == "indication":
            return _text(chat, GOOD_INDICATION)
        told = [m["content"] for m in body["messages"]]
        found = []
        if "Stable small left effusion." in told:
            found = [observation()]
        elif "Heart size is normal." in told:
            found = [NORMAL_HEART]
        return _text(chat, {"observations": found})

    return script


def _text(chat, content):
    return chat.Text(content if isinstance(content, str) else json.dumps(content))


def test_a_report_in_three_steps(chat, client):
    with chat.Server(reader(chat)) as where:
        extractor = LanguageModelExtractor(client(where))
        extraction = extractor.extract(REPORT)
        assert extractor.extract(REPORT) == extraction
    # Sentences, indication, and three sentences of findings and impression; each paid for once.
    assert collections.Counter(map(stage_of, where.bodies)) == {
        "sentences": 1,
        "observations": 3,
        "indication": 1,
    }
    assert [(s.sent_id, s.section, s.text) for s in extraction.sentences] == [
        ("S01", "indication", "Fever, evaluate for pneumonia."),
        ("S02", "findings", "Stable small left effusion."),
        ("S03", "findings", "Heart size is normal."),
        ("S04", "impression", "The XXXX is unchanged."),
    ]
    assert extraction.silent == ("S04",)
    effusion, heart = extraction.observations
    assert effusion.entity == ("pleural effusion",) and effusion.sentence_ids == ("S02",)
    assert effusion.regions == ("left pleural space",) and effusion.modifiers == (
        ("severity", "small"),
    )
    assert (effusion.positive, effusion.certainty, effusion.probability) == (True, "certain", "1")
    assert not heart.positive
    # "PA view." stands nowhere in what came back.
    assert extraction.left_out == {extracting.LEFT_OUT: 1, extracting.MERGED: 1}
    assert "PA view." in asked(where.bodies[0])
    indication = next(b for b in where.bodies if stage_of(b) == "indication")
    assert "S02 (findings): Stable small left effusion." in asked(indication).splitlines()


def test_the_graph_maps_free_values(chat, client, how):
    with chat.Server(reader(chat)) as where:
        how = type(how)(extractor=LanguageModelExtractor(client(where)))
        quality = QualityLog()
        study = Study("p1", "s1", REPORT, (StudyImage("i", (1000, 1000), "PA"),))
        graph = construct_graph(study, how, quality)
    assert graph.observations["O01"].obs_entities == ["pleural effusion"]
    assert graph.observations["O01"].region_names == ["left pleural space"]
    assert graph.observations["O02"].obs_entities == ["cardiomegaly"]
    assert graph.indication.associated_sentence_ids == ["S02"]
    assert graph.indication.associated_obs_ids == ["O01"]
    answer = graph.indication.answer_for_indication
    assert answer.summary_sentence == GOOD_INDICATION["answer_for_indication"]
    assert quality.warnings[extracting.LEFT_OUT] == 1


@pytest.mark.parametrize(
    ("probability", "positive", "certainty"),
    [
        (0, False, "certain"),
        (0.2, False, "likely"),
        (0.5, True, "uncertain"),
        (0.8, True, "likely"),
    ],
)
def test_a_probability_is_polarity_and_certainty(chat, client, probability, positive, certainty):
    def other(stage, text, often):
        if text == "Stable small left effusion.":
            return {"observations": [observation(probability=probability)]}

    with chat.Server(reader(chat, other)) as where:
        found = LanguageModelExtractor(client(where)).extract(REPORT).observations[0]
    assert (found.positive, found.certainty) == (positive, certainty)


NESTED = observation(children=[observation(children=[observation(children=[observation()])])])
WRONG = [
    ("sentences", sentences(("findings", "There is a small effusion.", []))),
    ("sentences", sentences(("findings", "Heart size is normal.", ["No effusion."]))),
    # Words of two sections do not make a sentence.
    ("sentences", sentences(("findings", "PA view. 1. Left effusion.", []))),
    ("sentences", sentences(("findings", " . ", []))),
    ("sentences", sentences(("indication", "Fever, evaluate for pneumonia.", []))),
    ("sentences", sentences(("technique", "PA view.", []))),
    ("sentences", "no json"),
    ("indication", GOOD_INDICATION | {"answer_sentence_ids": ["S09"]}),
    ("indication", GOOD_INDICATION | {"answer_sentence_ids": ["S01"]}),
    ("indication", GOOD_INDICATION | {"answer_sentence_ids": []}),
    ("indication", GOOD_INDICATION | {"indication_summary": " "}),
    ("observations", {"observations": [observation(probability=1.5)]}),
    ("observations", {"observations": [observation(probability=-0.1)]}),
    ("observations", '{"observations": [' + json.dumps(observation(probability=0)) + "]"),
    ("observations", {"observations": [observation(entity=[" "])]}),
    ("observations", {"observations": [observation(name="")]}),
    ("observations", {"observations": [observation(side="west")]}),
    ("observations", {"observations": [observation(certainty="high")]}),
    ("observations", {"observations": [NESTED]}),
]


@pytest.mark.parametrize(("stage", "content"), WRONG)
def test_what_is_wrong_is_asked_for_again(chat, client, stage, content):
    with chat.Server(reader(chat)) as where:
        good = LanguageModelExtractor(client(where)).extract(REPORT)

    def first(of, text, often):
        return content if of == stage and not often else None

    # Another model's name: the cache does not know it.
    with chat.Server(reader(chat, first)) as where:
        again = LanguageModelExtractor(client(where, model="n")).extract(REPORT)
    assert again == good
    assert len(where.bodies) == 6
    told = next(b for b in where.bodies if len(b["messages"]) > 2 and "cannot be used" in asked(b))
    assert stage_of(told) == stage


def test_refused_observations_set_the_study_aside_and_refused_indications_do_not(chat, client):
    def refuse(which):
        return lambda stage, text, often: chat.Text(None, refusal="no") if stage == which else None

    for which, model in (("observations", "a"), ("sentences", "b")):
        with chat.Server(reader(chat, refuse(which))) as where:
            with pytest.raises(Unusable) as fault:
                LanguageModelExtractor(client(where, model=model)).extract(REPORT)
            assert fault.value.reason == "generator_failed"
            assert fault.value.found == f"{which}: refusal"
    with chat.Server(reader(chat, refuse("indication"))) as where:
        extraction = LanguageModelExtractor(client(where, model="c")).extract(REPORT)
    assert extraction.indication is None and len(extraction.observations) == 2
    assert extraction.left_out[extracting.NO_INDICATION] == 1


def test_mentions_of_change_are_asked_away_or_counted(chat, client):
    changed = {"observations": [observation(name="New left effusion")]}

    def stubborn(stage, text, often):
        if stage == "observations" and ("Stable" in text or "compare with an" in text):
            return changed

    def willing(stage, text, often):
        if text == "Stable small left effusion.":
            return changed
        if "compare with an" in text:
            assert "New left effusion" in text
            return {"observations": [observation()]}

    with chat.Server(reader(chat, stubborn)) as where:
        extraction = LanguageModelExtractor(client(where)).extract(REPORT)
    assert extraction.observations[0].name == "New left effusion"
    assert extraction.left_out[extracting.CHANGE_KEPT] == 1
    with chat.Server(reader(chat, willing)) as where:
        extraction = LanguageModelExtractor(client(where, model="n")).extract(REPORT)
    assert extraction.observations[0].name == "Small left pleural effusion"
    assert extracting.CHANGE_KEPT not in extraction.left_out


def test_an_answer_that_compares_is_replaced(chat, client):
    comparing = GOOD_INDICATION | {"answer_for_indication": "The effusion is unchanged."}
    script = reader(chat, lambda stage, *_: comparing if stage == "indication" else None)
    with chat.Server(script) as where:
        extraction = LanguageModelExtractor(client(where)).extract(REPORT)
    assert extraction.indication.answer == ""
    assert extraction.left_out[extracting.ANSWER_REPLACED] == 1


def test_too_long_and_empty_reports_are_not_sent(chat, client):
    with chat.Server(reader(chat)) as where:
        extractor = LanguageModelExtractor(client(where))
        for sections, reason in (
            ({"findings": "Clear. " * 20_000}, "report_too_long"),
            ({"indication": "Cough."}, "empty_report"),
        ):
            with pytest.raises(Unusable) as fault:
                extractor.extract(Report(sections))
            assert fault.value.reason == reason
    assert not where.bodies


def test_a_busy_server_is_waited_for_and_a_dead_one_stops_the_run(chat, client):
    def busy(stage, text, often):
        return chat.Status(503) if not often else None

    with chat.Server(reader(chat, busy)) as where:
        assert LanguageModelExtractor(client(where)).extract(REPORT).observations
    reports = [Report({"findings": f"Nodule number {n}."}) for n in range(30)]
    with chat.Server(lambda body, number: chat.Status(500)) as where:
        extractor = LanguageModelExtractor(client(where, model="n", attempts=2))
        with pytest.raises(UserError, match="requests in a row failed"):
            extractor.ask_ahead(reports)


def test_nothing_leaves_the_machine_unasked(tmp_path, graph_of, how):
    settings = Settings(base_url="https://example.invalid/v1", model="m")
    away = Client(settings, AnswerCache(tmp_path / "answers.jsonl"))
    with pytest.raises(UserError, match=r"1 requests with text of radiology reports"):
        LanguageModelExtractor(away).require_permission([REPORT, Report({})])
    graph = graph_of("Small left effusion.")
    made = construct_questions(graph, MentionCounts(), how)
    with pytest.raises(UserError, match=r"requests with text of radiology reports to example"):
        LanguageModelRater(away).require_permission([(graph, made)])
    for call in (
        lambda: LanguageModelExtractor(away).extract(REPORT),
        lambda: LanguageModelRater(away).rate(graph, made, QualityLog()),
    ):
        with pytest.raises(UserError, match="sending to example.invalid is not allowed"):
            call()


# --- verdicts ---


def numbers(text):
    return [int(n) for n in re.findall(r"^(\d+) \(", text, re.MULTILINE)]


def judge(chat, wrong=None):
    """The best verdict on everything; `wrong(stage, text)` may give another."""

    def script(body, number):
        stage, text = stage_of(body), asked(body)
        said = wrong and wrong(stage, text, len(body["messages"]))
        if said is not None:
            return said if not isinstance(said, str | dict) else _text(chat, said)
        if stage in QUESTION_CRITERIA:
            return _text(chat, {"verdict": next(iter(QUESTION_CRITERIA[stage]))})
        listed = next(m["content"] for m in reversed(body["messages"]) if numbers(m["content"]))
        best = next(iter(ANSWER_CRITERIA[stage]))
        # In another order: numbers decide.
        rows = [{"number": n, "verdict": best} for n in reversed(numbers(listed))]
        return _text(chat, {"verdicts": rows})

    return script


@pytest.fixture
def some(graph_of, how):
    """A graph and four of its questions, one with several answers."""
    graph = graph_of("Small left effusion. Heart size is normal.", indication="Fever.")
    made = construct_questions(graph, MentionCounts(), how)
    made.questions = (
        sorted(made.questions, key=lambda q: -len(list(q.all_answers())))[:2]
        + [q for q in made.questions if len(list(q.all_answers())) == 1][:2]
    )
    assert len(list(made.questions[0].all_answers())) > 2
    return graph, made


def test_each_criterion_is_asked_with_its_context(chat, client, some):
    graph, made = some
    with chat.Server(judge(chat)) as where:
        quality = QualityLog()
        LanguageModelRater(client(where)).rate(graph, made, quality)
    # A question is asked about its wording once, wherever it stands.
    assert quality.examined["verdicts of a language model"] == 5 * len(made.questions)
    contexts = {}
    for body in where.bodies:
        text = asked(body)
        contexts[stage_of(body)] = (
            "FINDINGS: Small left effusion. Heart size is normal." in text,
            "Question: " in text,
            bool(numbers(text)),
        )
    assert contexts == {
        "entailment": (True, True, True),
        "relevance": (False, True, True),
        "completeness": (False, True, True),
        "question_clarity": (False, True, False),
        "answer_clarity": (False, False, True),
    }
    for question in made.questions:
        assert {c: question.question_quality[c] for c in QUESTION_CRITERIA} == {
            "completeness": "FULLY_COMPLETE",
            "question_clarity": "OPTIMAL",
        }
        assert all(
            answer.answer_quality
            == {
                "entailment": "ALIGNED_MENTIONED",
                "relevance": "RELEVANT_MAIN_ANSWER",
                "answer_clarity": "OPTIMAL",
            }
            for answer in question.all_answers()
        )
        assert overall_grade(question) != "unrated"
    assert not quality.warnings


def test_verdicts_go_to_their_answers(chat, client, some):
    graph, made = some
    target = made.questions[0]

    def one_bad(stage, text, turns):
        if stage == "entailment" and target.question in text:
            rows = [
                {
                    "number": n,
                    "verdict": "NON_ALIGNED_CONTRADICTING" if n == 2 else "ALIGNED_MENTIONED",
                }
                for n in numbers(text)
            ]
            return {"verdicts": rows}

    with chat.Server(judge(chat, one_bad)) as where:
        LanguageModelRater(client(where)).rate(graph, made, QualityLog())
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
def test_wrong_verdicts_are_asked_for_again(chat, client, some, wrong):
    graph, made = some
    made.questions = made.questions[:1]
    first = 2 + 2 * len(RATE["entailment"]["demonstrations"])

    def once(stage, text, turns):
        return wrong if stage == "entailment" and turns == first else None

    with chat.Server(judge(chat, once)) as where:
        quality = QualityLog()
        LanguageModelRater(client(where)).rate(graph, made, quality)
    assert len(where.bodies) == 6 and not quality.warnings
    assert overall_grade(made.questions[0]) != "unrated"


def test_failures_are_counted_and_leave_the_question_unrated(chat, client, some):
    graph, made = some
    made.questions = made.questions[:1]

    def failing(stage, text, turns):
        if stage == "relevance":
            return chat.Text(None, refusal="no")
        return "never json" if stage == "question_clarity" else None

    with chat.Server(judge(chat, failing)) as where:
        quality = QualityLog()
        LanguageModelRater(client(where)).rate(graph, made, quality)
    (question,) = made.questions
    assert quality.warnings == {
        "relevance left unrated: refusal": 1,
        "question_clarity left unrated: invalid_json": 1,
    }
    assert overall_grade(question) == "unrated"
    assert "completeness" in question.question_quality
    assert all("relevance" not in answer.answer_quality for answer in question.all_answers())


# --- demonstrations ---


def test_demonstrations_pass_the_checks_that_answers_must_pass():
    for shown in EXTRACT["sentences"]["demonstrations"]:
        parts = dict(re.findall(r"^([A-Z]+):\n(.*?)(?=\n\n|\Z)", shown["user"], re.S | re.M))
        report = Report({name.lower(): text for name, text in parts.items()})
        assert set(report.sections) == {"indication", "findings", "impression"}
        read = answers.ReadSentences.model_validate_json(shown["assistant"])
        answers.sentence_check(report)(read)
    for shown in EXTRACT["indication"]["demonstrations"]:
        rows = re.findall(r"^(S\d+) \((\w+)\): (.*)$", shown["user"], re.M)
        told = [
            Sentence(sent_id, section, section.upper(), text) for sent_id, section, text in rows
        ]
        answers.indication_check(told)(
            answers.ReadIndication.model_validate_json(shown["assistant"])
        )
    for shown in EXTRACT["observations"]["demonstrations"]:
        read = answers.ReadObservations.model_validate_json(shown["assistant"])
        answers.check_observations(read)
        assert not answers.comparing(read.observations)


@pytest.mark.parametrize("criterion", list(rating.CRITERIA))
def test_criteria_name_all_verdicts_and_show_valid_ones(criterion):
    stage = RATE[criterion]
    named = re.findall(r"^- ([A-Z_]+):", stage["system"], re.M)
    assert named == list(rating.CRITERIA[criterion])
    for shown in stage["demonstrations"]:
        read = verdict_form(criterion).model_validate_json(shown["assistant"])
        if criterion in ANSWER_CRITERIA:
            assert [one.number for one in read.verdicts] == numbers(shown["user"])


# --- the command ---


class Rules:
    """A server's script that reads as the rules do, in the form that is asked for."""

    def __init__(self, chat):
        self.chat = chat
        self.extractor = RuleExtractor()
        self.judge = judge(chat)

    def __call__(self, body, number):
        stage, text = stage_of(body), asked(body)
        if stage in RATE:
            return self.judge(body, number)
        return _text(self.chat, getattr(self, stage)(text))

    def sentences(self, text):
        rows = []
        for part in re.split(r"\n\n(?=[A-Z]+:\n)", text):
            heading, _, content = part.partition(":\n")
            rows += [(heading.lower(), one, []) for one in split_text(content)]
        return sentences(*rows)

    def indication(self, text):
        return GOOD_INDICATION | {"answer_sentence_ids": [], "answer_for_indication": ""}

    def observations(self, text):
        return {"observations": [self._one(o) for o in self.extractor.read_sentence(text)]}

    def _one(self, found):
        kinds = ("temporal", "severity", "texture", "spread")
        sure = {"certain": 1.0, "likely": 0.8, "unlikely": 0.7, "uncertain": 0.5}[found.certainty]
        return observation(
            name=found.name,
            summary_sentence=found.summary_sentence,
            entity=list(found.entity),
            regions=list(found.regions),
            side=found.side,
            probability=sure if found.positive else 1 - sure,
            modifiers={kind: [v for k, v in found.modifiers if k == kind] for kind in kinds},
            change=list(found.change),
            change_sentence=found.change_sentence,
            children=[self._one(child) for child in found.children],
        )


def entities(folder):
    found = {}
    for path in sorted((folder / "native").rglob("*.scene_graph.json")):
        graph = json.loads(path.read_text())
        found[path.name] = {
            (entity, o["positiveness"])
            for o in graph["observations"].values()
            for entity in o["obs_entities"]
        }
    return found


def test_the_build_command_reads_and_rates(chat, sample, tmp_path, capsys):
    # A report without a split for the third study, to keep the rating small.
    source = tmp_path / "in"
    source.mkdir()
    line = (sample / "reports" / "studies.jsonl").read_text().splitlines()[1]
    (source / "studies.jsonl").write_text(line + "\n")
    build_cxr_qba(QBABuild(source, tmp_path / "rules"))
    out = tmp_path / "out"
    with chat.Server(Rules(chat)) as where:
        flags = ["--dataset=cxr_qba", f"--source={source}", f"--out={out}"]
        flags += ["--generator=language_model", "--rate_with=language_model"]
        flags += [f"--base_url={where.url}", "--model=m", "--least_grade=B"]
        main([*flags, "--dry_run"])
        printed = capsys.readouterr().out
        assert not where.bodies and not (out / "records").exists()
        planned = int(re.search(r"reading: ([\d,]+) requests", printed)[1].replace(",", ""))
        verdicts = int(re.search(r"rating: ([\d,]+) requests", printed)[1].replace(",", ""))
        main(flags)
        stages = collections.Counter(map(stage_of, where.bodies))
        # Four sentences of findings and one of the impression.
        assert planned == stages["sentences"] + stages["observations"] == 6
        account = json.loads(capsys.readouterr().out.splitlines()[0])["m"]
        assert account["requests"] == len(where.bodies)
        sent = len(where.bodies)
        main(flags)
        assert len(where.bodies) == sent  # all is in the cache
    assert entities(out) == entities(tmp_path / "rules")
    (records,) = ([*read_records(out / "records" / "train.jsonl")],)
    assert records and all(r.grade in ("A++", "A+", "A", "B") for r in records)
    assert all(r.generator.name == "m" for r in records)
    assert not any("surrogate_grade" in r.quality for r in records)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["grades"] == "language_model"
    assert manifest["rater"] == manifest["extractor"] == {"name": "m", "version": "prompt 1"}
    quality = json.loads((out / "quality.json").read_text())
    assert quality["examined"]["verdicts of a language model"] == verdicts
    statistics = json.loads((out / "statistics.json").read_text())
    assert statistics["grade/unrated"]["value"] == 0
    native = json.loads(next((out / "native").rglob("*.qa.json")).read_text())
    assert "entailment" in native["questions"][0]["answers"][0]["answer_quality"]
    assert "completeness" in native["questions"][0]["question_quality"]


def test_a_study_that_the_model_refuses_is_set_aside(chat, sample, tmp_path):
    rules = Rules(chat)

    def script(body, number):
        if "granulomas" in asked(body) and stage_of(body) == "observations":
            return chat.Text(None, refusal="no")
        return rules(body, number)

    with chat.Server(script) as where:
        main(
            ["--dataset=cxr_qba", f"--source={sample / 'reports'}", f"--out={tmp_path}"]
            + ["--generator=language_model", f"--base_url={where.url}", "--model=m"]
        )
    quality = json.loads((tmp_path / "quality.json").read_text())
    (entry,) = (e for e in quality["set_aside"] if e["reason"] == "generator_failed")
    assert (entry["item"], entry["found"]) == ("s59990003", "observations: refusal")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["grades"] == "unrated" and "rater" not in manifest


def test_raters_exclude_each_other_and_a_release_is_read_as_it_is(
    chat, client, sample, tmp_path, capsys
):
    for flags in (["--surrogate"], ["--rate_with=both"]):
        with pytest.raises(SystemExit):
            parse_arguments(["--dataset=cxr_qba", "--source=x", "--out=y", *flags])
    with chat.Server(judge(chat)) as where:
        rater = LanguageModelRater(client(where))
        with pytest.raises(UserError, match="not by both"):
            build_cxr_qba(
                QBABuild(sample / "reports", tmp_path / "out", surrogate=True), rater=rater
            )
        with pytest.raises(UserError, match="the release is read as it is"):
            build_cxr_qba(QBABuild(sample / "release", tmp_path / "out"), rater=rater)
    assert not where.bodies and not (tmp_path / "out").exists()


def test_planned_requests_ask_about_a_sentence_once():
    same = Report({"findings": "Clear lungs. Small left effusion.", "indication": "Cough."})
    planned = list(extracting.planned_requests([same, same, Report({})]))
    # Twice sentences and indication, two different sentences.
    assert len(planned) == 6
    assert len(split_report(same)) == 3
