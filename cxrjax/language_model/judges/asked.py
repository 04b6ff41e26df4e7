"""A language model as the judge: asked over HTTP, or replayed from the verdicts it gave.

Each distinct sample is judged once, ratings in both orders. A verdict is on the disk before it is
used, and so is a failure that asking again would repeat; one of the server is not, and is asked
again in the next run.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Annotated, Any

import pydantic
from tqdm import tqdm

from cxrjax.errors import UserError
from cxrjax.language_model import Client, NoAnswer, Request
from cxrjax.language_model.judges.judge import (
    FactMatch,
    Facts,
    Marks,
    RelativeScore,
    Sample,
    score_line,
)
from cxrjax.language_model.judges.verdict_store import Verdict, VerdictStore, verdict_key
from cxrjax.language_model.request import SERVICE_FAILURES, Strict, load_prompt, make_request
from cxrjax.radiology_text.facts import one_to_one

PROMPT = "judge_prompts_v1"
CONTENT = "questions, reports and answers"
MAX_CHARACTERS = 20_000  # of one request; who writes more has lost the thread
_MAX_OUTPUT_TOKENS = 8192
# Tasks, and tokens of a good answer, for estimates.
RELATIVE_SCORE, FACTS, FACT_MATCHING = "relative_score", "facts", "fact_matching"
_USUAL_TOKENS = {RELATIVE_SCORE: 70, FACTS: 200, FACT_MATCHING: 100}
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


_FORMS: dict[str, type[pydantic.BaseModel]] = {
    RELATIVE_SCORE: _Ratings,
    FACTS: _FactList,
    FACT_MATCHING: _SamePairs,
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
        judgements: as in `Judge`.
    """

    surrogate = False

    def __init__(
        self, name: str, store: VerdictStore, client: Client | None, dry_run: bool = False
    ) -> None:
        self.name = name
        self.planned: dict[str, str] = {}
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
                same = one_to_one((one["a"] - 1, one["b"] - 1) for one in verdict.get("same", ()))
            matched.append(FactMatch(predicted, true, same, failure))
        return matched

    def to_json(self) -> dict[str, Any]:
        """For the record: the model's settings, and what this run asked and spent."""
        if self._client is None:
            return {"replayed_from": str(self._store.path)}
        return {
            "settings": self._client.settings.to_json(),
            "account": self._client.account.to_json(),
        }

    def _verdicts(self, task: str, inputs: Sequence[Mapping[str, Any]]) -> list[Verdict]:
        """A verdict on each input; equal ones are asked about once."""
        stage = load_prompt(str(__package__), PROMPT)[task]
        prompt = json.dumps(stage, sort_keys=True)
        keys = [verdict_key(prompt, self.name, sample) for sample in inputs]
        new = {
            key: sample
            for key, sample in zip(keys, inputs, strict=True)
            if key not in self._store and not _over_length(sample)
        }
        failed: dict[str, Verdict] = {}
        if new:
            for key, verdict in self._ask(task, stage, prompt, new):
                if "failure" in verdict and key not in self._store:
                    failed[key] = verdict
        over = {"failure": "over_length"}
        return [
            over if _over_length(sample) else failed.get(key) or self._store.get(key) or {}
            for key, sample in zip(keys, inputs, strict=True)
        ]

    def _ask(
        self, task: str, stage: Mapping[str, Any], prompt: str, new: Mapping[str, Mapping]
    ) -> Iterator[tuple[str, Verdict]]:
        """Asks about what the store lacks and keeps what comes back."""
        requests = {key: _request(task, stage, sample) for key, sample in new.items()}
        client = self._client
        if client is None:
            raise UserError(
                f"{self._store.path}: of {self.name}'s verdicts {len(new):,} of {task} are "
                f"missing, the first {next(iter(new))}; judge them with --judge=language_model "
                "and the same --verdicts"
            )
        if self._dry_run:
            self.planned[task] = str(client.estimate(requests.values()))
            yield from ((key, {"failure": "not_asked"}) for key in new)
            return
        client.require_permission(CONTENT, requests.values())

        def ask(key: str) -> Verdict:
            verdict, lasting = _asked(client, requests[key], _check(task, new[key]))
            if lasting:
                self._store.put(key, self.name, task, prompt, verdict)
            return verdict

        answers = client.map(ask, new)
        yield from tqdm(answers, task.replace("_", " "), total=len(new), unit="verdict")


def judge_name(client: Client) -> str:
    """The model and what shapes its verdicts."""
    temperature = client.settings.temperature
    model = client.settings.model
    return model if temperature is None else f"{model} at temperature {temperature:g}"


def _asked(
    client: Client, request: Request, check: Callable[[Any], None] | None
) -> tuple[Verdict, bool]:
    """(the verdict, whether asking again would repeat it)."""
    try:
        return client.ask(request, check).model_dump(), True
    except NoAnswer as failure:
        if failure.category in SERVICE_FAILURES:
            return {"failure": "service"}, False
        # Without the detail, which may quote the texts.
        return {"failure": failure.category}, True


def _rated(sample: Sample, swapped: bool) -> dict[str, str]:
    answers = (sample.answer, sample.reference) if swapped else (sample.reference, sample.answer)
    named = {"question": sample.question, "first": answers[0], "second": answers[1]}
    return named | ({"context": sample.context} if sample.context else {})


def _request(task: str, stage: Mapping[str, Any], sample: Mapping[str, Any]) -> Request:
    if task == RELATIVE_SCORE:
        known = f"<known>{sample['context']}</known>\n" if "context" in sample else ""
        user = (
            f"<question>{sample['question']}</question>\n{known}"
            f"<answer_1>{sample['first']}</answer_1>\n<answer_2>{sample['second']}</answer_2>"
        )
    elif task == FACTS:
        user = f"<text>{sample['text']}</text>"
    else:
        lists = (
            "\n".join(f"{name.upper()}{n}: {fact}" for n, fact in enumerate(sample[name], start=1))
            for name in ("a", "b")
        )
        user = "\n\n".join(lists)
    return make_request(stage, user, _FORMS[task], _USUAL_TOKENS[task], _MAX_OUTPUT_TOKENS)


def _check(task: str, sample: Mapping[str, Any]) -> Callable[[Any], None] | None:
    if task != FACT_MATCHING:
        return None

    def check(answer: _SamePairs) -> None:
        for pair in answer.same:
            if not (1 <= pair.a <= len(sample["a"]) and 1 <= pair.b <= len(sample["b"])):
                raise ValueError(
                    f"A{pair.a} with B{pair.b}: the lists end at A{len(sample['a'])} and "
                    f"B{len(sample['b'])}"
                )

    return check


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
