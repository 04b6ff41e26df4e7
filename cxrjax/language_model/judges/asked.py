"""A language model as the judge: asked over HTTP, or replayed from the verdicts it gave.

Each distinct sample is judged once, ratings in both orders. A verdict is on the disk before it is
used, and so is a failure that asking again would repeat; one of the server is not, and is asked
again in the next run.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

import pydantic

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import Fields, KeyedLines, read_packaged
from cxrjax.language_model.client import Client
from cxrjax.language_model.judges.judge import (
    FAILURES,
    Entailment,
    FactMatch,
    Facts,
    Marks,
    RelativeScore,
    Sample,
    score_line,
)
from cxrjax.language_model.request import SERVICE_FAILURES, NoAnswer, Request
from cxrjax.language_model.stage import Stage, Strict, make_request
from cxrjax.progress import progress_bar
from cxrjax.radiology_text.facts import one_to_one

Verdict = dict[str, Any]
_FIELDS = ("judge", "task", "prompt", "verdict")


def verdict_key(prompt: str, judge: str, sample: Mapping[str, Any]) -> str:
    """SHA-256 of what decides a verdict.

    Args:
        prompt: all that the judge is told besides the sample.
        judge: its name.
        sample: what is judged.
    """
    text = json.dumps([prompt, judge, sample], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class VerdictStore(KeyedLines[Fields]):
    """Verdicts by their keys.

    Args:
        path: created if missing, unless `replay`.
        replay: the file must exist.

    Raises:
        UserError: it cannot be used, or holds something else.
    """

    def __init__(self, path: Path, replay: bool = False) -> None:
        if replay and not path.is_file():
            raise UserError(
                f"{path}: no such file; --judge=replay needs the verdicts of an earlier "
                "--judge=language_model"
            )
        super().__init__(path, "--verdicts", "verdict", _checked, dict)

    def verdict(self, key: str) -> Verdict | None:
        """Returns the verdict under this key, or None."""
        fields = self.get(key)
        return None if fields is None else fields["verdict"]

    def keep(self, key: str, judge: str, task: str, prompt: str, verdict: Verdict) -> None:
        """Stores a verdict; on the disk when this returns.

        Raises:
            UserError: the disk takes no more.
        """
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        self.put(key, {"judge": judge, "task": task, "prompt": digest, "verdict": verdict})

    def holds(self, task: str) -> bool:
        """Returns whether the store has verdicts of a task."""
        return any(line and line["task"] == task for line in map(self.get, self))

    def judges(self) -> list[str]:
        """Returns names of the judges, in order of their first verdict."""
        return list(dict.fromkeys(line["judge"] for line in map(self.get, self) if line))


def _checked(fields: Fields) -> Fields:
    verdict = fields["verdict"]
    if not isinstance(verdict, dict):
        raise ValueError("the verdict is not an object")
    if not all(isinstance(fields[name], str) for name in _FIELDS[:3]):
        raise ValueError("not a line of verdicts")
    if verdict.keys() == {"failure"} and verdict["failure"] in list(FAILURES):
        return fields
    try:
        _FORMS[fields["task"]].model_validate(verdict, strict=True)
    except (KeyError, pydantic.ValidationError):
        raise ForeignError("no verdict of this task") from None
    return fields


PROMPT = "judge_prompts_v1"
CONTENT = "questions, reports and answers"
MAX_CHARACTERS = 20_000  # of one request; who writes more has lost the thread
# Tasks, and tokens of a good answer, for estimates.
RELATIVE_SCORE, FACTS, FACT_MATCHING = "relative_score", "facts", "fact_matching"
ENTAILMENT = "entailment"
_USUAL_TOKENS = {RELATIVE_SCORE: 70, FACTS: 200, FACT_MATCHING: 100, ENTAILMENT: 20}
_Mark = Annotated[int, pydantic.Field(ge=1, le=10)]
_Fact = Annotated[str, pydantic.Field(min_length=1, max_length=1000)]


class _Rating(Strict):
    accuracy: _Mark
    relevance: _Mark
    helpfulness: _Mark
    overall: _Mark


class _Ratings(Strict):
    first: _Rating
    second: _Rating


class _FactList(Strict):
    facts: list[_Fact]


class _SamePair(Strict):
    a: int
    b: int


class _SamePairs(Strict):
    same: list[_SamePair]


class _Evidence(Strict):
    evidence: list[int]


_FORMS: dict[str, type[pydantic.BaseModel]] = {
    RELATIVE_SCORE: _Ratings,
    FACTS: _FactList,
    FACT_MATCHING: _SamePairs,
    ENTAILMENT: _Evidence,
}


class LanguageModelJudge:
    """Asks a language model, or replays what it said.

    Args:
        name: of the judge, part of every verdict's key.
        store: verdicts so far.
        client: None: replay, nothing is asked.
        dry_run: ask nothing, count in `planned` what would be asked; every verdict is a failure.

    Attributes:
        planned: what a dry run found, task by task.
        datasets, entails, judgements: as in `Judge`.
    """

    surrogate = False

    def __init__(
        self, name: str, store: VerdictStore, client: Client | None, dry_run: bool = False
    ) -> None:
        self.name = name
        self.planned: dict[str, str] = {}
        self.datasets: tuple[str, ...] = ()
        self.entails = client is not None or store.holds(ENTAILMENT)
        self.judgements: list[dict[str, Any]] = []
        self._store = store
        self._client = client
        self._dry_run = dry_run

    def relative_scores(self, samples: Sequence[Sample]) -> list[RelativeScore]:
        """Marks of each sample in both orders.

        Raises:
            UserError: a verdict is missing in a replay, sending is not allowed, the cost limit is
                reached, or the server is unusable.
        """
        inputs = [_rated(sample, swapped) for sample in samples for swapped in (False, True)]
        verdicts = iter(self._verdicts(RELATIVE_SCORE, inputs))
        scores = [
            RelativeScore(_marks(next(verdicts), "first"), _marks(next(verdicts), "second"))
            for _ in samples
        ]
        self.judgements += map(score_line, repeat(self), samples, scores)
        return scores

    def facts(self, texts: Sequence[tuple[str, str]]) -> list[Facts]:
        """Facts of each (text, language); a blank text has none, and nothing is asked about it.

        Raises:
            UserError: as `relative_scores`.
        """
        said = [text for text, _ in texts if text.strip()]
        verdicts = iter(self._verdicts(FACTS, [{"text": text} for text in said]))
        return [
            _facts(next(verdicts), lang) if text.strip() else Facts((), lang)
            for text, lang in texts
        ]

    def match(self, pairs: Sequence[tuple[Facts, Facts]]) -> list[FactMatch]:
        """Facts that say the same, as the judge names them; where it gives a fact to several, as
        many pairs as go one to one.

        Raises:
            UserError: as `relative_scores`.
        """
        inputs = [
            {"a": list(predicted.items), "b": list(true.items)}
            for predicted, true in pairs
            if predicted.items and true.items
        ]
        verdicts = iter(self._verdicts(FACT_MATCHING, inputs))
        matched = []
        for predicted, true in pairs:
            failure = predicted.failure or true.failure
            same: tuple[tuple[int, int], ...] = ()
            if predicted.items and true.items:
                verdict = next(verdicts)
                failure = failure or verdict.get("failure")
                named = [(one["a"] - 1, one["b"] - 1) for one in verdict.get("same", ())]
                ends = len(predicted.items), len(true.items)
                if not all(a in range(ends[0]) and b in range(ends[1]) for a, b in named):
                    raise self._beyond_the_end(FACT_MATCHING)
                same = one_to_one(named)
            matched.append(FactMatch(predicted, true, same, failure))
        return matched

    def entail(self, queries: Sequence[tuple[str, tuple[str, ...], str]]) -> list[Entailment]:
        """The premises that entail each fact, as the judge names them.

        Raises:
            UserError: as `relative_scores`.
        """
        inputs = [{"fact": fact, "known": list(known)} for fact, known, _ in queries if known]
        verdicts = iter(self._verdicts(ENTAILMENT, inputs))
        found = []
        for _, known, _ in queries:
            verdict = next(verdicts) if known else {}
            evidence = tuple(sorted({n - 1 for n in verdict.get("evidence", ())}))
            if not all(n in range(len(known)) for n in evidence):
                raise self._beyond_the_end(ENTAILMENT)
            found.append(Entailment(evidence, verdict.get("failure")))
        return found

    def _beyond_the_end(self, task: str) -> UserError:
        return UserError(
            f"{self._store.path}: a verdict of {task} names facts beyond the ends of the lists "
            "that it is about; pass other --verdicts"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the model's settings, and what this run asked and spent."""
        if self._client is None:
            return {"replayed_from": str(self._store.path)}
        return {
            "settings": self._client.settings.to_json(),
            "account": self._client.account.to_json(),
        }

    def _verdicts(self, task: str, inputs: Sequence[Mapping[str, Any]]) -> list[Verdict]:
        """A verdict on each input; equal ones are asked about once."""
        stage = read_packaged(str(__package__), f"{PROMPT}.toml")[task]
        prompt = json.dumps(stage, sort_keys=True)
        keys = [verdict_key(prompt, self.name, sample) for sample in inputs]
        new = {
            key: sample
            for key, sample in zip(keys, inputs, strict=True)
            if key not in self._store and not _over_length(sample)
        }
        failed: dict[str, Verdict] = {}
        if new:
            for key, verdict in self._ask(task, stage, new):
                if "failure" in verdict and key not in self._store:
                    failed[key] = verdict
        over = {"failure": "over_length"}
        return [
            over if _over_length(sample) else failed.get(key) or self._store.verdict(key) or {}
            for key, sample in zip(keys, inputs, strict=True)
        ]

    def _ask(
        self, task: str, prompt: Mapping[str, Any], new: Mapping[str, Mapping]
    ) -> Iterator[tuple[str, Verdict]]:
        """Asks about what the store lacks and keeps what comes back."""
        if self._client is None:
            raise UserError(
                f"{self._store.path}: of {self.name}'s verdicts {len(new):,} of {task} are "
                f"missing, the first {next(iter(new))}; judge them with --judge=language_model "
                "and the same --verdicts"
            )
        self._client.datasets = self.datasets
        stage = _JudgeStage(self._client, task, prompt, self._store)
        if self._dry_run:
            self.planned[task] = str(stage.estimate(new.items()))
            yield from ((key, {"failure": "not_asked"}) for key in new)
            return
        answers = progress_bar(
            stage.answers(new.items()), task.replace("_", " "), total=len(new), unit="verdict"
        )
        for (key, _), answer in answers:
            yield key, _verdict_of(answer)


