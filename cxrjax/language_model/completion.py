"""One chat completion over HTTP: sent, sent again where that helps, booked.

The protocol is OpenAI's; Gemini's endpoint of that kind, vLLM and llama.cpp's server speak it too.
"""

import email.utils
import threading
import time
from collections.abc import Callable
from typing import Any

import tenacity

from cxrjax.errors import UserError, optional
from cxrjax.language_model.account import Account, Completion, RateLimit
from cxrjax.language_model.request import Category, NoAnswer
from cxrjax.language_model.settings import Settings

MAX_RETRY_AFTER = 600.0  # seconds; a server that asks for more has no quota left for today
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
        # Not at the top: half a second and 30 MB that only those who ask a model need.
        openai = optional("openai", "language_model")
        self._settings = settings
        self._account = account
        self._stop = stop
        self._rate = RateLimit(settings.requests_per_minute, stop)
        # A redirection, or a proxy from the environment, would carry content to another host than
        # the one that was allowed; on loopback, out of the machine.
        http = openai.DefaultHttpxClient(
            follow_redirects=False, trust_env=not settings.is_local, timeout=settings.timeout
        )
        self._openai = openai
        self._client = openai.OpenAI(
            base_url=settings.base_url,
            api_key=settings.api_key or "none",
            max_retries=0,  # tenacity's retries obey the rate limit and are counted
            timeout=settings.timeout,
            http_client=http,
        )

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
            try:
                completion = self._send(body)
            except _Refused as refused:
                perhaps_charged = False
                raise refused.reason from None
        except BaseException:
            self._account.cancel(reserved, perhaps_charged)
            raise
        try:
            keep(completion)
        finally:
            self._account.settle(reserved, completion)
        return completion

    def _send(self, body: dict[str, Any]) -> Completion:
        openai = self._openai
        try:
            answer = self._client.chat.completions.create(**body)
        except openai.APITimeoutError:
            raise _Transient("timeout", f"no answer in {self._settings.timeout:g} s") from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            failure = _Transient("connection", self._one_line(f"{type(cause).__name__}: {cause}"))
            if type(cause).__name__ == "ConnectError":
                raise _Refused(failure) from None
            raise failure from None  # cut off on the way: the server may have done its work
        except openai.APIStatusError as error:
            raise _Refused(self._status_error(error)) from None
        except (openai.APIError, ValueError) as error:  # a body that is no JSON, or no completion
            raise _Transient("http_error", self._one_line(f"no completion: {error}")) from None
        try:
            choice = answer.choices[0]
            usage = answer.usage
            spent = None
            if usage is not None:
                # Gemini counts thinking in the total alone; it is billed as output.
                spent = max(usage.completion_tokens, usage.total_tokens - usage.prompt_tokens)
            return Completion(
                text=choice.message.content or "",
                finish_reason=choice.finish_reason or "stop",
                refusal=choice.message.refusal,
                model=answer.model or self._settings.model,
                input_tokens=usage.prompt_tokens if usage is not None else None,
                output_tokens=spent,
                logprob=_total_logprob(choice),
            )
        except (AttributeError, IndexError, TypeError):
            found = self._one_line(repr(answer))
            raise _Transient("http_error", f"no completion: {found}") from None

    def _status_error(self, error: Any) -> Exception:
        """Returns what to raise: worth another attempt, of this request, or of the run."""
        status, where = error.status_code, self._settings.host
        detail = self._one_line(f"HTTP {status} from {where}: {error.message}")
        if status in _UNUSABLE:
            return UserError(f"{detail}; check --base_url, --model and CXRJAX_LM_API_KEY")
        if status == 429 and error.code == "insufficient_quota":
            return UserError(f"{detail}; answers so far are in the cache, start again with credit")
        if status == 429 or status == 408 or status >= 500:
            retry_after = _retry_after(error.response.headers.get("retry-after"))
            if retry_after is not None and retry_after > MAX_RETRY_AFTER:
                return UserError(
                    f"{detail}; it wants {retry_after:.0f} s of rest: start again then, answers so "
                    "far are in the cache"
                )
            if retry_after is not None:
                self._rate.hold(retry_after)
            return _Transient("http_error", detail, retry_after)
        return NoAnswer("http_error", detail)

    def _one_line(self, text: str) -> str:
        if self._settings.api_key:
            text = text.replace(self._settings.api_key, "<key>")
        return " ".join(text.split())[:_DETAIL_LENGTH]


def _total_logprob(choice: Any) -> float | None:
    """Sum over the answer's tokens; None where the server tells none."""
    tokens = getattr(choice.logprobs, "content", None)
    return sum(token.logprob for token in tokens) if tokens else None


class _Refused(Exception):  # noqa: N818 - carries what is raised in its place
    """The server took no work on: nothing is charged."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


_backoff = tenacity.wait_exponential_jitter(initial=1.0, max=_LONGEST_WAIT, jitter=1.0)


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: none where the server named a time, since the rate limit
    holds everybody back until then."""
    failure = state.outcome.exception() if state.outcome else None
    if isinstance(failure, _Transient) and failure.retry_after is not None:
        return 0.0
    return _backoff(state)


def _retry_after(header: str | None) -> float | None:
    """Seconds, from a number or a date (RFC 9110, section 10.2.3)."""
    if not header:
        return None
    try:
        return max(float(header), 0.0)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
