"""A stage: one kind of question to a language model, asked of many items.

A data set gives a stage its prompt, the schema and the check of an answer. Asking a second time,
failures and estimates are here; retries, the cache, permission and cost are the client's. A prompt
file is TOML: sections with `system` (the instruction) and `demonstrations` (turns of `user` and
`assistant`), and a `version`. A changed prompt is a new version in a new file: answers are cached
by its text.
"""

import abc
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import pydantic

from cxrjax.language_model.client import Client, CostEstimate
from cxrjax.language_model.request import EncodedImage, Message, NoAnswer, Request
from cxrjax.progress import progress_bar

Form = TypeVar("Form", bound=pydantic.BaseModel)
Item = TypeVar("Item")


class Strict(pydantic.BaseModel):
    """All fields required and no others, as servers that hold a model to a schema want it."""

    model_config = pydantic.ConfigDict(extra="forbid")


class Stage(abc.ABC, Generic[Item, Form]):
    """One step of a construction; subclasses say what is asked about an item.

    Args:
        prompt_version: of the prompt file.

    Attributes:
        content: what its requests tell, in words, for whoever must permit sending it.
        name, version: the model, and the version of the prompt.
    """

    content: str

    def __init__(self, client: Client, prompt_version: str) -> None:
        self.client = client
        self.name = client.settings.model
        self.version = f"prompt {prompt_version}"

    @abc.abstractmethod
    def request(self, item: Item) -> Request[Form]:
        """Returns what is asked about an item."""

    def check(self, item: Item, answer: Form) -> None:
        """Raises ValueError where an answer cannot be used; the model is shown its text."""

    def shortcoming(self, item: Item, answer: Form) -> tuple[int, str]:
        """Returns how far a usable answer is from a good one, and what to tell the model then."""
        return 0, ""

    def received(self, item: Item, answer: Form | NoAnswer) -> None:
        """Takes note of an answer or failure at once, in the thread that asked."""

    def ask(self, item: Item) -> Form:
        """Returns a usable answer; one that falls short is asked for once more, the better taken.

        Raises:
            NoAnswer, UserError: as `Client.ask`.
        """
        check = functools.partial(self.check, item)
        request = self.request(item)
        answer = self.client.ask(request, check)
        short, told = self.shortcoming(item, answer)
        if not short:
            return answer
        try:
            second = self.client.ask(request.then(answer.model_dump_json(), told), check)
        except NoAnswer:
            return answer
        return min((answer, second), key=lambda one: self.shortcoming(item, one)[0])

    def answers(self, items: Iterable[Item]) -> Iterator[tuple[Item, Form | NoAnswer]]:
        """Yields each item with its answer or failure, in order; several are asked about at once.

        Raises:
            UserError: sending is not allowed, the cost limit is reached, or the server is unusable;
                answers so far are in the cache.
        """
        if not self.client.settings.may_send:
            items = list(items)  # the refusal says how many there are
            self.require_permission(items)
        yield from self.client.map(self._answer_or_failure, items)

    def require_permission(self, items: Iterable[Item]) -> None:
        """Refuses to send content off this machine unasked, before anything is sent.

        Raises:
            UserError: as `Client.require_permission`.
        """
        self.client.require_permission(self.content, map(self.request, items))

    def estimate(self, items: Iterable[Item]) -> CostEstimate:
        """Returns what a dry run tells: what asking about these would send and cost."""
        requests = progress_bar(map(self.request, items), "counting", unit="request")
        return self.client.estimate(requests)

    def _answer_or_failure(self, item: Item) -> Form | NoAnswer:
        answer: Form | NoAnswer
        try:
            answer = self.ask(item)
        except NoAnswer as failure:
            answer = failure.with_traceback(None)  # its frames would keep the cache open
        self.received(item, answer)
        return answer


def make_request(
    prompt: Mapping[str, Any],
    user: str | tuple[str | EncodedImage, ...],
    form: type[Form],
    usual_output_tokens: int,
    max_output_tokens: int = 8192,
) -> Request[Form]:
    """Puts a section's instruction, its demonstrations as turns, and what is asked now together.

    Args:
        usual_output_tokens, max_output_tokens: as in `Request`.
    """
    messages = [Message("system", (prompt["system"].strip(),))]
    for shown in prompt.get("demonstrations", ()):
        messages.append(Message("user", (shown["user"].strip(),)))
        messages.append(Message("assistant", (shown["assistant"].strip(),)))
    messages.append(Message("user", (user,) if isinstance(user, str) else user))
    return Request(tuple(messages), form, max_output_tokens, usual_output_tokens)
