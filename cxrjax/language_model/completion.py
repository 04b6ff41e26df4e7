"""One chat completion over HTTP: sent, sent again where that helps, booked.

The protocol is OpenAI's; Gemini's endpoint of that kind, vLLM and llama.cpp's server speak it too.
"""

import email.utils
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import tenacity

from cxrjax.errors import ForeignError, UserError
from cxrjax.language_model.account import Account, RateLimit
from cxrjax.language_model.answer import Completion, most_bytes, read_completion
from cxrjax.language_model.exchange import Abandoned, Broken, Exchange, Reply
from cxrjax.language_model.request import Category, NoAnswer
from cxrjax.language_model.secrecy import KeyGuard
from cxrjax.language_model.settings import Settings
from cxrjax.untrusted.json_text import parse_json

# Seconds of rest that a server may ask for between two answers; who wants more has no quota left.
MAX_RETRY_AFTER = 600.0
_LONGEST_WAIT = 60.0
_DETAIL_LENGTH = 300
# Nothing in the request can mend these: the key, the address or the model's name is wrong.
_UNUSABLE = (401, 403, 404)


class Stopped(Exception):  # noqa: N818 - an order, no error
    """The run is being stopped; nothing more is sent."""


class _Transient(Exception):  # noqa: N818 - a failure that another attempt may mend
    def __init__(self, category: Category, detail: str, retry_after: float | None = None) -> None:
        super().__init__(category, detail)
        self.category: Category = category
        self.detail = detail
        self.retry_after = retry_after


class Server:
    """The server of the settings; threads share it.

    Args:
        stop: once set, waiting ends and nothing more is sent.
    """

    def __init__(self, settings: Settings, account: Account, stop: threading.Event) -> None:
        self._settings = settings
        self._account = account
        self._stop = stop
        self._rate = RateLimit(settings.requests_per_minute, stop)
        self._exchange = Exchange(settings)
        self._guard = KeyGuard(settings.api_key)

    def abandon(self, all_of_them: bool = True) -> None:
        """Ends requests under way, and whatever is begun, until called with False."""
        self._exchange.abandon(all_of_them)

    def complete(
        self, body: dict[str, Any], most_tokens: tuple[int, int], keep: Callable[[Completion], None]
    ) -> Completion:
        """Returns the server's answer to a request's body.

        Args:
            most_tokens: input and output tokens that it can cost.
            keep: called with the answer before anything else happens with it.

        Raises:
            NoAnswer: `http_error`, `timeout` or `connection`, after the last attempt.
            UserError: the cost limit is reached, or no request can succeed (wrong key, address or
                model, no quota left).
            Stopped: the run is being stopped.
        """
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._settings.attempts),
            wait=_pause,
            retry=tenacity.retry_if_exception_type(_Transient),
            sleep=tenacity.sleep_using_event(self._stop),
            reraise=True,
        )
        try:
            return retrying(self._attempt, body, most_tokens, keep)
        except _Transient as failure:
            raise NoAnswer(failure.category, failure.detail) from None

    def _attempt(
        self, body: dict[str, Any], most_tokens: tuple[int, int], keep: Callable[[Completion], None]
    ) -> Completion:
        if self._stop.is_set():
            raise Stopped
        reserved = self._account.reserve(*most_tokens)
        perhaps_charged = False
        try:
            self._rate.wait()
            if self._stop.is_set():
                raise Stopped
            perhaps_charged = True
            result, perhaps_charged = self._send(body, most_tokens[1])
            if isinstance(result, Exception):
                raise result
        except BaseException:
            self._account.cancel(reserved, perhaps_charged)
            raise
        self._rate.answered()
        try:
            keep(result)
        finally:
            self._account.settle(reserved, result)
        return result

    def _send(
        self, body: dict[str, Any], most_output_tokens: int
    ) -> tuple[Completion | Exception, bool]:
        """The answer, or what to raise in its place; and whether the server may charge for it.

        What is raised has no cause: a library's exceptions hold the request, and so the key.
        """
        try:
            reply = self._exchange.post(body, most_bytes(most_output_tokens))
        except Abandoned:
            return Stopped(), True
        if isinstance(reply, Broken):
            return _Transient(reply.category, self._one_line(reply.detail)), reply.sent
        if not reply.is_success:
            return self._status_error(reply), False
        try:
            completion = read_completion(reply.body, self._settings.model)
        except ForeignError as error:
            found = f"no completion: {error}; got: {_text(reply.body)}"
            return _Transient("http_error", self._one_line(found)), True
        said = (completion.text, completion.refusal or "", completion.model)
        if any(map(self._guard.is_in_answer, (*said, completion.finish_reason))):
            return _Transient("http_error", "the answer contains the key, and is not stored"), True
        return completion, True

    def _status_error(self, reply: Reply) -> Exception:
        """Returns what to raise: worth another attempt, of this request, or of the run."""
        status, where = reply.status, self._settings.host
        code, message = _error_of(reply.body)
        detail = f"HTTP {status} from {where}: {self._one_line(message)}"
        if status in _UNUSABLE:
            return UserError(f"{detail}; check --base_url, --model and CXRJAX_LM_API_KEY")
        if status == 429 and code == "insufficient_quota":
            return UserError(f"{detail}; answers so far are in the cache, start again with credit")
        if status == 429 or status == 408 or status >= 500:
            retry_after = _retry_after(reply.retry_after)
            if retry_after is None:
                return _Transient("http_error", detail)
            rest = retry_after if retry_after > MAX_RETRY_AFTER else self._rate.hold(retry_after)
            if rest > MAX_RETRY_AFTER:
                return UserError(
                    f"{detail}; it wants {rest:.0f} s of rest: start again then, answers so "
                    "far are in the cache"
                )
            return _Transient("http_error", detail, retry_after)
        return NoAnswer("http_error", detail)

    def _one_line(self, text: str) -> str:
        """A server's words as a message shows them: printable, short, and without the key."""
        if self._guard.is_in(text):
            return "(its words are not shown: they repeat the key)"
        if self._settings.api_key:
            text = text.replace(self._settings.api_key, "<key>")
        shown = " ".join(text.split())[:_DETAIL_LENGTH]
        return "".join(one if one.isprintable() else "?" for one in shown)


def _text(body: bytes) -> str:
    return body[: 4 * _DETAIL_LENGTH].decode(errors="replace")


def _error_of(body: bytes) -> tuple[Any, str]:
    """Code and message of an error as OpenAI writes it; else None, and the body's text."""
    try:
        error = parse_json(body)["error"]
        code, message = error.get("code"), error["message"]
        return code, message if isinstance(message, str) else _text(body)
    except (ForeignError, TypeError, AttributeError, KeyError, IndexError):
        return None, _text(body)


_backoff = tenacity.wait_exponential_jitter(initial=1.0, max=_LONGEST_WAIT, jitter=1.0)


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: none where the server named a time, since the rate limit
    holds everybody back until then."""
    failure = state.outcome.exception() if state.outcome else None
    if isinstance(failure, _Transient) and failure.retry_after is not None:
        return 0.0
    return _backoff(state)


def _retry_after(header: str) -> float | None:
    """Seconds, from a number or a date (RFC 9110, section 10.2.3); None where it is neither."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
