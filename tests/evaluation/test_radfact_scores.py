"""RadFact of answers: the published example, what is undefined there, and the command."""

import json

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation.counted import Counted
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.evaluation.text_scores.comparison import compare_texts
from cxrjax.evaluation.text_scores.radfact import TextPair, radfact_columns, radfact_figures
from cxrjax.evaluation.text_scores.sentences import GroundedSentence, ReferenceText
from cxrjax.language_model.judges.judge import Entailment, Facts
from cxrjax.language_model.judges.surrogate import SurrogateJudge
from cxrjax.metrics.bootstrap import Bootstrap, resample
from cxrjax.records import write_records
from tests.evaluation import made

CASES = made.cases_of(__file__)

NO_BOX = np.zeros((0, 4))
CAT, DOG, BIRD = (np.array([[x, x, x + 0.1, x + 0.1]]) for x in (0.1, 0.3, 0.5))


class WordJudge:
    """Facts are sentences; a fact is entailed by the same words. Fails where it is told to."""

    name, surrogate, datasets, entails = "words", False, (), True

    def __init__(self, fails_apart=(), fails_at=()):
        self.judgements, self._apart, self._at = [], fails_apart, fails_at

    def facts(self, texts):
        return [
            Facts((), lang, "refusal") if text in self._apart else Facts((text,), lang)
            for text, lang in texts
        ]

    def entail(self, queries):
        return [
            Entailment((), "truncated")
            if fact in self._at
            else Entailment(tuple(n for n, one in enumerate(known) if one == fact))
            for fact, known, _ in queries
        ]


def scored(pairs, judge=None):
    judge = judge or WordJudge()
    columns, failures = radfact_columns(judge, "s", pairs)
    clusters = [("image", str(n)) for n in range(len(pairs))]
    drawn = resample(columns, clusters, Bootstrap(resamples=0))
    found = {
        protocol: {name.removeprefix("radfact/"): drawn.estimate(f) for name, f in named.items()}
        for protocol, named in radfact_figures(judge).items()
    }
    return found, failures, judge


def values(figures):
    return {name: figure.value for name, figure in figures.items()}


def said(*sentences):
    return [GroundedSentence(text, boxes) for text, boxes in sentences]


EXAMPLE = TextPair(
    "q",
    said(
        ("The cat", CAT),
        ("The dog", np.concatenate([DOG, BIRD])),
        ("The bird", NO_BOX),
        ("The rabbit", NO_BOX),
    ),
    said(("The cat", CAT), ("The dog", DOG), ("The bird", BIRD), ("The shark", NO_BOX)),
)


@pytest.mark.parametrize("protocol", ["paper", "strict"])
def test_the_published_example(protocol):
    """github.com/microsoft/RadFact, tests/metric/test_radfact.py."""
    found, failures, judge = scored([EXAMPLE])
    assert values(found[protocol]) == pytest.approx(CASES["published_example"])
    assert failures == [None]
    (line,) = judge.judgements
    assert line["task"] == "entailment" and line["question_id"] == "q"
    assert [fact["evidence"] for fact in line["predicted"]] == [[0], [1], [2], []]


def test_who_says_nothing_or_shows_nothing_gains_nothing_under_strict():
    silent = TextPair("q2", [], EXAMPLE.true)
    found, _, _ = scored([EXAMPLE, silent])
    paper, strict = values(found["paper"]), values(found["strict"])
    # Left out of the means of precision there, as undefined; here it is 0.
    assert paper["logical_precision"] == 0.75 and strict["logical_precision"] == 0.375
    assert paper["logical_recall"] == strict["logical_recall"] == 0.375
    assert paper["spatial_precision"] == 0.5 and strict["spatial_precision"] == 0.25
    assert found["paper"]["logical_precision"].n == 1
    assert found["strict"]["logical_precision"].n == 2
    # An F1 of what is undefined is undefined there.
    found, _, _ = scored([silent])
    assert values(found["paper"])["logical_f1"] is None
    assert values(found["strict"])["logical_f1"] == 0.0
    # Nothing beside nothing, and no box on either side.
    normal = TextPair("q3", [], [])
    found, _, _ = scored([normal])
    assert values(found["strict"])["logical_f1"] == 1.0
    assert values(found["strict"])["spatial_f1"] is None
    assert values(found["paper"])["logical_f1"] is None


def test_repeats_gain_nothing_and_denials_have_no_boxes():
    again = EXAMPLE._replace(predicted=[*EXAMPLE.predicted, *[EXAMPLE.predicted[0]] * 9])
    assert values(scored([again])[0]["strict"]) == values(scored([EXAMPLE])[0]["strict"])
    pair = TextPair(
        "q",
        said(("No pleural effusion.", CAT), ("Cardiomegaly.", CAT)),
        said(("Cardiomegaly.", CAT)),
    )
    found, _, _ = scored([pair], SurrogateJudge())
    named = {
        name.removeprefix("surrogate/radfact/"): f.value for name, f in found["strict"].items()
    }
    assert named["logical_precision"] == 0.5 and named["spatial_precision"] == 1.0


def test_what_the_judge_fails_at():
    pairs = [EXAMPLE, EXAMPLE._replace(question_id="q2", predicted=said(("The fox", CAT)))]
    found, failures, _ = scored(pairs, WordJudge(fails_apart=["The fox"]))
    assert failures == [None, "refusal"]
    # As RadFact does, the sample is left out; under strict it is worth nothing.
    assert values(found["paper"])["logical_precision"] == 0.75
    assert values(found["paper"])["logical_recall"] == 0.75
    assert values(found["strict"])["logical_precision"] == 0.375
    assert values(found["strict"])["spatial_recall"] == pytest.approx(1 / 3)
    assert values(found["paper"])["judge_failure_rate"] == 0.5
    # A fact that it fails at is not entailed.
    found, failures, _ = scored([EXAMPLE], WordJudge(fails_at=["The cat"]))
    assert failures == ["truncated"]
    assert values(found["paper"])["logical_precision"] == 0.5


