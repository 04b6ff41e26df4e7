"""Asks a language model for checked objects, many at a time, each paid for once."""

import collections
import concurrent.futures
import dataclasses
import json
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pydantic

from cxrjax.errors import ForeignError, UserError
from cxrjax.language_model.account import Account, AnswerCache
from cxrjax.language_model.answer import Completion
from cxrjax.language_model.completion import Server
from cxrjax.language_model.request import SERVICE_FAILURES, NoAnswer, Request
from cxrjax.language_model.settings import Settings
from cxrjax.paper import data_terms
from cxrjax.untrusted.json_text import parse_json

T = TypeVar("T", bound=pydantic.BaseModel)
Item = TypeVar("Item")
Result = TypeVar("Result")

# Requests in a row that the service fails, each after its retries, before the run is given up.
MAX_SERVICE_FAILURES = 10
_BYTES_PER_TOKEN = 4  # of English text, for estimates
_PATIENCE = 2.0  # seconds that Ctrl-C leaves to answers under way, which are paid for
_LONGEST_DETAIL = 2000  # characters of what is wrong with an answer; the model is shown it
_AHEAD = 4  # items begun before the oldest is done, times the concurrency


@dataclasses.dataclass(frozen=True)
class CostEstimate:
    """The requests, tokens and cost of a run that sends nothing."""

    requests: int  # not in the cache
    from_cache: int  # answered already
    images: int  # in all requests together; one that several carry counts each time
    # `input_tokens`, `output_tokens`: about so many, a model's thinking not counted.
    input_tokens: int
    output_tokens: int
    output_tokens_at_most: int  # if every answer fills its limit
    # `cost`, `cost_at_most`: of these; None where prices are not known.
    cost: float | None
    cost_at_most: float | None

    def __str__(self) -> str:
        about, most = (
            "unknown" if cost is None else f"{cost:,.2f}" for cost in (self.cost, self.cost_at_most)
        )
        return (
            f"{self.requests:,} requests to send with {self.images:,} images in them, "
            f"{self.from_cache:,} answered from the cache; about {self.input_tokens:,} input and "
            f"{self.output_tokens:,} output tokens, cost about {about}; at most "
            f"{self.output_tokens_at_most:,} output tokens, cost at most {most} (repeated "
            "requests not counted)"
        )


