"""Account of a run's requests, tokens and cost, its limits, and the answers already paid for.

Answers are kept in a JSON Lines file, one `Completion` a line with the key of its request. Prompts
and images are not in the file, only their hash; answers are, and hold what the prompt told of its
subject.
"""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import KeyedLines
from cxrjax.language_model.answer import Completion
from cxrjax.language_model.settings import Prices


class AnswerCache(KeyedLines[Completion]):
    """Completions by the keys of their requests.

    Args:
        path: created if missing. Answers in it that no client of today would have stored count as
            missing.

    Raises:
        UserError: it cannot be written, another process holds it, or it holds something else.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "--cache", "cached answer", _completion, dataclasses.asdict)


def _completion(fields: dict[str, Any]) -> Completion:
    if not _REQUIRED <= fields.keys() <= _FIELDS:
        raise ValueError("not the fields of an answer")
    try:
        return Completion(**fields)
    except ValueError:
        raise ForeignError("no usable answer") from None


_FIELDS = {field.name for field in dataclasses.fields(Completion)}
_REQUIRED = _FIELDS - {"logprob", "token_texts", "token_logprobs"}  # which older files lack


class Account:
    """Tokens and cost of one run; threads share it.

    Each request reserves the most it can cost before it is sent, and settles when its answer (or
    failure) is there; what has been spent and reserved together never passes the limit. Cost never
    falls: a server's count is booked where it can be true, and else the reservation, whole. A count
    above the reservation is believed, so that one request may pass the limit, and none after it.

    Args:
        prices: None: costs are reported as None.
        max_cost: None: no limit. Needs prices.
    """

    def __init__(self, prices: Prices | None, max_cost: float | None) -> None:
        self._prices = prices
        self._max_cost = max_cost
        self._reserved = 0.0
        self._under_way = 0
        self._changed = threading.Condition()
        self.requests = 0
        self.answers = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.from_cache = 0
        self.cached_input_tokens = 0
        self.cached_output_tokens = 0
        # Sent, and the server didn't say what it cost: no usage in the answer, or no answer.
        self.unmetered = 0
        self._unmetered_cost = 0.0

    def reserve(self, input_tokens: int, output_tokens: int) -> float:
        """Sets aside what a request costs at most, and counts the request.

        Waits for requests under way where these may yet turn out cheaper.

        Raises:
            UserError: it could pass the limit.
        """
        most = self._prices.cost(input_tokens, output_tokens) if self._prices else 0.0
        with self._changed:
            while self._max_cost is not None:
                room = self._max_cost - self._spent() - self._reserved
                if most <= room:
                    break
                if not self._under_way:
                    raise UserError(
                        f"stopped before --max_cost={self._max_cost:g}: spent {self._spent():.6g}, "
                        f"the next request could cost {most:.6g}; all answers so far are in the "
                        "cache, start again with a higher limit to go on"
                    )
                self._changed.wait()
            self._reserved += most
            self._under_way += 1
            self.requests += 1
        return most

    def settle(self, reserved: float, completion: Completion) -> None:
        """Books the answer that a reservation was for."""
        with self._changed:
            self.answers += 1
            self._release(reserved)
            if completion.input_tokens is None or completion.output_tokens is None:
                self.unmetered += 1
                self._unmetered_cost += reserved
            else:
                self.input_tokens += completion.input_tokens
                self.output_tokens += completion.output_tokens

    def cancel(self, reserved: float, perhaps_charged: bool) -> None:
        """Gives a reservation back, or counts it as spent where the server may have charged it."""
        with self._changed:
            self._release(reserved)
            if perhaps_charged:
                self.unmetered += 1
                self._unmetered_cost += reserved

    def replay(self, completion: Completion) -> None:
        """Notes an answer that was paid for in an earlier run, or earlier in this one."""
        with self._changed:
            self.from_cache += 1
            self.cached_input_tokens += completion.input_tokens or 0
            self.cached_output_tokens += completion.output_tokens or 0

    def to_json(self) -> dict[str, Any]:
        """Counts and costs.

        `cost` is what metered answers cost, `unmetered_cost_at_most` bounds the others,
        `cached_cost` is what the answers from the cache once cost, at the prices of today.
        """
        prices = self._prices
        with self._changed:
            return {
                "requests": self.requests,
                "answers": self.answers,
                "input_tokens": self.input_tokens,
                "output_tokens": self.output_tokens,
                "cost": prices and prices.cost(self.input_tokens, self.output_tokens),
                "unmetered_requests": self.unmetered,
                "unmetered_cost_at_most": prices and self._unmetered_cost,
                "answers_from_cache": self.from_cache,
                "cached_input_tokens": self.cached_input_tokens,
                "cached_output_tokens": self.cached_output_tokens,
                "cached_cost": prices
                and prices.cost(self.cached_input_tokens, self.cached_output_tokens),
            }

    def _spent(self) -> float:
        known = self._prices.cost(self.input_tokens, self.output_tokens) if self._prices else 0.0
        return known + self._unmetered_cost

    def _release(self, reserved: float) -> None:
        self._reserved -= reserved
        self._under_way -= 1
        if not self._under_way:
            self._reserved = 0.0  # no rounding is carried along
        self._changed.notify_all()


class RateLimit:
    """Spaces requests evenly; threads share it.

    Args:
        per_minute: None: no spacing.
        stop: set when waiting must end.
    """

    def __init__(self, per_minute: float | None, stop: threading.Event) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._stop = stop
        self._next = 0.0
        self._rest_until = 0.0
        self._rested = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Returns when it is this caller's turn, or when all is to stop."""
        while True:
            with self._lock:
                now = time.monotonic()
                ahead = self._next - now
                if ahead <= 0:
                    self._next = now + self._interval
                    return
            if self._stop.wait(ahead):
                return

    def hold(self, seconds: float) -> float:
        """Lets nothing out for a while: the server asked for it.

        Returns:
            Seconds that it asked for since it last answered, times that overlap counted once.
        """
        with self._lock:
            now = time.monotonic()
            self._rested += max(now + seconds - max(now, self._rest_until), 0.0)
            self._rest_until = max(self._rest_until, now + seconds)
            self._next = max(self._next, now + seconds)
            return self._rested

    def answered(self) -> None:
        """Notes that the server works: `hold` counts anew."""
        with self._lock:
            self._rested = 0.0