def _verdict_of(answer: pydantic.BaseModel | NoAnswer) -> dict[str, Any]:
    """The verdict to keep of an answer; a failure without its detail, which may quote texts."""
    if not isinstance(answer, NoAnswer):
        return answer.model_dump()
    return {"failure": "service" if answer.category in SERVICE_FAILURES else answer.category}


class _JudgeStage(Stage[tuple[str, Mapping[str, Any]], pydantic.BaseModel]):
    """One task of the judge, about samples and their keys; verdicts are kept as they come."""

    content = CONTENT

    def __init__(
        self, client: Client, task: str, prompt: Mapping[str, Any], store: VerdictStore
    ) -> None:
        super().__init__(client, PROMPT)
        self._task = task
        self._prompt = prompt
        self._store = store

    def received(
        self, item: tuple[str, Mapping[str, Any]], answer: pydantic.BaseModel | NoAnswer
    ) -> None:
        if isinstance(answer, NoAnswer) and answer.category in SERVICE_FAILURES:
            return  # it may be asked again
        told = json.dumps(self._prompt, sort_keys=True)
        self._store.keep(item[0], judge_name(self.client), self._task, told, _verdict_of(answer))

    def request(self, item: tuple[str, Mapping[str, Any]]) -> Request:
        text = _text(self._task, item[1])
        return make_request(self._prompt, text, _FORMS[self._task], _USUAL_TOKENS[self._task])

    def check(self, item: tuple[str, Mapping[str, Any]], answer: pydantic.BaseModel) -> None:
        if isinstance(answer, _SamePairs):
            ends = len(item[1]["a"]), len(item[1]["b"])
            for pair in answer.same:
                if not (1 <= pair.a <= ends[0] and 1 <= pair.b <= ends[1]):
                    raise ValueError(
                        f"A{pair.a} with B{pair.b}: the lists end at A{ends[0]} and B{ends[1]}"
                    )
        elif isinstance(answer, _Evidence):
            for number in answer.evidence:
                if not 1 <= number <= (end := len(item[1]["known"])):
                    raise ValueError(f"K{number}: the list ends at K{end}")