class Client:
    """A language model behind a server, with its cache and its account; threads share it.

    Attributes:
        datasets: whose content is sent; their terms are told where sending is refused.
    """

    def __init__(
        self, settings: Settings, cache: AnswerCache, datasets: Iterable[str] = ()
    ) -> None:
        self.settings = settings
        self.datasets = tuple(datasets)
        self.account = Account(settings.prices, settings.max_cost)
        self._cache = cache
        self._stop = threading.Event()
        self._server = Server(settings, self.account, self._stop)
        self._lock = threading.Lock()
        self._service_failures = 0
        # Who asks the same asks in turn, and finds the first one's answer in the cache.
        self._turns: weakref.WeakValueDictionary[str, threading.Lock]
        self._turns = weakref.WeakValueDictionary()

    def close(self) -> None:
        """Lets other processes have the cache."""
        self._cache.close()

    def ask(self, request: Request[T], check: Callable[[T], None] | None = None) -> T:
        """An answer that fits the request's form and passes the check.

        A truncated answer is asked for again with twice the room; one that does not fit, with what
        was wrong with it. Every answer is in the cache before it is looked at, wrong ones too, so a
        second run goes the same way without sending anything.

        Args:
            check: raises ValueError with what is wrong; the model is shown that text.

        Raises:
            NoAnswer: refused, or still unusable after `settings.answers` answers, or the service
                failed.
            UserError: the run cannot go on (`Server.complete`; sending not allowed; too many
                failures in a row).
        """
        form = request.answer
        assert form is not None, "a request for text has no form; see `complete`"
        current = request
        for left in range(self.settings.answers - 1, -1, -1):
            completion = self.complete(current)
            try:
                return _read(completion, form, check)
            except NoAnswer as failure:
                if failure.category == "refusal" or not left:
                    raise
                if failure.category == "truncated":
                    room = 2 * current.max_output_tokens
                    current = dataclasses.replace(current, max_output_tokens=room)
                else:
                    wrong = f"That answer cannot be used: {failure.detail}\nAnswer again, in full."
                    current = current.then(completion.text or "(nothing)", wrong)
        raise AssertionError("settings.answers is at least 1")

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Each item with `function(item)`, in order; `settings.concurrency` at a time.

        Items are taken as they are needed. An exception of `function`, Ctrl-C, or dropping the
        iterator ends it: nothing more is sent. Answers under way are waited for and kept; after
        Ctrl-C or a drop, those that come within two seconds, and none after a second Ctrl-C. One
        map at a time.
        """
        waiting: collections.deque[tuple[Item, concurrent.futures.Future[Result]]]
        waiting = collections.deque()
        pool = concurrent.futures.ThreadPoolExecutor(self.settings.concurrency, "language_model")
        try:
            for item in items:
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) >= _AHEAD * self.settings.concurrency:
                    yield _oldest(waiting)
            while waiting:
                yield _oldest(waiting)
        except BaseException as reason:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            patience = None if isinstance(reason, Exception) else _PATIENCE
            try:
                under_way = [future for _, future in waiting if not future.done()]
                concurrent.futures.wait(under_way, patience)
            finally:
                self._server.abandon()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self._stop.clear()
            self._server.abandon(False)

    def estimate(self, requests: Iterable[Request]) -> CostEstimate:
        """Returns what sending these would take. Nothing is sent.

        Images are loaded only where the cache holds answers that have to be looked for.
        """
        count = cached = images = input_tokens = output_tokens = most_input = most_output = 0
        for request in requests:
            try:
                if len(self._cache) and request.key(self.settings) in self._cache:
                    cached += 1
                    continue
            except NoAnswer:  # an unreadable image: nothing will be sent
                continue
            count += 1
            images += len(request.images)
            pixels = len(request.images) * self.settings.image_tokens
            input_tokens += request.text_bytes() // _BYTES_PER_TOKEN + pixels
            most_input += request.text_bytes() + pixels
            output_tokens += request.usual_output_tokens
            most_output += request.max_output_tokens
        prices = self.settings.prices
        return CostEstimate(
            requests=count,
            from_cache=cached,
            images=images,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            output_tokens_at_most=most_output,
            cost=prices.cost(input_tokens, output_tokens) if prices else None,
            cost_at_most=prices.cost(most_input, most_output) if prices else None,
        )

    def require_permission(self, content: str, requests: Iterable[Request]) -> None:
        """Refuses to send content of a credentialed data set off this machine unasked.

        Args:
            content: what the requests tell, in words.
            requests: all that the run would send, for the message.

        Raises:
            UserError: the server is elsewhere, `allow_sending` is off, and some answer is not in
                the cache; names the data and their terms.
        """
        if self.settings.may_send:
            return
        estimate = self.estimate(requests)
        if not estimate.requests:
            return
        pixels = f"the pixels of images ({estimate.images:,} in all) and " * bool(estimate.images)
        if terms := "; ".join(map(str, data_terms(self.datasets).values())):
            content += f", of {terms},"
        clear = ", unencrypted" * self.settings.base_url.startswith("http:")
        raise UserError(
            f"this would send {estimate.requests:,} requests with {pixels}{content} to "
            f"{self.settings.host}{clear}; if the data's terms allow that, pass --allow_sending, "
            "else use a server on this machine"
        )

    def complete(self, request: Request) -> Completion:
        """Returns what the model says, unread: refusals and cut-off answers too.

        A request that another thread has under way is not sent beside it: its answer is waited for.

        Raises:
            NoAnswer: the service failed.
            UserError: as `ask`.
        """
        key = request.key(self.settings)
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            return self._complete(key, request)

    def _complete(self, key: str, request: Request) -> Completion:
        completion = self._cache.get(key)
        if completion is not None:
            self.account.replay(completion)
            return completion
        if not self.settings.may_send:
            raise UserError(f"sending to {self.settings.host} is not allowed; see --allow_sending")
        pixels = len(request.images) * self.settings.image_tokens
        try:
            completion = self._server.complete(
                request.body(self.settings),
                (request.text_bytes() + pixels, request.max_output_tokens),
                lambda answer: self._cache.put(key, answer),
            )
        except NoAnswer as failure:
            self._count_failure(failure)
            raise
        with self._lock:
            self._service_failures = 0
        return completion

    def _count_failure(self, failure: NoAnswer) -> None:
        if failure.category not in SERVICE_FAILURES:
            return
        with self._lock:
            self._service_failures += 1
            count = self._service_failures
        if count >= MAX_SERVICE_FAILURES:
            raise UserError(
                f"{self.settings.host}: {count} requests in a row failed, the last by "
                f"{failure.category} ({failure.detail}); answers so far are in the cache, start "
                "again when the server is well"
            ) from None


def _oldest(
    waiting: collections.deque[tuple[Item, concurrent.futures.Future[Result]]],
) -> tuple[Item, Result]:
    result = waiting[0][1].result()  # stays among them while it is waited for
    return waiting.popleft()[0], result


def _read(completion: Completion, form: type[T], check: Callable[[T], None] | None) -> T:
    if completion.refusal is not None or completion.finish_reason == "content_filter":
        raise NoAnswer("refusal", _shortened(completion.refusal or "stopped by a content filter"))
    if completion.finish_reason == "length":
        raise NoAnswer("truncated", "the answer ended at its token limit")
    # Some models wrap the object into a code fence or a sentence, whatever they are told.
    text = completion.text[completion.text.find("{") : completion.text.rfind("}") + 1]
    try:
        content = parse_json(text)
    except ForeignError as error:
        found = _shortened(completion.text) or "nothing"
        told = f"expected a JSON object ({_in_words_of_json(text, error)}), got: {found}"
        raise NoAnswer("invalid_json", told) from None
    try:
        answer = form.model_validate(content)
        if check is not None:
            check(answer)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "the object"
        told = f"{field}: {first['msg']}"[:_LONGEST_DETAIL]
        raise NoAnswer("invalid_content", told) from None
    except ValueError as error:
        raise NoAnswer("invalid_content", str(error)[:_LONGEST_DETAIL]) from None
    return answer


def _in_words_of_json(text: str, error: ForeignError) -> str:
    """Describes a JSON error in wording that stays fixed: it is part of the next request's key."""
    try:
        json.JSONDecoder().decode(text)
    except json.JSONDecodeError as worded:
        return str(worded)
    except (ValueError, RecursionError):
        pass
    return str(error)


def _shortened(text: str) -> str:
    return " ".join(text.split())[:200]