def test_questions_are_the_last_units():
    """Of a benchmark that counts images before its questions."""
    options = ScoreOptions(gt_mode="exact", judge=WordJudge())
    text = ReferenceText(tuple(EXAMPLE.true), "en", (100, 100), CODECS["vindr_px"])
    line = Prediction("b", "The cat", CAT, None, "ok")
    counted = Counted({"images": np.array([1.0, 1, 0, 0, 0])}, {"paper": {}, "strict": {}}, {})
    found, about = compare_texts({"s": counted}, list("abc"), {"s": [line]}, {"b": text}, options)
    columns = found["s"].columns
    assert columns["radfact/asked"].tolist() == [0, 0, 0, 1, 0]
    assert columns["radfact/strict/logical_recall"].tolist() == [0, 0, 0, 0.25, 0]
    assert about == {"radfact": "judged"} and found["s"].problems["judge_failure/refusal"] == 0


@pytest.fixture
def own(tmp_path):
    """Records of our own, and predictions that repeat them but for one box on the wrong side."""
    left, right = [60, 40, 90, 80], [10, 40, 40, 80]
    shared = {"kind": "What", "dataset": "custom", "image_hw": (100, 100)}
    records = [
        made.record_of(image, 0, "", [box], [label], answer={"text": text}, **shared)
        for image, text, label, box in (
            ("i0", "Left pleural effusion.", "Effusion", left),
            ("i1", "Right lung opacity.", "Opacity", right),
        )
    ]
    write_records(tmp_path / "records.jsonl", records)
    said = (np.array([left]) / 100).tolist()
    lines = [made.line_of(record, record.answer_text, said) for record in records]
    made.write_lines(tmp_path / "said.jsonl", lines)
    return tmp_path


def _score(folder, **flags):
    metrics, tables = made.run_score(folder, "said", benchmark="own", **flags)
    return metrics["said"]["strict"], tables


def test_score_prints_it_with_the_readers_errors(own, capsys):
    metrics, _ = _score(own, judge="surrogate")
    assert metrics["surrogate/radfact/logical_f1"]["value"] == 1.0
    assert metrics["surrogate/radfact/logical_f1"]["n"] == 2
    # Units of this benchmark are images, then questions: the one box is the second question's.
    assert metrics["surrogate/radfact/spatial_precision"]["value"] == 0.5
    assert metrics["surrogate/radfact/grounding_recall"]["value"] == 0.5
    assert not any(name.startswith("radfact/") for name in metrics)
    printed = capsys.readouterr().out
    assert "| Surrogate of spatial F1 | 0.500" in printed
    assert "this is no RadFact: Report sentences are read by rules;" in printed
    lines = made.read_lines(own / "out/judgements.jsonl")
    assert [line["task"] for line in lines] == ["entailment"] * 2
    assert made.read_json(own / "out/score.json")["radfact"] == "surrogate"


def _reply(body):
    asked = body["messages"][-1]["content"]
    if asked.startswith("<text>"):
        return json.dumps({"facts": [asked.removeprefix("<text>").removesuffix(".</text>")]})
    known, fact = asked.split("\n\n")
    fact = fact.removeprefix("<fact>").removesuffix("</fact>")
    lines = known.splitlines()
    return json.dumps({"evidence": [n for n, k in enumerate(lines, 1) if k == f"K{n}: {fact}"]})


def test_verdicts_are_kept_and_replayed(own, chat):
    with chat.Server(lambda body, _: chat.Text(_reply(body))) as there:
        found, _ = _score(own, judge="language_model", base_url=there.url, model="m")
        asked = len(there.bodies)
    written = (own / "out/metrics.json").read_bytes()
    assert found["radfact/logical_f1"]["value"] == 1.0
    assert found["radfact/spatial_f1"]["value"] == 0.5
    # Two texts that are the reference's too, and each fact once: both sides say the same.
    assert asked == 4
    kept = own / "out/verdicts.jsonl"
    _, tables = _score(own, judge="replay", verdicts=kept)
    assert (own / "out/metrics.json").read_bytes() == written
    assert "| Spatial F1 | 0.500" in tables and "Surrogate of" not in tables
    # Verdicts of before there was RadFact.
    old = own / "old.jsonl"
    lines = kept.read_text().splitlines(keepends=True)
    old.write_text("".join(line for line in lines if '"entailment"' not in line))
    _, tables = _score(own, judge="replay", verdicts=old)
    assert "RadFact is left out: the verdicts" in tables
    assert "radfact/logical_f1" not in (own / "out/metrics.json").read_text()
    # Some of them alone are none.
    old.write_text("".join(line for line in lines if line is not lines[-1]))
    with pytest.raises(UserError, match="1 of entailment are missing"):
        _score(own, judge="replay", verdicts=old)


def test_evidence_beyond_the_list_is_asked_for_again(own, chat):
    def answer(body, number):
        if "<fact>" in str(body["messages"][-1]["content"]) and not seen:
            seen.append(number)
            return chat.Text('{"evidence": [7]}')
        told = body["messages"][-1]["content"]
        if "That answer cannot be used: K7: the list ends at K1" in told:
            return chat.Text('{"evidence": [1]}')
        return chat.Text(_reply(body))

    seen = []
    with chat.Server(answer) as there:
        flags = {"judge": "language_model", "base_url": there.url, "model": "m"}
        found, _ = _score(own, concurrency=1, **flags)
    assert seen and found["radfact/logical_f1"]["value"] == 1.0
