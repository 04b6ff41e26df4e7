"""Answers that were received, kept so that they are never paid for twice.

A JSON Lines file, one `Completion` a line with the key of its request. Prompts and images are not
in the file, only their hash; answers are, and hold what the prompt told of its subject.
"""

import dataclasses
from pathlib import Path

from cxrjax.files import KeyedLines


@dataclasses.dataclass(frozen=True)
class Completion:
    """What a server sent.

    Attributes:
        finish_reason: "stop", "length" (the token limit), "content_filter", or the server's own.
        refusal: the model's words where it declines in a field of its own.
        model: the name that the server gives itself.
        input_tokens, output_tokens: as the server counts them; None where it doesn't.
        logprob: sum over the answer's tokens, where it was asked for and the server told it.
    """

    text: str
    finish_reason: str
    refusal: str | None
    model: str
    input_tokens: int | None
    output_tokens: int | None
    logprob: float | None = None


class AnswerCache:
    """The file, held by one process at a time; threads share it.

    Args:
        path: made where it isn't there.

    Raises:
        UserError: it cannot be written, another process holds it, or it holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = KeyedLines(
            path, "--cache", "cached answer", lambda fields: Completion(**fields)
        )

    def close(self) -> None:
        """Lets other processes have the file."""
        self._lines.close()

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Completion | None:
        """The answer to the request of this key, None where there is none yet."""
        fields = self._lines.get(key)
        return None if fields is None else Completion(**fields)

    def put(self, key: str, completion: Completion) -> None:
        """Keeps an answer; on the disk when this returns.

        Raises:
            UserError: the disk takes no more.
        """
        self._lines.put(key, dataclasses.asdict(completion))