def judge_name(client: Client) -> str:
    """The model and what shapes its verdicts."""
    temperature = client.settings.temperature
    model = client.settings.model
    return model if temperature is None else f"{model} at temperature {temperature:g}"


def _rated(sample: Sample, swapped: bool) -> dict[str, str]:
    answers = (sample.answer, sample.reference) if swapped else (sample.reference, sample.answer)
    named = {"question": sample.question, "first": answers[0], "second": answers[1]}
    return named | ({"context": sample.context} if sample.context else {})


def _text(task: str, sample: Mapping[str, Any]) -> str:
    if task == RELATIVE_SCORE:
        known = f"<known>{sample['context']}</known>\n" if "context" in sample else ""
        return (
            f"<question>{sample['question']}</question>\n{known}"
            f"<answer_1>{sample['first']}</answer_1>\n<answer_2>{sample['second']}</answer_2>"
        )
    if task == FACTS:
        return f"<text>{sample['text']}</text>"
    if task == ENTAILMENT:
        return f"{_numbered('K', sample['known'])}\n\n<fact>{sample['fact']}</fact>"
    return "\n\n".join(_numbered(name.upper(), sample[name]) for name in ("a", "b"))


def _numbered(letter: str, facts: Sequence[str]) -> str:
    return "\n".join(f"{letter}{n}: {fact}" for n, fact in enumerate(facts, start=1))


def _over_length(sample: Mapping[str, Any]) -> bool:
    texts = (value if isinstance(value, str) else "".join(value) for value in sample.values())
    return sum(map(len, texts)) > MAX_CHARACTERS


def _marks(verdict: Verdict, reference: str) -> Marks:
    """The overall marks, `reference` naming the place at which the reference stood."""
    if "failure" in verdict:
        return Marks(None, None, verdict["failure"])
    answer = "second" if reference == "first" else "first"
    return Marks(verdict[reference]["overall"], verdict[answer]["overall"])


def _facts(verdict: Verdict, lang: str) -> Facts:
    if "failure" in verdict:
        return Facts((), lang, verdict["failure"])
    # A fact that the model gives twice is one.
    return Facts(tuple(dict.fromkeys(verdict["facts"])), lang)
